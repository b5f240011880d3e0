"""The score-function gradient of an expectation over q, with variance reduction."""

from typing import Any

import torch


class ScoreFunction:
    """Estimate ``-E_q[reward * d log q / d lambda]`` from draws that are held fixed.

    With Rao-Blackwellization log q of each group of coordinates, which is independent
    of the others, is multiplied by its own reward: log q and log prior of the others,
    and factors of the loss that it is not in, have expectation 0 there (Ranganath,
    Gerrish and Blei 2014, *Black box variational inference*).
    """

    def __init__(
        self,
        posterior: Any,
        theta: torch.Tensor,
        rao_blackwell: bool,
        control_variate: bool,
    ) -> None:
        self.posterior, self.theta = posterior, theta
        self.rao_blackwell, self.control_variate = rao_blackwell, control_variate

    def columns(self, params: torch.Tensor | None = None) -> torch.Tensor:
        """Log q of every group, (S, G), or of all together, (S, 1)."""
        if self.rao_blackwell:
            return self.posterior.log_prob_terms(self.theta, params)
        return self.posterior.log_prob(self.theta, params)[:, None]

    def reward(
        self, loss: torch.Tensor, weight: float | None, prior: Any
    ) -> torch.Tensor:
        """Factor of log q, (S, G) or (S, 1), detached.

        `loss` is (S, G), what a group is in, or (S, 1). `weight` is that of KL(q
        || prior); None leaves the divergence out.
        """
        reward = -loss.detach()
        if weight is None:
            return reward
        log_q = self.columns(self.posterior.params.detach())
        if self.rao_blackwell:
            terms = prior.log_prob_terms(self.theta).detach().to(log_q.dtype)
            groups = self.posterior.groups()
            log_prior = torch.zeros_like(log_q).index_add(1, groups, terms)
        else:
            log_prior = prior.log_prob(self.theta).detach()[:, None]
        # The score itself, d(log q), has expectation 0.
        return reward + weight * (log_prior - log_q)

    def surrogate(self, reward: torch.Tensor) -> torch.Tensor:
        """Build the scalar whose gradient in ``posterior.params`` is the estimate."""
        if not self.control_variate:
            return -(self.columns() * reward).sum(1).mean()
        _, gradients = self.of_each_draw(reward)
        params = self.posterior.params
        return -(gradients.mean(0).to(params.dtype) @ params)

    def of_each_draw(self, reward: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores, and scores times (reward - control variate): (S, n_variational)."""
        with torch.enable_grad():
            leaf = self.posterior.params.detach().clone().requires_grad_()
            columns = self.columns(leaf)
            score = _per_draw(columns.sum(1), leaf)
            if columns.shape[1] == 1:
                rewarded = score * reward
            else:
                rewarded = _per_draw((columns * reward).sum(1), leaf)
        return score, rewarded - _leave_one_out(score, rewarded) * score

    def remaining_gain(self, reward: torch.Tensor) -> float:
        """Expected gain of a natural-gradient step, minus three standard errors; nats.

        Half the squared gradient in the metric of the diagonal Fisher information,
        without the contribution of the noise of the mean.
        """
        score, gradients = self.of_each_draw(reward)
        fisher = score.square().mean(0).clamp(min=1e-300)
        squared = gradients.mean(0).square() / fisher
        noise = gradients.var(0) / len(gradients) / fisher
        signal = (squared - noise).clamp(min=0)
        error = (2 * noise.square() + 4 * signal * noise).sum().sqrt()
        return 0.5 * float((squared - noise).sum() - 3 * error)


def _per_draw(values: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """Gradient of each value, (S,), in all parameters: (S, n_variational)."""
    each = torch.eye(len(values), dtype=values.dtype, device=values.device)
    found = torch.autograd.grad(
        values, leaf, each, retain_graph=True, is_grads_batched=True
    )
    return found[0]


def _leave_one_out(score: torch.Tensor, rewarded: torch.Tensor) -> torch.Tensor:
    """Coefficient of the control variate for each draw, from all the other draws.

    ``sum(f h) / sum(h^2)``, f = h * reward, is a weighted mean of rewards: robust,
    unlike ``cov(f, h) / var(h)``. A draw's own term would cause a bias of O(1/S).
    """
    product, square = score * rewarded, score.square()
    product, square = product.sum(0) - product, square.sum(0) - square
    return torch.where(square > 0, product / square, 0.0)
