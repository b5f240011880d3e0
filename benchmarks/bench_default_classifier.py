"""Test log loss of a classifier that finds the scale of its prior, on real data.

    SKVI_DATA=folder python benchmarks/bench_default_classifier.py           # an hour
    SKVI_DATA=folder python benchmarks/bench_default_classifier.py iris pima
    python benchmarks/bench_default_classifier.py --ours     # minutes: only ours
    python benchmarks/bench_default_classifier.py --digits   # minutes: why digits lose
    python benchmarks/bench_default_classifier.py --scales   # two minutes: its seconds
    python benchmarks/bench_default_classifier.py --summary

Five folds, twice, stratified; two folds of a9a. Features are standardized by the
training part; scikit-learn's classifiers have their defaults. Columns: mean test log
loss of ``prior="auto"`` in nats per row (classes of probability 0 count as 1e-15), the
differences of the others to it with standard errors over folds, and seconds of
processor time of one fit of each. All fits are in ``results/default_classifier.csv``.

Two cores, x86_64, ours 2026-11-23, the others 2026-11-22, on a busy machine.
Differences of N(0, 1), logistic, logistic CV, boosting (positive: ours is better):

    iris           .084  +.094 (.016)  +.070 (.016)  +.012 (.011)  +.277 (.094)
    wine           .054  +.021 (.002)  +.007 (.003)  +.002 (.009)  +.001 (.016)
    ripley         .334  +.000 (.003)  -.000 (.003)  -.001 (.001)  +.047 (.031)
    pima           .482  +.000 (.001)  +.001 (.001)  +.001 (.000)  +.170 (.018)
    spectf         .367  +.026 (.005)  +.048 (.007)  +.002 (.003)  +.205 (.041)
    ionosphere     .303  -.010 (.004)  +.046 (.010)  +.028 (.016)  -.042 (.022)
    german         .494  +.004 (.002)  +.005 (.002)  -.001 (.001)  +.078 (.012)
    breast_cancer  .078  -.003 (.003)  -.003 (.003)  +.002 (.005)  +.037 (.013)
    mushroom       .001  +.001 (.000)  +.000 (.000)  +.001 (.001)  -.001 (.000)
    digits         .120  +.006 (.001)  -.011 (.003)  +.001 (.004)  -.020 (.007)
    a9a            .328  +.000 (.000)  +.000 (.000)  +.000 (.000)  -.001 (.004)

The scale that "auto" finds, and processor seconds of a fit to all rows, best of three,
with iterations: under N(0, 1), under a normal prior with that scale, and by "auto"
(``--scales``, 2026-11-23, on a machine that takes twice the seconds of 2026-11-22):

    iris           7.54    0.049 ( 3)    0.146 ( 9)    0.179 (11)
    wine           2.85    0.075 ( 4)    0.128 ( 5)    0.277 (16)
    ripley         1.98    0.010 ( 3)    0.010 ( 3)    0.019 ( 3)
    pima           0.53    0.011 ( 1)    0.010 ( 1)    0.017 ( 1)
    spectf         0.40    0.016 ( 3)    0.014 ( 3)    0.033 ( 2)
    ionosphere     1.00    0.016 ( 4)    0.016 ( 4)    0.035 ( 4)
    german         0.25    0.013 ( 2)    0.011 ( 1)    0.021 ( 2)
    breast_cancer  1.39    0.017 ( 4)    0.019 ( 5)    0.046 ( 4)
    mushroom       1.96    1.091 (36)    1.434 (42)    2.540 (40)
    digits         1.38    2.669 ( 7)    3.624 (11)    8.426 (22)
    a9a            0.14    3.311 (37)    1.200 (12)    1.520 (13)

The same fits by hand, beside other work, at f66f12a: "auto" 10.6 for digits, 6.1 for
mushroom, 0.39 for iris; digits under the scale 3 took 87, and take 5 since steps of the
mean that overshoot are halved.
On 2026-11-22 logistic CV took 0.27 for digits, 0.2 for mushroom, 1.2 for a9a, and 0.1
to 0.2 for the others.
On digits `LogisticRegression()` is better by three standard errors, and not because of
the fit: the exact posterior, drawn from by Hamiltonian chains, is no better
(``--digits``, four folds, 2026-11-23):

    scale  mode  full rank  mean field  exact
    0.7    .118  .138       .139        .140
    1      .113  .130       .131        .132
    2      .120  .125       .128        .133

Standardized pixels that are hardly ever set reach 80 on test rows; the mode leaves
their coefficients near 0, but a posterior under independent priors of one scale keeps
half of that scale.
"""

