"""The evidence sandwich: the cheapest method whose diagnostics allow it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch

from skvi._sampling._chains import Report, silent
from skvi.base import NormalForm
from skvi.evidence._estimates import Sides, in_parameters
from skvi.evidence._fitted import UNEVEN, Fitted
from skvi.evidence._importance import (
    TOO_LONG,
    importance_sides,
    why_certainly_too_long,
    why_path_too_long,
    why_too_long,
)
from skvi.evidence._modes import NearLifted, OneMode, Several, has_unknowns, lift, unit
from skvi.evidence._near_normal import ProposalFamily, near_normal_sides
from skvi.evidence._result import EvidenceBounds
from skvi.evidence._row_particles import row_particle_sides
from skvi.evidence._summarize import (
    BOUND_DRAWS,
    PATH_SECONDS,
    WEIGHT_DRAWS,
    lower_bound,
    summarize,
    without_bounds,
)
from skvi.evidence._table import with_samples
from skvi.evidence._tempered import (
    FROM_PRIOR,
    NEAR,
    Effort,
    TemperedSides,
    in_own_parameters,
    normal_around,
    summarize_tempered,
    tempered_sides,
)
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors import Posterior
from skvi.predictors import LinearPredictor
from skvi.solvers._moment_matching import fit_proposal_normal
from skvi.solvers._paths import MAX_MODES
from skvi.targets import SupervisedTarget, Target
from skvi.targets._lifted import LiftedTarget
from skvi.utils._interrupts import Clock, OutOfTime

# If importance sampling gives wider bounds than this, a tempered path is tried.
WIDE = 0.1
# Draws behind the moments of posteriors that are not normal.
N_MOMENTS = 1000
# Draws of the fit at which chains of a path start; and of wider densities, around all
# of which it starts.
N_STARTS, MIN_STARTS, STARTS_PER_PARAMETER = 4, 64, 4


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
    modes: Sequence[NormalForm] = (),
) -> EvidenceBounds:
    """Bound log Z of a target from below and above.

    Parameters
    ----------
    target : Target
        Without a prior Z is the integral of its density, which must be finite.
    posterior : Posterior
        The fitted one; it only enters the table's ELBO and EUBO. In place of a
        refined one it is the normal that this started from.
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
    method : {"auto", "importance", "tempering"}, default="auto"
        "auto" is importance sampling if its diagnostics allow it and the result is
        narrow, else tempering, as for targets with a symmetry group.
    report : callable, default=silent
        Called with a description and the completed fraction.
    max_seconds : float, default=None
        Time limit of all phases, checked between batches; if it ends before there are
        bounds, `method` of the result is "none". None takes as long as `precision`
        needs; a tempered path of "auto" at most `PATH_SECONDS`.
    modes : sequence of NormalForm, default=()
        Normals at all modes that a fit without a design matrix has found; proposals
        and chains cover them.

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
    >>> from skvi.evidence._bounds import bound_evidence
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> from skvi.losses import LogLoss
    >>> from skvi.posteriors import FullRankNormal
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.priors import Normal
    >>> from skvi.targets import SupervisedTarget
    >>> model, X = LinearPredictor(1, fit_intercept=False), torch.ones(2, 1).double()
    >>> prior, y = Normal().build(model.layout), torch.tensor([1.0, 3.0])
    >>> parts = model, GaussianLikelihood(1.0), LogLoss(), prior, X, y
    >>> target = SupervisedTarget(*parts)
    >>> posterior = FullRankNormal().build(model.layout)
    >>> bounds = bound_evidence(target, posterior, torch.Generator().manual_seed(0))
    >>> round(bounds.estimate, 1)  # log p(D) is -4.72
    -4.7
    """
    if target.prior is not None and not target.prior.is_proper:
        raise IncompatibleComponentsError(
            "An evidence",
            "a proper prior; that of LogUniform has an arbitrary constant",
            "prior='horseshoe' or StudentT() in the fit",
        )
    if target.symmetry is not None and method == "auto" and max_seconds is None:
        max_seconds = PATH_SECONDS
    asked, q = (n_draws, precision), posterior.unrefined
    run = _Run(target, q, generator, asked, quantity, report, max_seconds)
    if target.prior is not None and target.prior.paired:
        return run.nothing(PAIRED, WEIGHT_DRAWS)  # of a density that is slow
    found = run.within(run.clock, lambda: run.suited(method, normal, modes))
    found = found or run.found or run.nothing(OVER)
    if q is posterior or not posterior.n_stored:
        return found
    elbo = lower_bound(target, posterior, generator, posterior.n_stored)
    return with_samples(found, elbo)


class _Run:
    """Everything that the methods share."""

    def __init__(
        self,
        target: Target,
        posterior: Posterior,
        generator: torch.Generator,
        asked: tuple[int | None, float | None],
        quantity: str,
        report: Report,
        max_seconds: float | None,
    ) -> None:
        self.fit = target, posterior
        #: What is sampled: the target, or the same evidence in other coordinates.
        self.target: Target = target
        self.generator, self.quantity = generator, quantity
        self.asked, self.report, self.clock = asked, report, Clock(max_seconds)
        #: The best bounds of the methods that have been tried.
        self.found: EvidenceBounds | None = None

    @staticmethod
    def within(
        clock: Clock, work: Callable[[], EvidenceBounds | None]
    ) -> EvidenceBounds | None:
        """What is found within some seconds; None if they are over before that."""
        try:
            with clock.enforced():
                return work()
        except OutOfTime:
            return None

    def suited(
        self, method: str, normal: NormalForm | None, modes: Sequence[NormalForm]
    ) -> EvidenceBounds:
        """Bounds by a method, or by those that suit the target."""
        target, posterior = self.fit
        if target.layout.discrete:
            return self.discrete()
        if len(modes) > MAX_MODES:
            return self.nothing(MANY_MODES)
        if target.symmetry is not None and method != "importance":
            reason = why_path_too_long(target) if method == "auto" else ""
            return self.nothing(reason) if reason else self.from_prior()
        lifted = lift(target, posterior) if has_unknowns(target) else None
        if lifted is not None:
            return self.unknowns(method, lifted)
        if target.has_design and target.reference.n_unknown_scales == 1:
            size = target.layout.size, target.cost_per_draw
            return self.nothing(TOO_LONG.format(*size, "a prior of unknown scale"))
        if method == "auto" and not self.clock.is_limited:
            reason = why_certainly_too_long(target, posterior, self.generator)
            if reason:
                return self.nothing(reason)
        if normal is None:
            normal = _normal_near(target, posterior, self.generator)
        return self.by(method, self.proposals_near(normal, modes))

    def discrete(self) -> EvidenceBounds:
        """Bounds by weights of the posterior, if it is close enough."""
        normal = _normal_near(*self.fit, self.generator)
        family = Fitted(self.fit[1], normal)
        return self._near_normal(family, self.clock.part(1.0)) or self.nothing(UNEVEN)

    def by(self, method: str, family: ProposalFamily) -> EvidenceBounds:
        """Bounds by one method, from proposals near the posterior."""
        if method == "tempering":
            return self.tempering(family)
        if method == "importance":
            return self.importance(family, self.clock)
        return self.cheapest(family)

    def cheapest(self, family: ProposalFamily) -> EvidenceBounds:
        """The first method that is reliable and narrow; the better one of two."""
        normal = family.normal
        part = self.clock.part(0.5)
        found = self._near_normal(family, part)
        if found is None and not self.clock.is_limited:
            reason = why_too_long(self.target, normal, self.generator)
            if reason:
                return self.nothing(reason)
        if found is None or not self._is_good(found):
            found = self.importance(family, part)
        if self._is_good(found):
            return found
        self.found = _better(found, self.found)
        self.report(f"importance sampling ended {_width(found):.2g} nats wide", 1.0)
        if not self.clock.is_limited:
            self.clock = Clock(PATH_SECONDS)
        path = self.within(self.clock, lambda: self.tempering(family))
        return self.found if path is None else _better(path, self.found)

    def proposals_near(
        self, normal: NormalForm, modes: Sequence[NormalForm]
    ) -> ProposalFamily:
        """Proposals for several modes, or for one."""
        return Several.of(*self.fit, normal, modes) or OneMode(normal)

    def importance(self, family: ProposalFamily, clock: Clock) -> EvidenceBounds:
        return self._summarize(importance_sides(*self._sampling(family, clock)))

    def unknowns(self, method: str, lifted: LiftedTarget) -> EvidenceBounds:
        """In coordinates in which parameters and unknowns are nearly normal.

        Where they are not, and rows are few, by particles that go through the rows.
        """
        target = cast(SupervisedTarget, self.target)
        family = NearLifted(unit(lifted))
        self.target = lifted
        if method != "auto":
            return self.by(method, family)
        found = self._near_normal(family, self.clock.part(0.5))
        if found is not None and self._is_good(found):
            return found
        part = self.clock.part(0.5)
        self.found = self.within(part, lambda: self._particles(target, part))
        if self.found is not None and self.found.reliable:
            return self.found
        return _better(self.cheapest(family), self.found)

    def _particles(
        self, target: SupervisedTarget, clock: Clock
    ) -> EvidenceBounds | None:
        is_linear = isinstance(target.predictor, LinearPredictor)
        if target.noise_hyperprior is not None or not is_linear:
            return None
        options = self.generator, *self.asked, self.report, clock
        sides = row_particle_sides(target, *options)
        if sides is None:
            return None
        return summarize(*self.fit, sides, self.generator, self.quantity)

    def tempering(self, family: ProposalFamily) -> EvidenceBounds:
        """Bounds by a path from a normal that is found from starts of chains."""
        # Half of them from the prior, or where the likelihood is large.
        n_starts = MIN_STARTS + STARTS_PER_PARAMETER * family.normal.size
        starts = family.starts(self.target, n_starts, self.generator)
        wide = normal_around(starts)
        sides = self._path(self.target, wide, starts.flip(0), NEAR)
        if isinstance(self.target, LiftedTarget):
            sides = in_own_parameters(self.fit[0], self.target, sides)
        return self._summarize_tempered(sides)

    def from_prior(self) -> EvidenceBounds:
        """Bounds by a path that treats symmetric modes alike."""
        target, posterior = self.fit
        fitted = posterior.draw(N_STARTS, self.generator).theta.double()
        sides = self._path(target, None, fitted, FROM_PRIOR)
        return self._summarize_tempered(sides)

    def _path(
        self,
        target: Target,
        normal: NormalForm | None,
        fitted: torch.Tensor | None,
        effort: Effort,
    ) -> TemperedSides:
        options = self.generator, *self.asked, self.report, self.clock.part(1.0)
        return tempered_sides(target, normal, fitted, effort, *options)

    def _near_normal(
        self, family: ProposalFamily, clock: Clock
    ) -> EvidenceBounds | None:
        sides = near_normal_sides(*self._sampling(family, clock))
        return None if sides is None else self._summarize(sides)

    def nothing(self, reason: str, n_draws: int = BOUND_DRAWS) -> EvidenceBounds:
        (target, q), name = self.fit, self.quantity
        return without_bounds(target, q, self.generator, name, reason, n_draws)

    def _sampling(self, start: NormalForm | ProposalFamily, clock: Clock) -> tuple:
        return self.target, start, self.generator, *self.asked, self.report, clock

    def _summarize(self, sides: Sides) -> EvidenceBounds:
        if isinstance(self.target, LiftedTarget):
            chains = in_parameters(self.fit[0], self.target, sides.chains)
            sides = replace(sides, chains=chains)
        return summarize(*self.fit, sides, self.generator, self.quantity)

    def _summarize_tempered(self, sides: TemperedSides) -> EvidenceBounds:
        return summarize_tempered(*self.fit, sides, self.generator, self.quantity)

    def _is_good(self, bounds: EvidenceBounds) -> bool:
        wide = max(WIDE, 3 * (self.asked[1] or 0.0))
        return bounds.reliable and _width(bounds) < wide


def _width(bounds: EvidenceBounds) -> float:
    low, high = bounds.interval()
    return high - low


def _better(first: EvidenceBounds, second: EvidenceBounds | None) -> EvidenceBounds:
    """The reliable one; the narrower one if both or none are reliable."""
    if second is None:
        return first
    if first.reliable != second.reliable:
        return first if first.reliable else second
    widths = [_width(first), _width(second)]
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


OVER = "max_seconds ended before there were any bounds; allow several times as many"
PAIRED = (
    "the density of correlated groups without their scales takes too long for chains; "
    "with normal noise quadrature finds it, where columns and unknown numbers are few: "
    "prior={'coef': Normal(10.0)} gives the scale of the other coefficients, which "
    "leaves one number less. lower_bound_ is close to the log evidence"
)
MANY_MODES = (
    f"the posterior has more than {MAX_MODES} modes, such as switched labels, and "
    "bounds that miss some would be short of their mass: break the symmetry (support "
    "'ordered', for example)"
)
