"""Coverage of evidence intervals where quadrature knows the truth, path by path.

    python -m benchmarks.evidence_paths                 # resumes; seeds outermost
    python -m benchmarks.evidence_paths --runs 20 horseshoe-1 tall-loose
    python -m benchmarks.evidence_paths --summary       # no runs

Logistic regressions with one or two coefficients and no intercept, each run with data
of its own: priors with spikes, nearly normal posteriors of many rows at two precisions,
weights that are integers, an unknown scale of the prior, also of classes that two
coefficients separate. The truth is a trapezoidal sum over a grid that is as fine at the
spike as it is wide in the tails; with separated classes it is accurate to a thousandth
of a nat.

200 runs each, 2026-11-22 and 2026-11-23, x86_64, torch 2.13.0: all 1,800 intervals
contain the truth (asked 95 %). Percentages that are called reliable, and of a single
side without its error on the wrong side of the truth; medians of the widths in nats,
and of seconds of processor time beside other work (rows of several days and machines):

                     reliable  lower side  upper side   width  seconds
    horseshoe-1          100          0.5         2.0    .037       .5
    horseshoe-2          100          3.0         1.5    .034       .8
    ard-1                 98.5        2.0         3.0    .048      1.3
    ard-2                 98          0.5         3.0    .052      2.6
    weights              100          0.0         0.0    .020       .1
    tall                 100          0.5         0.0    .009      .05
    tall-loose           100          0.0         0.0    .009      .04
    scale                100          2.5         2.0    .044      2.5
    scale-separated       94          1.0         2.0    .051     25.2
"""

import argparse
import math
import time
import warnings
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import torch
from scipy.special import log_expit, logsumexp

from benchmarks.runs import MACHINE, read, sweep
from skvi.base import Layout
from skvi.linear_model import BayesianLogisticRegression
from skvi.priors import ARD, HalfCauchy, Horseshoe, Normal
from skvi.priors._blocks import build_prior

RESULT = Path(__file__).parent / "results" / "evidence_paths.csv"
# Rows, coefficients, prior, precision, whether rows have weights.
CASES = {
    "horseshoe-1": (40, 1, "horseshoe", None, False),
    "horseshoe-2": (40, 2, "horseshoe", None, False),
    "ard-1": (40, 1, "ard", None, False),
    "ard-2": (40, 2, "ard", None, False),
    "tall": (1200, 2, "normal", None, False),
    "tall-loose": (1200, 2, "normal", 0.5, False),
    "weights": (60, 2, "normal", None, True),
    "scale": (40, 2, "auto", None, False),
    "scale-separated": (14, 2, "auto", None, False),
}
PRIORS = {
    "normal": Normal(),
    "horseshoe": Horseshoe(),
    "ard": ARD(),
    "auto": Normal(HalfCauchy()),
}
# Smallest coefficient of the grid but 0, largest asinh in its units, points on a line.
GRIDS = {"normal": (1.0, 2.8, 200), "auto": (1e-6, 28.0, 1400)}


def data(case, seed):
    n, d, _, _, is_weighted = CASES[case]
    rng = np.random.default_rng([list(CASES).index(case), seed])
    X = rng.normal(size=(n, d)) + 0.5 * rng.normal(size=(n, 1))
    coef = rng.normal(size=d) * (rng.uniform(size=d) < 0.7)
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(-X @ coef))).astype(int)
    y[:2] = 0, 1
    if case == "scale-separated":
        y = (X @ [1.0, -0.5] > 0).astype(int)
    weight = rng.integers(0, 3, size=n) if is_weighted else None
    if is_weighted:
        weight[:2] = 1
    return X, y, weight


@cache
def log_prior_of(name, d):
    """Log density of d coefficients, (d, n), by the radius where it is slow."""
    built = build_prior(PRIORS[name], Layout({"coef": (d,)}))

    def log_prior(points):
        return built.log_prob(torch.from_numpy(points.T.copy())).numpy()

    if name != "auto":
        return log_prior
    log_radius = np.linspace(-16.0, 18.0, 40_001)
    points = np.zeros((d, len(log_radius)))
    points[0] = np.exp(log_radius)
    known = log_prior(points)

    def by_radius(points):
        with np.errstate(divide="ignore"):
            return np.interp(0.5 * np.log((points**2).sum(0)), log_radius, known)

    return by_radius


