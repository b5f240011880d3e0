"""Fits with every divergence: optima, collapse, and what they say about themselves."""

import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from skvi.base import NormalForm
from skvi.divergences import (
    AlphaDivergence,
    BetaDivergence,
    FDivergence,
    GammaDivergence,
    JeffreysDivergence,
    KLDivergence,
    RenyiDivergence,
)
from skvi.linear_model import BayesianLogisticRegression
from skvi.priors import Laplace
from skvi.solvers import Stochastic

FAMILIES = ["mean_field", "full_rank"]
SPECS = [AlphaDivergence(0.9), AlphaDivergence(1.3)]
SPECS += [BetaDivergence(b) for b in (0.8, 1.1, 1.5)]
SPECS += [GammaDivergence(g) for g in (0.8, 1.1, 1.5)]
SPECS += [JeffreysDivergence()]
JOINT = [AlphaDivergence(0.9, joint=True), AlphaDivergence(1.2, joint=True)]
JOINT += [BetaDivergence(1.05, joint=True), BetaDivergence(0.9, joint=True)]
#: Families take turns; per coordinate and joint are the same for a full rank.
FITS = [(spec, FAMILIES[i % 2]) for i, spec in enumerate(SPECS)]
FITS += [(spec, FAMILIES[i % 2]) for i, spec in enumerate(JOINT)]
FITS += [
    (JeffreysDivergence(), "full_rank"),
    (JOINT[0], "full_rank"),
    (JOINT[1], "mean_field"),
]
FITS += [(AlphaDivergence(0.5), "mean_field"), (BetaDivergence(0.5), "mean_field")]
every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def data():
    """Noisy classes: no direction separates them. Read-only."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 4)) @ np.array(
        [[1, 0.6, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.3], [0, 0, 0, 0.5]]
    )
    y = X @ [1.0, -0.5, 0.3, 0] + rng.logistic(size=150) > 0.2
    X.setflags(write=False)
    return X, y.astype(int)


def objective(X, y, spec, prior, family, hermite):
    """Expected log loss by another quadrature, plus the closed form, of numbers."""
    nodes, weights = (torch.from_numpy(a) for a in hermite)
    A = torch.from_numpy(np.c_[X, np.ones(len(X))])
    sign = torch.from_numpy(2.0 * y - 1)
    size = A.shape[1]
    rows, columns = torch.tril_indices(size, size, -1)

    def value(x):
        x = torch.from_numpy(x).requires_grad_()
        mean, scale = x[:size], x[size : 2 * size].exp()
        if family == "full_rank":
            scale = torch.diag(scale).index_put((rows, columns), x[2 * size :])
        q = NormalForm(mean, scale)
        spread = (A @ q.scale if scale.ndim == 2 else A * scale).norm(dim=1)
        f = (A @ mean)[:, None] + spread[:, None] * nodes
        loss = (torch.nn.functional.softplus(-sign[:, None] * f) @ weights).sum()
        total = loss + spec.closed_form(q, prior)
        total.backward()
        return float(total.detach()), x.grad.numpy()

    n_free = 2 * size if family == "mean_field" else 2 * size + len(rows)
    return value, n_free


@pytest.mark.parametrize(("spec", "family"), FITS, ids=repr)
def test_optimum_is_that_of_another_optimizer(spec, family, data):
    """L-BFGS on means, log widths and the rest of the factor, from another start.

    Wrong variants: a precision gradient without its factor 2; the curvature of KL
    for a Hessian changes nothing here, a wrong gradient in the mean does.
    """
    X, y = data
    model = BayesianLogisticRegression(
        divergence=spec,
        posterior=family,
        tol=1e-8,
        prior="normal",
        intercept_prior="normal",
    )
    model.fit(X, y)
    assert model.converged_
    X = X - X.mean(0)
    prior = model.prior_["coef"].build(model.posterior_.layout)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    hermite = nodes, weights / weights.sum()
    value, n_free = objective(X, y, spec, prior, family, hermite)
    start = np.r_[np.zeros(5), np.full(n_free - 5, -1.0)]
    start[10:] = 0
    options = {"maxiter": 5000, "maxfun": 10**5, "ftol": 0, "gtol": 1e-9}
    found = minimize(value, start, jac=True, method="L-BFGS-B", options=options)
    assert -model.objective_value_ == pytest.approx(found.fun, abs=1e-6)
    mean = model.posterior_.as_normal().mean
    np.testing.assert_allclose(mean, found.x[:5], atol=1e-3)


def fit(X, y, **params):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = BayesianLogisticRegression(**{"prior": "normal", **params}).fit(X, y)
    return model, [str(w.message) for w in caught if w.category is ConvergenceWarning]


@pytest.mark.parametrize(
    ("spec", "family"),
    [
        (AlphaDivergence(0.5, joint=True), "mean_field"),
        (AlphaDivergence(0.5, joint=True), "full_rank"),
        (AlphaDivergence(0.5), "full_rank"),  # correlated: the joint form
        (BetaDivergence(0.4, joint=True), "mean_field"),
        (BetaDivergence(0.4), "full_rank"),
    ],
    ids=repr,
)
def test_collapse_is_reported_once(spec, family):
    """Figure 19: (1 - order) P > 2. Wrong variant: it converged, says the fit."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(600, 12))
    y = (X @ rng.normal(size=12) + rng.logistic(size=600) > 0).astype(int)
    model, messages = fit(X, y, divergence=spec, posterior=family)
    plain, _ = fit(X, y, posterior=family)
    assert model.coef_std_.max() < 0.05 * plain.coef_std_.min()
    assert len(messages) == 1
    assert "collapsed toward a point mass" in messages[0]
    assert "is above 2" in messages[0]
    assert "divergence='renyi'" in messages[0]
    assert not model.converged_
    assert messages[0].endswith(f"{model.diagnostics_['message']}.")


