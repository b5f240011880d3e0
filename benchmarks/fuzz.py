"""Fits of data that nobody expects: no NaN, no crash, no long wait, no bad ending.

    python benchmarks/fuzz.py 1000 [kind ...] [--first SEED] [--results FILE]
    python benchmarks/fuzz.py rates FILE

Kinds are those of targets of linear models, see `KINDS`, and "networks" (those of
`random_networks.py`); a case is one seed, from which all of it follows. Half of the
linear cases draw divergence, loss, objective, posterior and solver, too; one in three
data sets of any kind is sparse, float32 or a data frame, and half of the classes are
strings. Each model is fitted, predicts with deviations and intervals (in-sample and at
new rows), scores its targets, and sometimes bounds its evidence.

A failure is an exception that is not a reasoned refusal; a number that is not finite
where it should be; more than 10 s of processor time (networks: 120); an objective that
ends clearly above the lowest that it passed; and a default model whose rows have a
density far below that under the same model of a column of zeros.

A case is a line of the results: kind, seed, outcome, processor seconds, nats per row
above the constant, nats above the lowest objective. Cases that stand there are skipped,
so that a run may be stopped and started again. `rates` counts them.
"""

import argparse
import csv
import signal
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.utils import _safe_indexing as rows_of

from benchmarks import random_networks
from skvi.exceptions import IncompatibleComponentsError, NoOptimumError
from skvi.linear_model import (
    BayesianBetaRegressor,
    BayesianBinomialRegressor,
    BayesianGammaRegressor,
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianOrdinalClassifier,
    BayesianPoissonRegressor,
    BayesianTweedieRegressor,
)

KINDS = ("classes", "counts", "regression")  # seeds begin with the place
KINDS += ("positive", "rates", "amounts", "ordered", "trials", "networks")
PRIORS = ("auto", "normal", "laplace", "student_t", "horseshoe", "ard", "hierarchical")
PARTS = {
    "divergence": ("auto", "renyi", "alpha", "beta", "gamma", "jeffreys"),
    "loss": ("auto", "beta", "gamma"),
    "objective": ("eubo", "iwelbo", "renyi", "chi", "alpha_energy"),
    "posterior": ("mean_field", "full_rank", "mixture", "ensemble"),
    "solver": ("natural_gradient", "moment_matching", "stochastic"),
}
LIKELIHOODS = {
    "regression": ("gaussian", "student_t"),
    "counts": ("poisson", "negative_binomial", "zero_inflated_poisson"),
    "positive": ("gamma", "lognormal", "inverse_gaussian"),
}
REFUSALS = (ValueError, IncompatibleComponentsError, NoOptimumError)
SECONDS, OF_NETWORKS, CHECKED = 10, 120, 8
#: Nats per row that a default model may lose against a constant.
LOST = 0.5
#: Words by which a refusal says what to do.
REMEDIES = ("use ", "give ", "increase ", "standardize", "divide", "leave ", "needs ")


class TooSlow(BaseException):
    """More processor time than a case may take; no handler of errors catches it."""


def features(rng):
    """Few rows of columns with any scale; some constant, equal, or mostly zero."""
    shares = [0.1] * 4 + [0.2] * 2 + [0.1] * 2
    n = int(rng.choice([1, 2, 3, 5, 8, 12, 40, 200], p=shares))
    d = int(rng.choice([1, 2, 3, 6, 20, 60], p=[0.2, 0.25, 0.25, 0.15, 0.1, 0.05]))
    X = rng.standard_normal((n, d))
    for j in range(d):
        what = rng.integers(12)
        if what == 0:
            X[:, j] = rng.choice([0.0, 1.0, -3.0, 1e8])
        elif what == 1:
            X[:, j] = X[:, 0]
        elif what == 2:
            X[:, j] = rng.uniform(size=n) < 0.2
        elif what == 3:
            X[:, j] += 10.0 ** rng.uniform(0, 8)
    return X


def units(rng, size):
    """Powers of ten: mostly 1, sometimes a few, rarely a hundred."""
    widest = rng.choice([0.0, 3.0, 15.0, 100.0], p=[0.5, 0.25, 0.15, 0.1])
    return 10.0 ** rng.uniform(-widest, widest, size)


