"""Seconds and memory of skvi, alone and beside other code.

    python benchmarks/speed.py                 # all parts, half an hour
    python benchmarks/speed.py logistic        # one of them: see below
    python benchmarks/speed.py fits digits     # one of the single fits
    SKVI_DATA=folder python benchmarks/speed.py linear search

logistic    BayesianLogisticRegression beside LogisticRegression("newton-cholesky")
linear      BayesianLinearRegression beside BayesianRidge and ARDRegression
steps       ten epochs of a network of 50 relu units with 10 draws and batches of 100 of
            9,000 rows, beside a deterministic loop in torch
members     a thousand steps of an ensemble of 8 members, two layers of 50 units and
            noise that varies, 2 draws and batches of 100 rows, beside the products of
            its matrices alone
modules     an epoch of LeNet on 2,000 images of 28 x 28 pixels in batches of 100, with
            one draw and a pair, beside one of Adam on plain parameters; what a fit
            takes besides its epochs is left out
prediction  mean and deviation of 100,000 rows over 100 networks of 50 relu units,
            beside a loop written by hand over blocks of rows and networks
detector    the changepoint detector beside ``bayesian_changepoint_detection`` 0.2.dev1
            of PyPI, the same recursion in numpy without pruning, where it is installed;
            rows one by one; a long stream
search      a BatchedGridSearchCV of 20 candidates in 5 folds, in single fits
fits        single fits, each in a fresh process

Code that is compared runs alternately in one process with one thread, at its defaults;
the median of the pairwise ratios of processor seconds is quoted, with its deciles.
Memory is the peak of a fresh process, data and libraries included. What is watched
from change to change is in reference.py.

Measured on two cores of an AMD EPYC (2026-11-22, nothing else running; 25th and
26th, marked *, beside other work):

logistic    breast cancer 3.46 [3.40, 3.47]; 200,000 x 100 1.79
members     *float32 2.6, float64 1.3 to 1.4 (before, in the same night, 3.9 to 4.2 and
            2.9): 1.15 and 1.15 to 1.4 ms a step
modules     *LeNet, float32 one draw 1.10 [0.78, 1.13], a pair 1.90 [1.88, 2.00]; in
            float64 (before: 4.1) two pairs of runs with one draw gave 1.07 and 1.69
prediction  float32 0.94, float64 0.84, one row 0.75 and 1.2 ms
detector    milliseconds per row: 0.019 at 300 to 10,000 rows, 0.017 to 0.100 if no
            hypothesis is dropped, public 0.095 to 0.583; *0.03 at once and 0.37 row by
            row, robust 2.1 and 2.5; *1, 10 and 50 series 0.03, 0.08 and 0.35; a stream
            of 10^5 rows 0.020 in its first stretch of 10^4 and 0.025 in all others,
            with 2 MiB more memory in the end
search      100 fits of 0.84 s in the time of 61 (orders), of 0.56 s in that of 47
"""

import os
import resource
import subprocess
import sys
import time
import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.linear_model import ARDRegression, BayesianRidge, LogisticRegression
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

from skvi.changepoint import BayesianChangepointDetector, Regression
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.model_selection import BatchedGridSearchCV
from skvi.neural_network import BayesianMLPRegressor, BayesianModuleClassifier
from skvi.solvers import Stochastic


def seconds(function):
    """Processor seconds of a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def compare(name, theirs, ours, repeats):
    """Print medians, and deciles of the ratio, after a call of each."""
    theirs(), ours()
    pairs = np.array([[seconds(theirs), seconds(ours)] for _ in range(repeats)])
    low, ratio, high = np.quantile(pairs[:, 1] / pairs[:, 0], [0.1, 0.5, 0.9])
    base, mine = np.median(pairs, 0) * 1e3
    print(
        f"{name:<32} {base:10.2f} {mine:10.2f} ms {ratio:6.2f} [{low:.2f}, {high:.2f}]",
        flush=True,
    )


def normal(n, d, noise=1.0, seed=0):
    """Features, and f with noise that is logistic."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, X @ rng.standard_normal(d) / d**0.5 + noise * rng.logistic(size=n)


def logistic():
    X, f = normal(200_000, 100)
    iris, kind = load_iris(return_X_y=True)
    cancer, sick = load_breast_cancer(return_X_y=True)
    sets = {
        "iris 100 x 4": (scale(iris[50:]), kind[50:], 100),
        "cancer 569 x 30": (scale(cancer), sick, 100),
        "200,000 x 100": (X, (f > 0).astype(int), 5),
    }
    for name, (X, y, repeats) in sets.items():
        theirs = LogisticRegression(solver="newton-cholesky")
        for posterior in ("full_rank", "mean_field"):
            ours = BayesianLogisticRegression(prior="normal", posterior=posterior)
            fits = partial(theirs.fit, X, y), partial(ours.fit, X, y)
            compare(f"{name}, {posterior}", *fits, repeats)


