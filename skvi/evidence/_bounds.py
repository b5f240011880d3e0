"""The evidence sandwich: the cheapest method whose diagnostics allow it."""

import math
from typing import cast

import torch

from skvi.base import NormalForm
from skvi.evidence._annealed import annealed_sides
from skvi.evidence._importance import importance_sides
from skvi.evidence._over_scales import bound_over_scales, has_unknown_scale
from skvi.evidence._result import EvidenceBounds
from skvi.evidence._summarize import summarize
from skvi.evidence._tempered import tempered_sides
from skvi.evidence._tempered_result import summarize_tempered
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors import Posterior
from skvi.sampling._state import Report, silent
from skvi.solvers import fit_proposal_normal
from skvi.targets import SupervisedTarget, Target

__all__ = ["bound_evidence"]

# If importance sampling gives wider bounds than this, annealing is tried.
WIDE = 0.1
# Nats that are aimed for at each scale of an unknown one.
TERM_PRECISION = 0.1
# Draws behind the moments of posteriors that are not normal.
N_MOMENTS = 1000


@torch.no_grad()
def bound_evidence(
    target: Target,
    posterior: Posterior,
    generator: torch.Generator,
    n_draws: int | None = None,
    precision: float | None = None,
    quantity: str = "log evidence",
    normal: NormalForm | None = None,
    method: str = "auto",
    report: Report = silent,
    max_seconds: float | None = None,
) -> EvidenceBounds:
    """Bound log Z of a target from below and above.

    Parameters
    ----------
    target : Target
        Without a prior Z is the integral of its density, which must be finite.
    posterior : Posterior
        The fitted one; it only enters the table's ELBO and EUBO.
    generator : torch.Generator
    n_draws : int, default=None
        Draws on each side. None chooses the number that `precision` needs.
    precision : float, default=None
        Target distance of each bound from log Z, in nats. None is 0.03, limited to
        `draw_limit` states of the chains.
    quantity : str, default="log evidence"
        Name of the quantity in the result.
    normal : NormalForm, default=None
        Normal close to the posterior, from which proposals start. None is the ELBO's
        solution for linear models if it needs no draws, else a normal with the moments
        of `posterior`.
    method : {"auto", "importance", "annealing", "tempering"}, default="auto"
        "auto" is importance sampling if its diagnostics allow it and the result is
        narrow, else annealing; for targets with a symmetry group tempering.
    report : callable, default=silent
        Called with a description and the completed fraction.
    max_seconds : float, default=None
        For tempering: approximate time limit.

    Returns
    -------
    EvidenceBounds
        In nats, summed over the data, with all constants; from draws.

    Raises
    ------
    IncompatibleComponentsError
        The prior is improper.

    Examples
    --------
    >>> import torch
    >>> from skvi.evidence import bound_evidence
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> from skvi.losses import LogLoss
    >>> from skvi.posteriors import FullRankNormal
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.priors import Normal
    >>> from skvi.targets import SupervisedTarget
    >>> model, X = LinearPredictor(1, fit_intercept=False), torch.ones(2, 1).double()
    >>> prior, y = Normal().build(model.layout), torch.tensor([1.0, 3.0])
    >>> target = SupervisedTarget(model, GaussianLikelihood(), LogLoss(), prior, X, y)
    >>> posterior = FullRankNormal().build(model.layout)
    >>> bounds = bound_evidence(target, posterior, torch.Generator().manual_seed(0))
    >>> round(bounds.estimate, 1)  # log p(D) is -4.72
    -4.7
    """
    if target.prior is not None and not target.prior.is_proper:
        raise IncompatibleComponentsError(IMPROPER)
    if method == "tempering" or (method == "auto" and target.symmetry is not None):
        tempered = tempered_sides(
            target, posterior, generator, n_draws, precision, max_seconds, report
        )
        return summarize_tempered(target, posterior, tempered, generator, quantity)
    if has_unknown_scale(target):

        def at_scale(known: Target) -> EvidenceBounds:
            # Errors of the terms average out.
            each = precision if precision or n_draws else TERM_PRECISION
            options = n_draws, each, quantity, None, method, report
            return bound_evidence(known, posterior, generator, *options)

        linear = cast(SupervisedTarget, target)
        return bound_over_scales(linear, posterior, generator, at_scale)
    if normal is None:
        normal = _normal_near(target, posterior, generator)
    found = None
    if method != "annealing":
        sides = importance_sides(target, normal, generator, n_draws, precision, report)
        found = summarize(target, posterior, sides, generator, quantity)
        if method == "importance" or _is_good(found, precision):
            return found
    sides = annealed_sides(target, normal, generator, n_draws, precision, report)
    annealed = summarize(target, posterior, sides, generator, quantity)
    return annealed if found is None else _better(found, annealed)


def _is_good(bounds: EvidenceBounds, precision: float | None) -> bool:
    low, high = bounds.interval()
    return bounds.reliable and high - low < max(WIDE, 3 * (precision or 0.0))


def _better(first: EvidenceBounds, second: EvidenceBounds) -> EvidenceBounds:
    """The reliable one; the narrower one if both or none are reliable."""
    if first.reliable != second.reliable:
        return first if first.reliable else second
    widths = [high - low for low, high in (b.interval() for b in (first, second))]
    return first if widths[0] < widths[1] or math.isnan(widths[1]) else second


def _normal_near(
    target: Target, posterior: Posterior, generator: torch.Generator
) -> NormalForm:
    if target.has_design:
        found = fit_proposal_normal(target)
        if found is not None:
            return found
    # Any component of a mixture is a better start than moments across its modes.
    normal = posterior.components[0].as_normal()
    if normal is not None and normal.factor is None:
        return normal
    theta = posterior.draw(N_MOMENTS, generator).theta
    theta = theta.double()
    return NormalForm(theta.mean(0), theta.std(0))


IMPROPER = (
    "An improper prior such as LogUniform has no evidence: its constant is arbitrary. "
    "Fit with a proper prior, such as prior='horseshoe' or StudentT(), to bound one."
)
