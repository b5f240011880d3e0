"""Posteriors of coefficients, as predictions and fitted attributes read them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from scipy.special import ndtr

from skvi._predictive._quantiles import Draws, normal_mixture_quantiles
from skvi.base import NormalForm
from skvi.linear_model._merging import MAX_FULL, normal_of_predictor
from skvi.linear_model._units import LinearModel
from skvi.posteriors import Posterior
from skvi.posteriors._mixture import MixtureOverScales, leading
from skvi.priors._posterior import MixtureAsPrior
from skvi.utils._interrupts import limit_threads
from skvi.utils._tensors import CPU, Movable

# Draws behind the moments and predictions of posteriors that are not normal.
N_PREDICT_DRAWS = 1000
# Deviations by which scales that have no nodes may move a mean, and what is none.
MOST_BEYOND, ROUNDING = 0.1, 1e-9

TOO_LARGE = (
    "X has values that are so large, beside the features of the fit, that their "
    "squares leave the range of floats. Give the features in the units of the fit."
)

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Coefficients(Movable, ABC):
    """Posterior of coefficients and intercept; `model` has their units.

    Functions are f at rows of X, in the units of the fit; all else is in those of the
    data. A linear model has one or more columns of coefficients.
    """

    model: LinearModel

    @property
    def single(self) -> NormalForm | None:
        """Their normal; None if they are not normal, or a mixture."""
        return None

    @property
    def n_scales(self) -> int:
        """Scales of the prior that they average over."""
        return 1

    def scales(self) -> Pair | None:
        """Logs of the scale of the prior that was inferred, and their weights, (K,).

        In units of `BuiltPrior.unit_of_scale`. Of several the logs are (K, m).
        """
        return None

    def named_scales(self) -> dict[str, Pair]:
        """Logs of every scale that was inferred, in units of the fit, and weights."""
        if (found := self.scales()) is None:
            return {}
        prior, (z, weights) = self.model.prior, found
        z = prior.declared(z.reshape(len(z), -1))
        pairs = zip(z.T, prior.named_scales().items(), strict=False)
        return {
            name: (own + math.log(prior.unit_of_scale(part)), weights)
            for own, (name, part) in pairs
        }

    def precision(self) -> float | None:
        """Mean of ``1 / scale^2``; None where no scale was inferred."""
        if (found := self.named_scales().get("coef")) is None:
            return None
        return float(found[1] @ torch.exp(-2 * found[0]))

    @abstractmethod
    def moments(self) -> Pair:
        """Means and standard deviations of the parameters of the predictor, (P,)."""

    def has_open_mean(self) -> torch.Tensor:
        """Parameters whose means are given by medians, (P,)."""
        size = self.model.predictor.layout.size
        return torch.zeros(size, dtype=torch.bool, device=CPU)

    @abstractmethod
    def ends(self, tail: float) -> tuple[np.ndarray, ...]:
        """Quantiles of intercept and coefficients, twice (n_columns, 1 + d)."""

    @abstractmethod
    def functions(self, X: Any, n_jobs: int | None) -> Pair:
        """Mean and variance of f, (n,), of one column."""

    @abstractmethod
    def function_covariance(self, X: Any, n_jobs: int | None) -> np.ndarray:
        """Covariance of f between the rows of X, (n, n), of one column."""

    def covariance(self) -> torch.Tensor | None:
        """Covariance of the coefficients of one column, (d, d), if it is full."""
        return None

    def draws(self, theta: torch.Tensor) -> Draws:
        """Functions with the parameters theta, (S, P)."""
        predictor = self.model.predictor
        own = theta[:, : predictor.layout.size]
        return Draws(predictor, own, read=self.model.design)


class MixedCoefficients(Coefficients):
    """Coefficients whose marginals are mixtures of normals."""

    @abstractmethod
    def normals(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Means and deviations of intercept and coefficients, and weights, (m,).

        The shape is (m, n_columns, 1 + d). Without an intercept the first column has no
        meaning.
        """

    def ends(self, tail: float) -> tuple[np.ndarray, ...]:
        """Quantiles of the mixtures; see `Coefficients.ends`."""
        *moments, weights = self.normals()
        mean, std = (part.flatten(1) for part in moments)
        ends = normal_mixture_quantiles(mean, std, [tail, 1 - tail], weights)
        return tuple(end.reshape(moments[0].shape[1:]) for end in ends.T.numpy())


