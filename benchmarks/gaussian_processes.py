"""Gaussian processes beside scikit-learn's, in one run: python -m this [part ...].

The folder of the data is ``SKVI_DATA``; processor seconds of one thread.

- exact: the same model, kernel and normalization, each optimized by its package.
- sparse: thousands of rows. Scikit-learn's evidence and gradient are timed once, and it
  predicts with the kernel that skvi found.
- batches: kernel and points by minibatches of all rows, and by 10,000 of them.
- classes: log losses of held-out rows; scikit-learn with one length scale, its default,
  and with one for each feature, both Matern kernels as skvi's.
- targets: several of them under one kernel, and each under its own.

Tables of the page are written from stored results, also without a part to run ("none").
"""

import csv
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_iris,
    load_linnerud,
    load_wine,
)
from sklearn.gaussian_process import (
    GaussianProcessClassifier,
    GaussianProcessRegressor,
)
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, ShuffleSplit, train_test_split
from sklearn.multioutput import MultiOutputRegressor

from skvi.gaussian_process import (
    SparseGaussianProcessClassifier,
    SparseGaussianProcessRegressor,
)

RESULTS = Path(__file__).parent / "results" / "gaussian_processes.csv"
PAGE = Path(__file__).parents[1] / "doc" / "gaussian_processes"
FOLDERS = {
    "yacht": "yacht",
    "boston": "bostonHousing",
    "energy": "energy",
    "concrete": "concrete",
    "wine": "wine-quality-red",
    "kin8nm": "kin8nm",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "naval": "naval-propulsion-plant",
}


def table_of(name):
    """Folder, all numbers, and columns of the features."""
    folder = Path(os.environ["SKVI_DATA"]) / FOLDERS[name]
    table = np.loadtxt(next(p for p in folder.glob("data.txt*")))
    return folder, table, np.loadtxt(folder / "index_features.txt").astype(int)


def split_of(name, split=0):
    """Training and test rows of a standard split."""
    folder, table, columns = table_of(name)
    target = int(np.loadtxt(folder / "index_target.txt"))
    rows = np.load(folder / "splits.npz")
    parts = [rows[f"{part}_{split}"].astype(int) for part in ("train", "test")]
    X, y = table[:, columns], table[:, target]
    return *(a[parts[0]] for a in (X, y)), *(a[parts[1]] for a in (X, y))


def timed(work, *arguments):
    """Result of a function, and its processor seconds."""
    start = time.process_time()
    found = work(*arguments)
    return found, time.process_time() - start


def density(mean, std, y):
    """Mean log density of normal predictions."""
    return float(np.mean(-0.5 * ((y - mean) / std) ** 2 - np.log(std * 2.5066282746)))


def kernel_for(X):
    """The default kernel of skvi, at its start."""
    sizes, d = X.std(0), X.shape[1]
    limits = np.stack([0.05 * sizes, 1e3 * np.sqrt(d) * sizes], 1)
    lengths = 0.7 * np.sqrt(d) * sizes
    constant = ConstantKernel(1.0, (1e-2, 1e3))
    return constant * Matern(lengths, limits, nu=2.5) + WhiteKernel(0.1, (1e-8, 9.0))


def exact():
    """The same model by both packages."""
    for name in ("yacht", "boston", "energy", "concrete", "wine"):
        X, y, X_new, y_new = split_of(name)
        kernel, unit = kernel_for(X), len(y) * np.log(y.std())
        ours, seconds = timed(SparseGaussianProcessRegressor(kernel).fit, X, y)
        theirs = GaussianProcessRegressor(kernel, alpha=0, normalize_y=True)
        theirs, reference = timed(theirs.fit, X, y)
        yield {
            "part": "exact",
            "data": name,
            "rows": len(y),
            "seconds": seconds,
            "scikit-learn": reference,
            "evidence": ours.lower_bound_ + unit,
            "of scikit-learn": theirs.log_marginal_likelihood_value_,
            "density": density(*ours.predict(X_new, return_std=True), y_new),
            "density of scikit-learn": density(
                *theirs.predict(X_new, return_std=True), y_new
            ),
        }


