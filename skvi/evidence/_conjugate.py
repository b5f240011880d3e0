"""Evidence of linear regression: the coefficients are integrated in closed form."""

import math
from dataclasses import replace
from typing import cast

import numpy as np
import torch

from skvi.base import NormalForm
from skvi.divergences import KLDivergence
from skvi.evidence._result import EvidenceBounds
from skvi.evidence._summarize import lower_bound
from skvi.evidence._table import ALWAYS, NEVER, BoundsTable, NamedBound, elbo_row
from skvi.objectives import ELBO
from skvi.posteriors import Posterior
from skvi.solvers._whitened_nodes import FALL_EACH, MAX_STORED, WhitenedNodes
from skvi.solvers.base import Problem, SolverOptions
from skvi.targets import Target
from skvi.targets._numbers import Scale, numbers_of
from skvi.targets._precisions import ConjugateForm, Precision, find_nodes
from skvi.utils._interrupts import Clock, OutOfTime
from skvi.utils._tensors import CPU, LOG_2PI

# Two rules over the precisions, whose difference is the error of the coarser one.
FINENESS = 2.0, 3.0
# Quadrature error in nats above which the result is not reliable.
MAX_ERROR = 0.01
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
    given = target, posterior, generator
    if not free:
        return _bounds(*given, (_given(form), 0.0), quantity, "exact")
    return _bounds(*given, _integrate(form), quantity)


def _bounds(
    target: Target,
    posterior: Posterior,
    generator: torch.Generator,
    found: tuple[float, float],
    quantity: str,
    method: str = "quadrature",
) -> EvidenceBounds:
    """Bounds that differ by the error of a value."""
    value, error = found
    if method == "quadrature":
        error += ROUNDING * max(1.0, abs(value))
    elbo = elbo_row(lower_bound(target, posterior, generator))
    is_good = error <= MAX_ERROR
    says = f"to {error:.0e} nats, from quadrature" if error else "exact up to rounding"
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


class _FineNodes(WhitenedNodes):
    """Nodes of a fine lattice, out to where next to nothing is left."""

    share, fall, most, left_out = 0.6, 10.0, 10_000, 1e-8


class _CoarseNodes(_FineNodes):
    """The same at longer steps."""

    share = 0.75


# Nats at the end of the nodes by which what lies beyond is judged, and seconds after
# which draws are tried instead.
LAST_NATS, MOST_SECONDS = 1.5, 40.0


@torch.no_grad()
def nodes_evidence(
    target: Target,
    posterior: Posterior,
    generator: torch.Generator,
    quantity: str = "log evidence",
    max_seconds: float | None = None,
) -> EvidenceBounds | None:
    """Log evidence of a regression with several unknown scales, in nats.

    At known scales of the prior and of normal noise it is exact. Over these it is a sum
    over the nodes of a fit, at finer steps, and its error the difference from another
    sum at longer ones. What is beyond the last nodes is less than what their last 1.5
    nats add, where the integrand falls exponentially. None for other targets, if the
    nodes of the fit tell that they are too many, and if half of the seconds, or 40, are
    over before.
    """
    plain, numbers = numbers_of(target)
    first = getattr(posterior, "likeliest", posterior)
    is_several = sum(isinstance(number, Scale) for number in numbers) > 1
    is_normal = plain.likelihood_spec.is_normal and plain.loss.is_log_loss
    if not (is_several and is_normal) or first.is_diagonal:
        return None
    most = MAX_STORED // cast(NormalForm, first.as_normal()).scale.numel()
    least = _CoarseNodes.share ** -len(numbers) * len(getattr(posterior, "nodes", ()))
    if least > min(most, _CoarseNodes.most):
        return None
    problem = Problem(target, ELBO(), KLDivergence(), first, None)
    kinds, options = (_CoarseNodes, _FineNodes), SolverOptions(tol=1e-6)
    try:
        with Clock(
            MOST_SECONDS if max_seconds is None else 0.5 * max_seconds
        ).enforced():
            sums = [_sum_over(kind(problem, options)) for kind in kinds]
    except OutOfTime:
        return None
    (coarse, _), (fine, beyond) = sums
    found = fine, abs(fine - coarse) + beyond
    return _bounds(target, posterior, generator, found, quantity)


def _sum_over(nodes: WhitenedNodes) -> tuple[float, float]:
    """Log of an integral, and at most the share of it beyond the nodes."""
    if nodes.run().interrupted:
        raise KeyboardInterrupt
    values = np.array([fit.value for fit in nodes.fits.values()])
    whole = float(np.logaddexp.reduce(values))
    least = values.max() - nodes.fall - FALL_EACH * (len(nodes.numbers) - 2)
    last = values[values < least + LAST_NATS]
    beyond = float(np.logaddexp.reduce([-math.inf, *last, *nodes.lost]))
    return whole + nodes.log_cell, math.exp(beyond - whole)


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


def _integrate(form: ConjugateForm) -> tuple[float, float]:
    """Log of the integral over the precisions with hyperpriors, and its error."""
    coarse, fine = (find_nodes(form, fineness) for fineness in FINENESS)
    return fine.log_evidence, abs(fine.log_evidence - coarse.log_evidence)
