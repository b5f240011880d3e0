"""Does the evidence sandwich contain the truth? All families and objectives.

    SKVI_DATA=folder python -m benchmarks.evidence_coverage     # hours; resumes
    SKVI_DATA=folder python -m benchmarks.evidence_coverage --seeds 2
    python -m benchmarks.evidence_coverage --summary            # no runs
    SKVI_DATA=folder python -m benchmarks.evidence_coverage --from-fit

Five sets, three families, six objectives, and so many seeds.

Every run has its own fit (``random_state=seed``) and its own evidence run, whose random
state is a hash of set, family, objective and seed: for linear models the bounds do not
depend on the fit, so that one random state would give every cell the same numbers.
Truths are those of `evidence_truths.py`. Seeds are the outermost loop. A run that is in
the result file already is not repeated.

The sandwich of a linear model proposes from a normal of its own. With ``--from-fit``
the fitted q takes its place, as it does for models that are not linear: the same
truths, and a harder task for a q that resembles the posterior little.
"""

import argparse
import json
import math
import statistics
import time
import warnings
import zlib
from collections import defaultdict
from itertools import product

import torch

from benchmarks.evidence_truths import RESULT, SETS, load
from benchmarks.runs import MACHINE, read, sweep
from skvi.linear_model import BayesianLogisticRegression

FAMILIES = ("mean_field", "full_rank")
OBJECTIVES = ("elbo", "eubo", "renyi", "alpha_energy", "iwelbo", "chi")
KEYS = ("set", "family", "objective", "seed")
# The statement that a reliable upper bound always carries.
USUAL = "the upper bound is valid if the chains have mixed"


def random_state(*run):
    return zlib.crc32(" ".join(map(str, run)).encode())


class FromFit(BayesianLogisticRegression):
    """The sandwich proposes from the fitted q."""

    def _bound_evidence(self, target, generator, **options):
        normal = self.posterior_.as_normal()
        if normal.factor is not None:
            factor = torch.linalg.cholesky(normal.covariance())
            normal = type(normal)(normal.mean, factor)
        options["normal"] = normal
        return super()._bound_evidence(target, generator, **options)


def one_run(name, family, objective, seed, truth, estimator):
    """One row of the result file."""
    data, run = load(name), (name, family, objective, seed)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether it converged is a column
        model = estimator(
            prior="normal",
            intercept_prior="normal",
            objective=objective,
            posterior=family,
            random_state=seed,
        ).fit(*data)
    fitted, cpu = time.perf_counter(), time.process_time()
    bounds = model.evidence_bounds(*data, random_state=random_state(*run))
    low, high = bounds.interval()
    reason = "" if bounds.reason.startswith(USUAL) else bounds.reason
    if bounds.reason.startswith(USUAL) and ";" in bounds.reason:
        reason = bounds.reason.split("; ", 1)[1]
    bridge = bounds.table["bridge"]
    return dict(zip(KEYS, run, strict=True)) | {
        "lower": f"{bounds.lower:.5f}",
        "upper": f"{bounds.upper:.5f}",
        "lower_se": f"{bounds.lower_se:.5f}",
        "upper_se": f"{bounds.upper_se:.5f}",
        "estimate": f"{bridge.value:.5f}",
        "estimate_se": f"{bridge.standard_error:.5f}",
        "khat": f"{bounds.khat:.3f}",
        "reliable": int(bounds.reliable),
        "reason": reason,
        "method": bounds.method,
        "converged": int(model.converged_),
        "fit_seconds": f"{fitted - start:.2f}",
        "seconds": f"{time.perf_counter() - fitted:.2f}",
        "cpu_seconds": f"{time.process_time() - cpu:.2f}",
        "contains": int(low <= truth <= high),
    }


def width(row):
    low, high = (
        float(row[side]) + sign * 2 * float(row[f"{side}_se"])
        for side, sign in (("lower", -1), ("upper", 1))
    )
    return high - low