def targets(kind, X, rng):
    """Classes, counts or numbers that depend on the first column."""
    n = len(X)
    f = X[:, 0] / max(1e-12, np.abs(X[:, 0]).max()) * rng.choice([0.0, 1.0, 5.0])
    if kind == "classes":
        n_classes = int(rng.choice([2, 2, 3, 5]))
        y = (rng.uniform(size=n) < 1 / (1 + np.exp(-f))).astype(int)
        if n_classes > 2:
            y = rng.integers(n_classes, size=n)
        if rng.uniform() < 0.25:
            y[:] = 0
        y[0] = 1 if n > 1 and y[1:].max() < 1 else y[0]
        return y
    if kind == "counts":
        y = rng.poisson(np.exp(f + rng.choice([-3.0, 0.0, 3.0]))).astype(float)
        what = rng.integers(6)
        if what == 0:
            y[:] = 0
        if what in (0, 1):
            y[rng.integers(n)] = rng.choice([0.0, 1.0, 1e4, 1e9, 1e15])
        if what == 2:
            y = np.floor(y * 10.0 ** rng.uniform(0, 13))
        return y
    if kind != "regression":
        return other_targets(kind, f, rng)
    y = f + rng.choice([0.0, 0.1, 1.0]) * rng.standard_normal(n)
    return y * units(rng, None) + rng.choice([0.0, 0.0, 1.0, 1e6])


def other_targets(kind, f, rng):
    """Ordered classes, successes, rates, positive numbers, or amounts."""
    n = len(f)
    if kind == "ordered":
        y = np.digitize(f + rng.logistic(size=n), np.sort(rng.normal(0, 2, 4)))
        y[0] += n < 2 or (y == y[0]).all()
        return y
    if kind == "trials":
        return rng.binomial(trials(n), 1 / (1 + np.exp(-f - rng.choice([-4, 0, 9]))))
    if kind == "rates":
        spread = rng.choice([0.5, 10.0, 1e6])
        mean = 1 / (1 + np.exp(-f))
        y = rng.beta(spread * mean, spread * (1 - mean))
        return np.clip(y, rng.choice([1e-300, 1e-9]), 1 - 2e-16)
    y = np.exp(f + rng.choice([0.1, 1.0, 4.0]) * rng.standard_normal(n))
    if kind == "amounts":
        y *= rng.uniform(size=n) < rng.choice([0.1, 0.5, 1.0])
    return y * units(rng, None)


def trials(n):
    """Numbers of trials of rows, some of them none."""
    return np.arange(n) % 7 * 10 ** (np.arange(n) % 3)


def estimator(kind, rng):
    """One of the models, with a prior and its own options; whether it is a default."""
    own = {"fit_intercept": bool(rng.uniform() < 0.7)}
    if rng.uniform() < 0.4:
        own["prior"] = str(rng.choice(PRIORS))
    if kind in LIKELIHOODS:
        own["likelihood"] = str(rng.choice(LIKELIHOODS[kind]))
    make = {
        "classes": BayesianLogisticRegression,
        "counts": BayesianPoissonRegressor,
        "regression": BayesianLinearRegression,
        "positive": BayesianGammaRegressor,
        "rates": BayesianBetaRegressor,
        "amounts": BayesianTweedieRegressor,
        "ordered": BayesianOrdinalClassifier,
        "trials": BayesianBinomialRegressor,
    }[kind]
    if kind == "ordered":
        del own["fit_intercept"]
    if kind == "regression" and rng.uniform() < 0.3:
        own["noise_scale"] = "learn"
    is_default = rng.uniform() < 0.5
    for name, words in {} if is_default else PARTS.items():
        if name in make().get_params() and rng.uniform() < 0.3:
            own[name] = str(rng.choice(words))
    if {"iwelbo", "chi", "mixture", "ensemble", "stochastic"} & set(own.values()):
        own["max_iter"] = 3  # steps are random, and have no rule but their number
    return make(random_state=0, **own), is_default and "prior" not in own


