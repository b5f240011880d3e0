"""Reports on networks: weights that the data need, and fits that are flat."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from numbers import Real
from typing import Self

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.validation import check_is_fitted

from skvi._estimator._regressors import LARGEST
from skvi.divergences import Divergence, KLDivergence
from skvi.utils._tensors import make_generator
from skvi.utils._validation import Interval, median_distance, validate_arguments

HEADINGS = ("weights", "kept", "fraction")


@dataclass(frozen=True)
class SparsityReport:
    """Weights whose signal-to-noise ratio reaches a threshold, by layer.

    Prints as a table.

    Parameters
    ----------
    threshold : float
        Smallest ratio of the absolute mean of a weight to its standard deviation.
    kept : dict of str to ndarray of bool
        For every block of weights, such as "coef_0" of shape (n_features, n_units), the
        ones that reach it; for a mixture with its components as first axis.

    Examples
    --------
    >>> import numpy as np
    >>> from skvi.neural_network._reports import SparsityReport
    >>> kept = {"coef_0": np.array([[True, False], [False, False]])}
    >>> report = SparsityReport(1.0, kept)
    >>> print(report)
            weights  kept  fraction
    coef_0        4     1       25%
    total         4     1       25%
    """

    threshold: float
    kept: dict[str, np.ndarray]

    @property
    def n_weights(self) -> dict[str, int]:
        """Number of weights of every block."""
        return {name: mask.size for name, mask in self.kept.items()}

    @property
    def n_kept(self) -> dict[str, int]:
        """Number of weights of every block that reach the threshold."""
        return {name: int(mask.sum()) for name, mask in self.kept.items()}

    def __str__(self) -> str:
        """Table with a row for every block."""
        counts = {k: (n, self.n_kept[k]) for k, n in self.n_weights.items()}
        counts["total"] = sum(self.n_weights.values()), sum(self.n_kept.values())
        width = max(len(name) for name in counts)
        lines = [" " * width + "".join(f"  {text:>4}" for text in HEADINGS)]
        for name, (n, kept) in counts.items():
            fraction = f"{kept / max(n, 1):.0%}"
            lines.append(f"{name:{width}}  {n:7}  {kept:4}  {fraction:>8}")
        return "\n".join(lines)


class SparsityMixin:
    """Mixin of networks: `sparsity_report` and `prune`."""

    #: Weights that predictions keep, (K, P) for K components; None keeps all.
    _kept = None

    def sparsity_report(self, threshold: float = 1.0) -> SparsityReport:
        """Count the weights whose posterior is clearly different from 0.

        The posterior of a weight that the data do not inform is its prior: a mean near
        0 and a large standard deviation. Its signal-to-noise ratio is small, and
        `prune` can remove it: weights of units that the network does not use, and those
        of irrelevant features, above all with a sparsity prior (``prior="horseshoe"``,
        "ard" or "log_uniform").

        Parameters
        ----------
        threshold : float, default=1.0
            Smallest ratio of the absolute posterior mean of a weight to its posterior
            standard deviation.

        Returns
        -------
        SparsityReport
            ``report.kept["coef_0"].any(1)`` says which features the first layer of a
            perceptron uses; ``print(report)`` shows the numbers of weights. Intercepts
            are not counted.

        References
        ----------
        Graves (2011), *Practical variational inference for neural networks*, section 6;
        Louizos, Ullrich and Welling (2017), *Bayesian compression for deep learning*.
        """
        kept, layout = self._above(threshold).numpy(), self.posterior_.layout
        blocks = {}
        for name in self._weight_names():
            block = layout[name]
            masks = kept[:, block.slice].reshape(-1, *block.shape)
            blocks[name] = masks if len(masks) > 1 else masks[0]
        return SparsityReport(float(threshold), blocks)

    def prune(self, threshold: float = 1.0) -> Self:
        """Return a copy whose predictions set weights below a threshold to 0.

        Parameters
        ----------
        threshold : float, default=1.0
            See `sparsity_report`: 0 keeps all weights.

        Returns
        -------
        estimator
            Its predictions, `sample_posterior` and `sample_function` come from the
            same networks, with the same weights set to 0 in all of them (in a mixture,
            in all draws of a component). Everything else is that of the fit:
            `posterior_`, `lower_bound_`, `evidence_bounds` and `to_arviz` are not those
            of the pruned network, and a later fit starts from all weights.
        """
        other = copy(self)
        other._kept = self._above(threshold)
        generator = make_generator(self._draw_seed)
        with torch.no_grad():
            other._theta = other._sample(len(self._theta), generator).numpy()
        return other

    def _sample(self, n_draws, generator):
        draw = self.posterior_.draw(n_draws, generator)
        if self._kept is None:
            return draw.theta
        component = 0 if draw.component is None else draw.component
        return draw.theta * self._kept[component]

    def _weight_names(self):
        """Blocks that can be pruned."""
        layout = self.posterior_.layout
        return [name for name, block in layout.items() if block.role == "weight"]

    def _above(self, threshold):
        """Whether each parameter of each component is kept, (K, P)."""
        check_is_fitted(self)
        allowed = {"threshold": [Interval(Real, 0, None, closed="left")]}
        validate_arguments(type(self).__name__, {"threshold": threshold}, allowed)
        normals = [c.as_normal() for c in self.posterior_.components]
        ratios = torch.stack([n.mean.abs() / n.variance.sqrt() for n in normals])
        weights = self.posterior_.layout.positions(self._weight_names())
        kept = torch.ones_like(ratios, dtype=torch.bool)
        kept[:, weights] = ratios[:, weights] >= threshold
        return kept


# Fraction of a target that counts: that a fit explains or misses, or by which it is
# worse than a constant.
SHARE = 0.1
# A gain that ten parameters get by chance does not count; what is missed is at least
# five standard errors if residuals are noise.
CHANCE_PARAMETERS, MISSED_ERRORS, MIN_PAIRS = 10, 5.0, 20
# Residuals are outliers from this number of robust standard deviations on, which six in
# 100,000 of a normal distribution are; and the fraction of them that is worth a word.
OUTLYING, MANY_OUTLIERS = 4.0, 0.01
# Layers below this size are small.
SMALL_LAYER = 10
# Ratio of the root mean square of the largest feature to that of standardized ones.
FAR_INPUT = 10.0


def remedies(
    hidden: Sequence[int] | None,
    activation: str,
    divergence: Divergence | None,
    learns_scales: bool = True,
) -> str:
    """Name possible remedies for a fit that misses a signal.

    `hidden` is None if layers are unknown. Unless some scale is learned
    (`learns_scales`) the given one may be too narrow.
    """
    if hidden is not None and not hidden:
        return "hidden_layer_sizes=(20,) or more rows"
    found = [] if learns_scales else ["prior='auto'"]
    if hidden is None:
        found.append("a larger module")
    elif activation == "identity":
        found.append("activation='relu'")
    elif min(hidden) < SMALL_LAYER:
        found.append("larger hidden_layer_sizes")
    if isinstance(divergence, KLDivergence) and divergence.weight > 0.1:
        found.append("divergence=KLDivergence(weight=0.1)")
    return " or ".join([*found, "more rows"])


def unscaled_message(X: np.ndarray) -> str:
    """Say that features are far from the scale that networks expect, about 1.

    Empty if the scales are fine.
    """
    columns = np.abs(X.reshape(len(X), -1)).astype(np.float64)
    largest = np.maximum(columns.max(0), 1e-300)
    sizes = largest * np.sqrt(((columns / largest) ** 2).mean(0))
    sizes = sizes[columns.max(0) > 0]
    if not len(sizes) or (1 / FAR_INPUT < sizes.max() < FAR_INPUT):
        return ""
    return (
        f"the features have sizes from {sizes.min():.2g} to {sizes.max():.2g}, and "
        "networks expect about 1: standardize them first, as StandardScaler does"
    )


def without_outliers(y: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Targets, with residuals cut at four robust standard deviations.

    With heavy-tailed noise a few rows make up most of the variance, and hide whether
    the others are explained.
    """
    residual = y - mean
    reach = OUTLYING * _robust_deviation(residual)
    return mean + residual.clip(-reach, reach) if reach > 0 else y


