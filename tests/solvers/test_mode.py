"""The search for the mode, where fits without draws start."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import scale

from skvi.base import NormalForm
from skvi.divergences import KL
from skvi.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
)
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import LogLoss
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal
from skvi.predictors import LinearPredictor
from skvi.priors import Normal
from skvi.solvers import NaturalGradient, Problem, SolverOptions, _mode
from skvi.solvers._mode import add, alternate, find_mode
from skvi.solvers._normal_point import point_at
from skvi.targets import SupervisedTarget


def _target(kind):
    X, y = load_breast_cancer(return_X_y=True)
    X, likelihood = scale(X), BernoulliLikelihood()
    if kind == "numbers":
        y, likelihood = X[:, 0] + y, GaussianLikelihood()
    X, y = torch.from_numpy(X), torch.from_numpy(y.astype(float))
    predictor = LinearPredictor(X.shape[1])
    prior = Normal().build(predictor.layout)
    return SupervisedTarget(predictor, likelihood, LogLoss(), prior, X, y)


def test_long_steps_where_losses_flatten(monkeypatch):
    """Whole steps take seven. Wrong variant: every step is a whole one."""
    counts = _count(monkeypatch)
    _search("labels")
    assert counts["steps"] == 5


def test_no_long_steps_over_a_parabola(monkeypatch):
    """Wrong variant: any decrease will do for a long step."""
    counts = _count(monkeypatch)
    _search("numbers")
    # The second step is zero up to rounding, which decides whether it is halved.
    assert counts["steps"] == 2
    assert counts["points_before_last_step"] == 3  # the first, a long one, a whole one


def _count(monkeypatch):
    counts = {"steps": 0, "points": 0, "points_before_last_step": 0}

    def counting(name, function):
        def call(*args):
            counts[name] += 1
            if name == "steps":
                counts["points_before_last_step"] = counts["points"]
            return function(*args)

        return call

    solve = counting("steps", _mode.solve_newton)
    monkeypatch.setattr(_mode, "solve_newton", solve)
    evaluate = counting("points", SupervisedTarget.loss_terms)
    monkeypatch.setattr(SupervisedTarget, "loss_terms", evaluate)
    return counts


def _search(kind):
    """Find the mode, and check that less than half a nat is left."""
    target = _target(kind)
    with torch.inference_mode():
        mode, curvature = find_mode(target, target.prior.matching_normal())
        slope = target.rough_loss_terms(NormalForm(mode, torch.zeros_like(mode)))[1]
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
    problem = Problem(target, ELBO(), KL(), posterior, None)
    form = prior.matching_normal()
    with torch.inference_mode():
        mean, curvature = find_mode(target, form)
        precision = add(predictor.gram(X, curvature), 1 / form.variance)
        values = [
            point_at(problem, *alternate(target, form, mean, precision, n)).value
            for n in (0, 2)
        ]
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
