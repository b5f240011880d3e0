"""The contracts of posterior families, priors and solvers."""

import math

import numpy as np
import torch
from scipy import stats

from skvi.base import Draw, Layout, NormalForm
from skvi.base._draw import SIDES
from skvi.divergences import KLDivergence
from skvi.objectives import ELBO
from skvi.posteriors import Family, FullRankNormal, MeanFieldNormal, Posterior
from skvi.posteriors._flow import FlowPosterior
from skvi.priors import BuiltPrior, Prior
from skvi.solvers import Problem, Solver, SolverOptions
from skvi.solvers._solution import Solution
from skvi.targets import Target
from skvi.testing._ensure import (
    N_DRAWS,
    N_SE,
    Check,
    numeric_gradient,
    pickled,
)
from skvi.utils._tensors import CPU, make_generator, randn


def check_family(family: Family, random_state: int) -> None:
    """Draws, densities and moments; see `check_part`."""
    generator, check = make_generator(random_state), Check(repr(family))
    layout = Layout({"coef": (1, 2), "intercept": (1,)})
    posterior = family.build(layout, generator)
    params = posterior.params
    check(params.ndim == 1, "params must be one flat vector.")
    posterior = posterior.at(params + 0.3 * randn(generator, len(params)))
    side = posterior.side
    check(side in SIDES, f"side must be one of {SIDES}; got {side!r}.")
    if isinstance(posterior, FlowPosterior):  # it says which map is wrong
        _check_flow(posterior, randn(generator, 5, layout.size), check)
    theta, log_q = _check_draws(posterior, layout.size, check)
    if side == "exact":
        _check_density(posterior, theta[:100], log_q[:100], check)
        _check_score(posterior, theta, check)
        _check_mass(posterior, theta, check, generator)
    _check_normal(posterior, theta, check)


def _check_flow(posterior: FlowPosterior, noise: torch.Tensor, check: Check) -> None:
    """The maps of a module and their determinants, at a few points."""
    x, arrived = noise, []
    for method in ("forward", "inverse"):

        def image(row: torch.Tensor, method: str = method) -> torch.Tensor:
            return posterior.transform(method, row[None], posterior.params)[0][0]

        y, log_det = posterior.transform(method, x, posterior.params)
        slopes = [torch.autograd.functional.jacobian(image, row) for row in x]
        expected = torch.stack([torch.linalg.slogdet(slope)[1] for slope in slopes])
        check.close(log_det, expected, f"the log determinant of {method}", 1e-5, 1e-6)
        arrived.append(y)
        x = y
    check.close(arrived[1], noise, "inverse(forward(noise))", 1e-5, 1e-6)