@dataclass(frozen=True, eq=False)
class NormalCoefficients(MixedCoefficients):
    """A mixture of K normals of the predictor's parameters, or a single one.

    `log_weights` has shape (K,), as has `log_scales`, the scales of the prior that the
    normals belong to, or None; with several scales it is (K, m).
    """

    components: tuple[NormalForm, ...]
    log_weights: torch.Tensor
    log_scales: torch.Tensor | None = None

    @classmethod
    def of(cls, model: Any, normal: NormalForm) -> Self:
        """Return those of a single normal."""
        return cls(model, (normal,), normal.mean.new_zeros(1))

    @property
    def single(self) -> NormalForm | None:
        """See `Coefficients.single`."""
        return self.components[0] if self.n_scales == 1 else None

    @property
    def n_scales(self) -> int:
        """One for each component; see `Coefficients.n_scales`."""
        return len(self.components)

    def scales(self) -> Pair | None:
        """Those of the nodes, or what a normal implies; see `Coefficients.scales`."""
        if self.log_scales is not None:
            return self.log_scales, self.log_weights.exp()
        prior = self.model.prior
        if prior is None or prior.n_unknown_scales != 1:
            return None
        normal = self.components[0]
        squares = normal.mean.square() + normal.variance
        # E[1 / s^2] beside the normal, which is the posterior under a prior with it.
        expected = prior.expected_precision(prior.scale_weights() @ squares)[0]
        one = normal.mean.new_ones(1)
        return -0.5 * (expected * one).log(), one

    def moments(self) -> Pair:
        """Moments of the mixture, or the median; see `Coefficients.moments`."""
        means, stds = self._by_component(self.model.moments_in_units)
        mean, variance = self._average(means, stds.square())
        std = variance.sqrt()
        if (open_ := self.has_open_mean()).any():
            some, weights = (means[:, open_], stds[:, open_]), self.log_weights.exp()
            ends = normal_mixture_quantiles(*some, ndtr([-1.0, 0.0, 1.0]), weights)
            mean[open_], std[open_] = ends[:, 1], 0.5 * (ends[:, 2] - ends[:, 0])
        return mean, std

    def has_open_mean(self) -> torch.Tensor:
        """Parameters whose mean scales beyond the last node can move, (P,).

        Where classes are separable coefficients grow like the scale, and the weights of
        nodes fall as slowly. Then every node adds as much to the mean as the last one.
        """
        z, weights = self.log_scales, self.log_weights.exp()
        is_carried = isinstance(self.model.prior, MixtureAsPrior)  # at given scales
        is_plain = z is None or is_carried or not self.model.likelihood.is_discrete
        if is_plain or z.ndim > 1 or len(ends := z.unique()) < 3:
            return super().has_open_mean()
        means, stds = self._by_component(self.model.moments_in_units)
        mean, variance = self._average(means, stds.square())
        before, last = (weights * (z == end) for end in ends[-2:])
        # A geometric series of what nodes add, if coefficients grow like the scale.
        ratio = float(last.sum() / before.sum() * (ends[-1] - ends[-2]).exp())
        added, std = (last @ (means - mean)).abs(), variance.sqrt()
        grows = added > ROUNDING * std
        return grows & (ratio * added > (1 - ratio) * MOST_BEYOND * std)

    def normals(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One for each node; see `MixedCoefficients.normals`."""
        layout, parts = self.model.predictor.layout, []
        for normal in self.components:
            blocks = layout.unpack(torch.stack(self.model.moments_in_units(normal)))
            coef = blocks["coef"]
            intercept = blocks.get("intercept", torch.ones_like(coef[..., 0]))
            parts.append(torch.cat([intercept[..., None], coef], 2))
        return *torch.stack(parts, 1), self.log_weights.exp()

    def functions_at_nodes(self, X: Any, n_jobs: int | None) -> Pair:
        """Moments of f by component and row, (K, n) and (K, n) or (K, n, C, C)."""
        first = self.components[0]
        work = X.shape[0] * first.size ** (1 if first.is_diagonal else 2)
        with torch.no_grad(), limit_threads(work, n_jobs):
            rows = self.model.design(X)
            found = self._by_component(partial(self.model.predictor.moments, rows))
        if not bool(found[1].isfinite().all()):
            raise ValueError(TOO_LARGE)
        return found

    def functions(self, X: Any, n_jobs: int | None) -> Pair:
        """Moments of the mixture; see `Coefficients.functions`."""
        return self._average(*self.functions_at_nodes(X, n_jobs))

    def _by_component(self, of_normal: Callable[[NormalForm], Pair]) -> Pair:
        """Two numbers or more of every component, (K, ...)."""
        found = [of_normal(normal) for normal in self.components]
        first, second = (torch.stack(part) for part in zip(*found, strict=True))
        return first, second

    def _average(self, means: torch.Tensor, variances: torch.Tensor) -> Pair:
        """Mean and variance of the mixture, from those of its components, (K, ...)."""
        weights = self.log_weights.exp()
        mean = torch.tensordot(weights, means, 1)
        return mean, torch.tensordot(weights, variances + (means - mean).square(), 1)

    def function_covariance(self, X: Any, n_jobs: int | None) -> np.ndarray:
        """By roots of the covariances; see `Coefficients.function_covariance`."""
        found = [
            covariance_of_functions(self.model, normal, X, n_jobs)
            for normal in self.components
        ]
        weights, apart = self.log_weights.exp().numpy(), self._apart(X, n_jobs)
        inside: np.ndarray = np.tensordot(weights, np.stack(found), 1)
        return inside + (apart.T * weights) @ apart

    def _apart(self, X: Any, n_jobs: int | None) -> np.ndarray:
        """Distances of the means of f at the nodes from that of all, (K, n)."""
        means = self.functions_at_nodes(X, n_jobs)[0]
        return (means - self.log_weights.exp() @ means).numpy()

    def covariance(self) -> torch.Tensor | None:
        """By roots, in the units of the data; see `Coefficients.covariance`."""
        first, d = self.components[0], self.model.predictor.n_features
        if first.is_diagonal or (first.factor is not None and d > MAX_FULL):
            return None
        weights, roots = self.log_weights.exp(), map(_root, self.components)
        own = (self.model.in_units(root.T, True)[:, :d] for root in roots)
        means = torch.stack([n.mean for n in self.components])
        apart = self.model.in_units(means - weights @ means, True)[:, :d]
        inside = sum(w * r.T @ r for w, r in zip(weights, own, strict=True))
        return inside + (apart.T * weights) @ apart


@dataclass(frozen=True, eq=False)
class DrawnCoefficients(Coefficients):
    """Draws of all parameters, theta, (S, P), from a posterior that is not normal."""

    theta: torch.Tensor

    def in_units(self) -> torch.Tensor:
        """Parameters of the predictor."""
        return self.model.in_units(self.theta)

    def moments(self) -> Pair:
        """Moments of the draws; see `Coefficients.moments`."""
        draws = self.in_units()
        return draws.mean(0), draws.std(0)

    def ends(self, tail: float) -> tuple[np.ndarray, ...]:
        """Quantiles of the draws; see `Coefficients.ends`."""
        blocks = self.model.predictor.layout.unpack(self.in_units())
        coef = blocks["coef"]
        intercept = blocks.get("intercept", torch.zeros_like(coef[..., 0]))
        values = torch.cat([intercept[..., None], coef], 2).numpy()
        return tuple(np.quantile(values, [tail, 1 - tail], axis=0))

    def functions(self, X: Any, n_jobs: int | None) -> Pair:
        """Moments of the draws; see `Coefficients.functions`."""
        f = self._function_draws(X)
        return torch.from_numpy(f.mean(1)), torch.from_numpy(f.var(1, ddof=1))

    def function_covariance(self, X: Any, n_jobs: int | None) -> np.ndarray:
        """Covariance of the draws; see `Coefficients.function_covariance`."""
        return np.atleast_2d(np.cov(self._function_draws(X)))

    def _function_draws(self, X: Any) -> np.ndarray:
        return self.draws(self.theta).by_rows(X, lambda f: f[..., 0].T)


def find_coefficients(model: LinearModel, posterior: Posterior) -> Coefficients:
    """The coefficients of a posterior of the parameters of a model."""
    if isinstance(posterior, MixtureOverScales):
        size = model.predictor.layout.size
        normals = tuple(leading(normal, size) for normal in posterior.normals())
        weights = posterior.log_weights, posterior.log_scales
        return NormalCoefficients(model, normals, *weights)
    if (normal := normal_of_predictor(posterior)) is not None:
        return NormalCoefficients.of(model, normal)
    generator = torch.Generator().manual_seed(0)  # the same for the same fit
    with torch.no_grad():
        n_draws = posterior.n_stored or N_PREDICT_DRAWS
        return DrawnCoefficients(model, posterior.draw(n_draws, generator).theta)


def covariance_of_functions(
    model: LinearModel, normal: NormalForm, X: Any, n_jobs: int | None
) -> np.ndarray:
    """Covariance of f between rows, of one column, under a normal."""
    root = _root(normal)
    with torch.no_grad(), limit_threads(X.shape[0] * root.numel(), n_jobs):
        f = model.predictor.project(model.design(X), root)
        return (f @ f.T).numpy()


def _root(normal: NormalForm) -> torch.Tensor:
    """A root of the covariance, (P, m)."""
    if normal.scale.ndim == 2:
        return normal.scale
    own = torch.diag(normal.scale)
    return own if normal.factor is None else torch.cat([own, normal.factor], 1)
