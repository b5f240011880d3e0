"""Mixtures and products of factors."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from scipy import special

from skvi.base import Layout, NormalForm
from skvi.divergences import KLDivergence
from skvi.evidence._bounds import bound_evidence
from skvi.exceptions import IncompatibleComponentsError
from skvi.neural_network import BayesianMLPClassifier
from skvi.objectives import ELBO
from skvi.posteriors import Beta, Gamma, MeanFieldNormal, MixtureOfNormals, Product
from skvi.posteriors._product import Categorical
from skvi.targets import Target

PLANE = Layout({"coef": (1, 2)})
BASES = ["mean_field", "low_rank", "full_rank"]
every_base = pytest.mark.parametrize("base", BASES)


class Modes(Target):
    """Normals of a plane, with masses: log Z is that of their sum."""

    layout = PLANE

    def __init__(self, masses, means, scales):
        self.log_masses = torch.log(torch.tensor(masses).double())
        self.normals = [
            NormalForm(torch.tensor(m).double(), torch.tensor(s).double())
            for m, s in zip(means, scales, strict=True)
        ]

    def log_joint(self, theta, rows=None):
        logs = torch.stack([n.log_prob(theta) for n in self.normals])
        return torch.logsumexp(logs + self.log_masses[:, None], 0)


def grid(reach=20.0, step=0.1):
    """Points of a square, and the area of each."""
    x = torch.arange(-reach, reach + step / 2, step, dtype=torch.float64)
    points = torch.cartesian_prod(x, x)
    return points, step**2


def away_from_start(base, n_components=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = MixtureOfNormals(n_components, base).build(PLANE, generator)
    root = torch.tensor([[1.5, 0.0], [0.8, 0.7]]).double()
    q = q.near(NormalForm(torch.tensor([0.5, -0.3]).double(), root))
    noise = torch.randn(len(q.params), generator=generator).double()
    return q.at(q.params + 0.3 * noise)


@every_base
def test_density_integrates_to_one_and_agrees_with_draws(base, generator):
    """By quadrature in the plane. Wrong variants: weights that are all equal; members
    drawn equally often."""
    q = away_from_start(base)
    theta, area = grid()
    density = q.log_prob(theta).exp()
    assert float(density.sum()) * area == pytest.approx(1, abs=1e-6)
    draw = q.draw(40_000, generator)
    torch.testing.assert_close(draw.log_q, q.log_prob(draw.theta))
    for power in (1, 2):
        expected = (density @ theta**power) * area
        error = (draw.theta**power).std(0) / len(draw) ** 0.5
        assert bool(((draw.theta**power).mean(0) - expected).abs().le(4 * error).all())
    again = pickle.loads(pickle.dumps(q))
    assert torch.equal(again.log_prob(theta), q.log_prob(theta))


def product():
    """Two independent mixtures, whose strata are paired at random."""
    layout = Layout({"a": (1,), "b": (1,)})
    blocks = {"a": MixtureOfNormals(2), "b": MixtureOfNormals(4)}
    generator = torch.Generator().manual_seed(1)
    q = Product(blocks).build(layout, generator)
    return q.at(q.params + 0.5 * torch.randn(len(q.params), generator=generator))


@pytest.mark.parametrize("gradient", ["reparam", "stl"])
@pytest.mark.parametrize("base", [*BASES, "product"])
def test_every_parameter_has_the_gradient_of_the_bound(
    base, gradient, numeric_gradient, generator
):
    """Beside differences of the ELBO by quadrature, in standard errors.

    Wrong variants: weights of strata that are not differentiated; strata that all
    count equally; a product that pairs stratum with stratum.
    """
    target = Modes([0.5, 2.0], [[-1.0, 0.0], [1.0, 1.0]], [[1.0, 0.5], [0.7, 1.2]])
    q = product() if base == "product" else away_from_start(base, n_components=2)
    theta, area = grid()
    log_p = target.log_joint(theta)

    def loss(params):
        log_q = q.log_prob(theta, params)
        return (log_q.exp() * (log_q - log_p)).sum() * area

    expected = numeric_gradient(loss, q.params)
    parts = target, q, KLDivergence(), None, 202, generator
    found = [ELBO(gradient).value_and_gradient(*parts) for _ in range(40)]
    values, gradients = (torch.stack(part) for part in zip(*found, strict=True))
    error = gradients.std(0) / 40**0.5
    assert bool((gradients.mean(0) - expected).abs().le(4.5 * error + 1e-7).all())
    assert float(expected.abs().max()) > 0.1
    assert abs(float(values.mean() - loss(q.params))) < 4 * values.std() / 40**0.5


def test_components_start_apart_at_the_modes():
    """Two at each of two modes, one at each of four; each with the mode's widths.

    Wrong variants: all at the first mode; the widths of the first.
    """
    q = MixtureOfNormals(4, "mean_field").build(PLANE)
    modes = [
        NormalForm(torch.full((2,), m).double(), torch.full((2,), s).double())
        for m, s in [(0.0, 1.0), (50.0, 0.01), (-9.0, 3.0), (7.0, 0.1)]
    ]
    for n_modes in (1, 2, 3, 4):
        placed = q.near_modes(modes[:n_modes]).members
        for k, member in enumerate(placed):
            mode = modes[k % n_modes]
            distance = float(mode.whiten(member.anchor.mean - mode.mean).norm())
            is_shared = sum(j % n_modes == k % n_modes for j in range(4)) > 1
            assert distance == pytest.approx(1.0 if is_shared else 0.0, abs=1e-9)
            torch.testing.assert_close(member.anchor.scale, mode.scale)
        means = torch.stack([member.anchor.mean for member in placed])
        assert torch.unique(means, dim=0).shape[0] == 4


@pytest.mark.parametrize("distance", [3.0, 50.0])
def test_proposals_of_the_evidence_are_the_components(distance, generator):
    """Both bounds, within .05 nats of the truth, where no single normal is of use.

    Wrong variant: the normal of the moments only.
    """
    means, scales = [[-2.0, 0.0], [distance - 2, 0.0]], [[1.0, 0.3], [0.02, 1.0]]
    target = Modes([0.6, 1.4], means, scales)
    q = MixtureOfNormals(2).build(PLANE).near_modes(target.normals)
    found = bound_evidence(target, q, generator, precision=0.1)
    assert found.method == "importance"
    assert found.reliable
    low, high = found.interval()
    assert low - 0.01 < math.log(2) < high + 0.01
    assert high - low < 0.1


def test_networks_refuse_it():
    model = BayesianMLPClassifier(posterior="mixture")
    with pytest.raises(IncompatibleComponentsError, match="'ensemble'"):
        model.fit(np.eye(4), [0, 1, 0, 1])


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


def factor_product():
    q = Product({"x": MeanFieldNormal()}).build(LAYOUT)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(len(q.params), generator=generator, dtype=torch.float64)
    return q.at(q.params + 0.7 * noise)


def exact_elbo(params):
    """By enumeration, and in x by the moments that its quadratic needs."""
    q = factor_product().at(params)
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
    leaf = factor_product().params.clone().requires_grad_()
    value = exact_elbo(leaf)
    (exact,) = torch.autograd.grad(value, leaf)
    n_runs = 200
    parts = Coupled(), factor_product(), KLDivergence(), None, 20
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
