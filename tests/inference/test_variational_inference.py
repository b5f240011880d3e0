"""Posteriors of users' log densities: against exact ones, and published draws."""

import math
import pickle
import re
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from torch.distributions import (
    Beta,
    Cauchy,
    Dirichlet,
    Gamma,
    LogNormal,
    MultivariateNormal,
    Normal,
    Pareto,
    StudentT,
    constraints,
    transforms,
)

from skvi._sampling._importance import StudentT as StudentTProposal
from skvi.inference import VariationalInference
from skvi.posteriors import LowRankNormal
from skvi.solvers._fixed_draws import FixedDrawsPoint, _Whitened, balanced_noise

NUMBER = {"x": ()}


def fit(log_density, shapes, supports=None, **params):
    """A fit, and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vi = VariationalInference(
            log_density, shapes, supports, **{"random_state": 0, **params}
        ).fit()
    return vi, [str(one.message) for one in caught]


def mean_of_normals(p, data):
    """Normal data of deviation 1 and a normal mean of deviation 10."""
    return Normal(p["m"][:, None], 1.0).log_prob(data).sum(1) + Normal(
        0.0, 10.0
    ).log_prob(p["m"])


def test_a_conjugate_model_is_exact():
    """Wrong variant: an entropy without its constant."""
    y = torch.from_numpy(np.random.default_rng(0).normal(2.0, 1.0, 50))
    vi = VariationalInference(mean_of_normals, {"m": ()}, random_state=0).fit(y)
    precision = 50 + 0.01
    assert vi.mean_["m"] == pytest.approx(float(y.sum()) / precision, rel=1e-6)
    assert vi.std_["m"] == pytest.approx(precision**-0.5, rel=1e-3)
    evidence = stats.multivariate_normal(np.zeros(50), np.eye(50) + 100).logpdf(y)
    assert vi.lower_bound_ == pytest.approx(evidence, abs=1e-6)
    assert vi.converged_
    low, high = vi.evidence_bounds(n_draws=500, random_state=0).interval()
    assert low <= evidence <= high
    again = pickle.loads(pickle.dumps(vi))
    draws = again.sample_posterior(20_000, 0)["m"]
    error = precision**-0.5 / math.sqrt(20_000)
    assert draws.mean() == pytest.approx(vi.mean_["m"], abs=4 * error)
    expected = stats.norm(vi.mean_["m"], precision**-0.5).logpdf(draws[:5])
    np.testing.assert_allclose(again.log_prob({"m": draws[:5]}), expected, rtol=1e-3)
    assert str(again.summary()).splitlines()[2].split()[0] == "m"


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


def test_the_density_of_the_posterior_integrates_to_one():
    """On the supports. Wrong variant: no Jacobian in `log_prob`."""
    vi, _ = fit(
        lambda p: (
            LogNormal(p["a"], 0.4).log_prob(p["b"]) + Normal(1.0, 0.5).log_prob(p["a"])
        ),
        {"a": (), "b": ()},
        {"b": "positive"},
    )
    a, b = np.linspace(-2, 4, 300), np.exp(np.linspace(-3, 6, 300))
    first, second = (x.ravel() for x in np.meshgrid(a, b, indexing="ij"))
    density = np.exp(vi.log_prob({"a": first, "b": second})).reshape(300, 300)
    assert np.trapezoid(np.trapezoid(density, b), a) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("seed", [0, 1])
def test_units_and_correlations_do_not_matter(seed):
    """Scales over six decades. Wrong variant: a start without curvature."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** np.linspace(-3, 3, 12)
    root = scale[:, None] * np.linalg.cholesky(
        np.cov(rng.normal(size=(12, 40))) + 0.01 * np.eye(12)
    )
    mean = 30 * scale
    normal = MultivariateNormal(
        *map(torch.from_numpy, (mean,)), scale_tril=torch.tensor(root)
    )
    vi, messages = fit(
        lambda p: normal.log_prob(p["x"]), {"x": (12,)}, random_state=seed
    )
    assert not messages
    assert vi.lower_bound_ == pytest.approx(0.0, abs=1e-3)
    deviations = np.sqrt((root**2).sum(1))
    np.testing.assert_allclose(vi.std_["x"], deviations, rtol=0.01)
    assert np.abs((vi.mean_["x"] - mean) / deviations).max() < 0.02


def test_mean_field_has_the_precisions():
    """The optimum for a normal. Wrong variant: marginal deviations, 1 for .6."""
    normal = MultivariateNormal(
        torch.zeros(2).double(), torch.tensor([[1.0, 0.8], [0.8, 1.0]]).double()
    )
    vi, messages = fit(
        lambda p: normal.log_prob(p["x"]), {"x": (2,)}, posterior="mean_field"
    )
    np.testing.assert_allclose(vi.std_["x"], 0.6, rtol=0.005)
    assert not vi.converged_
    # From .6 to 1, as a factor, which has no sign and no limit where values vanish.
    assert re.search(r"standard deviation by a factor of 1\.[5-8]\b", messages[0])
    assert "posterior='full_rank'" in messages[0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_bound_is_that_of_new_draws(seed):
    """Of a correlated normal, where q is far too narrow: its ELBO is known.

    Wrong variant: the value at the draws of the fit.
    """
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(15, 20))
    precision = np.linalg.inv(root @ root.T / 20)
    normal = MultivariateNormal(
        torch.zeros(15).double(), precision_matrix=torch.tensor(precision)
    )
    vi, _ = fit(
        lambda p: normal.log_prob(p["x"]),
        {"x": (15,)},
        posterior="mean_field",
        random_state=seed,
    )
    log_det = np.linalg.slogdet(precision)[1]
    best = 0.5 * (log_det - np.log(np.diag(precision)).sum())
    assert vi.lower_bound_ == pytest.approx(best, abs=4 * vi.lower_bound_se_ + 0.02)


@pytest.mark.parametrize("family", ["full_rank", "mean_field", LowRankNormal(1)])
def test_gradients_of_fixed_draws(family):
    """Against differences. Wrong variant: without that of the entropy."""
    vi, _ = fit(shares, {"x": (3,)}, {"x": "simplex"}, posterior=family, max_iter=1)
    generator = torch.Generator().manual_seed(0)
    normal = vi.posterior_.as_normal()
    eps = balanced_noise(generator, 40, normal.n_noise, normal.is_diagonal)
    point = FixedDrawsPoint(vi._target, normal, eps)
    whitened = _Whitened(vi._target, point)
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


def test_it_is_an_estimator():
    """Equal seeds give equal fits."""
    vi = VariationalInference(two_modes, NUMBER, random_state=3)
    with pytest.raises(NotFittedError):
        vi.sample_posterior()
    copy = clone(vi).set_params(max_iter=7)
    assert copy.max_iter == 7
    assert copy.log_density is two_modes
    first, _ = fit(shares, {"x": (3,)}, {"x": "simplex"})
    second, _ = fit(shares, {"x": (3,)}, {"x": "simplex"})
    np.testing.assert_array_equal(first.mean_["x"], second.mean_["x"])


def test_few_iterations_are_no_convergence(capsys):
    with pytest.warns(ConvergenceWarning, match="max_iter=1 ended"):
        VariationalInference(
            shares, {"x": (3,)}, {"x": "simplex"}, max_iter=1, verbose=1
        ).fit()
    assert "[VariationalInference] ELBO" in capsys.readouterr().out
