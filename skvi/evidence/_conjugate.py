"""Evidence of linear regression: the coefficients are integrated in closed form."""

import math
from dataclasses import replace

import numpy as np
import torch

from skvi.evidence._result import EvidenceBounds
from skvi.evidence._summarize import lower_bound
from skvi.evidence._table import ALWAYS, NEVER, BoundsTable, NamedBound, elbo_row
from skvi.posteriors import Posterior
from skvi.targets import Target
from skvi.targets._precisions import ConjugateForm, Precision, find_nodes
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
    if not free:
        value, error, method = _given(form), 0.0, "exact"
    else:
        value, error = _integrate(form)
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


def _integrate(form: ConjugateForm) -> tuple[float, float]:
    """Log of the integral over the precisions with hyperpriors, and its error."""
    coarse, fine = (find_nodes(form, fineness) for fineness in FINENESS)
    return fine.log_evidence, abs(fine.log_evidence - coarse.log_evidence)