def sparse():
    """5,000 rows with 500 points beside the exact process at the same kernel."""
    for name in ("power", "kin8nm"):
        X, y, X_new, y_new = split_of(name)
        X, y = X[:5000], y[:5000]
        ours, seconds = timed(SparseGaussianProcessRegressor(random_state=0).fit, X, y)
        theirs = GaussianProcessRegressor(
            ours.kernel_, optimizer=None, alpha=0, normalize_y=True
        ).fit(X, y)
        value, reference = timed(
            theirs.log_marginal_likelihood, theirs.kernel_.theta, True
        )
        bounds = ours.evidence_bounds(X, y)
        unit = len(y) * np.log(y.std())
        yield {
            "part": "sparse",
            "data": name,
            "rows": len(y),
            "seconds": seconds,
            "scikit-learn": reference,
            "evidence": ours.lower_bound_ + unit,
            "of scikit-learn": value[0],
            "lower": bounds.lower + unit,
            "upper": bounds.upper + unit,
            "density": density(*ours.predict(X_new, return_std=True), y_new),
            "density of scikit-learn": density(
                *theirs.predict(X_new, return_std=True), y_new
            ),
        }


def batches():
    """Many rows with 100 points, with and without minibatches."""
    X, y, X_new, y_new = split_of("protein")
    for batch_size in (1000, None):
        ours = SparseGaussianProcessRegressor(
            n_inducing=100, batch_size=batch_size, random_state=0
        )
        ours, seconds = timed(ours.fit, X, y)
        yield {
            "part": "batches",
            "data": "protein" + (", batches" if batch_size else ""),
            "rows": len(y),
            "seconds": seconds,
            "evidence": ours.lower_bound_ + len(y) * np.log(y.std()),
            "density": density(*ours.predict(X_new, return_std=True), y_new),
        }


def classes():
    """Log losses of halves, with seconds."""
    sets = {
        "breast cancer": load_breast_cancer(return_X_y=True),
        "iris": load_iris(return_X_y=True),
        "wine": load_wine(return_X_y=True),
        "3 or 8": load_digits(return_X_y=True),
    }
    keep = np.isin(sets["3 or 8"][1], (3, 8))
    sets["3 or 8"] = tuple(part[keep] for part in sets["3 or 8"])
    for name, (X, y) in sets.items():
        X, X_new, y, y_new = train_test_split(X, y, random_state=0, stratify=y)
        ours, seconds = timed(SparseGaussianProcessClassifier(random_state=0).fit, X, y)
        size = np.where(X.std(0) > 0, X.std(0), 1.0)
        row = {
            "part": "classes",
            "data": name,
            "rows": len(y),
            "seconds": seconds,
            "density": -log_loss(y_new, ours.predict_proba(X_new)),
        }
        for word, lengths in (("", 1.0), (", ARD", np.ones(X.shape[1]))):
            theirs = GaussianProcessClassifier(1.0 * Matern(lengths, nu=2.5))
            theirs, reference = timed(theirs.fit, X / size, y)
            row[f"scikit-learn{word}"] = reference
            row[f"density of scikit-learn{word}"] = -log_loss(
                y_new, theirs.predict_proba(X_new / size)
            )
        yield row


