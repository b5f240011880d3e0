"""The coordinates of quasi-Newton runs over normals: mean, log widths, triangle."""

from dataclasses import dataclass

import pytest
import torch

from skvi.base import NormalForm
from skvi.divergences import KL
from skvi.priors.base import BuiltPrior
from skvi.solvers import _quasi_newton
from skvi.solvers._quasi_newton import quasi_newton_run

SIZE = 3


class NormalPrior(BuiltPrior):
    """A normal with correlations."""

    def __init__(self, normal):
        self.normal = normal

    def as_normal(self):
        return self.normal


@dataclass
class Point:
    """KL to a normal, its gradient in the mean, and twice that in the covariance."""

    normal: NormalForm
    prior: NormalPrior

    def __post_init__(self):
        self.terms = KL().terms(self.normal, self.prior)
        self.value = float(self.terms.value)

    def covariance_gradient(self):
        pull = self.terms.precision_gradient
        if self.normal.is_diagonal:
            pull = pull if pull.ndim == 1 else pull.diagonal()
        return self.terms.gradient, pull


@pytest.fixture
def spied(monkeypatch):
    """The functions that runs minimize."""
    found = []

    class Spy(_quasi_newton.LBFGS):
        def __init__(self, evaluate, x):
            found.append((evaluate, x))
            super().__init__(evaluate, x)

    monkeypatch.setattr(_quasi_newton, "LBFGS", Spy)
    return found


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_gradients_and_optimum(kind, spied, make_normal, numeric_gradient):
    """Against finite differences away from the start; the optimum is the prior.

    Wrong variants: the triangle's diagonal without exp(log d); the root of the mean
    for its transpose; twice the gradient in the variances.
    """
    prior = NormalPrior(make_normal(SIZE, kind, seed=1))
    start = Point(make_normal(SIZE, kind, seed=2, width=0.4), prior)
    root = make_normal(SIZE, "full", seed=3).scale.T  # no symmetric matrix
    *_, best = quasi_newton_run(lambda q: Point(q, prior), start, root)
    assert best.value < 1e-10
    evaluate, x = spied[0]
    x = 0.3 * torch.sin(1.0 + torch.arange(len(x), dtype=x.dtype))
    numeric = numeric_gradient(lambda x: x.new_tensor(evaluate(x)[0]), x)
    torch.testing.assert_close(evaluate(x)[1], numeric, rtol=1e-6, atol=1e-8)