def linear():
    sets = {"diabetes": load_diabetes(return_X_y=True), "large": normal(10_000, 100, 3)}
    if "SKVI_DATA" in os.environ:
        sets["concrete"] = concrete()
    for name, (X, y) in sets.items():
        n = 10 if name == "large" else 200
        theirs, ours = BayesianRidge(), BayesianLinearRegression()
        compare(
            f"{name} {X.shape}", partial(theirs.fit, X, y), partial(ours.fit, X, y), n
        )
    X, y = sets["diabetes"]
    theirs, ours = ARDRegression(), BayesianLinearRegression(prior="ard")
    compare("diabetes, ARD", partial(theirs.fit, X, y), partial(ours.fit, X, y), 200)


def concrete():
    table = np.loadtxt(Path(os.environ["SKVI_DATA"], "concrete", "data.txt"))
    return table[:, :-1], table[:, -1]


def torch_loop(X, y, epochs):
    """A deterministic network, trained by Adam."""
    X, y = torch.from_numpy(X), torch.from_numpy(y)[:, None]
    layers = torch.nn.Linear(X.shape[1], 50), torch.nn.ReLU(), torch.nn.Linear(50, 1)
    network = torch.nn.Sequential(*layers).to(X.dtype)
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(epochs):
        for rows in torch.randperm(len(X)).split(100):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(network(X[rows]), y[rows]).backward()
            optimizer.step()


def steps(n_rows=9000, epochs=10):
    for dtype in ("float32", "float64"):
        X, y = (part.astype(dtype) for part in normal(n_rows, 8))
        ours = BayesianMLPRegressor(
            divergence="kl",
            posterior="mean_field",
            hidden_layer_sizes=50,
            activation="relu",
            batch_size=100,
            solver=Stochastic(n_draws=10),
            max_iter=epochs,
            random_state=0,
        )
        fits = partial(torch_loop, X, y, epochs), partial(ours.fit, X, y)
        compare(f"ten epochs, {dtype}", *fits, 5)


def products(n_steps, dtype, n_rows=100, sizes=(9, 50, 50, 2), n_networks=16):
    """Forward and backward products of networks with intercepts, and nothing else."""
    parts = []
    for n_in, n_out in pairwise(sizes):
        weights = torch.randn(n_networks, n_out, n_in + 1, dtype=dtype)
        values = torch.randn(n_networks, n_in + 1, n_rows, dtype=dtype)
        slopes = torch.randn(n_networks, n_out, n_rows, dtype=dtype)
        parts.append((weights, values, slopes))
    with torch.inference_mode():
        for _ in range(n_steps):
            for i, (weights, values, slopes) in enumerate(parts):
                torch.bmm(weights, values)
                torch.bmm(slopes, values.mT)
                if i:
                    torch.bmm(weights.mT, slopes)


def members():
    for n_rows in (100, 1000):
        for dtype in ("float32", "float64"):
            X, y = (part.astype(dtype) for part in normal(n_rows, 9))
            ours = BayesianMLPRegressor(
                posterior="ensemble",
                divergence=KLDivergence(weight=0.3),
                max_iter=1000 * 100 // n_rows if n_rows > 100 else 63,
                random_state=0,
            )
            floor = partial(products, 1000, getattr(torch, dtype))
            compare(f"{n_rows} rows, {dtype}", floor, partial(ours.fit, X, y), 3)


class LeNet(torch.nn.Sequential):
    def __init__(self):
        pool, relu = torch.nn.MaxPool2d(2), torch.nn.ReLU()
        super().__init__(
            *(torch.nn.Conv2d(1, 6, 5, padding=2), relu, pool),
            *(torch.nn.Conv2d(6, 16, 5), relu, pool, torch.nn.Flatten()),
            *(torch.nn.Linear(400, 120), relu, torch.nn.Linear(120, 84), relu),
            torch.nn.Linear(84, 10),
        )


def adam_epochs(X, y, epochs):
    """A deterministic LeNet in single precision."""
    X, y = torch.from_numpy(X.astype("float32")), torch.from_numpy(y)
    network = LeNet()
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(X)).split(100):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(X[rows]), y[rows]).backward()
            optimizer.step()


