"""The ELBO of linear regression with conjugate priors, and its coordinate updates.

Everything is a function of the logarithms x of the mean precisions. It uses numpy,
whose calls are much cheaper than those of torch for arrays of ten elements.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.linalg import cho_solve, cholesky, qr, solve_triangular
from scipy.special import digamma, gammaln

from skvi.base import NormalForm
from skvi.base._gamma_form import GammaForm
from skvi.targets._precisions import ConjugateForm, Precision
from skvi.utils._log_space import LOG_2PI

__all__ = ["Conjugate", "Node", "Point"]

# A learned precision may exceed its initial value by this factor; beyond, some rows are
# fitted exactly.
LEARNED_RANGE = math.log(1e12)
# Starts: how far the ratio of both precisions goes beyond the eigenvalues of the data
# and the prior's, in logarithms, and the height of a peak along the way, in nats.
REACH, HEIGHT = 20.0, 0.01
# Extrapolations stop here.
MAX_LOG, LARGEST_LOG = 300.0, 700.0


class Node:
    """One precision, or one for each coefficient.

    `half_count` is half the number of normal variables that share a precision.
    """

    def __init__(self, precision: Precision, half_count: float) -> None:
        self.first = np.log(precision.value.numpy())
        self.size = len(self.first)
        self.is_learned, self.is_free = precision.is_learned, not precision.is_fixed
        self.gamma, self.shift, self.constant = precision.hyperprior, 0.0, 0.0
        self.shape = half_count
        if self.gamma is not None:
            a0, b0 = self.gamma.shape, self.gamma.rate
            self.shape = a = a0 + half_count
            self.shift = float(digamma(a)) - math.log(a)
            # The entropy of the log of a Gamma variable depends on its shape only.
            entropy = float(gammaln(a)) + a - a * float(digamma(a))
            self.constant = a0 * math.log(b0) - float(gammaln(a0)) + entropy

    def mean_log(self, x: np.ndarray) -> np.ndarray:
        """E[log precision], given the log x of the mean."""
        return x + self.shift

    def bound(self, x: np.ndarray) -> float:
        """Minus the divergence of the Gamma distributions from their prior."""
        if self.gamma is None:
            return 0.0
        fit = self.gamma.shape * self.mean_log(x) - self.gamma.rate * np.exp(x)
        return float(fit.sum()) + self.size * self.constant

    def update(self, half_squares: float | np.ndarray) -> np.ndarray:
        """Log of the mean precision, given half the expected sums of squares."""
        rate = half_squares + (0.0 if self.gamma is None else self.gamma.rate)
        x = math.log(self.shape) - np.log(np.maximum(rate, 1e-300))
        x = np.reshape(x, self.size)
        return np.minimum(x, self.first + LEARNED_RANGE) if self.is_learned else x

    def rates(self, x: np.ndarray) -> np.ndarray:
        """Rates of the Gamma distributions."""
        return self.shape * np.exp(-x)


@dataclass(frozen=True, eq=False)
class Point:
    """The ELBO at mean precisions exp(x), and the updated precisions."""

    x: np.ndarray  # logs of the precisions that are not fixed
    next: np.ndarray  # and of the updated ones
    elbo: float
    coef: "Coefficients"
    intercept: tuple[float, float] | None  # mean and variance


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Moments of q(coef) given the precisions."""

    solution: np.ndarray  # (k,), mean along the eigenvectors
    squares: float | np.ndarray  # E[coef' coef], or each E[coef_j^2], (d,)
    trace: float  # of the Gram matrix times the covariance
    half_log_det: float  # of the covariance
    variance: np.ndarray  # along the eigenvectors, or of the coefficients