def targets():
    """Mean log density of new rows by several targets under one kernel."""
    _, naval, columns = table_of("naval")
    _, concrete, features = table_of("concrete")
    noise = np.random.default_rng(0).normal(size=len(concrete))
    several = ShuffleSplit(5, train_size=200, test_size=300, random_state=0)
    halves = ShuffleSplit(3, train_size=60, test_size=100, random_state=0)
    images, labels = load_digits(return_X_y=True)
    images = images[labels == 3]
    lower = images[:, 32:][:, images[:, 32:].std(0) > 1]
    sets = {
        f"digits, {lower.shape[1]} pixels by others": (images[:, :32], lower, halves),
        "naval, two decays": (naval[:, columns], naval[:, 16:18], several),
        "linnerud": (*load_linnerud(return_X_y=True), KFold(10)),
        "concrete, and pure noise": (
            concrete[:, features],
            np.c_[concrete[:, len(features)], noise],
            several,
        ),
    }
    for name, (X, Y, folds) in sets.items():
        found, seconds = [], np.zeros(2)
        for train, test in folds.split(X):
            one = SparseGaussianProcessRegressor(random_state=0)
            row = []
            for k, model in enumerate((one, MultiOutputRegressor(one))):
                model, used = timed(model.fit, X[train], Y[train])
                seconds[k] += used
                parts = model.outputs_ if k == 0 else model.estimators_
                pairs = zip(parts, Y[test].T, strict=True)
                row.append([p.predict_log_density(X[test], y).mean() for p, y in pairs])
            found.append(row)
        means = np.array(found).mean(2)
        gains = means[:, 0] - means[:, 1]
        yield {
            "part": "targets",
            "data": name,
            "rows": len(train),
            "seconds": seconds[0] / len(found),
            "seconds, own kernels": seconds[1] / len(found),
            "density": means[:, 0].mean(),
            "density, own kernels": means[:, 1].mean(),
            "error of the gain": gains.std(ddof=1) / len(gains) ** 0.5,
        }


PARTS = {
    "exact": exact,
    "sparse": sparse,
    "batches": batches,
    "classes": classes,
    "targets": targets,
}
# Columns of the tables of the page: title, and the digits of their numbers.
SECONDS = {"data": ("data", 0), "rows": ("rows", 0), "seconds": ("seconds, skvi", 1)}
TABLES = {
    "exact": SECONDS
    | {
        "scikit-learn": ("seconds, scikit-learn", 1),
        "evidence": ("log evidence, skvi", 1),
        "of scikit-learn": ("log evidence, scikit-learn", 1),
    },
    "sparse": SECONDS
    | {
        "scikit-learn": ("seconds, one gradient of scikit-learn", 1),
        "density": ("log density, skvi", 3),
        "density of scikit-learn": ("log density, scikit-learn at this kernel", 3),
    },
    "classes": SECONDS
    | {
        "scikit-learn": ("seconds, one scale", 1),
        "scikit-learn, ARD": ("seconds, ARD", 1),
        "density": ("log probability, skvi", 3),
        "density of scikit-learn": ("log probability, one scale", 3),
        "density of scikit-learn, ARD": ("log probability, ARD", 3),
    },
    "targets": SECONDS
    | {
        "seconds": ("seconds, one kernel", 1),
        "seconds, own kernels": ("seconds, own kernels", 1),
        "density": ("log density, one kernel", 3),
        "density, own kernels": ("log density, own kernels", 3),
        "error of the gain": ("error of the difference", 3),
    },
}


def write(path, rows):
    """Rows, dicts, as a table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def shown(text, digits):
    """A number with so many digits; text as it is."""
    return f"{float(text):.{digits}f}" if digits else text


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    known = list(csv.DictReader(RESULTS.open())) if RESULTS.exists() else []
    for part in sys.argv[1:] or PARTS:
        for row in PARTS.get(part, list)():
            texts = {
                k: f"{v:.4f}" if isinstance(v, float) else v for k, v in row.items()
            } | {"date": time.strftime("%Y-%m-%d")}
            same = part, row["data"]
            known = [r for r in known if (r["part"], r["data"]) != same]
            known.append(texts)
            print(known[-1], flush=True)
            write(RESULTS, known)
    for part, columns in TABLES.items():
        rows = [row for row in known if row["part"] == part]
        table = [{t: shown(r[c], n) for c, (t, n) in columns.items()} for r in rows]
        write(PAGE / f"{part}.csv", table)