def case(kind, seed):
    """Estimator, rows, targets, weights, new rows, whether it is a default model."""
    rng = np.random.default_rng([KINDS.index(kind), seed])
    weight, is_network = None, kind == "networks"
    if is_network:
        model, X, y, _ = random_networks.drawn(seed)
        is_default = True
    else:
        X = features(rng)
        model, is_default = estimator(kind, rng)
        y = targets(kind, X, rng)
        X = X * units(rng, X.shape[1])
    if rng.uniform() < 0.4:
        weight = rng.uniform(0.1, 1, len(X)) * (rng.uniform(size=len(X)) < 0.9)
        total = 10.0 ** rng.choice([-30, -10, -3, 0, 2, 6, 12, 15])
        weight[0] = 0.5
        weight *= (len(X) if is_network else total) / weight.sum()
    X = np.concatenate([X, X[:3], 0 * X[:1], 10 * X[:1]])
    X, y = container(X, y, hasattr(model, "predict_proba"), is_network, rng)
    # Rows of next to no weight leave the prior, which is wide.
    is_default &= weight is None or weight.sum() >= len(y)
    return model, X[: len(y)], y, weight, X[len(y) :], is_default


def container(X, y, is_classes, is_network, rng):
    """The same data as a sparse matrix, float32, data frame, or with other classes."""
    what = rng.integers(8)
    if what == 0 and not is_network:
        X = csr_matrix(X * (rng.uniform(size=X.shape) < 0.4))
    elif what == 1 and fits_float32(X) and (is_classes or fits_float32(y[:, None])):
        X, y = X.astype(np.float32), y if is_classes else y.astype(np.float32)
    elif X.ndim == 2 and what == 2:
        X = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    if is_classes and rng.uniform() < 0.5:
        y = np.char.add("class ", y.astype(str))
    return X, y


def fits_float32(columns):
    """Whether ratios of their units do."""
    size = np.abs(columns).max(0)
    return ((size < 1e15) & ((size > 1e-15) | (size == 0))).all()


def numbers(model, X, y, weight, new, is_bounded):
    """Names and values of all that is asked of a fitted model."""
    yield "lower_bound_", model.lower_bound_
    if hasattr(model, "coef_"):
        yield from (("coef_", model.coef_), ("coef_std_", model.coef_std_))
    some = np.arange(min(3, len(y)))
    if hasattr(model, "predict_proba"):
        yield "predict_proba", model.predict_proba(new)
        if hasattr(model, "predict_proba_interval"):
            yield "predict_proba_interval", model.predict_proba_interval(new)
        yield from model.predict_uncertainty(new).items()
    else:
        mean, std = model.predict(new, return_std=True)
        interval = model.predict_interval(new)
        if not isinstance(model, BayesianLinearRegression):
            # A count without a mean has no deviation, and a median that may exceed the
            # range of floats, as those of new rows may.
            is_open = (std == np.inf) | (np.arange(len(std)) >= len(y[:3]))
            most = np.finfo(mean.dtype).max
            mean[is_open], std[std == np.inf] = np.minimum(mean[is_open], most), 0
            interval = np.minimum(interval, most)
        elif np.sum(np.ones(len(y)) if weight is None else weight) <= 2:
            std[std == np.inf] = 0  # the noise of one or two rows has no variance
        yield from (("predict", mean), ("std", std), ("predict_interval", interval))
    given = extras(model, len(some))
    yield "log_density", model.predict_log_density(rows_of(new, some), y[some], **given)
    if is_bounded and weight is None:
        found = model.evidence_bounds(X, y, max_seconds=5, **extras(model, len(y)))
        yield "evidence", np.where(np.isnan([found.lower, found.upper]), np.nan, 0)


def extras(model, n_rows):
    """Data of rows beside features and targets."""
    is_binomial = isinstance(model, BayesianBinomialRegressor)
    return {"n_trials": trials(n_rows)} if is_binomial else {}


