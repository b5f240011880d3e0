"""Five tasks of two digits, one after the other, for one network without replay.

Tasks ask which of two digits an image shows: 0 or 1, 2 or 3, and so on. By one output
for all ("even or odd"): `partial_fit` (the posterior is the next prior), the same
network that goes on without it (warm_start), and one fit to all tasks. With outputs for
the digits of each task, which come with it, and the task known when it is asked, as in
variational continual learning (Nguyen et al., 2018: on split MNIST about 97 % on
average after five tasks, 98 % with coresets; curves of tasks fall little). A coreset is
ten rows of each task that its batch leaves out, and that a copy learns before it is
asked. Rows of the table are tasks, columns the accuracy on test images of each task
after it; forgetting is the best accuracy of a task less the last one.

    python benchmarks/continual_digits.py --seeds 3
"""

import argparse
import copy
import time
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skvi.neural_network import BayesianMLPClassifier

N_TASKS, N_CORE = 5, 10


def tasks(seed):
    """Training and test images of every task, scaled alike, and their digits."""
    X, y = load_digits(return_X_y=True)
    X = (X - X.mean()) / X.std()
    a, b = train_test_split(np.arange(len(y)), stratify=y, random_state=seed)
    parts = [[rows[y[rows] // 2 == k] for k in range(N_TASKS)] for rows in (a, b)]
    return [[(X[r], y[r]) for r in part] for part in parts]


def accuracy(model, task, has_outputs):
    """Share of right answers, among the two digits of the task."""
    X, digits = task
    if not has_outputs:
        return model.score(X, digits % 2)
    own = np.unique(digits)
    p = model.predict_proba(X)[:, np.isin(model.classes_, own)]
    return np.mean(own[p.argmax(1)] == digits)


def learn(train, test, has_outputs, has_core, goes_on, options):
    """Accuracies, (n_tasks learned, n_tasks)."""
    model, core, rows = BayesianMLPClassifier(**options), [], []
    for k, (X, digits) in enumerate(train):
        known = [0, 1]
        if has_outputs:
            known = list(range(2 * k + 2))
        y = digits if has_outputs else digits % 2
        if has_core:
            core.append((X[:N_CORE], y[:N_CORE]))
            X, y = X[N_CORE:], y[N_CORE:]
        if goes_on:
            model.partial_fit(X, y, classes=known)
        else:
            model.set_params(warm_start=True).fit(X, y)
        asked = model
        if has_core:
            asked = copy.deepcopy(model)
            asked.partial_fit(*map(np.concatenate, zip(*core, strict=True)))
        seen = test[: k + 1] if has_outputs else test
        found = [accuracy(asked, task, has_outputs) for task in seen]
        rows.append(found + [np.nan] * (N_TASKS - len(found)))
    return np.array(rows)


def joint(train, test, options):
    X, digits = map(np.concatenate, zip(*train, strict=True))
    model = BayesianMLPClassifier(**options).fit(X, digits % 2)
    return np.array([[accuracy(model, task, False) for task in test]])


KINDS = {
    "one output, posterior as prior": (False, False, True),
    "one output, warm start": (False, False, False),
    "outputs by task, posterior as prior": (True, False, True),
    "outputs by task, and a coreset": (True, True, True),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=20)
    parser.add_argument("--max-iter", type=int, default=400)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for kind in (*KINDS, "one output, joint"):
        start, found = time.monotonic(), []
        for seed in range(given.seeds):
            options = {"posterior": "mean_field", "hidden_layer_sizes": given.width}
            options["max_iter"] = given.max_iter
            options["random_state"] = seed
            train, test = tasks(seed)
            if kind in KINDS:
                found.append(learn(train, test, *KINDS[kind], options))
            else:
                found.append(joint(train, test, options))
        found = np.array(found)
        last = found[:, -1].mean(1)
        se = last.std(ddof=1) / np.sqrt(len(last))
        seconds = (time.monotonic() - start) / len(last)
        forgotten = (np.nanmax(found, 1) - found[:, -1]).mean(0)
        print(
            f"{kind}: {last.mean():.3f} +- {se:.3f} at the end, {seconds:.0f} s a run; "
            f"forgotten {forgotten.round(2)}"
        )
        print(found.mean(0).round(2), flush=True)


if __name__ == "__main__":
    main()
