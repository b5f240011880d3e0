"""Values of the reference, with their kinds and tolerances: see reference.py."""

from dataclasses import dataclass
from typing import Any

import numpy as np

N_ERRORS = 4.0


@dataclass(frozen=True)
class Value:
    kind: str
    value: Any
    tol: Any = 0.0
    truth: float | None = None

    def misses(self, new: Any) -> str:
        """How a new value is outside of the tolerance, or nothing."""
        if self.kind == "equal" or np.shape(new) != np.shape(self.value):
            return "" if new == self.value else f"equal: {self.value} -> {new}"
        new, old, tol = map(np.ravel, np.broadcast_arrays(new, self.value, self.tol))
        with np.errstate(invalid="ignore"):
            change = np.where(
                (new == old) | np.isnan(new) & np.isnan(old), 0, new - old
            )
        tighter = {"lower": change > 0, "upper": change < 0}.get(self.kind, False)
        reach = 0.0 if self.truth is None else np.abs(self.truth - old)
        allowed = np.where(tighter, np.maximum(tol, reach), tol)
        excess = np.where(np.isnan(change), np.inf, np.abs(change) - allowed)
        i = np.argmax(excess)
        says = f"{self.kind}: {old[i]:.7g} -> {new[i]:.7g}, tolerance {allowed[i]:.2g}"
        return says if excess[i] > 0 else ""


def equal(value: Any) -> Value:
    return Value("equal", value)


def exact(value: Any) -> Value:
    return Value("exact", value, 1e-6 * np.max(np.abs(value)))


def draws(values: np.ndarray) -> Value:
    error = values.std(0) / np.sqrt(len(values))
    return Value("draws", values.mean(0), np.sqrt(2) * N_ERRORS * error)


def pooled(runs: list[dict[str, Value]]) -> dict[str, Value]:
    """Means over seeds with their errors; of verdicts those that all agree on."""
    found = {}
    for name, first in runs[0].items():
        values = [run[name].value for run in runs]
        if first.kind != "equal":
            error = np.std(values, axis=0, ddof=1) * np.sqrt(1 + 1 / len(runs))
            tol = np.maximum(first.tol, N_ERRORS * error)
            found[name] = Value("draws", np.mean(values, axis=0), tol)
        elif all(value == first.value for value in values):
            found[name] = first
    return found


def of_model(model: Any, X: Any, y: Any, rows: dict, rtol: float | None) -> dict:
    """What a fitted estimator reports; `rtol` if it has a closed form."""
    at, found = np.linspace(0, X.shape[0] - 1, 4).astype(int), model.diagnostics_
    few = {name: rows[name][at] for name in rows if name == "exposure"}
    gap = max(1e-5, found.get("gap") or 0.0, found.get("quadrature_error") or 0.0)

    def near(value: Any, unit: Any) -> Value:
        if rtol is not None:
            return Value("exact", value, rtol * np.maximum(np.max(np.abs(value)), unit))
        return Value("solved", value, np.sqrt(2 * gap) * np.asarray(unit))

    values = {
        "converged": equal(bool(model.converged_)),
        "solver": equal(str(found.get("solver"))),
        "family": equal(type(model.posterior_family_).__name__),
    }
    for name in ("lower_bound", "objective_value"):
        nats = getattr(model, f"{name}_")
        tol = max(1e-3, 2 * gap) if rtol is None else rtol * abs(nats)
        values[name] = Value("solved", nats, tol)
    for name in ("noise_scale_", "dispersion_", "prior_scale_"):
        size = getattr(model, name, ())
        size = np.hstack([*size.values()] if isinstance(size, dict) else [size])
        values |= {name: near(size, size)} if size.size else {}
    for name in ("coef", "intercept") if hasattr(model, "coef_std_") else ():
        mean, std = (np.ravel(getattr(model, f"{name}{end}_")) for end in ("", "_std"))
        theta = model.sample_posterior(400, random_state=0).get(name, np.zeros(400))
        first = theta.reshape(400, -1)[:, :3] - mean[:3]
        mean, std = (np.append(part[:3], np.linalg.norm(part)) for part in (mean, std))
        values |= {name: near(mean, std), f"{name}_std": near(std, std)}
        values |= {f"{name}_draws": draws(np.hstack([first, np.abs(first)]))}
    if hasattr(model, "classes_"):
        values["proba"] = near(model.predict_proba(X[at]), 0.25)
        values["proba_interval"] = near(model.predict_proba_interval(X[at]), 0.25)
    else:
        mean, std = model.predict(X[at], return_std=True, **few)
        values |= {"mean": near(mean, std), "std": near(std, std)}
        values["interval"] = near(model.predict_interval(X[at], **few), np.max(std))
    if "sample_weight" not in rows:
        values["log_density"] = near(model.predict_log_density(X[at], y[at], **few), 1)
    if model.get_params()["prior"] == "log_uniform":
        kept = model.sparsity_report().kept.values()
        values["kept"] = near([np.mean(mask) for mask in kept], 1.0)
    return values


def of_evidence(bounds: Any) -> dict[str, Value]:
    """Both sides with their errors; an interval up to three times as wide is chance."""
    (low, high), size = bounds.interval(N_ERRORS), 1e-6 * abs(bounds.estimate)
    errors = np.sqrt(2) * N_ERRORS * np.array([bounds.lower_se, bounds.upper_se])
    lower_tol, upper_tol = np.maximum(size, errors)
    return {
        "evidence_method": equal(bounds.method),
        "evidence_reliable": equal(bool(bounds.reliable)),
        "evidence_lower": Value("lower", bounds.lower, lower_tol, high),
        "evidence_upper": Value("upper", bounds.upper, upper_tol, low),
        "evidence": Value("draws", bounds.estimate, max(lower_tol, upper_tol)),
        "evidence_width": Value("upper", high - low, 2 * (high - low) + size, 0.0),
    }