def score(model, X, y, weight):
    """Nats per row above the same model of one column of zeros, or above a constant."""
    given, none = extras(model, len(y)), np.zeros((len(y), 1))
    density = np.average(model.predict_log_density(X, y, **given), weights=weight)
    if not hasattr(model, "coef_"):
        return density - random_networks.constant(model, y, weight)
    other = clone(model).fit(none, y, sample_weight=weight, **given)
    return density - np.average(
        other.predict_log_density(none, y, **given), weights=weight
    )


def failure(kind, seed):
    """What is wrong with a case, or ""; and what it gave.

    That is processor seconds, score and rise of the objective, or how it was refused.
    """
    told, name = {"seconds": 0.0, "score": "", "rise": "", "refused": ""}, "case"
    seconds = OF_NETWORKS if kind == "networks" else SECONDS
    signal.signal(signal.SIGPROF, too_slow)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    start = time.process_time()
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            model, X, y, weight, new, is_default = case(kind, seed)
            name = "fit"
            model.fit(X, y, sample_weight=weight, **extras(model, len(y)))
            for name, value in numbers(model, X, y, weight, new, seed % 20 == 0):
                if not np.isfinite(value).all():
                    return f"{name} not finite", told
            told["rise"] = random_networks.rise(model)
            if is_default:
                name, told["score"] = "score", score(model, X, y, weight)
    except REFUSALS as error:
        if not any(word in str(error).lower() for word in REMEDIES):
            return f"{type(error).__name__} after {name} {place(error)}: {error}", told
        told["refused"] = f"{name}: {error}"
        return "", told
    except (Exception, TooSlow) as error:
        return f"{type(error).__name__} after {name} {place(error)}: {error}", told
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        told["seconds"] = time.process_time() - start
    if told["rise"] > 0:
        return "ends above its lowest objective", told
    is_worse = is_default and not told["score"] >= -LOST
    return ("worse than a constant" if is_worse else ""), told


def place(error):
    """File and line of ours in which an exception was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/skvi/" in frame.filename] or frames
    return f"{ours[-1].filename.split('skvi/')[-1]}:{ours[-1].lineno}"


def too_slow(_signal, _frame):
    raise TooSlow("longer than a case may take")


def run(n_cases, kinds, first, results):
    """Add a line for each case that has none, and print those that fail."""
    path = Path(results)
    fields = ("kind", "seed", "outcome", "seconds", "score", "rise")
    if not path.exists():
        path.write_text(",".join(fields) + "\n")
    done = pd.read_csv(path)
    done = set(zip(done.kind, done.seed, strict=True))
    todo = [(k, s) for s in range(first, first + n_cases) for k in kinds]
    with path.open("a", newline="") as file:
        lines = csv.writer(file)
        for kind, seed in (case for case in todo if case not in done):
            what, told = failure(kind, seed)
            outcome = f"BAD {what}" if what else "refused " * bool(told["refused"])
            outcome = " ".join(f"{outcome}{told['refused']}".split())[:200] or "ok"
            numbers = [told["score"], told["rise"]]
            numbers = [f"{x:.3f}" if x != "" else "" for x in numbers]
            lines.writerow([kind, seed, outcome, f"{told['seconds']:.2f}", *numbers])
            file.flush()
            if what:
                print(f"{kind:10} {seed:6} {what[:160]}", flush=True)


def rates(results):
    """Print cases, refusals and failures of each kind, and what 100,000 would take."""
    table = pd.read_csv(results, keep_default_na=False)
    table["bad"] = table.outcome.str.startswith("BAD")
    table["refused"] = table.outcome.str.startswith("refused")
    kinds = table.groupby("kind")
    found = kinds.agg(cases=("seed", "size"), refused=("refused", "sum"))
    found["bad"], found["rate"] = kinds.bad.sum(), kinds.bad.mean().round(4)
    found["seconds"] = kinds.seconds.mean().round(3)
    found["hours of 10^5"] = (found.seconds * 1e5 / 3600).round(1)
    print(found)
    bad = table[table.bad]
    print(bad.outcome.str.replace(r"\d[\d.e+-]*", "#", regex=True).value_counts())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="+")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--results", default="fuzz.csv")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what[0] == "rates":
        rates(given.what[1])
    else:
        kinds = given.what[1:] or KINDS
        run(int(given.what[0]), kinds, given.first, given.results)
