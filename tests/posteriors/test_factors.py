"""Gamma, Beta and categorical factors, and gradients of their products."""

import itertools
import math
import pickle

import pytest
import torch
from scipy import special

from skvi.base import Layout, NormalForm
from skvi.divergences import KLDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.objectives import ELBO
from skvi.posteriors import Beta, Gamma, MeanFieldNormal, Product
from skvi.posteriors._product import Categorical
from skvi.targets import Target

KINDS = {"Gamma": (Gamma(), "exp"), "Beta": (Beta(), "sigmoid")}
LAYOUT = Layout(
    {"z": (2,), "k": (1,), "x": (1,)},
    {"z": "integer", "k": "integer"},
    limits={"z": (0, 1), "k": (2, 4)},
)


class Coupled(Target):
    """Discrete parameters that depend on each other and on a real one."""

    layout = LAYOUT

    def log_joint(self, theta, rows=None):
        z, k, x = theta[:, :2], theta[:, 2] - 3, theta[:, 3]
        pair = 0.7 * z[:, 0] * z[:, 1] - 0.4 * k * z[:, 0]
        return pair - 0.5 * (x - z[:, 1] - k).square()


def product():
    q = Product({"x": MeanFieldNormal()}).build(LAYOUT)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(len(q.params), generator=generator, dtype=torch.float64)
    return q.at(q.params + 0.7 * noise)


def exact_elbo(params):
    """By enumeration, and in x by the moments that its quadratic needs."""
    q = product().at(params)
    mean, variance = q.part("x").normal().mean, q.part("x").normal().variance
    entropy = 0.5 * torch.log(2 * math.pi * math.e * variance).sum()
    total = entropy
    for state in itertools.product([0, 1], [0, 1], [2, 3, 4]):
        values = torch.tensor([state], dtype=torch.float64)
        log_q = q.part("z").log_prob(values[:, :2]) + q.part("k").log_prob(
            values[:, 2:]
        )
        joint = Coupled().log_joint(torch.cat([values, mean[None]], 1))
        total = total + (log_q.exp() * (joint - 0.5 * variance - log_q)).sum()
    return total


@pytest.mark.parametrize("gradient", ["auto", "reparam", "stl", "score"])
def test_gradients_sum_over_the_values_of_each_coordinate(gradient):
    """Against the gradient by enumeration.

    Wrong variants: each coordinate's sum over the number of coordinates; other draws of
    the other parameters for each value.
    """
    leaf = product().params.clone().requires_grad_()
    value = exact_elbo(leaf)
    (exact,) = torch.autograd.grad(value, leaf)
    n_runs = 200
    parts = Coupled(), product(), KLDivergence(), None, 20
    found = [
        ELBO(gradient).value_and_gradient(*parts, torch.Generator().manual_seed(i))
        for i in range(n_runs)
    ]
    for estimates, expected in zip(
        zip(*found, strict=True), (value, exact), strict=True
    ):
        estimates = -torch.stack(estimates)
        error = estimates.std(0) / math.sqrt(n_runs)
        assert bool(((estimates.mean(0) - expected).abs() < 4 * error + 1e-9).all())
    of_values = torch.stack([g for _, g in found])[:, 2:]
    assert bool((of_values.std(0) < 0.15).all()) == (gradient != "score")


def test_independent_coordinates_have_exact_gradients():
    """One draw is enough where no value depends on another. Wrong: its score."""

    class Independent(Target):
        layout = LAYOUT.only("z", "k")

        def log_joint(self, theta, rows=None):
            return theta @ torch.tensor([0.5, -1.0, 0.3]).double()

    q = Product().build(Independent.layout)
    parts = Independent(), q, KLDivergence(), None, 1
    (_, first), (_, second) = (
        ELBO().value_and_gradient(*parts, torch.Generator().manual_seed(i))
        for i in range(2)
    )
    torch.testing.assert_close(first, second)
    slope = -torch.tensor([-0.125, 0.125, 0.25, -0.25, -0.1, 0.0, 0.1]).double()
    torch.testing.assert_close(first, slope)


