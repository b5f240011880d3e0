"""Seconds that evidence bounds take: tall data, and priors with spikes.

    python benchmarks/evidence_budget.py            # all cases, one thread
    python benchmarks/evidence_budget.py tall       # or "diabetes", "cancer", "sparse"

Processor seconds, 2 cores of x86_64 with nothing else running, 2026-11-22: before
scales became part of the chains and nearly normal posteriors took independence chains,
and after. Widths are those of `interval()` in nats; an asterisk marks a result that was
not reliable, "refused" one whose reason names the prior and what to do.

==============================  =================  =================
case                            before             after
==============================  =================  =================
logistic 50,000 x 20            28.2 s             0.52 s
the same, precision 0.5         29.4 s             0.28 s
logistic 200,000 x 30           138 s              2.2 s
sparse 1,000 x 2,000, normal    200 s              0.1 s, refused
the same, horseshoe                                0.0 s, refused
sparse 1,000 x 1,300, normal                       0.7 s, refused
the same, horseshoe                                0.0 s, refused
diabetes, horseshoe             13.6 s, 0.05*      6.9 s, 0.23
diabetes, ARD                   10.3 s, 0.57*      7.9 s, 0.29
breast cancer, horseshoe        17.5 s, 58.6*      23.5 s, 0.49
breast cancer, ARD              7.7 s, 393*        refused
==============================  =================  =================

Under ARD one of two seeds of the breast cancer data was reliable, 0.22 nats wide after
32 s, and the other one not (R-hat 1.10, 43 s): it is refused unless ``max_seconds``
says how long it may take.
"""

import sys
import time
import warnings
from itertools import product

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.preprocessing import scale

from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression


def tall(n, d):
    rng = np.random.default_rng(0)
    X, coef = rng.normal(size=(n, d)), rng.normal(size=d) / np.sqrt(d)
    return X, (rng.uniform(size=n) < 1 / (1 + np.exp(-X @ coef))).astype(int)


def sparse(d):
    rng = np.random.default_rng(0)
    X = sp.random(1000, d, density=0.01, random_state=0, format="csr")
    f = 3 * np.asarray(X[:, :50].sum(1)).ravel()
    return X, (rng.uniform(size=1000) < 1 / (1 + np.exp(-f))).astype(int)


def cases(wanted):
    logistic = BayesianLogisticRegression
    if "tall" in wanted:
        yield "50,000 x 20", logistic(prior="normal"), tall(50_000, 20), (None, 0.5)
        yield "200,000 x 30", logistic(prior="normal"), tall(200_000, 30), (None,)
    if "sparse" in wanted:
        for d, prior in product((2000, 1300), ("normal", "horseshoe")):
            model = logistic(prior=prior, posterior="mean_field")
            yield f"1,000 x {d:,}, {prior}", model, sparse(d), (None,)
    for name in {"diabetes", "cancer"} & set(wanted):
        is_linear = name == "diabetes"
        load = load_diabetes if is_linear else load_breast_cancer
        X, y = load(return_X_y=True)
        data = scale(X), scale(y) if is_linear else y
        make = BayesianLinearRegression if is_linear else logistic
        for prior in ("horseshoe", "ard"):
            yield f"{name}, {prior}", make(prior=prior), data, (None,)


def main():
    warnings.simplefilter("ignore")
    wanted = sys.argv[1:] or ["tall", "diabetes", "cancer", "sparse"]
    for name, model, data, precisions in cases(wanted):
        model.fit(*data)
        for precision in precisions:
            start = time.process_time()
            bounds = model.evidence_bounds(*data, precision=precision, random_state=0)
            seconds = time.process_time() - start
            low, high = bounds.interval()
            print(
                f"{name:<24}{precision!s:>6}{seconds:8.1f} s  width {high - low:.3f}  "
                f"{bounds.method}, {'' if bounds.reliable else 'NOT '}reliable  "
                f"{bounds.reason[:90]}",
                flush=True,
            )


if __name__ == "__main__":
    main()
