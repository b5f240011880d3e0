"""Data, a predictor and a loss: the losses of rows."""

import math
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, Self

import torch

from skvi.base import Layout, NormalForm
from skvi.base._rows import Rows
from skvi.predictors._partial import PartialPredictor
from skvi.targets.base import Target
from skvi.utils._arrays import like_rows, weighted_sum

__all__ = ["SupervisedRows"]

# Ratio of a learned noise scale to its start, and of a prior scale: without a lower
# limit the likelihood of an exactly fitted row is unbounded.
NOISE_RANGE, PRIOR_RANGE = math.log(1e4), math.log(1e6)


class SupervisedRows(Target):
    """Losses of a predictor on rows of data, and point parameters of its parts.

    `SupervisedTarget` is the log joint density of these rows, with the same parameters.
    """

    has_pointwise = True
    #: Rows that a fit does not see, to evaluate it.
    held_out: "SupervisedRows | None" = None

    def __init__(
        self,
        predictor: Any,
        likelihood: Any,
        loss: Any,
        prior: Any,
        X: Any,
        y: torch.Tensor,
        sample_weight: torch.Tensor | None = None,
        constant: float = 0.0,
        offset: torch.Tensor | None = None,
        deterministic: Sequence[str] = (),
    ) -> None:
        if deterministic:
            predictor = PartialPredictor(predictor, deterministic)
        self._predictor, self._likelihood, self._prior = predictor, likelihood, prior
        self.loss, self.layout, self.constant = loss, predictor.layout, constant
        self.rows = Rows(X, y.to(torch.float64), sample_weight, offset)
        self.hyper = self.initial_hyper()

    @property
    def X(self) -> Any:
        """Features of all rows, as they are stored."""
        return self.rows.X

    @property
    def y(self) -> torch.Tensor:
        """Targets, (n,)."""
        return self.rows.y

    @property
    def sample_weight(self) -> torch.Tensor | None:
        """Weights of the rows, (n,), or None."""
        return self.rows.weight

    @property
    def offset(self) -> torch.Tensor | None:
        """Offset of f of the rows, (n,), or None."""
        return self.rows.offset

    def initial_hyper(self) -> torch.Tensor:
        """That of the parts, (H,); see `Target.initial_hyper`."""
        points = self._predictor.initial_point()
        return torch.cat([self._initial_scales(), points.to(self.rows.device)])

    def _initial_scales(self) -> torch.Tensor:
        """Start of the hyperparameters of the likelihood and of the prior."""
        own = self._prior.initial_hyper().to(self.rows.device)
        return torch.cat([self._likelihood.initial_hyper(self.y), own])

    @property
    def learned(self) -> tuple[str, ...]:
        """Names of the blocks of `hyper`: likelihood's, prior's, predictor's."""
        return (
            *self._learned_of_likelihood,
            *self._prior.learned,
            *self._predictor.point_layout,
        )

    @property
    def _learned_of_likelihood(self) -> tuple[str, ...]:
        return self._likelihood.learned

    @property
    def point_layout(self) -> Layout:
        """Names, roles and ranges in `hyper`; those of scales are around their start.

        Those of likelihood and prior are positive, and `hyper` contains their logs.
        """
        noise, prior = self._learned_of_likelihood, self._prior.learned
        names = (*noise, *prior)
        ranges = [NOISE_RANGE] * len(noise) + [PRIOR_RANGE] * len(prior)
        starts = self._initial_scales().tolist() if names else []
        triples = zip(names, starts, ranges, strict=True)
        scales = Layout(
            dict.fromkeys(names, ()),
            dict.fromkeys(names, "exp"),
            roles=dict.fromkeys(noise, "noise") | dict.fromkeys(prior, "prior"),
            limits={name: (at - reach, at + reach) for name, at, reach in triples},
        )
        return scales + self._predictor.point_layout

    @property
    def likelihood_spec(self) -> Any:
        """The likelihood as it was given, before hyperparameters are bound."""
        return self._likelihood

    def _points(self) -> tuple[torch.Tensor, ...]:
        """Parts of `hyper` that belong to likelihood, prior and predictor."""
        if not self.hyper.shape[0]:
            return self.hyper, self.hyper, self.hyper
        sizes = len(self._learned_of_likelihood), len(self._prior.learned)
        return self.hyper.split([*sizes, len(self.hyper) - sum(sizes)])

    @property
    def prior_spec(self) -> Any:
        """The prior as it was given, before hyperparameters are bound."""
        return self._prior

    @property
    def likelihood(self) -> Any:
        """The likelihood at the current point parameters."""
        point = self._points()[0]
        return self._likelihood.bind(point) if point.shape[0] else self._likelihood

    @property
    def prior(self) -> Any:  # type: ignore[override]
        """The prior at the current point parameters."""
        return self._prior.bind(self._points()[1])

    @property
    def predictor(self) -> Any:
        """The predictor at the current point parameters."""
        return self._predictor.bind(self._points()[2])

    def with_prior(self, prior: Any) -> Self:
        """Return the same losses under another prior.

        Parameters
        ----------
        prior : BuiltPrior
            That learns as many numbers as this one.

        Returns
        -------
        SupervisedTarget
            Shares the data.
        """
        other = copy(self)
        other._prior = prior
        return other

    def frozen(self) -> Self:
        """Return the same target with its point parameters fixed.

        Returns
        -------
        SupervisedTarget
            Shares the data; `hyper` is empty.
        """
        fixed = copy(self)
        fixed.hyper = self.hyper.detach()
        parts = fixed.likelihood, fixed.prior, fixed.predictor
        fixed._likelihood, fixed._prior, fixed._predictor = parts
        fixed.hyper = self.hyper.new_zeros(0, dtype=torch.float64)
        return fixed

    @property
    def has_moments(self) -> bool:  # type: ignore[override]
        """Whether moments of f are known, and the likelihood integrates over them."""
        return self._predictor.has_moments and self._likelihood.has_expectations

    @property
    def has_design(self) -> bool:  # type: ignore[override]
        """Whether the predictor has a design matrix, for derivatives in f."""
        return self._predictor.has_design and self._likelihood.has_expectations

    @property
    def is_robust(self) -> bool:  # type: ignore[override]
        """Whether the loss is not the log loss."""
        return not self.loss.is_log_loss

    @property
    def floor_remedy(self) -> str:  # type: ignore[override]
        """That of the likelihood."""
        return self._likelihood.floor_remedy

    def initial_normal(self, generator: torch.Generator) -> NormalForm | None:
        """Start of the predictor; see `Target.initial_normal`."""
        return self._predictor.initial_normal(generator)

    @property
    def symmetry(self) -> Any:
        """That of the predictor, if theta contains nothing else."""
        return None if self.is_extended else self.predictor.symmetry

    @property
    def has_row_slopes(self) -> bool:  # type: ignore[override]
        """Whether the predictor backpropagates slopes through buffers."""
        return self.predictor.has_passes

    @property
    def n_rows(self) -> int:
        """Rows of the data."""
        return len(self.rows)

    @property
    def cost_per_draw(self) -> int:
        """Elements processed by one evaluation of the log joint: the rows."""
        return len(self.rows)

    def batches(self, n_batches: int, generator: torch.Generator) -> list[torch.Tensor]:
        """Partition the rows at random; see `Rows.batches`."""
        return self.rows.batches(n_batches, generator)

    def pointwise(
        self, theta: torch.Tensor, rows: torch.Tensor | slice | None = None
    ) -> torch.Tensor:
        """Loss of every row, unweighted, in nats.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        rows : Tensor of int or slice, default=None
            Rows to use; None is all rows.

        Returns
        -------
        Tensor of shape (S, n)
            One column for each row used.
        """
        return self._losses(theta, self.rows.take(rows))

    def _losses(self, theta: torch.Tensor, part: Rows) -> torch.Tensor:
        """Unweighted losses of some rows, (S, n)."""
        f = shift(self.predictor.forward(theta, part.X), part)
        return self.loss(self._likelihood_at(theta), f, part.y)

    def _total_loss(self, theta: torch.Tensor, part: Rows) -> torch.Tensor:
        """Sum of the weighted losses of some rows, (S,)."""
        f = shift(self.predictor.forward(theta, part.X), part)
        return self.loss.total(self._likelihood_at(theta), f, part.y, part.weight)

    def with_held_out(self, held_out: "SupervisedRows") -> Self:
        """Return the same target, with rows that its fit does not see.

        Parameters
        ----------
        held_out : SupervisedRows
            Rows with the same parts, and log loss.

        Returns
        -------
        SupervisedTarget
        """
        other = copy(self)
        other.held_out = held_out
        return other

    def mean_log_density(
        self, posterior: Any, n_draws: int, generator: torch.Generator
    ) -> float:
        """Log predictive density of a row, averaged over the rows by their weights.

        Parameters
        ----------
        posterior : Posterior
            The density is the mean over draws of it.
        n_draws : int
        generator : torch.Generator

        Returns
        -------
        float
            In nats, for a target with log loss.
        """
        theta, total = posterior.draw(n_draws, generator).theta, self.constant
        for part in self._parts(n_draws):
            log_p = torch.logsumexp(-self._losses(theta, part).double(), 0)
            log_p -= math.log(n_draws)
            total += float(weighted_sum(log_p[None], part.weight))
        return total / self.total_weight

    def _likelihood_at(self, theta: torch.Tensor) -> Any:
        """Likelihood of each draw, if theta contains its parameters."""
        return self.likelihood

    def sampled_losses(
        self,
        posterior: Any,
        rows: torch.Tensor | None = None,
        n_draws: int = 10,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Loss of every row at draws that are valid for each row separately.

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
            Unweighted, in nats, differentiable. Activations are sampled locally if q is
            factorized: a draw then has no common theta, and only means of linear
            functions may be taken over its rows.
        """
        part, predictor = self.rows.take(rows), self.predictor
        if predictor.has_local_draws and posterior.is_diagonal:
            normal = posterior.normal()
            f = predictor.sample_locally(normal, part.X, n_draws, generator)
        else:
            theta = posterior.draw(n_draws, generator).theta
            f = predictor.forward(theta, part.X)
        return self.loss(self.likelihood, shift(f, part), part.y)

    def total_loss(
        self, losses: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Weighted sum over the rows, scaled up to all of them.

        Parameters
        ----------
        losses : Tensor of shape (n,)
            One value for each row used.
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
        return self.rows.total_weight

    def _total(self, losses: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """Weighted sum of the losses of some rows, (S,), scaled up to all of them."""
        weight = self.sample_weight
        if rows is not None and weight is not None:
            weight = weight[rows]
        return self._scaled_up(losses, weight)

    def _scaled_up(
        self, losses: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor:
        """As `_total`, given the weights of these rows."""
        total = weighted_sum(losses, weight)
        return total * (len(self.rows) / losses.shape[1])

    def _parts(self, n_draws: int) -> Iterator[Rows]:
        """All rows, in parts so small that f of all draws fits into the cache."""
        for chunk in self.rows.chunks(n_draws * self._predictor.row_width):
            yield self.rows.take(chunk)


def shift(f: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Add the offset to f, (S, n, K)."""
    return f if rows.offset is None else f + rows.offset.to(f.dtype)[:, None]


def shift_mean(mean: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Add the offset to the mean of f, (n,) or (n, K)."""
    return mean if rows.offset is None else mean + like_rows(rows.offset, mean)
