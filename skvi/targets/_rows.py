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

__all__ = ["SupervisedRows", "mean_log_density"]

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
        #: Parts as they were given, before hyperparameters are bound.
        self.predictor_spec = predictor
        self.likelihood_spec, self.prior_spec = likelihood, prior
        has_expectations = likelihood.has_expectations
        self.has_moments = predictor.has_moments and has_expectations
        self.has_design = predictor.has_design and has_expectations
        self.has_row_slopes = predictor.has_passes
        self.floor_remedy = likelihood.floor_remedy
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

    def initial_hyper(self) -> torch.Tensor:
        """That of the parts, (H,); see `Target.initial_hyper`."""
        points = self.predictor_spec.initial_point()
        return torch.cat([self._initial_scales(), points.to(self.rows.device)])

    def _initial_scales(self) -> torch.Tensor:
        """Start of the hyperparameters of the likelihood and of the prior."""
        own = self.prior_spec.initial_hyper().to(self.rows.device)
        return torch.cat([self.likelihood_spec.initial_hyper(self.y), own])

    @property
    def learned(self) -> tuple[str, ...]:
        """Names of the blocks of `hyper`: likelihood's, prior's, predictor's."""
        return (
            *self._learned_of_likelihood,
            *self.prior_spec.learned,
            *self.predictor_spec.point_layout,
        )

    @property
    def _learned_of_likelihood(self) -> tuple[str, ...]:
        return self.likelihood_spec.learned

    @property
    def point_layout(self) -> Layout:
        """Names, roles and ranges in `hyper`; those of scales are around their start.

        Those of likelihood and prior are positive, and `hyper` contains their logs.
        """
        noise, prior = self._learned_of_likelihood, self.prior_spec.learned
        names = (*noise, *prior)
        ranges = [NOISE_RANGE] * len(noise) + [PRIOR_RANGE] * len(prior)
        starts = self._initial_scales().tolist() if names else []
        triples = zip(names, starts, ranges, strict=True)
        limits = {name: (at - reach, at + reach) for name, at, reach in triples}
        own = zip(noise, self.likelihood_spec._learned_limits, strict=False)
        shapes = {name: ends for name, ends in own if ends is not None}
        roles = dict.fromkeys(noise, "noise") | dict.fromkeys(prior, "prior")
        scales = Layout(
            dict.fromkeys(names, ()),
            dict.fromkeys(names, "exp"),
            roles=roles | dict.fromkeys(shapes, "shape"),
            limits=limits | shapes,
        )
        return scales + self.predictor_spec.point_layout

    def _points(self) -> tuple[torch.Tensor, ...]:
        """Parts of `hyper` that belong to likelihood, prior and predictor."""
        if not self.hyper.shape[0]:
            return self.hyper, self.hyper, self.hyper
        sizes = len(self._learned_of_likelihood), len(self.prior_spec.learned)
        return self.hyper.split([*sizes, len(self.hyper) - sum(sizes)])

    @property
    def likelihood(self) -> Any:
        """The likelihood at the current point parameters."""
        point = self._points()[0]
        spec = self.likelihood_spec
        return spec.bind(point) if point.shape[0] else spec

    @property
    def prior(self) -> Any:  # type: ignore[override]
        """The prior at the current point parameters."""
        return self.prior_spec.bind(self._points()[1])

    @property
    def predictor(self) -> Any:
        """The predictor at the current point parameters."""
        return self.predictor_spec.bind(self._points()[2])

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
        fixed.likelihood_spec, fixed.prior_spec, fixed.predictor_spec = parts
        fixed.hyper = self.hyper.new_zeros(0, dtype=torch.float64)
        return fixed

    def initial_normal(self, generator: torch.Generator) -> NormalForm | None:
        """Start of the predictor; see `Target.initial_normal`."""
        return self.predictor_spec.initial_normal(generator)

    @property
    def symmetry(self) -> Any:
        """That of the predictor, if theta contains nothing else."""
        return None if self.is_extended else self.predictor.symmetry

    @property
    def n_rows(self) -> int:
        """Rows of the data."""
        return len(self.rows)

    @property
    def cost_per_draw(self) -> int:
        """Elements processed by one evaluation of the log joint: the rows."""
        return len(self.rows)

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

    def _total(self, losses: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """Weighted sum of the losses of some rows, (S,), scaled up to all of them."""
        weight = self.rows.weight
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
        for chunk in self.rows.chunks(n_draws * self.predictor_spec.row_width):
            yield self.rows.take(chunk)


def shift(f: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Add the offset to f, (S, n, K)."""
    return f if rows.offset is None else f + rows.offset.to(f.dtype)[:, None]


def shift_mean(mean: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Add the offset to the mean of f, (n,) or (n, K)."""
    return mean if rows.offset is None else mean + like_rows(rows.offset, mean)


def mean_log_density(
    target: SupervisedRows, posterior: Any, n_draws: int, generator: torch.Generator
) -> float:
    """Log predictive density of a row in nats, averaged over the rows by their weights.

    The density is the mean over draws of the posterior; for a target with log loss.
    """
    theta, total = posterior.draw(n_draws, generator).theta, target.constant
    for part in target._parts(n_draws):
        log_p = torch.logsumexp(-target._losses(theta, part).double(), 0)
        log_p -= math.log(n_draws)
        total += float(weighted_sum(log_p[None], part.weight))
    return total / target.rows.total_weight
