"""The search for the mode, where fits without draws start."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from skvi.base import NormalForm
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood
from skvi.losses import LogLoss
from skvi.predictors import LinearPredictor
from skvi.priors import Normal
from skvi.solvers import _mode
from skvi.solvers._mode import find_mode
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
    assert counts == {"steps": 2, "points": 4}  # the first, a long one, two whole ones


def _count(monkeypatch):
    counts = {"steps": 0, "points": 0}

    def counting(name, function):
        def call(*args):
            counts[name] += 1
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
