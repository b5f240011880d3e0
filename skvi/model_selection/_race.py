"""Bounds for all models: a cheap pass, then more work if it can matter."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from skvi.evidence import FROM_TARGET, EvidenceBounds
from skvi.model_selection._decision import Comparison, n_standard_errors
from skvi.model_selection._work import Outcome, bound_all, report_failures
from skvi.utils._warnings import warn_user

# Precisions of the passes, relative to the tightest one. Costs grow with the inverse
# square, so that the first two add about a tenth to the last.
PASSES = (10.0, 3.0, 1.0)


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

    def record(self, outcome: Outcome, precision: float) -> None:
        """Record the result of a run, replacing the last one."""
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
        low, high = sorted(self.bounds.interval(n_errors))
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
    log: Any = field(default=lambda text: None)
    errors: dict[int, str] = field(default_factory=dict)  # of candidates

    def run(self, models: list[Model], fits: list[Outcome]) -> list[Model]:
        """Bound all models; return those that have an evidence."""
        self._pass(models, 0)
        models += self._split(models, fits)
        report_failures([Outcome(m.bounds, 0.0, m.error) for m in models], "evidences")
        for model in models:
            if model.bounds is None:
                self.errors |= dict.fromkeys(model.rows, model.error)
        models = [model for model in models if model.bounds is not None]
        check_quantities(models)
        warn_mixed(models)
        for number in range(1, len(PASSES)):
            self._pass(self._unresolved(models, number), number)
        return models

    def _pass(self, models: list[Model], number: int) -> None:
        """Bound some models with the precision of a pass, and fresh draws."""
        if not models:
            return
        precision = PASSES[number] * self.precision
        self.log(f"{len(models)} evidences to {precision:.3g} nats")
        seeds = [int(self.seeds[model.chosen, number]) for model in models]
        options = [
            {**self.options, "precision": precision, "random_state": seed}
            for seed in seeds
        ]
        fitted = [model.fitted for model in models]
        found = bound_all(fitted, self.X, self.y, options, self.n_jobs, self.reraise)
        for model, outcome in zip(models, found, strict=True):
            model.record(outcome, precision)

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
        estimate = np.array([model.bounds.estimate for model in models])
        estimate = np.nan_to_num(estimate, nan=-np.inf)  # where nothing was tried
        learned = [frozenset(model.bounds.plug_in) for model in models]
        return Comparison(
            estimate + prior, ends[:, 0], ends[:, 1], learned, self.min_difference
        )

    def n_errors(self, models: list[Model]) -> float:
        """Number of standard errors on each side of the intervals."""
        return n_standard_errors(self.confidence_level, len(models), len(PASSES))


def check_quantities(models: list[Model]) -> None:
    """Raise if some evidences are generalized ones and others are not."""
    found = sorted({model.bounds.quantity for model in models})
    if len(found) > 1:
        raise ValueError(
            f"The candidates have different quantities: {', '.join(found)}. They have "
            "no common unit and cannot be compared: make one search for each."
        )


def warn_mixed(models: list[Model]) -> None:
    """Warn if hyperparameters that some models learn are given in others."""
    found = {", ".join(model.bounds.plug_in) or "nothing" for model in models}
    if len(found) > 1:
        warn_user(
            "Some candidates learn hyperparameters that others do not, or take them "
            f"from y: {'; '.join(sorted(found))}. The evidence at such values is "
            "optimistic as the score of a model, and excludes no model without them. "
            "Fix them, or give them hyperpriors, to decide.",
            UserWarning,
        )