@pytest.mark.parametrize("spec", [AlphaDivergence(0.5), BetaDivergence(0.4)], ids=repr)
def test_no_collapse_per_coordinate(spec):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(600, 12))
    y = (X @ (0.5 * rng.normal(size=12)) + rng.logistic(size=600) > 0).astype(int)
    model, messages = fit(X, y, divergence=spec, posterior="mean_field")
    plain, _ = fit(X, y, posterior="mean_field")
    # Wrong variant: the joint form, whose posterior is a point mass here.
    assert not messages
    assert model.coef_std_.min() > 0.3 * plain.coef_std_.min()


def test_beta_that_loses_the_prior():
    """In 30 dimensions; per coordinate it does not."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(60, 30))
    y = (X[:, 0] + rng.logistic(size=60) > 0).astype(int)
    _, messages = fit(X, y, divergence=BetaDivergence(1.5), posterior="full_rank")
    assert len(messages) == 1
    assert "the prior has been lost: in 31 dimensions" in messages[0]
    assert "beta closer to 1" in messages[0]
    _, messages = fit(X, y, divergence=BetaDivergence(1.2), posterior="mean_field")
    assert not messages


@pytest.mark.parametrize(
    "family", [pytest.param("full_rank", marks=pytest.mark.slow), "mean_field"]
)
def test_beta_on_dummies_names_the_divergence(family):
    """Standardized one-hot columns: what the data leave open becomes flat.

    Wrong variants: features blamed, which are standardized; no advice on the family.
    """
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 4, size=(200, 3))
    X = (levels[:, :, None] == np.arange(4)).reshape(200, 12)
    X = (X - X.mean(0)) / X.std(0)
    y = (levels[:, 0] + 2 * rng.logistic(size=200) > 1.5).astype(int)
    model, messages = fit(X, y, divergence=BetaDivergence(), posterior=family)
    assert model.converged_ == (family == "mean_field")
    if not model.converged_:
        (message,) = messages
        assert "the prior has been lost: in 13 dimensions" in message
        assert "of BetaDivergence()" in message
        assert "or posterior='mean_field'" in message
        assert "features" not in message


FREE = {"max_iter": 12, "solver": Stochastic(n_draws=5), "random_state": 0}
FREE["tol"] = 0.05


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(AlphaDivergence(0.98, joint=True), marks=pytest.mark.slow),
        GammaDivergence(1.02),
        pytest.param(FDivergence(lambda t: t * t.log()), marks=pytest.mark.slow),
    ],
    ids=["alpha", "gamma", "f"],
)
def test_priors_that_are_not_normal(spec, data):
    """Orders near KL, from draws: near the noiseless fit with KL.

    Wrong variant: the divergence left out, which gives point masses.
    """
    exact, _ = fit(*data, posterior="mean_field", prior=Laplace(1.0))
    common = {"posterior": "mean_field", "solver": "stochastic", **FREE}
    model, messages = fit(*data, prior=Laplace(1.0), divergence=spec, **common)
    assert not [m for m in messages if "max_iter" not in m]
    assert model.lower_bound_ > exact.lower_bound_ - 0.3
    np.testing.assert_allclose(model.coef_std_, exact.coef_std_, rtol=0.15)


@pytest.mark.slow
def test_jeffreys_of_a_prior_that_is_not_normal(data):
    """Wider than KL, as for a normal prior: the second direction is not missed."""
    exact, _ = fit(*data, posterior="mean_field", prior=Laplace(1.0))
    model, _ = fit(
        *data,
        posterior="mean_field",
        prior=Laplace(1.0),
        divergence=JeffreysDivergence(),
        **FREE,
    )
    assert (model.coef_std_ > 1.2 * exact.coef_std_).all()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (FDivergence("hellinger"), "collapsed toward a point mass"),
        (FDivergence("total_variation"), "collapsed toward a point mass"),
        (FDivergence(lambda t: -t.log()), "draws of the posterior, which miss"),
        (AlphaDivergence(0.3, joint=True), "collapsed toward a point mass"),
    ],
    ids=["hellinger", "tv", "reverse", "alpha"],
)
def test_estimates_that_fail_are_reported(spec, message):
    """From draws, in many dimensions. Wrong variant: no word about it."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 20))
    y = (X[:, 0] + rng.logistic(size=200) > 0).astype(int)
    params = {**FREE, "max_iter": 2, "divergence": spec, "posterior": "mean_field"}
    prior = "laplace" if isinstance(spec, AlphaDivergence) else "normal"
    model, messages = fit(X, y, prior=prior, **params)
    assert len(messages) == 1
    assert message in messages[0]
    assert not model.converged_


