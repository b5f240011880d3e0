"""Data, a predictor and a loss: the losses of rows, and their sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Self

import torch

from skvi.base import Layout, NormalForm
from skvi.base._rows import Rows
from skvi.predictors import MLPPredictor
from skvi.predictors._module import PartialPredictor
from skvi.targets._least_squares import (
    as_std_or_cov,
    gather,
    term_chunks,
)
from skvi.targets.base import Target
from skvi.utils._validation import like_rows, weighted_sum

# Ratio of a learned noise scale to its start, and of a prior scale: without a lower
# limit the likelihood of an exactly fitted row is unbounded.
NOISE_RANGE, PRIOR_RANGE = math.log(1e4), math.log(1e6)


class SupervisedRows(Target):
    """Losses of a predictor on rows of data, and point parameters of its parts.

    `SupervisedTarget` is the log joint density of these rows, with the same parameters.
    """

    #: Rows that a fit does not see, to evaluate it.
    held_out: SupervisedRows | None = None

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
        self.has_design = predictor.has_design and likelihood.has_expectations
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
        rows = self.rows.start if self.predictor_spec.has_design else self.rows
        return torch.cat([self.likelihood_spec.initial_hyper(rows.y), own])

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
        return self.predictor.symmetry if self.noise_hyperprior is None else None

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
        if isinstance(predictor, MLPPredictor) and posterior.is_diagonal:
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
    """Add the offset to f, (S, n, K): to all columns, or to each its own."""
    if rows.offset is None:
        return f
    return f + rows.offset.to(f.dtype).reshape(f.shape[1], -1)


def shift_mean(mean: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Add the offset to the mean of f, (n,) or (n, K)."""
    return mean if rows.offset is None else mean + _of_columns(rows.offset, mean)


