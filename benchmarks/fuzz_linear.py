"""Linear models on data that nobody expects: no NaN, no crash, no long waits.

    python benchmarks/fuzz_linear.py [n_cases] [kind ...] [--seed FIRST]
    python benchmarks/fuzz_linear.py check

Kinds are those of targets, see `KINDS`; a case is one seed, from which all of it
follows. Each is fitted, predicts with deviations and intervals (in-sample and at new
rows), scores its targets, and sometimes bounds its evidence. A failure is an exception
that is not a reasoned refusal, a number that is not finite where it should be, or more
than 10 s of processor time. `check` runs a few cases of each kind and raises.
"""

import argparse
import sys
import time
import traceback
import warnings

import numpy as np
from scipy.sparse import csr_matrix, issparse, vstack

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
KINDS += ("positive", "rates", "amounts", "ordered", "trials")
PRIORS = ("auto", "normal", "laplace", "student_t", "horseshoe", "ard")
REFUSALS = (ValueError, IncompatibleComponentsError, NoOptimumError)
SECONDS, CHECKED = 10.0, 12
#: Words by which a refusal says what to do.
REMEDIES = ("use ", "give ", "increase ", "standardize", "divide", "leave ", "needs ")


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
    """One of the models, with a prior and its own options."""
    own = {"fit_intercept": bool(rng.uniform() < 0.7)}
    if rng.uniform() < 0.4:
        own["prior"] = str(rng.choice(PRIORS))
    if kind == "classes":
        return BayesianLogisticRegression(**own)
    if kind == "counts":
        likelihood = str(rng.choice(["poisson", "negative_binomial"]))
        return BayesianPoissonRegressor(likelihood=likelihood, **own)
    if kind == "positive":
        words = ["gamma", "lognormal", "inverse_gaussian"]
        return BayesianGammaRegressor(likelihood=str(rng.choice(words)), **own)
    others = {
        "rates": BayesianBetaRegressor,
        "amounts": BayesianTweedieRegressor,
        "ordered": BayesianOrdinalClassifier,
        "trials": BayesianBinomialRegressor,
    }
    if kind == "ordered":
        del own["fit_intercept"]
    if kind in others:
        return others[kind](**own)
    what = rng.integers(4)
    if what == 0:
        own["noise_scale"] = "learn"
    elif what == 1:
        own["likelihood"] = "student_t"
    return BayesianLinearRegression(**own)


def case(kind, seed):
    """Estimator, rows, targets, weights, new rows; and whether it bounds evidence."""
    rng = np.random.default_rng([KINDS.index(kind), seed])
    X, model = features(rng), estimator(kind, rng)
    y = targets(kind, X, rng)
    X, weight = X * units(rng, X.shape[1]), None
    if rng.uniform() < 0.4:
        weight = rng.uniform(0.1, 1, len(X)) * (rng.uniform(size=len(X)) < 0.9)
        total = 10.0 ** rng.choice([-30, -10, -3, 0, 2, 6, 12, 15])
        weight[0] = 0.5
        weight *= total / weight.sum()
    if rng.uniform() < 0.25:
        X = csr_matrix(X * (rng.uniform(size=X.shape) < 0.4))
    parts = [X[:3], 0 * X[:1], 10 * X[:1]]
    new = vstack(parts, "csr") if issparse(X) else np.concatenate(parts)
    return model, X, y, weight, new, rng.uniform() < 0.05


def numbers(model, X, y, weight, new, is_bounded):
    """Names and values of all that is asked of a model."""
    rows, given = {}, {}
    if isinstance(model, BayesianBinomialRegressor):
        rows["n_trials"], given["n_trials"] = trials(len(y)), trials(3)[: len(y)]
    model.fit(X, y, sample_weight=weight, **rows)
    yield from ((k, getattr(model, k)) for k in ("coef_", "coef_std_", "lower_bound_"))
    some = slice(0, min(3, len(y)))
    if hasattr(model, "predict_proba"):
        yield "predict_proba", model.predict_proba(new)
        yield "predict_proba_interval", model.predict_proba_interval(new)
        yield from model.predict_uncertainty(new).items()
    else:
        mean, std = model.predict(new, return_std=True)
        interval = model.predict_interval(new)
        if not isinstance(model, BayesianLinearRegression):
            # A count without a mean has no deviation, and a median that may exceed the
            # range of floats, as those of new rows may.
            is_open = (std == np.inf) | (np.arange(len(std)) >= len(y[:3]))
            mean[is_open], std[std == np.inf] = np.minimum(mean[is_open], 1e308), 0
            interval = np.minimum(interval, 1e308)
        elif np.sum(np.ones(len(y)) if weight is None else weight) <= 2:
            std[std == np.inf] = 0  # the noise of one or two rows has no variance
        yield from (("predict", mean), ("std", std), ("predict_interval", interval))
    yield "log_density", model.predict_log_density(new[some], y[some], **given)
    if is_bounded and weight is None:
        found = model.evidence_bounds(X, y, max_seconds=5, **rows)
        yield "evidence", np.where(np.isnan([found.lower, found.upper]), np.nan, 0)


def failure(kind, seed):
    """What is wrong with a case, or ""; and the warnings that it gave."""
    start, name = time.process_time(), "case"
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        try:
            for name, value in numbers(*case(kind, seed)):
                if not np.isfinite(value).all():
                    return f"{name} not finite", caught
        except REFUSALS as error:
            if not any(word in str(error).lower() for word in REMEDIES):
                return f"{type(error).__name__} after {name}: {error}", caught
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename.split('skvi/')[-1]}:{place.lineno}"
            return f"{type(error).__name__} {where}: {error}", caught
    seconds = time.process_time() - start
    return (f"{seconds:.0f} s" if seconds > SECONDS else ""), caught


def main(n_cases, kinds, first, is_check):
    """Run the cases and print one line for each that fails."""
    failures = 0
    for kind in kinds:
        for seed in range(first, first + n_cases):
            what, caught = failure(kind, seed)
            if what:
                failures += 1
                said = {str(w.message)[:60] for w in caught}
                print(f"{kind:10} {seed:6} {what[:160]} {said or ''}", flush=True)
        print(f"{kind}: {n_cases} cases", flush=True)
    print(f"{failures} failures")
    if is_check and failures:
        sys.exit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=["1000"])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    is_check = given.what[:1] == ["check"]
    n_cases = CHECKED if is_check else int(given.what[0])
    main(n_cases, given.what[1:] or KINDS, given.seed, is_check)
