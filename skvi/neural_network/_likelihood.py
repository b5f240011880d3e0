"""Likelihoods of regressors: noise, counts, and a user's own."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from sklearn.base import clone
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

from skvi._estimator._held_out import N_ERRORS
from skvi._estimator._model import NumberColumns
from skvi._estimator._regressors import Grid, units_of
from skvi.base._layout import Units
from skvi.exceptions import IncompatibleComponentsError
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
from skvi.likelihoods._independent import IndependentLikelihood
from skvi.utils._rows import spaced_rows
from skvi.utils._validation import as_tensor

# A value has a probability of its own if it is at least this fraction of the rows, and
# so many of them and times as many as the next one: other repetitions are of rounding.
FRACTION, MIN_REPEATS, TIMES = 0.05, 10, 5
# The quick comparison of shapes: folds, columns up to which there are hinges, and rows
# below which the first candidate stays.
N_FOLDS, MAX_COLUMNS, MIN_ROWS = 5, 50, 10
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


# Logarithms of rates and of odds beyond this are no origin.
REACH = 20.0
# Decimals of a step that is found.
MAX_DECIMALS = 6


@dataclass(frozen=True, eq=False)
class CountColumns(NumberColumns):
    """Targets that are one or several counts."""

    def encode(self, y: Any) -> np.ndarray:
        """Check that targets are counts; see `Response.encode`."""
        y = super().encode(y)
        wrong = y[(y < 0) | (y != np.floor(y))]
        if len(wrong):
            raise ValueError(
                f"y must hold counts, 0, 1, 2, ..., and holds {wrong[0]:.6g}. For such "
                "numbers use likelihood='gaussian', or a Likelihood of your own."
            )
        return y


def check_other_likelihood(likelihood: Likelihood) -> None:
    """Raise if a likelihood that is not of noise has a posterior of its number."""
    if likelihood.gamma_prior is not None:
        name, _ = likelihood.gamma_block or ("parameter", 1.0)
        raise IncompatibleComponentsError(
            f"likelihood={likelihood!r}",
            f"a posterior of its {name}, which networks learn as a number",
            f"{type(likelihood).__name__}('learn')",
        )


def origin_of(likelihood: Likelihood, y: np.ndarray, weight: Any) -> float:
    """Output that fits all targets best if it is constant; 0 if outputs are several.

    Raises ValueError for targets that the likelihood says are impossible.
    """
    targets = as_tensor(y.ravel())
    bound = likelihood.bind(likelihood.initial_hyper(targets))
    each = None if weight is None else as_tensor(np.repeat(weight, y[:1].size))

    def constant(f: float) -> torch.Tensor:
        return targets.new_full((1, len(targets), likelihood.n_outputs), f)

    def loss(f: float) -> float:
        return -float(bound._total_log_prob(constant(f), targets, each))

    origin = 0.0
    if likelihood.n_outputs == 1:
        found = minimize_scalar(loss, bounds=(-REACH, REACH), method="bounded")
        origin = float(found.x)
    possible = torch.isfinite(bound.log_prob(constant(origin), targets)[0])
    if not possible.all():
        raise ValueError(
            f"y holds {float(targets[~possible][0]):.6g}, which "
            f"likelihood={likelihood!r} says is impossible; 'auto' finds another."
        )
    return origin


def learned_numbers(
    likelihood: Likelihood, hyper: np.ndarray, units: Units
) -> dict[str, Any]:
    """Fitted attributes of what a likelihood learned: numbers, or one per target.

    Scales of noise are in units of y, or of its logarithm.
    """
    found: dict[str, list[float]] = {}
    numbers = iter(np.exp(hyper).tolist())
    for part, (_, scale) in zip(*_parts_in(units, likelihood), strict=True):
        noise = noise_of(part)
        if isinstance(noise, GeneralizedGammaLikelihood):
            scale = noise.log_unit
        for name in part.learned:
            unit = scale if name == "noise_scale" else 1.0
            found.setdefault(f"{name}_", []).append(unit * next(numbers))
    return {k: v[0] if len(v) == 1 else np.array(v) for k, v in found.items()}


def given_grid(likelihood: RoundedLikelihood, y: np.ndarray) -> Grid:
    """Step and origin of the values of one target, as far as they are to be found."""
    if likelihood.step != "auto":
        return float(likelihood.step), float(likelihood.origin)
    return _step_of(y), float(y[0])


def _step_of(y: np.ndarray) -> float:
    """Largest decimal number of which all differences are multiples."""
    for power in 10.0 ** np.arange(MAX_DECIMALS + 1):
        whole = np.round(y * power)
        if (np.abs(whole - y * power) <= 1e-14 * np.abs(whole)).all():
            gaps = np.diff(np.unique(whole)).astype(np.int64)
            return float(max(np.gcd.reduce(gaps), 1) / power)
    raise ValueError(
        f"likelihood='rounded' finds no step of y: not all numbers end within "
        f"{MAX_DECIMALS} decimals. Give it, as RoundedLikelihood(step=0.5), or use "
        "likelihood='gaussian' for numbers that were not rounded."
    )


def targets_in_units(likelihood: Likelihood, units: Units) -> list[Likelihood]:
    """Likelihood of each target that a model describes, in units of y."""
    parts, each = _parts_in(units, likelihood)
    return [_in_units(part, *own) for part, own in zip(parts, each, strict=True)]


def _parts_in(
    units: Units, likelihood: Likelihood
) -> tuple[list[Likelihood], list[tuple[float, float]]]:
    """Likelihoods of the targets, and the origin and scale of each."""
    parts = [likelihood]
    if isinstance(likelihood, IndependentLikelihood):
        parts = likelihood.likelihoods
    mean, scale = (
        np.broadcast_to(x, len(parts)).tolist() for x in (units.y_mean, units.y_scale)
    )
    return parts, list(zip(mean, scale, strict=True))


def _in_units(likelihood: Likelihood, mean: float, scale: float) -> Likelihood:
    """A specification whose scales, and grid, are those of a target."""
    is_relative = isinstance(noise_of(likelihood), GeneralizedGammaLikelihood)
    new = {
        name: value * scale
        for name, value in likelihood.get_params().items()
        if name.endswith("noise_scale") and value != "learn" and not is_relative
    }
    if isinstance(likelihood, RoundedLikelihood):
        step, origin = likelihood.step * scale, likelihood.origin * scale + mean
        new |= {"step": float(step), "origin": float(origin)}
    if isinstance(likelihood, HurdleLikelihood):
        new["at"] = float(likelihood.at * scale + mean)
    return clone(likelihood).set_params(**new)


def joined_units(each: list[Units]) -> Units:
    """Units of several targets."""
    means, scales = ([u.y_mean for u in each], [u.y_scale for u in each])
    return Units(np.array(means), np.array(scales))


def units_on_grid(units: Units, grids: list[Grid | None]) -> Units:
    """Units near others in which values of grids are exact: by powers of two."""
    means, scales = (
        np.array(np.broadcast_to(x, len(grids)), dtype=float)
        for x in (units.y_mean, units.y_scale)
    )
    for k, grid in enumerate(grids):
        if grid is not None:
            step, origin = grid
            means[k] = origin + step * np.round((means[k] - origin) / step)
            scales[k] = step * 2.0 ** np.round(np.log2(scales[k] / step))
    if np.ndim(units.y_mean) == 0:
        return Units(float(means[0]), float(scales[0]))
    return Units(means, scales)
