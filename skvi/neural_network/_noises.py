"""Distributions of the targets of a network: which suit them, and their units."""

from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

from skvi._estimator._regressors import units_of
from skvi.base._units import Units
from skvi.likelihoods import (
    GaussianLikelihood,
    GeneralizedGammaLikelihood,
    HeteroscedasticLikelihood,
    HurdleLikelihood,
    JohnsonSULikelihood,
    Likelihood,
    NoiseLikelihood,
    RoundedLikelihood,
)
from skvi.neural_network._flatness import spaced_rows
from skvi.utils._arrays import as_tensor

__all__ = [
    "candidate_likelihoods",
    "likely_shape",
    "noise_of",
    "repeated_value",
    "units_of_target",
    "with_value",
]

# A value has a probability of its own if it is at least this fraction of the rows, and
# so many of them and times as many as the next one: other repetitions are of rounding.
FRACTION, MIN_REPEATS, TIMES = 0.05, 10, 5
# The quick comparison of shapes: folds, columns up to which there are hinges, and rows
# below which the first candidate stays.
N_FOLDS, MAX_COLUMNS, MIN_ROWS = 5, 50, 10
# Paired standard errors by which a shape of positive numbers has to be better.
N_ERRORS = 2.0
# Binary digits of the scale beside a repeated value, and steps of the origin in it:
# numbers of the fit and of y are then converted without rounding.
DIGITS, STEPS = 24, 64


def candidate_likelihoods(
    y: np.ndarray, weight: np.ndarray | None = None
) -> list[Likelihood]:
    """Shapes among which a network for one target should choose.

    Parameters
    ----------
    y : ndarray of shape (n_samples,)
    weight : ndarray of shape (n_samples,), default=None

    Returns
    -------
    list of Likelihood
        Specifications that `likelihood=` of a network accepts: normal noise, noise of
        any skewness and tails, and for positive targets one more. All have densities of
        the same units with the same atom, if any, so that log densities compare them. A
        repeated value is a probability of its own in all or none of them, since
        densities compare with no atom.
    """
    at = repeated_value(y, weight)
    found: list[Likelihood] = [GaussianLikelihood(), JohnsonSULikelihood()]
    rest = y if at is None else y[y != at]
    if rest.min() > 0:
        found.append(GeneralizedGammaLikelihood())
    return found if at is None else [HurdleLikelihood(noise, at) for noise in found]


