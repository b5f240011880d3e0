"""Refined posteriors on the UCI sets beside their start, flows and ensembles.

    SKVI_DATA=folder python benchmarks/uci_refined.py            # half an hour; resumes
    python benchmarks/uci_refined.py --summary                   # no runs

Table 1 of Havasi et al. (2021) with the standard 90-10 splits: one hidden layer of 50
relu units, prior scales and noise learned, training as by default; five auxiliary
variables. Mean log density of test rows, in units of y: of the factorized start from
100 draws, and from ten (a mean over ten sets of them); of 50 refined samples of it, and
of ten (a mean over five sets). Seconds of the fit without refinement, and of refining
ten and 50 samples. "ensemble" are eight such starts, of other seeds, and a mixture of
their densities ("start" is their mean); "multiplicative_flow" goes on from such a start
for 6,600 steps, and "longer_flow" for twice as many. All have the weight 1 of the
divergence. Training parts of protein are cut to 10,000 rows.
"""

import argparse
import os
import time
import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from runs import read, sweep
from scipy.special import logsumexp
from sklearn.preprocessing import StandardScaler
from uci_networks import SETS, load, mean_and_error

from skvi.evidence._summarize import lower_bound
from skvi.neural_network import BayesianMLPRegressor
from skvi.posteriors import RefinedNormal
from skvi.posteriors._refinement import _Refiner
from skvi.priors import Normal

RESULT = Path(__file__).parent / "results" / "uci_refined.csv"
LARGE = {"kin8nm", "naval-propulsion-plant", "power-plant"}
LARGE |= {"protein-tertiary-structure"}
MAX_ROWS = 10_000
FAMILIES = {
    "refined": RefinedNormal(n_draws=50),
    "ensemble": None,
    "multiplicative_flow": None,
    "longer_flow": None,
}
# Steps of flows, and rows of each.
STEPS = {"multiplicative_flow": 6600, "longer_flow": 13_200}
BATCH, N_MEMBERS = 64, 8
GAINS = {
    "50 samples": ("of_50_refined", "of_100"),
    "10 samples": ("of_10_refined", "of_100"),
    "10 for 10 draws": ("of_10_refined", "of_10"),
    "ELBO": ("elbo", "elbo_of_start"),
}


def one_run(name, split, family):
    """Fit a family to a split, and score it."""
    X, y, splits = load(os.environ["SKVI_DATA"], name)
    train, test = splits[split]
    train = np.random.default_rng(split).permutation(train)[:MAX_ROWS]
    scaler = StandardScaler().fit(X[train])
    scaled = [(scaler.transform(X[rows]), y[rows]) for rows in (train, test)]
    if family == "ensemble":
        found = ensemble(*scaled, range(N_MEMBERS * split, N_MEMBERS * (split + 1)))
        return empty(found | key(name, split, family))
    if family in STEPS:
        found = flow(*scaled, split, STEPS[family])
        return empty(found | key(name, split, family))
    network = network_of(FAMILIES[family], split)
    start, parts = time.process_time(), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if family == "refined":
            with_parts(network, parts)
        network.fit(*scaled[0])
    seconds = time.process_time() - start - parts.pop("other_seconds", 0.0)

    def density(draws, n_sets=1):
        """Mean over sets of draws."""
        found = []
        for k in range(n_sets):
            network._theta, network._kept = draws[k::n_sets], None
            found.append(network.predict_log_density(*scaled[1]).mean())
        return f"{np.mean(found):.5f}"

    drawn = parts.pop("draws")
    own = {"elbo": f"{network.lower_bound_:.2f}", "seconds": f"{seconds:.2f}"}
    # The noise of a sample is opposed to that of the one 25 places later.
    theta = network.posterior_.params.reshape(50, -1).numpy()
    found = {
        "of_100": density(drawn),
        "of_10": density(drawn, 10),
        "of_50_refined": density(theta),
        "of_10_refined": density(theta, 5),
    }
    return empty(found | own | parts | key(name, split, family))


def network_of(posterior, seed):
    """The network of all families."""
    return BayesianMLPRegressor(
        hidden_layer_sizes=(50,),
        activation="relu",
        skip_connection=False,
        prior={
            "coef_0": Normal("learn_rows"),
            "coef": Normal("learn"),
            "intercept": Normal(),
        },
        likelihood="gaussian",
        divergence="kl",
        posterior=posterior,
        random_state=seed,
    )


