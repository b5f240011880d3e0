"""The contracts of losses, likelihoods and divergences."""

import math
from collections.abc import Callable, Sequence

import torch

from skvi.base import Layout, NormalForm
from skvi.divergences import Divergence, KLDivergence
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from skvi.likelihoods._categorical import CategoricalLikelihood
from skvi.losses import Loss
from skvi.priors import BuiltPrior, Normal
from skvi.testing._ensure import N_DRAWS, N_SE, Check, numeric_gradient
from skvi.utils._tensors import CPU, make_generator, randn

LIKELIHOODS = (GaussianLikelihood(0.7), BernoulliLikelihood(), CategoricalLikelihood(3))
# Nodes and half width, in standard deviations, of the reference integral.
N_NODES, HALF_WIDTH = 8001, 9.0


def check_loss(
    loss: Loss, likelihoods: Sequence[Likelihood], random_state: int
) -> None:
    """Values, gradients and expectations; see `check_part`."""
    generator = make_generator(random_state)
    for likelihood in likelihoods:
        _check_with(loss, likelihood, generator)


def _check_with(loss: Loss, likelihood: Likelihood, generator: torch.Generator) -> None:
    check = Check(f"{loss!r} with {likelihood!r}")
    f = randn(generator, 4, 6, likelihood.n_outputs)
    y = likelihood.sample(f[:1], generator)[0]
    values = loss(likelihood, f, y)
    alone = [loss(likelihood, f[:, [i]], y[[i]])[:, 0] for i in range(6)]
    what = "the loss of a row, beside other rows and alone,"
    check.close(values, torch.stack(alone, 1), what)
    if loss.is_log_loss:
        what = "is_log_loss is True, but the loss"
        check.close(values, -likelihood.log_prob(f, y), what)
    far = loss(likelihood, 30 * f.sign(), y)
    check(torch.isfinite(far).all(), "not finite at f = +-30.")
    _check_gradient(lambda g: loss(likelihood, g, y).sum(), f, check)
    _check_expected(loss, likelihood, f[0], y, check, generator)


def _check_gradient(
    function: Callable[[torch.Tensor], torch.Tensor], f: torch.Tensor, check: Check
) -> None:
    leaf = f.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(leaf), leaf)
    expected = numeric_gradient(function, f)
    check.close(gradient, expected, "the gradient in f", 1e-5, 1e-6)


def _check_expected(
    loss: Loss,
    likelihood: Likelihood,
    mean: torch.Tensor,
    y: torch.Tensor,
    check: Check,
    generator: torch.Generator,
) -> None:
    n, k = mean.shape
    if k == 1:
        function = lambda f: loss(likelihood, f, y)
        for width in (0.0, 0.3, 3.0):
            std = torch.full((n,), width, dtype=torch.float64, device=CPU)
            found = loss.expected(likelihood, mean[:, 0], std, y)
            compare_integrals(found, function, mean[:, 0], std, check, "expected")
        return
    root = 0.5 * randn(generator, n, k, k)
    found = loss.expected(likelihood, mean, root @ root.mT, y)
    eps = randn(generator, N_DRAWS, n, k, 1)
    draws = loss(likelihood, mean + (root @ eps)[..., 0], y)
    error = draws.std(0) / N_DRAWS**0.5
    check.close(found[0], draws.mean(0), "expected", 0, 1e-3 + N_SE * error)
    check(
        found[1].shape == mean.shape and found[2].shape == root.shape,
        "expected must return shapes (n,), (n, K) and (n, K, K).",
    )


