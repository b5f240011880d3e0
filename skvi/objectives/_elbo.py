"""The expectation objective: ELBO and every generalized posterior."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from skvi.base import Draw
from skvi.objectives._analytic import AnalyticSteps, LocalSteps, structure_of
from skvi.objectives._network_steps import NormalSteps, can_train
from skvi.objectives._score import ScoreFunction
from skvi.objectives._steps import Member, Steps, gain_of_normal
from skvi.objectives.base import Objective
from skvi.utils._validation import StrOptions

SCORE_RATE, LOCAL_RATE = 0.1, 0.2
# Nats that a converged fit to a density may be short.
SMALL_GAIN = 0.02
# Draws, and elements of their scores, used to decide when a fit is finished.
GAIN_DRAWS, GAIN_ELEMENTS = 1000, 2**23


class ELBO(Objective):
    """Evidence lower bound, or its generalization by loss and divergence.

    Maximizes ``-E_q[loss] - D(q || prior)``. With log loss and KL this is a lower
    bound on log p(D), and the fit is standard variational inference.

    Parameters
    ----------
    gradient : {"auto", "reparam", "stl", "local", "score"}, default="auto"
        "auto" integrates in closed form or by quadrature if possible, and needs no
        draws for a linear model; else it is "reparam", and "stl" for
        `MixtureOfNormals` and the default `NormalizingFlow`. The others train on fresh
        draws. "reparam" differentiates through the draws, "stl" (sticking the landing)
        also drops the score term, so that the gradient has no noise if q is the
        posterior; it needs ``KLDivergence(weight=1)``. "local" draws the activations of
        a network for each row, in place of weights that all rows share, for a q that is
        a factorized normal: the noise of rows averages out. "score" (score function,
        REINFORCE, black-box variational inference) needs no derivative of the log joint
        density in theta, at the cost of far more noise: it is for densities without
        derivatives.
    rao_blackwell : bool, default=False
        For "score" only: whether the gradient for one coordinate of q, or one part of a
        `Product`, leaves out log q and the log prior of all others, and the factors of
        the density that it is not in, where these are known. It needs a q of several
        independent parts, an independent prior and KL. On its own it reduces the noise;
        with the control variate it can increase it if every row depends on every
        coordinate, because near the optimum the omitted terms cancel noise of the loss.
    control_variate : {"auto"} or bool, default="auto"
        For "score" only: whether multiples of the score, whose mean is 0, are
        subtracted. "auto" is True.

    Notes
    -----
    The score form is ``-E_q[(-loss + w (log prior - log q)) d log q / d lambda]``
    with theta held fixed, for KL with weight w. For another divergence in closed
    form only the loss is sampled. The coefficient of the control variate, ``cov(f,
    h) / var(h)`` for each parameter, is estimated for every draw from all *other*
    draws: from the same draws it would be biased by O(1/S). All rules are therefore
    unbiased at every number of draws, in minibatches too (for KL and closed forms;
    "reparam" with a log mean, as in Rényi's divergence without a closed form, is
    consistent only). A single draw has no other draws and no control variate.

    For one draw of q per log weight, the doubly reparameterized gradient is "stl".

    References
    ----------
    Roeder, Wu and Duvenaud (2017), *Sticking the landing*. Ranganath, Gerrish and
    Blei (2014), *Black box variational inference*, eqs. 2, 6 and 9, the latter two
    without their shared draws. Kingma, Salimans and Welling (2015), *Variational
    dropout and the local reparameterization trick*, section 2.

    Examples
    --------
    >>> from skvi.objectives import ELBO
    >>> ELBO()
    ELBO()
    >>> ELBO(gradient="score", control_variate=False)
    ELBO(control_variate=False, gradient='score')
    """

    _parameter_constraints: dict = {
        "gradient": [StrOptions({"auto", "reparam", "stl", "local", "score"})],
        "rao_blackwell": ["boolean"],
        "control_variate": [StrOptions({"auto"}), "boolean"],
    }
    kind, direction = "expectation", "lower"
    #: E_q[log joint - upper bound of log q] is still below log p(D).
    sides = frozenset({"exact", "upper"})

    def __init__(
        self,
        gradient: str = "auto",
        rao_blackwell: bool = False,
        control_variate: str | bool = "auto",
    ) -> None:
        self.gradient = gradient
        self.rao_blackwell = rao_blackwell
        self.control_variate = control_variate

    @property
    def rate_share(self) -> float:  # type: ignore[override]
        """A tenth for "score", whose noise would carry q away; a fifth for "local".

        Much noise shortens Adam's steps, and "local" has little: at its whole rate four
        of five splits of the energy data end 40 to 300 nats lower.
        """
        return {"score": SCORE_RATE, "local": LOCAL_RATE}.get(self.gradient, 1.0)

    @property
    def allowed_gain(self) -> float:  # type: ignore[override]
        """A fiftieth of a nat, if gradients are not as noisy as those of "score"."""
        return super().allowed_gain if self.gradient == "score" else SMALL_GAIN

    @property
    def gain_remedy(self) -> str:  # type: ignore[override]
        """Longer fits, where the gradient is "reparam" already."""
        if self.gradient == "score":
            return super().gain_remedy
        return "or lower its learning_rate and tol, or uncorrelate the parameters"

    @torch.no_grad()
    def remaining_gain(
        self, target: Any, posterior: Any, divergence: Any, generator: torch.Generator
    ) -> float:
        """For "score", and densities without data; see `Objective.remaining_gain`."""
        weight = divergence.kl_weight
        if self.gradient != "score" and target.prior is None:
            return gain_of_normal(target, posterior, generator)
        if self.gradient != "score" or weight is None:
            return 0.0
        n_draws = min(GAIN_DRAWS, max(2, GAIN_ELEMENTS // len(posterior.params)))
        theta = posterior.draw(n_draws, generator).theta
        form = ScoreFunction(posterior, theta, False, True)
        loss = target.reference.log_prob(theta) - target.log_joint_batched(theta)
        return form.remaining_gain(form.reward(loss[:, None], weight, target.reference))

    def structure(self, member: Member) -> Hashable | None:
        """Structure of networks under factorized normals; see `Objective.structure`."""
        return structure_of(member) if self.gradient in ("auto", "local") else None

    def steps(
        self,
        members: Sequence[Member],
        params: torch.Tensor,
        n_draws: int,
        batch_size: int | None,
    ) -> Steps:
        """Without automatic differentiation where there is a structure."""
        if self.structure(members[0]) is not None:
            kind = LocalSteps if self.gradient == "local" else AnalyticSteps
            return kind(members, params, n_draws, batch_size)
        if self.gradient == "auto" and can_train(members[0]):
            if members[0].posterior.as_normal() is not None:
                return NormalSteps(members, params, n_draws, batch_size)
        return super().steps(members, params, n_draws, batch_size)

    def surrogate(
        self,
        target: Any,
        posterior: Any,
        divergence: Any,
        rows: torch.Tensor | None,
        n_draws: int,
        generator: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Negative ELBO; see `Objective.surrogate`."""
        has_form = divergence.has_closed_form(target.reference)
        is_closed = has_form and posterior.as_normal() is not None
        if self.gradient in ("auto", "local") and is_closed:
            value = target.expected_loss(posterior, rows, n_draws, generator)
            normal = posterior.normal()
            value = value + divergence.closed_form(normal, target.reference)
            return value, value.detach()
        if self.gradient == "score":
            draw = posterior.draw(n_draws, generator).detach()
            return self._score(target, posterior, divergence, rows, draw)
        draw, prior = posterior.draw_strata(n_draws, generator), target.reference
        theta, log_q = draw.theta, draw.log_q
        # The density at strata costs little, and mixtures get close to the posterior.
        is_quick = draw.weight is not None or posterior.has_quick_path
        is_path = self.gradient == "auto" and is_quick and divergence.kl_weight == 1
        if self.gradient == "stl" or is_path:
            log_q = posterior.path_log_q(draw)
        log_prior = prior.log_prob(theta)
        if self.gradient == "local":
            loss = target.expected_loss(posterior, rows, n_draws, generator)
        else:  # the log joint holds loss and prior; D replaces the prior's part
            loss = draw.weigh(log_prior - target.log_joint(theta, rows)).mean()
        logs = draw.weigh(log_q), draw.weigh(log_prior)  # KL is linear in them
        value = loss + divergence.estimate(posterior, prior, *logs, generator)
        return value, value.detach()

    def _score(
        self,
        target: Any,
        posterior: Any,
        divergence: Any,
        rows: torch.Tensor | None,
        draw: Draw,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Score form: theta is fixed, and only hyperparameters see the value."""
        prior, weight = target.reference, divergence.kl_weight
        theta, log_q = draw.theta, draw.log_q
        log_prior = prior.log_prob(theta)
        if self.rao_blackwell:
            groups = posterior.groups()
            log_joint, terms = target.log_joint_by_group(theta, groups, rows)
        else:
            log_joint = target.log_joint(theta, rows)
            terms = log_joint[:, None]
        losses, value = log_prior[:, None] - terms, (log_prior - log_joint).mean()
        is_closed = divergence.has_closed_form(prior) and posterior.as_normal()
        factor = None
        if weight is None and not is_closed:
            factor = divergence.score_factor(log_q, log_prior)
        if factor is not None:
            losses = losses + factor[:, None]
        if weight is None and factor is None:
            value = value + divergence.closed_form(posterior.normal(), prior)
        else:
            value = value + divergence.monte_carlo(log_q, log_prior)
        control_variate = self.control_variate is not False
        form = ScoreFunction(posterior, theta, self.rao_blackwell, control_variate)
        surrogate = form.surrogate(form.reward(losses, weight, prior))
        return value + surrogate, value.detach()
