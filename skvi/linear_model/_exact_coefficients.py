"""Exact coefficients, and data or priors that do not suit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from scipy import sparse

from skvi._predictive._mixtures import Combinations, CombinedPredictive
from skvi.base import NormalForm
from skvi.base._layout import Units
from skvi.evidence import EvidenceBounds
from skvi.exceptions import SkviWarning
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model._coefficients import (
    MixedCoefficients,
    Pair,
    covariance_of_functions,
)
from skvi.linear_model._merging import MAX_QUICK
from skvi.priors import ARD, GammaHyperprior, Prior
from skvi.solvers._exact import MixtureOverPrecisions
from skvi.utils._interrupts import limit_threads
from skvi.utils._rows import SOME_ROWS, spaced_rows
from skvi.utils._validation import warn_user

# Components of a smaller probability are left out.
NEGLIGIBLE = 1e-18
# Fraction of a squared length outside of the directions of the data that is rounding.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class ExactCoefficients(MixedCoefficients):
    """The exact posterior of one column under unknown precisions."""

    exact: MixtureOverPrecisions

    @property
    def _first(self) -> int:
        """Position of the first coefficient behind the intercept, if there is one."""
        return int(self.exact.form.intercept is not None)

    def scales(self) -> Pair | None:
        """Those of the nodes; see `Coefficients.scales`."""
        coef, nodes = self.exact.form.coef, self.exact.nodes
        if coef.hyperprior is None:
            return None
        log_scales = 0.5 * (coef.value.log() - torch.from_numpy(nodes.coef.ravel()))
        return log_scales, torch.from_numpy(nodes.weights.ravel())

    def moments(self) -> Pair:
        """Those of linear combinations; see `Coefficients.moments`."""
        mean, variance = self._moments_of(self._combinations())
        return mean.roll(-self._first), variance.roll(-self._first).sqrt()

    def normals(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One for each pair of precisions; see `MixedCoefficients.normals`."""
        mixture = self._mixture(self._combinations(), Units(0.0, 1.0), has_noise=False)
        mean, std = mixture.at_nodes(slice(None))
        if not self._first:
            mean, std = (torch.cat([x[:, :1] * 0 + 1, x], 1) for x in (mean, std))
        return mean[:, None], std[:, None], mixture.log_weights.exp()

    def covariance(self) -> torch.Tensor | None:
        """Up to a number of coefficients; see `Coefficients.covariance`."""
        if self.model.predictor.n_features > MAX_QUICK:
            return None
        exact, units = self.exact, self.model.units
        along = self._combinations().along[self._first :]
        _, root, outside = exact.moments()
        covariance = (along @ root.T) @ (along @ root.T).T
        if exact.has_outside:
            k = len(exact.form.data.values)
            covariance -= outside * along[:, :k] @ along[:, :k].T
            square = (units.y_scale / np.asarray(units.x_scale, np.float64)) ** 2
            covariance.diagonal().add_(
                outside * torch.from_numpy(np.atleast_1d(square))
            )
        return covariance

    def functions(self, X: Any, n_jobs: int | None) -> Pair:
        """Those of linear combinations; see `Coefficients.functions`."""
        return self._moments_of(self._functions(X, n_jobs))

    def function_covariance(self, X: Any, n_jobs: int | None) -> np.ndarray:
        """That of the normal with the same moments; see `Coefficients`."""
        normal = self.exact.matching_normal()
        return covariance_of_functions(self.model, normal, X, n_jobs)

    def predictive(self, X: Any, n_jobs: int | None) -> CombinedPredictive:
        """Distributions of new targets in rows of X."""
        rows = self._functions(X, n_jobs)
        return self._mixture(rows, self.model.units, has_noise=True)

    def _functions(self, X: Any, n_jobs: int | None) -> Combinations:
        """Functions at rows of X, in the units of the fit."""
        exact, predictor = self.exact, self.model.predictor
        with torch.no_grad(), limit_threads(X.shape[0] * X.shape[1] ** 2, n_jobs):
            rows = self.model.design(X)
            along = predictor.project(rows, exact.basis())
            square = torch.zeros_like(along[:, 0])
            if exact.has_outside:
                ones = along.new_ones(predictor.layout.size)
                ones[predictor.n_features :] = 0.0
                normal = NormalForm(torch.zeros_like(ones), ones)
                square = predictor.moments(rows, normal)[1]
            return self._along(along, square, torch.zeros_like(square))

    def _combinations(self) -> Combinations:
        """Coefficients, after the intercept if there is one, in units of y and X."""
        units, vectors = self.model.units, self.exact.form.data.vectors
        unit, x_scale = float(units.y_scale), np.asarray(units.x_scale, np.float64)
        scale = torch.from_numpy(x_scale).expand(len(vectors))
        along, square = vectors / scale[:, None], scale**-2
        shift = torch.zeros_like(square)
        if self._first:
            # Along the coefficients the intercept at X = 0 is -x_mean / x_scale.
            origin = torch.zeros_like(scale)
            if units.x_mean is not None:
                origin = torch.from_numpy(units.x_mean) / scale
            along = torch.cat([-(origin @ vectors)[None], along])
            square = torch.cat([origin.square().sum()[None], square])
            shift = torch.cat([shift.new_ones(1), shift])
            along = torch.cat([along, shift[:, None]], 1)
        shift = shift * float(units.y_mean)
        return self._along(unit * along, unit**2 * square, shift)

    def _along(
        self, along: torch.Tensor, square: torch.Tensor, shift: torch.Tensor
    ) -> Combinations:
        """Combinations whose squared length, but for the intercept, is `square`."""
        n_known = len(self.exact.form.data.values)
        rest = square - along[:, :n_known].square().sum(1)
        outside = torch.where(rest > ROUNDING * square, rest, torch.zeros_like(rest))
        return Combinations(along, outside, shift)

    def _moments_of(self, rows: Combinations) -> Pair:
        """Means and variances of linear combinations, (n,) each."""
        mean, root, outside = self.exact.moments()
        variance = (rows.along @ root.T).square().sum(1) + outside * rows.outside
        return rows.along @ mean + rows.shift, variance

    def _mixture(
        self, rows: Combinations, units: Units, has_noise: bool
    ) -> CombinedPredictive:
        """Distributions of linear combinations, or of new targets, which have noise."""
        *given, w = self.exact.normals()
        noise = has_noise * torch.from_numpy(np.exp(-self.exact.nodes.noise.ravel()))
        kept = w > NEGLIGIBLE
        parts = (part[kept] for part in (*given, noise))
        log_w = (w[kept] / w[kept].sum()).log()
        likelihood = GaussianLikelihood()
        return CombinedPredictive(likelihood, units, *parts, log_w, rows)


