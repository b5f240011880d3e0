"""Series that several tests share."""

import numpy as np


def five_autoregressions(n_series=5, seed=0):
    """Autoregressions that change at rows 200 and 400, with outliers in the first.

    As in the experiments of Knoblauch, Jewson and Damoulas (2018): coefficients -0.5,
    0.75 and -0.7, levels 0.3, -0.25 and 0.3, unit noise, and on the first series what
    exceeds 3 of sqrt(5) times t noise of 4 degrees of freedom.
    """
    rng = np.random.default_rng(seed)
    X = np.zeros((700, n_series))
    for t in range(1, 700):
        segment = np.searchsorted([300, 500], t, side="right")
        coef, level = [(-0.5, 0.3), (0.75, -0.25), (-0.7, 0.3)][segment]
        X[t] = coef * X[t - 1] + level + rng.standard_normal(n_series)
    X = X[100:]
    outliers = np.sqrt(5) * rng.standard_t(4, 600)
    X[:, 0] += np.where(outliers > 3, outliers, 0.0)
    return X


def jump(n=200, d=1, seed=0):
    """Unit noise whose level rises by 4 in the middle."""
    X = np.random.default_rng(seed).standard_normal((n, d))
    X[n // 2 :] += 4.0
    return X


def state(detector):
    """Everything that a detector says of its rows."""
    names = (
        "run_lengths_ run_length_posterior_ model_posterior_ log_evidence_ "
        "change_probability_ predictions_ prediction_stds_ log_densities_ "
        "changepoints_ labels_ dropped_mass_"
    )
    return {name: getattr(detector, name) for name in names.split()}
