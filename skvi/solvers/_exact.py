"""Exact posteriors of linear regressions: quadrature over unknown precisions."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from scipy.optimize import minimize_scalar

from skvi.base import Draw, Layout, NormalForm
from skvi.divergences import Divergence
from skvi.objectives.base import Objective
from skvi.posteriors import FullRankNormal, Posterior
from skvi.posteriors._mixture import beside
from skvi.posteriors._whitened import Unsolved
from skvi.solvers._solution import FLOOR_MESSAGE, Solution, State, ending_of
from skvi.solvers.base import Problem, Solver, SolverOptions
from skvi.targets import Target
from skvi.targets._precisions import (
    ConjugateForm,
    Precision,
    PrecisionNodes,
    find_nodes,
    has_nodes,
)
from skvi.utils._tensors import CPU, LOG_2PI, rand, randn

# Density of the nodes for the evidence, and for draws, which choose among them.
FINE, FINEST = 2.0, 4.0
# Degrees of freedom, less two, of a Student-t that is given a variance.
LEAST_SHAPE = 1.01
# Beyond the data, in logs of the ratio of precisions, nothing changes.
FAR = 10.0
# A learned precision may exceed its initial value by this factor; beyond, some rows are
# fitted exactly.
LEARNED_RANGE = math.log(1e12)
CACHED = "nodes", "log_evidence"


def missing_for_exact(
    target: Target, objective: Objective, divergence: Divergence
) -> str:
    """Say why the posterior has no exact form over its precisions; "" if it has."""
    is_elbo = objective.kind == "expectation" and divergence.kl_weight == 1
    if objective.needs_draws or not is_elbo:
        return "it needs objective='elbo' without draws and divergence='kl'"
    form = target.conjugate_form()
    if form is None:
        return "it needs normal noise, log loss and normal coefficients"
    if not has_nodes(form):
        return (
            "it integrates over precisions with hyperpriors, one of the noise, one "
            "that all coefficients share, or both, and needs a feature that varies"
        )
    free, n_known = form.coef.hyperprior is not None, len(form.data.values)
    has_outside = n_known < form.data.n_features
    if has_outside and free and form.coef.exponent + 0.5 * n_known < LEAST_SHAPE:
        return (
            "under a vague hyperprior, coefficients of which the data say nothing have "
            "no variance"
        )
    return ""


class ExactSolver(Solver):
    """Quadrature over the unknown precisions of a conjugate linear regression.

    After one decomposition of the features a node costs O(d). The value is minus the
    log evidence: the posterior is exact, up to rounding and the error of the
    quadrature, which is about 1e-8.

    Examples
    --------
    >>> from skvi.solvers._choice import SOLVERS
    >>> SOLVERS["exact"].name
    'exact'
    """

    name = "exact"

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks; see `Solver.missing`."""
        if not isinstance(problem.posterior, Unsolved):
            return "it needs posterior='exact'"
        given = problem.target, problem.objective, problem.divergence
        return missing_for_exact(*given)

    @torch.no_grad()
    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Integrate: `value` is minus the log evidence, in nats; see `Solver`."""
        target, message = problem.target, ""
        form = cast(ConjugateForm, target.conjugate_form()).to(CPU)
        form = replace(form, data=replace(form.data, gram=None))
        if form.noise.is_learned:
            log_noise, message = _learn_noise(form)
            form = _at_noise(form, log_noise)
            target = target.at(target.hyper.new_tensor([-0.5 * log_noise]))
        posterior = MixtureOverPrecisions(target.layout, form)
        state = State(posterior, target)
        value = -posterior.log_evidence
        with torch.inference_mode(False):  # callbacks may do anything
            stopped = options.progress(value, lambda: state)
        return Solution(
            solver=self.name,
            state=state,
            value=value,
            history=[value],
            n_iter=1,
            ending=ending_of(not message, stopped),
            message=message,
            is_exact=True,
        )


def _at_noise(form: ConjugateForm, log_noise: float) -> ConjugateForm:
    value = form.noise.value.new_tensor([math.exp(log_noise)])
    return replace(form, noise=Precision(value))


def _learn_noise(form: ConjugateForm) -> tuple[float, str]:
    """Log precision of the noise that maximizes the evidence, and a message."""

    def loss(t: float) -> float:
        return -find_nodes(_at_noise(form, t)).log_evidence

    first = float(form.noise.value.log())
    log_e = form.data.values.log().numpy()
    likely = form.noise_at_ratio(np.arange(log_e.min() - FAR, log_e.max() + FAR))
    high = first + LEARNED_RANGE
    grid = np.append(np.arange(min(likely.min(), first) - 2.0, high), high)
    best = int(np.argmin([loss(t) for t in grid]))
    if best == len(grid) - 1:
        return float(high), FLOOR_MESSAGE
    near = grid[max(best - 1, 0)], grid[best + 1]
    found = minimize_scalar(
        loss, bounds=near, method="bounded", options={"xatol": 1e-8}
    )
    return float(found.x), ""


class MixtureOverPrecisions(Posterior):
    """Exact posterior of coefficients, intercept and precisions of a conjugate model.

    A mixture, over the precisions that have hyperpriors, of normals of coefficients and
    intercept, in the units of the fit.
    """

    def __init__(self, layout: Layout, form: ConjugateForm) -> None:
        self.layout, self.form = layout, form
        self.params = torch.zeros(0, dtype=torch.float64, device=CPU)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the nodes, which are found again."""
        state = super().__getstate__()
        return {k: v for k, v in state.items() if k not in CACHED}

    @cached_property
    def nodes(self) -> PrecisionNodes:
        """Nodes of the precisions."""
        return find_nodes(self.form)

    @cached_property
    def log_evidence(self) -> float:
        """Log of the integral over coefficients and precisions, in nats."""
        return find_nodes(self.form, FINE, self.nodes).log_evidence

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log density, (S,): the log joint density less the log evidence."""
        form, coef = self.form, theta[:, self.layout["coef"].slice]
        intercept = None
        total = theta.new_full((len(theta),), form.constant - self.log_evidence)
        if form.intercept is not None:
            intercept = theta[:, self.layout["intercept"].slice][:, 0]
            prior = form.intercept
            total -= 0.5 * (prior * intercept.square() - math.log(prior) + LOG_2PI)
        t = form.noise.value.log()
        if form.noise.hyperprior is not None:
            t = theta[:, self.layout["noise_precision"].slice][:, 0]
            total += form.noise.hyperprior.log_density(t)
        squares = form.data.sum_of_squares(coef, intercept)
        total += 0.5 * (form.data.n * (t - LOG_2PI) - t.exp() * squares)
        return total + form.coef.log_prob(coef)

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw coefficients, intercept and the log of an unknown noise precision."""
        form, basis = self.form, self.basis()
        t, s = _draw_precisions(
            find_nodes(form, FINEST, self.nodes), n_draws, generator
        )
        means, variances, outside = _normals_given(form, t, s)
        theta = (means + variances.sqrt() * randn(generator, *means.shape)) @ basis.T
        if self.has_outside:
            d = form.data.n_features
            rest = randn(generator, n_draws, d)
            rest -= rest @ basis[:d] @ basis[:d].T
            theta[:, :d] += outside.sqrt()[:, None] * rest
        if form.noise.hyperprior is not None:
            theta = torch.cat([theta, t[:, None]], 1)
        return Draw(theta, self.log_prob(theta))

    def normals(
        self,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Means and variances along `basis`, variances outside, weights, by node."""
        nodes = self.nodes
        t, s, w = (
            torch.from_numpy(x.flatten())
            for x in (nodes.noise, nodes.coef, nodes.weights)
        )
        return *_normals_given(self.form, t, s), w

    @property
    def has_outside(self) -> bool:
        """Whether there are directions without data."""
        return len(self.form.data.values) < self.form.data.n_features

    def basis(self) -> torch.Tensor:
        """Orthonormal directions of the data, and that of the intercept, (P, k)."""
        vectors = self.form.data.vectors
        if self.form.intercept is None:
            return vectors
        return torch.block_diag(vectors, vectors.new_ones(1, 1))

    def moments(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mean and root of the covariance along `basis`, and the variance outside.

        The root R is (k, k), and the covariance R'R.
        """
        means, variances, outside, w = self.normals()
        mean = w @ means
        apart = (means - mean) * w[:, None].sqrt()
        roots = torch.cat([apart, torch.diag((w @ variances).sqrt())])
        return mean, torch.linalg.qr(roots, mode="r").R, w @ outside

    def matching_normal(self) -> NormalForm:
        """Normal of coefficients and intercept with the same mean and covariance."""
        mean, root, outside = self.moments()
        basis = self.basis()
        root = root @ basis.T
        if self.has_outside:
            rest = basis.new_ones(len(basis)).diag() - basis @ basis.T
            rest = rest[: self.form.data.n_features]
            root = torch.cat([root, outside.sqrt() * rest])
        upper = torch.linalg.qr(root, mode="r").R
        return NormalForm(basis @ mean, (upper * upper.diagonal().sign()[:, None]).T)

    @property
    def noise_variance(self) -> float:
        """Mean of the noise variance; infinite for one or two rows, by its prior."""
        noise = self.form.noise
        # With two rows and a vague hyperprior it is as good as infinite.
        is_free = noise.hyperprior is not None
        if is_free and noise.exponent + 0.5 * self.form.data.n < LEAST_SHAPE:
            return math.inf
        return self.mean_of(lambda t: np.exp(-t), "noise")

    def mean_of(self, function: Callable, name: str) -> float:
        """Posterior mean of a function of the log precision "noise" or "coef"."""
        return float((self.nodes.weights * function(getattr(self.nodes, name))).sum())

    def as_prior(self) -> Posterior:
        """The normal with the same moments, of the log of a noise precision, too."""
        normal = self.matching_normal()
        if self.form.noise.hyperprior is not None:
            mean = self.mean_of(lambda t: t, "noise")
            variance = self.mean_of(lambda t: (t - mean) ** 2, "noise")
            normal = beside(normal, mean, math.sqrt(variance))
        return FullRankNormal().build(self.layout).near(normal)

    def real_part(self) -> Posterior:
        """Normal of coefficients and intercept with the same moments."""
        names = [n for n in self.layout if n not in self.layout.positive]
        posterior = FullRankNormal().build(self.layout.only(*names))
        return posterior.near(self.matching_normal())


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
