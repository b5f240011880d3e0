"""Predictions averaged over the candidates of a search, by their probabilities."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize.elementwise import find_root
from scipy.special import entr, logsumexp, softmax
from sklearn.base import is_classifier
from sklearn.utils import check_random_state

from skvi._predictive._quantiles import normal_mixture_quantiles
from skvi.model_selection._candidates import final_step
from skvi.model_selection._race import Comparison
from skvi.utils._validation import check_levels, interval_levels
from skvi.utils._wrappers import unwrap

# Candidates of a smaller probability are left out.
NEGLIGIBLE = 1e-6
# Quantiles of each candidate's class probabilities, whose mixture is taken.
N_QUANTILES = 200
# Widths of intervals of probabilities that are not worth a word.
DECIDED = 0.01
ADVICE = "With refit='average' every candidate must have it; use refit=True."


@dataclass(frozen=True, eq=False)
class Average:
    """Fitted candidates and their weights, with all forecasts that they share."""

    estimators: list[Any]
    weights: np.ndarray

    def _each(self, name: str, X: Any, *args: Any, **params: Any) -> list[Any]:
        """What a method of every candidate returns."""
        found = [unwrap(estimator, X, name, ADVICE) for estimator in self.estimators]
        return [getattr(inner, name)(own, *args, **params) for inner, own in found]

    def _mix(self, values: Any) -> np.ndarray:
        return np.tensordot(self.weights, np.asarray(values), 1)

    def _between(self, means: np.ndarray) -> np.ndarray:
        """Variance between the candidates."""
        return self._mix((means - self._mix(means)) ** 2)

    def predict(self, X: Any, **params: Any) -> Any:
        """Mean, with ``return_std=True`` also the deviation; or the likeliest class."""
        if is_classifier(self.estimators[0]):
            return self.estimators[0].classes_[self.predict_proba(X).argmax(1)]
        found = self._each("predict", X, **params)
        if not params.get("return_std"):
            return self._mix(found)
        means, stds = (np.stack(part) for part in zip(*found, strict=True))
        variance = self._mix(stds**2) + self._between(means)
        return self._mix(means), np.sqrt(variance)

    def predict_proba(self, X: Any, **params: Any) -> np.ndarray:
        """Mean probabilities."""
        return self._mix(self._each("predict_proba", X, **params))

    def predict_log_proba(self, X: Any, **params: Any) -> np.ndarray:
        """Their logarithms."""
        logs = np.stack(self._each("predict_log_proba", X, **params))
        return logsumexp(logs, 0, self.weights.reshape(-1, 1, 1))

    def decision_function(self, X: Any, **params: Any) -> np.ndarray:
        """Log odds of the second of two classes, log probabilities of more."""
        logs = self.predict_log_proba(X, **params)
        return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs

    def predict_proba_interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """Ends of intervals of class probabilities, (n, 2, K)."""
        levels = interval_levels("EvidenceSearch", coverage)
        grid = ((np.arange(N_QUANTILES) + 0.5) / N_QUANTILES).tolist()
        points = np.concatenate(self._each("_probability_quantiles", X, grid), 1)
        order = points.argsort(1)
        shares = np.repeat(self.weights, N_QUANTILES)[order] / N_QUANTILES
        total = shares.cumsum(1) - 0.5 * shares
        points = np.take_along_axis(points, order, 1)
        ends = np.empty((len(points), 2, points.shape[2]))
        for i, c in np.ndindex(len(points), points.shape[2]):
            ends[i, :, c] = np.interp(levels, total[i, :, c], points[i, :, c])
        return ends

    def predict_uncertainty(self, X: Any, **params: Any) -> dict[str, np.ndarray]:
        """Parts of the uncertainty; differences between candidates lack rows."""
        found = self._each("predict_uncertainty", X, **params)
        names = found[0].keys()
        each = {name: np.stack([one[name] for one in found]) for name in names}
        if "entropy" in each:
            entropy = entr(self.predict_proba(X)).sum(1)
            rest = self._mix(each["entropy"] - each["mutual_information"])
            return {"entropy": entropy, "mutual_information": entropy - rest}
        means = np.stack(self._each("predict", X, **params))
        noise, own = (self._mix(each[name] ** 2) for name in names)
        stds = np.sqrt(noise), np.sqrt(own + self._between(means))
        return dict(zip(names, stds, strict=True))

    def predict_log_density(self, X: Any, y: Any, **params: Any) -> np.ndarray:
        """Log of the mean density."""
        logs = self._each("predict_log_density", X, y, **params)
        return logsumexp(np.stack(logs), 0, self.weights[:, None])

    def predict_interval(
        self, X: Any, coverage: float = 0.9, **params: Any
    ) -> np.ndarray:
        """Ends of central intervals."""
        levels = interval_levels("EvidenceSearch", coverage)
        return self.predict_quantiles(X, levels, **params)

    def predict_quantiles(self, X: Any, quantiles: Any, **params: Any) -> np.ndarray:
        """Quantiles of the mixture, between those of its candidates."""
        levels = check_levels(quantiles)
        final, normals = final_step(self.estimators[0]), None
        if hasattr(final, "_predictive_normals"):
            normals = self._predictive_normals(X)
        if normals is not None:
            mean, std, w = normals
            if w.ndim == 1:
                shape, size = (len(mean), *mean.shape[1:-1]), mean.shape[-1]
                flat = (torch.from_numpy(x.reshape(-1, size).T) for x in (mean, std))
                found = normal_mixture_quantiles(*flat, levels, torch.from_numpy(w))
                return np.moveaxis(found.numpy().reshape(*shape, -1), -1, 1)
        own = self._each("predict_quantiles", X, levels, **params)
        cdfs = self._each("_cumulative", X, **params)
        return _inverted(
            np.stack(own),
            levels,
            lambda y: self._mix([F(y) for F in cdfs]),
            hasattr(final, "_of_rows"),
        )

    def sample_y(
        self, X: Any, n_draws: int = 1, random_state: Any = None, **params: Any
    ) -> np.ndarray:
        """Draws, each of one candidate for all rows."""
        rng = check_random_state(random_state)
        counts = rng.multinomial(n_draws, self.weights)
        parts = [
            Average([estimator], np.ones(1))._each(
                "sample_y", X, n_draws=int(count), random_state=rng, **params
            )[0]
            for estimator, count in zip(self.estimators, counts, strict=True)
            if count
        ]
        return np.concatenate(parts, -1)[..., rng.permutation(n_draws)]

    def score(self, X: Any, y: Any = None, **params: Any) -> float:
        """Score of these predictions, as the candidates define it."""
        final, own = unwrap(self.estimators[0], X, "evidence_bounds", ADVICE)
        final = copy(final)
        final.predict = lambda _, **options: self.predict(X, **options)
        return final.score(own, y, **params)

    def _predictive_normals(self, X: Any, **params: Any) -> Any:
        """Components of all candidates; None if some are not normal."""
        found = self._each("_predictive_normals", X, **params)
        if any(one is None for one in found):
            return None
        means, stds, shares = zip(*found, strict=True)
        shares = [w * share for w, share in zip(self.weights, shares, strict=True)]
        return tuple(np.concatenate(part, -1) for part in (means, stds, shares))


def _inverted(
    own: np.ndarray, levels: np.ndarray, cdf: Callable, is_discrete: bool
) -> np.ndarray:
    """Quantiles, (n, q, ...), of a mixture with a distribution function.

    `own` are those of its components, between which they lie.
    """
    low, high = own.min(0) - 0.5 * is_discrete, own.max(0)
    found = low.copy()
    level = levels.reshape(-1, *[1] * (found.ndim - 2))

    def excess(x: np.ndarray, index: np.ndarray) -> np.ndarray:
        found.flat[index] = x
        total = np.stack([cdf(found[:, k]) for k in range(len(levels))], 1)
        value = (total - level).flat[index]
        value = np.where(x <= low.flat[index], np.minimum(value, 0), value)
        return np.where(x >= high.flat[index], np.maximum(value, 0), value)

    index = np.arange(found.size)
    ends = low.ravel(), high.ravel()
    # Between two whole numbers the distribution function is constant.
    tolerances = {"xatol": 0.2} if is_discrete else {"xrtol": 1e-12}
    root = find_root(excess, ends, args=(index,), tolerances=tolerances).x
    return (np.round(root) + 0.0 if is_discrete else root).reshape(found.shape)


def averaged(comparison: Comparison, fitted: list[Any]) -> tuple[Average, np.ndarray]:
    """The average of models, and intervals of its weights, (K, 2)."""
    weights = softmax(comparison.centers)
    _, low, high = comparison.probabilities()
    kept = np.flatnonzero(weights > NEGLIGIBLE)
    kept = kept[np.argsort(-weights[kept], kind="stable")]
    shares = weights[kept] / weights[kept].sum()
    return Average([fitted[k] for k in kept], shares), np.stack([low, high], 1)[kept]


def describe_average(ends: np.ndarray) -> str:
    """Say of how many models it is, and how well its weights are known."""
    width = float(np.diff(ends).max())
    text = f"; predictions average over {len(ends)} of the models"
    if width > DECIDED:
        text += f", whose probabilities the bounds leave open by up to {width:.2g}"
    return text
