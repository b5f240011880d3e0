"""Networks with all their defaults: do they fit without tuning?

    SKVI_DATA=folder python benchmarks/network_defaults.py           # all tables
    SKVI_DATA=folder python benchmarks/network_defaults.py sine peers --repeats 3

sine     `y = sin(2 x)` with noise of 0.1, x uniform on [-3, 3]: root mean square error
         to the truth on a grid, and the learned noise; with the default activation,
         relu and tanh
units    few and many units on UCI sets: ELBO of a row, RMSE and negative log density of
         a fifth of the training rows of the standard splits; the test rows stay unread
activations  the same of 20 units with other activations
large    the same of sets with thousands of rows, by activation, units and draws
far      standard deviation of f far outside of 5,000 rows of the sine, at x = 9
priors   the same of 20 units with one learned scale for the first layer; the default
         has one for each feature
peers    held-out log likelihood of a row beside scikit-learn's networks with all their
         defaults (the noise of MLPRegressor is that of five folds), differences in
         paired standard errors over random splits, and seconds of a fit; features are
         standardized
uci      the same of the UCI sets, a fifth of the training rows of the standard splits

`converged` counts fits that ended so, of all.

2026-11-23, x86_64, 2 busy cores, torch 2.13.0, `--repeats 3`. Seconds are of the clock
beside other processes, which left two rows of the sine and digits hardly any time: they
compare only roughly.

    sine: RMSE to the truth (least to greatest), noise (0.1), seconds, converged
    softplus   100  0.040 (0.029 to 0.046)  0.103 (0.103 to 0.106)    6.8  3/3
    softplus   500  0.022 (0.018 to 0.025)  0.103 (0.096 to 0.108)   15.9  3/3
    softplus  1000  0.018 (0.017 to 0.018)  0.104 (0.099 to 0.106)    6.1  3/3
    relu       100  0.076 (0.063 to 0.083)  0.114 (0.114 to 0.119)   15.5  3/3
    relu       500  0.055 (0.053 to 0.057)  0.113 (0.106 to 0.116)   12.7  3/3
    relu      1000  0.043 (0.042 to 0.045)  0.110 (0.104 to 0.112)  346.6  3/3
    tanh       100  0.052 (0.046 to 0.103)  0.112 (0.108 to 0.129)  294.4  2/3
    tanh       500  0.022 (0.020 to 0.026)  0.104 (0.097 to 0.107)    8.0  2/3
    tanh      1000  0.016 (0.014 to 0.021)  0.104 (0.099 to 0.105)    6.4  3/3

    units: ELBO of a row, RMSE, negative log density, seconds, converged
    energy     10  -1.252 +- 0.064  0.518 +- 0.055  0.762 +- 0.100   23.5  3/3
    energy     20  -1.309 +- 0.025  0.481 +- 0.023  0.705 +- 0.046   26.9  3/3
    energy     50  -1.426 +- 0.042  0.512 +- 0.057  0.751 +- 0.103   75.5  2/3
    yacht      10  -1.285 +- 0.049  0.704 +- 0.067  1.028 +- 0.193   25.8  3/3
    yacht      20  -1.367 +- 0.041  0.764 +- 0.052  1.228 +- 0.118   36.5  1/3
    yacht      50  -1.653 +- 0.027  0.826 +- 0.089  1.235 +- 0.202   49.7  0/3
    concrete   10  -3.388 +- 0.003  5.551 +- 0.270  3.138 +- 0.050   14.1  3/3
    concrete   20  -3.425 +- 0.013  5.626 +- 0.283  3.148 +- 0.050   17.9  3/3
    concrete   50  -3.508 +- 0.007  5.693 +- 0.225  3.164 +- 0.039   18.3  3/3
    Boston     10  -2.820 +- 0.026  3.610 +- 0.137  2.637 +- 0.027    8.9  2/3
    Boston     20  -2.875 +- 0.032  3.250 +- 0.288  2.548 +- 0.060   14.3  2/3
    Boston     50  -3.010 +- 0.010  3.431 +- 0.086  2.602 +- 0.012   11.4  3/3

    activations: the same of 20 units
    energy    softplus   -1.309 +- 0.025   0.481 +- 0.023    0.705 +- 0.046   11.8  3/3
    energy    relu       -1.194 +- 0.023   0.470 +- 0.034    0.674 +- 0.065   13.2  0/3
    energy    tanh       -1.196 +- 0.020   0.470 +- 0.020    0.672 +- 0.029   18.6  3/3
    yacht     softplus   -1.367 +- 0.041   0.764 +- 0.052    1.228 +- 0.118   22.9  1/3
    yacht     relu       -1.715 +- 0.010   0.968 +- 0.044    1.345 +- 0.059   12.7  1/3
    yacht     tanh       -1.766 +- 0.064   0.791 +- 0.046    1.177 +- 0.108   20.7  0/3
    concrete  softplus   -3.425 +- 0.013   5.626 +- 0.283    3.148 +- 0.050   17.3  3/3
    concrete  relu       -3.437 +- 0.014   5.542 +- 0.190    3.136 +- 0.041    3.6  3/3
    concrete  tanh       -3.421 +- 0.008   4.995 +- 0.149    3.032 +- 0.032    5.1  3/3
    Boston    softplus   -2.875 +- 0.032   3.250 +- 0.288    2.548 +- 0.060   17.5  2/3
    Boston    relu       -2.859 +- 0.010   3.547 +- 0.268    2.686 +- 0.098   20.3  3/3
    Boston    tanh       -2.959 +- 0.010   3.260 +- 0.117    2.596 +- 0.064   18.2  2/3
    kin8nm    softplus    0.973 +- 0.014   0.083 +- 0.001   -1.077 +- 0.011   51.3  3/3
    kin8nm    relu        0.957 +- 0.005   0.085 +- 0.002   -1.044 +- 0.026   13.7  3/3
    kin8nm    tanh        1.041 +- 0.011   0.077 +- 0.001   -1.147 +- 0.017   52.5  3/3
    wine      softplus   -1.008 +- 0.006   0.644 +- 0.014    0.976 +- 0.022   11.6  3/3
    wine      relu       -1.005 +- 0.002   0.646 +- 0.014    0.979 +- 0.022    7.4  3/3
    wine      tanh       -1.025 +- 0.003   0.643 +- 0.007    0.975 +- 0.011    8.9  3/3

    priors: the same with one scale for the first layer; above there is one for each
    feature
    energy    -1.397 +- 0.041    0.488 +- 0.010    0.711 +- 0.025   45.8  2/3
    yacht     -1.430 +- 0.074    0.782 +- 0.059    1.348 +- 0.312   24.0  1/3
    concrete  -3.431 +- 0.006    5.553 +- 0.310    3.134 +- 0.056    6.4  3/3
    Boston    -2.948 +- 0.006    3.339 +- 0.152    2.581 +- 0.048    9.0  3/3

    peers: log likelihood of ours and theirs, difference, seconds of both, converged
    friedman1     -1.508   -2.572    1.064 +- 0.059    8.1   0.3  3/3
    diabetes      -5.446   -6.105    0.660 +- 0.011    4.8   0.3  3/3
    digits        -0.170   -0.116   -0.054 +- 0.010   75.0   1.0  2/3
    make_moons    -0.165   -0.283    0.118 +- 0.011    3.8   0.3  3/3

2026-11-24, the same machine; processor seconds of one thread, beside another process:

    uci: the same columns
    yacht                        -1.228   -3.711    2.483 +- 0.116   11.4   0.3  1/3
    bostonHousing                -2.548   -3.079    0.531 +- 0.050   16.8   0.3  2/3
    energy                       -0.705   -2.914    2.209 +- 0.043   10.6   0.5  3/3
    concrete                     -3.148   -3.942    0.794 +- 0.054    9.5   0.6  3/3
    wine-quality-red             -0.976   -1.096    0.120 +- 0.002    5.5   0.7  3/3
    kin8nm                        1.169    0.893    0.276 +- 0.012   10.6   1.2  3/3
    power-plant                  -2.798   -3.238    0.440 +- 0.083    6.1   3.3  3/3
    protein-tertiary-structure   -2.896   -2.909    0.013 +- 0.003   18.3  18.3  3/3
    naval-propulsion-plant        5.998    2.764    3.233 +- 0.299   63.4   0.5  0/3

What they say (bounds in nats that no table has are of two or three fits, by hand):

- A wave needs smooth units. softplus, the default of regression with up to 2,000 rows,
  has about half of the error of relu, and unlike tanh it becomes less certain far
  outside the data. Its negative log density is that of relu on real data, within errors
  (energy +.03, Boston -.14, yacht -.12; friedman1 -.10 beside an earlier run of relu);
  its bounds are higher on yacht, and lower on energy. It takes one to four times the
  time: an iteration costs more, and early ones gain less. Sharper or shifted softplus,
  and squareplus, were no better. tanh predicts better than both on kin8nm and concrete.
  For classes softplus performs as relu does, which remains the default there.
- 50 units have lower bounds than 20, and predict equally well within errors. (On energy
  they did not, with .877 +- .067, when the divergence had its full weight after ten
  observations and not 30.) One scale for each unit would spare idle units, but on a
  sine with 100 rows it switches all units off for good.
- A scale for each feature raises bounds, on concrete hardly; on three of four sets it
  predicts better in the mean, beyond the errors of three repeats on none.
  On digits bounds are higher, too (-562 nats; -720 with one for the layer, two seeds),
  and predictions no better: the only set on which scikit-learn's network has the higher
  likelihood.
- With more than 2,000 rows the defaults are 50 units, relu and 4 draws. RMSE, negative
  log density and processor seconds of one split (`large --repeats 1`; 5,898, 6,888,
  32,925 and 8,592 rows; 2026-11-24):

                              kin8nm          power          protein        naval
      softplus, 20, 10 draws  .082 -1.085 22  3.97 2.801 16  4.60 2.945 36  -6.75 165
      softplus, 50, 10 draws  .075 -1.175 95  4.01 2.811 44  4.57 2.940 85
      softplus, 50, 2 draws                                  4.57 2.939 37
      relu, 20, 4 draws       .083 -1.074  8  3.89 2.779  5
      relu, 50, 4 draws       .075 -1.183 11  3.91 2.784  8  4.36 2.891 18  -6.38  72
      tanh, 20, 4 draws       .077 -1.142 17  3.87 2.773  8
      tanh, 50, 4 draws       .069 -1.253 27  3.92 2.785 14  4.35 2.890 25  -6.57 100
      tanh, 50, 10 draws                                     4.33 2.884 54
      tanh, 50, 2 draws       .069 -1.262 24                 4.32 2.882 14  -6.09  70
      tanh, 100, 2 draws      .069 -1.258 34                 4.35 2.889 51

  Units gain on kin8nm, and a hundred no more than 50. softplus is slow to leave the
  nearly linear function with which it starts on protein: 400 epochs with `tol=0` end
  where 250 do. Ten draws are no better than two where minibatches are noisier, but are
  on naval, which has hardly any noise and ends at `max_iter`; steps of 0.02 reach -7.08
  there in 56 s, and do on the others what 0.05 does. tanh predicts best, but is certain
  far outside the data (table `far`: about .05 where relu has 1). On small data four
  draws were better on energy and worse on concrete and yacht. (`tol=0`, steps of 0.02
  and small data: single fits, by hand.)
- Seconds are more than three times scikit-learn's below a few thousand rows: the 200
  epochs of MLPRegressor on small data are 400 steps that end far from converged. On
  power and protein they are twice and once.
"""

