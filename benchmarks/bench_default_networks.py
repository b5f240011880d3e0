"""Networks with all their defaults beside rivals, on 20 sets not used to choose them.

    SKVI_DATA=folder python benchmarks/bench_default_networks.py CACHE       # resumes
    python benchmarks/bench_default_networks.py CACHE --methods skvi --draws 10
    python benchmarks/bench_default_networks.py CACHE --before FOLDER --methods before
    python benchmarks/bench_default_networks.py CACHE --methods --write      # no runs

CACHE has a file for each set, draw and method: delete those that should run again,
`*-skvi.npz` for example. "before" is another checkout, in --before, whose `skvi` is
imported instead. Features are standardized by the training rows.

Loss of up to 1,000 test rows in nats: expected log loss where the probabilities of
classes are known, log loss of labels, negative log density; where targets may have
atoms (integers, zeros, ends of a scale) the negative log probability of cells of a grid
(of skvi's from 4,000 draws, unless its likelihood is of the same cells), and the cover
of skvi's is that of randomized probabilities, .9 for the truth.

The deep ensembles are those of the other benchmarks: two layers of 50 units, the number
of epochs by held-out rows. Rivals without a density have residuals of five folds as
noise; boosting of classes takes 10, 30 or 100 trees by five folds. Gaussian processes
have a length scale for each feature and run up to 1,000 rows. Errors of differences are
those over rows or those over draws, whichever are larger. Seconds of the processor, of
one thread; their ratio is relative to a fixed piece of work just before each fit.
"""

import argparse
import csv
import math
import os
import subprocess
import sys
import time
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import torch
from bench_default_classifier import DeepEnsemble
from network_sets import CLASSES, GENERATED, SETS, rows_of
from peers import PEERS, Peer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier

import skvi
from skvi.likelihoods import RoundedLikelihood
from skvi.metrics import normal_crps, sample_crps
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor

N_DRAWN, GP_ROWS = 4000, 1000
RESULT = Path(__file__).parent / "results" / "default_networks.csv"


class Linear(Peer):
    """Bayesian ridge regression."""

    def fit(self, X, y):
        self.model = BayesianRidge().fit(X, y)

    def normals(self, X):
        mean, std = self.model.predict(X, return_std=True)
        return mean[None], std[None]


class Constant(Peer):
    """Frequencies of classes, or mean and deviation of y."""

    def fit(self, X, y):
        counts = np.bincount(y.astype(int).clip(0)) + 1.0
        self.p, self.mean, self.std = counts / counts.sum(), y.mean(), y.std(ddof=1)

    def predict_proba(self, X):
        return np.tile(self.p, (len(X), 1))

    def normals(self, X):
        return np.full((1, len(X)), self.mean), np.full((1, len(X)), self.std)


def boosted_classes():
    trees = HistGradientBoostingClassifier(random_state=0)
    return GridSearchCV(trees, {"max_iter": [10, 30, 100]}, scoring="neg_log_loss")


def process_of_classes(d):
    kernel = ConstantKernel(1.0, (1e-2, 1e4)) * RBF(np.ones(d), (1e-2, 1e4))
    return GaussianProcessClassifier(kernel)


MODELS = {  # for classes, for numbers; of a seed and the number of features
    "skvi": (
        lambda seed, d: BayesianMLPClassifier(random_state=seed),
        lambda seed, d: BayesianMLPRegressor(random_state=seed),
    ),
    "deep ensemble": (lambda *_: DeepEnsemble(), lambda *_: PEERS["deep ensemble"]()),
    "MLP": (
        lambda *_: MLPClassifier(max_iter=1000, random_state=0),
        lambda *_: PEERS["MLPRegressor, scaled y"](),
    ),
    "Gaussian process": (
        lambda _, d: process_of_classes(d),
        lambda *_: PEERS["Gaussian process"](),
    ),
    "boosting": (
        lambda *_: boosted_classes(),
        lambda *_: PEERS["gradient boosting"](),
    ),
    "linear": (lambda *_: LogisticRegression(max_iter=10_000), lambda *_: Linear()),
    "constant": (lambda *_: Constant(), lambda *_: Constant()),
}
MODELS["before"] = MODELS["skvi"]
RIVALS = list(MODELS)[1:7]
KEYS = ("loss", "crps", "square", "cover", "seconds")


def scores_of_classes(p, rows):
    """Of test rows: loss, and whether the label is another one."""
    log_p = np.log(p.clip(1e-15) / p.clip(1e-15).sum(1, keepdims=True))
    loss = -log_p[np.arange(len(p)), rows.y]
    if rows.p is not None:
        loss = -(rows.p * log_p).sum(1)
    return {"loss": loss, "square": (p.argmax(1) != rows.y).astype(float)}


