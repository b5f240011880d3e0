"""Natural gradient steps for normal posteriors of linear models, for several at once.

f_i is normal under q, so that every E_q[loss_i] is a one-dimensional integral. With its
derivatives in f_i, one step sets

    precision <- precision + rho (A' diag(E loss'') A + 2 dD/dcov) / c,      (1)
    mean      <- mean - rho (A' diag(E loss'') A + d2D/dmean2)^-1 gradient,  (2)

which for KL is the natural gradient (c = 1). Problems that differ in their prior, or in
a number of their likelihood, take their steps together, since most of the time of a
small one is that of calls. Each accelerates and shortens its own steps.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch

from skvi.base import NormalForm
from skvi.divergences import Divergence
from skvi.divergences._linalg import precision_of
from skvi.solvers._mode import (
    DENSE_LIMIT,
    add,
    clip_eigenvalues,
    convex_part,
    factorize,
    solve_newton,
)
from skvi.targets import SupervisedTarget
from skvi.targets._row_terms import stacked_terms

__all__ = ["Descent"]

# History of the acceleration by number of parameters: entries hold full precisions.
DEPTHS = ((1100, 5), (4096, 2))
# Least fraction of the precision's step where full ones overshoot, and its growth.
LEAST_SHARE, GROWTH = 0.3, 1.1
# Shortest step, as a fraction of the plain one.
SHORTEST = 1e-3


class _Terms(NamedTuple):
    """What the divergence adds to value, gradient and curvatures, (K, ...)."""

    value: torch.Tensor
    gradient: torch.Tensor
    curvature: torch.Tensor
    by_cov: torch.Tensor
    entropy_weight: torch.Tensor


class _Point(NamedTuple):
    """Normals and the values there, (K, ...)."""

    mean: torch.Tensor
    precision: torch.Tensor
    scale: torch.Tensor
    value: torch.Tensor


class _Divergence:
    """The divergence from K priors; KL from normal ones in a closed form for all."""

    def __init__(
        self, targets: Sequence[SupervisedTarget], divergence: Divergence
    ) -> None:
        self.priors, self.divergence = [t.prior for t in targets], divergence
        normals = [prior.as_normal() for prior in self.priors]
        self.is_normal = all(normal is not None for normal in normals)
        self.is_closed = self.is_normal and divergence.kl_weight is not None
        if self.is_closed:
            self.weight = float(cast(float, divergence.kl_weight))
            known = [cast(NormalForm, normal) for normal in normals]
            self.means = torch.stack([n.mean for n in known])
            self.precisions = torch.stack([precision_of(n) for n in known])
            self.half_log_dets = torch.stack([n.half_log_det for n in known])

    def terms(
        self, index: torch.Tensor, normal: NormalForm, precision: torch.Tensor
    ) -> _Terms:
        if not self.is_closed:
            return self._each(index, normal, precision)
        w, exact = self.weight, self.precisions[index]
        away = normal.mean - self.means[index]
        if exact.ndim == 2:
            gradient = exact * away
            trace = (exact * normal.variance).sum(1)
        else:
            gradient = (exact @ away[:, :, None])[:, :, 0]
            full = normal.covariance()
            trace = (exact * full).sum((1, 2))
        both = trace + (gradient * away).sum(1) - normal.size
        value = self.half_log_dets[index] - normal.half_log_det + 0.5 * both
        by_cov = w * _add(-precision, exact)
        weight = torch.full_like(value, w)
        return _Terms(w * value, w * gradient, w * exact, by_cov, weight)

    def _each(
        self, index: torch.Tensor, normal: NormalForm, precision: torch.Tensor
    ) -> _Terms:
        """One divergence after the other."""
        parts = zip(index.tolist(), normal.mean, normal.scale, precision, strict=True)
        found = [
            self.divergence.terms(NormalForm(mean, scale), self.priors[k], own)
            for k, mean, scale, own in parts
        ]
        names = ("value", "gradient", "curvature", "precision_gradient")
        stacked = [torch.stack([getattr(f, name) for f in found]) for name in names]
        if normal.is_diagonal and stacked[3].ndim == 3:
            stacked[3] = stacked[3].diagonal(dim1=1, dim2=2)
        like = stacked[0]
        weights = [torch.as_tensor(f.entropy_weight).to(like) for f in found]
        value, gradient, curvature, by_cov = stacked
        return _Terms(value, gradient, curvature, by_cov, torch.stack(weights))


class Descent:
    """K descents of ``E_q[loss] + D(q || prior)``, one for each target.

    The targets have the same rows and predictor. Attributes have a first axis of length
    K: `mean`, `precision` and `scale`, diagonal or full, `value`, what is minimized,
    and `gap`, the nats by which it may still decrease, by a quadratic model.
    """

    def __init__(
        self,
        targets: Sequence[SupervisedTarget],
        divergence: Divergence,
        mean: torch.Tensor,
        precision: torch.Tensor,
    ) -> None:
        self.targets, size = targets, mean.shape[1]
        self.divergence = _Divergence(targets, divergence)
        self.is_diagonal = precision.ndim == 2
        self.is_dense = not self.is_diagonal or size <= DENSE_LIMIT
        known = next((d for limit, d in DEPTHS if size <= limit), 0)
        self.depth = 5 if self.is_diagonal else known
        #: Accepted increase of the value: what the quadrature cannot resolve.
        self.slack = 0.0
        self.point = _Point(
            mean, precision, precision, torch.full_like(mean[:, 0], math.inf)
        )
        self.move = torch.zeros_like(precision)
        self.step = torch.zeros_like(mean)
        self.gap, self.has_failed = self.value.clone(), self.value > 0
        #: Fraction of the plain step to try, 0 for the accelerated one; and that of the
        #: precision's part.
        self.rho, self.share = torch.ones_like(self.gap), torch.ones_like(self.gap)
        self.residual = mean.new_zeros(len(mean), size + precision[0].numel())
        self.history: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self.curvature = self.slope = mean
        everything = torch.arange(len(mean), device=mean.device)
        self._try(everything, mean, precision)
        self.has_failed = ~self.value.isfinite()
        self.rho.fill_(1.0)

    @property
    def mean(self) -> torch.Tensor:
        """Means, (K, P)."""
        return self.point.mean

    @property
    def precision(self) -> torch.Tensor:
        """Precisions, (K, P) or (K, P, P)."""
        return self.point.precision

    @property
    def value(self) -> torch.Tensor:
        """What is minimized, (K,)."""
        return self.point.value

    def normal(self, k: int) -> NormalForm:
        """The k-th normal."""
        return NormalForm(self.mean[k], self.point.scale[k])

    def run(self, tol: float, max_iter: int) -> "Descent":
        """Take steps until all are within a tolerance in nats, or fail."""
        for _ in range(max_iter):
            index = (~self.has_failed & (self.gap >= tol)).nonzero()[:, 0]
            if not len(index):
                break
            self.advance(index)
        return self

    def advance(self, index: torch.Tensor) -> None:
        """One trial of each of some of the problems."""
        rho = self.rho[index]
        mean = self.mean[index] + rho[:, None] * self.step[index]
        size = _like(rho * self.share[index], self.move)
        precision = self.precision[index] + size * self.move[index]
        if bool((rho == 0).any()):
            fast = rho == 0
            point = self._accelerated(index[fast])
            mean[fast] = point[:, : mean.shape[1]]
            precision[fast] = point[:, mean.shape[1] :].unflatten(
                1, precision.shape[1:]
            )
        better = self._try(index, mean, precision)
        plain = better & (rho > 0)
        share = self.share[index] * torch.where(rho == 1, GROWTH, rho)
        self.share[index[plain]] = share[plain].clamp(LEAST_SHARE, 1.0)
        worse, before = index[~better], rho[~better]
        self.rho[worse] = torch.where(before == 0, 1.0, 0.5 * before)
        self.has_failed[worse] |= self.rho[worse] < SHORTEST
        failed = worse[before == 0]
        for *_, valid in self.history[: len(self.history) // 2]:
            valid[failed] = False

    def _try(
        self, index: torch.Tensor, mean: torch.Tensor, precision: torch.Tensor
    ) -> torch.Tensor:
        """Move where the value does not increase; returns where, of the given ones."""
        scale, is_positive = _scales(precision)
        is_positive &= mean.isfinite().all(1)
        at = index[is_positive]
        better = torch.zeros_like(is_positive)
        if not len(at):
            return better
        mean, scale, precision = (
            mean[is_positive],
            scale[is_positive],
            precision[is_positive],
        )
        normal = NormalForm(mean, scale)
        terms = self.divergence.terms(at, normal, precision)
        losses, slope, curvature = stacked_terms([self.targets[k] for k in at], normal)
        value, last_point = losses + terms.value, self.point
        last = last_point.value[at]
        good = value <= last + self.slack + 1e-13 * last.abs()
        good &= value.isfinite()
        better[is_positive] = good
        if bool(good.any()):
            if not bool(good.all()):
                at, mean, scale, precision = (
                    at[good],
                    mean[good],
                    scale[good],
                    precision[good],
                )
                slope, curvature, value = slope[good], curvature[good], value[good]
                terms = _Terms(*(part[good] for part in terms))
            self._remember(at)
            new = _Point(mean, precision, scale, value)
            # At once: Ctrl-C may come between any two statements.
            self.point = (
                new
                if len(at) == len(last_point.value)
                else (
                    _Point(
                        *(
                            a.index_copy(0, at, b)
                            for a, b in zip(last_point, new, strict=True)
                        )
                    )
                )
            )
            self._direct(at, terms, slope, curvature)
        return better

    def _direct(
        self,
        at: torch.Tensor,
        terms: _Terms,
        slope: torch.Tensor,
        curvature: torch.Tensor,
    ) -> None:
        """Plain steps and gaps at points where the derivatives are known."""
        target = self.targets[0]
        gradient = target.predictor.pull_back_draws(target.X, slope) + terms.gradient
        move, step = self._solved(terms, curvature, gradient)
        scale = self.point.scale[at]
        if self.is_diagonal:
            white = move * scale.square()
            first = step / scale
            squared = (white.square() * _like(terms.entropy_weight, white)).sum(1)
        else:
            white = scale.mT @ move @ scale
            first = torch.linalg.solve_triangular(scale, step[:, :, None], upper=False)[
                :, :, 0
            ]
            squared = terms.entropy_weight * white.square().sum((1, 2))
        self.step[at], self.move[at] = step, move
        self.gap[at] = 0.5 * (0.5 * squared - (gradient * step).sum(1))
        self.residual[at] = torch.cat([first, white.flatten(1) * math.sqrt(0.5)], 1)
        self.rho[at] = float(not (self.depth and self.history))

    def _solved(
        self, terms: _Terms, curvature: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Steps (1) of the precision and (2) of the mean."""
        target, predictor = self.targets[0], self.targets[0].predictor
        weight = _like(terms.entropy_weight, terms.by_cov)
        if not self.is_dense:
            diagonal = torch.stack(
                [predictor.gram_diagonal(target.X, h) for h in curvature]
            )
            steps = [
                solve_newton(target, convex_part(target, h), c, g, dense=False)
                for h, c, g in zip(curvature, terms.curvature, gradient, strict=True)
            ]
            return (diagonal + terms.by_cov) / weight, -torch.stack(steps)
        gram = torch.stack([predictor.gram(target.X, h) for h in curvature])
        convex = [convex_part(target, h) for h in curvature]
        hessian = _add(gram, terms.curvature)
        for k, (h, own) in enumerate(zip(curvature, convex, strict=True)):
            if own is not h:
                hessian[k] = add(predictor.gram(target.X, own), terms.curvature[k])
        factor, info = torch.linalg.cholesky_ex(hessian)
        for k in info.nonzero()[:, 0].tolist():
            factor[k] = self._factor(hessian[k], curvature[k], terms.curvature[k])
        step = -torch.cholesky_solve(gradient[:, :, None], factor)[:, :, 0]
        if self.is_diagonal:
            gram = gram.diagonal(dim1=1, dim2=2)
        return _add(gram, terms.by_cov) / weight, step

    def _factor(
        self, hessian: torch.Tensor, curvature: torch.Tensor, rest: torch.Tensor
    ) -> torch.Tensor:
        try:
            return factorize(hessian)
        except ValueError:
            if curvature.ndim == 1:
                raise
        # Errors of integrals over many classes can destroy their convexity.
        target = self.targets[0]
        gram = target.predictor.gram(target.X, clip_eigenvalues(curvature))
        return factorize(add(gram, rest))

    def _image(self, at: torch.Tensor) -> torch.Tensor:
        """Where plain steps lead to."""
        size = _like(self.share[at], self.move)
        precision = self.precision[at] + size * self.move[at]
        return torch.cat([self.mean[at] + self.step[at], precision.flatten(1)], 1)

    def _remember(self, at: torch.Tensor) -> None:
        """Keep the steps of points that are left."""
        if not self.depth or not bool(self.step.any()):
            return
        valid = torch.zeros_like(self.has_failed)
        valid[at] = True
        image = self.residual.new_zeros(self.residual.shape)
        image[at] = self._image(at)
        entry = image, self.residual.clone(), valid
        self.history = (
            [*self.history[1 - self.depth :], entry] if self.depth > 1 else [entry]
        )

    def _accelerated(self, at: torch.Tensor) -> torch.Tensor:
        """Combine the last steps: residuals cancel (Walker and Ni 2011)."""
        image, last = self._image(at), self.residual[at]
        images, residuals, valid = zip(*self.history, strict=True)
        known = torch.stack(valid, 1)[at].to(last.dtype)
        apart = (last[:, None] - torch.stack(residuals, 1)[at]) * known[:, :, None]
        gram = apart @ apart.mT
        gram.diagonal(dim1=1, dim2=2).mul_(1 + 1e-13).add_(1 - known)
        factor, info = torch.linalg.cholesky_ex(gram)
        lead = apart @ last[:, :, None]
        weights = torch.cholesky_solve(lead, factor)
        weights = torch.where((info == 0)[:, None, None], weights, 0.0)
        away = (torch.stack(images, 1)[at] - image[:, None]) * known[:, :, None]
        return image + (weights.mT @ away)[:, 0]


def _scales(precision: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Deviations, or lower factors of the inverses; and whether they exist, (K,)."""
    if precision.ndim == 2:
        return precision.rsqrt(), (precision > 0).all(1)
    # The factor of a matrix in reverse order gives a lower factor of the inverse.
    factor, info = torch.linalg.cholesky_ex(precision.flip((1, 2)))
    upper = factor.flip((1, 2)).mT
    identity = torch.eye(precision.shape[1], dtype=factor.dtype, device=factor.device)
    scale = torch.linalg.solve_triangular(upper, identity.expand_as(upper), upper=False)
    return scale, (info == 0) & scale.isfinite().all((1, 2))


def _add(matrices: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Add to matrices, or diagonals, (K, ...), others that may be diagonals."""
    if matrices.ndim == others.ndim:
        return matrices + others
    out = matrices.clone()
    out.diagonal(dim1=1, dim2=2).add_(others)
    return out


def _like(values: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Numbers of the problems, with the axes of their matrices or vectors."""
    return values.reshape(*values.shape, *[1] * (matrices.ndim - values.ndim))