def summarize(rows, truths):
    """Print what has to hold, and what holds."""
    n, n_in = len(rows), sum(row["contains"] == "1" for row in rows)
    cells = defaultdict(list)
    for row in rows:
        cells[row["set"], row["family"], row["objective"]].append(row)
    unreliable = [row for row in rows if row["reliable"] == "0"]
    widths = [width(row) for row in rows if row["reliable"] == "1"]
    missed = {k: sum(r["contains"] == "0" for r in v) for k, v in cells.items()}
    sides = {"lower": 0, "upper": 0}
    for row in rows:
        truth = truths[row["set"]]["log_evidence"]
        sides["lower"] += float(row["lower"]) > truth
        sides["upper"] += float(row["upper"]) < truth
    z2 = [
        (float(r["estimate"]) - truths[r["set"]]["log_evidence"]) ** 2
        / (float(r["estimate_se"]) ** 2 + truths[r["set"]]["standard_error"] ** 2)
        for r in rows
    ]
    print(f"{n} runs in {len(cells)} cells")
    print(f"contain the truth       {n_in} ({n_in / n:.2%}; wanted: at least 95 %)")
    print(f"most misses in a cell   {max(missed.values())} (at most a fifth)")
    print(f"bounds without errors   lower above the truth {sides['lower'] / n:.2%}, ")
    print(f"                        upper below it {sides['upper'] / n:.2%}")
    print(f"unreliable              {len(unreliable)} ({len(unreliable) / n:.2%}; 5 %)")
    print(f"median width            {statistics.median(widths):.4f} nat (0.1)")
    print(f"widest reliable         {max(widths):.4f} nat (0.3)")
    for unit in ("seconds", "cpu_seconds"):
        spent = sorted(float(row[unit]) for row in rows)
        middle = spent[n // 2]
        print(f"{unit:<24}median {middle:.1f}, longest {spent[-1]:.1f} (10)")
    print(f"estimate, rms z         {math.sqrt(statistics.fmean(z2)):.2f} (1)")
    print(f"\n{'set':<12}{'runs':>5}{'miss':>5}{'unrel.':>7}{'median':>8}{'widest':>8}")
    for name in dict.fromkeys(row["set"] for row in rows):
        mine = [row for row in rows if row["set"] == name]
        spans = [width(row) for row in mine]
        print(
            f"{name:<12}{len(mine):>5}{sum(r['contains'] == '0' for r in mine):>5}"
            f"{sum(r['reliable'] == '0' for r in mine):>7}"
            f"{statistics.median(spans):>8.3f}{max(spans):>8.3f}  "
            + ", ".join(
                f"{sum(r['method'] == m for r in mine)} {m}"
                for m in sorted({r["method"] for r in mine})
            )
        )
    for row in unreliable:
        print("  ", *(row[k] for k in KEYS), row["reason"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--objectives", nargs="*", default=OBJECTIVES)
    parser.add_argument("--from-fit", action="store_true")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--machine", default=MACHINE)
    options = parser.parse_args()
    name = "evidence_from_fit.csv" if options.from_fit else "evidence_coverage.csv"
    path = RESULT.parent / name
    truths = json.loads(RESULT.read_text())["sets"]
    if not options.summary:
        estimator = FromFit if options.from_fit else BayesianLogisticRegression
        title = "Evidence sandwiches of logistic regressions, see evidence_truths.json"
        seeds = range(options.seeds)
        runs = (
            (name, family, objective, seed)
            for seed, name, objective, family in product(
                seeds, options.sets, options.objectives, FAMILIES
            )
        )

        def one(name, *rest):
            return one_run(name, *rest, truths[name]["log_evidence"], estimator)

        for row in sweep(path, KEYS, runs, one, title, options.machine):
            if not (int(row["contains"]) and int(row["reliable"])):
                print(*row.values(), flush=True)
    summarize(read(path), truths)


if __name__ == "__main__":
    main()
