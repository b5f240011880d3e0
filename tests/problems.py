"""The estimators that the tests of all parts fit, with their data: each of them once.

Every part, and every path through the solvers, is in one of `PROBLEMS` at least.
"""

from functools import cache

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale

from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.likelihoods import (
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    NegativeBinomialLikelihood,
    StudentTLikelihood,
)
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.losses import BetaLoss, LogLoss
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.objectives import ELBO
from skvi.posteriors import (
    Ensemble,
    MeanFieldNormal,
    MixtureOfNormals,
    MultiplicativeFlow,
)
from skvi.priors import ARD, GammaHyperprior, Laplace, Normal
from skvi.solvers import Stochastic

NETWORK = {
    "hidden_layer_sizes": 3,
    "max_iter": 3,
    "solver": Stochastic(n_draws=2),
    "n_predict_draws": 50,
    "random_state": 0,
}


def linear(**parts):
    return BayesianLinearRegression(**{"tol": 1e-11, "max_iter": 3000} | parts)


def logistic(**parts):
    return BayesianLogisticRegression(tol=1e-10, **{"prior": "normal", **parts})


def poisson(**parts):
    return BayesianPoissonRegressor(tol=1e-10, **{"prior": "normal", **parts})


REGRESSIONS = {
    "linear": linear(),
    "linear, ard": linear(prior=ARD(1.0, 1.0), posterior="mean_field"),
    "linear, fixed": linear(noise_scale=0.8, prior=Normal(1.5), normalize_y=False),
    "linear, laplace": linear(noise_scale="learn", prior="laplace", tol=1e-9),
    "linear, student": linear(likelihood="student_t", noise_scale=1.0, tol=1e-12),
    "linear, beta": linear(loss="beta", noise_scale=1.0, prior="normal", tol=1e-9),
    "linear, nodes": linear(
        objective=ELBO(),
        divergence=KLDivergence(),
        loss=LogLoss(),
        posterior=MeanFieldNormal(),
        prior=Normal(GammaHyperprior(1.0, 1.0)),
        intercept_prior=Normal(5.0),
        solver="natural_gradient",
        tol=1e-9,
    ),
    "mlp": BayesianMLPRegressor(
        skip_connection=False,
        likelihood="gaussian",
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        **NETWORK,
    ),
    "mlp, minibatches": BayesianMLPRegressor(
        posterior="mean_field",
        divergence=KLDivergence(weight=0.5),
        prior={"coef": Laplace(), "intercept": Normal()},
        likelihood=GaussianLikelihood(2.0),
        batch_size=9,
        **NETWORK,
    ),
    "mlp, multiplicative": BayesianMLPRegressor(
        posterior=MultiplicativeFlow(n_layers=1, n_hidden=3),
        divergence="kl",
        **NETWORK,
    ),
    "mlp, ensemble": BayesianMLPRegressor(
        posterior=Ensemble(n_members=2),
        divergence=KLDivergence(0.3),
        likelihood=HeteroscedasticLikelihood(StudentTLikelihood()),
        **NETWORK,
    ),
}
BINARY = {
    "logistic": logistic(),
    "logistic, beta": logistic(
        loss=BetaLoss(1.3), prior=Laplace(), fit_intercept=False
    ),
    "logistic, renyi": logistic(
        divergence=RenyiDivergence(0.7), posterior="mean_field"
    ),
    "logistic, kl": logistic(
        divergence=KLDivergence(weight=2.0), intercept_prior=Normal(10.0)
    ),
    "logistic, eubo": BayesianLogisticRegression(
        objective="eubo", random_state=0, prior="normal"
    ),
    "logistic, mixture": logistic(
        posterior=MixtureOfNormals(2), max_iter=1, random_state=0
    ),
    "mlp, binary": BayesianMLPClassifier(
        divergence="kl",
        loss=BetaLoss(1.3),
        class_weight="balanced",
        posterior="mean_field",
        **NETWORK,
    ),
}
CLASSES = {
    "multinomial": logistic(),
    "multinomial, mean field": logistic(posterior="mean_field", n_jobs=1),
    "multinomial, renyi": logistic(
        divergence=RenyiDivergence(0.8), fit_intercept=False
    ),
    "mlp, classes": BayesianMLPClassifier(
        skip_connection=False,
        divergence="kl",
        posterior="mean_field",
        objective="iwelbo",
        **NETWORK,
    ),
}
COUNTS = {
    "poisson": poisson(),
    "poisson, laplace": poisson(posterior="mean_field", prior="laplace"),
    "poisson, eubo": BayesianPoissonRegressor(
        objective="eubo", random_state=0, prior="normal"
    ),
    "negative binomial": poisson(likelihood=NegativeBinomialLikelihood(0.5)),
    "mlp, counts": BayesianMLPRegressor(
        skip_connection=False,
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        likelihood="negative_binomial",
        **NETWORK,
    ),
}
PROBLEMS = REGRESSIONS | BINARY | CLASSES | COUNTS
DRAWN = {n for n in PROBLEMS if any(k in n for k in ("mlp", "eubo", "mixture"))}
#: Fits that neither draw nor take minibatches: there weights are repetitions.
EXACT = sorted(set(PROBLEMS) - DRAWN)


