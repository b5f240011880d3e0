"""Regressions of grouped rows, as people fit them by lme4, beside chains of NUTS.

    pip install numpyro jax
    SKVI_DATA=... JAX_PLATFORMS=cpu python benchmarks/grouped_nuts.py [DATA ...]
    python benchmarks/grouped_nuts.py table  # of doc/measurements.rst

Both have the default priors of skvi, in the units of its fit. Errors are the largest of
all coefficients or scales: of means in posterior deviations, of deviations and medians
relative to them, and of the ends of 90 % intervals relative to the width. Of a mean of
the chains the error is about 1 / sqrt(ESS) deviations, and three times that for the
largest of hundreds. Seconds are those of the processor: of a second fit, and of the
second half of the chains, which NumPyro compiles once more: for some 15 seconds.
"""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from rivals import folder, timed
from runs import sweep, write_table

from skvi.linear_model import (
    BayesianBinomialRegressor,
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianOrdinalClassifier,
    BayesianPoissonRegressor,
    GroupedFeatures,
)

RESULTS = Path(__file__).parent / "results" / "grouped_nuts.csv"
TABLE = Path(__file__).parents[1] / "doc" / "measurements" / "grouped_nuts.csv"
# Warmup and draws of each of four chains, twice; those of sets that need more.
LENGTH = (500, 1000)
LONGER = {"Hsb82": (500, 1500), "grouse ticks": (1000, 2500)}
LEVELS = 0.05, 0.5, 0.95


def dummies(rows, *columns):
    return pd.get_dummies(rows[list(columns)].astype(str), drop_first=True, dtype=float)


def contraception(rows):
    squares = rows["age"] ** 2
    fixed = [rows["age"], squares, dummies(rows, "livch", "urban")]
    return fixed, (rows["use"] == "Y") * 1.0


def epilepsy(rows):
    treated = (rows["trt"] == "progabide") * 1.0
    return [rows[["lbase", "lage", "V4"]], treated, treated * rows["lbase"]], rows["y"]


def schools(rows):
    catholic, cses = (rows["sector"] == "Catholic") * 1.0, rows["cses"]
    products = cses * catholic, cses * rows["meanses"]
    return [cses, rows["meanses"], catholic, *products], rows["mAch"]


#: Data set: file, fixed columns and target, factors (with a slope), and estimator.
SETS = {
    "cbpp": (
        "cbpp",
        lambda rows: ([dummies(rows, "period")], rows["incidence"]),
        [["herd"]],
        BayesianBinomialRegressor,
    ),
    "wine": (
        "wine_tasting",
        lambda rows: ([dummies(rows, "temp", "contact")], rows["rating"]),
        [["judge"]],
        BayesianOrdinalClassifier,
    ),
    "sleepstudy": (
        "sleepstudy",
        lambda rows: ([rows["Days"]], rows["Reaction"]),
        [["Subject", "Days"]],
        BayesianLinearRegression,
    ),
    "epilepsy": ("epil", epilepsy, [["subject"]], BayesianPoissonRegressor),
    "contraception": (
        "Contraception",
        contraception,
        [["district"]],
        BayesianLogisticRegression,
    ),
    "radon": (
        "radon",
        lambda rows: ([rows[["basement", "uranium"]]], rows["log.radon"]),
        [["county"]],
        BayesianLinearRegression,
    ),
    "grouse ticks": (
        "grouseticks",
        lambda rows: ([dummies(rows, "YEAR"), rows["cHEIGHT"]], rows["TICKS"]),
        [["BROOD"], ["INDEX"], ["LOCATION"]],
        BayesianPoissonRegressor,
    ),
    "Hsb82": ("Hsb82", schools, [["school", "cses"]], BayesianLinearRegression),
}


