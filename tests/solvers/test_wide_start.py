"""Fits also start where the likelihood alone is large, if the prior can hide that."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from skvi.base import Layout
from skvi.divergences import KLDivergence
from skvi.likelihoods import GaussianLikelihood, StudentTLikelihood
from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.losses import LogLoss
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal
from skvi.predictors import LinearPredictor
from skvi.priors import ARD, GammaHyperprior, Horseshoe, Laplace, Normal, StudentT
from skvi.priors._blocks import build_prior
from skvi.priors._heavy_tailed import LogUniform
from skvi.solvers import Problem, SolverOptions, _natural_gradient
from skvi.solvers._empirical_bayes import EmpiricalBayes
from skvi.solvers._natural_gradient import NaturalGradient, choose_start
from skvi.targets import SupervisedTarget

CONCAVE = [Normal(0.5), Laplace(), Normal("learn"), Laplace("learn")]
HEAVY = [StudentT(), ARD(), Horseshoe("learn"), LogUniform(), Normal(GammaHyperprior())]


def sparse_data(n=100, d=20):
    """Three coefficients of 20 are not zero."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    f = X[:, :3] @ [2.0, -1.5, 1.0]
    return X, f, f + rng.normal(size=n), (rng.uniform(size=n) < 1 / (1 + np.exp(-f)))


def regression(prior, **params):
    return BayesianLinearRegression(
        prior=prior, noise_scale=1.0, normalize_y=False, **params
    )


@pytest.mark.parametrize("prior", CONCAVE + HEAVY, ids=repr)
def test_priors_know_whether_they_are_log_concave(prior):
    """Wrong variants: of the base class True; of blocks any instead of all."""
    layout = Layout({"coef": (1, 2), "intercept": (1,)})
    assert prior.build(layout).is_log_concave == (prior in CONCAVE)
    both = build_prior({"coef": prior, "intercept": Normal()}, layout)
    assert both.is_log_concave == (prior in CONCAVE)


@pytest.mark.parametrize("prior", [Horseshoe(0.001), StudentT(scale=0.003)], ids=repr)
@pytest.mark.parametrize("posterior", ["full_rank", "mean_field"])
def test_a_spike_does_not_hold_a_regression(prior, posterior):
    """A cold fit ends more than 200 nats lower, "converged".

    Wrong variants: max instead of min over the two starts; the second start is not
    tried (the normal of the likelihood is None).
    """
    X, _, y, _ = sparse_data()
    model = regression(prior, posterior=posterior).fit(X, y)
    assert model.converged_
    np.testing.assert_allclose(model.coef_[:3], [2.0, -1.5, 1.0], atol=0.4)
    assert model.lower_bound_ > -230


def test_a_spike_does_not_hold_a_logistic_regression():
    """A cold fit ends 5.5 nats lower, with every coefficient at 0."""
    X, _, _, y = sparse_data()
    model = BayesianLogisticRegression(prior=Horseshoe(0.01)).fit(X, y)
    assert model.coef_[0, 0] > 0.5


def test_learned_noise_does_not_explain_what_the_spike_hides():
    """A cold fit takes the signal for noise: the noise scale is then 2.9."""
    X, _, y, _ = sparse_data(60, 4)
    model = BayesianLinearRegression(prior=Horseshoe(0.001), normalize_y=False)
    assert model.set_params(noise_scale="learn").fit(X, y).noise_scale_ < 1.5


def test_without_a_signal_the_spike_is_kept():
    """Wrong variant: the likelihood's start is taken, whatever its bound."""
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    model = regression(Horseshoe(1e-4)).fit(X, y)
    assert np.abs(model.coef_).max() < 0.01
    alone = -0.5 * (y - y.mean()) @ (y - y.mean()) - 15 * np.log(2 * np.pi)
    assert model.lower_bound_ > alone - 5


@pytest.mark.parametrize("prior", [*CONCAVE[:2], StudentT(), Horseshoe()], ids=repr)
def test_nothing_is_tried_where_nothing_is_hidden(prior, monkeypatch):
    """Convex or wide priors pay for no second fit."""
    tried = []
    solve = NaturalGradient.solve

    def counted(self, problem, options):
        tried.append(options)
        return solve(self, problem, options)

    monkeypatch.setattr(NaturalGradient, "solve", counted)
    X, _, _, y = sparse_data(200, 4)
    X = 3 * X
    BayesianLogisticRegression(prior=prior).fit(X, y)
    assert len(tried) == 1