def scores_of_numbers(model, rows):
    """Of test rows: loss, squared error, CRPS, whether intervals have y inside."""
    X, y, step = rows.X, rows.y, rows.step
    found = {"square": (model.predict(X) - y) ** 2}
    if isinstance(model, Peer):
        log_p = model.predict_log_density(X, y)
        if step is not None:
            log_p = model.predict_log_interval(X, rows.cells, step) + math.log(step)
        crps = normal_crps(y, *(a.T for a in model.normals(X)))
        return found | {"loss": -log_p, "crps": crps, "cover": model.covers(X, y)}
    draws = model.sample_y(X, 1000 if step is None else N_DRAWN, random_state=0)
    found["crps"] = sample_crps(y, draws)
    if step is None:
        low, high = model.predict_interval(X).T
        log_p = model.predict_log_density(X, y)
        return found | {"loss": -log_p, "cover": (low <= y) & (y <= high)}
    below, equal = draws < y[:, None] - 1e-9, np.abs(draws - y[:, None]) <= 1e-9
    shares = np.random.default_rng(0).random(len(y))
    below = below.mean(1) + shares * equal.mean(1)
    given = model.likelihood_
    if isinstance(given, RoundedLikelihood) and math.isclose(given.step, step):
        log_p = model.predict_log_density(X, y) + math.log(step)
    else:
        inside = np.abs(draws - rows.cells[:, None]) < step / 2
        log_p = np.log((inside.sum(1) + 0.5) / (N_DRAWN + 1))
    return found | {"loss": -log_p, "cover": np.abs(below - 0.5) <= 0.45}


def pace():
    """Seconds of a fixed piece of work, the best of three."""
    a, found = torch.ones(4, 100, 50), []
    for _ in range(3):
        start = time.process_time()
        for _ in range(500):
            torch.relu(a @ a.mT).sum()
        found.append(time.process_time() - start)
    return min(found)


def measure(name, draw, method):
    """Scores of rows, and seconds of the fit."""
    rows = rows_of(name, draw)
    is_class = name in CLASSES
    if method == "truth":
        return scores_of_classes(rows.p, rows) if is_class else {"loss": rows.loss}
    model = MODELS[method][not is_class](draw, rows.X.shape[1])
    unit, start = pace(), time.process_time()
    model.fit(*rows.train)
    seconds = time.process_time() - start
    if is_class:
        found = scores_of_classes(model.predict_proba(rows.X), rows)
    else:
        found = scores_of_numbers(model, rows)
    return found | {"seconds": seconds, "pace": unit}


def is_due(name, method):
    """Whether there is such a run."""
    if method == "truth":
        return name in GENERATED
    return method != "Gaussian process" or SETS[name][0] <= GP_ROWS


def run(options):
    """Fill the cache; "before" in another process, as it has another `skvi`."""
    own = Path(skvi.__file__).resolve().parents[1]
    is_before = options.before is not None and own == options.before.resolve()
    if options.silent and not is_before:
        sys.exit(f"{options.before} has no skvi: {own} was imported")
    methods = [m for m in options.methods if (m == "before") == is_before]
    if {"skvi", "before"} & {*methods}:
        measure("noise", 0, "skvi")  # imports and first calls, which have no seconds
    for draw, name, method in product(range(options.draws), options.sets, methods):
        path = options.cache / f"{name}-{draw}-{method}.npz"
        if path.exists() or not is_due(name, method):
            continue
        found = measure(name, draw, method)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.savez_compressed(file, **found)
        part.replace(path)
        print(
            f"{name:24}{draw} {method:17}{found.get('seconds', 0):6.1f} s", flush=True
        )
    if "before" in options.methods and not is_before:
        if options.before is None:
            sys.exit("--before FOLDER has the checkout of the method before")
        place = os.environ | {"PYTHONPATH": str(options.before.resolve())}
        command = [sys.executable, *sys.argv, "--methods", "before", "--silent"]
        subprocess.run(command, env=place, check=True)


def read(cache):
    """Cached scores: {(set, method): {draw: arrays}}."""
    table = {}
    for path in sorted(cache.glob("*.npz")):
        name, draw, method = path.stem.rsplit("-", 2)
        with np.load(path) as found:
            table.setdefault((name, method), {})[int(draw)] = dict(found)
    return table


