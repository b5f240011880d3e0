"""The questions people ask of skvi, answered by it and by others, one after the other.

    pip install statsmodels numpyro jax dynesty
    SKVI_DATA=... JAX_PLATFORMS=cpu python benchmarks/rivals.py [QUESTION ...]
    python benchmarks/rivals.py table  # of doc/measurements.rst

Held-out rows are a tenth, in ten splits, the same for all; log densities and log losses
are per row. Features are standardized by the rows of the fit. Defaults of skvi; others
with the settings that their documentation advises, penalties by cross-validation.
Seconds are those of the processor for one fit, on one thread; NumPyro compiles in each.
"""

import os
import sys
import time
import warnings
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from bench_default_classifier import load
from runs import sweep, write_table
from scipy.optimize import brentq
from scipy.special import digamma, expit
from scipy.stats import norm
from sklearn.linear_model import ARDRegression, BayesianRidge, LogisticRegressionCV
from sklearn.model_selection import ShuffleSplit
from sklearn.preprocessing import StandardScaler, scale

from skvi.linear_model import (
    BayesianGammaRegressor,
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
    GroupedFeatures,
)
from skvi.priors import Normal

RESULTS = Path(__file__).parent / "results" / "rivals.csv"
TABLE = Path(__file__).parents[1] / "doc" / "measurements" / "rivals.csv"
N_SPLITS = 10
NUMBERS = ["bostonHousing", "concrete", "energy", "wine-quality-red", "yacht"]
CLASSES = ["pima", "ionosphere", "spectf", "german"]


def folder():
    return Path(os.environ["SKVI_DATA"])


def uci(name):
    data = np.loadtxt(folder() / name / "data.txt")
    X, y = data[:, :-1], data[:, -1]
    return X[:, X.std(0) > 0], y


def table_of(name):
    return pd.read_csv(folder() / "grouped" / name, index_col=0).dropna()


def counts(name):
    """Features, counts, and data of rows."""
    rows = table_of(f"{name}.csv")
    if name == "fishing":
        later = rows["period"] != rows["period"].iloc[0]
        X = np.column_stack([rows["meandepth"], later]).astype(float)
        return (
            X,
            rows["totabund"].to_numpy(float),
            {"exposure": rows["sweptarea"].to_numpy()},
        )
    X = pd.get_dummies(rows.drop(columns="art"), drop_first=True, dtype=float)
    return X.to_numpy(), rows["art"].to_numpy(float)


def losses(name):
    if name == "AutoBi":
        rows = table_of("AutoBi.csv")
        X = rows.drop(columns=["CASENUM", "LOSS"]).to_numpy(float)
        return X, rows["LOSS"].to_numpy()
    rows = table_of("dataOhlsson.csv.gz").query("skadkost > 0")
    X = rows[["agarald", "zon", "mcklass", "fordald", "bonuskl"]].to_numpy(float)
    return np.column_stack([X, rows["kon"] == "K"]), rows["skadkost"].to_numpy(float)


class Statsmodel:
    """A model of statsmodels by maximum likelihood, with its density of new rows."""

    def __init__(self, make, log_density, **options):
        self.make, self.log_density, self.options = make, log_density, options

    def fit(self, X, y, **rows):
        model = self.make(y, self._design(X), **rows)
        self.fitted = model.fit(disp=0, **self.options)
        return self

    def predict_log_density(self, X, y, **rows):
        return self.log_density(self.fitted, self._design(X), y, **rows)

    @staticmethod
    def _design(X):
        return np.column_stack([np.ones(len(X)), X])


class Normals:
    """A regressor of scikit-learn whose predictions are normal."""

    def __init__(self, model):
        self.model = model

    def fit(self, X, y):
        self.model.fit(X, y)
        return self

    def predict_log_density(self, X, y):
        return norm.logpdf(y, *self.model.predict(X, return_std=True))


class Classes:
    """A classifier of scikit-learn."""

    def __init__(self, model):
        self.model = model

    def fit(self, X, y):
        self.model.fit(X, y)
        return self

    def predict_log_density(self, X, y):
        position = np.searchsorted(self.model.classes_, y)
        return self.model.predict_log_proba(X)[np.arange(len(y)), position]


