"""Fits of a user's density."""

import math
import re
import warnings

import numpy as np
import pytest
import torch
from torch.distributions import (
    Beta,
    Cauchy,
    Dirichlet,
    Gamma,
    HalfNormal,
    LogNormal,
    Normal,
    Pareto,
    StudentT,
    Uniform,
    constraints,
    transforms,
)

from skvi._sampling._importance import StudentT as StudentTProposal
from skvi.exceptions import IncompatibleComponentsError
from skvi.inference import VariationalInference, _beginning
from skvi.posteriors import LowRankNormal
from skvi.solvers import Stochastic
from skvi.solvers._fixed_draws import FixedDrawsPoint, _Whitened, balanced_noise
from skvi.targets import _density
from skvi.targets._density import RowsDensityTarget

NUMBER = {"x": ()}


def fit(log_density, shapes, supports=None, **params):
    """A fit, and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vi = VariationalInference(
            log_density, shapes, supports, **{"random_state": 0, **params}
        ).fit()
    return vi, [str(one.message) for one in caught]


def uniform_order(p):
    """Ordered draws of a normal."""
    return Normal(0.0, 1.0).log_prob(p["x"]).sum(1) + math.log(6)


def shares(p):
    return Dirichlet(torch.tensor([2.0, 3.0, 4.0])).log_prob(p["x"])


def positives(p):
    return LogNormal(0.5, 0.7).log_prob(p["x"]).sum(1) + math.log(2)


SUPPORTED = {
    "positive": (lambda p: Gamma(4.0, 2.0).log_prob(p["x"]), (), "positive"),
    "unit_interval": (lambda p: Beta(3.0, 2.0).log_prob(p["x"]), (), "unit_interval"),
    "simplex": (shares, (3,), "simplex"),
    "ordered": (uniform_order, (3,), "ordered"),
    "positive_ordered": (positives, (2,), "positive_ordered"),
    "constraint": (
        lambda p: Pareto(2.0, 6.0).log_prob(p["x"]),
        (),
        constraints.greater_than(2.0),
    ),
    "transform": (
        lambda p: LogNormal(1.0, 0.5).log_prob(p["x"]).sum(1),
        (2,),
        transforms.ExpTransform(),
    ),
}


@pytest.mark.parametrize("kind", SUPPORTED)
def test_densities_on_supports_integrate_to_one(kind):
    """Wrong variant: no Jacobian, or one of the first element only."""
    density, shape, support = SUPPORTED[kind]
    vi, _ = fit(density, {"x": shape}, {"x": support})
    assert -0.4 < vi.lower_bound_ < 3 * vi.lower_bound_se_ + 1e-6
    wide = StudentTProposal(vi.posterior_.as_normal(), 4)
    theta = wide.sample(20_000, torch.Generator().manual_seed(0))
    weights = (vi._target.log_joint_batched(theta) - wide.log_prob(theta)).exp()
    error = float(weights.std()) / math.sqrt(len(weights))
    assert error < 0.02
    assert float(weights.mean()) == pytest.approx(1.0, abs=4 * error)
    values, _ = vi._target.constrain(theta[:50])
    torch.testing.assert_close(vi._target.unconstrain(values), theta[:50])


@pytest.mark.parametrize("family", ["full_rank", "mean_field", LowRankNormal(1)])
def test_gradients_of_fixed_draws(family):
    """Against differences. Wrong variant: without that of the entropy."""
    vi, _ = fit(shares, {"x": (3,)}, {"x": "simplex"}, posterior=family, max_iter=1)
    generator = torch.Generator().manual_seed(0)
    normal = vi.posterior_.as_normal()
    eps = balanced_noise(generator, 40, normal.n_noise, normal.is_diagonal)
    point = FixedDrawsPoint(vi._target, normal, eps)
    whitened = _Whitened(point)
    x = 0.3 * torch.randn(whitened.n_free, generator=generator, dtype=torch.float64)
    _, gradient = whitened.evaluate(x)
    steps = 1e-5 * torch.eye(len(x), dtype=torch.float64)
    differences = [
        (whitened.evaluate(x + h)[0] - whitened.evaluate(x - h)[0]) / 2e-5
        for h in steps
    ]
    np.testing.assert_allclose(gradient, differences, rtol=1e-5, atol=1e-7)


def two_modes(p):
    parts = [Normal(side, 1.0).log_prob(p["x"]) for side in (-4.0, 4.0)]
    return torch.logsumexp(torch.stack(parts), 0) - math.log(2)


def funnel(p):
    width = (p["v"] / 2).exp()[:, None]
    return Normal(0.0, 3.0).log_prob(p["v"]) + Normal(0.0, width).log_prob(p["x"]).sum(
        1
    )


FAR_FROM_NORMAL = {
    "tails": (lambda p: Cauchy(0.0, 1.0).log_prob(p["x"]), NUMBER, "not close"),
    "heavy": (lambda p: StudentT(3.0).log_prob(p["x"]), NUMBER, "not close"),
    "funnel": (funnel, {"v": (), "x": (3,)}, "not close"),
    "modes": (two_modes, NUMBER, "other modes|not close"),
}


@pytest.mark.parametrize("kind", FAR_FROM_NORMAL)
@pytest.mark.parametrize("seed", [0, 1])
def test_what_no_normal_is_near_is_not_called_converged(kind, seed):
    """Wrong variant: weights of the posterior's own draws, which miss tails."""
    density, shapes, words = FAR_FROM_NORMAL[kind]
    vi, messages = fit(density, shapes, random_state=seed)
    assert not vi.converged_
    assert len(messages) == 1
    assert re.search(words, messages[0])


