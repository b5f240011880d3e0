"""Families that are normal given noise, against quadrature in 1 and 2 dimensions."""

import numpy as np
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale

from skvi.base import Layout, NormalForm
from skvi.divergences import KLDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.inference import VariationalInference
from skvi.neural_network import BayesianMLPRegressor
from skvi.objectives import ELBO
from skvi.posteriors import (
    FullRankNormal,
    HierarchicalVariational,
    MultiplicativeFlow,
    SemiImplicitMixture,
)
from skvi.posteriors._auxiliary import SHARE
from skvi.posteriors._multiplicative import NETWORK_SHARE
from skvi.predictors import LinearPredictor, MLPPredictor, ModulePredictor
from skvi.targets import Target
from skvi.utils._tensors import make_generator, randn

SMALL = {"n_hidden": 3}
N_SE = 4


def dense(size):
    """Layout of a layer with one unit."""
    return Layout({"coef": (1, size)}, input_axes={"coef": 1})


class Bent(Target):
    """A normal x beside y that is near x^2: log Z is 0."""

    def __init__(self, size):
        self.layout = dense(size)

    def log_joint(self, theta, rows=None):
        centers = (theta[:, :1], theta[:, 1:] - 0.5 * theta[:, :1].square())
        parts = torch.cat(centers[: self.layout.size], 1) / 0.8
        return -(0.5 * parts.square() + np.log(0.8 * (2 * np.pi) ** 0.5)).sum(1)


def grid(size, count):
    """Nodes of a standard normal, (count^size, size), and logs of their weights."""
    nodes, weights = map(torch.from_numpy, hermegauss(count))
    logs = (weights / weights.sum()).log()
    both = [torch.cartesian_prod(*[x] * size).reshape(-1, size) for x in (nodes, logs)]
    return both[0], both[1].sum(1)


def perturbed(family, size, amount=0.3):
    """Posterior away from its start, in units away from 1."""
    generator = make_generator(2)
    q = family.build(dense(size), generator)
    scale = torch.full((size,), 0.7, dtype=torch.float64)
    q = q.near(NormalForm(0.2 + 0.0 * scale, scale))
    move = amount * randn(generator, len(q.params))
    if isinstance(family, MultiplicativeFlow):
        move[-len(q._start) :] /= NETWORK_SHARE
    return q.at(q.params + move)


def exact_log_q(q, theta, params, n_nodes):
    """Log density by quadrature over the auxiliary variable."""
    e, log_weight = grid(q.settings.n_auxiliary, n_nodes)
    given = q.conditional(e[:, None], params)
    logs = given.log_prob(q.to_white(theta)[None]) + log_weight[:, None]
    return torch.logsumexp(logs, 0) - q.anchor.half_log_det


def exact_elbo(q, target, n_nodes, n_noise, params=None):
    """ELBO by quadrature over all noise, differentiable."""
    params = q.params if params is None else params
    e, log_e = grid(q.settings.n_auxiliary, n_nodes)
    noise, log_noise = grid(target.layout.size, n_noise)
    u = q.conditional(e[:, None], params).transform(noise)
    theta = q.anchor.transform(u.flatten(0, 1))
    weight = (log_e[:, None] + log_noise).exp().flatten()
    return weight @ (target.log_joint(theta) - exact_log_q(q, theta, params, n_nodes))


