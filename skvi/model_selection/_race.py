"""Bounds for all models, more work where it can matter, and the decision.

All statements follow from one: every interval contains its log evidence. The intervals
are wide enough for this to hold with the confidence level, for any number of models and
of runs (Bonferroni's inequality).
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from scipy.special import expit, logsumexp, softmax
from scipy.stats import t as student_t

from skvi.evidence import EvidenceBounds
from skvi.evidence._result import FROM_TARGET
from skvi.evidence._table import OVER_LEARNED
from skvi.exceptions import SkviWarning
from skvi.model_selection._candidates import (
    Outcome,
    SearchProgress,
    bound_all,
    final_step,
    prior_rule,
    report_failures,
)
from skvi.utils._interrupts import UNLIMITED, Clock
from skvi.utils._validation import warn_user

# The standard errors come from at least 64 blocks of draws, and 64 chains.
DEGREES_OF_FREEDOM = 60


@dataclass(frozen=True, eq=False)
class Comparison:
    """Intervals of log evidence plus log prior probability, in nats, of K models.

    The interval of a model whose bounds are not reliable is the whole line. `learned`
    are the hyperparameters on which each evidence is conditioned, and `is_certain` says
    whether it holds without an approximate term.
    """

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray
    learned: list[frozenset[str]]
    is_certain: list[bool]
    min_difference: float

    def beats(self, k: int, j: int) -> bool:
        """Whether model k is better than j by more than `min_difference` nats.

        A maximum over hyperparameters that j does not learn is no evidence against j,
        and an approximation is none against or for any model.
        """
        is_certain = self.is_certain[k] and self.is_certain[j]
        is_above = self.is_above(k, j) and is_certain
        return is_above and self.learned[k] <= self.learned[j]

    def is_above(self, k: int, j: int) -> bool:
        """Whether k's interval lies above j's by more than `min_difference`."""
        return bool(self.low[k] - self.high[j] > self.min_difference)

    def contenders(self) -> list[int]:
        """Models that no other one beats; the highest estimate first."""
        models = range(len(self.estimate))
        left = [j for j in models if not any(self.beats(k, j) for k in models)]
        return sorted(left, key=lambda j: -self.estimate[j])

    def open_models(self) -> list[int]:
        """Models for which tighter bounds may change the decision."""
        best, *others = self.contenders()
        found: set[int] = set()
        for j in others:
            if self._is_open(best, j):
                endless = {k for k in (best, j) if np.isinf(self.low[k])}
                # If other bounds are unreliable, tighter ones do not help.
                found |= endless or {best, j}
        return sorted(found)

    def _is_open(self, k: int, j: int) -> bool:
        return not (self.is_above(k, j) or self.is_above(j, k) or self.is_tie(k, j))

    def is_tie(self, k: int, j: int) -> bool:
        """Whether two models are certainly within `min_difference`."""
        farthest = max(self.high[k] - self.low[j], self.high[j] - self.low[k])
        return bool(farthest <= self.min_difference)

    def probabilities(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Probability of every model, and the ends of its interval.

        It increases in the model's evidence and decreases in all others: its ends are
        at corners of the intervals. NaN if some interval is infinite: unreliable bounds
        support no number. With approximate evidences they are 0 and 1.
        """
        found = [self.share_of([k]) for k in range(len(self.low))]
        shares, low, high = np.array(found).T
        return shares, low, high

    @property
    def centers(self) -> np.ndarray:
        """Estimates, within the intervals: their draws may be others."""
        return np.clip(self.estimate, self.low, self.high)

    def share_of(self, models: list[int]) -> tuple[float, float, float]:
        """Probability of some models together, and the ends of its interval."""
        known = len(self.low) == 1 or np.isfinite([self.low, self.high]).all()
        share = softmax(self.centers)[models].sum() if known else np.nan
        if known and len(self.low) > 1 and not all(self.is_certain):
            return share, 0.0, 1.0
        low = _share(self.low[models], np.delete(self.high, models))
        return share, low, _share(self.high[models], np.delete(self.low, models))


def _share(own: np.ndarray, others: np.ndarray) -> float:
    """Part of a sum of exponentials, whose logarithms may be infinite."""
    if not len(others):
        return 1.0
    value, rest = logsumexp(own), logsumexp(others)
    return 0.0 if rest == np.inf or value == -np.inf else float(expit(value - rest))


def n_standard_errors(confidence_level: float, n_models: int, n_runs: int) -> float:
    """Standard errors on each side such that all intervals of all runs hold jointly."""
    tail = (1 - confidence_level) / (2 * n_models * n_runs)
    return float(student_t.isf(tail, DEGREES_OF_FREEDOM))


