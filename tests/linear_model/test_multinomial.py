"""Several classes: expectations, the optimum, predictions, symmetries, the evidence."""

import numpy as np
import pytest
import torch

from skvi.expectations._softmax import expect_logsumexp
from skvi.likelihoods._categorical import CategoricalLikelihood
from skvi.losses import BetaLoss, GammaLoss, LogLoss
from tests.linear_model.reference_multinomial import (
    gumbel_logsumexp,
    normal_line,
)

LOSSES = [LogLoss(), BetaLoss(1.5), GammaLoss(1.5)]


def random_rows(n_outputs, n_rows=6, width=1.0, seed=0):
    """Means (n, K), correlated covariances (n, K, K) and labels."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n_rows, n_outputs, n_outputs)
    root = torch.randn(*shape, generator=generator, dtype=torch.float64)
    mean = torch.randn(*shape[:2], generator=generator, dtype=torch.float64)
    covariance = width**2 * root @ root.mT / n_outputs
    return 2 * mean, covariance, (torch.arange(n_rows) % n_outputs).double()


class TestCategoricalLikelihood:
    @pytest.mark.parametrize("n_classes", [2, 10])
    def test_masses_powers_and_derivatives(self, n_classes, numeric_gradient):
        """Masses sum to 1; powers; closed derivatives against differences.

        Wrong variants: log sum exp of f for that of c f; the sign of the slope.
        """
        likelihood = CategoricalLikelihood(n_classes)
        f = random_rows(n_classes)[0][None]
        labels = torch.arange(n_classes).double()
        logs = torch.stack([likelihood.log_prob(f, y.expand(6)) for y in labels], -1)
        assert logs.exp().sum(-1) == pytest.approx(1)
        assert likelihood.mean(f) == pytest.approx(logs.exp())
        for c in (0.5, 1.0, 2.0):
            expected = torch.logsumexp(c * logs, -1)
            assert likelihood.log_power_integral(f, c) == pytest.approx(expected)
        y = random_rows(n_classes)[2]
        value, first, second = likelihood.log_prob_derivatives(f, y)
        generic = super(CategoricalLikelihood, likelihood).log_prob_derivatives(f, y)
        for found, other in zip((value, first, second), generic, strict=True):
            assert torch.allclose(found, other, atol=1e-12)
        assert torch.equal(likelihood._log_prob_slope(f, y), first)
        for i in range(2):
            slope = numeric_gradient(
                lambda g, i=i: likelihood.log_prob(g[None, None], y[i : i + 1])[0, 0],
                f[0, i],
            )
            assert slope == pytest.approx(first[0, i].numpy(), abs=1e-8)

    def test_no_infinity_far_out(self):
        f = torch.tensor([[[800.0, -800.0, 0.0]]], dtype=torch.float64)
        for loss in LOSSES:
            for y in range(3):
                found = loss.expected(
                    CategoricalLikelihood(3),
                    f[0],
                    1e4 * torch.eye(3).double()[None],
                    torch.tensor([float(y)]),
                )
                assert all(bool(torch.isfinite(part).all()) for part in found)


class TestExpectations:
    @pytest.mark.parametrize(
        ("n_classes", "width"),
        [(2, 4.0), (3, 0.05), (3, 2.0), (4, 1.0), (7, 0.05), (7, 0.5), (7, 4.0)],
    )
    def test_independent_f(self, n_classes, width):
        """Against the one-dimensional Gumbel form, which shares nothing with it.

        Wrong variants: variances for standard deviations; contrasts of norm sqrt(2).
        """
        likelihood = CategoricalLikelihood(n_classes)
        mean, covariance, y = random_rows(n_classes, width=width)
        variance = covariance.diagonal(dim1=1, dim2=2)
        exact, p, by_std = gumbel_logsumexp(mean.numpy(), variance.sqrt().numpy())
        diagonal = torch.diag_embed(variance)
        value, first, second = likelihood.expected_log_loss(mean, diagonal, y)
        own = mean.gather(1, y.long()[:, None])[:, 0].numpy()
        tol = 1e-5
        assert value.numpy() == pytest.approx(exact - own, abs=tol)
        onehot = np.eye(n_classes)[y.long()]
        assert first.numpy() == pytest.approx(p - onehot, abs=tol)
        curvature = second.diagonal(dim1=1, dim2=2).numpy()
        std = variance.sqrt().numpy()
        assert curvature * std == pytest.approx(by_std, abs=5 * tol)

    @pytest.mark.parametrize("n_classes", [3, 4, 7])
    def test_refine_measures_the_error(self, n_classes):
        mean, covariance, y = random_rows(n_classes)
        likelihood = CategoricalLikelihood(n_classes)
        values = [
            likelihood.expected_log_loss(mean, covariance, y, refine)[0]
            for refine in (1, 2, 8)
        ]
        worst = float((values[0] - values[2]).abs().max())
        assert worst < (1e-6 if n_classes < 5 else 0.02)
        second = float((values[1] - values[2]).abs().max())
        assert second < worst + 1e-12

    def test_weak_covariances(self):
        """Ten classes with one common factor, against the Gumbel form at its values.

        Wrong variants: half of the series' first term; slopes without its part; no
        covariances in the curvature.
        """
        strength, tol = 0.3, 1e-5
        mean, _, _ = random_rows(10)
        generator = torch.Generator().manual_seed(1)
        loading = torch.randn(6, 10, generator=generator, dtype=torch.float64)
        loading *= strength
        variance = 2 + 4 * torch.rand(6, 10, generator=generator, dtype=torch.float64)
        covariance = torch.diag_embed(variance) + loading[:, :, None] * loading[:, None]
        value, p, second = expect_logsumexp(2 * mean, covariance)
        fine = expect_logsumexp(2 * mean, covariance, refine=2)[0]
        z, w = normal_line(25)
        std = variance.sqrt().numpy()
        exact, exact_p, by_loading = 0.0, 0.0, 0.0
        for node, weight in zip(z, w, strict=True):
            at = (2 * mean + node * loading).numpy()
            found = gumbel_logsumexp(at, std)
            exact, exact_p = exact + weight * found[0], exact_p + weight * found[1]
            by_loading = by_loading + weight * node * found[1]
        assert value.numpy() == pytest.approx(exact, abs=tol)
        assert fine.numpy() == pytest.approx(exact, abs=0.5 * tol)
        assert p.numpy() == pytest.approx(exact_p, abs=30 * tol)
        # Stein: E z p = E Hessian @ loading.
        bend = (second @ loading[..., None])[..., 0].numpy()
        assert bend == pytest.approx(by_loading, abs=30 * tol)
        assert second.sum(2) == pytest.approx(0, abs=1e-12)
