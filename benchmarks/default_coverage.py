"""What 90 % intervals of the default classifier and count model cover.

    python benchmarks/default_coverage.py [n_repetitions] [case ...]

Data are drawn from the default prior itself: one half-Cauchy scale, three coefficients
of standardized features; the intercept has deviation 1, in the data and as a prior,
since one of 10 leaves most draws with a single class. Kept are those with at least five
rows of each class, or five counts that are not 0 and none above 10,000. Compared
with the intervals of the estimator are those of the exact posterior, from weighted
draws, for the same data: coefficients, and class probabilities of 20 new rows. One row
for each number of rows and kind, and for each band of the scale that was drawn.

Two cores of x86_64, beside other work, 2026-11-25; width is the median ratio of ours to
the exact posterior's, ms that of the fit; some of the rows. The first 200 draws of two
classes and 150 rows are unlucky ones: Wald intervals cover 87 % of the same draws below
scale 3, and 90 % of the next 474 (by hand).

    kind    rows  scale   sets  coef: ours exact  proba: ours exact  width  ms
    two       40  all      200        89.5  90.7         88.4  89.3   0.98    35
    two       40  < 1       96        89.6  89.9         90.2  90.4   0.99    35
    two       40  1 to 3    61        90.7  90.7         88.9  88.9   0.98    35
    two       40  > 3       43        87.6  92.2         83.7  87.4   0.92    62
    two      150  all      200        85.0  85.5         84.6  84.6   0.99    32
    three     40  all       80        86.7  87.4         87.9  88.5   0.99   106
    three     40  > 3       21        75.7  78.3         83.7  85.1   0.87   239
    three    150  all       80        91.4  91.5         87.3  88.0   1.00   124
    counts   150  all      300        89.2  89.2                     1.00    31
"""

import platform
import sys
import time
import warnings
from datetime import date

import numpy as np
import torch
from scipy.special import softmax

from skvi._estimator._model import TrainingData
from skvi._sampling._importance import StudentT, adapt_proposal, draw_weighted
from skvi.evidence._modes import lift, unit
from skvi.linear_model import BayesianLogisticRegression, BayesianPoissonRegressor

N_FEATURES, N_NEW, N_DRAWS = 3, 20, 20_000
BANDS = {"all": (0, np.inf), "< 1": (0, 1), "1 to 3": (1, 3), "> 3": (3, np.inf)}
COLUMNS = {"two": 1, "three": 3, "counts": 1}
CASES = [(kind, n) for kind in COLUMNS for n in (40, 150)]


def draw(kind, n, rng):
    """Features, targets, new features, coefficients, the functions there, the scale."""
    while True:
        k = COLUMNS[kind]
        X = rng.standard_normal((n + N_NEW, N_FEATURES))
        X = (X - X[:n].mean(0)) / X[:n].std(0)
        scale = abs(rng.standard_cauchy())
        coef = scale * rng.standard_normal((k, N_FEATURES))
        f = X @ coef.T + rng.standard_normal(k)
        if kind == "counts":
            y = rng.poisson(np.exp(np.minimum(f[:n, 0], 30)))
            if (y > 0).sum() < 5 or y.max() > 10_000:
                continue
        else:
            p = probabilities(f[:n])
            y = (p.cumsum(1) < rng.uniform(size=(n, 1))).sum(1)
            if np.bincount(y, minlength=p.shape[1]).min() < 5:
                continue
        return X[:n], y, X[n:], coef, f[n:], scale


def probabilities(f):
    """Class probabilities, (..., n_classes), of functions (..., n_columns)."""
    if f.shape[-1] == 1:
        f = np.concatenate([0 * f, f], -1)
    return softmax(f, -1)


def exact_draws(model, X, y):
    """Draws of the exact posterior in the units of the data, and their weights."""
    fitted = model._model
    data = TrainingData.gather(fitted.response, X, y, None, None)
    target = lift(fitted.target(data).frozen(), model.posterior_)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        proposal, _ = adapt_proposal(target, unit(target), generator)
        if not isinstance(proposal, StudentT):
            proposal = StudentT(unit(target), 5)
        found = draw_weighted(target, proposal, N_DRAWS, generator)
        theta = fitted.in_units(target.theta(found.theta)).numpy()
    return theta, found.weights.numpy(), found.ess / N_DRAWS


def quantiles(values, weights):
    """Weighted 5 % and 95 % quantiles over the first axis."""
    order = np.argsort(values, 0)
    ends = np.cumsum(weights[order], 0)
    ends = [np.argmax(ends >= level * ends[-1], 0) for level in (0.05, 0.95)]
    ordered = np.take_along_axis(values, order, 0)
    return [np.take_along_axis(ordered, end[None], 0)[0] for end in ends]


def repetition(kind, n, seed):
    """Shares covered: ours and exact, of coefficients and of probabilities."""
    X, y, new, coef, f, scale = draw(kind, n, np.random.default_rng(seed))
    Model = BayesianPoissonRegressor if kind == "counts" else BayesianLogisticRegression
    begin = time.process_time()
    model = Model(intercept_prior="normal").fit(X, y)
    seconds = time.process_time() - begin
    table = model.summary(0.9)
    shape = coef.shape[0], -1
    lower, upper = (x.reshape(shape)[:, 1:] for x in (table.lower, table.upper))
    theta, weights, efficiency = exact_draws(model, X, y)
    size = coef.size
    low, high = quantiles(theta[:, :size], weights)
    ours = [np.mean((lower < coef) & (coef < upper))]
    exact = [np.mean((low < coef.ravel()) & (coef.ravel() < high))]
    width = np.median((upper - lower).ravel() / (high - low))
    if kind != "counts":
        p = probabilities(f)
        ends = model.predict_proba_interval(new)
        ours.append(np.mean((ends[:, 0] < p) & (p < ends[:, 1])))
        draws = theta[:, :size].reshape(-1, *coef.shape) @ new.T
        draws = probabilities((draws + theta[:, size:, None]).transpose(0, 2, 1))
        low, high = quantiles(draws.reshape(len(draws), -1), weights)
        exact.append(np.mean((low < p.ravel()) & (p.ravel() < high)))
    return scale, ours, exact, width, efficiency, seconds


def main(n_repetitions, names):
    torch.set_num_threads(1)
    print(f"{date.today()}, {platform.machine()}, {n_repetitions} repetitions, %")
    print("kind    rows  scale   sets  coef: ours exact  proba: ours exact  width  ms")
    for kind, n in CASES:
        if names and kind not in names:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [repetition(kind, n, seed) for seed in range(n_repetitions)]
        for band, (least, most) in BANDS.items():
            some = [r for r in found if least <= r[0] < most]
            ours, exact = (np.mean([r[i] for r in some], 0) * 100 for i in (1, 2))
            width, ms = (np.median([r[i] for r in some]) for i in (3, 5))
            pairs = [f"{a:11.1f} {b:5.1f}" for a, b in zip(ours, exact, strict=True)]
            line = f"{kind:7s} {n:4d}  {band:7s} {len(some):4d} {'  '.join(pairs)}"
            print(f"{line}  {width:5.2f}  {1000 * ms:4.0f}", flush=True)


if __name__ == "__main__":
    numbers = [int(a) for a in sys.argv[1:] if a.isdigit()]
    main(*(numbers or [200]), [a for a in sys.argv[1:] if not a.isdigit()])