class _Bell(Target):
    """A normal density that is not normalized: its integral is 2 pi."""

    layout = Layout({"coef": (1, 2)})

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log density, (S,)."""
        return -0.5 * (theta - 1).square().sum(1)


def check_solver(solver: Solver, random_state: int) -> None:
    """A short solve of a normal density; see `check_part`."""
    check = Check(repr(solver))
    for family in (FullRankNormal(), MeanFieldNormal()):
        start, generator = family.build(_Bell.layout), make_generator(random_state)
        problem = Problem(_Bell(), ELBO(), KLDivergence(), start, generator)
        if solver.missing(problem):
            continue
        before = problem.params.clone()
        options = SolverOptions(max_iter=20, steps_per_iter=10)
        found = solver.solve(problem, options)
        check(isinstance(found, Solution), f"solve must return a Solution: {found!r}.")
        check(torch.equal(problem.params, before), "solve must not change the problem.")
        gaps = [_gap_to_bell(state) for state in (start, found.posterior)]
        check(gaps[1] < gaps[0], "solve does not decrease what is minimized.")
        # Few draws that stay the same have a bias.
        check(
            not found.converged or gaps[1] < 0.5,
            f"the solution has converged, {gaps[1]:.3g} nats from the optimum.",
        )


def _gap_to_bell(posterior: Posterior) -> float:
    """KL divergence of a normal from the density."""
    q = posterior.normal()
    squares = (q.variance + (q.mean - 1).square()).sum()
    return float(0.5 * squares + math.log(2 * math.pi) - q.entropy())


def _check_draws(
    posterior: Posterior, size: int, check: Check
) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        draw, again, copied = (
            source.draw(N_DRAWS, make_generator(1))
            for source in (posterior, posterior, pickled(posterior))
        )
    check(
        isinstance(draw, Draw) and draw.side == posterior.side,
        f"draw must return a Draw whose side is {posterior.side!r}; got {draw!r}.",
    )
    theta, log_q = draw.theta, draw.log_q
    shapes = tuple(theta.shape), tuple(log_q.shape)
    check(
        shapes == ((N_DRAWS, size), (N_DRAWS,)),
        f"draws must have the shapes (S, P) and (S,); got {shapes}.",
    )
    check(torch.isfinite(theta).all(), "draws are not finite.")
    check.close(again.theta, theta, "draws from the same generator state")
    check.close(copied.theta, theta, "draws after pickling")
    leaf = posterior.params.clone().requires_grad_()
    draw = posterior.at(leaf).draw(5, make_generator(1))
    values = ((draw.theta.square().sum(), "draws"), (draw.log_q.sum(), "log q"))
    for value, what in values:
        check(value.requires_grad, f"{what} must be differentiable in params.")
        (gradient,) = torch.autograd.grad(
            value, leaf, retain_graph=True, allow_unused=True
        )
        check(
            gradient is not None and torch.isfinite(gradient).all(),
            f"{what} must be differentiable in params.",
        )
    return theta, log_q


def _check_density(
    posterior: Posterior, theta: torch.Tensor, log_q: torch.Tensor, check: Check
) -> None:
    check.close(posterior.log_prob(theta), log_q, "log_prob at draws, beside log q,")

    def total(params: torch.Tensor) -> torch.Tensor:
        return posterior.log_prob(theta[:5], params).sum()

    leaf = posterior.params.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(total(leaf), leaf)
    expected = numeric_gradient(total, posterior.params)
    check.close(gradient, expected, "the gradient in params", 1e-4, 1e-5)


def _check_score(posterior: Posterior, theta: torch.Tensor, check: Check) -> None:
    """E_q[d log q / d params] = 0, in batches."""
    leaf = posterior.params.clone().requires_grad_()
    scores = []
    for part in theta.split(500):
        value = posterior.log_prob(part, leaf).mean()
        scores.append(torch.autograd.grad(value, leaf)[0])
    score = torch.stack(scores)
    error = score.std(0) / len(score) ** 0.5
    check.close(
        score.mean(0), 0.0, "the mean of the score over draws", 0, 1e-9 + N_SE * error
    )


def _check_mass(
    posterior: Posterior, theta: torch.Tensor, check: Check, generator: torch.Generator
) -> None:
    """Importance sampling of the density's integral from a wider Student-t."""
    mean, covariance = theta.mean(0), torch.cov(theta.T)
    root = torch.linalg.cholesky(covariance)
    df, size = 5, theta.shape[1]
    z = randn(generator, N_DRAWS, size)
    chi = randn(generator, N_DRAWS, df).square().sum(1)
    t = z * (df / chi).sqrt()[:, None]
    log_t = -0.5 * (df + size) * torch.log1p(t.square().sum(1) / df)
    log_t += math.lgamma((df + size) / 2) - math.lgamma(df / 2)
    log_t -= 0.5 * size * math.log(df * math.pi)
    log_t -= root.diagonal().log().sum()
    ratio = torch.exp(posterior.log_prob(mean + t @ root.T) - log_t)
    error = ratio.std() / N_DRAWS**0.5
    check.close(
        ratio.mean(), 1.0, "the integral of the density", 0, 1e-6 + N_SE * error
    )


def _check_normal(posterior: Posterior, theta: torch.Tensor, check: Check) -> None:
    normal = posterior.as_normal()
    if normal is None:
        return
    error = theta.std(0) / N_DRAWS**0.5
    check.close(normal.mean, theta.mean(0), "the mean of as_normal", 0, N_SE * error)
    # The variance of a normal's sample variance is 2 sigma^4 / S.
    tolerance = N_SE * (2 / N_DRAWS) ** 0.5
    check.close(
        normal.variance, theta.var(0), "the variance of as_normal", tolerance, 0
    )
    simple = NormalForm(normal.mean + 1, normal.variance.sqrt())
    posterior = posterior.near(simple)
    found = posterior.as_normal()
    if found is None:
        raise AssertionError("as_normal is None after near.")
    check.close(found.mean, simple.mean, "the mean after near")
    check.close(found.variance, simple.variance, "the variance after near")


# The line of log abs(theta) on which densities are integrated: heavy tails and
# singularities at 0 are no problem there.
LOG_RANGE, N_LINE = 300.0, 60_001
# Missing mass at which a density counts as not normalized, and the smallest p-value of
# a passed test.
MASS_ERROR, P_VALUE = 1e-4, 1e-7


