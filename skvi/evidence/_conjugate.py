"""Evidence of linear regression: the coefficients are integrated in closed form."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import minimize

from skvi.evidence._fit_checks import lower_bound
from skvi.evidence._named import ALWAYS, NEVER, BoundsTable, NamedBound
from skvi.evidence._result import EvidenceBounds
from skvi.evidence._table import elbo_row
from skvi.posteriors import Posterior
from skvi.targets import Precision, Target
from skvi.targets._precisions import ConjugateForm
from skvi.utils._device import CPU
from skvi.utils._log_space import LOG_2PI

__all__ = ["conjugate_evidence"]

# Gauss-Legendre nodes per panel: for finding the panels, and pairs of rules whose
# difference is the error. The next pair is used if they differ by more than a goal.
COARSE_NODES, RULES, GOAL = 3, ((12, 16), (24, 32), (48, 64)), 1e-7
# Quadrature error in nats above which the result is not reliable.
MAX_ERROR = 0.01
# Size of the first steps toward the mode, in log precision.
FIRST_STEP = 1.0
# Nats below the mode at which a panel counts as empty.
EMPTY = 60.0
# Panels double in width from the mode outwards, up to this distance in log precision.
REACH = 400.0
# Number of points evaluated at once.
CHUNK = 2**21
ROUNDING = 1e-12


@torch.no_grad()
def conjugate_evidence(
    target: Target,
    posterior: Posterior,
    generator: torch.Generator,
    quantity: str = "log evidence",
) -> EvidenceBounds | None:
    """Log evidence of a linear regression with conjugate priors, in nats.

    Exact for given precisions. One or two precisions with hyperpriors are integrated by
    quadrature, and the bounds differ by its error. None for all other targets.
    """
    form = target.conjugate_form()
    form = None if form is None else form.to(CPU)
    if form is None:
        return None
    if not len(form.data.values):  # independent of the coefficients
        form = replace(form, coef=Precision(form.coef.value))
    nodes = [form.noise, form.coef]
    free = [i for i in (0, 1) if nodes[i].hyperprior is not None]
    if any(len(nodes[i].value) > 1 for i in free):
        return None
    if not free:
        value, error, method = _given(form), 0.0, "exact"
    else:
        value, error = _integrate(form, free)
        method = "quadrature"
    error += ROUNDING * max(1.0, abs(value))
    if not free:
        error = 0.0
    elbo = elbo_row(lower_bound(target, posterior, generator))
    is_good = error <= MAX_ERROR
    says = f"to {error:.0e} nats, from quadrature" if free else "exact up to rounding"
    row = NamedBound(value, 0.0, "estimate", says, holds=ALWAYS if is_good else NEVER)
    reason = _REASONS[method if is_good else "inaccurate"].format(error=error)
    return EvidenceBounds(
        lower=value - error,
        upper=value + error,
        lower_se=0.0,
        upper_se=0.0,
        estimate=value,
        gap=2 * error,
        ess=math.inf,
        khat=-math.inf,
        reliable=is_good,
        reason=reason,
        method=method,
        quantity=quantity,
        table=BoundsTable({"ELBO of q": elbo, method: row}),
    )


_REASONS = {
    "exact": "the model is conjugate: its evidence has a closed form",
    "quadrature": "given the precisions the evidence has a closed form; over them it "
    "is integrated by quadrature, to the error that separates the bounds",
    "inaccurate": "the quadrature over the precisions has an error of {error:.1g} "
    "nats; method='importance' does without it",
}


def _given(form: ConjugateForm) -> float:
    """Log evidence at the precisions of the form."""
    coef = form.coef.value.numpy()
    if len(coef) > 1:
        return _given_each(form)
    return float(form.log_evidence(np.log(form.noise.value.numpy()), np.log(coef))[0])


def _given_each(form: ConjugateForm) -> float:
    """Log evidence if every coefficient has its own given precision."""
    data, alpha = form.data, float(form.noise.value)
    width = form.coef.value.rsqrt()
    matrix = alpha * width[:, None] * data.full_gram() * width
    matrix.diagonal().add_(1.0)
    factor = torch.linalg.cholesky(matrix)
    moment = data.vectors @ (data.values * data.solution)
    whitened = torch.linalg.solve_triangular(
        factor, (alpha * width * moment)[:, None], upper=False
    )
    squares = data.residual + float(data.values @ data.solution.square())
    fit = float(whitened.square().sum()) - alpha * squares
    value = 0.5 * fit - float(factor.diagonal().log().sum())
    value += 0.5 * data.n * (math.log(alpha) - LOG_2PI) + form.constant
    return value + float(form.log_intercept(np.array([alpha]))[0])


def _integrate(form: ConjugateForm, free: list[int]) -> tuple[float, float]:
    """Log of the integral over the precisions with hyperpriors, and its error."""
    nodes = [form.noise, form.coef]
    fixed = [float(node.value[0].log()) for node in nodes]

    def log_density(x: np.ndarray) -> np.ndarray:
        columns = [np.full(len(x), value) for value in fixed]
        for j, i in enumerate(free):
            columns[i] = x[:, j]
        return form.log_density(*columns)

    mode, widths = _find_mode(log_density, np.array([fixed[i] for i in free]))
    step = max(1, CHUNK // max(len(form.data.values), 1))
    borders = _active(
        log_density, [_borders(*m) for m in zip(mode, widths, strict=True)]
    )
    for rules in RULES:
        sums = [_sum(log_density, [_grid(b, k) for b in borders], step) for k in rules]
        error = abs(sums[1] - sums[0])
        if error <= GOAL:
            break
    return sums[1], error


def _find_mode(
    log_density: Callable[[np.ndarray], np.ndarray], start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mode, and standard deviations there (at least 0.001, at most 3)."""

    def negative(x: np.ndarray) -> float:
        return -float(log_density(x[None])[0])

    # The method's default steps of 5 % are 0 from a start at 0.
    simplex = start + FIRST_STEP * np.eye(len(start) + 1, len(start), -1)
    options: dict = {"xatol": 1e-3, "fatol": 1e-3, "maxiter": 2000}
    options["initial_simplex"] = simplex
    mode = minimize(negative, start, method="Nelder-Mead", options=options).x
    widths = []
    for unit in np.eye(len(mode)):
        # The scale is found by shrinking the step until the density is gently curved.
        step = 1.0
        for _ in range(12):
            drop = negative(mode + step * unit) + negative(mode - step * unit)
            drop -= 2 * negative(mode)
            if drop < 1:
                break
            step /= 2
        curvature = max(drop, 1e-3) / step**2
        widths.append(min(max(curvature**-0.5, 1e-3), 3.0))
    return mode, np.array(widths)


