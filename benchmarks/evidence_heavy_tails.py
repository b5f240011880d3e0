"""Evidence bounds under heavy-tailed priors, against quadrature.

    python -m benchmarks.evidence_heavy_tails              # 250 problems; resumes
    python -m benchmarks.evidence_heavy_tails --problems 20
    python -m benchmarks.evidence_heavy_tails --first 1000 --result held_out.csv
    python -m benchmarks.evidence_heavy_tails --summary    # no runs

Random models of one coefficient: Student-t and horseshoe priors with scales from 0.003
to 100, signals of up to 20 standard errors, linear regression with a given noise and
logistic regression. The first problem is a fixed one, whose prior is a spike that hides
95 % of the posterior mass. A problem that is in the result file is not repeated.

The interval is `EvidenceBounds.interval()`: each side is meant to fail with a
probability below 2.5 % while the result is reliable.
"""

import argparse
import math
import statistics
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import betaln, exp1, log_expit, logsumexp, roots_legendre

from benchmarks.runs import MACHINE, read, sweep
from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.priors import Horseshoe, StudentT

RESULT = Path(__file__).parent / "results" / "evidence_heavy_tails.csv"
LEVEL = 0.05  # both sides of the interval together, at most
FIXED = 0


@dataclass(frozen=True)
class Problem:
    """One coefficient, with its data and prior."""

    model: str
    prior: object
    x: np.ndarray
    y: np.ndarray
    signal: float  # standard errors that the coefficient of the data is from 0
    noise: float = 1.0

    def estimator(self):
        if self.model == "logistic":
            return BayesianLogisticRegression(prior=self.prior, fit_intercept=False)
        return BayesianLinearRegression(
            prior=self.prior,
            noise_scale=self.noise,
            normalize_y=False,
            fit_intercept=False,
        )

    def log_likelihood(self, theta):
        """Log likelihood at every theta, (S,)."""
        if self.model == "logistic":
            sign = np.where(self.y == 1, 1.0, -1.0)
            return log_expit(theta[:, None] * (sign * self.x)).sum(1)
        n, precision = len(self.y), self.noise**-2
        xx, xy, yy = self.x @ self.x, self.x @ self.y, self.y @ self.y
        squares = yy - 2 * theta * xy + theta**2 * xx
        return 0.5 * (n * math.log(precision / (2 * math.pi)) - precision * squares)

    def log_prior(self, theta):
        scale = self.prior.scale
        if isinstance(self.prior, Horseshoe):
            t = 0.5 * (theta / scale) ** 2
            near = np.minimum(t, 500.0)
            far = np.log1p(-1 / np.maximum(t, 500.0)) - np.log(np.maximum(t, 500.0))
            kernel = np.where(t < 500.0, near + np.log(exp1(near)), far)
            return kernel - math.log(scale) - 0.5 * math.log(2 * math.pi**3)
        df = self.prior.df
        kernel = np.log1p((theta / scale) ** 2 / df)
        norm = betaln(0.5 * df, 0.5) + 0.5 * math.log(df)
        return -0.5 * (df + 1) * kernel - norm - math.log(scale)

    def mode(self):
        """Where the likelihood is largest, and its deviation there."""
        if self.model == "linear":
            xx = self.x @ self.x
            return self.x @ self.y / xx, self.noise / math.sqrt(xx)
        theta = 0.0
        for _ in range(50):
            f = np.clip(theta * self.x, -30, 30)
            p = 1 / (1 + np.exp(-f))
            curvature = (p * (1 - p) * self.x**2).sum()
            step = ((self.y - p) * self.x).sum() / curvature
            theta += np.clip(step, -1.0, 1.0)
        return theta, curvature**-0.5


def random_problem(index):
    """The same problem for the same index, everywhere."""
    if index == FIXED:
        x = np.tile([0.8, -0.8], 26)
        y = -3.8 * x + 3 * np.tile([1, 1, -1, -1], 13)
        return Problem("linear", StudentT(scale=0.0065), x, y, -6.6, 3.0)
    rng = np.random.default_rng([20250, index])
    n, scale = int(rng.integers(20, 201)), 10 ** rng.uniform(math.log10(0.003), 2.0)
    prior = Horseshoe(scale)
    if rng.uniform() < 0.5:
        prior = StudentT(df=float(rng.choice([1, 2, 4])), scale=scale)
    signal = float(rng.choice([0.0, rng.uniform(-20, 20)], p=[0.2, 0.8]))
    x = rng.normal(size=n) * 10 ** rng.uniform(-0.5, 0.5)
    if rng.uniform() < 0.3:
        # A likelihood of 0/1 outcomes has no mode for strong signals: half of them.
        coef = 0.5 * signal / math.sqrt(0.25 * x @ x)
        y = (rng.uniform(size=n) < 1 / (1 + np.exp(-coef * x))).astype(int)
        y[np.argsort(np.abs(x))[:2]] = 0, 1
        return Problem("logistic", prior, x, y, signal)
    noise = 10 ** rng.uniform(-1, 1)
    coef = signal * noise / math.sqrt(x @ x)
    return Problem(
        "linear", prior, x, coef * x + noise * rng.normal(size=n), signal, noise
    )


