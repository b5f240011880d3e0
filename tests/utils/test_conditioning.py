"""Log-sum-exp of few classes, and the mixture behind it, against dense grids."""

import pytest
import torch

from skvi.utils._conditioning import expect_conditioned
from skvi.utils._logistic_mixture import mixture_softplus
from skvi.utils._quadrature import expect_softplus


@pytest.mark.parametrize(("n_scales", "tol"), [(8, 1e-7), (10, 1e-8)])
def test_softplus_of_every_width(n_scales, tol):
    """Wrong variant: a logistic variable of less than its variance."""
    for std in (0.0, 0.1, 1.0, 3.0, 30.0):
        mean = torch.linspace(-30, 30, 601, dtype=torch.float64) * max(std / 3, 1)
        spread = torch.full_like(mean, std)
        exact = expect_softplus(mean, spread, refine=4)
        found = mixture_softplus(mean, spread.square(), n_scales)
        for a, b, factor in zip(found, exact, (1, 1, 3), strict=True):
            assert float((a - b).abs().max()) < factor * tol


def on_a_grid(mean, covariance, n_line):
    """Expected log-sum-exp, softmax and its products, by a dense product rule."""
    k = len(mean)
    z = torch.linspace(-6.5, 6.5, n_line, dtype=torch.float64)
    nodes = torch.cartesian_prod(*[z] * (k - 1))
    weights = torch.softmax(-0.5 * nodes.square().sum(1), 0)
    differences = torch.eye(k, dtype=torch.float64)[1:] - torch.eye(k)[:1]
    root = torch.linalg.cholesky(differences @ covariance @ differences.T)
    f = torch.nn.functional.pad(nodes @ root.T + differences @ mean, (1, 0))
    p = torch.softmax(f, 1)
    products = p.T @ (weights[:, None] * p)
    return mean[0] + weights @ torch.logsumexp(f, 1), weights @ p, products


@pytest.mark.parametrize(("k", "width", "n_line"), [(3, 8.0, 700), (4, 1.0, 65)])
def test_correlated_classes(k, width, n_line):
    """Also where f is wide: the widest class, which differs, has no nodes.

    Wrong variants: the variance of a contrast; E(1 - s) for E(1 - s)^2; classes that
    are left exchanged.
    """
    generator = torch.Generator().manual_seed(k)
    root, mean = (
        width * torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((3, k, k), (3, k))
    )
    covariance = root @ root.mT / k
    value, first, second = expect_conditioned(mean, covariance)
    for i in range(3):
        exact, p, products = on_a_grid(mean[i], covariance[i], n_line)
        assert float(value[i]) == pytest.approx(float(exact), abs=1e-6)
        assert first[i].numpy() == pytest.approx(p.numpy(), abs=1e-6)
        hessian = (p.diag() - products).numpy()
        assert second[i].numpy() == pytest.approx(hessian, abs=2e-6)
