"""Which weights of a network the data need: a report, and pruning."""

from copy import copy
from dataclasses import dataclass
from numbers import Real

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from skvi.utils._random import make_generator
from skvi.utils._validation import Interval, validate_arguments

__all__ = ["SparsityMixin", "SparsityReport"]

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
    >>> from skvi.neural_network._sparsity import SparsityReport
    >>> kept = {"coef_0": np.array([[True, False], [False, False]])}
    >>> report = SparsityReport(1.0, kept)
    >>> report.fraction_kept
    0.25
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

    @property
    def fraction_kept(self) -> float:
        """Fraction of all weights that reach the threshold."""
        return sum(self.n_kept.values()) / max(sum(self.n_weights.values()), 1)

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

    def sparsity_report(self, threshold=1.0):
        """Count the weights whose posterior is clearly different from 0.

        The posterior of a weight that the data do not inform is its prior: a mean near
        0 and a large standard deviation. Its signal-to-noise ratio is small, and
        `prune` can remove it: weights of units that the network does not use, and those
        of irrelevant features, above all with a sparsity prior (``prior="horseshoe"``,
        "ard" or "log_uniform"). With ``posterior="dropout"`` the ratio is nearly the
        same for all weights of a layer, and does not tell them apart.

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

    def prune(self, threshold=1.0):
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
        validate_arguments(
            type(self).__name__,
            {"threshold": threshold},
            {"threshold": [Interval(Real, 0, None, closed="left")]},
        )
        normals = [c.as_normal() for c in self.posterior_.components]
        ratios = torch.stack([n.mean.abs() / n.variance.sqrt() for n in normals])
        weights = self.posterior_.layout.positions(self._weight_names())
        kept = torch.ones_like(ratios, dtype=torch.bool)
        kept[:, weights] = ratios[:, weights] >= threshold
        return kept
