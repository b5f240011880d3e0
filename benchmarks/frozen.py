"""A frozen table of linear models with given priors: bounds, moments, predictions.

    PYTHONPATH=. python benchmarks/frozen.py check [-k text]
    PYTHONPATH=. python benchmarks/frozen.py store [-k text]

results/frozen.json has what the engines of November 2026 computed; negative binomial
rows are those of nodes of the dispersion, whose bound is .02 to .08 nats higher than
that of a coefficient posterior independent of it. `check` takes one or two minutes and
fails where a bound is lower by more than .005 nats (higher ones are welcome), or means,
deviations or predictions of an ELBO fit differ by more than .02 posterior deviations.
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_iris,
    load_wine,
)
from sklearn.preprocessing import scale

from skvi import divergences as D
from skvi.likelihoods import NegativeBinomialLikelihood, StudentTLikelihood
from skvi.linear_model import (
    BayesianLinearRegression as Linear,
)
from skvi.linear_model import (
    BayesianLogisticRegression as Logistic,
)
from skvi.linear_model import (
    BayesianPoissonRegressor as Counts,
)
from skvi.priors import (
    GammaHyperprior,
    HalfCauchy,
    Horseshoe,
    Laplace,
    Normal,
    StudentT,
)

STORED = Path(__file__).parent / "results" / "frozen.json"
LOWER, DEVIATIONS = 0.005, 0.02


def data():
    """Features and targets by name."""
    rng, found = np.random.default_rng(0), {}
    for name, load in (("cancer", load_breast_cancer), ("iris", load_iris)):
        X, y = load(return_X_y=True)
        found[name] = scale(X), y
    X, y = load_wine(return_X_y=True)
    found["wine"] = scale(X), y
    X, y = load_diabetes(return_X_y=True)
    X = scale(X)
    found["diabetes"] = X, y
    found["counts"] = X, rng.poisson(np.exp(0.3 * X[:, 2] + 0.3))
    X = found["cancer"][0][:120, :8]
    found["small"] = X, found["cancer"][1][:120]
    X = rng.normal(size=(150, 10))
    p = 2 / (2 + np.exp(0.7 * X[:, 0] + 0.5))
    found["dispersed"] = X, rng.negative_binomial(2, p)
    X = rng.normal(size=(60, 400))
    f = X[:, :5].sum(1) + rng.normal(size=60)
    found["wide"] = X, (f > 0).astype(int)
    X = sp.random(200, 50, 0.1, random_state=0, format="csr")
    f = X[:, [0]].toarray().ravel() + 0.1 * rng.normal(size=200)
    found["sparse"] = X, (f > 0.02).astype(int)
    X = np.outer(np.linspace(-1, 1, 20), [1.0])
    found["separable"] = X, (X[:, 0] > 0).astype(int)
    return found


def problems():
    """Estimators and names of data, by name; every prior is given."""
    unknown, one = Normal(HalfCauchy()), Normal(1.0)
    gammas = {
        "prior": Normal(GammaHyperprior(1, 1)),
        "noise_scale": GammaHyperprior(1, 1),
    }
    nb = NegativeBinomialLikelihood
    found = {
        "counts unit": (Counts(prior=one), "counts"),
        "counts unknown": (Counts(prior=unknown), "counts"),
        "counts laplace": (Counts(prior=Laplace(1.0)), "counts"),
        "counts mean field": (Counts(prior=unknown, posterior="mean_field"), "counts"),
        "counts of dispersion .5": (Counts(prior=one, likelihood=nb(0.5)), "dispersed"),
        "counts learned": (Counts(prior=one, likelihood=nb("learn")), "dispersed"),
        "dispersion": (Counts(prior=one, likelihood=nb("hyperprior")), "dispersed"),
        "dispersion unknown": (
            Counts(prior=unknown, likelihood=nb("hyperprior")),
            "dispersed",
        ),
        "separable wide": (Logistic(prior=Normal(10.0)), "separable"),
        "separable unknown": (Logistic(prior=unknown), "separable"),
        "wide unit": (Logistic(prior=one), "wide"),
        "wide unknown": (Logistic(prior=unknown), "wide"),
        "sparse unknown": (Logistic(prior=unknown), "sparse"),
        "sparse laplace": (Logistic(prior=Laplace(1.0)), "sparse"),
        "weights": (Logistic(prior=one, class_weight="balanced"), "cancer"),
        "learned scale": (Logistic(prior=Normal("learn")), "small"),
        "ard": (Logistic(prior="ard"), "small"),
        "regression": (Linear(**gammas), "diabetes"),
        "regression unit": (Linear(prior=one, noise_scale=54.0), "diabetes"),
        "regression laplace": (
            Linear(prior=Laplace(0.3), noise_scale=54.0),
            "diabetes",
        ),
        "regression heavy tails": (
            Linear(prior=one, likelihood=StudentTLikelihood(df=4.0), noise_scale=45.0),
            "diabetes",
        ),
    }
    for name in ("cancer", "iris", "wine", "small"):
        found[f"{name} unit"] = Logistic(prior=one), name
        found[f"{name} unknown"] = Logistic(prior=unknown), name
        mean_field = Logistic(prior=one, posterior="mean_field")
        found[f"{name} mean field"] = mean_field, name
    for prior in (Laplace(0.5), StudentT(4.0, 0.5), Horseshoe(0.3)):
        found[f"small {prior!r}"] = Logistic(prior=prior), "small"
    for other in (
        D.KLDivergence(0.5),
        D.RenyiDivergence(0.9),
        D.JeffreysDivergence(),
        D.GammaDivergence(1.05),
    ):
        model = Logistic(prior=one, divergence=other)
        found[f"small {other!r}"] = model, "small"
    for loss in ("beta", "gamma"):
        found[f"small {loss}"] = Logistic(prior=one, loss=loss), "small"
    return found


def values_of(model, X, y):
    """What is stored, in deviations where it is one."""
    model.fit(X, y)
    predict = getattr(model, "predict_proba", model.predict)
    return {
        "bound": -model.objective_value_
        if model.diagnostics_["solver"] == "moment_matching"
        else model.objective_value_,
        "coef": np.ravel(model.coef_).tolist(),
        "std": np.ravel(model.coef_std_).tolist(),
        "predictions": np.ravel(predict(X[:20])).tolist(),
    }


def misses(old, new):
    """What moved beyond its tolerance."""
    found = []
    if not new["bound"] > old["bound"] - LOWER:
        found.append(f"bound {old['bound']:.4f} -> {new['bound']:.4f}")
    std = np.array(old["std"])
    moved = np.abs(np.subtract(new["coef"], old["coef"])) / std
    wider = np.abs(np.array(new["std"]) / std - 1)
    before, now = np.array(old["predictions"]), np.array(new["predictions"])
    changed = np.abs(now - before) / np.maximum(np.abs(before), 0.1)
    for name, value in (("mean", moved), ("std", wider), ("prediction", changed)):
        if not value.max() < DEVIATIONS:
            found.append(f"{name} by {value.max():.3f}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=["store", "check"])
    parser.add_argument("-k", default="", metavar="TEXT", help="part of a name")
    options = parser.parse_args()
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    sets, n_missed, start = data(), 0, time.process_time()
    for name, (model, rows) in problems().items():
        if options.k not in name:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            new = values_of(model, *sets[rows])
        if options.command == "store":
            stored[name] = new
            continue
        found = misses(stored[name], new) if name in stored else ["not stored"]
        gain = new["bound"] - stored.get(name, new)["bound"]
        n_missed += bool(found)
        print(f"{name:36s} {gain:+.4f} nats  {'; '.join(found)}", flush=True)
    if options.command == "store":
        lines = (f'"{name}": {json.dumps(stored[name])}' for name in sorted(stored))
        STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{n_missed} missed, {time.process_time() - start:.0f} s of processor time")
    return int(bool(n_missed))


if __name__ == "__main__":
    sys.exit(main())