import argparse
import math
import os
import platform
import statistics
import time
import warnings
from datetime import date
from itertools import product

import numpy as np
import torch
from peers import GaussianPeer
from sklearn.datasets import (
    load_diabetes,
    load_digits,
    make_friedman1,
    make_moons,
)
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.preprocessing import StandardScaler
from uci_networks import load

from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.priors import Normal
from skvi.solvers import Stochastic

SETS = ("energy", "yacht", "concrete", "bostonHousing")
LARGE = ("kin8nm", "wine-quality-red")
UCI = ("yacht", "bostonHousing", "energy", "concrete", "wine-quality-red", "kin8nm")
UCI += ("power-plant", "protein-tertiary-structure", "naval-propulsion-plant")
THOUSANDS = UCI[-4:]
CHOICES = [("softplus", 20, 10), ("softplus", 50, 10), ("softplus", 50, 2)]
CHOICES += [("relu", 20, 4), ("relu", 50, 4), ("tanh", 20, 4), ("tanh", 50, 4)]
CHOICES += [("tanh", 50, 10), ("tanh", 50, 2), ("tanh", 100, 2)]
FRIEDMAN = make_friedman1(n_samples=500, noise=1.0, random_state=0)
PEERS = {
    "friedman1": FRIEDMAN,
    "diabetes": load_diabetes(return_X_y=True),
    "digits": load_digits(return_X_y=True),
    "make_moons": make_moons(n_samples=500, noise=0.25, random_state=0),
}


