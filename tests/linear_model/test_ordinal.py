"""Ordered classes, and successes of trials: against quadrature and expanded rows."""

import numpy as np
import pytest
import torch
from scipy.special import expit, gammaln, ndtr
from sklearn.exceptions import ConvergenceWarning

from skvi.exceptions import SkviWarning
from skvi.likelihoods import OrdinalLikelihood
from skvi.linear_model import (
    BayesianBinomialRegressor,
    BayesianLogisticRegression,
    BayesianOrdinalClassifier,
)
from skvi.priors import Normal

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 1))
LEVELS = np.digitize(0.8 * X[:, 0] + RNG.logistic(size=60), [-0.5, 1.0])
NAMES = np.array(["low", "medium", "high"])
TRIALS = RNG.integers(0, 9, size=60)
Y = RNG.binomial(TRIALS, expit(X[:, 0] - 0.5))


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_cutpoints_are_integrated(link):
    """Wrong variants: a normal distance, not its log; the intercept with its sign."""
    cdf = {"logit": expit, "probit": ndtr}[link]
    model = BayesianOrdinalClassifier(link, prior=Normal(1.0)).fit(X, LEVELS)
    line = np.linspace(-2, 2, 25)
    b, a, d = (g.ravel() for g in np.meshgrid(0.6 + line, line, line, indexing="ij"))
    inner, far = np.stack([-a, np.exp(d) - a]), np.full_like(a, 1e9)
    cuts, center = np.stack([-far, *inner, far]), X.mean()
    eta = b[:, None] * (X[:, 0] - center)
    p = cdf(cuts[LEVELS + 1].T - eta) - cdf(cuts[LEVELS].T - eta)
    log_p = np.log(np.maximum(p, 1e-300)).sum(1)
    for z, s in ((b, 1.0), (a, 10.0), (d, 1.5)):
        log_p -= 0.5 * (z / s) ** 2 + np.log(s * np.sqrt(2 * np.pi))
    evidence = np.log(np.exp(log_p).sum() * (line[1] - line[0]) ** 3)
    assert evidence - 0.05 < model.lower_bound_ < evidence
    w = np.exp(log_p) / np.exp(log_p).sum()
    mean, found = inner @ w + center * (b @ w), model.cutpoints_
    assert found == pytest.approx(mean, abs=0.03 * model.cutpoints_std_.min())
    new = np.diff(cdf(cuts - b * (1.0 - center)), axis=0) @ w
    assert model.predict_proba([[1.0]])[0] == pytest.approx(new, abs=2e-3)


def test_probabilities_of_draws():
    """Wrong variant: their logs are averaged over classes, not over draws."""
    model = BayesianOrdinalClassifier(posterior="mixture", max_iter=1, random_state=0)
    with pytest.warns(ConvergenceWarning):
        p = model.fit(X, LEVELS).predict_proba(X)
    assert p.shape == (60, 3)
    assert p.sum(1) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("p", [OrdinalLikelihood(2), OrdinalLikelihood(5, "probit")])
def test_derivatives_of_levels(p):
    """Wrong variant: the second derivative without that of the distances."""
    f = torch.from_numpy(RNG.normal(size=(3, 5, p.n_outputs)))
    y = torch.arange(5.0) % p.n_levels
    own, general = (q.log_prob_derivatives(f, y) for q in (p, super(type(p), p)))
    for found, expected in zip(own, general, strict=True):
        assert found.numpy() == pytest.approx(expected.numpy(), rel=1e-8, abs=1e-10)


def test_order_of_classes():
    """Two levels are a logistic regression; names have the order that is given."""
    two = BayesianOrdinalClassifier(prior=Normal(1.0)).fit(X, LEVELS > 0)
    plain = BayesianLogisticRegression(prior=Normal(1.0)).fit(X, LEVELS > 0)
    assert two.coef_ == pytest.approx(plain.coef_, abs=1e-8)
    assert two.cutpoints_ == pytest.approx(-plain.intercept_, abs=1e-6)
    model = BayesianOrdinalClassifier(categories=NAMES).fit(X, NAMES[LEVELS])
    codes = BayesianOrdinalClassifier().fit(X, LEVELS)
    assert model.coef_ == pytest.approx(codes.coef_, abs=1e-12)
    assert (model.predict(X) == NAMES[codes.predict(X)]).all()
    assert list(model.summary().names) == ["x0", "low|medium", "medium|high"]
    with pytest.warns(SkviWarning, match="categories="):
        BayesianOrdinalClassifier().fit(X, NAMES[LEVELS])
    with pytest.raises(ValueError, match=r"labels \['high'\], which are not in"):
        BayesianOrdinalClassifier(categories=NAMES[:2]).fit(X, NAMES[LEVELS])


@pytest.mark.parametrize("prior", ["normal", "auto"])
def test_binomial_is_logistic_on_expanded_rows(prior):
    """Wrong variants: units of rows without trials; no binomial coefficients."""
    model = BayesianBinomialRegressor(prior=prior).fit(X, Y, n_trials=TRIALS)
    labels = np.concatenate([np.arange(m) < k for k, m in zip(Y, TRIALS, strict=True)])
    expanded = BayesianLogisticRegression(prior=prior)
    expanded.fit(np.repeat(X, TRIALS, axis=0), labels)
    assert model.coef_ == pytest.approx(expanded.coef_[0], abs=1e-8)
    assert model.coef_std_ == pytest.approx(expanded.coef_std_[0], abs=1e-8)
    constant = (gammaln(TRIALS + 1) - gammaln(Y + 1) - gammaln(TRIALS - Y + 1)).sum()
    assert model.lower_bound_ - constant == pytest.approx(expanded.lower_bound_)
    rate = expanded.predict_proba(X)[:, 1]
    assert model.predict(X) == pytest.approx(rate, abs=1e-8)
    mass = [model.predict_log_density(X[:1], [k], n_trials=4)[0] for k in range(5)]
    cdf = np.cumsum(np.exp(mass))
    assert cdf[-1] == pytest.approx(1)
    high = model.predict_interval(X[:1], 0.8, n_trials=4)[0, 1]
    assert high == np.searchsorted(cdf, 0.9)


def test_binomial_offset_and_targets():
    """Wrong variant: an offset of the wrong sign."""
    model, offset = BayesianBinomialRegressor(prior="normal"), np.full(60, 2.0)
    plain = model.fit(X, Y, n_trials=TRIALS).predict(X)
    model.fit(X, Y, n_trials=TRIALS, offset=offset)
    assert model.predict(X, offset=offset) == pytest.approx(plain, abs=1e-3)
    assert (model.predict(X, offset=0) < plain).all()
    with pytest.warns(SkviWarning, match="the fit had offset="):
        model.predict(X)
    with pytest.warns(SkviWarning, match="the fit had n_trials="):
        model.predict_interval(X, offset=offset)
    with pytest.raises(TypeError, match="takes no 'exposure'"):
        model.predict(X, exposure=2)
    with pytest.raises(ValueError, match="more successes than trials"):
        model.fit(X, Y)
    with pytest.raises(ValueError, match="must be counts"):
        model.fit(X, Y + 0.5, n_trials=TRIALS)
