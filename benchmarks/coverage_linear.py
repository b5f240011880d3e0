"""Coverage of 90 % intervals: of coefficients of the default regression, and of groups.

    python benchmarks/coverage_linear.py effects|groups [n_fits]

Effects are one to three standard errors of least squares, of random sign. Of
simulations from the prior 90 % are covered; of such effects, which are larger than most
that a shrinking prior expects, fewer.

Groups of rows have an effect each, and there is one group without rows. If the scale of
the effects, and all else, is drawn from the prior of the model, exact posteriors cover
90 %. With a scale of 0.7 and the default prior they need not.
"""

import sys
import warnings
from itertools import product

import numpy as np
from scipy.special import expit

from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.priors import GammaHyperprior, Normal

#: Of 1 / scale ** 2 of the effects of groups, and of the noise.
PRECISION = GammaHyperprior(3.0, 1.0)
MODELS = {
    "numbers": BayesianLinearRegression,
    "classes": BayesianLogisticRegression,
    "counts": BayesianPoissonRegressor,
}


def covered(prior, n, d, n_fits):
    """Shares of effects of about 1, 1.5, ... 3 standard errors, and of all."""
    rng, found = np.random.default_rng(100 * d + n), []
    for _ in range(n_fits):
        X = rng.normal(size=(n, d))
        moved = X - X.mean(0)
        error = np.sqrt(np.diag(np.linalg.inv(moved.T @ moved)))
        ratio = rng.uniform(1, 3, d) * rng.choice([-1, 1], d)
        y = X @ (ratio * error) + rng.normal(size=n)
        table = BayesianLinearRegression(prior=prior).fit(X, y).summary(coverage=0.9)
        low, high = (np.asarray(part)[-d:] for part in (table.lower, table.upper))
        inside = (low <= ratio * error) & (ratio * error <= high)
        found += list(zip(np.round(2 * np.abs(ratio)) / 2, inside, strict=True))
    size, inside = np.array(found).T
    return {s: inside[size == s].mean() for s in np.unique(size)}, inside.mean()


def simulated(target, n_groups, n_rows, is_from_prior, rng):
    """A model, rows, the effects of groups, the last of no row, and their scale."""
    g = np.repeat(np.arange(n_groups), n_rows)
    x, columns = rng.normal(size=len(g)), np.eye(n_groups + 1)[g]
    origin, coef, scale, noise, given = 0.0, 0.5, 0.7, 1.0, {}
    if is_from_prior:
        (origin, coef), (scale, noise) = (
            rng.normal(size=2),
            rng.gamma(3, size=2) ** -0.5,
        )
        given = {"prior": {"coef": Normal(1.0), "g": Normal(PRECISION)}}
        given["intercept_prior"] = Normal(1.0)
        if target == "numbers":
            given |= {"noise_scale": PRECISION, "normalize_y": False}
    effects = scale * rng.normal(size=n_groups + 1)
    # The prior of the intercept is that at the means of the columns.
    f = origin + coef * (x - x.mean()) + (columns - columns.mean(0)) @ effects
    if target == "numbers":
        y = rng.normal(f, noise)
    elif target == "counts":
        y = rng.poisson(np.exp(f))
    else:
        y = rng.random(len(f)) < expit(f)
        y[0] = y[0] if y.any() != y.all() else not y[0]
    model = MODELS[target](column_groups={"g": slice(1, None)}, **given)
    return model, np.column_stack([x, columns]), y, effects, scale


def groups_covered(*given):
    """Shares of the effects inside, and whether that of no row and the scale are."""
    model, X, y, effects, scale = simulated(*given)
    table, scales = model.fit(X, y).summary(), model.summary(groups=True)
    inside = (table.lower[2:] <= effects) & (effects <= table.upper[2:])
    return inside[:-1].mean(), inside[-1], scales.lower[0] <= scale <= scales.upper[0]


def main(what, n_fits=400):
    if what == "groups":
        cells = product((True, False), MODELS, (8, 60), (3, 50))
        for is_from_prior, target, n_groups, n_rows in cells:
            rng = np.random.default_rng([n_groups, n_rows])
            given = target, n_groups, n_rows, is_from_prior, rng
            found = [groups_covered(*given) for _ in range(n_fits)]
            error = np.std(found, 0) / np.sqrt(n_fits)
            pairs = zip(np.mean(found, 0), error, strict=True)
            parts = "  ".join(f"{share:.3f} +- {se:.3f}" for share, se in pairs)
            print("prior" if is_from_prior else "0.7  ", *given[:3], parts, flush=True)
        return
    for n, d in [(15, 1), (15, 2), (15, 5), (40, 1), (40, 2), (40, 5)]:
        for prior in "auto", "hierarchical":
            each, mean = covered(prior, n, d, n_fits)
            parts = " ".join(f"{size:.1f}: {share:.2f}" for size, share in each.items())
            print(f"{n} x {d} {prior:<13} {mean:.3f} | {parts}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], *map(int, sys.argv[2:]))