def test_posteriors_wider_than_their_priors_are_reported():
    """The data separate the classes. Wrong variant: it converged, at deviations of 10.

    With more data for each parameter the same divergence is silent.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 30))
    y = (rng.uniform(size=60) < 1 / (1 + np.exp(-X @ rng.normal(size=30)))).astype(int)
    model, messages = fit(X, y, divergence=RenyiDivergence(0.5), prior="normal")
    assert model.coef_std_.max() > 5
    assert len(messages) == 1
    assert "the posterior is wider than its prior in" in messages[0]
    assert not model.converged_
    assert not fit(X[:, :3], y, divergence=RenyiDivergence(0.5), prior="normal")[1]


@pytest.mark.parametrize("objective", ["eubo", "iwelbo", "chi"])
@pytest.mark.parametrize("kind", ["alpha", "jeffreys"])
def test_bounds_of_the_evidence_refuse_them(objective, kind, data):
    with pytest.raises(ValueError, match="divergence"):
        BayesianLogisticRegression(
            objective=objective, divergence=kind, prior="normal"
        ).fit(*data)


@every_family
@pytest.mark.parametrize(
    "spec", [KLDivergence(), JeffreysDivergence(), GammaDivergence(0.9)], ids=repr
)
def test_the_natural_gradient_is_quick(spec, family, data):
    """Few iterations, none of them quasi-Newton, which follow 50 steps.

    Wrong variant: no acceleration (more than 50 for Jeffreys).
    """
    model = BayesianLogisticRegression(
        divergence=spec, posterior=family, prior="normal"
    ).fit(*data)
    assert model.n_iter_ <= 35
