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


class Evidence:
    def setup(self):
        Fitted.setup(self, "regression")

    def time_evidence(self):
        self.model.evidence_bounds(self.X, self.y, max_seconds=60)

    time_evidence.number = time_evidence.repeat = 1