def mean_and_se(values):
    return float(values.mean()), float(values.std()) / len(values) ** 0.5


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(SemiImplicitMixture(proposal="prior", **SMALL), id="prior"),
        pytest.param(HierarchicalVariational(**SMALL), id="learned"),
        pytest.param(MultiplicativeFlow(**SMALL), id="multiplicative"),
    ],
)
@pytest.mark.parametrize(("size", "n_nodes", "n_noise"), [(1, 40, 20), (2, 12, 8)])
def test_bounds_enclose_the_elbo_and_meet(size, n_nodes, n_noise, family):
    """L_K <= ELBO <= L^K against quadrature, and their distance decreases with K.

    L_0 has one term, and an upper side of ten. Wrong variants: the upper bound of log q
    without the e that generated the draw; the lower bound with it; terms without the
    density of the proposal.
    """
    target, generator = Bent(size), make_generator(1)
    q, gaps = perturbed(family, size), []
    with torch.no_grad():
        truth = float(exact_elbo(q, target, n_nodes, n_noise))
        for n_mixture in (0, 1, 64):
            found = q.with_mixture(n_mixture)
            draws = found.draw(4000, generator), found.draw_below(4000, generator)
            assert [draw.side for draw in draws] == ["upper", "lower"]
            values = [target.log_joint(draw.theta) - draw.log_q for draw in draws]
            for sign, value in zip((-1, 1), values, strict=True):
                mean, error = mean_and_se(value)
                assert sign * (mean - truth) > -N_SE * error - 1e-3
            # With less noise: on the same draws.
            for sign, draw in zip((1, -1), draws, strict=True):
                exact = exact_log_q(q, draw.theta, q.params, n_nodes)
                mean, error = mean_and_se(sign * (draw.log_q - exact))
                assert mean > -N_SE * error - 1e-3
                gaps.append(mean)
    assert sum(gaps[2:4]) > 1.5**2 * sum(gaps[4:])


@pytest.mark.parametrize(
    "family",
    [
        HierarchicalVariational(**SMALL),
        SemiImplicitMixture(n_mixture=3, **SMALL),
        SemiImplicitMixture(n_mixture=3, proposal="prior", **SMALL),
        MultiplicativeFlow(**SMALL),
    ],
)
def test_weights_have_the_mean_of_the_evidence(family):
    """E exp(log p - log q) = Z: what bounds of the evidence rest on.

    Wrong variants: the mean over K of K + 1 terms; the noise without its density.
    """
    q = perturbed(family, 2, amount=0.2)
    inner = NormalForm(torch.full((2,), 0.2).double(), torch.full((2,), 0.3).double())
    with torch.no_grad():
        draw = q.draw(20000, make_generator(2))
    value, error = mean_and_se((inner.log_prob(draw.theta) - draw.log_q).exp())
    assert error < 0.03
    assert value == pytest.approx(1.0, abs=N_SE * error)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fits_print_both_sides():
    """`lower_bound_` and "elbo_upper" enclose the ELBO of a fit without K.

    Wrong variants: both sides exchanged; log q without the scale of coordinates.
    """
    target = Bent(2)
    model = VariationalInference(
        lambda p: target.log_joint(p["x"]),
        {"x": 2},
        posterior=HierarchicalVariational(**SMALL),
        max_iter=1,
        random_state=0,
    ).fit()
    found = model.diagnostics_
    with torch.no_grad():
        truth = float(exact_elbo(model.posterior_, target, 12, 12))
    below = model.lower_bound_ - truth, model.lower_bound_se_
    above = found["elbo_upper"] - truth, found["elbo_upper_se"]
    assert -0.3 < below[0] < N_SE * below[1]
    assert -N_SE * above[1] < above[0] < 0.3


@pytest.mark.parametrize("size", [1, 2])
def test_unbiased_gradients(size):
    """The mean of gradients with inner chains is that of the exact ELBO, by quadrature.

    Wrong variants: the chain returns the pair that it starts at; it chooses among draws
    of r alone, which is too narrow here; the slope in u is not multiplied by the path
    of u.
    """
    target, generator = Bent(size), make_generator(3)
    q = perturbed(SemiImplicitMixture(gradient="unbiased", **SMALL), size)
    nodes = (40, 20) if size == 1 else (12, 8)
    leaf = q.params.clone().requires_grad_()
    value = -exact_elbo(q, target, *nodes, params=leaf)
    (truth,) = torch.autograd.grad(value, leaf)
    found = torch.stack(
        [
            ELBO().value_and_gradient(target, q, KLDivergence(), None, 400, generator)[
                1
            ]
            for _ in range(30)
        ]
    )
    is_forward = truth != 0  # the proposal does not enter the exact value
    error = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - truth).abs() < N_SE * error + 1e-3)[is_forward].all()
    assert (found[:, ~is_forward] != 0).all()