import csv
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from scipy.special import logsumexp, softmax
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import RepeatedStratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skvi.linear_model import BayesianLogisticRegression
from skvi.priors import Normal

RESULTS = Path(__file__).parent / "results" / "default_classifier.csv"
MODELS = {
    "unknown scale": BayesianLogisticRegression(prior="auto"),
    "N(0, 1)": BayesianLogisticRegression(prior="normal"),
    "logistic": LogisticRegression(max_iter=10_000),
    "logistic CV": LogisticRegressionCV(scoring="neg_log_loss", max_iter=10_000),
    "boosting": HistGradientBoostingClassifier(random_state=0),
}
FIRST = next(iter(MODELS))
TABLES = {
    "pima": "pima/pima.csv",
    "ionosphere": "ionosphere/ionosphere.csv",
    "german": "german-credit/german_numeric.csv",
    "ripley": "ripley-synth/synth.tr.csv",
}


def load(name):
    """Features and labels of a set."""
    folder = Path(os.environ.get("SKVI_DATA", "data"))
    if name in ("iris", "wine", "breast_cancer", "digits"):
        return getattr(datasets, f"load_{name}")(return_X_y=True)
    if name == "a9a":
        X, y = datasets.load_svmlight_file(folder / "a9a" / "a9a.gz")
        return X.toarray(), y
    if name == "mushroom":
        table = np.genfromtxt(folder / "mushroom" / "mushroom.csv", str, delimiter=",")
        columns = [table[1:, i, None] == np.unique(table[1:, i]) for i in range(1, 23)]
        return np.hstack(columns).astype(float), table[1:, 0]
    if name == "spectf":
        file = folder / "spectf" / "spectf.csv"
        table = np.genfromtxt(file, delimiter=",", skip_header=1, usecols=range(45))
    else:
        table = np.genfromtxt(folder / TABLES[name], delimiter=",", skip_header=1)
    return table[:, :-1], table[:, -1]


SETS = ("iris", "wine", "ripley", "pima", "spectf", "ionosphere", "german")
SETS += ("breast_cancer", "mushroom", "digits", "a9a")


def folds_of(name, X, y):
    """Rows of training and test."""
    folds = RepeatedStratifiedKFold(n_splits=5, n_repeats=2, random_state=0)
    return list(folds.split(X, y))[: 2 if name == "a9a" else None]


def measure(name, models):
    """One row for each fold and model: log loss and seconds."""
    X, y = load(name)
    for i, (train, test) in enumerate(folds_of(name, X, y)):
        for model_name in models:
            pipeline = make_pipeline(StandardScaler(), MODELS[model_name])
            start = time.process_time()
            pipeline.fit(X[train], y[train])
            seconds = time.process_time() - start
            loss = loss_of(y[test], pipeline.predict_proba(X[test]))
            yield name, str(i), model_name, f"{loss:.6f}", f"{seconds:.3f}"


def loss_of(y, p):
    """Log loss of probabilities, at least 1e-15."""
    p = np.clip(p, 1e-15, 1)
    return log_loss(y, p / p.sum(1, keepdims=True))


def record(rows):
    """Write rows, instead of those of the same sets and models."""
    with RESULTS.open() as file:
        before = list(csv.reader(file))
    new = {tuple(row[:3]) for row in rows}
    kept = [row for row in before if tuple(row[:3]) not in new]
    with RESULTS.open("w", newline="") as file:
        csv.writer(file).writerows([*kept, *rows])


