"""Seconds and peak memory of common models on scikit-learn's data, over commits."""

import warnings

from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.preprocessing import scale

from skvi.gaussian_process import SparseGaussianProcessRegressor
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor

MODELS = {
    "regression": (BayesianLinearRegression(), load_diabetes),
    "student_t": (BayesianLinearRegression(likelihood="student_t"), load_diabetes),
    "counts": (BayesianPoissonRegressor(likelihood="negative_binomial"), load_diabetes),
    "two_classes": (BayesianLogisticRegression(), load_breast_cancer),
    "three_classes": (BayesianLogisticRegression(), load_iris),
    "process": (SparseGaussianProcessRegressor(), load_diabetes),
    "network": (BayesianMLPRegressor(max_iter=20, random_state=0), load_diabetes),
    "digits": (BayesianMLPClassifier(max_iter=5, random_state=0), load_digits),
}
WITH_EVIDENCE = ["regression", "counts", "two_classes"]


def problem(name):
    """An unfitted model, its scaled features and targets."""
    model, load = MODELS[name]
    X, y = load(return_X_y=True)
    return clone(model), scale(X), y


class Fit:
    params, param_names, timeout = [list(MODELS)], ["model"], 600

    def setup(self, name):
        warnings.simplefilter("ignore")  # of networks that end early
        self.model, self.X, self.y = problem(name)

    def time_fit(self, name):
        self.model.fit(self.X, self.y)

    def peakmem_fit(self, name):
        self.model.fit(self.X, self.y)


class Fitted:
    params, param_names, timeout = [list(MODELS)], ["model"], 600

    def setup(self, name):
        Fit.setup(self, name)
        self.model.fit(self.X, self.y)

    def time_predict(self, name):
        self.model.predict(self.X)

    def time_evidence(self, name):
        self.model.evidence_bounds(self.X, self.y)

    time_evidence.params = [WITH_EVIDENCE]