def has_outliers(residual: np.ndarray, weight: np.ndarray) -> bool:
    """Whether more than 1 % of residuals are beyond four robust standard deviations."""
    if len(residual) < MIN_PAIRS:  # few rows tell nothing about tails
        return False
    deviation = _robust_deviation(residual)
    is_far = np.abs(residual - np.median(residual)) > OUTLYING * deviation
    return deviation > 0 and float(weight @ is_far) > MANY_OUTLIERS * float(
        weight.sum()
    )


def _robust_deviation(values: np.ndarray) -> float:
    """Standard deviation of a normal distribution with the same median distance."""
    return median_distance(values, np.ones(len(values)), float(np.median(values)))


def worse_message(explained: float | None, error: str) -> str:
    """Say that a constant would fit the training rows better; empty if it would not.

    `error` says what the fraction `explained` is about, with a place for the ratio.
    """
    if explained is None or explained >= -SHARE:
        return ""
    return f"the fit is worse than a constant: {error.format(1 - explained)}"


def explained_variance(
    mean: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> float | None:
    """Fraction of the variance of a target that predictions explain: weighted R^2.

    None if the target is constant, or squares of predictions overflow.
    """
    if not float(np.abs(mean).max()) < LARGEST:
        return None
    centered = y - np.average(y, weights=weight)
    total = float(weight @ centered**2)
    # Rounding leaves a small variance of a constant.
    if total <= 1e-20 * max(float(weight @ y**2), 1e-300):
        return None
    return 1.0 - float(weight @ (y - mean) ** 2) / total


def explained_log_loss(
    log_proba: np.ndarray, codes: np.ndarray, weight: np.ndarray
) -> tuple[float | None, float]:
    """Fractional reduction of the log loss of the class frequencies, and that log loss.

    The loss is in nats per row. The fraction is at most 1, and None if there is only
    one class.
    """
    counts = np.bincount(codes, weight, minlength=log_proba.shape[1])
    frequency = counts[counts > 0] / counts.sum()
    entropy = -float(frequency @ np.log(frequency))
    if entropy <= 1e-12:
        return None, 0.0
    loss = -float(np.average(log_proba[np.arange(len(codes)), codes], weights=weight))
    return 1.0 - loss / entropy, entropy


def flat_message(
    explained: float | None,
    nats_per_unit: float,
    weight: np.ndarray,
    rows_per_row: float,
    constant: str,
    remedy: str,
) -> str:
    """Say that a fit explains almost nothing; empty if it explains more.

    `nats_per_unit` is the log likelihood per row for a small fraction; `rows_per_row`
    the number of rows of the fit for each row here.
    """
    n_rows = rows_per_row * weight.sum() ** 2 / (weight @ weight)
    if explained is None or n_rows < 3:
        return ""
    # By chance every parameter gains half a nat on average.
    chance = 0.5 * CHANCE_PARAMETERS / (nats_per_unit * n_rows)
    if explained >= min(SHARE, chance):
        return ""
    return (
        f"the fit explains no more of the target than {constant} would "
        f"({max(explained, 0.0):.1%}), which is right if there is nothing to learn; "
        f"if you expect a signal, {remedy} may help"
    )


def missed_variance(
    X: np.ndarray, y: np.ndarray, mean: np.ndarray, weight: np.ndarray
) -> tuple[float | None, float]:
    """Fraction of variance that the nearest rows have in common and the fit misses.

    None if it is unknown; noise gives 0 within 1 / sqrt(n_pairs), the second result.
    What neighbors do not share, as in many dimensions, is not detected.
    """
    if not max(float(np.abs(X).max()), float(np.abs(mean).max())) < LARGEST:
        return None, 0.0
    X, y, mean, weight = (a[weight > 0] for a in (X, y, mean, weight))
    _, first = np.unique(X, axis=0, return_index=True)
    X, y, residual, weight = X[first], y[first], (y - mean)[first], weight[first]
    deviation = y - np.average(y, weights=weight)
    total = float(np.average(deviation**2, weights=weight))
    if len(X) < MIN_PAIRS or not total > 0:
        return None, 0.0
    found = NearestNeighbors(n_neighbors=1).fit(X).kneighbors(return_distance=False)
    nearest = found[:, 0]
    pair = np.sqrt(weight * weight[nearest])
    n_pairs = float(pair.sum() ** 2 / (pair @ pair))
    if n_pairs < MIN_PAIRS:
        return None, n_pairs
    centered = residual - np.average(residual, weights=weight)
    shared = float(np.average(centered * centered[nearest], weights=pair))
    return shared / total, n_pairs


def missed_message(
    missed: float | None, explained: float, n_pairs: float, remedy: str
) -> str:
    """Say that a fit misses a signal; empty if none is detected.

    `missed` is from `missed_variance`; more than the unexplained fraction is ignored.
    """
    if missed is None:
        return ""
    explained = max(explained, 0.0)
    missed = min(missed, 1.0 - explained)
    error = (1.0 - explained) / n_pairs**0.5
    if missed < max(SHARE, MISSED_ERRORS * error):
        return ""
    return (
        f"the fit explains {explained:.0%} of the variance of the target and misses "
        f"about {missed:.0%}, which neighboring rows have in common; {remedy} may help"
    )