# Ratio of the largest range to that of the smallest tenth of the features that is worth
# a warning: a few rare ones, as among sparse features, do not count.
MAX_RATIO, SMALL = 1000.0, 0.1
# Ranges that are all smaller or larger do not suit a scale of 1.
LEAST, MOST = 1e-3, 1e4
# Classes, and numbers of covariances in all rows, from which a fit takes minutes.
MANY_CLASSES, MANY_NUMBERS = 50, 10**7
# Hyperpriors below this shape are flat over many orders of magnitude.
VAGUE_SHAPE = 1e-2
COST = (
    "; {} vague hyperpriors cost about {:.1f} nats, as much for all models that have "
    "them: compare with others only under proper ones, such as "
    "Normal(scale=GammaHyperprior(shape=1.0, rate=1.0))"
)


def unscaled_message(X: Any, prior: Any, name: str, is_relative: bool) -> str:
    """Say that one scale does not suit features of very different ranges; or nothing.

    Nothing for priors with a scale per coefficient, and for a fixed scale other than
    the default: who gives one has considered the units.
    """
    if not (is_relative or _has_default_scale(prior)):
        return ""
    some = X if X.shape[0] <= SOME_ROWS else X[spaced_rows(X.shape[0])]
    ends = some.max(0), some.min(0)
    if sparse.issparse(some):
        ends = ends[0].toarray().ravel(), ends[1].toarray().ravel()
    high, low = (np.asarray(end, dtype=np.float64) for end in ends)
    ranges = high - low
    ranges = ranges[ranges > 0]
    if not len(ranges):
        return ""
    ranges.sort()
    small, large = ranges[math.ceil(SMALL * len(ranges)) - 1], ranges[-1]
    if large < MAX_RATIO * small:
        return "" if is_relative else _uniform_message(small, large, prior, name)
    return (
        f"the features have ranges from {ranges[0]:.2g} to {large:.2g}, "
        f"which no single scale of their coefficients suits, and prior={prior!r} has "
        f"one: standardize them, with make_pipeline(StandardScaler(), {name}"
        "(...)), or give prior='ard', which finds a scale for each"
    )