REFUSED = {
    "one number": (lambda p: p["x"].sum(), {"x": (3,)}, None, "must return one number"),
    "no sum": (lambda p: -p["x"].square(), {"x": (3,)}, None, r"Got \(3, 3\)"),
    "coupled": (
        lambda p: -p["x"].square().sum(1) + p["x"].sum(),
        {"x": (3,)},
        None,
        "treat every draw alone",
    ),
    "nan": (lambda p: p["x"] * math.nan, NUMBER, None, "infinite at all"),
    "improper": (lambda p: 0 * p["x"], NUMBER, None, "proper prior"),
    "support": (shares, {"x": (3,)}, {"x": "simplexx"}, "must be one of"),
    "name": (shares, {"x": (3,)}, {"y": "simplex"}, "not in shapes"),
    "scalar": (shares, NUMBER, {"x": "simplex"}, "needs a vector"),
    "shape": (shares, {"x": (0,)}, None, "positive integers"),
    "nothing": (shares, {}, None, "at least one"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refusals(kind):
    density, shapes, supports, words = REFUSED[kind]
    with pytest.raises(ValueError, match=words):
        VariationalInference(density, shapes, supports, random_state=0).fit()


TWO = {"a": (), "b": ()}


def tilted(p):
    """Normal: mean 0 and 1, deviation 1 and .5."""
    return Normal(0.0, 1.0).log_prob(p["a"]) + Normal(1.0, 0.5).log_prob(p["b"])


class Counted:
    """A density that Ctrl-C comes to in one of its calls."""

    def __init__(self, last=None):
        self.n_calls, self.last = 0, last

    def __call__(self, p):
        self.n_calls += 1
        if self.n_calls == self.last:
            raise KeyboardInterrupt
        return tilted(p)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "posterior",
    ["full_rank", "mean_field", pytest.param("flow", marks=pytest.mark.slow)],
)
def test_ctrl_c_keeps_the_best_so_far(posterior):
    """At ten calls of a density: usable, near the truth, or fitted not at all.

    Wrong variant: without the normals of paths, the first half keeps nothing.
    """
    params = {"posterior": posterior, "random_state": 0, "max_iter": 2}
    whole = Counted()
    VariationalInference(whole, TWO, **params).fit()
    kept = []
    for last in np.linspace(1, whole.n_calls, 10).astype(int):
        vi = VariationalInference(Counted(last), TWO, **params)
        with pytest.raises(KeyboardInterrupt) as caught:
            vi.fit()
        kept.append(hasattr(vi, "posterior_"))
        assert ("was kept" if kept[-1] else "nothing is fitted") in str(caught.value)
        if kept[-1]:
            assert not vi.converged_
            assert vi.diagnostics_["ending"] == "interrupted"
            assert vi.mean_["b"] == pytest.approx(1.0, abs=0.1)
            assert vi.lower_bound_ == pytest.approx(0.0, abs=0.05)
            assert "khat" not in str(vi.summary())
    assert not kept[0]  # the checks of the density
    assert sum(kept) >= 5


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ({"a": 0.0}, "start must name all"),
        ({"a": 0.0, "s": [1.0, 1.0]}, "must have the shape"),
        ({"a": 0.0, "s": -1.0}, "inside the support"),
    ],
)
def test_wrong_starts_are_named(start, words):
    vi = VariationalInference(tilted, {"a": (), "s": ()}, {"s": "positive"})
    with pytest.raises(ValueError, match=words):
        vi.set_params(start=start).fit()


