"""The search for the mode, where fits without draws start."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import scale

from skvi.divergences import KLDivergence
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood
from skvi.likelihoods._categorical import CategoricalLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import LogLoss
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal
from skvi.predictors import LinearPredictor
from skvi.priors import Normal
from skvi.solvers import Problem, SolverOptions
from skvi.solvers._mode import add, alternate, find_mode
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._newton import Descent
from skvi.targets import SupervisedTarget
from skvi.targets._rows import terms_at


def _target(kind):
    X, y = load_breast_cancer(return_X_y=True)
    X, likelihood = scale(X), BernoulliLikelihood()
    if kind == "numbers":
        y, likelihood = X[:, 0] + y, GaussianLikelihood(1.0)
    X, y = torch.from_numpy(X), torch.from_numpy(y.astype(float))
    predictor = LinearPredictor(X.shape[1])
    prior = Normal().build(predictor.layout)
    return SupervisedTarget(predictor, likelihood, LogLoss(), prior, X, y)


@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_the_mode_is_near(kind):
    """Wrong variants: one step; the gradient without the prior."""
    target = _target(kind)
    with torch.inference_mode():
        mode, curvature = find_mode(target, target.prior.matching_normal())
        slope = terms_at(target, mode)[1]
        gradient = target.predictor.pull_back(target.X, slope) + mode
        gram = target.predictor.gram(target.X, curvature)
        step = torch.linalg.solve(gram + torch.eye(len(mode)).double(), gradient)
    assert float(gradient @ step) / 2 < 0.03


@pytest.mark.parametrize(
    ("width", "at_mode", "after_two"), [(1.0, 30, 1), (10.0, 500, 10)]
)
def test_a_start_for_several_classes(width, at_mode, after_two):
    """Nats of the mode's own curvature, and of two rounds from there.

    Wrong variants: the precision stays that of the mode; whole steps of the mean, after
    which 45 nats are left beside a wide prior.
    """
    X, y = load_digits(return_X_y=True)
    X, y = torch.from_numpy(scale(X[:300, 18:30])), torch.from_numpy(y[:300]).double()
    predictor = LinearPredictor(12, 10)
    prior = Normal(width).build(predictor.layout)
    likelihood = CategoricalLikelihood(10)
    target = SupervisedTarget(predictor, likelihood, LogLoss(), prior, X, y)
    posterior = FullRankNormal().build(predictor.layout)
    problem = Problem(target, ELBO(), KLDivergence(), posterior, None)
    form = prior.matching_normal()
    with torch.inference_mode():
        mean, curvature = find_mode(target, form)
        precision = add(predictor.gram(X, curvature), 1 / form.variance)
        starts = (alternate(target, form, mean, precision, n) for n in (0, 2))
        begin = map(torch.stack, zip(*starts, strict=True))
        found = Descent([target] * 2, KLDivergence(), *begin)
        values = [found.place(k).value for k in (0, 1)]
        best = NaturalGradient().solve(problem, SolverOptions(tol=1e-2)).value
    assert values[0] - best > at_mode
    assert values[1] - best < after_two


def test_separable_fits_with_an_unknown_scale_need_few_steps():
    """Ten of them, and nineteen from a start that moves mean and precision at once.

    Wrong variant: that start, as where the scale is known.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 20))
    y = X[:, :3].sum(1) > 0
    model = BayesianLogisticRegression().fit(X, y)
    assert model.converged_
    assert model.n_iter_ <= 12


def test_large_separable_fits_need_few_steps():
    """Twelve of them, and more where quasi-Newton runs take over, from other starts.

    Wrong variant: mean and precision move at once.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 180))
    y = X[:, :20].sum(1) + rng.logistic(size=300) > 0
    model = BayesianLogisticRegression(prior=Normal()).fit(X, y)
    assert model.converged_
    assert model.n_iter_ <= 7