def _borders(mode: float, width: float) -> np.ndarray:
    """Left and right ends, (m, 2), of panels that widen from the mode outwards."""
    edges = [1.0, 2.0, 3.0, 4.5, 6.0, 8.0]
    while edges[-1] * width < REACH:
        edges.append(edges[-1] * 1.4)
    half = width * np.array([0.0, *edges])
    ends = mode + np.concatenate([-half[:0:-1], half])
    return np.stack([ends[:-1], ends[1:]], 1)


def _active(
    log_density: Callable[[np.ndarray], np.ndarray], borders: list[np.ndarray]
) -> list[np.ndarray]:
    """Panels, for each precision, that are not negligible relative to the mode."""
    grids = [_grid(b, COARSE_NODES)[0] for b in borders]
    mesh = np.meshgrid(*grids, indexing="ij")
    values = log_density(np.stack([m.ravel() for m in mesh], 1)).reshape(mesh[0].shape)
    kept = []
    for axis, b in enumerate(borders):
        others = tuple(i for i in range(len(borders)) if i != axis)
        best = values.max(others).reshape(-1, COARSE_NODES).max(1)
        kept.append(b[best > values.max() - EMPTY])
    return kept


def _grid(borders: np.ndarray, n_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and log weights of all panels."""
    x, w = np.polynomial.legendre.leggauss(n_nodes)
    middle, radius = borders.mean(1), np.diff(borders)[:, 0] / 2
    nodes = middle[:, None] + radius[:, None] * x
    return nodes.ravel(), np.log(radius[:, None] * w).ravel()


def _sum(
    log_density: Callable[[np.ndarray], np.ndarray],
    grids: list[tuple[np.ndarray, np.ndarray]],
    step: int,
) -> float:
    """Log of the sum over the product of the grids."""
    mesh = np.meshgrid(*[nodes for nodes, _ in grids], indexing="ij")
    points = np.stack([m.ravel() for m in mesh], 1)
    weights = grids[0][1]
    for _, more in grids[1:]:
        weights = np.add.outer(weights, more).ravel()
    parts = []
    for i in range(0, len(points), step):
        values = log_density(points[i : i + step]) + weights[i : i + step]
        parts.append(np.logaddexp.reduce(values))
    return float(np.logaddexp.reduce(parts))
