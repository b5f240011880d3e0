"""The ELBO of a normal from draws that stay the same: a deterministic objective."""

import math
from dataclasses import replace
from functools import partial
from typing import cast

import torch

from skvi.base import NormalForm
from skvi.divergences import Divergence, KLDivergence
from skvi.expectations._rules import quasi_random_rule
from skvi.solvers._mode import LBFGS
from skvi.solvers._solution import INTERRUPTED, Solution, State, ending_of
from skvi.solvers.base import Problem, Solver, SolverOptions
from skvi.targets import Target
from skvi.utils._tensors import randn

# Draws of the first round, at least so many for each parameter; of the last; and how
# many times as many each round has.
FIRST, PER_PARAMETER, LAST, GROWTH = 1024, 8, 2**15, 4
# Draws of the final value, and elements of them at most.
FINAL, FINAL_ELEMENTS = 2**14, 2**24
# Dimensions of evenly spread draws of independent coordinates, and draws evaluated at
# once.
MAX_EVEN, AT_ONCE = 30, 1024
STANDARD = KLDivergence()
# Steps between two whitenings, and nats by which fixed draws may promise more than new.
STEPS, TOO_GOOD = 100, 0.01


class FixedDrawsPoint:
    """Minus the ELBO of a normal, from its draws at noise (S, P).

    Or the loss plus the closed form of a divergence that is not standard.
    """

    def __init__(
        self,
        target: Target,
        normal: NormalForm,
        eps: torch.Tensor,
        divergence: Divergence = STANDARD,
    ) -> None:
        self.normal, self.eps, self.target = normal, eps, target
        self.divergence = divergence
        theta = normal.transform(eps).split(AT_ONCE)
        parts = zip(*map(target.log_joint_and_gradient, theta), strict=True)
        self.values, self.slopes = (torch.cat(part) for part in parts)
        if divergence.kl_weight != 1:  # which replaces the prior
            draws, prior = torch.cat(theta), target.reference
            self.values = self.values - prior.log_prob(draws)
            self.slopes = self.slopes - prior.log_prob_gradient(draws)
        ok = bool(self.values.isfinite().all()) and bool(self.slopes.isfinite().all())
        value = -float(self.values.mean()) + float(self.regularizer(normal))
        self.value = value if ok else math.inf

    def regularizer(self, normal: NormalForm) -> torch.Tensor:
        """The divergence of a normal from the prior, or minus its entropy."""
        if self.divergence.kl_weight == 1:
            return -normal.entropy()
        return self.divergence.closed_form(normal, self.target.reference)

    def at(self, normal: NormalForm, eps: torch.Tensor) -> "FixedDrawsPoint":
        """That of another normal, or of other draws."""
        return FixedDrawsPoint(self.target, normal, eps, self.divergence)

    @property
    def value_se(self) -> float:
        """Standard error of the value, from antithetic pairs of draws."""
        log_q = -0.5 * self.eps.square().sum(1)
        if self.normal.factor is not None:  # whose noise is not that of coordinates
            log_q = self.normal.log_prob(self.normal.transform(self.eps))
        is_elbo = self.divergence.kl_weight == 1
        log_weights = self.values - log_q if is_elbo else self.values
        pairs = log_weights.reshape(2, -1).mean(0)
        return float(pairs.std()) / math.sqrt(len(pairs))


