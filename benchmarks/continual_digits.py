"""Five tasks of two digits, one after the other, for one network without replay.

Each task asks which of two digits an image shows: 0 or 1, 2 or 3, and so on, by the
same output. Rows of the table are tasks, columns the accuracy on test images of each
task after it. Compared are partial_fit (the posterior is the next prior), the same
network that goes on without it (warm_start), and one fit to all tasks.

    python benchmarks/continual_digits.py --seeds 3
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skvi.neural_network import BayesianMLPClassifier

N_TASKS = 5


def tasks(seed):
    """Training and test images of every task, scaled alike."""
    X, y = load_digits(return_X_y=True)
    X = (X - X.mean()) / X.std()
    a, b = train_test_split(np.arange(len(y)), stratify=y, random_state=seed)
    parts = [[rows[y[rows] // 2 == k] for k in range(N_TASKS)] for rows in (a, b)]
    return [[(X[r], y[r] % 2) for r in part] for part in parts]


def network(seed, width, max_iter, **options):
    return BayesianMLPClassifier(
        hidden_layer_sizes=width, max_iter=max_iter, random_state=seed, **options
    )


def learn(kind, train, test, seed, width, max_iter):
    """Accuracies, (n_tasks learned, n_tasks)."""
    if kind == "joint":
        model = network(seed, width, max_iter)
        model.fit(*map(np.concatenate, zip(*train, strict=True)))
        return np.array([[model.score(*task) for task in test]])
    model, rows = network(seed, width, max_iter, warm_start=kind == "warm start"), []
    for task in train:
        if kind == "warm start":
            model.fit(*task)
        else:
            model.partial_fit(*task, classes=[0, 1])
        rows.append([model.score(*task) for task in test])
    return np.array(rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=20)
    parser.add_argument("--max-iter", type=int, default=400)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for kind in ("posterior as prior", "warm start", "joint"):
        start, found = time.monotonic(), []
        for seed in range(options.seeds):
            size = options.width, options.max_iter
            found.append(learn(kind, *tasks(seed), seed, *size))
        found = np.array(found)
        last = found[:, -1].mean(1)
        se = last.std(ddof=1) / np.sqrt(len(last))
        seconds = (time.monotonic() - start) / len(last)
        print(
            f"{kind}: {last.mean():.3f} +- {se:.3f} at the end, {seconds:.0f} s a run"
        )
        print(found.mean(0).round(2), flush=True)


if __name__ == "__main__":
    main()
