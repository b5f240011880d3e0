"""What batches lose to one fit, and how fast a stream is learned.

Full-rank logistic regression of the breast cancer data, in batches: the ELBO of all
rows under the first prior at the end of the stream, the sum of the bounds of the
batches, and the test log loss, beside one fit. Then streams of simulated rows with 20
features, beside scikit-learn's `SGDClassifier`, and on fewer rows, the same for all,
beside river's logistic regression (where it is installed; in batches of 100 rows, since
one by one it takes twice as long): rows per second, memory, log density, and seconds of
a chunk from the first to the last tenth.

    python benchmarks/streams.py --rows 1e7
"""

import argparse
import resource
import warnings
from importlib.util import find_spec

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import skvi
from skvi._estimator._model import TrainingData
from skvi.base import NormalForm
from skvi.evidence._summarize import lower_bound
from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.priors import Normal


def cancer(prior, n_batches, n_shuffles):
    """Print how far a stream ends from one fit, over shuffles and splits."""
    X, y = load_breast_cancer(return_X_y=True)
    intercept = None if prior == "auto" else Normal(1.0)
    found = []
    for seed in range(n_shuffles):
        a, b = train_test_split(
            np.arange(len(y)), test_size=0.3, random_state=seed, stratify=y
        )
        scaler = StandardScaler().fit(X[a])
        A, B = scaler.transform(X[a]), scaler.transform(X[b])
        model = BayesianLogisticRegression(prior=prior, intercept_prior=intercept)
        one = BayesianLogisticRegression(prior=prior, intercept_prior=intercept)
        one.fit(A, y[a])
        order = np.random.default_rng(seed).permutation(len(a))
        for rows in np.array_split(order, n_batches):
            model.partial_fit(A[rows], y[a][rows], classes=[0, 1])
        lost = np.nan
        if prior != "auto":
            lost = one.lower_bound_ - bound_of_all(model, one, A, y[a])
        sum_ = model.diagnostics_["sum_of_bounds"] - one.lower_bound_
        test = (m.predict_log_density(B, y[b]).mean() for m in (model, one))
        moved = np.abs((model.coef_ - one.coef_) / one.coef_std_).max()
        found.append([lost, sum_, abs(np.subtract(*test)), moved])
    names = "ELBO lost", "sum of bounds less ELBO", "|log loss|", "moved [std]"
    means, most = np.mean(found, 0), np.max(np.abs(found), 0)
    parts = zip(names, means, most, strict=True)
    text = "; ".join(f"{name} {m:.4f} (at most {k:.4f})" for name, m, k in parts)
    print(f"{prior}, {n_batches} batches: {text}", flush=True)


def bound_of_all(model, one, X, y):
    """The ELBO of all rows at the end of a stream; the features have mean 0."""
    normal = model.posterior_.as_normal()
    mean = model._model.in_units(normal.mean[None])[0]
    root = model._model.in_units(normal.scale.T, is_difference=True)
    found = NormalForm(mean, torch.linalg.cholesky(root.T @ root))
    rows = TrainingData.gather(one._model.response, X, y, None, None)
    posterior, target = one.posterior_.near(found), one._model.target(rows)
    return lower_bound(target, posterior, torch.Generator())[0]


def chunks(n_rows, size, is_binary):
    rng = np.random.default_rng(0)
    coef = 0.5 * rng.normal(size=20)
    for _ in range(n_rows // size):
        X = rng.standard_normal((size, 20))
        f = X @ coef - 1
        y = (f + rng.logistic(size=size) > 0).astype(int)
        yield X, (y if is_binary else f + rng.standard_normal(size))


class River(ClassifierMixin, BaseEstimator):
    """The logistic regression of river, by steps of 100 rows."""

    def partial_fit(self, X, y, classes=None):
        if not hasattr(self, "model_"):
            from river.linear_model import LogisticRegression

            self.model_, self.classes_ = LogisticRegression(), np.array(classes)
        for i in range(0, len(y), 100):
            rows = pd.DataFrame(X[i : i + 100])
            self.model_.learn_many(rows, pd.Series(y[i : i + 100], index=rows.index))
        return self

    fit = partial_fit

    def predict_proba(self, X):
        p = self.model_.predict_proba_many(pd.DataFrame(X))[True].to_numpy()
        return np.clip(np.column_stack([1 - p, p]), 1e-15, 1.0)


def speed(name, model, n_rows, size):
    """Print rows per second, the memory of the process, the score, and tenths."""
    is_binary = not isinstance(model, BayesianLinearRegression)
    classes = [0, 1] if is_binary else None
    found = skvi.stream(model, chunks(n_rows, size, is_binary), classes=classes)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    tenths = np.array_split(1e3 * found.seconds, min(10, len(found.seconds)))
    curve = " ".join(f"{np.median(part):.0f}" for part in tenths)
    print(
        f"{name:<20} {n_rows:.0e} rows: {found.rows_per_second:9,.0f} per second, "
        f"{memory:.2f} GiB, score {found.mean('log_predictive_density'):.5f}; "
        f"ms a chunk of {size}: {curve}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--few-rows", type=float, default=1e6)
    parser.add_argument("--chunk", type=int, default=100_000)
    parser.add_argument("--shuffles", type=int, default=10)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.shuffles:
        cancer(Normal(1.0), 10, options.shuffles)
        cancer("auto", 10, options.shuffles)
        cancer("auto", 50, 3)
    models = {
        "SGDClassifier": SGDClassifier(loss="log_loss", random_state=0),
        "logistic, N(0, 1)": BayesianLogisticRegression(prior="normal"),
        "linear": BayesianLinearRegression(),
    }
    for name, model in models.items() if options.rows else ():
        speed(name, model, int(options.rows), options.chunk)
    few = {"logistic, default": BayesianLogisticRegression()}
    if find_spec("river"):
        few["river"] = River()
    for name, model in {**models, **few}.items():
        speed(name, clone(model), int(options.few_rows), options.chunk // 10)


if __name__ == "__main__":
    main()