def likely_shape(X: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> Likelihood:
    """The candidate that describes residuals of an additive model best.

    They are those of held-out folds, of y or of its logarithm, whichever an output
    describes; the model is a ridge regression on piecewise linear functions of each
    feature. Shapes with more numbers have to gain a nat for each of them (Akaike), and
    one of positive numbers, which says that others are impossible, two paired errors.
    """
    found = candidate_likelihoods(y, weight)
    is_rest = np.ones(len(y), dtype=bool)
    if isinstance(found[0], HurdleLikelihood):
        is_rest = y != found[0].at
    rows = np.flatnonzero(is_rest)
    if len(rows) < MIN_ROWS:
        return found[0]
    rows = rows[spaced_rows(len(rows))]
    w = np.ones(len(rows)) if weight is None else weight[rows]
    normal, skewed, *positive = (
        _scores(noise_of(p), X[rows], y[rows], w) for p in found
    )
    best = int(w @ (skewed - normal) > len(JohnsonSULikelihood.shapes))
    for scores in positive:
        gain = w * (scores - (skewed if best else normal))
        best = 2 if gain.sum() > N_ERRORS * np.sqrt(len(gain)) * gain.std() else best
    return found[best]


def _scores(
    noise: NoiseLikelihood, X: np.ndarray, y: np.ndarray, w: np.ndarray
) -> np.ndarray:
    """Log densities of y, (n,), given means of its location, from other rows."""
    location, log_slope = noise._location(as_tensor(y))
    columns = _hinges(X.reshape(len(X), -1))
    rest = np.empty(len(y))
    for train, test in KFold(N_FOLDS, shuffle=True, random_state=0).split(columns):
        model = RidgeCV(np.logspace(-1, 3, 5) * len(train))
        model.fit(columns[train], location[train].numpy(), w[train])
        rest[test] = location[test].numpy() - model.predict(columns[test])
    unit = float(np.sqrt(np.average(rest**2, weights=w))) or 1.0
    found = _fit_constant(noise, as_tensor(rest / unit), as_tensor(w))
    return found - np.log(unit) + np.asarray(log_slope)


def _hinges(X: np.ndarray) -> np.ndarray:
    """Standardized columns, and if they are few hinges of each."""
    X = StandardScaler().fit_transform(X.astype(np.float64)).clip(-3, 3)
    if X.shape[1] > MAX_COLUMNS:
        return X
    return np.hstack([X, *((X - at).clip(min=0) for at in (-1, 0, 1))])


def _fit_constant(
    spec: NoiseLikelihood, z: torch.Tensor, w: torch.Tensor
) -> np.ndarray:
    """Log densities of the noise of z, (n,), at its best center, scale and shape."""
    start = torch.cat([z.median().reshape(1), z.new_zeros(1) - 0.5])
    start = torch.cat([start, z.new_tensor([ends[1] for ends in spec.shapes.values()])])
    limits = [(None, None)] * 2 + [(low, high) for low, _, high in spec.shapes.values()]

    def log_density(x: torch.Tensor) -> torch.Tensor:
        return spec._standard_terms((z - x[0]) * (-x[1]).exp(), *x[2:])[0] - x[1]

    def loss(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        x = torch.from_numpy(numbers).requires_grad_()
        value = -(log_density(x) @ w) / w.sum()
        value.backward()
        return float(value.detach()), x.grad.numpy()

    with torch.enable_grad():
        found = minimize(
            loss, start.numpy(), jac=True, bounds=limits, method="L-BFGS-B"
        )
    return log_density(torch.from_numpy(found.x)).numpy()


def repeated_value(y: np.ndarray, weight: np.ndarray | None = None) -> float | None:
    """Value of a target that occurs far more often than any other one, or None."""
    values, index = np.unique(y, return_inverse=True)
    rows = np.bincount(index)
    mass = rows.astype(float) if weight is None else np.bincount(index, weight)
    if len(values) < 3:
        return None
    order = np.argsort(mass)
    first, second = order[-1], order[-2]
    is_repeated = (
        rows[first] >= MIN_REPEATS
        and mass[first] >= FRACTION * mass.sum()
        and mass[first] >= TIMES * mass[second]
        and len(y) - rows[first] >= MIN_REPEATS
    )
    return float(values[first]) if is_repeated else None


def with_value(
    given: HurdleLikelihood, y: np.ndarray, weight: np.ndarray | None
) -> HurdleLikelihood:
    """A hurdle at a value that is known; by default the most frequent one of y."""
    if given.at != "auto":
        return given
    values, index = np.unique(y, return_inverse=True)
    mass = np.bincount(index, weight)
    if mass.max() < 2 * mass.sum() / len(y):
        raise ValueError(
            f"likelihood={given!r} takes the most frequent value of y, and none is "
            "repeated. Give it, as HurdleLikelihood(at=0.0), or use 'johnson_su'."
        )
    return clone(given).set_params(at=float(values[np.argmax(mass)]))


def noise_of(likelihood: Likelihood) -> Any:
    """Noise around the outputs of a likelihood; None for other distributions."""
    if isinstance(likelihood, HurdleLikelihood):
        return noise_of(likelihood.rest)
    if isinstance(likelihood, RoundedLikelihood):
        return noise_of(likelihood.smooth)
    if isinstance(likelihood, HeteroscedasticLikelihood):
        return likelihood.level
    return likelihood if isinstance(likelihood, NoiseLikelihood) else None


def units_of_target(
    likelihood: Likelihood, y: np.ndarray, weight: np.ndarray | None, standardize: bool
) -> tuple[Units, Likelihood]:
    """Units of one target for a fit, and its likelihood with the unit of logarithms.

    Raises ValueError for targets that the likelihood says are impossible.
    """
    at = likelihood.at if isinstance(likelihood, HurdleLikelihood) else None
    noise = noise_of(likelihood)
    if at is not None:
        weight = None if weight is None else weight[y != at]
        y = y[y != at] if (y != at).any() else y + 1
    if isinstance(noise, GeneralizedGammaLikelihood):
        if y.min() <= 0:
            raise ValueError(
                f"y holds {y.min():.6g}, which likelihood={likelihood!r} says is "
                "impossible: it is for positive targets. Use 'johnson_su'."
            )
        if not standardize:
            return Units(0.0, 1.0), likelihood
        found = units_of(np.log(y), weight, None, True, True)
        new = clone(likelihood)
        noise_of(new).set_params(log_unit=float(found.y_scale))
        return Units(0.0, float(np.exp(found.y_mean))), new
    robust = not noise.is_normal
    units = units_of(y, weight, None, standardize, True, robust)
    if at is None or not standardize:
        return units, likelihood
    mantissa, exponent = np.frexp(units.y_scale)
    scale = float(np.ldexp(np.round(np.ldexp(mantissa, DIGITS)), exponent - DIGITS))
    mean = at + scale / STEPS * np.round((units.y_mean - at) / scale * STEPS)
    return Units(float(mean), scale), likelihood