def test_rao_blackwell_of_a_product():
    """The score form by coordinate. Wrong variant: terms in the order of the parts."""
    q = product()
    theta = q.draw(5, torch.Generator().manual_seed(0)).theta
    terms = q.log_prob_terms(theta)
    torch.testing.assert_close(terms.sum(1), q.log_prob(theta))
    torch.testing.assert_close(terms[:, 3], q.part("x").log_prob(theta[:, 3:]))
    rule = ELBO("score", rao_blackwell=True)
    found = [
        rule.value_and_gradient(
            Coupled(), q, KLDivergence(), None, 20, torch.Generator().manual_seed(i)
        )[1]
        for i in range(200)
    ]
    leaf = q.params.clone().requires_grad_()
    (exact,) = torch.autograd.grad(-exact_elbo(leaf), leaf)
    found = torch.stack(found)
    error = found.std(0) / math.sqrt(len(found))
    assert bool(((found.mean(0) - exact).abs() < 4 * error).all())


@pytest.mark.parametrize("kind", KINDS)
def test_densities_and_draws(kind):
    """Of logs and log odds: integrals, moments, paths. Wrong variant: no Jacobian."""
    family, bijection = KINDS[kind]
    q = family.build(Layout({"x": (1,)}, {"x": bijection}))
    q = q.at(torch.tensor([2.5, 1.2]).double().log())
    grid = torch.linspace(-30, 30, 60_001, dtype=torch.float64)
    density = q.log_prob(grid[:, None]).exp()
    assert float(density.sum() * 1e-3) == pytest.approx(1.0, abs=1e-9)
    mean = float((grid * density).sum() * 1e-3)
    draws = q.draw(20_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.log_q, q.log_prob(draws.theta))
    error = 4 * float(draws.theta.std()) / math.sqrt(20_000)
    assert float(draws.theta.mean()) == pytest.approx(mean, abs=error)
    expected = special.digamma(2.5) - (
        math.log(1.2) if kind == "Gamma" else special.digamma(1.2)
    )
    assert mean == pytest.approx(expected, abs=1e-6)
    leaf = q.params.clone().requires_grad_()
    moved = q.at(leaf).draw(20_000, torch.Generator().manual_seed(0)).theta
    (slope,) = torch.autograd.grad(moved.mean(), leaf)
    second = -1.0 if kind == "Gamma" else -1.2 * special.polygamma(1, 1.2)
    exact = torch.tensor([2.5 * special.polygamma(1, 2.5), second]).double()
    torch.testing.assert_close(slope, exact, rtol=0.05, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_near_the_moments(kind):
    """Of a normal of logs or log odds. Wrong variant: of large shapes only."""
    family, bijection = KINDS[kind]
    q = family.build(Layout({"x": (1,)}, {"x": bijection}))
    std = 0.6 if kind == "Gamma" else 0.2
    normal = NormalForm(torch.tensor([0.7]).double(), torch.tensor([std]).double())
    a, b = (float(x) for x in q.near(normal).params.exp())
    second = math.log(b) if kind == "Gamma" else special.digamma(b)
    assert special.digamma(a) - second == pytest.approx(0.7, abs=0.02)
    variance = special.polygamma(1, a)
    variance += 0.0 if kind == "Gamma" else special.polygamma(1, b)
    assert variance == pytest.approx(std**2, rel=0.05)


def test_draws_of_integers():
    """Frequencies are the probabilities; elsewhere they are 0; a pickle is the same.

    Wrong variant: values from 0 in place of their least.
    """
    q = Categorical().build(LAYOUT.only("z", "k"), torch.Generator().manual_seed(1))
    theta = q.draw(20_000, torch.Generator().manual_seed(0)).theta
    tables = q.probabilities()
    assert tables["k"].shape == (1, 3)
    for value, expected in zip((2, 3, 4), tables["k"][0], strict=True):
        share = float((theta[:, 2] == value).double().mean())
        error = math.sqrt(float(expected * (1 - expected)) / 20_000)
        assert share == pytest.approx(float(expected), abs=4 * error)
    states = itertools.product([0, 1], [0, 1], [2, 3, 4])
    values = torch.tensor(list(states), dtype=torch.float64)
    assert float(q.log_prob(values).exp().sum()) == pytest.approx(1.0, abs=1e-12)
    outside = torch.tensor([[0, 0.5, 2], [0, 1, 1], [0, 1, 5]]).double()
    assert bool((q.log_prob(outside) == -torch.inf).all())
    again = pickle.loads(pickle.dumps(q))
    torch.testing.assert_close(again.log_prob(values), q.log_prob(values))


@pytest.mark.parametrize("family", [Gamma(), Beta(), Categorical()])
def test_blocks_of_another_kind_are_refused(family):
    with pytest.raises(IncompatibleComponentsError, match=r"support '\w+'.*\['x'\]"):
        family.build(LAYOUT.only("x"))