def negative_binomial():
    import statsmodels.api as sm
    from scipy.stats import nbinom

    def log_density(fitted, X, y, **rows):
        mean, size = fitted.predict(X, **rows), 1 / fitted.params[-1]
        return nbinom.logpmf(y, size, size / (size + mean))

    return Statsmodel(sm.NegativeBinomial, log_density)


def gamma():
    import statsmodels.api as sm
    from scipy.stats import gamma as law

    def make(y, X):
        return sm.GLM(y, X, sm.families.Gamma(sm.families.links.Log()))

    def log_density(fitted, X, y):
        spread = np.mean(fitted.resid_deviance**2) / 2  # at the best shape
        shape = brentq(lambda k: np.log(k) - digamma(k) - spread, 1e-3, 1e3)
        return law.logpdf(y, shape, scale=fitted.predict(X) / shape)

    # Its default, least squares, does not converge on Ohlsson's claims.
    return Statsmodel(make, log_density, method="newton")


def logistic():
    with_folds = {"Cs": 20, "cv": 5, "scoring": "neg_log_loss", "max_iter": 1000}
    with_folds |= {"l1_ratios": (0,), "use_legacy_attributes": False}
    return Classes(LogisticRegressionCV(**with_folds))


#: Question: data sets, their loader, our model, and others by name.
HELD_OUT = {
    "numbers": (
        NUMBERS,
        uci,
        BayesianLinearRegression,
        {
            "BayesianRidge": lambda: Normals(BayesianRidge()),
            "ARDRegression": lambda: Normals(ARDRegression()),
        },
    ),
    "classes": (
        CLASSES,
        load,
        BayesianLogisticRegression,
        {"LogisticRegressionCV": logistic},
    ),
    "counts": (
        ["bioChemists", "fishing"],
        counts,
        lambda: BayesianPoissonRegressor(likelihood="negative_binomial"),
        {"statsmodels": negative_binomial},
    ),
    "positive numbers": (
        ["AutoBi", "Ohlsson"],
        losses,
        BayesianGammaRegressor,
        {"statsmodels": gamma},
    ),
}


def timed(work):
    """Result, and seconds of the processor."""
    began = time.process_time()
    found = work()
    return found, time.process_time() - began


def held_out(question, name, peer):
    """Log densities of held-out rows, and seconds of a fit."""
    _, read_set, ours, peers = HELD_OUT[question]
    X, y, *rows = read_set(name)
    makers, density, seconds = (ours, peers[peer]), [], []
    for train, test in ShuffleSplit(N_SPLITS, test_size=0.1, random_state=0).split(X):
        units = StandardScaler().fit(X[train])
        known, new = (
            ((units.transform(X[k]), y[k]), {of: x[k] for of, x in dict(*rows).items()})
            for k in (train, test)
        )
        fits = [timed(partial(make().fit, *known[0], **known[1])) for make in makers]
        seconds.append([s for _, s in fits])
        found = [f.predict_log_density(*new[0], **new[1]).mean() for f, _ in fits]
        density.append(found)
    density = np.array(density)
    difference = density[:, 0] - density[:, 1]
    error = difference.std(ddof=1) / np.sqrt(N_SPLITS)
    return {
        "measure": "log density, nats per row",
        "skvi": f"{density[:, 0].mean():.3f}",
        "other": f"{density[:, 1].mean():.3f}",
        "difference": f"{difference.mean():.3f} +- {error:.3f}",
    } | ratio(*np.median(seconds, 0))


def ratio(ours, other):
    return {
        "seconds, skvi": f"{ours:.3g}",
        "seconds, other": f"{other:.3g}",
        "ratio of seconds": f"{other / ours:.2g}",
    }