def exact_evidence(problem):
    """Log evidence by Gauss-Legendre rules in panels, and the difference of two.

    Panels halve toward 0, where the prior has its peak, and are half a deviation wide
    around the mode of the likelihood.
    """
    mode, deviation = problem.mode()
    scale = problem.prior.scale
    halves = 2.0 ** np.arange(-120, 41)
    near = mode + deviation * np.arange(-60, 61) / 2
    edges = np.concatenate([-scale * halves, [0.0], scale * halves, near])
    edges = np.concatenate([edges, -deviation * halves, deviation * halves])
    edges = np.unique(edges)
    found = []
    for n_nodes in (16, 24):
        nodes, weights = roots_legendre(n_nodes)
        half = 0.5 * np.diff(edges)[:, None]
        theta = (edges[:-1, None] + half * (1 + nodes)).ravel()
        log_joint = problem.log_likelihood(theta) + problem.log_prior(theta)
        found.append(logsumexp(log_joint, b=(half * weights).ravel()))
    return found[1], abs(found[1] - found[0])


def one_run(index):
    """One row of the result file."""
    problem = random_problem(index)
    truth, quadrature_error = exact_evidence(problem)
    data = problem.x[:, None], problem.y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = problem.estimator().fit(*data)
    cpu, wall = time.process_time(), time.perf_counter()
    bounds = model.evidence_bounds(*data, random_state=index)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    low, high = bounds.interval()
    miss = max(low - truth, truth - high, 0.0)
    error = bounds.lower_se if low > truth else bounds.upper_se
    return {
        "problem": index,
        "model": problem.model,
        "prior": repr(problem.prior).replace(",", ";"),
        "n_rows": len(problem.y),
        "signal": f"{problem.signal:.2f}",
        "truth": f"{truth:.6f}",
        "quadrature_error": f"{quadrature_error:.1e}",
        "low": f"{low:.5f}",
        "high": f"{high:.5f}",
        "lower_se": f"{bounds.lower_se:.5f}",
        "upper_se": f"{bounds.upper_se:.5f}",
        "khat": f"{bounds.khat:.3f}",
        "reliable": int(bounds.reliable),
        "miss": f"{miss:.5f}",
        "miss_in_se": f"{miss / error:.2f}" if miss and error else "0",
        "method": bounds.method,
        "reason": "" if bounds.reliable else bounds.reason.replace(",", ";"),
        "cpu_seconds": f"{cpu:.2f}",
        "seconds": f"{wall:.2f}",
    }


def summarize(rows):
    """Print what has to hold, and what holds."""
    n = len(rows)
    reliable = [row for row in rows if row["reliable"] == "1"]
    missed = [row for row in reliable if float(row["miss"]) > 0]
    rate = len(missed) / len(reliable)
    error = math.sqrt(max(rate, 1 / len(reliable)) * (1 - rate) / len(reliable))
    n_unreliable = n - len(reliable)
    print(
        f"{n} problems, quadrature to {max(float(r['quadrature_error']) for r in rows)}"
    )
    print(
        f"reliable misses   {len(missed)} ({rate:.1%} +- {error:.1%}; "
        f"at most {LEVEL:.0%})"
    )
    for row in missed:
        names = ("problem", "model", "prior", "signal", "miss", "miss_in_se", "method")
        print("   ", *(f"{name} {row[name]}" for name in names))
    print(f"unreliable        {n_unreliable} ({n_unreliable / n:.1%}; at most 8 %)")
    widths = [float(r["high"]) - float(r["low"]) for r in reliable]
    print(
        f"reliable widths   median {statistics.median(widths):.4f}, "
        f"widest {max(widths):.4f} nats"
    )
    for unit in ("cpu_seconds", "seconds"):
        spent = [float(row[unit]) for row in rows]
        print(
            f"{unit:<17} median {statistics.median(spent):.2f}, "
            f"longest {max(spent):.2f} (median: at most 3)"
        )
    for row in rows:
        if row["reliable"] == "0":
            print(
                "   ",
                row["problem"],
                row["model"],
                row["prior"],
                row["signal"],
                row["miss"],
                row["cpu_seconds"],
                row["reason"],
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=250)
    parser.add_argument("--first", type=int, default=0, help="index of the first one")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--machine", default=MACHINE)
    options = parser.parse_args()
    if not options.summary:
        runs = ((options.first + i,) for i in range(options.problems))
        title = "One coefficient under heavy-tailed priors, against quadrature"
        keys = ("problem",)
        for row in sweep(options.result, keys, runs, one_run, title, options.machine):
            if float(row["miss"]) > 0 or row["reliable"] == 0:
                print(*row.values(), flush=True)
    summarize(read(options.result))


if __name__ == "__main__":
    main()