def modules(n_rows=2000, repeats=3):
    rng = np.random.default_rng(0)
    X, y = rng.random((n_rows, 1, 28, 28)), rng.integers(0, 10, n_rows)

    def epoch(train):
        """Seconds of one more epoch."""
        return (seconds(partial(train, 8)) - seconds(partial(train, 1))) / 7

    for dtype in ("float32", "float64"):
        X = X.astype(dtype)
        for n_draws in (1, 2):
            model = BayesianModuleClassifier(
                LeNet,
                batch_size=100,
                solver=Stochastic(n_draws=n_draws),
                random_state=0,
            )
            theirs = partial(adam_epochs, X, y)
            ours = lambda epochs: model.set_params(max_iter=epochs).fit(X, y)  # noqa: B023
            pairs = np.array([[epoch(theirs), epoch(ours)] for _ in range(repeats)])
            ratios = np.quantile(pairs[:, 1] / pairs[:, 0], [0.1, 0.5, 0.9])
            print(
                f"LeNet, {dtype}, {n_draws} draws: {np.median(pairs, 0).round(3)} s, "
                f"ratio {ratios[1]:.2f} [{ratios[0]:.2f}, {ratios[2]:.2f}]",
                flush=True,
            )


def by_hand(model, X, block=8192):
    """Mean and standard deviation of a network's predictions, noise included."""
    theta, X = torch.from_numpy(model._theta), torch.from_numpy(X)
    blocks = model._model.predictor.layout.unpack(theta)
    first = torch.cat([blocks["coef_0"], blocks["intercept_0"][:, None]], 1)
    last, shift = blocks["coef_1"][..., 0], blocks["intercept_1"][:, 0].tolist()
    hidden = torch.empty(block, last.shape[1], dtype=theta.dtype)
    total, squares = torch.zeros(2, len(X), dtype=theta.dtype)
    with torch.inference_mode():
        X = torch.cat([X, torch.ones(len(X), 1, dtype=theta.dtype)], 1)
        for start in range(0, len(X), block):
            x = X[start : start + block]
            s, q = total[start : start + block], squares[start : start + block]
            for j in range(len(theta)):
                h = torch.mm(x, first[j], out=hidden[: len(x)]).relu_()
                f = torch.mv(h, last[j]).add_(shift[j])
                s.add_(f)
                q.addcmul_(f, f)
    n, units = len(theta), model._model.units
    mean = total / n
    variance = (squares - n * mean**2) / (n - 1) * units.y_scale**2
    std = (variance + model.noise_scale_**2).sqrt()
    return (mean * units.y_scale + units.y_mean).numpy(), std.numpy()


def prediction(n_rows=100_000):
    for dtype in ("float32", "float64"):
        X, y = normal(500, 8)
        model = BayesianMLPRegressor(
            divergence="kl",
            posterior="mean_field",
            hidden_layer_sizes=50,
            activation="relu",
            max_iter=3,
            random_state=0,
        )
        model.fit(X.astype(dtype), y)
        X = np.random.default_rng(1).standard_normal((n_rows, 8)).astype(dtype)
        ours = partial(model.predict, X, return_std=True)
        for found, expected in zip(ours(), by_hand(model, X), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
        compare(dtype, partial(by_hand, model, X), ours, 15)
        one = [seconds(lambda: model.predict(X[:1], True)) for _ in range(100)]  # noqa: B023
        print(f"    one row {np.median(one) * 1e3:.2f} ms")


def series(n, d=1):
    """Levels that change about every 500 rows, in unit noise."""
    rng = np.random.default_rng(0)
    changes = np.cumsum(rng.random(n) < 1 / 500)
    levels = 4 * rng.standard_normal((changes[-1] + 1, d))
    return levels[changes] + rng.standard_normal((n, d))


def per_row(name, X, size=None, **params):
    """Milliseconds per row, the best of three, in one call or in several."""
    found, size = [], size or len(X)
    for _ in range(3):
        detector, start = BayesianChangepointDetector(**params), time.process_time()
        for i in range(0, len(X), size):
            detector.partial_fit(X[i : i + size])
        found.append((time.process_time() - start) / len(X) * 1e3)
    print(f"{name:<32} {min(found):8.3f} ms per row", flush=True)


def detector():
    every = {"max_hypotheses": None, "min_probability": 0.0}
    common = {"models": Regression(noise_scale=1.0), "hazard": 500.0, "scaling": None}
    for n in (300, 1000, 4000, 10_000):
        X = series(n)
        per_row(f"{n} rows", X, history=n, **common)
        per_row(f"{n} rows, all kept", X, history=n, **common, **every)
        try:
            import bayesian_changepoint_detection as public
        except ImportError:
            continue
        student, hazard = public.StudentT(1.5, 1.5, 0.25, 0), public.constant_hazard
        hazard = partial(hazard, 500)
        spent = seconds(
            lambda: public.online_changepoint_detection(X[:, 0], hazard, student)  # noqa: B023
        )
        print(f"    public {spent / n * 1e3:.3f}")
    for loss in ("log", "beta"):
        per_row(f"{loss}, at once", series(600), loss=loss)
        per_row(f"{loss}, row by row", series(600), 1, loss=loss)
    for d in (1, 10, 50):
        X = np.random.default_rng(0).standard_normal((600, d))
        X[250:, 0] += 3.0
        per_row(f"{d} series, one shifts", X)
    order = {"models": Regression(3, across=True), "min_probability": 0.0}
    per_row("vector autoregression", series(1500, 8), **order)
    X, stream = series(100_000), BayesianChangepointDetector(hazard=500.0, burn_in=1000)
    for start in range(0, len(X), 10_000):
        spent = seconds(partial(stream.partial_fit, X[start : start + 10_000]))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"stream, row {start:6d}: {spent / 10:.3f} ms per row, {peak:.0f} MiB")


