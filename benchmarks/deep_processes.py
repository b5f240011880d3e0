"""Deep Gaussian processes: figure 16 of Knoblauch et al., and beside other regressors.

    SKVI_DATA=... PYTHONPATH=. python benchmarks/deep_processes.py figure_16
    SKVI_DATA=... PYTHONPATH=. python benchmarks/deep_processes.py others [SET ...]
    PYTHONPATH=. python benchmarks/deep_processes.py table

Standard splits. *figure_16*: two layers with 50 inducing points each, 1,000 gradient
steps, by log loss and the gamma loss. The gamma loss of order 1.0001 is log loss up to
rounding, but has robust units of the target: what it gains is due to training. In these
runs points moved in steps of one deviation, not three, layers were trained with smaller
steps, and length scales of inner layers could grow in every stage.

*others*: the defaults of the sparse process (all rows are inducing points up to 1,500,
else 500), and of the deep one, with 1, 2 and 3 layers of 100 points. Errors are those
of the paired differences between held-out rows, over all splits. The targets of wine
are integers; there the score is that of an interval of one. Networks and boosting are
the stored runs of the same splits by `network_rivals.py`, and boosting of the large
sets by `uci_networks.py`.
"""

import csv
import statistics
import sys
import time
from functools import lru_cache
from itertools import product

import numpy as np
from gaussian_processes import FOLDERS, PAGE, split_of
from runs import read, sweep
from scipy.special import logsumexp
from uci_networks import RESULTS

from skvi.gaussian_process import (
    DeepGaussianProcessRegressor,
    SparseGaussianProcessRegressor,
)
from skvi.losses import GammaLoss

SETS = "yacht", "boston", "energy", "concrete"
NEAR = "GammaLoss(gamma=1.0001)"
LOSSES = ("log", *(GammaLoss(gamma) for gamma in (1.0001, 1.01, 1.05)))
LOSSES = {str(loss): loss for loss in LOSSES}
LARGE = "kin8nm", "power", "naval", "protein"
SMALL = *SETS, "wine"
OTHERS = RESULTS / "deep_and_sparse.csv"


def one_run(name, loss, split):
    """Scores of held-out rows."""
    X, y, X_new, y_new = split_of(name, split)
    start = time.process_time()
    model = DeepGaussianProcessRegressor(
        loss=LOSSES[loss], n_inducing=50, max_iter=1000, random_state=split
    ).fit(X, y)
    seconds = time.process_time() - start
    error = model.predict(X_new) - y_new
    return {
        "set": name,
        "loss": loss,
        "split": split,
        "nll": f"{-model.predict_log_density(X_new, y_new).mean():.5f}",
        "rmse": f"{np.sqrt(np.mean(error**2)):.5f}",
        "layers": model.diagnostics_["n_layers"],
        "noise": f"{model.noise_scale_:.5f}",
        "seconds": f"{seconds:.1f}",
    }


@lru_cache(maxsize=2)
def fitted(name, model, split):
    """The model, its seconds, and scores of held-out rows."""
    X, y, X_new, y_new = split_of(name, split)
    if model == "sparse":
        model = SparseGaussianProcessRegressor(random_state=split)
    else:
        n_layers = int(model.split()[1])
        model = DeepGaussianProcessRegressor(n_layers=n_layers, random_state=split)
    start = time.process_time()
    model.fit(X, y)
    seconds = time.process_time() - start
    width = float(name == "wine")
    nodes = y_new + width * (np.arange(20)[:, None] - 9.5) / 20
    each = [model.predict_log_density(X_new, node) for node in nodes]
    error = model.predict(X_new) - y_new
    return model, seconds, logsumexp(each, axis=0) - np.log(20), error


def beside_sparse(name, model, split):
    """Scores of held-out rows, and the gain on the sparse process."""
    sparse = fitted(name, "sparse", split)
    found, seconds, scores, error = fitted(name, model, split)
    gains = scores - sparse[2]
    return {
        "set": name,
        "model": model,
        "split": split,
        "score": f"{scores.mean():.5f}",
        "gain": f"{gains.mean():.5f}",
        "gain_se": f"{gains.std() / len(gains) ** 0.5:.5f}",
        "rmse": f"{np.sqrt(np.mean(error**2)):.5f}",
        "bound": f"{found.lower_bound_:.2f}",
        "layers": found.diagnostics_.get("n_layers", 1),
        "seconds": f"{seconds:.1f}",
    }


