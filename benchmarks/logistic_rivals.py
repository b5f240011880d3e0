"""Seconds to a bound: families of posteriors of a logistic regression, and NumPyro's.

    pip install numpyro jax
    SKVI_DATA=... JAX_PLATFORMS=cpu python benchmarks/logistic_rivals.py [METHOD ...]
    python benchmarks/logistic_rivals.py settings  # of NumPyro's guides

Breast-cancer data, standardized, prior N(0, 1) on 31 coefficients: log evidence
-55.224, best factorized normal -67.46, best normal -55.465. Rounds of all methods, one
after the other in one process. ELBO of 10,000 draws (and a bound from above for
"semi_implicit"); seconds of the processor to compile (half of it is cached in the
second round), to run, and to run until the ELBO is within .1 of the best factorized
normal, or .05 nats of the best normal or of NumPyro's flow (-67.56, -55.515, -55.42):
NumPyro's after each fortieth of its steps, of whole fits for skvi, which stop by
themselves. NumPyro's guides have the setting of `settings` that gets there soonest.
"""

import sys
import time
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import torch
from posteriordb_rivals import CANCER, load, svi
from runs import read, sweep
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from skvi.inference import VariationalInference
from skvi.linear_model import BayesianLogisticRegression
from skvi.posteriors import MeanFieldNormal, MixtureOfNormals
from skvi.priors import Normal

RESULTS = Path(__file__).parent / "results"
ROUNDS = 2
FACTORIZED, FULL, BENT = -67.56, -55.515, -55.42
# Steps, first step size, its last share, particles; and the bound of the kind.
GUIDES = {
    "AutoNormal": ((10_000, 0.02, 0.01, 1), FACTORIZED),
    "AutoMultivariateNormal": ((4000, 0.1, 0.001, 10), FULL),
    "AutoIAFNormal": ((20_000, 0.05, 0.001, 10), BENT),
}
SETTINGS = [
    (steps, rate, 0.01, particles)
    for steps, rate, particles in product((2000, 10_000), (0.02, 0.1), (1, 10))
]
SETTINGS += [(4000, 0.1, 0.001, 10), (20_000, 0.05, 0.001, 10)]
FAMILIES = {
    "mean_field": ("mean_field", FACTORIZED),
    "full_rank": ("full_rank", FULL),
    "flow": ("flow", BENT),
    "mixture": (MixtureOfNormals(4, base=MeanFieldNormal()), BENT),
    "semi_implicit": ("semi_implicit", BENT),
}


def density(family):
    """The front door for log densities."""
    vi = VariationalInference(*load(CANCER)[1], posterior=family, random_state=0)
    began = time.process_time()
    vi.fit()
    seconds = time.process_time() - began
    bounds = [vi.lower_bound_]
    if family == "semi_implicit":
        bounds += elbo_above(vi)
    return bounds, seconds


def elbo_above(vi):
    """Mean of log joint minus the lower bound of log q, at draws."""
    generator = torch.Generator().manual_seed(0)
    draw = vi.posterior_.draw_below(10_000, generator)
    log_joint = load(CANCER)[1][0]({"beta": draw.theta})
    return [float((log_joint - draw.log_q).mean())]


def estimator(family):
    """The regression of skvi, whose expectations are integrals over f."""
    X, y = load_breast_cancer(return_X_y=True)
    model = BayesianLogisticRegression(
        prior=Normal(), intercept_prior=Normal(), posterior=family
    )
    began = time.process_time()
    model.fit(scale(X), y)
    return [model.lower_bound_], time.process_time() - began


def one_run(number, method):
    """One row."""
    library, name = method.split()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if library == "NumPyro":
            setting, bound = GUIDES[name]
            _, elbo, compiled, seconds, trace = svi(CANCER, name, setting)
            bounds = [elbo]
            reached = [s - compiled for s, value in trace if value >= bound]
        else:
            family, bound = FAMILIES[name]
            run = density if library == "density" else estimator
            (bounds, seconds), compiled = run(family), 0.0
            reached = [seconds] if bounds[0] >= bound else []
    return {
        "round": number,
        "method": method,
        "bounds": " ".join(f"{b:.3f}" for b in bounds),
        "compile": f"{compiled:.2f}",
        "run": f"{seconds:.2f}",
        "reached": f"{reached[0]:.2f}" if reached else "",
    }


def one_setting(guide, *setting):
    _, elbo, _, seconds, trace = svi(CANCER, guide, setting)
    first = [s for s, value in trace if value >= GUIDES[guide][1]]
    before = trace[-1][0] - seconds
    names = "guide", "steps", "rate", "last", "particles"
    return dict(zip(names, (guide, *setting), strict=True)) | {
        "elbo": f"{elbo:.3f}",
        "run": f"{seconds:.2f}",
        "reached": f"{first[0] - before:.2f}" if first else "",
    }


def main():
    path = RESULTS / "logistic_rivals.csv"
    if sys.argv[1:] == ["settings"]:
        path = path.with_stem(f"{path.stem}_settings")
        runs = [(guide, *setting) for guide in GUIDES for setting in SETTINGS]
        keys = "guide", "steps", "rate", "last", "particles"
        for row in sweep(path, keys, runs, one_setting, "Settings of guides"):
            print(*row.values(), flush=True)
        return
    methods = [f"density {name}" for name in FAMILIES]
    methods += ["estimator mean_field", "estimator full_rank"]
    methods += [f"NumPyro {guide}" for guide in GUIDES]
    methods = [m for m in methods if not sys.argv[1:] or m in sys.argv[1:]]
    runs = list(product(range(ROUNDS), methods))
    for row in sweep(path, ("round", "method"), runs, one_run, "Logistic regression"):
        print(*row.values(), flush=True)
    for method in methods:
        rows = [r for r in read(path) if r["method"] == method]
        medians = [
            np.median([float(r[key] or "nan") for r in rows])
            for key in ("compile", "run", "reached")
        ]
        print(method, rows[0]["bounds"], *(f"{m:.2f}" for m in medians))


if __name__ == "__main__":
    main()