def check_prior(prior: Prior, random_state: int) -> None:
    """Density, draws and expectations; see `check_part`."""
    generator, check = make_generator(random_state), Check(repr(prior))
    layout = Layout({"coef": (1, 2), "intercept": (1,)})
    built = prior.build(layout)
    theta = randn(generator, 6, layout.size)
    log_p = built.log_prob(theta)
    check(log_p.shape == (6,), "log_prob must have the shape (S,).")
    copy = pickled(built)
    check.close(copy.log_prob(theta), log_p, "log_prob after pickling")
    gradient = built.log_prob_gradient(theta)
    expected = numeric_gradient(lambda t: built.log_prob(t).sum(), theta)
    check.close(gradient, expected, "log_prob_gradient", 1e-5, 1e-6)
    one = prior.build(Layout({"coef": (1,)}))
    scaled = prior.build(Layout({"coef": (1,)}, scales={"coef": 0.25}))
    points = theta[:, :1]
    check.close(
        scaled.log_prob(0.25 * points) + np.log(0.25),
        one.log_prob(points),
        "the density in a block of natural scale 0.25",
    )
    if built.is_proper:
        _check_distribution(one, check, generator)
    _check_normals(one, points, check)
    # Beside an unknown scale it is a lower bound.
    if built.has_expected_log_prob and not built.n_unknown_scales:
        _check_expected(one, check)


def _check_distribution(
    one: BuiltPrior, check: Check, generator: torch.Generator
) -> None:
    """Integrate the density over both signs, and test the draws against it."""
    u = torch.linspace(-LOG_RANGE, LOG_RANGE, N_LINE, dtype=torch.float64, device=CPU)
    half = u.exp()
    density = [torch.exp(one.log_prob(s * half[:, None]) + u) for s in (-1, 1)]
    masses = [part * (u[1] - u[0]) for part in density]
    total = float(masses[0].sum() + masses[1].sum())
    # A tail that extends to exp(300) contains mass that no rule sees.
    edge = float(max(part[-1] for part in density))
    check(
        total <= 1 + MASS_ERROR and (total >= 1 - MASS_ERROR or edge > 1e-12),
        f"the density integrates to {total:.6g} instead of 1. Improper priors "
        "have is_proper = False.",
    )
    if edge > 1e-12:
        return
    draws = one.sample(N_DRAWS, generator)
    check(draws.shape == (N_DRAWS, 1), "sample must have the shape (S, P).")
    line = np.concatenate([-half.flip(0).numpy(), half.numpy()])
    steps = torch.cat([masses[0].flip(0), masses[1]]).numpy()
    cdf = np.cumsum(steps) - 0.5 * steps
    result = stats.kstest(draws[:, 0].numpy(), lambda x: np.interp(x, line, cdf))
    check(
        result.pvalue > P_VALUE,
        f"sample and log_prob are different distributions (largest difference "
        f"of the distribution functions {result.statistic:.3g} in {N_DRAWS} draws).",
    )


def _check_normals(one: BuiltPrior, points: torch.Tensor, check: Check) -> None:
    normal = one.as_normal()
    if normal is not None:
        check.close(normal.log_prob(points), one.log_prob(points), "as_normal")
    start = one.matching_normal()
    if start is not None:
        check(
            torch.isfinite(start.scale).all() and (start.scale > 0).all(),
            "matching_normal must have positive finite scales, or be None.",
        )
    tail = one.tail_precision()
    if tail is not None:
        check(
            tail.shape == (1,) and float(tail) >= 0,
            "tail_precision must have the shape (P,) and not be negative.",
        )


def _check_expected(one: BuiltPrior, check: Check) -> None:
    """Against the mean over a fine line of quantiles, singular at 0 or not."""
    u = torch.linspace(-60, 8, 40_001, dtype=torch.float64, device=CPU)
    half = u.exp()
    for mean, std in ((0.0, 1.0), (0.7, 0.1), (-3.0, 2.0), (0.2, 20.0)):
        total = 0.0
        for sign in (-1.0, 1.0):
            z = (sign * half - mean) / std
            weight = torch.exp(-0.5 * z.square() + u) * (u[1] - u[0])
            log_p = one.log_prob(sign * half[:, None])
            total += float((weight * log_p).sum()) / (std * (2 * np.pi) ** 0.5)
        found = one.expected_log_prob(
            torch.tensor([mean], dtype=torch.float64, device=CPU),
            torch.tensor([std], dtype=torch.float64, device=CPU),
        )
        check.close(
            found,
            torch.tensor([total], device=CPU),
            f"expected_log_prob for N({mean:g}, {std:g}^2)",
            1e-4,
            1e-5,
        )