def figure_16():
    """Runs by log loss and the gamma loss."""
    runs = [
        (name, loss, split)
        for split, name, loss in product(range(3), SETS, LOSSES)
        if loss != NEAR or name == "yacht"
    ]
    keys, path = ("set", "loss", "split"), RESULTS / "deep_processes.csv"
    return sweep(path, keys, runs, one_run, "Deep processes, gamma loss")


def others(*names):
    """Runs beside the sparse process: first one split of each set, and two layers."""
    order = [
        (1, (*SMALL, *LARGE), ("sparse", "deep 2", "deep 1")),
        (3, SMALL, ("sparse", "deep 2", "deep 1")),
        (1, (*SMALL, "kin8nm"), ("sparse", "deep 3")),
        (3, SMALL, ("sparse", "deep 3")),
    ]
    runs = [
        (name, model, split)
        for n_splits, sets, models in order
        for split, name, model in product(range(n_splits), sets, models)
        if name in (names or sets)
    ]
    keys, runs = ("set", "model", "split"), dict.fromkeys(runs)
    return sweep(OTHERS, keys, runs, beside_sparse, "Deep and sparse processes")


def rival_scores(model):
    """Scores of stored runs by set and split."""
    found = {}
    for path, column in (
        ("uci_networks.csv", "setting"),
        ("network_rivals.csv", "model"),
    ):
        for row in read(RESULTS / path):
            kind = "nll_interval" if row["set"] == FOLDERS["wine"] else "nll"
            if row[column] == model and row.get(kind):
                found[row["set"], row["split"]] = -float(row[kind])
    return found


def mean_gain(gains, errors=None):
    """Mean of paired differences, with its error: over rows, or over splits."""
    if not gains:
        return "–"
    if errors:
        error = sum(e**2 for e in errors) ** 0.5 / len(gains)
    elif len(gains) > 1:
        error = statistics.stdev(gains) / len(gains) ** 0.5
    else:
        return f"{gains[0]:+.3f}"
    return f"{statistics.fmean(gains):+.3f} ± {error:.3f}"


def table():
    """The table of the page."""
    runs, page = read(OTHERS), PAGE / "deep.csv"
    rivals = {
        "network": rival_scores("default"),
        "boosting": rival_scores("gradient boosting"),
    }
    with page.open("w", newline="") as file:
        writer = None
        for name in (*SMALL, *LARGE):
            of = {
                model: {
                    r["split"]: r
                    for r in runs
                    if (r["set"], r["model"]) == (name, model)
                }
                for model in ("sparse", "deep 1", "deep 2", "deep 3")
            }
            splits = [k for k in of["sparse"] if k in of["deep 2"]]
            if not splits:
                continue
            sparse = {k: float(of["sparse"][k]["score"]) for k in splits}
            row = {
                "data": name,
                "splits": len(splits),
                "sparse": f"{statistics.fmean(sparse.values()):.3f}",
            }
            for n in "123":
                parts = [of[f"deep {n}"][k] for k in splits if k in of[f"deep {n}"]]
                gains = [float(r["gain"]) for r in parts]
                errors = [float(r["gain_se"]) for r in parts]
                title = f"{n} layer{'s' if n > '1' else ''}"
                row[title] = mean_gain(gains, errors)
                if parts and len(parts) < len(splits):
                    row[title] += f" ({len(parts)})"
            for title, scores in rivals.items():
                keys = {k: (FOLDERS[name], k) for k in splits}
                pairs = [scores[v] - sparse[k] for k, v in keys.items() if v in scores]
                row[title] = mean_gain(pairs)
            for title, model in (("sparse", "sparse"), ("2 layers", "deep 2")):
                seconds = [float(of[model][k]["seconds"]) for k in splits]
                row[f"seconds, {title}"] = f"{statistics.fmean(seconds):.0f}"
            if writer is None:
                writer = csv.DictWriter(file, row, lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)


if __name__ == "__main__":
    if sys.argv[1] == "table":
        sys.exit(table())
    parts = {"figure_16": figure_16, "others": others}
    for row in parts[sys.argv[1]](*sys.argv[2:]):
        print(*row.values(), flush=True)
