"""Predictive distributions: for every row a mixture of the likelihood's."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from sklearn.utils import gen_batches

from skvi._predictive._quantiles import Draws, cdf_of, quantiles_of
from skvi.base._layout import Units
from skvi.expectations._poisson import (
    poisson_mixture_cdf,
    poisson_mixture_log_mass,
    poisson_mixture_quantiles,
)
from skvi.expectations._rules import (
    factorize_rows,
    normal_rule,
    quasi_random_rule,
)
from skvi.likelihoods import (
    GaussianLikelihood,
    Likelihood,
)
from skvi.likelihoods._log_mean import LogMeanLikelihood
from skvi.utils._validation import as_tensor

# Components times rows processed at once.
CHUNK_ELEMENTS = 2**20
# Components with a smaller probability are ignored in the choice of nodes, and by
# scores that do not depend on far tails.
NEGLIGIBLE = 1e-8
# Components of one row, times terms of their distribution functions, and nodes for each
# width of the distribution of y. Nodes of wider normals are farther apart; those of all
# normals together fill the gaps.
MOST_COMPONENTS, N_PER_WIDTH = 2**17, 12
# Points of several f: of all normals, and the fewest of one.
N_POINTS, LEAST_POINTS = 2048, 64

OfRows = Callable[..., torch.Tensor]
Normals = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Predictive(ABC):
    """New targets in given rows: `likelihood` is in the units of the fit, `units`.

    Targets have one or several columns. Results are in units of y.
    """

    likelihood: Likelihood
    units: Units

    @abstractmethod
    def by_rows(self, function: OfRows, *columns: np.ndarray) -> np.ndarray:
        """Apply a function of (likelihood, log weights, f, *columns) to all rows."""

    @property
    def correction(self) -> float:
        """Factor of the variance between the components, for an estimate from few."""
        return 1.0

    def expectation(self) -> np.ndarray:
        """Mean of a new target, (n_samples, ...)."""
        return self.by_rows(lambda p, w, f: self.in_units(_average(w, p.mean(f))))

    def moments(self) -> np.ndarray:
        """Mean and standard deviation of a new target, (n_samples, 2, ...)."""
        mean, *stds = np.moveaxis(self.parts(), 1, 0)
        return np.stack([mean, np.hypot(*stds)], 1)

    def uncertainty(self) -> dict[str, np.ndarray]:
        """Standard deviations of the noise and of the function, (n_samples, ...)."""
        _, noise, function = np.moveaxis(self.parts(), 1, 0)
        return {"noise_std": noise, "function_std": function}

    def parts(self) -> np.ndarray:
        """Mean, and deviations within and between components, (n_samples, 3, ...)."""

        def of_rows(p: Likelihood, log_w: torch.Tensor, f: torch.Tensor) -> Any:
            w, means = log_w.exp(), p.mean(f)
            mean = _average(log_w, means)
            between = torch.tensordot(w, (means - mean).square_(), 1)
            within = torch.tensordot(w, p.variance(f), 1)
            stds = [within.sqrt(), (self.correction * between).sqrt()]
            parts = [std * self._scale(f) for std in stds]
            return torch.stack([self.in_units(mean), *parts], 1)

        return self.by_rows(of_rows)

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Quantiles of a new target, (n_samples, n_levels, ...); counts rounded up."""

        def of_rows(p: Likelihood, log_w: torch.Tensor, f: torch.Tensor) -> Any:
            parts = p._by_target(f)
            found = [quantiles_of(q, g, levels, log_w.exp()) for q, g in parts]
            shape = len(found[0]), len(levels), *np.shape(self.units.y_scale)
            return self.in_units(torch.stack(found, -1).reshape(shape))

        return self.by_rows(of_rows)

    def cdf(self, y: np.ndarray) -> np.ndarray:
        """Probability of at most y, of the shape of y."""
        shape = np.shape(y)
        y = y.reshape(len(y), *np.shape(self.units.y_scale))
        z = ((y - self.units.y_mean) / self.units.y_scale).reshape(len(y), -1)

        def of_rows(
            p: Likelihood, log_w: torch.Tensor, f: torch.Tensor, z: torch.Tensor
        ) -> torch.Tensor:
            parts = zip(p._by_target(f), z.T, strict=True)
            return torch.stack([cdf_of(q, g, x, log_w.exp()) for (q, g), x in parts], 1)

        return self.by_rows(of_rows, z).reshape(shape)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Log density, or mass, of targets, (n_samples,), in nats."""
        y = y.reshape(len(y), *np.shape(self.units.y_scale))
        y = (y - self.units.y_mean) / self.units.y_scale
        log_units = as_tensor(np.atleast_1d(np.log(self.units.y_scale)))

        def of_rows(
            p: Likelihood, log_w: torch.Tensor, f: torch.Tensor, y: torch.Tensor
        ) -> torch.Tensor:
            # Probabilities, as of counts, have no units.
            dense = p._has_density(y).reshape(len(y), -1).double()
            log_unit = dense @ log_units.to(y.device)
            return torch.logsumexp(p.log_prob(f, y) + log_w[:, None], 0) - log_unit

        return self.by_rows(of_rows, y)

    def normals(self, least: float = NEGLIGIBLE) -> Normals | None:
        """Means and deviations of components, (n_samples, ..., m), and weights, (m,).

        Only weights above `least`. None if the components are not normal.
        """
        return None

    def in_units(self, values: torch.Tensor) -> torch.Tensor:
        """Numbers of the fit in units of y."""
        return values * self._scale(values) + _double(self.units.y_mean, values)

    def _scale(self, values: torch.Tensor) -> torch.Tensor:
        return _double(self.units.y_scale, values)


@dataclass(frozen=True, eq=False)
class DrawnPredictive(Predictive):
    """Draws of f, each with its own parameters of the likelihood, in rows X.

    `offset`, of shape (n_samples,) or (n_samples, C), is added to f.
    """

    draws: Draws
    X: Any
    offset: np.ndarray | None = None

    def by_rows(self, function: OfRows, *columns: np.ndarray) -> np.ndarray:
        """Apply a function to all rows; see `Predictive.by_rows`."""
        theta = self.draws.theta
        equal = theta.new_zeros(len(theta), dtype=torch.float64) - np.log(len(theta))

        def of_block(
            f: torch.Tensor, offset: torch.Tensor, *some: torch.Tensor
        ) -> torch.Tensor:
            own = offset.reshape(len(offset), -1)
            return function(self.likelihood, equal, f + own, *some)

        offset = np.zeros(self.X.shape[0]) if self.offset is None else self.offset
        return self.draws.by_rows(self.X, of_block, offset, *columns)

    @property
    def correction(self) -> float:
        """Makes the variance between draws that of the posterior on average."""
        return len(self.draws.theta) / (len(self.draws.theta) - 1)

    def functions(self) -> np.ndarray:
        """Mean given each draw, (n_samples, ..., n_draws)."""
        return self.by_rows(lambda p, _, f: self.in_units(p.mean(f)).movedim(0, -1))

    def normals(self, least: float = NEGLIGIBLE) -> Normals | None:
        """Means and deviations given each draw, (n_samples, ..., n_draws)."""
        if not self.likelihood.is_normal:
            return None

        def stds(p: Likelihood, _: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
            return (p.variance(f).sqrt() * self._scale(f)).movedim(0, -1)

        n_draws = len(self.draws.theta)
        return self.functions(), self.by_rows(stds), np.full(n_draws, 1 / n_draws)

    def observations(self, generator: torch.Generator) -> np.ndarray:
        """One new target given each draw, (n_samples, ..., n_draws)."""

        def sample(
            p: Likelihood, _: torch.Tensor, f: torch.Tensor, given: torch.Tensor
        ) -> torch.Tensor:
            own = f[:, given > 0]  # without the rows that fill a block
            return self.in_units(p.sample(own, generator)).movedim(0, -1)

        return self.by_rows(sample, np.ones(self.X.shape[0]))


@dataclass(frozen=True, eq=False)
class Combinations:
    """Linear combinations of parameters that are normal at each of m nodes.

    `along`, (n, k), are directions in which the nodes have means and variances;
    `outside`, (n,), squared lengths in others; `shift`, (n,), is added.
    """

    along: torch.Tensor
    outside: torch.Tensor
    shift: torch.Tensor

    def __getitem__(self, rows: Any) -> "Combinations":
        return Combinations(self.along[rows], self.outside[rows], self.shift[rows])


class NormalMixture(Predictive):
    """Normals at each of m nodes, noise included, without quadrature.

    A subclass has `log_weights`, of shape (m,), and `n_rows`.
    """

    log_weights: torch.Tensor
    n_rows: int

    @abstractmethod
    def at_nodes(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Means and standard deviations of the components, (m, n) each."""

    def by_rows(self, function: OfRows, *columns: np.ndarray) -> np.ndarray:
        """Apply a function to all rows; see `Predictive.by_rows`."""
        tensors, parts = [as_tensor(column) for column in columns], []
        size = max(1, CHUNK_ELEMENTS // len(self.log_weights))
        for rows in gen_batches(self.n_rows, size):
            mean, std = self.at_nodes(rows)
            some = (tensor[rows] for tensor in tensors)
            bound = GaussianLikelihood()._at_scale(std)
            parts.append(function(bound, self.log_weights, mean[..., None], *some))
        return torch.cat(parts).numpy()

    def normals(self, least: float = NEGLIGIBLE) -> Normals | None:
        """Those of nodes of larger weights; see `Predictive.normals`."""
        mean, std = self.at_nodes(slice(None))
        w = self.log_weights.exp()
        kept = w > least
        mean, std = self.in_units(mean[kept].T), std[kept].T * self._scale(std)
        return mean.numpy(), std.numpy(), (w[kept] / w[kept].sum()).numpy()


@dataclass(frozen=True, eq=False)
class NormalPredictive(NormalMixture):
    """Moments of f at the nodes, (m, n), and variances of the noise, (m,)."""

    mean: torch.Tensor
    variance: torch.Tensor
    noise: torch.Tensor
    log_weights: torch.Tensor

    @property
    def n_rows(self) -> int:  # type: ignore[override]
        return self.mean.shape[1]

    def at_nodes(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Those that are given; see `NormalMixture.at_nodes`."""
        variance = self.variance[:, rows] + self.noise[:, None]
        return self.mean[:, rows], variance.sqrt()


@dataclass(frozen=True, eq=False)
class CombinedPredictive(NormalMixture):
    """Linear combinations with normal noise.

    `means` and `variances` have shape (m, k); the variance `outside`, `noise` and
    `log_weights` have shape (m,).
    """

    means: torch.Tensor
    variances: torch.Tensor
    outside: torch.Tensor
    noise: torch.Tensor
    log_weights: torch.Tensor
    rows: Combinations

    @property
    def n_rows(self) -> int:  # type: ignore[override]
        return len(self.rows.along)

    def at_nodes(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """By their directions; see `NormalMixture.at_nodes`."""
        given = self.rows[rows]
        variance = self.variances @ given.along.square().T
        variance += self.noise[:, None] + self.outside[:, None] * given.outside
        return self.means @ given.along.T + given.shift, variance.sqrt()


@dataclass(frozen=True, eq=False)
class QuadraturePredictive(Predictive):
    """The mixture over f, itself a mixture of M normals, by quadrature.

    `mean` and `std` have shape (M, n_samples), `log_shares`, their log weights, (M,).
    The likelihood's learned parameter has values `hyper`: (m,) with `log_weights`, or
    (M,), one for each normal, without; `hyper` is None if it has none.
    """

    mean: torch.Tensor
    std: torch.Tensor
    log_shares: torch.Tensor
    hyper: torch.Tensor | None = None
    log_weights: torch.Tensor | None = None

    @torch.no_grad()
    def by_rows(self, function: OfRows, *columns: np.ndarray) -> np.ndarray:
        """Apply a function to all rows; see `Predictive.by_rows`."""
        tensors, result = [as_tensor(np.asarray(column)) for column in columns], None
        # The prediction for a row must not depend on other rows: those whose widths
        # have the same next power of two share a rule.
        width = (self.std / self._resolution()).amax(0).clamp(min=0.25)
        width = 2.0 ** width.log2().ceil()
        for finest in width.unique().tolist():
            index = (width == finest).nonzero()[:, 0]
            bound, nodes, log_w = self._components(finest)
            size = max(1, CHUNK_ELEMENTS // len(log_w))
            for batch in gen_batches(len(index), size):
                rows = index[batch]
                mean, std = self.mean[:, None, rows], self.std[:, None, rows]
                f = (mean + nodes[:, None] * std).flatten(0, 1)
                f = f.repeat(len(log_w) // len(f), 1)[..., None]
                part = function(bound, log_w, f, *(t[rows] for t in tensors))
                if result is None:
                    result = part.new_empty(len(width), *part.shape[1:])
                result[rows] = part
        return result.numpy()

    def _components(
        self, width: float
    ) -> tuple[Likelihood, torch.Tensor, torch.Tensor]:
        """Likelihood with a parameter value for each component, nodes, log weights."""
        n_terms = len(self.log_shares) * self.likelihood._cdf_terms
        most = MOST_COMPONENTS / (N_PER_WIDTH * n_terms)
        nodes, weights = normal_rule(min(width, most))
        log_f = (self.log_shares[:, None] + weights.log()).flatten()
        if self.hyper is None:
            return self.likelihood, nodes, log_f
        if self.log_weights is None:
            numbers = self.hyper.repeat_interleave(len(nodes))
            return self.likelihood.bind(numbers[None, :, None]), nodes, log_f
        numbers = self.hyper.repeat_interleave(len(log_f))
        log_w = (self.log_weights[:, None] + log_f).flatten()
        return self.likelihood.bind(numbers[None, :, None]), nodes, log_w

    def _resolution(self) -> torch.Tensor:
        """Smallest distance in f on which predictions are curved, (M, n_samples)."""
        f = (self.mean + 2 * self.std)[..., None]
        if self.hyper is None:
            return self.likelihood._resolution(f)
        if self.log_weights is None:
            pairs = zip(self.hyper, f, strict=True)
            each = [
                self.likelihood.bind(h.reshape(1))._resolution(g[None])
                for h, g in pairs
            ]
            return torch.cat(each)
        relevant = self.hyper[self.log_weights > np.log(NEGLIGIBLE)]
        bound = (self.likelihood.bind(number.reshape(1)) for number in relevant)
        return torch.stack([p._resolution(f) for p in bound]).amin(0)


@dataclass(frozen=True, eq=False)
class JointPredictive(Predictive):
    """The mixture over several f, by quasi-random points of each of M normals.

    `mean` has shape (M, n_samples, C), `covariance` (M, n_samples, C, C), `log_shares`
    and `hyper`, or None, have (M,), as in `QuadraturePredictive`.
    """

    mean: torch.Tensor
    covariance: torch.Tensor
    log_shares: torch.Tensor
    hyper: torch.Tensor | None = None

    @torch.no_grad()
    def by_rows(self, function: OfRows, *columns: np.ndarray) -> np.ndarray:
        """Apply a function to all rows; see `Predictive.by_rows`."""
        tensors, parts = [as_tensor(np.asarray(column)) for column in columns], []
        n_normals, n_rows, size = self.mean.shape
        n_points = max(LEAST_POINTS, N_POINTS // n_normals)
        n_points = 2 ** (n_points.bit_length() - 1)  # as the rule needs
        nodes, weights = quasi_random_rule(size, n_points)
        log_w = (self.log_shares[:, None] + weights.log()).flatten()
        bound = self.likelihood
        if self.hyper is not None:
            numbers = self.hyper.repeat_interleave(len(weights))
            bound = bound.bind(numbers[None, :, None])
        for rows in gen_batches(n_rows, max(1, CHUNK_ELEMENTS // (len(log_w) * size))):
            root = factorize_rows(self.covariance[:, rows].flatten(0, 1))
            mean = self.mean[:, rows]
            away = (root @ nodes).mT.unflatten(0, mean.shape[:2])
            f = (mean[:, :, None] + away).transpose(1, 2).flatten(0, 1)
            parts.append(function(bound, log_w, f, *(t[rows] for t in tensors)))
        return torch.cat(parts).numpy()


@dataclass(frozen=True, eq=False)
class LogMeanPredictive(QuadraturePredictive):
    """Targets of mean exp(f), with moments in closed form."""

    def parts(self) -> np.ndarray:
        """In closed form; see `Predictive.parts`."""
        p, variance, w = self.likelihood, self.std.square(), self.log_shares.exp()
        if self.hyper is not None:
            p = p.bind(self.hyper[None, :, None])
        mean_of = lambda power: torch.exp(power * (self.mean + 0.5 * power * variance))
        terms = cast(LogMeanLikelihood, p)._variance_terms()
        noise = sum(c * mean_of(power) for c, power in terms)
        means = mean_of(1)
        mean = w @ means
        between = means.square() * torch.expm1(variance) + (means - mean).square()
        parts = [mean, (w @ noise).sqrt(), (w @ between).sqrt()]
        parts = [part * self._scale(part) for part in parts]
        # Means that overflow differ from their own mean by infinity.
        return torch.stack(parts, 1).nan_to_num(torch.inf, torch.inf).numpy()


@dataclass(frozen=True, eq=False)
class PoissonPredictive(LogMeanPredictive):
    """Poisson counts, whose mass and distribution function have their own integrals.

    With deviations of f from .5 to 3 the general rule is off by up to 12 nats.
    """

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Smallest counts that reach levels; see `Predictive.quantiles`."""
        w = self.log_shares.exp()
        return poisson_mixture_quantiles(self.mean, self.std, w, levels).numpy()

    @torch.no_grad()
    def cdf(self, y: np.ndarray) -> np.ndarray:
        """Probability of at most a count; see `Predictive.cdf`."""
        counts = as_tensor(y).floor().expand_as(self.mean)
        flat = counts.flatten(), self.mean.flatten(), self.std.flatten()
        found = poisson_mixture_cdf(*flat).reshape(self.mean.shape)
        return (self.log_shares.exp() @ found).numpy()

    @torch.no_grad()
    def log_density(self, y: np.ndarray) -> np.ndarray:
        """Log mass of counts; see `Predictive.log_density`."""
        counts = as_tensor(y).expand_as(self.mean)
        flat = counts.flatten(), self.mean.flatten(), self.std.flatten()
        mass = poisson_mixture_log_mass(*flat).reshape(self.mean.shape)
        return torch.logsumexp(mass + self.log_shares[:, None], 0).numpy()


def _average(log_w: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    # Relative to one of them, so that a large origin does not round the mean.
    return means[0] + torch.tensordot(log_w.exp(), means - means[0], 1)


def _double(value: float | np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """A number of any size to 16 digits; torch makes single precision of floats."""
    return torch.as_tensor(value, dtype=torch.float64, device=like.device)