class FixedDraws(Solver):
    """Quasi-Newton steps on the ELBO from draws that stay the same.

    Their mean is 0 and their covariance 1, so that the ELBO of a normal density is
    exact; that of others is tried on new draws, and where the fixed ones promised too
    much, more of them follow (Giordano, Ingram and Broderick 2024, *Black box
    variational inference with a deterministic objective*).

    Examples
    --------
    >>> from skvi.solvers._fixed_draws import FixedDraws
    >>> FixedDraws.name
    'fixed_draws'
    """

    name = "fixed_draws"

    @torch.no_grad()
    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit a normal; the value is that of new draws."""
        normal, n_draws = cast(NormalForm, problem.posterior.as_normal()), FIRST
        if not normal.is_diagonal:
            n_least = PER_PARAMETER * normal.n_noise
            n_draws = max(FIRST, 2 ** math.ceil(math.log2(n_least)))
        run = _Run(problem, options)
        try:
            return self._solve(run, normal, n_draws)
        except KeyboardInterrupt:
            if run.best is None:
                raise
            history = [*run.history, run.best.value]
            here = replace(problem, posterior=run.state(run.best).posterior)
            found = here.solved(self, history, INTERRUPTED).cut_short()
            return replace(found, value_se=run.best.value_se)

    def _solve(self, run: "_Run", normal: NormalForm, n_draws: int) -> Solution:
        """Rounds of more draws, while new ones contradict the fixed ones."""
        generator = run.problem.source_of_draws
        size, is_diagonal, options = normal.n_noise, normal.is_diagonal, run.options
        while True:
            best = run.descend(normal, _fixed_noise(generator, n_draws, normal))
            fresh = balanced_noise(generator, n_draws, size, is_diagonal)
            new = best.at(best.normal, fresh)
            excess, normal = new.value - best.value, best.normal
            noise = math.hypot(new.value_se, best.value_se)
            if excess < TOO_GOOD or run.is_over or GROWTH * n_draws > LAST:
                break
            n_draws *= GROWTH
        n_final = max(n_draws, min(FINAL, FINAL_ELEMENTS // size))
        eps = balanced_noise(generator, n_final, size, is_diagonal)
        final = best.at(normal, eps)
        message = ""
        if run.is_late:
            message = f"max_iter={options.max_iter} ended the fit: allow more"
        elif not excess < TOO_GOOD + 3 * noise and not run.is_stopped:
            message = (
                f"{n_draws} draws promise {excess:.2g} nats more than new ones keep: "
                "the density has other tails than a normal"
            )
        return Solution(
            solver=self.name,
            state=run.state(best),
            value=final.value,
            history=run.history,
            n_iter=len(run.history),
            ending=ending_of(not message, run.is_stopped),
            message=message,
            value_se=final.value_se,
        )


class _Run:
    """Iterations of a solve, over all numbers of draws."""

    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        self.problem, self.options = problem, options
        self.history: list[float] = []
        self.is_stopped = False
        #: The best point with the present draws; None before the first.
        self.best: FixedDrawsPoint | None = None

    @property
    def is_late(self) -> bool:
        return len(self.history) >= self.options.max_iter

    @property
    def is_over(self) -> bool:
        return self.is_stopped or self.is_late

    def state(self, point: FixedDrawsPoint) -> State:
        return State(self.problem.posterior.near(point.normal), self.problem.target)

    def descend(self, normal: NormalForm, eps: torch.Tensor) -> FixedDrawsPoint:
        """Runs from a normal until one gains nothing, whitened by the best so far."""
        parts = self.problem.target, normal, eps, self.problem.divergence
        best, before = FixedDrawsPoint(*parts), math.inf
        self.best = best
        while before - best.value > self.options.tol and not self.is_over:
            before, best = best.value, self._run(best)
        return best

    def _run(self, start: FixedDrawsPoint) -> FixedDrawsPoint:
        """Some steps of L-BFGS in the coordinates of a normal."""
        whitened = _Whitened(start)
        zero = start.normal.mean.new_zeros(whitened.n_free)
        lbfgs = LBFGS(whitened.evaluate, zero)
        for _ in range(STEPS):
            moved = lbfgs.step()
            self.history.append(lbfgs.value)
            self.best = whitened.best
            state = partial(self.state, whitened.best)
            self.is_stopped = self.options.progress(lbfgs.value, state)
            if not moved or self.is_over or lbfgs.decrement < self.options.tol:
                break
        return whitened.best


class _Whitened:
    """Normals around one, in whose units their parameters are.

    With means ``mean + scale a`` and scales ``scale T``; T is triangular or diagonal,
    and free are a, the logs of the diagonal of T, and what is below it. Beside a factor
    F the means are ``mean + scale a + F b``, the factors ``F (1 + C) + scale D``: more
    parameters than needed, in which strong factors are no steeper than weak ones.
    """

    def __init__(self, start: FixedDrawsPoint) -> None:
        self.best, self.normal = start, start.normal
        size, n_noise, factor = (
            self.normal.size,
            self.normal.n_noise,
            self.normal.factor,
        )
        self.sizes = [n_noise, size, 0]
        if factor is not None:
            self.sizes[2] = (n_noise - size) * n_noise
        elif not self.normal.is_diagonal:
            self.sizes[2] = size * (size - 1) // 2
        self.n_free = sum(self.sizes)

    def _at(self, x: torch.Tensor) -> NormalForm:
        normal, size = self.normal, self.normal.size
        a, logs, rest = x.split(self.sizes)
        mean, diagonal = normal.transform(a), logs.exp()
        if normal.factor is not None:
            own, more = rest.reshape(normal.n_noise, -1).tensor_split([size])
            factor = normal.factor + normal.scale[:, None] * own + normal.factor @ more
            return NormalForm(mean, normal.scale * diagonal, factor)
        if normal.is_diagonal:
            return NormalForm(mean, normal.scale * diagonal)
        root = torch.diag(diagonal)
        root[tuple(torch.tril_indices(size, size, -1, device=x.device))] = rest
        return NormalForm(mean, normal.scale @ root)

    def evaluate(self, x: torch.Tensor) -> tuple[float, torch.Tensor]:
        """Minus the ELBO and its gradient, along the draws."""
        point = self.best.at(self._at(x), self.best.eps)
        if not math.isfinite(point.value):
            return math.inf, torch.zeros_like(x)
        if point.value <= self.best.value:
            self.best = point
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            normal = self._at(leaf)
            moved = (normal.transform(point.eps) * point.slopes).sum(1).mean()
            value = moved - point.regularizer(normal)
            (slope,) = torch.autograd.grad(value, leaf)
        return point.value, -slope


def _fixed_noise(
    generator: torch.Generator, n_draws: int, normal: NormalForm
) -> torch.Tensor:
    """Noise of the draws of a fit: evenly spread where there are few dimensions."""
    if normal.is_diagonal and normal.size > MAX_EVEN:
        return balanced_noise(generator, n_draws, normal.size, True)
    return quasi_random_rule(normal.n_noise, n_draws)[0].T


def balanced_noise(
    generator: torch.Generator, n_draws: int, size: int, is_diagonal: bool
) -> torch.Tensor:
    """Antithetic random noise, (S, P), of mean 0 and variance 1.

    Unless `is_diagonal`, of covariance 1, which takes at least 2 P draws.
    """
    half = randn(generator, n_draws // 2, size)
    if is_diagonal:
        half = half / half.square().mean(0).sqrt()
    else:
        basis, root = torch.linalg.qr(half)
        half = basis * root.diagonal().sign() * math.sqrt(n_draws / 2)
    return torch.cat([half, -half])