class Conjugate:
    """Coordinate updates of a conjugate model; `is_diagonal`: q(coef) is factorized."""

    def __init__(self, form: ConjugateForm, is_diagonal: bool) -> None:
        data = form.data
        self.form, self.is_diagonal, self.d = form, is_diagonal, data.n_features
        self.values, self.vectors = data.values.numpy(), data.vectors.numpy()
        self.solution, self.diagonal = data.solution.numpy(), data.diagonal.numpy()
        self.noise = Node(form.noise, 0.5 * data.n)
        size = len(form.coef.value)
        self.coef = Node(form.coef, 0.5 * self.d / size)
        self.is_shared = size == 1
        self.n_noise = int(self.noise.is_free)
        self.n_free = self.n_noise + self.coef.is_free * size

    def starts(self) -> list[np.ndarray]:
        """Logarithms of the precisions that are not fixed, from which to start.

        Peaks of the ELBO along the ratio of both precisions; with many precisions the
        best peak, ones, and those if each feature alone explains the target.
        """
        if not self.n_free:
            return [np.zeros(0)]
        if self.is_shared:
            return self._peaks()
        noise, coef = self._shared_start()
        if not self.coef.is_free:
            return [noise, self.noise.first]
        pairs = [
            (noise, coef),
            (self.noise.first, self.coef.first),
            (self.noise.first, self._data_scale()),
        ]
        return [self.inside(np.concatenate([t[: self.n_noise], s])) for t, s in pairs]

    def _peaks(self) -> list[np.ndarray]:
        """Peaks of the ELBO along the ratio of both precisions, the highest first."""
        path = self._path()
        values = np.array([self.evaluate(x).elbo for x in path])
        rises = np.diff(values, prepend=-np.inf) > HEIGHT
        falls = np.diff(values, append=-np.inf) < -HEIGHT
        rises[0] = falls[-1] = True
        best = int(np.argmax(values))
        others = [int(i) for i in np.flatnonzero(rises & falls) if i != best]
        return [path[i] for i in (best, *others)]

    def _path(self) -> list[np.ndarray]:
        """Ratios around those of data and prior, with the likeliest noise at each."""
        if not len(self.values):
            nodes = (self.noise, self.coef)
            return [np.concatenate([node.first for node in nodes if node.is_free])]
        t, s = self.noise.first, self.coef.first
        near = np.append(np.log(self.values), s - t)
        u = np.arange(near.min() - REACH, near.max() + REACH)
        if not self.noise.is_free:
            columns = [t + u]
        elif not self.coef.is_free:
            columns = [s - u]
        else:
            t = self.form.noise_at_ratio(u)
            columns = [t, t + u]
        return [self.inside(x) for x in np.stack(columns, 1)]

    def _shared_start(self) -> tuple[np.ndarray, np.ndarray]:
        """Best start of the model in which all coefficients share a precision."""
        coef = self.form.coef
        one = replace(coef, value=coef.value.log().mean().exp().reshape(1))
        shared = Conjugate(replace(self.form, coef=one), self.is_diagonal)
        noise, s = shared.split(shared.starts()[0])
        return noise, np.broadcast_to(s, self.coef.size)

    def _data_scale(self) -> np.ndarray:
        """Log precisions of coefficients at which a feature varies like the target."""
        explained = float(self.values @ self.solution**2)
        squares = np.mean(self.diagonal) if self.is_shared else self.diagonal
        squares = np.reshape(squares, self.coef.size)
        ratio = squares / max(self.form.data.residual + explained, 1e-300)
        return np.where(squares > 0, np.log(np.maximum(ratio, 1e-300)), self.coef.first)

    def inside(self, x: np.ndarray) -> np.ndarray:
        """Clip logarithms to the range of floats, and to that of learned values."""
        x = np.clip(x, -MAX_LOG, MAX_LOG)
        if self.n_noise and len(self.values):  # their product is a float, too
            x[0] = min(x[0], LARGEST_LOG - math.log(self.values.max()))
        for node, part in zip((self.noise, self.coef), self.split(x), strict=True):
            if node.is_learned:
                np.minimum(part, node.first + LEARNED_RANGE, out=part)
        return x

    def is_at_limit(self, point: Point) -> bool:
        """Whether a learned precision is at its upper limit."""
        pairs = zip((self.noise, self.coef), self.split(point.x), strict=True)
        limits = [n.first + LEARNED_RANGE - x for n, x in pairs if n.is_learned]
        return any(bool((room < 1e-6).any()) for room in limits)

    def split(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logarithms of the precisions of the noise and of the coefficients."""
        noise = x[: self.n_noise] if self.noise.is_free else self.noise.first
        coef = x[self.n_noise :] if self.coef.is_free else self.coef.first
        return noise, coef

    def evaluate(self, x: np.ndarray) -> Point:
        """Update q(coef) at these precisions; bound the evidence there."""
        noise, coef = self.split(x)
        alpha, data = math.exp(noise[0]), self.form.data
        q = self._coefficients(alpha, np.exp(coef))
        shift = q.solution - self.solution
        squares = data.residual + float(self.values @ (shift * shift)) + q.trace
        elbo = self.form.constant + q.half_log_det + 0.5 * self.d
        intercept = None
        if self.form.intercept is not None:
            intercept, extra, part = self._intercept(alpha, self.form.intercept)
            squares, elbo = squares + extra, elbo + part
        elbo += 0.5 * data.n * float(self.noise.mean_log(noise)[0] - LOG_2PI)
        elbo -= 0.5 * alpha * squares
        log_coef, prior = self.coef.mean_log(coef), np.exp(coef) * q.squares
        elbo += 0.5 * float(log_coef.sum()) * self.d / self.coef.size
        elbo -= 0.5 * float(prior.sum())
        elbo += self.noise.bound(noise) + self.coef.bound(coef)
        updates = [(self.noise, squares), (self.coef, q.squares)]
        moved = [node.update(0.5 * s) for node, s in updates if node.is_free]
        after = np.concatenate(moved) if moved else x
        return Point(x, after, float(elbo), q, intercept)

    def _intercept(
        self, alpha: float, prior: float
    ) -> tuple[tuple[float, float], float, float]:
        """Moments of the intercept, its squared error, and its part of the ELBO."""
        data = self.form.data
        variance = 1 / (alpha * data.n + prior)
        mean = alpha * data.n * data.mean * variance
        extra = data.n * ((mean - data.mean) ** 2 + variance)
        part = 0.5 * (math.log(prior * variance) + 1 - prior * (mean**2 + variance))
        return (mean, variance), extra, part

    def _coefficients(self, alpha: float, precision: np.ndarray) -> Coefficients:
        if not self.is_shared:
            return self._separate(alpha, precision)
        lam, n_rest = float(precision[0]), self.d - len(self.values)
        total = alpha * self.values + lam
        mean = alpha * self.values / total * self.solution
        if self.is_diagonal:
            precisions = alpha * self.diagonal + lam
            variance = 1 / precisions
            trace, weights = float(self.diagonal @ variance), variance
        else:
            precisions, variance = total, 1 / total
            trace = float(self.values @ variance)
            weights = np.append(variance, n_rest / lam)
        log_det = -float(np.log(precisions).sum())
        if not self.is_diagonal:
            log_det -= n_rest * math.log(lam)
        squares = float(mean @ mean + weights.sum())
        return Coefficients(mean, squares, trace, 0.5 * log_det, variance)

    def _separate(self, alpha: float, precision: np.ndarray) -> Coefficients:
        """Update if every coefficient has its own precision.

        In prior deviations the matrix is at least 1: huge precisions do no harm.
        """
        if self.is_diagonal:
            coef = self._mean(alpha, precision)
            variance = 1 / (alpha * self.diagonal + precision)
            log_det = float(np.log(variance).sum())
            trace = float(self.diagonal @ variance)
        else:
            root = self._root(alpha, precision)
            coef = self._mean(alpha, precision, root)
            variance = (root * root).sum(0)
            log_det = 2 * float(np.log(np.abs(root.diagonal())).sum())
            trace = float((self.d - precision @ variance) / alpha)
        squares, mean = coef**2 + variance, self.vectors.T @ coef
        return Coefficients(mean, squares, trace, 0.5 * log_det, variance)

    def _mean(
        self, alpha: float, precision: np.ndarray, root: np.ndarray | None = None
    ) -> np.ndarray:
        """Mean of q(coef), by a root of its covariance or in the space of the data."""
        if root is not None:
            moment = self.vectors @ (self.values * self.solution)
            return root.T @ (root @ (alpha * moment))
        width = 1 / np.sqrt(precision)
        rows, scale = self._rows(alpha, width), np.sqrt(alpha * self.values)
        lower = _lower(rows @ rows.T, rows.T)
        dual = cho_solve((lower, True), scale * self.solution, check_finite=False)
        return width * (rows.T @ dual)

    def _root(self, alpha: float, precision: np.ndarray) -> np.ndarray:
        """Lower triangular R with covariance R' R."""
        width = 1 / np.sqrt(precision)
        scaled = alpha * width[:, None] * self.form.data.full_gram().numpy() * width
        lower = _lower(scaled, self._rows(alpha, width))
        return solve_triangular(lower, np.diag(width), lower=True, check_finite=False)

    def _rows(self, alpha: float, width: np.ndarray) -> np.ndarray:
        """Root of the precision that the data give to scaled coefficients, (k, d)."""
        return np.sqrt(alpha * self.values)[:, None] * self.vectors.T * width

    def normal(self, point: Point, names: list[str]) -> NormalForm:
        """Return q of the coefficients, the intercept or both, in that order."""
        means, scales = zip(*(self._block(point, name) for name in names), strict=True)
        mean = torch.from_numpy(np.concatenate(means))
        if scales[0].ndim == 1 and len(scales[0]) == len(mean):
            return NormalForm(mean, torch.from_numpy(scales[0]))
        if all(scale.ndim == 1 for scale in scales):
            return NormalForm(mean, torch.from_numpy(np.concatenate(scales)))
        dense = [s if s.ndim == 2 else np.diag(s) for s in scales]
        blocks = [torch.from_numpy(np.ascontiguousarray(s)) for s in dense]
        return NormalForm(mean, torch.block_diag(*blocks))

    def _block(self, point: Point, name: str) -> tuple[np.ndarray, np.ndarray]:
        if name == "intercept":
            middle, variance = point.intercept or (0.0, 1.0)
            return np.array([middle]), np.array([math.sqrt(variance)])
        noise, coef = self.split(point.x)
        alpha, precision = math.exp(noise[0]), np.exp(coef)
        if self.is_shared:
            mean = self.vectors @ point.coef.solution
            root = None if self.is_diagonal else self._shared_root(point, precision[0])
        else:
            root = None if self.is_diagonal else self._root(alpha, precision)
            mean = self._mean(alpha, precision, root)
        if self.is_diagonal:
            return mean, np.sqrt(point.coef.variance)
        # R' R = L L' with L lower triangular.
        upper = qr(root, mode="r", check_finite=False)[0][: self.d]
        return mean, (upper * np.sign(upper.diagonal())[:, None]).T

    def _shared_root(self, point: Point, precision: float) -> np.ndarray:
        """Symmetric root of the covariance."""
        rest = 1 / math.sqrt(precision)
        inside = (self.vectors * (np.sqrt(point.coef.variance) - rest)) @ self.vectors.T
        inside[np.diag_indices(self.d)] += rest
        return inside

    def gammas(self, point: Point) -> dict[str, GammaForm]:
        """Distributions of the precisions with hyperpriors, by block."""
        found, parts = {}, self.split(point.x)
        nodes = {"noise_precision": self.noise, "coef_precision": self.coef}
        for (name, node), x in zip(nodes.items(), parts, strict=True):
            if node.gamma is not None:
                rate = torch.from_numpy(np.asarray(node.rates(x)))
                found[name] = GammaForm(torch.full_like(rate, node.shape), rate)
        return found

    def learned_noise(self, point: Point) -> torch.Tensor:
        """Log of the noise scale, (1,)."""
        return torch.from_numpy(-0.5 * self.split(point.x)[0])


def _lower(square: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Lower triangular factor of ``rows' rows + 1``; `square` is ``rows' rows``."""
    square[np.diag_indices(len(square))] += 1.0
    try:
        return cholesky(square, lower=True, check_finite=False)
    except np.linalg.LinAlgError:  # 1 is lost beside a noise of almost nothing
        stacked = np.vstack([rows, np.eye(len(square))])
        upper = qr(stacked, mode="r", check_finite=False)[0][: len(square)]
        return (upper * np.sign(upper.diagonal())[:, None]).T
