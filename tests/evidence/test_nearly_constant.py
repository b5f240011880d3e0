"""Nearly constant weights: their k is the fitted one, their error has their tail."""

import math

import pytest
import torch

from skvi._sampling._chains import Chains
from skvi._sampling._importance import pareto_khat
from skvi.base import Layout
from skvi.evidence import _summarize
from skvi.evidence._estimates import Sides
from skvi.evidence._summarize import summarize
from skvi.linear_model import BayesianLogisticRegression
from skvi.posteriors import MeanFieldNormal
from skvi.priors import Normal
from skvi.solvers import _moment_matching
from skvi.targets import Target
from skvi.utils._tensors import log_mean_exp

N, SHAPE = 4096, 1.2


class Bell(Target):
    """A prior alone: log Z = 0."""

    layout = Layout({"coef": (1, 1)})
    prior = Normal(1.0).build(layout)

    def log_joint(self, theta, rows=None):
        return self.prior.log_prob(theta)


def nearly_constant(size, seed=0, most=0.9):
    """Log weights with a tail of k 1.2, none above 1.9 times the smallest."""
    generator = torch.Generator().manual_seed(seed)
    tail = torch.rand(N, generator=generator, dtype=torch.float64) ** -SHAPE
    return torch.log1p(most * tail / tail.max()).reshape(size)


def bounds_of(forward, reverse):
    generator = torch.Generator().manual_seed(1)
    theta = torch.randn(64, N // 64, 1, generator=generator, dtype=torch.float64)
    sides = Sides(
        method="importance",
        forward=forward,
        reverse=reverse,
        bridge=reverse,
        k_below=1,
        k_above=1,
        chains=Chains(theta, torch.zeros(64, N // 64).double(), 0.8),
        error=math.inf,
    )
    posterior = MeanFieldNormal().build(Bell.layout)
    return summarize(Bell(), posterior, sides, generator, "log evidence")


EVEN = torch.zeros(N).double()


@pytest.mark.parametrize("side", ["lower", "upper"])
def test_nearly_constant_weights_are_exempt_and_pay(side, monkeypatch):
    """Wrong variants: k is capped; not exempt; 2 / n is left out of the error."""
    tail = nearly_constant(N)
    forward = tail if side == "lower" else EVEN
    reverse = -tail if side == "upper" else EVEN
    bounds = bounds_of(forward, reverse.reshape(64, -1))
    assert bounds.khat == pareto_khat(tail) > 0.9
    assert bounds.weights[side].khat == bounds.khat
    assert bounds.reliable
    monkeypatch.setattr(_summarize, "_unseen_tail", lambda khat, log_weights: 0.0)
    plain = bounds_of(forward, reverse.reshape(64, -1))
    assert not plain.reliable
    extra = {
        name: getattr(bounds, f"{name}_se") - getattr(plain, f"{name}_se")
        for name in ("lower", "upper")
    }
    assert extra.pop(side) == pytest.approx(2 / N, rel=1e-9)
    assert set(extra.values()) == {0.0}


def test_one_weight_above_twice_the_mean_is_enough():
    """Wrong variant: the largest weight is compared with the sum of all."""
    bounds = bounds_of(nearly_constant(N, most=1.5), EVEN.reshape(64, -1))
    assert not bounds.reliable
    assert "weights of the lower bound are too heavy-tailed" in bounds.reason


def test_light_tails_pay_nothing():
    """Nearly constant weights whose k is allowed. Wrong variant: 2 / n all the same."""
    generator = torch.Generator().manual_seed(0)
    light = torch.rand(N, generator=generator, dtype=torch.float64) / 2
    light = light - log_mean_exp(light)
    bounds = bounds_of(light, EVEN.reshape(64, -1))
    assert bounds.reliable
    assert bounds.lower_se == pytest.approx(float(light.std()) / 64, rel=1e-9)


def test_too_few_weights_are_not_exempt():
    """No k can be fitted to 20 weights. Wrong variant: they count as constant."""
    few = nearly_constant(N)[:20]
    assert pareto_khat(few) == math.inf
    assert _summarize._unseen_tail(math.inf, few) == 0.0


def test_moments_are_not_exempt(monkeypatch):
    """Flat weights say nothing of weighted moments. Wrong variant: k is capped."""
    draw = _moment_matching.draw_weighted

    def draw_flat(*args):
        draws = draw(*args)
        size = len(draws.theta)
        tail = nearly_constant(N).repeat(-(-size // N))[:size]
        return type(draws)(draws.theta, tail)

    monkeypatch.setattr(_moment_matching, "draw_weighted", draw_flat)
    X = torch.linspace(-1, 1, 20).reshape(-1, 1).numpy()
    model = BayesianLogisticRegression(objective="eubo", prior="normal")
    with pytest.warns(match=r"draws behind the moments are poor \(Pareto k (0.9|1)"):
        model.fit(X, [0, 1] * 10)