def ensemble(train, test, seeds):
    """A mixture of starts."""
    start, networks = time.process_time(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            networks.append(network_of("mean_field", seed).fit(*train))
    seconds = time.process_time() - start
    each = np.stack([network.predict_log_density(*test) for network in networks])
    density = (logsumexp(each, 0) - np.log(len(networks))).mean()
    return {
        "start": f"{each.mean():.5f}",
        "of_100": f"{density:.5f}",
        "seconds": f"{seconds:.2f}",
    }


def flow(train, test, seed, n_steps):
    """A flow that goes on from a start."""
    network, begun = network_of("mean_field", seed), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.fit(*train)
        density, elbo = network.predict_log_density(*test).mean(), network.lower_bound_
        n_iter = n_steps * BATCH // len(train[1])
        network.set_params(posterior="multiplicative_flow", warm_start=True)
        network.set_params(max_iter=n_iter).fit(*train)
    return {
        "start": f"{density:.5f}",
        "of_100": f"{network.predict_log_density(*test).mean():.5f}",
        "elbo_of_start": f"{elbo:.2f}",
        "elbo": f"{network.lower_bound_:.2f}",
        "seconds": f"{time.process_time() - begun:.2f}",
    }


def key(name, split, family):
    return {"set": name, "split": split, "family": family}


def empty(found):
    """All columns in their order."""
    columns = "set", "split", "family", "of_100", "of_10", "of_10_refined"
    columns += "of_50_refined", "elbo_of_start", "elbo", "seconds"
    columns += "seconds_of_10", "seconds_of_50", "start"
    return {name: found.get(name, "") for name in columns}


def with_parts(network, parts):
    """Note draws and the bound of the start, and times, when a network is refined."""
    original = _Refiner.__call__

    @torch.no_grad()
    def refine(refiner, posterior, target, generator):
        _Refiner.__call__, before = original, time.process_time()
        ends = []
        for size in (10, 50):
            start, some = time.process_time(), replace(refiner, n_draws=size)
            found = original(some, posterior, target, generator)
            ends.append(time.process_time() - start)
        bound = lower_bound(target, posterior, generator)
        parts["elbo_of_start"] = f"{bound.value:.2f}"
        parts["seconds_of_10"], parts["seconds_of_50"] = (f"{s:.2f}" for s in ends)
        parts["draws"] = posterior.draw(100, generator).theta.numpy()
        parts["other_seconds"] = time.process_time() - before
        return found

    _Refiner.__call__ = refine


def summarize():
    """Gains over the start, paired by split, and what refinement costs."""
    table = read(RESULT)
    for name in SETS:
        own = [r for r in table if r["set"] == name and r["family"] == "refined"]
        if own:
            start = [float(r["of_100"]) for r in own]
            print(f"{name}: {mean_and_error(start)}, {len(own)} splits")
            for label, (new, old) in GAINS.items():
                gains = [float(r[new]) - float(r[old]) for r in own]
                print(f"    {label:20} {mean_and_error(gains)}")
            for family in ("ensemble", *STEPS):
                gains = [
                    float(r["of_100"]) - float(r["start"])
                    for r in table
                    if r["set"] == name and r["family"] == family
                ]
                if gains:
                    print(
                        f"    {family:20} {mean_and_error(gains)}, {len(gains)} splits"
                    )
            shares = [float(r["seconds_of_10"]) / float(r["seconds"]) for r in own]
            seconds = np.mean([float(r["seconds"]) for r in own])
            print(f"    training {seconds:.1f} s, refining 10: {np.median(shares):.2f}")


def main():
    """Make the runs that the table has not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", nargs="+", default=[*FAMILIES])
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    if not options.summary:
        runs = [
            (name, split, family)
            for split, name, family in product(
                range(options.splits), options.sets, options.families
            )
            if split < 2 or name not in LARGE
        ]
        keys = "set", "split", "family"
        for row in sweep(RESULT, keys, runs, one_run, "Refined posteriors, UCI"):
            print(*row.values(), flush=True)
    summarize()


if __name__ == "__main__":
    main()