def compare_integrals(
    found: tuple[torch.Tensor, ...],
    function: Callable[[torch.Tensor], torch.Tensor],
    mean: torch.Tensor,
    std: torch.Tensor,
    check: Check,
    what: str,
) -> None:
    """Compare value and derivatives of E function(f), f ~ N(mean, std^2)."""
    z = torch.linspace(
        -HALF_WIDTH, HALF_WIDTH, N_NODES, dtype=torch.float64, device=CPU
    )
    weights = torch.exp(-0.5 * z.square())
    weights = weights / weights.sum()

    def integral(mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        return weights @ function((mean + z[:, None] * std)[..., None])

    expected = integral(mean, std)
    ends = weights[0] * function((mean + z[[0, -1], None] * std)[..., None])
    if bool((ends.abs() > 1e-7 * (1 + expected.abs())).any()):
        return  # The line is too short for a function that grows so fast.
    width = f"(std {float(std[0]):g})"
    check.close(found[0], expected, f"{what} value {width}", 1e-4, 1e-5)
    if float(std[0]) == 0:
        return
    h = 1e-3 * float(std[0])
    slope = (integral(mean + h, std) - integral(mean - h, std)) / (2 * h)
    check.close(found[1], slope, f"{what} first derivative {width}", 1e-3, 1e-4)
    # d/dv E g = E g'' / 2, and dv = 2 s ds.
    curvature = (integral(mean, std + h) - integral(mean, std - h)) / (2 * h * std)
    check.close(found[2], curvature, f"{what} second derivative {width}", 1e-3, 1e-4)


def check_likelihood(likelihood: Likelihood, random_state: int) -> None:
    """Draws, densities and power integrals; see `check_part`."""
    generator, check = make_generator(random_state), Check(repr(likelihood))
    f = randn(generator, 1, 5, likelihood.n_outputs)
    if likelihood.n_outputs == 1:
        check(likelihood.mean(f).shape == (1, 5), "mean must have the shape (S, n).")
    many = f.expand(N_DRAWS, -1, -1)
    y = likelihood.sample(many, generator)
    check(y.shape == (N_DRAWS, 5), "sample must have the shape (S, n).")
    seeds = (make_generator(random_state + i) for i in (1, 1, 2))
    one, same, other = (likelihood.sample(many, seed) for seed in seeds)
    check(
        torch.equal(one, same) and not torch.equal(one, other),
        "sample must take its random numbers from the generator, and nowhere else.",
    )
    check(
        likelihood.is_discrete or bool((y != y.round()).any()),
        "all draws are whole numbers: set is_discrete = True.",
    )
    log_p = likelihood.log_prob(f.expand(200, -1, -1), y[0])
    check(log_p.shape == (200, 5), "log_prob must have the shape (S, n).")
    check.close(
        likelihood.log_power_integral(f, 1.0),
        0.0,
        "the log integral of the density",
        0,
        1e-6,
    )
    log_p = torch.cat([likelihood.log_prob(f, row) for row in y[:20_000]])
    check(
        not likelihood.is_discrete or bool((log_p < 1e-9).all()),
        "is_discrete is True, but p(y | f) is larger than 1.",
    )
    for c in (1.3, 2.0):
        powers = torch.exp((c - 1) * log_p)
        error = powers.std(0) / len(powers) ** 0.5
        check.close(
            likelihood.log_power_integral(f, c)[0].exp(),
            powers.mean(0),
            f"the integral of the density to the power {c}",
            0,
            1e-6 + N_SE * error,
        )
    if likelihood.n_outputs == 1:
        error = y.std(0) / N_DRAWS**0.5
        check.close(likelihood.mean(f)[0], y.mean(0), "mean", 0, 1e-9 + N_SE * error)
    _check_derivatives(likelihood, f, y[0], check)


def _check_derivatives(
    likelihood: Likelihood, f: torch.Tensor, y: torch.Tensor, check: Check
) -> None:
    def total(g: torch.Tensor) -> torch.Tensor:
        return likelihood.log_prob(g, y).sum()

    _check_gradient(total, f, check)
    value, first, _ = likelihood.log_prob_derivatives(f, y)
    check.close(value, likelihood.log_prob(f, y), "log_prob_derivatives")
    expected = numeric_gradient(total, f).reshape(first.shape)
    check.close(first, expected, "the derivative in f", 1e-5, 1e-6)
    if likelihood.n_outputs > 1:
        return
    line = torch.linspace(-5, 5, 21, dtype=f.dtype, device=CPU)[:, None, None]
    curvature = likelihood.log_prob_derivatives(line.expand(-1, 5, 1), y)[2]
    check(
        not likelihood.is_log_concave or bool((curvature < 1e-9).all()),
        "is_log_concave is True, but -log p(y | f) is not convex in f.",
    )
    mean = f[0, :, 0]
    # The quadrature of the base class is not the author's, and meant for fits.
    is_own = type(likelihood).expected_log_loss is not Likelihood.expected_log_loss
    for width in (0.3, 3.0) if is_own else (0.3,):
        std = torch.full_like(mean, width)
        found = likelihood.expected_log_loss(mean, std, y)
        compare_integrals(
            found,
            lambda g: -likelihood.log_prob(g, y),
            mean,
            std,
            check,
            "expected_log_loss",
        )


SIZE, PRIOR_SCALE = 3, 1.5
N_BATCHES, BATCH = 20, 20_000


def check_divergence(divergence: Divergence, random_state: int) -> None:
    """Values, closed forms and their derivatives; see `check_part`."""
    divergence.check_regularizer()
    generator, check = make_generator(random_state), Check(repr(divergence))
    same = randn(generator, 100)
    check.close(divergence.monte_carlo(same, same), 0.0, "monte_carlo at q = prior")
    _check_monte_carlo(divergence, check, generator)
    prior = Normal(PRIOR_SCALE).build(Layout({"coef": (SIZE,)}))
    pi = prior.as_normal()
    if pi is None or not divergence.has_closed_form(prior):
        return
    check.close(divergence.closed_form(pi, prior), 0.0, "closed_form at q = prior")
    for kind in ("diagonal", "full", "low_rank"):
        q = _some_normal(kind, generator)
        value = divergence.closed_form(q, prior)
        check(value.shape == (), "closed_form must return a scalar.")
        check(value >= 0, f"closed_form is {float(value):g}, below 0.")
        if (weight := divergence.kl_weight) is not None:
            expected = weight * KLDivergence().closed_form(q, prior)
            check.close(value, expected, f"kl_weight is {weight}, but closed_form")
        if kind != "low_rank":
            _check_terms(divergence, q, prior, Check(f"{divergence!r} ({kind})"))
    for factor in (1e-4, 1e2):
        wide = NormalForm(pi.mean, factor * pi.scale)
        value = divergence.closed_form(wide, prior)
        check(
            not torch.isnan(value),
            f"closed_form is NaN for a posterior {factor:g} times as wide as "
            "the prior; outside its range a divergence is inf.",
        )


def _some_normal(kind: str, generator: torch.Generator) -> NormalForm:
    """Return a normal that is narrower than the prior."""
    mean = 0.5 * randn(generator, SIZE)
    if kind == "full":
        root = 0.2 * randn(generator, SIZE, SIZE).tril(-1)
        return NormalForm(
            mean, root + 0.5 * torch.eye(SIZE, dtype=torch.float64, device=CPU)
        )
    scale = torch.linspace(0.3, 0.9, SIZE, dtype=torch.float64, device=CPU)
    factor = 0.3 * randn(generator, SIZE, 1) if kind == "low_rank" else None
    return NormalForm(mean, scale, factor)


def _check_terms(
    divergence: Divergence, q: NormalForm, prior: BuiltPrior, check: Check
) -> None:
    terms = divergence.terms(q, prior)
    check.close(terms.value, divergence.closed_form(q, prior), "terms.value")

    def by_mean(mean: torch.Tensor) -> torch.Tensor:
        return divergence.closed_form(NormalForm(mean, q.scale), prior)

    gradient = numeric_gradient(by_mean, q.mean)
    check.close(terms.gradient, gradient, "terms.gradient", 1e-5, 1e-6)

    def by_variance(variance: torch.Tensor) -> torch.Tensor:
        # Along the diagonal of the covariance, for factorized and full q alike.
        if q.is_diagonal:
            return divergence.closed_form(NormalForm(q.mean, variance.sqrt()), prior)
        covariance = q.covariance() + torch.diag(variance - q.variance)
        scale = torch.linalg.cholesky(covariance)
        return divergence.closed_form(NormalForm(q.mean, scale), prior)

    natural = terms.precision_gradient
    natural = natural if natural.ndim == 1 else natural.diagonal()
    expected = 2 * numeric_gradient(by_variance, q.variance, 1e-6)
    check.close(natural, expected, "terms.precision_gradient", 1e-4, 1e-5)


def _check_monte_carlo(
    divergence: Divergence, check: Check, generator: torch.Generator
) -> None:
    """One dimension, where joint forms and sums over coordinates agree."""
    prior = Normal(PRIOR_SCALE).build(Layout({"coef": (1,)}))
    leaf = torch.tensor(
        [0.4, math.log(0.6)], dtype=torch.float64, requires_grad=True, device=CPU
    )
    q = NormalForm(leaf[:1], leaf[1:].exp())
    values = []
    for _ in range(N_BATCHES):
        theta = q.transform(randn(generator, BATCH, 1))
        logs = q.log_prob(theta), prior.log_prob(theta)
        value = divergence.monte_carlo(*logs)
        is_scalar = isinstance(value, torch.Tensor) and value.shape == ()
        check(is_scalar, "monte_carlo must return a tensor of shape ().")
        values.append(value)
    check(
        value.requires_grad,
        "monte_carlo must be differentiable in log_q and log_prior.",
    )
    twice = divergence.monte_carlo(*(log_p.repeat(2) for log_p in logs))
    what = "monte_carlo with every draw twice, beside once,"
    check.close(twice, value, what, 1e-3)
    estimates = torch.stack(values)
    (gradient,) = torch.autograd.grad(estimates.mean(), leaf)
    check(torch.isfinite(gradient).all(), "the gradient of monte_carlo is not finite.")
    error = float(estimates.detach().std()) / N_BATCHES**0.5
    mean = float(estimates.detach().mean())
    check(mean >= -N_SE * error, f"monte_carlo is {mean:g}, below 0.")
    if divergence.has_closed_form(prior):
        with torch.no_grad():
            exact = divergence.closed_form(q, prior)
        check.close(
            mean,
            exact,
            "closed_form and monte_carlo disagree; the latter",
            2e-3,  # its bias, if it is not linear in means
            N_SE * error,
        )
