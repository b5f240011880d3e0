"""The contract of divergences."""

import math

import torch

from skvi.base import Layout, NormalForm
from skvi.divergences import Divergence, KLDivergence
from skvi.priors import BuiltPrior, Normal
from skvi.testing._ensure import N_SE, Check, numeric_gradient
from skvi.utils._device import CPU
from skvi.utils._random import make_generator, randn

__all__ = ["check_divergence"]

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
        if divergence.is_standard:
            check.close(
                value,
                KLDivergence().closed_form(q, prior),
                "is_standard is True, but closed_form",
            )
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
        values.append(divergence.monte_carlo(q.log_prob(theta), prior.log_prob(theta)))
    estimates = torch.stack(values)
    check(estimates.shape == (N_BATCHES,), "monte_carlo must be a scalar.")
    (gradient,) = torch.autograd.grad(estimates.mean(), leaf, allow_unused=True)
    check(
        gradient is not None and torch.isfinite(gradient).all(),
        "monte_carlo must be differentiable in log_q and log_prior.",
    )
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
