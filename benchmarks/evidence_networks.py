"""Evidence of networks: against truths that skvi has no part in, and on real data.

    python -m benchmarks.evidence_networks small    # 1 to 3 units, 20 seeds each
    python -m benchmarks.evidence_networks search   # the number of units, 40 seeds
    SKVI_DATA=folder python -m benchmarks.evidence_networks ten

small
    Data of 20 rows, drawn from the network's prior. The output's weights and intercept
    are integrated out in closed form, since the model is linear in them; what is left,
    weights into hidden units, by a product rule (one unit, or two with one feature), or
    by the mean over draws of the prior, whose standard error is quoted. All in numpy.
    Of 120 intervals 119 contain the truth, within two of its errors, and 118 are
    reliable; they are .32 nats wide in the median, .64 at most; one is .017 nats too
    high (2026-11-26; 2 busy cores, x86_64).
search
    `EvidenceSearch` over 1 to 3 units, on 40 rows drawn from a network of 1, 2 or 3 of
    them in turn, with wide weights: where units hardly bend, any number of them gives
    the same functions, and nothing can be decided. Of 40 runs 17 decide, 16 of them for
    the true number; all bounds are reliable (2026-11-22, 2 cores, x86_64). This is the
    third design: of four runs each with 150 rows, noise 0.1 and scale 2 (some were not
    reliable), and with 70 rows, noise 0.3 and scale 2, none decided.
ten
    10 tanh units on yacht, Boston (200 rows) and two moons: two fits that differ in
    their seed, each with other chains. Intervals, all of them reliable, and processor
    seconds (``--max-seconds 560`` on one thread; 2026-11-22, 2 cores, x86_64):

        moons    [ -62.53,  -62.30]    17   [ -62.53,  -62.00]    11
        Boston   [-539.74, -539.41]   103   [-539.82, -539.43]    79
        yacht    [-551.12, -550.19]   216   [-551.00, -550.29]   218

Rows are appended to benchmarks/results/evidence_networks_*.csv.
"""

import argparse
import os
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.datasets import make_moons

from benchmarks.runs import sweep

RESULTS = Path(__file__).parent / "results"
NOISE, N_ROWS, SMALL_ERROR = 0.3, 20, 0.01
SMALL = [("tanh", 1, 1), ("tanh", 2, 1), ("tanh", 3, 1)]
SMALL += [("relu", 1, 2), ("relu", 2, 2), ("relu", 3, 2)]
ACTIVATIONS = {"tanh": (np.tanh, 1.0), "relu": (lambda x: np.maximum(x, 0), 2**0.5)}


# Truths: nothing here imports skvi --------------------------------------------------


def scales(activation, n_features, units):
    """Prior standard deviations: into units, of their intercepts, out of them."""
    return ACTIVATIONS[activation][1] / n_features**0.5, 1.0, units**-0.5, 1.0


def draw_network(activation, n_features, units, rng, width=1.0):
    """A function, from the prior, all of whose scales are multiplied by a width."""
    into, intercept, out, last = width * np.array(scales(activation, n_features, units))
    w = into * rng.normal(size=(n_features, units))
    b, v = intercept * rng.normal(size=units), out * rng.normal(size=units)
    c = last * rng.normal()
    return lambda X: ACTIVATIONS[activation][0](X @ w + b) @ v + c


def collapsed(gram, cross, squares, n, prior_variance, noise):
    """Log density of y, weights of k features integrated out; batches of (k, k)."""
    precision = np.eye(gram.shape[-1]) / prior_variance + gram / noise**2
    _, log_det = np.linalg.slogdet(precision)
    log_det = log_det + np.log(prior_variance).sum()
    solved = np.linalg.solve(precision, cross[..., None])[..., 0]
    fitted = (cross * solved).sum(-1) / noise**4
    constant = n * np.log(2 * np.pi * noise**2)
    return -0.5 * (constant + log_det + squares / noise**2 - fitted)