def grouped(_, name, peer):
    """Errors of the deviations of two coefficients, with an intercept per county."""
    rows = pd.read_csv(folder() / "grouped" / "radon.csv", index_col=0)
    fixed = scale(rows[["basement", "uranium"]].to_numpy(float))
    y, county = rows["log.radon"].to_numpy(), pd.factorize(rows["county"])[0]

    def ours():
        labels = GroupedFeatures(sparse_output=False).fit_transform(county[:, None])
        model = BayesianLinearRegression(column_groups={"county": slice(2, None)})
        return model.fit(np.column_stack([fixed, labels]), y)

    found, seconds = timed(ours)
    reference, of_other = nuts(fixed, y, county)
    others = {"skvi": found.coef_std_[:2]}
    if peer != "NumPyro NUTS":
        others["other"], of_other = timed(partial(mixed, fixed, y, county))
    errors = {
        name: f"{np.abs(np.log(std / reference)).max():.1%}"
        for name, std in others.items()
    }
    names = {"measure": "largest error of a standard deviation", "other": "reference"}
    return names | errors | {"difference": ""} | ratio(seconds, of_other)


def mixed(fixed, y, county):
    import statsmodels.api as sm

    fitted = sm.MixedLM(y, sm.add_constant(fixed), groups=county).fit()
    return fitted.bse_fe[1:]


def nuts(fixed, y, county):
    """Deviations of fixed effects, and the seconds of the chains."""
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    def model():
        noise = numpyro.sample("noise", dist.HalfCauchy(1.0))
        scale_of = numpyro.sample("scale", dist.HalfCauchy(1.0))
        with numpyro.plate("columns", 2):
            coef = numpyro.sample("coef", dist.Normal(0.0, 10.0))
        with numpyro.plate("counties", county.max() + 1):
            effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        f = mean + fixed @ coef + scale_of * effect[county]
        numpyro.sample("y", dist.Normal(f, noise), obs=y)

    run = MCMC(NUTS(model), num_warmup=1000, num_samples=2500, num_chains=4)
    run._progress_bar = run.progress_bar = False
    run.run(jax.random.PRNGKey(0))
    _, seconds = timed(lambda: run.run(jax.random.PRNGKey(1)))
    return np.asarray(run.get_samples()["coef"]).std(0), seconds


def evidence(_, name, peer):
    """Log evidence of a logistic regression, prior N(0, 1), by nested sampling."""
    import dynesty

    X, y = load(name)
    X, sign = scale(X), 2.0 * (y == y.max()) - 1

    def ours():
        model = BayesianLogisticRegression(prior=Normal(), intercept_prior=Normal())
        return model.fit(X, y).evidence_bounds(X, y, random_state=0)

    bounds, seconds = timed(ours)
    design = np.column_stack([np.ones(len(y)), X]) * sign[:, None]

    def log_likelihood(theta):
        return float(np.log(expit(design @ theta)).sum())

    def run():
        size, rng = design.shape[1], np.random.default_rng(0)
        sampler = dynesty.NestedSampler(log_likelihood, norm.ppf, size, rstate=rng)
        sampler.run_nested(print_progress=False)
        return sampler.results

    found, of_other = timed(run)
    low, high = bounds.interval()
    return {
        "measure": "log evidence",
        "skvi": f"{low:.3f} to {high:.3f}",
        "other": f"{found.logz[-1]:.2f} +- {found.logzerr[-1]:.2f}",
        "difference": "",
    } | ratio(seconds, of_other)


OTHERS = {
    "grouped rows": (grouped, ["radon"], ["statsmodels MixedLM", "NumPyro NUTS"]),
    "evidence": (evidence, ["pima", "breast_cancer"], ["dynesty"]),
}
KEYS = "question", "data", "other model"


def one_run(question, name, peer):
    """One row of the table."""
    make = OTHERS[question][0] if question in OTHERS else held_out
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = make(question, name, peer)
    return dict(zip(KEYS, (question, name, peer), strict=True)) | found


def main():
    if sys.argv[1:] == ["table"]:
        return write_table(RESULTS, TABLE)
    asked = {q: (sets, peers) for q, (sets, *_, peers) in HELD_OUT.items()}
    asked |= {q: rest for q, (_, *rest) in OTHERS.items()}
    runs = [(q, *pair) for q, parts in asked.items() for pair in product(*parts)]
    runs = [run for run in runs if not sys.argv[1:] or run[0] in sys.argv[1:]]
    for row in sweep(RESULTS, KEYS, runs, one_run, "skvi and others"):
        print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