@cache
def data(name):
    """Features that are not centered, and targets of the kind that a problem needs."""
    X, y = load_iris(return_X_y=True)
    rows = {2: np.r_[60:90, 110:140], 3: np.r_[10:30, 70:90, 120:140]}
    if name in BINARY or name in CLASSES:
        rows = rows[2 if name in BINARY else 3]
        X, y = scale(X[rows]) + 0.5, y[rows] - y[rows].min()
    else:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((30, 4)) + 3
        f = X @ np.array([0.4, -0.3, 0.2, 0.0])
        y = 10 * f + 7 + 0.8 * rng.standard_normal(30)
        if name in COUNTS:
            y = rng.poisson(np.exp(f)).astype(float)
    X.flags.writeable = y.flags.writeable = False
    return X, y


def fit(name, X=None, y=None, weight=None, **params):
    """A fit of one problem, to its own data unless others are given."""
    own = data(name)
    X, y = own[0] if X is None else X, own[1] if y is None else y
    model = clone(PROBLEMS[name]).set_params(**params)
    return model.fit(X, y, sample_weight=weight)


@cache
def fitted(name):
    """The fit of a problem to its own data; who changes it clones it before."""
    return fit(name)


def predictions(model, X):
    """Everything that a fitted model says of rows: method -> array, rows first."""
    methods = ["predict", "predict_proba", "predict_log_proba", "decision_function"]
    methods += ["predict_interval"]
    found = {m: getattr(model, m)(X) for m in methods if hasattr(model, m)}
    found |= model.predict_uncertainty(X)
    if not is_classifier(model):
        found["std"] = model.predict(X, return_std=True)[1]
        found["quantiles"] = model.predict_quantiles(X, [0.01, 0.5, 0.8])
    return found


def answers(model, X, y):
    """What every method that a user may call returns."""
    found = predictions(model, X) | {"score": np.array(model.score(X, y))}
    found["density"] = model.predict_log_density(X, y)
    draws = model.sample_posterior(2, random_state=0)
    found |= {f"draws of {name}": values for name, values in draws.items()}
    if hasattr(model, "sample_function"):
        found["function"] = model.sample_function(random_state=0)(X)
    if not is_classifier(model):
        found["sample"] = model.sample_y(X, n_draws=2, random_state=0)
    return found


def assert_same(found, expected, **tolerance):
    """Of answers or predictions."""
    assert found.keys() == expected.keys()
    for method in expected:
        if found[method].dtype.kind in "OU":
            assert np.array_equal(found[method], expected[method]), method
        else:
            np.testing.assert_allclose(
                found[method], expected[method], err_msg=method, **tolerance
            )


def assert_same_posterior(a, b, tol):
    """Coefficients in units of their deviations, deviations, and the bound."""
    if not hasattr(b, "coef_"):
        a, b = (model.posterior_.params.numpy() for model in (a, b))
        np.testing.assert_allclose(a, b, atol=tol)
        return
    assert np.abs((a.coef_ - b.coef_) / b.coef_std_).max() < tol
    np.testing.assert_allclose(a.coef_std_, b.coef_std_, rtol=tol)
    np.testing.assert_allclose(a.lower_bound_, b.lower_bound_, atol=tol, rtol=0)
    if b.fit_intercept:
        shift = (np.array(a.intercept_) - b.intercept_) / b.intercept_std_
        assert np.abs(shift).max() < tol