def many_classes_message(classes: np.ndarray, n_rows: int) -> str:
    """Say that so many classes take minutes, and what to do; empty if all is well."""
    n_classes = len(classes)
    if n_classes < MANY_CLASSES or n_rows * n_classes**2 < MANY_NUMBERS:
        return ""
    remedy = "join rare classes"
    if np.issubdtype(classes.dtype, np.number):
        remedy = (
            "if y is a quantity rather than a label, use BayesianLinearRegression, or "
            f"BayesianPoissonRegressor for counts; otherwise {remedy}"
        )
    return (
        f"y has {n_classes} classes in {n_rows} rows: with a covariance of all classes "
        f"for each row, the fit takes minutes; {remedy}"
    )


def _uniform_message(small: float, large: float, prior: Any, name: str) -> str:
    """Say that all ranges are far from 1, where a fixed scale of 1 means nothing."""
    if large > LEAST and small < MOST:
        return ""
    what = "has no room" if large <= LEAST else "sets no limit"
    return (
        f"the features have ranges from {small:.2g} to {large:.2g}, for whose "
        f"coefficients prior={prior!r} {what}: standardize the features, with "
        f"make_pipeline(StandardScaler(), {name}(...)), or learn the scale, with "
        "prior=Normal(scale='learn')"
    )


def _has_default_scale(prior: Any) -> bool:
    """Whether it is that which nobody has chosen for these features."""
    scale = getattr(prior, "scale", None)
    return isinstance(prior, Prior) and isinstance(scale, Real) and scale == 1.0


def warn_of_vague(prior: Any, n_features: int) -> None:
    """Warn of a cost that depends on the number of features."""
    if isinstance(prior, ARD) and prior.shape < VAGUE_SHAPE:
        cost = -n_features * math.log(prior.shape)
        warn_user(
            f"{n_features} vague Gamma hyperpriors, one for each coefficient, cost the "
            f"evidence about {cost:.1f} nats whatever the data: models with fewer "
            "features win for that reason alone. Give the prior a scale, such as "
            "prior=ARD(shape=1.0, rate=1.0).",
            SkviWarning,
        )


def with_cost(found: EvidenceBounds, hyperpriors: Sequence[Any]) -> EvidenceBounds:
    """Name what shared hyperpriors cost: as much for every model that has them."""
    shared = [getattr(part, "scale", part) for part in hyperpriors]  # of a prior
    gammas = [scale for scale in shared if isinstance(scale, GammaHyperprior)]
    shapes = [gamma.shape for gamma in gammas if gamma.shape < VAGUE_SHAPE]
    if not shapes:
        return found
    cost = -sum(math.log(shape) for shape in shapes)
    return replace(found, reason=found.reason + COST.format(len(shapes), cost))
