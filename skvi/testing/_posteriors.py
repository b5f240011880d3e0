"""The contract of posterior families."""

import math

import torch

from skvi.base import Draw, Layout, NormalForm
from skvi.base._draw import SIDES
from skvi.posteriors import Family, Posterior
from skvi.testing._ensure import (
    N_DRAWS,
    N_SE,
    Check,
    numeric_gradient,
    pickled,
)
from skvi.utils._random import make_generator, randn

__all__ = ["check_family"]


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
    theta, log_q = _check_draws(posterior, layout.size, check)
    if side == "exact":
        _check_density(posterior, theta[:100], log_q[:100], check)
        _check_score(posterior, theta, check)
        _check_mass(posterior, theta, check, generator)
    _check_normal(posterior, theta, check)


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
