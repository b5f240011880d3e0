"""Predictions of any likelihood, averaged over f and its own unknown parameter."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils import gen_batches

from skvi._draws import Draws
from skvi.likelihoods import Likelihood
from skvi.utils._arrays import as_tensor
from skvi.utils._mixture import mixture_quantiles, smallest_counts
from skvi.utils._quadrature import normal_rule

__all__ = ["DrawnMixture", "LikelihoodMixture", "NormalMixture"]

# Standard deviations of f, in units of the resolution of the likelihood, that share a
# rule: the prediction for a row must not depend on other rows.
WIDTHS = (0.22, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
# Components times rows processed at once.
CHUNK_ELEMENTS = 2**20
# Components with a smaller probability are ignored in the choice of nodes.
NEGLIGIBLE = 1e-8
# Relative tolerance of quantiles, less than the error of the quadrature.
ROUNDING = 1e-13

OfRows = Callable[..., torch.Tensor]


@dataclass(frozen=True, eq=False)
class LikelihoodMixture(ABC):
    """A mixture of predictive distributions of one target, for every row.

    Components have `log_weights`, and values `hyper` of the likelihood's learned
    parameter, both (n_components,); `hyper` is None if it has none.
    """

    likelihood: Likelihood
    hyper: torch.Tensor | None
    log_weights: torch.Tensor

    @abstractmethod
    def _by_rows(self, function: OfRows, *columns: np.ndarray) -> np.ndarray:
        """Apply a function of (likelihood, log weights, f, *columns) to all rows."""

    def moments(self) -> np.ndarray:
        """Mean and standard deviation of a new target, (n_samples, 2)."""

        def of_rows(p: Likelihood, log_w: torch.Tensor, f: torch.Tensor) -> Any:
            w, means = log_w.exp(), p.mean(f)
            mean = w @ means
            variance = w @ (p.variance(f) + (means - mean).square())
            return torch.stack([mean, variance.sqrt()], 1)

        return self._by_rows(of_rows)

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Quantiles of a new target, (n_samples, n_levels), for counts rounded up."""

        def of_rows(p: Likelihood, log_w: torch.Tensor, f: torch.Tensor) -> Any:
            w = log_w.exp()
            if not p.is_discrete:
                return mixture_quantiles(p, f, levels, w, ROUNDING)
            start = w @ p.mean(f)
            found = [
                smallest_counts(lambda k: w @ p.cdf(f, k), level, start)
                for level in levels.tolist()
            ]
            return torch.stack(found, 1)

        return self._by_rows(of_rows)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Log density, or mass, of targets, (n_samples,), in nats."""

        def of_rows(
            p: Likelihood, log_w: torch.Tensor, f: torch.Tensor, y: torch.Tensor
        ) -> torch.Tensor:
            return torch.logsumexp(p.log_prob(f, y) + log_w[:, None], 0)

        return self._by_rows(of_rows, y)


@dataclass(frozen=True, eq=False)
class NormalMixture(LikelihoodMixture):
    """The mixture over f, itself a mixture of M normals, by quadrature.

    `mean` and `std` have shape (M, n_samples), `log_shares`, their log weights, (M,).
    """

    mean: torch.Tensor
    std: torch.Tensor
    log_shares: torch.Tensor

    @torch.no_grad()
    def _by_rows(self, function: OfRows, *columns: np.ndarray) -> np.ndarray:
        width, result = (self.std / self._resolution()).amax(0), None
        tensors = [as_tensor(np.asarray(column)) for column in columns]
        lower = -1.0
        for upper in (*WIDTHS, math.inf):
            index = ((width > lower) & (width <= upper)).nonzero()[:, 0]
            lower = upper
            if not len(index):
                continue
            finest = upper if upper < math.inf else float(width[index].max())
            nodes, weights = normal_rule(finest)
            log_f = (self.log_shares[:, None] + weights.log()).flatten()
            bound = self._bound(len(log_f))
            log_w = (self.log_weights[:, None] + log_f).flatten()
            for batch in gen_batches(len(index), self._n_rows(len(log_w))):
                rows = index[batch]
                mean, std = self.mean[:, None, rows], self.std[:, None, rows]
                f = (mean + nodes[:, None] * std).flatten(0, 1)
                f = f.repeat(len(self.log_weights), 1)[..., None]
                part = function(bound, log_w, f, *(t[rows] for t in tensors))
                if result is None:
                    result = part.new_empty(len(width), *part.shape[1:])
                result[rows] = part
        return result.numpy()

    def _bound(self, n_nodes: int) -> Likelihood:
        """Likelihood with one parameter value for each component."""
        if self.hyper is None:
            return self.likelihood
        numbers = self.hyper.repeat_interleave(n_nodes)
        return self.likelihood.bind(numbers[None, :, None])

    @staticmethod
    def _n_rows(n_components: int) -> int:
        return max(1, CHUNK_ELEMENTS // n_components)

    def _resolution(self) -> torch.Tensor:
        """Smallest distance in f on which predictions are curved, (M, n_samples)."""
        f = (self.mean + 2 * self.std)[..., None]
        if self.hyper is None:
            return self.likelihood.resolution(f)
        relevant = self.log_weights > math.log(NEGLIGIBLE)
        found = [
            self.likelihood.bind(number.reshape(1)).resolution(f)
            for number in self.hyper[relevant]
        ]
        return torch.stack(found).amin(0)


@dataclass(frozen=True, eq=False)
class DrawnMixture(LikelihoodMixture):
    """The mixture over draws of f, each with its own parameter value.

    `offset`, of shape (n_samples,), is added to f.
    """

    draws: Draws
    X: Any
    offset: np.ndarray

    def _by_rows(self, function: OfRows, *columns: np.ndarray) -> np.ndarray:
        bound = self.likelihood
        if self.hyper is not None:
            bound = bound.bind(self.hyper[None, :, None])

        def of_block(
            f: torch.Tensor, offset: torch.Tensor, *some: torch.Tensor
        ) -> torch.Tensor:
            return function(bound, self.log_weights, f + offset[:, None], *some)

        return self.draws.by_rows(self.X, of_block, self.offset, *columns)

    def means(self) -> np.ndarray:
        """Mean of a new target given each draw, (n_samples, n_draws)."""
        return self._by_rows(lambda p, _, f: p.mean(f).T)