def truth(X, y, weight, prior):
    """Integral over a grid in asinh of the coefficients, relative to their smallest."""
    if prior in ("auto", "ard"):  # unknown scales are in units of the columns
        X = X / np.sqrt((X**2).mean(0 if prior == "ard" else None))
    d = X.shape[1]
    unit, reach, size = GRIDS.get(prior, (1e-7, 20.5, 700))
    u = np.linspace(-reach, reach, size)
    theta, log_step = unit * np.sinh(u), np.log(unit * np.cosh(u) * (u[1] - u[0]))
    log_prior = log_prior_of(prior, d)
    w = np.ones(len(y)) if weight is None else weight
    signed = (2 * y - 1)[:, None] * X
    rows = [theta] if d == 1 else [np.full(size, t) for t in theta]
    total = []
    for i, first in enumerate(rows):
        points = first[None] if d == 1 else np.stack([first, theta])
        value = w @ log_expit(signed @ points) + log_step
        value += log_prior(points)
        total.append(logsumexp(value) + (0.0 if d == 1 else log_step[i]))
    return float(logsumexp(total))


def one_run(case, seed):
    X, y, weight = data(case, seed)
    _, _, prior, precision, _ = CASES[case]
    start = time.process_time()
    model = BayesianLogisticRegression(prior=prior, fit_intercept=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y, sample_weight=weight)
    bounds = model.evidence_bounds(
        X, y, sample_weight=weight, precision=precision, random_state=seed
    )
    seconds = time.process_time() - start
    exact, (low, high) = truth(X, y, weight, prior), bounds.interval()
    numbers = {"truth": exact, "low": low, "high": high, "lower": bounds.lower}
    numbers |= {"upper": bounds.upper, "estimate": bounds.estimate}
    return {"case": case, "seed": seed} | {
        **{name: f"{number:.5f}" for name, number in numbers.items()},
        "reliable": int(bounds.reliable),
        "method": bounds.method,
        "cpu_seconds": f"{seconds:.2f}",
        "contains": int(low - 1e-5 <= exact <= high + 1e-5),
    }


def summarize(rows):
    """Runs, intervals that hold the truth, sides without errors that are wrong."""
    names = ("runs", "hold", "reliable", "lower>", "upper<", "width", "seconds")
    widths = (5, 6, 10, 8, 8, 8, 9)
    heads = (f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    print(f"{'case':<13}{''.join(heads)}  methods")
    for case in dict.fromkeys(row["case"] for row in rows):
        mine = [row for row in rows if row["case"] == case]
        number = {
            name: np.array([float(row[name]) for row in mine])
            for name in mine[0]
            if name not in ("case", "seed", "method")
        }
        width = np.median(number["high"] - number["low"])
        print(
            f"{case:<13}{len(mine):>5}{number['contains'].mean():>6.1%}"
            f"{number['reliable'].mean():>10.1%}"
            f"{(number['lower'] > number['truth']).mean():>8.1%}"
            f"{(number['upper'] < number['truth']).mean():>8.1%}"
            f"{width if math.isfinite(width) else math.nan:>8.4f}"
            f"{np.median(number['cpu_seconds']):>9.2f}  "
            f"{dict(Counter(row['method'] for row in mine))}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[[], *CASES])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--machine", default=MACHINE)
    options = parser.parse_args()
    if not options.summary:
        runs = product(range(options.runs), options.cases or CASES)
        runs = ((case, seed) for seed, case in runs)
        title = "Logistic regressions against quadrature"
        list(sweep(RESULT, ("case", "seed"), runs, one_run, title, options.machine))
    summarize(read(RESULT))


if __name__ == "__main__":
    main()