def difference(table, name, one, other):
    """Mean loss of one minus other on the same draws, and its standard error."""
    a, b = table.get((name, one), {}), table.get((name, other), {})
    each = [a[draw]["loss"] - b[draw]["loss"] for draw in a.keys() & b.keys()]
    if not each:
        return math.nan, math.nan
    means = [d.mean() for d in each]
    rows = math.sqrt(sum(d.var(ddof=1) / len(d) for d in each)) / len(each)
    draws = np.std(means, ddof=1) / math.sqrt(len(each)) if each[1:] else 0.0
    return np.mean(means), max(rows, draws)


def means_of(table, name, method, key):
    """Of each draw; the root of squares."""
    found = [d[key].mean() for d in table.get((name, method), {}).values() if key in d]
    return np.sqrt(found) if key == "square" and name not in CLASSES else found


def summarize(table, method):
    """Print losses and their differences to rivals."""
    print("\nset, rows: loss, CRPS, RMSE or error, cover, s, draws; loss minus skvi's")
    for name in SETS:
        print(f"{name}, {SETS[name][0]}")
        for other in (method, "before", *RIVALS, "truth"):
            if (name, other) not in table or (other == method and "before" == method):
                continue
            numbers = [means_of(table, name, other, k) for k in KEYS]
            text = "".join(
                f"{np.mean(x):10.4f}" if len(x) else " " * 10 for x in numbers
            )
            gain, error = difference(table, name, other, method)
            gain = (
                ""
                if other == method or math.isnan(gain)
                else f"{gain:+.3f} +- {error:.3f}"
            )
            print(f"    {other:17}{text} {len(table[name, other]):3}  {gain}")


def verdicts(table, method):
    """Print what the defaults must show, and where they do not."""
    sets = [name for name in SETS if (name, method) in table]
    print(f"\n{method}: {len(sets)} sets")
    for other in ("constant", "linear"):
        found = {name: difference(table, name, method, other) for name in sets}
        bad = [f"{k} {d:+.3f} +- {e:.3f}" for k, (d, e) in found.items() if d > 2 * e]
        show(f"worse than {other} by more than two errors", bad, 0)
    bad = []
    for name in sets:
        found = {m: difference(table, name, method, m) for m in RIVALS}
        known = {m: d for m, d in found.items() if not math.isnan(d[0])}
        best = max(known, key=lambda m: known[m][0], default=None)
        if best is not None and known[best][0] > 0.03:
            bad.append(f"{name} {known[best][0]:+.3f} +- {known[best][1]:.3f} ({best})")
    show("behind the best by more than .03 nats", bad, 4)
    bad = []
    for name in set(sets) & set(GENERATED) - CLASSES:
        each = means_of(table, name, method, "cover")
        if not 0.85 <= np.mean(each) <= 0.95:
            bad.append(f"{name} {np.mean(each):.3f} ({len(each)} draws)")
    show("90 % intervals cover less than 85 % or more than 95 %", bad, 0)
    slow, told = [], []
    for name in sets:
        a, b = table[name, method], table.get((name, "before"), {})
        both = a.keys() & b.keys()
        if both:
            units = [[t[k]["seconds"] / t[k]["pace"] for k in both] for t in (a, b)]
            ratio = np.sum(units[0]) / np.sum(units[1])
            told.append(f"{name} {ratio:.2f}")
            slow += told[-1:] if ratio > (1 if SETS[name][0] >= 2000 else 2) else []
    show("seconds above those before (2,000 rows), or twice them (fewer)", slow, 0)
    print("seconds over those before:", "; ".join(told))


def show(title, bad, allowed):
    """One line of a verdict."""
    verdict = "holds" if len(bad) <= allowed else "FAILS"
    print(f"{verdict}: {title}: {len(bad)} (at most {allowed})", *bad, sep="\n    ")


def write(table):
    """Means of every set, draw and method."""
    with RESULT.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["set", "rows", "draw", "method", *KEYS])
        for (name, method), draws in table.items():
            for draw, d in draws.items():
                numbers = [f"{d[k].mean():.6g}" if k in d else "" for k in KEYS]
                writer.writerow([name, SETS[name][0], draw, method, *numbers])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    everything = [*MODELS, "truth"]
    parser.add_argument("cache", type=Path)
    parser.add_argument("--methods", nargs="*", choices=everything, default=["skvi"])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--of", choices=("skvi", "before"), default="skvi")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--silent", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    options.cache.mkdir(parents=True, exist_ok=True)
    run(options)
    if options.silent:
        return
    table = read(options.cache)
    summarize(table, options.of)
    verdicts(table, options.of)
    if options.write:
        write(table)


if __name__ == "__main__":
    main()