def _of_columns(offset: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """An offset, (n,) or (n, K), as it is added to means, (n,) or (n, K)."""
    return offset if offset.ndim == mean.ndim else offset[:, None]


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


if TYPE_CHECKING:
    from skvi.targets._supervised import SupervisedTarget


# Elements of the products of features with the roots of several covariances.
STACKED_ELEMENTS = 2**21

#: Value in nats, and weighted first and second derivatives in f of all rows.
Terms = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def row_terms(
    target: SupervisedTarget,
    of_rows: Callable[[Rows, slice], tuple[torch.Tensor, torch.Tensor]],
    integrate: Callable[..., Sequence[torch.Tensor]],
) -> Terms:
    """Value in nats, and weighted derivatives of all rows, (n,) or (n, K), (n, K, K).

    `of_rows` gives moments of f without an offset for some rows; `integrate` maps these
    to losses and their derivatives in f.
    """
    likelihood, values = target.likelihood, []

    def of_chunks() -> Iterator[tuple[slice, list[torch.Tensor]]]:
        for chunk in term_chunks(target.n_rows, target.predictor.n_outputs):
            part = target.rows.take(chunk)
            mean, std_or_cov = of_rows(part, chunk)
            value, *terms = integrate(
                likelihood, shift_mean(mean, part), std_or_cov, part.y
            )
            w = part.weight
            if w is not None:
                terms = [like_rows(w, term) * term for term in terms]
            values.append(value.sum() if w is None else w @ value)
            yield chunk, terms

    slope, curvature = gather(of_chunks(), target.n_rows)
    return reduce(torch.add, values) - target.constant, slope, curvature


def terms_at_moments(
    target: SupervisedTarget,
    mean: torch.Tensor,
    variance: torch.Tensor,
    refine: int = 1,
) -> Terms:
    """Return `SupervisedTarget.expected_loss_terms` where the moments of f are known.

    Without an offset, (n,), or (n, K) and covariances (n, K, K).
    """
    std_or_cov = as_std_or_cov(variance)

    def of_rows(_: Rows, chunk: slice) -> tuple[torch.Tensor, torch.Tensor]:
        return mean[chunk], std_or_cov[chunk]

    return row_terms(target, of_rows, partial(target.loss.expected, refine=refine))


def moments_of(
    target: SupervisedTarget, normal: NormalForm
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and (co)variance of f of all rows, without an offset."""
    if normal.rows is None or normal.rows.X is not target.X:
        return target.predictor.moments(target.X, normal)
    mean = target.predictor.project(target.X, normal.mean[:, None])[:, 0]
    return mean, normal.rows.variances(normal)


def terms_at(target: SupervisedTarget, theta: torch.Tensor) -> Terms:
    """Return `SupervisedTarget.expected_loss_terms` at a single point, (P,)."""

    def of_rows(part: Rows, _: slice) -> tuple[torch.Tensor, torch.Tensor]:
        f = target.predictor.project(part.X, theta[:, None])[..., 0]
        return f, torch.zeros_like(f if f.ndim == 1 else torch.diag_embed(f))

    return row_terms(target, of_rows, target.loss.expected)


def stacked_terms(targets: Sequence[SupervisedTarget], normal: NormalForm) -> Terms:
    """`SupervisedTarget.expected_loss_terms` of targets on the same rows, (K, ...).

    `normal` is a batch, one for each. Few rows take all of them in one pass.
    """
    first, (k, size) = targets[0], normal.mean.shape
    width = k * first.predictor.n_outputs * (size + first.predictor.n_outputs)
    is_small = first.n_rows * width <= STACKED_ELEMENTS
    if k == 1 or not (is_small and isinstance(first.X, torch.Tensor)):
        pairs = zip(targets, members(normal), strict=True)
        found = [target.expected_loss_terms(one) for target, one in pairs]
        value, slope, curvature = map(torch.stack, zip(*found, strict=True))
        return value, slope, curvature
    mean, std_or_cov = _stacked_moments(first, normal)
    value, *terms = _stacked_losses(targets, mean, std_or_cov)
    w = first.rows.weight
    if w is not None:
        value = value * w
        terms = [like_rows(w, term[0]) * term for term in terms]
    return value.sum(1) - first.constant, terms[0], terms[1]


def members(normal: NormalForm) -> list[NormalForm]:
    """The normals of a batch."""
    return [normal[k] for k in range(len(normal.mean))]


def _stacked_moments(
    target: SupervisedTarget, normal: NormalForm
) -> tuple[torch.Tensor, torch.Tensor]:
    """Means, (K, n) or (K, n, C), and deviations or covariances of f."""
    predictor, X = target.predictor, target.X.to(torch.float64)
    (k, size), several = normal.mean.shape, predictor.n_outputs > 1
    mean = predictor.project(X, normal.mean.T).movedim(-1, 0)
    covariance: torch.Tensor | float = 0.0
    root = normal.factor
    if normal.scale.ndim == 2:
        own = predictor.project(X.square(), normal.scale.square().T).movedim(-1, 0)
        covariance = torch.diag_embed(own) if several else own
    else:
        root = normal.scale
    if root is not None:
        width = root.shape[2]
        f = predictor.project(X, root.transpose(0, 1).reshape(size, k * width))
        rows = f.unflatten(-1, (k, width)).movedim(-2, 0)
        rest = rows @ rows.mT if several else rows.square().sum(-1)
        covariance = covariance + rest
    std_or_cov = covariance if several else covariance.sqrt()
    offset = target.rows.offset
    if offset is not None:
        mean = mean + _of_columns(offset, mean[0])
    return mean, std_or_cov


def _stacked_losses(
    targets: Sequence[SupervisedTarget], mean: torch.Tensor, std_or_cov: torch.Tensor
) -> list[torch.Tensor]:
    """Expected losses and derivatives, (K, n, ...): all at once for one likelihood."""
    first, likelihood = targets[0], targets[0].likelihood
    k, y, expected = len(targets), first.y, first.loss.expected
    if all(t.likelihood is likelihood for t in targets):
        flat = mean.flatten(0, 1), std_or_cov.flatten(0, 1), torch.cat([y] * k)
        found = expected(likelihood, *flat)
        return [part.unflatten(0, (k, len(y))) for part in found]
    pairs = zip(targets, mean, std_or_cov, strict=True)
    each = [expected(t.likelihood, m, s, y) for t, m, s in pairs]
    return [torch.stack(part) for part in zip(*each, strict=True)]