def fit(model, X, y):
    """Seconds of a fit without its warnings."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    return time.process_time() - start


def sine(repeats):
    """Error to the truth and learned noise, every repeat with other rows."""
    grid = np.linspace(-3, 3, 301)[:, None]
    print(
        "\nsine: activation, rows, RMSE to the truth, learned noise (0.1), seconds, "
        "converged"
    )
    for activation, n_rows in product(("softplus", "relu", "tanh"), (100, 500, 1000)):
        found = []
        for seed in range(repeats):
            source = np.random.default_rng(seed)
            X = source.uniform(-3, 3, (n_rows, 1))
            y = np.sin(2 * X[:, 0]) + 0.1 * source.standard_normal(n_rows)
            model = BayesianMLPRegressor(
                divergence="kl",
                posterior="mean_field",
                activation=activation,
                random_state=seed,
            )
            seconds = fit(model, X, y)
            error = model.predict(grid) - np.sin(2 * grid[:, 0])
            rmse = math.sqrt(np.mean(error**2))
            found.append((rmse, model.noise_scale_, seconds, model.converged_))
        rmse, noise, seconds, converged = zip(*found, strict=True)
        print(
            f"    {activation} {n_rows:5}  {texts(rmse)}  {texts(noise)}  "
            f"{statistics.median(seconds):5.1f}  {sum(converged)}/{repeats}",
            flush=True,
        )


def units(repeats):
    """Hidden layers of few and of many units on rows that are held out of training."""
    print("\nunits: set, units, ELBO, RMSE, negative log density, seconds, converged")
    for name, size in product(SETS, (10, 20, 50)):
        validate(name, f"{size:7}", repeats, hidden_layer_sizes=size)


def activations(repeats):
    """The default activation and others."""
    print("\nactivations: set, ELBO, RMSE, negative log density, seconds, converged")
    for name, activation in product((*SETS, *LARGE), ("softplus", "relu", "tanh")):
        few = {"hidden_layer_sizes": 20, "solver": Stochastic(n_draws=10)}
        validate(name, f"{activation:8}", repeats, activation=activation, **few)


def large(repeats):
    """Choices for thousands of rows."""
    print("\nlarge: set, choice, ELBO, RMSE, negative log density, seconds, converged")
    for name, choice in product(THOUSANDS, CHOICES):
        activation, size, n_draws = choice
        shown = f"{activation:8} {size:3} {n_draws:2}"
        parameters = {"activation": activation, "solver": Stochastic(n_draws=n_draws)}
        validate(name, shown, repeats, hidden_layer_sizes=size, **parameters)


def far(repeats):
    """How uncertain networks are where there are no data."""
    print("\nfar: activation, standard deviation of f at x = 9")
    for activation, seed in product(("softplus", "relu", "tanh"), range(repeats)):
        source = np.random.default_rng(seed)
        X = source.uniform(-3, 3, (5000, 1))
        y = np.sin(2 * X[:, 0]) + 0.1 * source.standard_normal(len(X))
        model = BayesianMLPRegressor(
            divergence="kl",
            posterior="mean_field",
            activation=activation,
            random_state=seed,
        )
        fit(model, X, y)
        std = model.predict([[9.0]], return_std=True)[1]
        excess = math.sqrt(max(0.0, float(std[0]) ** 2 - model.noise_scale_**2))
        print(f"    {activation:8} {excess:.3f}", flush=True)


def priors(repeats):
    """One learned scale for the first layer, in place of one for each feature."""
    print("\npriors: set, scales, ELBO, RMSE, negative log density, seconds, converged")
    learn = dict.fromkeys(("coef_0", "intercept_0", "coef_1"), Normal("learn"))
    for name in SETS:
        validate(name, "layer", repeats, prior=learn | {"intercept_1": Normal()})


def validate(name, label, repeats, **parameters):
    """Fit on training rows of the standard splits, and print the scores of others."""
    X, y, splits = load(os.environ["SKVI_DATA"], name)
    found = []
    for seed in range(repeats):
        model = BayesianMLPRegressor(
            divergence="kl", posterior="mean_field", random_state=seed, **parameters
        )
        train, test = train_test_split(
            splits[seed][0], test_size=0.2, random_state=seed
        )
        scaler = StandardScaler().fit(X[train])
        seconds = fit(model, scaler.transform(X[train]), y[train])
        Z = scaler.transform(X[test])
        rmse = math.sqrt(np.mean((model.predict(Z) - y[test]) ** 2))
        nll = -np.mean(model.predict_log_density(Z, y[test]))
        bound = model.lower_bound_ / len(train)
        found.append((bound, rmse, nll, seconds, model.converged_))
    *scores, seconds, converged = zip(*found, strict=True)
    print(
        f"    {name:14} {label:7}  {'  '.join(map(mean_and_error, scores))}  "
        f"{statistics.median(seconds):5.1f}  {sum(converged)}/{repeats}",
        flush=True,
    )


def log_likelihood(model, X, y):
    """Mean over rows, in nats."""
    if hasattr(model, "predict_log_density"):
        return float(np.mean(model.predict_log_density(X, y)))
    chosen = model.predict_proba(X)[np.arange(len(y)), y]
    return float(np.log(np.maximum(chosen, 1e-15)).mean())


COLUMNS = (
    "set, log likelihood of ours and of scikit-learn's, difference with its error, "
    "seconds of both, converged"
)


def peers(repeats):
    """All defaults beside those of scikit-learn, on random splits."""
    print(f"\npeers: {COLUMNS}")
    for name, (X, y) in PEERS.items():
        rows = np.arange(len(y))
        splits = (
            train_test_split(rows, test_size=0.25, random_state=seed)
            for seed in range(repeats)
        )
        compare(name, X, y, splits)


def uci(repeats):
    """The same on training rows of the standard splits."""
    print(f"\nuci: {COLUMNS}")
    for name in UCI:
        X, y, splits = load(os.environ["SKVI_DATA"], name)
        parts = (
            train_test_split(splits[seed][0], test_size=0.2, random_state=seed)
            for seed in range(repeats)
        )
        compare(name, X, y, parts)


def compare(name, X, y, splits):
    """Fit both networks to the training rows of splits, and print their scores."""
    found = []
    for seed, (train, test) in enumerate(splits):
        scaler = StandardScaler().fit(X[train])
        Z, Z_test = scaler.transform(X[train]), scaler.transform(X[test])
        if y.dtype.kind == "f":
            own = BayesianMLPRegressor(
                divergence="kl", posterior="mean_field", random_state=seed
            )
            plain = MLPRegressor(random_state=seed)
            peer = GaussianPeer(plain)
        else:
            own = BayesianMLPClassifier(
                divergence="kl", posterior="mean_field", random_state=seed
            )
            peer = plain = MLPClassifier(random_state=seed)
        times = fit(own, Z, y[train]), fit(plain, Z, y[train])
        if peer is not plain:
            fit(peer, Z, y[train])
        scores = [log_likelihood(model, Z_test, y[test]) for model in (own, peer)]
        found.append((*scores, scores[0] - scores[1], *times, own.converged_))
    ours, theirs, gain, *seconds, converged = zip(*found, strict=True)
    print(
        f"    {name:26} {statistics.fmean(ours):8.3f} "
        f"{statistics.fmean(theirs):8.3f}  {mean_and_error(gain)}  "
        f"{statistics.median(seconds[0]):5.1f} {statistics.median(seconds[1]):5.1f}"
        f"  {sum(converged)}/{len(found)}",
        flush=True,
    )


def texts(values):
    """Median with the range."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def mean_and_error(values):
    """As text."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if values[1:] else 0.0
    return f"{statistics.fmean(values):7.3f} +- {error:5.3f}"


TABLES = {
    "sine": sine,
    "units": units,
    "activations": activations,
    "large": large,
    "far": far,
    "priors": priors,
    "peers": peers,
    "uci": uci,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="table", help=", ".join(TABLES))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(date.today(), platform.machine(), os.cpu_count(), "cores")
    for table in options.tables or TABLES:
        TABLES[table](options.repeats)


if __name__ == "__main__":
    main()