def posterior_draws(X, y, scale, seed, n_draws=500, n_warm_up=150, n_steps=16):
    """Coefficients from a Hamiltonian chain: exact but for its length."""
    rng = np.random.default_rng(seed)
    A, Y = with_constant(X), (y[:, None] == np.unique(y)).astype(float)

    def log_posterior(w):
        f = A @ w
        p = softmax(f, axis=1)
        value = (f * Y).sum() - logsumexp(f, axis=1).sum() - (w**2).sum() / 2 / scale**2
        return value, A.T @ (Y - p) - w / scale**2

    w = np.zeros((A.shape[1], Y.shape[1]))
    (value, slope), widths, step, chain = log_posterior(w), 0.3 * scale, 0.1, []
    for i in range(n_warm_up + n_draws):
        speed = before = rng.standard_normal(w.shape)
        new, new_slope, length = w, slope, step * widths * rng.uniform(0.8, 1.2)
        for _ in range(n_steps):
            half = speed + length * new_slope / 2
            new = new + length * half
            new_value, new_slope = log_posterior(new)
            speed = half + length * new_slope / 2
        gain = new_value - value + ((before**2).sum() - (speed**2).sum()) / 2
        if np.log(rng.random()) < gain:  # never if it is not a number
            w, value, slope = new, new_value, new_slope
        chain.append(w)
        if i < n_warm_up:  # four of five steps accepted
            rate = np.exp(np.minimum(0.0, np.nan_to_num(gain, nan=-np.inf)))
            step *= np.exp(0.2 * (rate - 0.8))
        if i in (60, 100):
            widths = np.maximum(np.std(chain[-40:], axis=0), 0.05 * scale)
    return np.array(chain[n_warm_up:])


def with_constant(X):
    """Features, and a column of ones for the intercept."""
    return np.column_stack([X, np.ones(len(X))])


def explain_digits(scales=(0.7, 1.0, 2.0), n_folds=4):
    """Print log losses of mode, fits and exact posterior under given scales."""
    X, y = load("digits")
    for scale in scales:
        found = {"mode": [], "full_rank": [], "mean_field": [], "exact": []}
        for i, (train, test) in enumerate(folds_of("digits", X, y)[:n_folds]):
            scaler = StandardScaler().fit(X[train])
            rows, new = scaler.transform(X[train]), scaler.transform(X[test])
            mode = LogisticRegression(C=scale**2, max_iter=10_000)
            models = {"mode": mode}
            for family in ("full_rank", "mean_field"):
                models[family] = BayesianLogisticRegression(
                    prior=Normal(scale), posterior=family
                )
            for kind, model in models.items():
                p = model.fit(rows, y[train]).predict_proba(new)
                found[kind].append(loss_of(y[test], p))
            draws = posterior_draws(rows, y[train], scale, seed=i)
            p = softmax(with_constant(new) @ draws, axis=2).mean(0)
            found["exact"].append(loss_of(y[test], p))
        line = "  ".join(f"{k} {np.mean(v):.4f}" for k, v in found.items())
        print(f"scale {scale}, {n_folds} folds: {line}", flush=True)


def compare_scales(names, repeats=3):
    """Print seconds of fits to all rows: N(0, 1), the scale found, and auto."""
    for name in names:
        X, y = load(name)
        X = StandardScaler().fit_transform(X)
        found = BayesianLogisticRegression().fit(X, y).prior_scale_
        line = f"{name:13s} scale {found:5.2f}"
        for prior in (Normal(), Normal(found), "auto"):
            model, seconds = BayesianLogisticRegression(prior=prior), []
            for _ in range(repeats):
                start = time.process_time()
                model.fit(X, y)
                seconds.append(time.process_time() - start)
            line += f"  {min(seconds):7.3f} ({model.n_iter_:2d})"
        print(line, flush=True)


def summarize():
    """Print a table of means and paired differences."""
    with RESULTS.open() as file:
        rows = list(csv.reader(file))
    for name in SETS:
        losses, seconds = ({m: [] for m in MODELS} for _ in range(2))
        for _, _, model, loss, duration in (r for r in rows if r[0] == name):
            losses[model].append(float(loss))
            seconds[model].append(float(duration))
        if not losses[FIRST]:
            continue
        line = f"{name:13s} {np.mean(losses[FIRST]):.4f}"
        for model in list(MODELS)[1:]:
            difference = np.subtract(losses[model], losses[FIRST])
            error = difference.std(ddof=1) / np.sqrt(len(difference))
            line += f"  {difference.mean():+.4f} ({error:.4f})"
        line += "  " + " ".join(f"{np.mean(s):.2f}" for s in seconds.values())
        print(line)


def main(options):
    """Measure the sets that are named, or all."""
    if "--digits" in options:
        return explain_digits()
    names = [name for name in options if not name.startswith("--")]
    if "--scales" in options:
        return compare_scales(names or SETS)
    names = names or ([] if "--summary" in options else SETS)
    models = [*MODELS][:2] if "--ours" in options else [*MODELS]
    for name in names:
        record(list(measure(name, models)))
    return summarize()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1:])