class Grouped:
    """A data set, its columns, and the groups of them."""

    def __init__(self, name):
        file, parts, factors, self.estimator = SETS[name]
        self.rows = pd.read_csv(folder() / "grouped" / f"{file}.csv", index_col=0)
        fixed, self.y = parts(self.rows)
        self.fixed, self.y = np.column_stack(fixed), np.asarray(self.y, float)
        blocks, self.column_groups = [self.fixed], {}
        #: By group: labels and factors of the rows, and its columns.
        self.effects = {}
        start = self.fixed.shape[1]
        for factor, *slopes in factors:
            labels = GroupedFeatures("zero", sparse_output=False)
            blocks.append(labels.fit_transform(self.rows[[factor, *slopes]]))
            code = np.searchsorted(labels.labels_, self.rows[factor])
            own = {}
            for name in (factor, *slopes):
                x = self.rows[name] - self.rows[name].mean() if name in slopes else 1.0
                own[name] = slice(start, start + len(labels.labels_))
                self.effects[name] = code, np.asarray(x), own[name]
                start = own[name].stop
            self.column_groups |= {f"{factor}, {slopes[0]}": own} if slopes else own
        self.X = np.column_stack(blocks)

    @property
    def is_normal(self):
        return self.estimator is BayesianLinearRegression

    def fit(self):
        model = self.estimator(column_groups=self.column_groups)
        more = {"n_trials": self.rows["size"]} if "size" in self.rows else {}
        return model.fit(self.X, self.y, **more)

    def joint(self, model):
        """The model of NumPyro, with sites in the units of X and y."""
        import jax.numpy as jnp
        import numpyro
        from numpyro import distributions as dist

        units, d = model._model.units, self.fixed.shape[1]
        unit = np.broadcast_to(units.x_scale, self.X.shape[1])
        middle = units.x_mean / unit
        half, normal = dist.HalfCauchy(1.0), dist.Normal(0.0, 1.0)

        def drawn_effects():
            scale, z = {}, {}
            for name, (_, _, at) in self.effects.items():
                scale[name] = numpyro.sample(f"scale {name}", half)
                size = [at.stop - at.start]
                z[name] = numpyro.sample(f"z {name}", normal.expand(size))
            for pair in self.column_groups.values():
                if isinstance(pair, dict):
                    first, second = pair
                    r = numpyro.sample("r", dist.Uniform(-1.0, 1.0))
                    z[second] = r * z[first] + jnp.sqrt(1 - r**2) * z[second]
            return scale, {name: scale[name] * z[name] for name in z}

        def joint():
            own = numpyro.sample("scale", half)
            coef = numpyro.sample("coef", dist.Normal(0.0, own).expand([d]))
            prior = dist.Normal(0.0, 1.0 if self.is_normal else 10.0)
            scale, effects = drawn_effects()
            every = jnp.concatenate([coef, *effects.values()])
            at_zero = numpyro.sample("origin", prior) - every @ middle
            f = at_zero + self.fixed @ (coef / unit[:d])
            for name, (code, x, at) in self.effects.items():
                f = f + x * effects[name][code] / unit[at.start]
            scales = [
                s / unit[self.effects[name][2].start] for name, s in scale.items()
            ]
            if self.is_normal:
                scales.append(numpyro.sample("noise", half))
            cutpoints = self._observed(model, f, at_zero, scales[-1])
            numpyro.deterministic("coefs", units.y_scale * every / unit)
            numpyro.deterministic("intercepts", cutpoints)
            numpyro.deterministic("scales", units.y_scale * jnp.stack(scales))

        return joint

    def _observed(self, model, f, at_zero, noise):
        """Condition on y; the intercept in the units of y, or cutpoints."""
        import jax.numpy as jnp
        import numpyro
        from numpyro import distributions as dist

        units, y = model._model.units, self.y
        intercepts = units.y_mean + units.y_scale * at_zero[None]
        if self.is_normal:
            y, likelihood = (y - units.y_mean) / units.y_scale, dist.Normal(f, noise)
        elif self.estimator is BayesianOrdinalClassifier:
            prior = dist.Normal(0.0, 1.5).expand([len(model.classes_) - 2])
            steps = jnp.exp(numpyro.sample("distances", prior))
            places = jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])
            y, likelihood = y.astype(int) - 1, dist.OrderedLogistic(f, places)
            intercepts = places - at_zero
        elif self.estimator is BayesianPoissonRegressor:
            likelihood = dist.Poisson(jnp.exp(f))
        else:
            trials = self.rows["size"].to_numpy() if "size" in self.rows else 1
            likelihood = dist.Binomial(trials, logits=f)
        numpyro.sample("y", likelihood, obs=y)
        return intercepts


def chains(joint, n_warmup, n_draws):
    """Draws of eight chains, and a row of their diagnostics and seconds of four."""
    import jax
    from numpyro.diagnostics import summary
    from numpyro.infer import MCMC, NUTS

    length = {"num_warmup": n_warmup, "num_samples": n_draws, "num_chains": 4}
    run = MCMC(NUTS(joint), **length, chain_method="sequential", progress_bar=False)
    both = []
    for seed in (0, 1):
        _, seconds = timed(partial(run.run, jax.random.PRNGKey(seed)))
        both.append(run.get_samples(group_by_chain=True))
    names = "coefs", "intercepts", "scales"
    draws = {name: np.concatenate([part[name] for part in both]) for name in names}
    found = summary(draws).values()
    row = {
        "R-hat": f"{max(part['r_hat'].max() for part in found):.3f}",
        "ESS": f"{min(part['n_eff'].min() for part in found):.0f}",
        "seconds, NUTS": f"{seconds:.3g}",
    }
    return {name: x.reshape(-1, x.shape[-1]) for name, x in draws.items()}, row


def errors(data, model, draws):
    """The largest differences between a fit and draws."""
    table, scales = model.summary(), model.summary(groups=True)
    halves = model.summary(groups=True, coverage=1e-6).lower
    theta, size = (
        np.column_stack([draws["coefs"], draws["intercepts"]]),
        data.X.shape[1],
    )
    order = np.arange(theta.shape[1])
    if data.estimator is not BayesianOrdinalClassifier:  # its cutpoints are last
        order = np.r_[1 : size + 1, 0]
    std = theta.std(0)
    means = np.abs(table.mean[order] - theta.mean(0)) / std
    low, median, high = np.quantile(draws["scales"], LEVELS, axis=0)
    k = len(low)  # correlations follow
    ends = [scales.lower[:k] - low, scales.upper[:k] - high]
    return {
        "rows": len(data.y),
        "coefficients": theta.shape[1],
        "means": f"{means.max():.3f}",
        "deviations": f"{np.abs(np.log(table.std[order] / std)).max():.1%}",
        "medians of scales": f"{np.abs(np.log(halves[:k] / median)).max():.1%}",
        "ends of scales": f"{np.max(np.abs(ends) / (high - low)):.1%}",
    }


def one_run(name):
    """One row of the table."""
    data = Grouped(name)
    data.fit()
    model, seconds = timed(data.fit)
    draws, row = chains(data.joint(model), *LONGER.get(name, LENGTH))
    found = {"data": name} | errors(data, model, draws)
    return found | {"seconds, skvi": f"{seconds:.3g}"} | row


def main():
    if sys.argv[1:] == ["table"]:
        return write_table(RESULTS, TABLE)
    runs = [(name,) for name in sys.argv[1:] or SETS]
    for row in sweep(RESULTS, ("data",), runs, one_run, "skvi and NumPyro NUTS"):
        print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
