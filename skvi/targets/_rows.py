"""Data, a predictor and a loss: what every row says."""

from copy import copy
from typing import Any, Self

import torch

from skvi.targets.base import Target
from skvi.utils._arrays import like_rows

__all__ = ["SupervisedRows"]


class SupervisedRows(Target):
    """Losses of a predictor on rows of data, and hyperparameters of its parts.

    Parameters are those of `SupervisedTarget`, which is the log joint density of
    these rows.
    """

    def __init__(
        self,
        predictor: Any,
        likelihood: Any,
        loss: Any,
        prior: Any,
        X: torch.Tensor,
        y: torch.Tensor,
        sample_weight: torch.Tensor | None = None,
        constant: float = 0.0,
        offset: torch.Tensor | None = None,
    ) -> None:
        self.predictor, self._likelihood, self.loss = predictor, likelihood, loss
        self._prior, self.layout = prior, predictor.layout
        self.X, self.y, self.sample_weight = X, y.to(torch.float64), sample_weight
        self.constant, self.offset = constant, offset
        self.hyper = self.initial_hyper()

    def initial_hyper(self) -> torch.Tensor:
        """What likelihood and prior say, (H,); see `Target.initial_hyper`."""
        parts = self._likelihood.initial_hyper(self.y), self._prior.initial_hyper()
        return torch.cat(parts)

    @property
    def learnt(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of `hyper`: the likelihood's, and then the prior's."""
        return self._likelihood.learnt + self._prior.learnt

    @property
    def likelihood_spec(self) -> Any:
        """The likelihood as it was given, before hyperparameters are bound."""
        return self._likelihood

    @property
    def prior_spec(self) -> Any:
        """The prior as it was given, before hyperparameters are bound."""
        return self._prior

    @property
    def likelihood(self) -> Any:
        """The likelihood at the current hyperparameters."""
        return self._likelihood.bind(self.hyper[: self._n_of_likelihood])

    @property
    def prior(self) -> Any:  # type: ignore[override]
        """The prior at the current hyperparameters."""
        return self._prior.bind(self.hyper[self._n_of_likelihood :])

    @property
    def _n_of_likelihood(self) -> int:
        """How many hyperparameters come before those of the prior."""
        return len(self._likelihood.learnt)

    def frozen(self) -> Self:
        """Return the same target with its hyperparameters fixed where they are.

        Returns
        -------
        SupervisedTarget
            Shares the data; `hyper` is empty.
        """
        fixed = copy(self)
        fixed.hyper = self.hyper.detach()
        fixed._likelihood, fixed._prior = fixed.likelihood, fixed.prior
        fixed.hyper = fixed.initial_hyper()
        return fixed

    @property
    def is_linear(self) -> bool:  # type: ignore[override]
        """Whether f is a linear function of theta for each row."""
        return self.predictor.is_linear

    @property
    def has_row_slopes(self) -> bool:  # type: ignore[override]
        """Whether the predictor pulls slopes back through buffers."""
        return self.predictor.has_passes

    @property
    def n_rows(self) -> int:
        """Rows of the data."""
        return len(self.y)

    @property
    def cost_per_draw(self) -> int:
        """Elements that one evaluation of the log joint touches: the rows."""
        return len(self.y)

    def pointwise(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Loss of every row, unweighted, in nats.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        rows : Tensor of int, default=None
            Rows to use; all of them where it is None.

        Returns
        -------
        Tensor of shape (S, n)
            One column for each row that is used.
        """
        X, y, _ = self._select(rows)
        f = self._shift(self.predictor.forward(theta, X), rows)
        return self.loss(self._likelihood_at(theta), f, y)

    def _likelihood_at(self, theta: torch.Tensor) -> Any:
        """Likelihood of each draw, where theta holds parameters of it."""
        return self.likelihood

    def sampled_losses(
        self,
        posterior: Any,
        rows: torch.Tensor | None = None,
        n_draws: int = 10,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Loss of every row at draws that are right for each row by itself.

        Parameters
        ----------
        posterior : Posterior
        rows : Tensor of int, default=None
            Rows to use; None is all of them.
        n_draws : int, default=10
            S.
        generator : torch.Generator, default=None
            Source of the draws.

        Returns
        -------
        Tensor of shape (S, n)
            Unweighted, in nats, differentiable. Activations are sampled locally
            where q is factorised: a draw is then no single theta, and its rows may
            not be summed before anything but a mean is taken.
        """
        X, y, _ = self._select(rows)
        if hasattr(self.predictor, "sample_locally") and posterior.is_diagonal:
            f = self.predictor.sample_locally(posterior.normal(), X, n_draws, generator)
        else:
            theta = posterior.draw(n_draws, generator).theta
            f = self.predictor.forward(theta, X)
        return self.loss(self.likelihood, self._shift(f, rows), y)

    def total_loss(
        self, losses: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Weighted sum over the rows, scaled up to all of them.

        Parameters
        ----------
        losses : Tensor of shape (n,)
            One number for each row that is used.
        rows : Tensor of int, default=None
            These rows; None is all of them.

        Returns
        -------
        Tensor
            A scalar in nats, with the constants of the log joint density.
        """
        return self._total(losses[None], rows)[0] - self.constant

    @property
    def total_weight(self) -> float:
        """Rows, or the sum of their weights."""
        w = self.sample_weight
        return float(len(self.y) if w is None else w.sum())

    def _shift(self, f: torch.Tensor, rows: Any) -> torch.Tensor:
        """Add the offset to f, (S, n, K)."""
        if self.offset is None:
            return f
        offset = self.offset if rows is None else self.offset[rows]
        return f + offset.to(f.dtype)[:, None]

    def _shift_mean(self, mean: torch.Tensor, rows: Any) -> torch.Tensor:
        """Add the offset to the mean of f, (n,) or (n, K)."""
        if self.offset is None:
            return mean
        offset = self.offset if rows is None else self.offset[rows]
        return mean + like_rows(offset, mean)

    def _select(self, rows: Any) -> tuple:
        if rows is None:
            return self.X, self.y, self.sample_weight
        weight = None if self.sample_weight is None else self.sample_weight[rows]
        return self.X[rows], self.y[rows], weight

    def _weighted_sum(self, losses: torch.Tensor, rows: Any) -> torch.Tensor:
        w = self.sample_weight
        if w is None:
            return losses.sum(1, dtype=torch.float64)
        # Single precision outputs have single precision losses; weights are double.
        return losses.to(w.dtype) @ (w if rows is None else w[rows])

    def _total(self, losses: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        total = self._weighted_sum(losses, rows)
        return total if rows is None else total * (len(self.y) / len(rows))
