"""False reports of the changepoint detector under noise of many kinds, and its power.

    python benchmarks/changepoint_noise.py [first seed] [series of each kind]

Series without a change: the share with at least one report, and reports per series.
Series with one step in the middle of normal, or other, noise: the share with a report
within a twentieth of the rows of the step, and with any other report. Seeds 100000 to
100199, 28 November 2026; in brackets a constant mean alone, the default before; percent
of series with a report, of 300 rows:

    normal 2 (4), AR(.3) 7 (29), AR(.5) 5 (77), AR(.7) 4 (100), AR(.9) 4 (100),
    lognormal(1) 1.5 (100), lognormal(.5) 1.5 (74), exponential 2 (85), t3 2.5 (84),
    Weibull(.7) 2 (100), Weibull(1.5) 3 (32), Laplace 3 (47), sine, 1: 1 (15), sine, 3:
    1.5 (100), AR(.6) of t3 14 (99), AR(.6) exponential 3 (100), negative binomial 5
    (100)

Steps of 1 and 1.5 in 120 rows are found in 82 and 96 (82 and 96), in 300 in 98 and 100
(98 and 100).
"""

import sys
import time
import warnings

import numpy as np

from skvi.changepoint import BayesianChangepointDetector


def autoregression(coef, draw=None):
    """Noise of unit innovations; the first hundred rows are left out."""

    def noise(rng, n):
        e = rng.standard_normal(n + 100) if draw is None else draw(rng, n + 100)
        for t in range(1, n + 100):
            e[t] += coef * e[t - 1]
        return e[100:]

    return noise


def sine(size):
    """A sine of period 24 and of random phase, in unit noise."""

    def noise(rng, n):
        t = np.arange(n) + 24 * rng.random()
        return size * np.sin(2 * np.pi * t / 24) + rng.standard_normal(n)

    return noise


#: Name -> noise of n rows, and its standard deviation
NOISE = {
    "normal": (lambda r, n: r.standard_normal(n), 1.0),
    "AR(.3)": (autoregression(0.3), 0.91**-0.5),
    "AR(.5)": (autoregression(0.5), 0.75**-0.5),
    "AR(.7)": (autoregression(0.7), 0.51**-0.5),
    "AR(.9)": (autoregression(0.9), 0.19**-0.5),
    "lognormal(1)": (lambda r, n: r.lognormal(0, 1, n), 2.161),
    "lognormal(.5)": (lambda r, n: r.lognormal(0, 0.5, n), 0.604),
    "exponential": (lambda r, n: r.exponential(1, n), 1.0),
    "t3": (lambda r, n: r.standard_t(3, n), 3**0.5),
    "Weibull(.7)": (lambda r, n: r.weibull(0.7, n), 1.851),
    "Weibull(1.5)": (lambda r, n: r.weibull(1.5, n), 0.613),
    # Not asked for: other shapes, and both at once.
    "uniform": (lambda r, n: r.random(n), 12**-0.5),
    "Laplace": (lambda r, n: r.laplace(0, 1, n), 2**0.5),
    "-gamma(2)": (lambda r, n: -r.gamma(2, 1, n), 2**0.5),
    "two humps": (
        lambda r, n: np.where(r.random(n) < 0.3, 3, 0) + r.normal(size=n),
        1.7,
    ),
    "AR(.6) of t3": (autoregression(0.6, lambda r, n: r.standard_t(3, n)), 2.17),
    "AR(.6) exponential": (autoregression(0.6, lambda r, n: r.exponential(1, n)), 1.25),
    "sine, 1": (sine(1.0), 1.0),
    "sine, 3": (sine(3.0), 1.0),
    "negative binomial": (lambda r, n: r.negative_binomial(2, 0.25, n) * 1.0, 4.9),
    "Poisson(4)": (lambda r, n: r.poisson(4, n) * 1.0, 2.0),
}
STEPS = [
    ("normal", 300, 1.0),
    ("normal", 300, 1.5),
    ("normal", 120, 1.0),
    ("normal", 120, 1.5),
    ("normal", 60, 1.5),
    ("AR(.5)", 300, 2.0),
    ("exponential", 300, 1.5),
    ("t3", 300, 1.5),
    ("t3", 300, 6.0),
    ("lognormal(1)", 300, 1.5),
]


def fit(x, **params):
    """Reports of a series, and seconds of processor time."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = BayesianChangepointDetector(**params).fit(x[:, None]).changepoints_
    return found, time.process_time() - began


def false_reports(name, n, seeds):
    """Share of series with a report, reports and seconds per series."""
    params = (
        {"models": "poisson"} if name in ("negative binomial", "Poisson(4)") else {}
    )
    runs = [
        fit(NOISE[name][0](np.random.default_rng([seed, n]), n), **params)
        for seed in seeds
    ]
    counts = np.array([len(found) for found, _ in runs])
    return (counts > 0).mean(), counts.mean(), np.mean([s for _, s in runs])


def power(name, n, size, seeds):
    """Share of series with a report of the step, with another one, and seconds."""
    noise, scale = NOISE[name]
    hits, others, seconds = [], [], []
    for seed in seeds:
        x = noise(np.random.default_rng([seed, n, 1]), n)
        x[n // 2 :] += size * scale
        found, used = fit(x)
        near = np.abs(found - n // 2) <= n // 20
        hits.append(near.any())
        others.append(len(found) > near.any())
        seconds.append(used)
    return np.mean(hits), np.mean(others), np.mean(seconds)


def main(first=0, n_series=200):
    """Print both tables."""
    seeds = range(int(first), int(first) + int(n_series))
    print("noise                rows  with a report  reports  milliseconds")
    for name in NOISE:
        for n in (300, 120):
            share, mean, seconds = false_reports(name, n, seeds)
            print(
                f"{name:20s} {n:4d}  {share:13.1%}  {mean:7.2f}  {1e3 * seconds:12.0f}",
                flush=True,
            )
    print("step in              rows  size  found  other reports  milliseconds")
    for name, n, size in STEPS:
        hit, other, seconds = power(name, n, size, seeds)
        print(
            f"{name:20s} {n:4d}  {size:4.1f}  {hit:5.1%}  {other:13.1%}  "
            f"{1e3 * seconds:12.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