def test_ctrl_c_passes_through(monkeypatch):
    """Wrong variant: what a solver says about Ctrl-C in a trial is ignored."""

    def interrupted(self, problem, options):
        raise KeyboardInterrupt

    monkeypatch.setattr(NaturalGradient, "solve", interrupted)
    X, _, y, _ = sparse_data()
    with pytest.raises(KeyboardInterrupt):
        regression(Horseshoe(0.001)).fit(X, y)


def test_the_likelihoods_normal():
    """Least squares and its covariance, up to a prior of a hundredth of a row.

    Wrong variants: precision for covariance; the prior itself in place of the wide one.
    """
    X, _, y, _ = sparse_data(100, 3)
    model = LinearPredictor(3, fit_intercept=False)
    prior = StudentT(scale=0.003).build(model.layout)
    rows = torch.from_numpy(X), torch.from_numpy(y)
    target = SupervisedTarget(model, GaussianLikelihood(1.0), LogLoss(), prior, *rows)
    normal = _natural_gradient.likelihood_normal(target)
    exact = np.linalg.lstsq(X, y)[0]
    np.testing.assert_allclose(normal.mean, exact, atol=1e-3)
    np.testing.assert_allclose(normal.covariance(), np.linalg.inv(X.T @ X), rtol=1e-3)
    diagonal = _natural_gradient.likelihood_normal(target, is_diagonal=True)
    np.testing.assert_allclose(diagonal.variance, 1 / (X**2).sum(0), rtol=1e-3)


def test_a_likelihood_with_heavy_tails_is_found_from_far_away():
    """Wrong variant: rows bend the wrong way there, and nothing seems to be hidden."""
    model = LinearPredictor(1, fit_intercept=False)
    prior = StudentT(scale=1e-3).build(model.layout)
    noise = torch.randn(20, generator=torch.Generator().manual_seed(0)).double()
    rows = torch.ones(20, 1).double(), 50 + noise
    target = SupervisedTarget(
        model, StudentTLikelihood(4.0, 1.0), LogLoss(), prior, *rows
    )
    normal = _natural_gradient.likelihood_normal(target)
    assert float(normal.mean) == pytest.approx(50, abs=1)


def test_the_scales_of_the_chosen_start_are_taken():
    """Wrong variant: those from before, of which the posterior knows nothing."""
    model = LinearPredictor(1, fit_intercept=False)
    prior = StudentT(scale=1e-3).build(model.layout)
    noise = torch.randn(20, generator=torch.Generator().manual_seed(0)).double()
    rows = torch.ones(20, 1).double(), 5 + 0.3 * noise
    learned = GaussianLikelihood("learn")
    target = SupervisedTarget(model, learned, LogLoss(), prior, *rows)
    posterior = FullRankNormal().build(model.layout)
    problem = Problem(target, ELBO(), KLDivergence(), posterior, None)
    start = choose_start(EmpiricalBayes(), problem, SolverOptions())
    found = float(start.target.hyper.exp())
    assert found == pytest.approx(float(0.3 * noise.std()), rel=0.1)


@pytest.mark.parametrize("number", [1, 2])
def test_a_start_that_fails_is_dropped(number, monkeypatch):
    """The first ends at NaN, or the second one with an error.

    Wrong variants: a NaN that came first is the smallest value; an error ends the fit.
    """
    X, _, y, _ = sparse_data()
    original, calls = NaturalGradient.solve, []

    def solve(self, problem, options):
        calls.append(None)
        found = original(self, problem, options)
        if len(calls) != number:
            return found
        if number == 2:
            raise ValueError("singular")
        return replace(found, value=math.nan)

    monkeypatch.setattr(NaturalGradient, "solve", solve)
    model = regression(StudentT(scale=0.003)).fit(X, y)
    assert len(calls) == 3
    assert (model.lower_bound_ > -250) == (number == 1)  # the second is the better one