# Precisions of the passes, relative to the tightest one. Costs grow with the inverse
# square, so that the first two add about a tenth to the last.
PASSES = (10.0, 3.0, 1.0)
# Parts of what is left of `max_seconds` that they may take; seconds of a model in the
# first pass, however little is left.
OF_PASSES, LEAST_SECONDS = (1.0, 0.5, 1.0), 1.0
#: Of a model whose evidence is not known yet.
UNBOUNDED = EvidenceBounds(
    lower=-math.inf,
    upper=math.inf,
    lower_se=0.0,
    upper_se=0.0,
    estimate=math.nan,
    gap=math.inf,
    ess=0.0,
    khat=math.nan,
    reliable=False,
    reason="Ctrl-C came before its bounds: only the ELBO of its fit is known",
    method="none",
)
# How names of learned hyperparameters of a prior begin.
OF_PRIOR = "prior_scale"


@dataclass
class Model:
    """One model: its candidates, and the bounds on its evidence."""

    rows: list[int]
    chosen: int
    fitted: Any
    bounds: EvidenceBounds | None = None
    error: str = ""
    seconds: float = 0.0
    n_runs: int = 0
    precision: float = np.inf
    last_seconds: float = 0.0

    def record(self, outcome: Outcome, precision: float) -> None:
        """Record the result of a run, replacing the last one."""
        if outcome.is_interrupted:
            return
        self.last_seconds = outcome.seconds
        self.seconds += outcome.seconds
        self.n_runs += 1
        self.precision = precision
        if outcome.value is not None:
            self.bounds = outcome.value
        elif self.bounds is None:
            self.error = outcome.message
        else:
            reason = f"a tighter run failed: {outcome.message}"
            self.bounds = replace(self.bounds, reliable=False, reason=reason)

    @property
    def estimate(self) -> float:
        """Estimate of the log evidence, where there is none the ELBO of the fit."""
        known = self.bounds is not None and not math.isnan(self.bounds.estimate)
        found = self.bounds.estimate if known else training_bound(self.fitted)
        return -math.inf if math.isnan(found) else found + self.term

    @property
    def is_certain(self) -> bool:
        """Whether the evidence has no approximate term."""
        return self.bounds is None or OVER_LEARNED not in self.bounds.table

    @property
    def term(self) -> float:
        """Nats that an approximation adds for learned hyperparameters, if it does."""
        if self.bounds is None or self.is_certain:
            return 0.0
        found = self.bounds.table[OVER_LEARNED].value - self.bounds.estimate
        return 0.0 if math.isnan(found) else found

    def stated(self) -> tuple[float, float, float]:
        """Lower end, estimate and upper end; nothing bounds an approximation."""
        low, middle, high = self.bounds.stated()
        if self.is_certain:
            return low, middle, high
        return -math.inf, middle + self.term, math.inf

    def half_width(self) -> float:
        """Half the width of `interval(2)` in nats; its target is `precision`."""
        if self.bounds is None or not self.bounds.reliable:
            return np.inf
        low, high = self.bounds.interval(2.0)
        return (high - low) / 2

    def interval(self, n_errors: float) -> tuple[float, float]:
        """Interval of the log evidence; infinite if the bounds are not reliable."""
        if self.bounds is None or not self.bounds.reliable:
            return -np.inf, np.inf
        low, high = (end + self.term for end in sorted(self.bounds.interval(n_errors)))
        return (low, high) if np.isfinite(low + high) else (-np.inf, np.inf)