def search():
    X, y = concrete()
    splits = [*KFold(5, shuffle=True, random_state=0).split(X)]
    for divergence, values in (
        (RenyiDivergence(), {"alpha": np.linspace(0.1, 2.0, 20)}),
        (KLDivergence(), {"weight": np.geomspace(0.05, 2.0, 20)}),
    ):
        network = BayesianMLPRegressor(
            posterior="mean_field",
            activation="relu",
            divergence=divergence,
            random_state=0,
        )
        model = make_pipeline(StandardScaler(), network)
        ((name, grid),) = values.items()
        grid = {f"bayesianmlpregressor__divergence__{name}": list(grid)}
        rows = splits[0][0]
        single = partial(lambda m, r: clone(m).fit(X[r], y[r]), model, rows)
        spent = [seconds(single) for _ in range(6)][1:]
        whole = BatchedGridSearchCV(model, grid, cv=splits, refit=False)
        total = seconds(partial(whole.fit, X, y))
        one = np.median(spent)
        print(f"{name}: a single fit {one:.2f} s, the search {total / one:.0f} of them")


def sparse(n=1000, d=3000, density=0.01, posterior="full_rank"):
    rng = np.random.default_rng(0)
    draws = rng.standard_normal
    X = sp.random(n, d, density, "csr", random_state=rng, data_rvs=draws)
    y = X @ draws(d) + 0.5 * draws(n) > 0
    return BayesianLogisticRegression(posterior=posterior, prior="normal"), X, y


def digits():
    X, y = load_digits(return_X_y=True)
    model = BayesianLogisticRegression(posterior="full_rank", prior="normal")
    return model, scale(X), y


def classes():
    rng = np.random.default_rng(0)
    X, W = rng.standard_normal((1500, 20)), rng.standard_normal((20, 50))
    y = (X @ W + rng.gumbel(size=(1500, 50))).argmax(1)
    return BayesianLogisticRegression(posterior="full_rank", prior="normal"), X, y


def separable():
    X, f = normal(2000, 800, 0.05)
    model = BayesianLogisticRegression(posterior="full_rank", prior="normal")
    return model, X, f > 0


def horseshoe():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 1000))
    y = X[:, :10] @ (2 * rng.standard_normal(10)) + rng.standard_normal(200)
    return BayesianLinearRegression(posterior="full_rank", prior="horseshoe"), X, y


FITS = {
    "sparse": sparse,
    "sparse_large": partial(sparse, 20_000, 50_000, 0.001, "mean_field"),
    **{f.__name__: f for f in (digits, classes, separable, horseshoe)},
}


def one_fit(name):
    model, X, y = FITS[name]()
    spent = seconds(partial(model.fit, X, y))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{name:<20} {X.shape}: {spent:.2f} s, {model.n_iter_} steps, converged "
        f"{model.converged_}, peak {peak:.2f} GiB, ELBO {model.lower_bound_:.4f}",
        flush=True,
    )


def fits(*names):
    if len(names) == 1:
        return one_fit(*names)
    for name in names or FITS:
        subprocess.run([sys.executable, __file__, "fits", name], check=True)


PARTS = (logistic, linear, steps, members, modules, prediction, detector, search, fits)
PARTS = {f.__name__: f for f in PARTS}

if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    names = sys.argv[1:]
    if names[:1] == ["fits"]:
        fits(*names[1:])
    else:
        for part in names or PARTS:
            PARTS[part]()