def of_units(hidden, y, out, noise):
    """Collapsed log density of y for hidden values (S, units, n)."""
    ones = np.ones_like(hidden[:, :1])
    features = np.concatenate([hidden, ones], 1)
    variance = np.array([out**2] * hidden.shape[1] + [1.0])
    gram, cross = features @ features.transpose(0, 2, 1), features @ y
    return collapsed(gram, cross, y @ y, len(y), variance, noise)


def log_mean(values, weights):
    top = values.max()
    return top + np.log((np.exp(values - top) * weights).sum())


def grid(size, dimensions):
    """Points and weights of a standard normal: the trapezoidal rule to 6 deviations."""
    x = np.linspace(-6, 6, size)
    p = np.exp(-0.5 * x**2)
    mesh = np.stack(np.meshgrid(*[x] * dimensions, indexing="ij"), -1)
    weights = np.ones(1)
    for _ in range(dimensions):
        weights = np.multiply.outer(weights, p / p.sum())
    return mesh.reshape(-1, dimensions), weights.ravel()


def truth(activation, units, X, y, noise=NOISE, n_draws=4_000_000, seed=7):
    """Log evidence, its standard error (0.01 where possible), and how it was found."""
    n, d = X.shape
    act = ACTIVATIONS[activation][0]
    into, intercept, out, _ = scales(activation, d, units)
    width = np.array([into] * d + [intercept])
    A = np.column_stack([X, np.ones(n)])
    if units == 1:
        points, weights = grid(401 if d == 1 else 121, d + 1)
        values = [
            of_units(act((part * width) @ A.T)[:, None], y, out, noise)
            for part in np.array_split(points, 1 + len(points) // 20_000)
        ]
        return log_mean(np.concatenate(values), weights), 0.0, "product rule"
    rng, parts = np.random.default_rng(seed), []
    for _ in range(n_draws // 10_000):
        w = rng.normal(size=(10_000, units, d + 1)) * width
        parts.append(of_units(act(w @ A.T), y, out, noise))
        if len(parts) % 40 == 0 and mean_and_error(parts)[1] < SMALL_ERROR:
            break
    return *mean_and_error(parts), "draws of the prior"


def mean_and_error(parts):
    """Log of the mean of what has these logarithms, and its standard error."""
    values = np.concatenate(parts)
    value = log_mean(values, np.full(len(values), 1 / len(values)))
    return value, np.exp(values - value).std() / len(values) ** 0.5


# Runs --------------------------------------------------------------------------------


def small_data(activation, units, d, seed, n=N_ROWS, noise=NOISE, width=1.0):
    rng = np.random.default_rng(1000 * seed + 10 * units + d)
    X = rng.normal(size=(n, d))
    y = draw_network(activation, d, units, rng, width)(X)
    y = y + noise * rng.normal(size=n)
    return X, y


def run_small(activation, units, d, seed):
    from skvi.likelihoods import GaussianLikelihood
    from skvi.neural_network import BayesianMLPRegressor

    X, y = small_data(activation, units, d, seed)
    model = BayesianMLPRegressor(
        divergence="kl",
        posterior="mean_field",
        hidden_layer_sizes=units,
        activation=activation,
        prior="normal",  # that of the truth: nothing learned
        likelihood=GaussianLikelihood(NOISE),
        normalize_y=False,
        max_iter=30,
        random_state=seed,
    ).fit(X, y)
    begin = time.perf_counter()
    bounds = model.evidence_bounds(X, y, random_state=seed)
    seconds = time.perf_counter() - begin
    value, error, how = truth(activation, units, X, y)
    low, high = bounds.interval()
    return {
        "activation": activation,
        "units": units,
        "features": d,
        "seed": seed,
        "truth": round(float(value), 4),
        "truth_se": round(float(error), 4),
        "how": how,
        "low": round(low, 4),
        "high": round(high, 4),
        "estimate": round(bounds.estimate, 4),
        "particles": round(bounds.table["particles"].value, 4),
        "reliable": bounds.reliable,
        "contains": bool(low - 2 * error <= value <= high + 2 * error),
        "seconds": round(seconds, 1),
    }


def run_search(seed, n=40, noise=0.3, width=4.0):
    from skvi.likelihoods import GaussianLikelihood
    from skvi.model_selection import EvidenceSearch
    from skvi.neural_network import BayesianMLPRegressor
    from skvi.priors import Normal

    units = 1 + seed % 3
    X, y = small_data("tanh", units, 2, 500 + seed, n, noise, width)
    model = BayesianMLPRegressor(
        divergence="kl",
        posterior="mean_field",
        activation="tanh",
        prior=Normal(width),
        likelihood=GaussianLikelihood(noise),
        normalize_y=False,
        max_iter=30,
        random_state=0,
    )
    begin = time.perf_counter()
    search = EvidenceSearch(
        model,
        {"hidden_layer_sizes": [(1,), (2,), (3,)]},
        min_difference=0.5,
        precision=0.2,
        random_state=seed,
    ).fit(X, y)
    return {
        "seed": seed,
        "true": units,
        "best": search.best_params_["hidden_layer_sizes"][0],
        "decided": search.decided_,
        "estimates": search.results_["estimate"].round(2).tolist(),
        "reliable": search.results_["reliable"].tolist(),
        "seconds": round(time.perf_counter() - begin, 1),
    }


def real_data(name):
    if name == "moons":
        X, y = make_moons(200, noise=0.25, random_state=0)
    else:
        folder = {"yacht": "yacht", "boston": "bostonHousing"}[name]
        path = Path(os.environ["SKVI_DATA"], folder, "data.txt")
        table = np.loadtxt(path)
        X, y = table[:, :-1], table[:, -1]
    if name == "boston":
        rows = np.random.default_rng(0).permutation(len(X))[:200]
        X, y = X[rows], y[rows]
    return (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1.0), y


def run_ten(name, seed, max_seconds):
    from skvi.likelihoods import GaussianLikelihood
    from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor

    X, y = real_data(name)
    # A prior that is not learned: all fits have the same evidence.
    options = {"hidden_layer_sizes": 10, "activation": "tanh"}
    options |= {"prior": "normal", "max_iter": 100, "random_state": seed}
    if name == "moons":
        model = BayesianMLPClassifier(
            divergence="kl", posterior="mean_field", **options
        )
    else:
        noise = {"yacht": 0.1, "boston": 0.3}[name] * y.std()
        model = BayesianMLPRegressor(
            divergence="kl",
            posterior="mean_field",
            likelihood=GaussianLikelihood(noise),
            **options,
        )
    model.fit(X, y)
    begin, work = time.perf_counter(), time.process_time()
    bounds = model.evidence_bounds(X, y, max_seconds=max_seconds, random_state=seed)
    low, high = bounds.interval()
    return {
        "set": name,
        "seed": seed,
        "elbo_of_fit": round(model.lower_bound_, 2),
        "low": round(low, 3),
        "high": round(high, 3),
        "width": round(high - low, 3),
        "particles": round(bounds.table["particles"].value, 2),
        "reliable": bounds.reliable,
        "reason": bounds.reason,
        "seconds": round(time.perf_counter() - begin, 1),
        "processor_seconds": round(time.process_time() - work, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["small", "search", "ten"])
    parser.add_argument("--seeds", type=int, nargs="*", default=None)
    parser.add_argument("--sets", nargs="*", default=["moons", "boston", "yacht"])
    parser.add_argument("--max-seconds", type=float, default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    seeds = options.seeds or range({"small": 20, "search": 40, "ten": 2}[options.what])
    ten = partial(run_ten, max_seconds=options.max_seconds)
    small = (case + (seed,) for seed in seeds for case in SMALL)
    keys, runs, one_run = {
        "small": (("activation", "units", "features", "seed"), small, run_small),
        "search": (("seed",), ((seed,) for seed in seeds), run_search),
        "ten": (("set", "seed"), ((s, k) for k in seeds for s in options.sets), ten),
    }[options.what]
    path = RESULTS / f"evidence_networks_{options.what}.csv"
    for row in sweep(path, keys, runs, one_run, "Evidence of networks"):
        print(row, flush=True)


if __name__ == "__main__":
    main()