@dataclass
class Race:
    """Everything that a run of `evidence_bounds` needs except the model."""

    X: Any
    y: Any
    options: dict[str, Any]
    precision: float
    seeds: np.ndarray  # of shape (n_candidates, n_passes)
    log_prior: np.ndarray  # of shape (n_candidates,)
    min_difference: float
    confidence_level: float
    n_jobs: int | None
    reraise: bool
    progress: SearchProgress
    clock: Clock = UNLIMITED
    is_cut: bool = False  # whether there was no time for a pass
    is_interrupted: bool = False  # by Ctrl-C, in the fits or in a pass
    errors: dict[int, str] = field(default_factory=dict)  # of candidates

    def run(self, models: list[Model], fits: list[Outcome]) -> list[Model]:
        """Bound all models until Ctrl-C; return those that did not fail."""
        self.is_interrupted = any(fit.is_interrupted for fit in fits)
        try:
            self._pass(models, 0)
            models += self._split(models, fits)
            failed = [Outcome(m.bounds, 0.0, m.error) for m in models]
            report_failures(failed, "evidences")
            self._tighten(self._without_failed(models))
        except KeyboardInterrupt:
            self.is_interrupted = True
        if self.is_interrupted:
            for model in models:
                if model.bounds is None and not model.error:
                    model.bounds = UNBOUNDED
        return self._without_failed(models)

    def _without_failed(self, models: list[Model]) -> list[Model]:
        for model in models:
            if model.bounds is None and model.error:
                self.errors |= dict.fromkeys(model.rows, model.error)
        return [model for model in models if model.bounds is not None]

    def _tighten(self, models: list[Model]) -> None:
        """Tighter bounds where they can matter, if evidences can be compared."""
        if self.is_interrupted:
            return
        check_quantities(models)
        warn_mixed(models)
        for number in range(1, len(PASSES)):
            self._pass(self._unresolved(models, number), number)

    def _pass(self, models: list[Model], number: int) -> None:
        """Bound some models with the precision of a pass, and fresh draws."""
        if not models or self.is_interrupted:
            return
        limit = self._seconds_each(len(models), number)
        # A tighter run takes longer than the last one.
        least = max(model.last_seconds for model in models)
        if number and limit.get("max_seconds", math.inf) <= least:
            self.is_cut = True
            return
        precision = PASSES[number] * self.precision
        rows = [model.chosen for model in models]
        what = f"evidences to {precision:.3g} nats"
        self.progress.begin(what, rows)
        options = [
            {**self.options, **limit, "precision": precision, "random_state": int(seed)}
            for seed in self.seeds[rows, number]
        ]
        fitted = [model.fitted for model in models]
        found = bound_all(
            fitted,
            self.X,
            self.y,
            options,
            self.n_jobs,
            self.reraise,
            self.progress,
        )
        for model, outcome in zip(models, found, strict=True):
            model.record(outcome, precision)
        self.is_interrupted = any(outcome.is_interrupted for outcome in found)

    def _seconds_each(self, n_models: int, number: int) -> dict[str, float]:
        """Time limit of each model in a pass; empty if there is none."""
        left = self.clock.part(OF_PASSES[number]).left()
        if left is None:
            return {}
        n_rounds = math.ceil(n_models / effective_n_jobs(self.n_jobs))
        least = 0.0 if number else LEAST_SECONDS
        return {"max_seconds": max(left / n_rounds, least)}

    def _split(self, models: list[Model], fits: list[Outcome]) -> list[Model]:
        """Separate merged candidates whose learned hyperparameters can differ."""
        parts = []
        for model in models:
            learned = model.bounds and set(model.bounds.plug_in) - set(FROM_TARGET)
            if learned:
                others = [row for row in model.rows if row != model.chosen]
                model.rows = [model.chosen]
                parts += [Model([row], row, fits[row].value) for row in others]
        self._pass(parts, 0)
        return parts

    def _unresolved(self, models: list[Model], number: int) -> list[Model]:
        """Models whose bounds are too wide for the comparison with the best one."""
        target = PASSES[number] * self.precision
        is_last = number == len(PASSES) - 1
        chosen = [models[k] for k in self.compare(models).open_models()]
        return [
            model
            for model in chosen
            if model.half_width() > target and (model.bounds.reliable or is_last)
        ]

    def compare(self, models: list[Model]) -> Comparison:
        """Simultaneous intervals of log evidence plus log prior probability."""
        n_errors = self.n_errors(models)
        prior = np.array([self.log_prior[model.chosen] for model in models])
        ends = np.array([model.interval(n_errors) for model in models]) + prior[:, None]
        estimate = np.array([model.estimate for model in models])
        learned, is_certain = learned_of(models), [m.is_certain for m in models]
        sides = estimate + prior, ends[:, 0], ends[:, 1]
        return Comparison(*sides, learned, is_certain, self.min_difference)

    def n_errors(self, models: list[Model]) -> float:
        """Number of standard errors on each side of the intervals."""
        return n_standard_errors(self.confidence_level, len(models), len(PASSES))


def training_bound(fitted: Any) -> float:
    """ELBO of a fit, in nats; NaN if there is none."""
    return float(getattr(final_step(fitted), "lower_bound_", np.nan))


def check_quantities(models: list[Model]) -> None:
    """Raise if some evidences are generalized ones and others are not."""
    found = sorted({model.bounds.quantity for model in models})
    if len(found) > 1:
        raise ValueError(
            f"The candidates have different quantities: {', '.join(found)}. They have "
            "no common unit and cannot be compared: make one search for each."
        )


def learned_of(models: list[Model]) -> list[frozenset[str]]:
    """Learned hyperparameters; those of the prior of any model with the same prior.

    Small blocks of a network keep a fixed scale, and a deeper network has more blocks:
    that is the same rule, and none of the models is more optimistic than another.
    """
    own = [frozenset(model.bounds.plug_in) for model in models]
    # An integral over what was learned, if only approximate, is not at its optimum.
    sets = zip(models, own, strict=True)
    own = [names & set(FROM_TARGET) if model.term else names for model, names in sets]
    rules = [prior_rule(model.fitted) for model in models]
    shared: dict[Any, set[str]] = {}
    for rule, names in zip(rules, own, strict=True):
        of_prior = {name for name in names if name.startswith(OF_PRIOR)}
        shared.setdefault(rule, set()).update(of_prior)
    shared[None] = set()  # models without a prior that could be compared
    return [names | shared[rule] for rule, names in zip(rules, own, strict=True)]


def warn_mixed(models: list[Model]) -> None:
    """Warn if hyperparameters that some models learn are given in others."""
    found = {", ".join(sorted(names)) or "nothing" for names in learned_of(models)}
    if len(found) > 1:
        warn_user(
            "Some candidates learn hyperparameters that others do not, or take them "
            f"from y: {'; '.join(sorted(found))}. The evidence at such values is "
            "optimistic as the score of a model, and excludes no model without them. "
            "Fix them, or give them hyperpriors, to decide.",
            SkviWarning,
        )