Y = torch.tensor([1.0, 2.0, 4.0, 3.0], dtype=torch.float64)
SHAPES = {"mu": (), "sigma": ()}
POSITIVE = {"sigma": "positive"}


def model(p, y=Y):
    prior = Normal(0.0, 10.0).log_prob(p["mu"]) + HalfNormal(5.0).log_prob(p["sigma"])
    return prior + Normal(p["mu"][:, None], p["sigma"][:, None]).log_prob(y).sum(1)


def by_hand(p):
    residual = (Y - p["mu"][:, None]) / p["sigma"][:, None]
    return -4 * p["sigma"].log() - 0.5 * residual.square().sum(1) - p["mu"].square()


def ridge_shares(p):
    first = Beta(2.0, 2.0).log_prob(p["share"]) + Uniform(0.0, 1.0).log_prob(p["other"])
    return first + HalfNormal(1.0).log_prob(p["sigma"])


def tied(p):
    return Normal(0.0, 1.0).log_prob(p["a"] + 2 * p["b"][:, 0]) - p["b"][:, 1] ** 2


WRONG = {
    "torch's distributions": (model, SHAPES, r"supports=\{'sigma': 'positive'\}"),
    "by hand": (by_hand, SHAPES, r"supports=\{'sigma': 'positive'\}"),
    "two kinds": (
        ridge_shares,
        {"share": (), "other": (), "sigma": ()},
        "'share': 'unit_interval', 'other': 'unit_interval', 'sigma': 'positive'",
    ),
    "a combination": (tied, {"a": (), "b": (2,)}, r"combination of \['a', 'b'\]"),
    "not used": (
        lambda p: Normal(0.0, 1.0).log_prob(p["a"]),
        {"a": (), "z": (3,)},
        r"depend on \['z'\].*prior",
    ),
    "constant": (
        lambda p: Normal(0.0, 1.0).log_prob(p["a"]) + 0 * p["z"],
        {"a": (), "z": ()},
        r"depend on \['z'\]: it is constant",
    ),
    "nowhere": (
        lambda p: p["a"] - math.inf,
        {"a": ()},
        "such as -inf at .*probabilities of 0",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_causes_are_named(kind):
    """Wrong variants: one support for all names; directions of raw gradients."""
    density, shapes, words = WRONG[kind]
    with pytest.raises(ValueError, match=words):
        VariationalInference(density, shapes, random_state=0).fit()


def test_data_with_nan_or_of_numpy():
    y = Y.clone()
    y[1] = math.nan
    vi = VariationalInference(model, SHAPES, POSITIVE, random_state=0)
    with pytest.raises(ValueError, match="the data hold 1 NaN"):
        vi.fit(y)
    with pytest.raises(ValueError, match=r"numpy arrays.*torch\.from_numpy"):
        vi.fit(Y.numpy())


def test_what_looks_wrong_and_is_not():
    """Flat on the unit interval; missing data that the density leaves out; units."""

    def unused(p, y):
        weight = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64)
        seen = torch.where(y.isnan(), 0.0, y)
        fit = Normal(p["mu"][:, None], 1.0).log_prob(seen) * ~y.isnan()
        return fit.sum(1) + Normal(0.0, 1.0).log_prob(p["x"] * weight).sum(1)

    y = Y.clone()
    y[1] = math.nan
    shapes, supports = {"mu": (), "x": (3,), "s": ()}, {"s": "unit_interval"}
    vi = VariationalInference(unused, shapes, supports, random_state=0).fit(y)
    np.testing.assert_allclose(vi.std_["x"], [1e6, 1.0, 1e-6], rtol=0.01)
    assert vi.mean_["mu"] == pytest.approx(8 / 3, abs=0.02)
    assert vi.std_["s"] == pytest.approx(12**-0.5, rel=0.1)


@pytest.mark.parametrize("case", ["no prior", "a prior", "vague scale"])
def test_a_ridge_without_an_end(case):
    """Separable classes without a prior; not a proper density that a normal fits badly.

    Wrong variant: a line that is flat at its end, after a fall, is a ridge, too.
    """
    X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).double()
    is_one = X[:, 0] + 0.3 * X[:, 1] > 0

    def classes(p):
        signed = torch.where(is_one, 1.0, -1.0) * (p["beta"] @ X.T)
        fit = torch.nn.functional.logsigmoid(signed).sum(1)
        weight = 1.0 if case == "a prior" else 0.0
        return fit + weight * Normal(0.0, 1.0).log_prob(p["beta"]).sum(1)

    def scale(p):
        return Normal(p["mu"][:, None], p["sigma"][:, None]).log_prob(Y).sum(1)

    given = (classes, {"beta": (2,)})
    if case == "vague scale":
        given = (scale, SHAPES, POSITIVE)
    vi = VariationalInference(*given, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vi.fit()
    message = vi.diagnostics_["message"]
    assert ("prior may be missing" in message) == (case == "no prior")
    assert ("along ['beta']" in message) == (case == "no prior")
    assert vi.converged_ == (case == "a prior")


def test_densities_that_raise_far_away():
    """As decompositions of matrices do. Wrong variant: errors of far points raised."""

    def density(p):
        if bool((p["x"].abs() > 20).any()):
            raise torch.linalg.LinAlgError("the matrix is not positive definite")
        return Normal(0.5, 0.1).log_prob(p["x"])

    vi = VariationalInference(density, {"x": ()}, random_state=0).fit()
    assert vi.converged_
    assert vi.lower_bound_ == pytest.approx(0.0, abs=1e-6)


G = torch.Generator().manual_seed(3)
X = torch.randn(600, 3, generator=G, dtype=torch.float64)
X[:, 2] = 100 * (X[:, 0] + 0.3 * X[:, 2])  # correlated, and of other units
Y_ROWS = X.sum(1) + torch.randn(600, generator=G, dtype=torch.float64)
ROW_SHAPES = {"w": (3,)}


def log_likelihood(p, rows):
    X, y = rows
    return Normal(p["w"] @ X.T, 1.0).log_prob(y).sum(1)


def log_prior(p):
    return Normal(0.0, 2.0).log_prob(p["w"]).sum(1)


def logistic(p, rows):
    f = p["w"] @ rows["X"].T
    return (rows["y"] * f - torch.nn.functional.softplus(f)).sum(1)


@pytest.mark.parametrize("has_anchor", [False, True])
def test_gradients_of_batches_are_unbiased(has_anchor):
    """Those of disjoint batches have the mean of all rows.

    Wrong variants: rows are not scaled up by n/batch; the anchor's gradient of rows,
    or of all, is left out.
    """
    data = {"X": X / 100, "y": (Y_ROWS > 0).double()}
    target = RowsDensityTarget(logistic, ROW_SHAPES, None, data, log_prior)
    point, g = torch.tensor([0.5, -0.2, 1.0], dtype=torch.float64), torch.Generator()
    theta = point + 0.1 * torch.randn(5, 3, generator=g.manual_seed(1)).double()
    if has_anchor:
        target = target.anchored(point)

    def of(rows):
        x = theta.clone().requires_grad_()
        value = target.log_joint(x, rows)
        return value.detach(), torch.autograd.grad(value.sum(), x)[0]

    batches = torch.randperm(600, generator=g).split(30)
    values, slopes = zip(*map(of, batches), strict=True)
    value, slope = of(None)
    torch.testing.assert_close(torch.stack(values).mean(0), value)
    torch.testing.assert_close(torch.stack(slopes).mean(0), slope)
    noise = (torch.stack(slopes) - slope).std()
    assert (noise < 1) == has_anchor


def test_many_rows_come_in_parts(monkeypatch):
    """Wrong variant: the last part, which is shorter, is left out."""
    target = RowsDensityTarget(log_likelihood, ROW_SHAPES, None, (X, Y_ROWS), log_prior)
    theta = torch.ones(4, 3, dtype=torch.float64)
    once = target.log_joint_and_gradient(theta)
    monkeypatch.setattr(_density, "AT_ONCE", 4 * 128)
    torch.testing.assert_close(target.log_joint_and_gradient(theta), once)


@pytest.mark.parametrize(
    ("params", "data", "message"),
    [
        (
            {"batch_size": 601},
            (X, Y_ROWS),
            "at most the number of rows of the data, 600",
        ),
        ({}, None, "data of fit must be a tensor, or a tuple.*Got 'NoneType'"),
        ({}, (X, Y_ROWS[:5]), r"same number of rows.*Got \(600, 3\), \(5,\)"),
        ({}, (X.numpy(), Y_ROWS), "must be a tensor|numpy arrays"),
        ({"prior": None}, "prior", "Pass the log prior.* as prior"),
        ({}, "mean", "take sums, no means, over rows"),
        ({}, "rows", r"one number a draw, of shape \(3,\)"),
        ({"objective": "renyi"}, (X, Y_ROWS), "needs objective='elbo'"),
        (
            {"solver": Stochastic(batch_size=9)},
            (X, Y_ROWS),
            "batch_size='auto'",
        ),
    ],
)
def test_what_has_no_batches_is_named(params, data, message):
    """Wrong variant: parts of the likelihood are not added up."""
    wrong = {
        "prior": lambda p, rows: log_likelihood(p, rows) + log_prior(p),
        "mean": lambda p, rows: log_likelihood(p, rows) / len(rows[1]),
        "rows": lambda p, rows: Normal(p["w"] @ rows[0].T, 1.0).log_prob(rows[1]),
    }
    density = wrong.get(data, log_likelihood) if isinstance(data, str) else None
    data = (X, Y_ROWS) if isinstance(data, str) else data
    params = {"prior": log_prior, "batch_size": 20, **params}
    vi = VariationalInference(density or log_likelihood, ROW_SHAPES, **params)
    with pytest.raises((ValueError, IncompatibleComponentsError), match=message):
        vi.fit(data)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_starts_of_some_rows_are_no_other_modes(monkeypatch):
    """A tenth of the rows have their mode some deviations away from that of all.

    Wrong variants: starts are compared with the end; they are modes of the evidence.
    """
    monkeypatch.setattr(_beginning, "N_ROWS", 60)
    parts = {"prior": log_prior, "batch_size": 60, "random_state": 0}
    model = VariationalInference(log_likelihood, ROW_SHAPES, max_iter=20, **parts)
    model.fit((X, Y_ROWS))
    assert "other modes" not in model.diagnostics_["message"]
    assert model._modes == []
