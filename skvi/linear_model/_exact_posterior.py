"""The exact posterior of a linear regression with normal noise and coefficients.

Given the precisions it is normal, in closed form; the one or two that are unknown are
integrated over nodes.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch

from skvi.base import NormalForm, Units
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model._precision_mixture import Directions, PrecisionMixture
from skvi.predictors import LinearPredictor
from skvi.targets._precision_nodes import (
    PrecisionNodes,
    find_nodes,
    has_nodes,
    merge_nodes,
)
from skvi.targets._precisions import ConjugateForm
from skvi.utils._device import Movable
from skvi.utils._random import rand, randn

__all__ = ["ConjugatePosterior"]

# Factor by which the nodes that draws are taken from are denser.
FINENESS = 4.0
# Components of a smaller probability are left out.
NEGLIGIBLE = 1e-18
# Fraction of a squared length outside of the directions of the data that is rounding.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class ConjugatePosterior(Movable):
    """Exact posterior of coefficients, intercept and precisions of a conjugate model.

    A mixture, over the precisions that have hyperpriors, of normals of coefficients and
    intercept, in the units of the fit.
    """

    form: ConjugateForm

    @classmethod
    def of(cls, form: ConjugateForm | None) -> Self | None:
        """Posterior of a conjugate model; None without a form or unknown precisions.

        None, too, if coefficients have no variance: under a vague precision, if the
        data inform at most two directions, and say nothing of the others.
        """
        if form is None or not has_nodes(form) or _has_no_variance(form):
            return None
        return cls(replace(form, data=replace(form.data, gram=None)))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the nodes, which are found again."""
        state = super().__getstate__()
        return {k: v for k, v in state.items() if k not in ("nodes", "few")}

    @cached_property
    def nodes(self) -> PrecisionNodes:
        """Nodes for the coefficients."""
        return find_nodes(self.form)

    @cached_property
    def few(self) -> PrecisionNodes:
        """Nodes for predictions: no more than they need."""
        return merge_nodes(self.form, self.nodes)

    @property
    def noise_variance(self) -> float:
        """Mean of the noise variance; infinite for fewer than three rows."""
        gamma = self.form.noise.hyperprior
        # With two rows and a vague hyperprior it is as good as infinite.
        if gamma is not None and gamma.shape + 0.5 * self.form.data.n < 1.01:
            return math.inf
        return float((self.nodes.weights * np.exp(-self.nodes.noise)).sum())

    @property
    def noise_scale(self) -> float:
        """Geometric mean of the scale of the noise, which no far node dominates."""
        return math.exp(-0.5 * float((self.nodes.weights * self.nodes.noise).sum()))

    def normal(self) -> NormalForm:
        """Normal of coefficients and intercept with the same mean and covariance."""
        (means, variances, outside), w = self._given(self.nodes)
        mean, basis = w @ means, self._basis()
        apart = (means - mean) * w[:, None].sqrt()
        covariance = apart.T @ apart + torch.diag(w @ variances)
        root = torch.linalg.cholesky(covariance).T @ basis.T
        if self._has_outside:
            rest = basis.new_ones(len(basis)).diag() - basis @ basis.T
            rest = rest[: self.form.data.n_features]
            root = torch.cat([root, (w @ outside).sqrt() * rest])
        upper = torch.linalg.qr(root, mode="r").R
        return NormalForm(basis @ mean, (upper * upper.diagonal().sign()[:, None]).T)

    def functions(
        self, predictor: LinearPredictor, rows: Any, units: Units
    ) -> Directions:
        """Functions at rows of features, in units of y."""
        along = predictor.project(rows, self._basis())
        square = torch.zeros_like(along[:, 0])
        if self._has_outside:
            ones = along.new_ones(predictor.layout.size)
            ones[self.form.data.n_features :] = 0.0
            normal = NormalForm(torch.zeros_like(ones), ones)
            square = predictor.moments(rows, normal)[1]
        return self._directions(along, square, torch.ones_like(square), units)

    def coefficients(self, units: Units) -> Directions:
        """Coefficients, after the intercept if there is one, in units of y and X."""
        basis = self._basis()
        rows = basis.new_ones(len(basis)).diag()
        scale = torch.from_numpy(np.asarray(units.x_scale, dtype=np.float64))
        rows[:, : self.form.data.n_features] /= scale
        has_intercept = self.form.intercept is not None
        if has_intercept:
            rows = rows.roll(1, 0)  # the last one is the intercept's
        if units.x_mean is not None:
            rows[0, :-1] -= torch.from_numpy(units.x_mean / units.x_scale)
        square = rows[:, : self.form.data.n_features].square().sum(1)
        shift = torch.zeros_like(square)
        shift[0] = float(has_intercept)
        return self._directions(rows @ basis, square, shift, units)

    def _directions(
        self,
        along: torch.Tensor,
        square: torch.Tensor,
        is_shifted: torch.Tensor,
        units: Units,
    ) -> Directions:
        """In units of y; `square` is the squared length but for the intercept."""
        scale = float(units.y_scale)
        rest = square - along[:, : len(self.form.data.values)].square().sum(1)
        outside = torch.where(rest > ROUNDING * square, rest, torch.zeros_like(rest))
        shift = is_shifted * float(units.y_mean)
        return Directions(scale * along, scale**2 * outside, shift)

    def mixture(
        self, directions: Directions, units: Units | None = None
    ) -> PrecisionMixture:
        """Distributions of linear combinations, or of new targets.

        `units` are those of new targets, which have noise; None for combinations.
        """
        nodes = self.nodes if units is None else self.few
        given, w = self._given(nodes)
        noise = torch.zeros_like(w)
        if units is not None:
            noise = torch.from_numpy(np.exp(-nodes.noise.ravel())) * units.y_scale**2
        kept = w > NEGLIGIBLE
        parts = (part[kept] for part in (*given, noise))
        log_w = (w[kept] / w[kept].sum()).log()
        return PrecisionMixture(GaussianLikelihood(), None, log_w, directions, *parts)

    def draw(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Draw coefficients, intercept and logs of unknown precisions, (n_draws, P).

        They are in the order of the layout of the fitted posterior.
        """
        form, basis = self.form, self._basis()
        t, s = _draw_precisions(find_nodes(form, FINENESS), n_draws, generator)
        means, variances, outside = _normals_given(form, t, s)
        theta = (means + variances.sqrt() * randn(generator, *means.shape)) @ basis.T
        if self._has_outside:
            d = form.data.n_features
            rest = randn(generator, n_draws, d)
            rest -= rest @ basis[:d] @ basis[:d].T
            theta[:, :d] += outside.sqrt()[:, None] * rest
        pairs = ((form.noise, t), (form.coef, s))
        logs = [x[:, None] for node, x in pairs if node.hyperprior is not None]
        return torch.cat([theta, *logs], 1)

    @property
    def _has_outside(self) -> bool:
        """Whether there are directions without data."""
        return len(self.form.data.values) < self.form.data.n_features

    def _basis(self) -> torch.Tensor:
        """Orthonormal directions of the data, and that of the intercept, (P, k)."""
        vectors = self.form.data.vectors
        if self.form.intercept is None:
            return vectors
        return torch.block_diag(vectors, vectors.new_ones(1, 1))

    def _given(
        self, nodes: PrecisionNodes
    ) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Normals at the nodes, and the probabilities of these."""
        t, s, w = (
            torch.from_numpy(x.flatten())
            for x in (nodes.noise, nodes.coef, nodes.weights)
        )
        return _normals_given(self.form, t, s), w


def _has_no_variance(form: ConjugateForm) -> bool:
    """Whether a coefficient without data has a Student-t with two degrees or fewer."""
    gamma, n_known = form.coef.hyperprior, len(form.data.values)
    has_outside = n_known < form.data.n_features
    return has_outside and gamma is not None and gamma.shape + 0.5 * n_known < 1.01


def _normals_given(
    form: ConjugateForm, t: torch.Tensor, s: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Means and variances, (m, k), and variances outside, at log precisions, (m,)."""
    alpha, data = t.exp(), form.data
    ratio = torch.exp((s - t).clamp(max=700.0))[:, None]
    kept = data.values / (data.values + ratio)
    means, variances = kept * data.solution, kept / data.values / alpha[:, None]
    if form.intercept is not None:
        total = alpha * data.n + form.intercept
        middle = alpha * data.n * data.mean / total
        means = torch.cat([means, middle[:, None]], 1)
        variances = torch.cat([variances, 1 / total[:, None]], 1)
    return means, variances, torch.exp(-s)


def _draw_precisions(
    nodes: PrecisionNodes, n_draws: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log precisions: a node, and a uniform place in its cell."""
    w = torch.from_numpy(nodes.weights.flatten())
    index = torch.multinomial(w, n_draws, replacement=True, generator=generator)
    places = [rand(generator, n_draws) - 0.5 for _ in range(2)]
    found = []
    for x in (nodes.noise, nodes.coef):
        value = torch.from_numpy(x.flatten())[index]
        for axis, place in enumerate(places):
            if x.shape[axis] > 1:
                slope = np.gradient(x, axis=axis).flatten()
                value = value + place * torch.from_numpy(slope)[index]
        found.append(value)
    return found[0], found[1]