LAYERS = [
    LinearPredictor(2, 3).layout,
    MLPPredictor(2, 1, hidden_layer_sizes=(3,)).layout,
    ModulePredictor(torch.nn.Linear(2, 3), torch.zeros(4, 2), 3).layout,
]


@pytest.mark.parametrize("layout", LAYERS, ids=["linear", "mlp", "module"])
def test_inputs_are_multiplied(layout, make_normal):
    """The start is a normal, with one more direction for each input of a layer.

    Its density is known, and the bound is exact: r is the distribution of the noise.
    Wrong variants: outputs multiplied in place of inputs; r without the precision of
    the noise, or with weights of 1.
    """
    normal, n_inputs = make_normal(layout.size, "diag", seed=1), 0
    q = MultiplicativeFlow(**SMALL).build(layout).near(normal)
    q.params[layout.size : 2 * layout.size] = 0.3  # log scales
    directions = []
    for name, block in layout.items():
        if block.role == "weight":
            # f = X coef' of linear models and modules, X coef of networks
            axis = 0 if name.startswith("coef_") else 1
            for i in range(block.shape[axis]):
                row = torch.zeros(layout.size).double()
                where = torch.zeros(block.shape, dtype=torch.bool)
                where.select(axis, i)[:] = True
                row[block.slice][where.flatten()] = 1.0
                row = row * normal.mean
                size = 1 + (row / normal.scale).square().sum()
                directions.append(row * (SHARE / size).sqrt())
            n_inputs += block.shape[axis]
    assert q.settings.n_auxiliary == n_inputs
    scale = normal.scale * np.exp(0.3)
    expected = NormalForm(normal.mean, scale, torch.stack(directions, 1))
    draw = q.draw(2000, make_generator(0))
    torch.testing.assert_close(draw.log_q, expected.log_prob(draw.theta))
    mean, error = mean_and_se(draw.log_q + expected.entropy())
    assert abs(mean) < N_SE * error


def test_coordinates_of_a_normal_fit():
    """Whitened, or in units of the best factorized normal, of variances 1 / precision.

    Wrong variant: the marginal standard deviations.
    """
    layout = Layout({"coef": (1, 2)})
    root = torch.tensor([[1.0, 0.0], [1.5, 0.5]]).double()
    normal = NormalForm(torch.ones(2).double(), root)
    whitened = SemiImplicitMixture().build(layout).near(normal)
    own = SemiImplicitMixture(whiten=False).build(layout).near(normal)
    assert torch.equal(whitened.anchor.scale, root)
    precision = torch.linalg.inv(root @ root.T)
    assert torch.allclose(own.anchor.scale, precision.diagonal().rsqrt())


def test_what_has_no_density_is_refused():
    q = HierarchicalVariational().build(Layout({"coef": (1, 2)}))
    with pytest.raises(IncompatibleComponentsError, match="posterior='full_rank'"):
        q.log_prob(torch.zeros(1, 2).double())
    assert FullRankNormal().build(q.layout).draw_below(3, make_generator(0)) is None
    with pytest.raises(ValueError, match="posterior='mean_field'"):
        SemiImplicitMixture().check_size(10**6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_networks_start_at_a_factorized_fit():
    """The bound is not below the factorized one after as many epochs.

    Wrong variant: the start of a network's own, from which a family that is relative to
    it is slow.
    """
    X, y = load_iris(return_X_y=True)
    X, y = scale(X[:, :3]).astype(np.float32), X[:, 3]
    model = BayesianMLPRegressor(
        skip_connection=False,
        likelihood="gaussian",
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        hidden_layer_sizes=(3,),
        max_iter=20,
        random_state=0,
    )
    family = SemiImplicitMixture(n_mixture=1, **SMALL)
    bent = clone(model).set_params(posterior=family).fit(X, y)
    assert bent.posterior_.params.dtype == torch.float32
    error = model.fit(X, y).lower_bound_se_ + bent.lower_bound_se_
    assert bent.lower_bound_ > model.lower_bound_ - N_SE * error
