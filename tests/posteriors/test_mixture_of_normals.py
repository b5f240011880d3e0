"""Mixtures of normals: density, draws, gradients in strata, modes, fits."""

import math
import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale

from skvi.base import Layout, NormalForm
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.evidence._bounds import bound_evidence
from skvi.evidence._summarize import lower_bound
from skvi.exceptions import IncompatibleComponentsError
from skvi.linear_model import BayesianLogisticRegression
from skvi.neural_network import BayesianMLPClassifier
from skvi.objectives import ELBO, EUBO
from skvi.posteriors import MixtureOfNormals, Product
from skvi.solvers import Problem, SolverOptions, Stochastic
from skvi.targets import Target
from skvi.testing import check_part

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
def test_contract(base):
    check_part(MixtureOfNormals(base=base))


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


def test_score_gradient_includes_the_weights(numeric_gradient, generator):
    """The score form needs no strata, so that other objectives have it, too."""
    target = Modes([0.5, 2.0], [[-1.0, 0.0], [1.0, 1.0]], [[1.0, 0.5], [0.7, 1.2]])
    q = away_from_start("mean_field", n_components=2)
    theta, area = grid()
    log_p = target.log_joint(theta)

    def eubo(params):  # its gradient is that of -E_p[log q]
        return -(log_p.exp() * q.log_prob(theta, params)).sum() * area / 2.5

    expected = numeric_gradient(eubo, q.params)
    parts = target, q, KLDivergence(), None, 4000, generator
    objective = EUBO(gradient="score")
    found = [objective.value_and_gradient(*parts)[1] for _ in range(20)]
    error = torch.stack(found).std(0) / 20**0.5
    assert bool((sum(found) / 20 - expected).abs().le(4.5 * error + 1e-3).all())


def test_objectives_without_strata_are_refused():
    q = MixtureOfNormals().build(PLANE)
    target = Modes([1.0], [[0.0, 0.0]], [[1.0, 1.0]])
    with pytest.raises(IncompatibleComponentsError, match="'ensemble'"):
        EUBO().check_posterior(q, KLDivergence(), target)
    with pytest.raises(IncompatibleComponentsError, match="'ensemble'"):
        ELBO().check_posterior(q, RenyiDivergence(), target)
    EUBO(gradient="score").check_posterior(q, KLDivergence(), target)
    ELBO().check_posterior(q, KLDivergence(), target)


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


def test_factorized_components_have_conditional_deviations():
    """Wrong variant: marginal ones, which are too wide for a factorized normal."""
    root = torch.tensor([[1.0, 0.0], [0.9, 0.4]]).double()
    normal = NormalForm(torch.zeros(2).double(), root)
    q = MixtureOfNormals(1, "mean_field").build(PLANE).near(normal)
    conditional = torch.linalg.inv(normal.covariance()).diagonal().rsqrt()
    torch.testing.assert_close(q.members[0].anchor.scale, conditional)
    low = MixtureOfNormals(1, "low_rank").build(PLANE).near(normal)
    theta = low.draw(40_000, torch.Generator().manual_seed(0)).theta
    found = np.cov(theta.T.numpy())
    np.testing.assert_allclose(found, normal.covariance(), rtol=0.05)


@pytest.mark.parametrize(
    "base", ["full_rank", *(pytest.param(b, marks=pytest.mark.slow) for b in BASES[:2])]
)
def test_two_far_modes_have_their_masses(base, generator):
    """Masses .3 and .7 of Z = 2: weights, and an ELBO of log Z.

    Wrong variants: weights that are not trained; all members at the first mode.
    """
    means, scales = [[-20.0, 3.0], [30.0, 0.0]], [[1.0, 0.1], [0.02, 2.0]]
    target = Modes([0.6, 1.4], means, scales)
    # Three components, from normals that are off in place and width.
    near = [NormalForm(n.mean + 0.3 * n.scale, 0.7 * n.scale) for n in target.normals]
    start = MixtureOfNormals(3, base).build(PLANE).near_modes(near)
    problem = Problem(target, ELBO(), KLDivergence(), start, generator)
    solution = Stochastic().solve(problem, SolverOptions(max_iter=6, tol=1e-4))
    q, log_z = solution.posterior, math.log(2)
    is_left = [float(m.anchor.mean[0]) < 0 for m in q.members]
    left = float(q.log_weights.exp()[torch.tensor(is_left)].sum())
    assert left == pytest.approx(0.3, abs=0.01)
    assert -solution.value == pytest.approx(log_z, abs=0.02)


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


def test_in_searches_and_in_single_precision():
    """A search over its parameters; the bound is below the log evidence.

    Wrong variant: parameters of the components that a search cannot reach.
    """
    X, y = load_iris(return_X_y=True)
    X, y = scale(X[50:]).astype(np.float32), y[50:]
    model = BayesianLogisticRegression(
        posterior=MixtureOfNormals(2), prior="normal", max_iter=1, random_state=0
    )
    search = GridSearchCV(model, {"posterior__n_components": [1, 2]}, cv=2)
    with pytest.warns(ConvergenceWarning):
        search.fit(X, y)
    best = search.best_estimator_
    assert best.predict_proba(X).dtype == np.float32
    bounds = best.evidence_bounds(X, y, random_state=0)
    assert best.lower_bound_ - 4 * best.lower_bound_se_ < bounds.upper
    again = pickle.loads(pickle.dumps(best))
    np.testing.assert_array_equal(again.predict_proba(X), best.predict_proba(X))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "one"), [("mean_field", -67.46), ("full_rank", -55.461)]
)
def test_four_normals_are_above_one(base, one):
    """Breast cancer, whose log evidence is -55.224, beside the best single normals.

    Wrong variant: components that all start at one place, and stay equal.
    """
    X, y = load_breast_cancer(return_X_y=True)
    prior = {"prior": "normal", "intercept_prior": "normal"}
    model = BayesianLogisticRegression(
        posterior=MixtureOfNormals(base=base), random_state=0, **prior
    ).fit(scale(X), y)
    assert model.converged_
    target, _ = model._make_target(scale(X), y)
    generator = torch.Generator().manual_seed(1)
    value, error = lower_bound(target, model.posterior_, generator, 20_000)
    assert one + 4 * error < value < -55.224 + 4 * error
