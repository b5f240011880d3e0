"""Data and priors that do not suit: ranges, numbers as classes, vague hyperpriors."""

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
from scipy import sparse

from skvi.evidence import EvidenceBounds
from skvi.priors import ARD, GammaHyperprior, Prior
from skvi.utils._warnings import warn_user

__all__ = ["many_classes_message", "unscaled_message", "warn_of_vague", "with_cost"]

# Ratio of the largest range to that of the smallest tenth of the features that is worth
# a warning: a few rare ones, as among sparse features, do not count.
MAX_RATIO, SMALL = 1000.0, 0.1
# Ranges that are all smaller or larger do not suit a scale of 1.
LEAST, MOST = 1e-3, 1e4
# Classes, and numbers of covariances in all rows, from which a fit takes minutes.
MANY_CLASSES, MANY_NUMBERS = 50, 10**7
# Number of evenly spaced rows that are inspected.
MAX_ROWS = 2000
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
    n_rows, some = X.shape[0], X
    if n_rows > MAX_ROWS:
        some = X[np.linspace(0, n_rows - 1, MAX_ROWS).astype(int)]
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
            UserWarning,
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
