"""Posteriors that others wrote, with reference draws: errors of the default fits.

    SKVI_DATA=... python benchmarks/posteriordb.py [PART_OF_A_NAME ...]

Errors of means in reference standard deviations, log ratios of standard deviations
(largest of each model), seconds of the processor. No setting is chosen by model.
"""

import json
import os
import sys
import time
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch.distributions import Beta, Cauchy, Gamma, HalfCauchy, HalfNormal, Normal
from torch.distributions import MultivariateNormal as Multivariate

from skvi.inference import VariationalInference

FOLDER = Path(os.environ.get("SKVI_DATA", "../shared/data")) / "posteriordb"
# Errors within which a posterior counts as right.
MEAN, STD = 0.15, np.log(1.15)


def column(x):
    return torch.as_tensor(x, dtype=torch.float64)


def regression(X, y, log_prior):
    """Normal noise of scale sigma; X is (n, d)."""
    X, y = column(X), column(y)

    def log_density(p):
        f = p["beta"] @ X.T
        noise = Normal(f, p["sigma"][:, None]).log_prob(y).sum(1)
        return noise + log_prior(p)

    return log_density, {"beta": (X.shape[1],), "sigma": ()}, {"sigma": "positive"}


def arma(d):
    y = column(d["y"])

    def log_density(p):
        mu, phi, theta = p["mu"], p["phi"], p["theta"]
        errors = [y[0] - mu - phi * mu]
        for before, now in pairwise(y):
            errors.append(now - mu - phi * before - theta * errors[-1])
        noise = Normal(0.0, p["sigma"][:, None]).log_prob(torch.stack(errors, 1))
        prior = Normal(0.0, 10.0).log_prob(mu) + Normal(0.0, 2.0).log_prob(phi)
        prior = prior + Normal(0.0, 2.0).log_prob(theta)
        return noise.sum(1) + prior + HalfCauchy(2.5).log_prob(p["sigma"])

    return (
        log_density,
        dict.fromkeys(("mu", "phi", "theta", "sigma"), ()),
        {"sigma": "positive"},
    )


def schools(d):
    y, sigma = column(d["y"]), column(d["sigma"])

    def log_density(p):
        theta = p["mu"][:, None] + p["tau"][:, None] * p["theta_trans"]
        prior = Normal(0.0, 5.0).log_prob(p["mu"]) + HalfCauchy(5.0).log_prob(p["tau"])
        prior = prior + Normal(0.0, 1.0).log_prob(p["theta_trans"]).sum(1)
        return prior + Normal(theta, sigma).log_prob(y).sum(1)

    shapes = {"theta_trans": (8,), "mu": (), "tau": ()}
    return log_density, shapes, {"tau": "positive"}


def garch(d):
    """alpha1, beta1 and the rest are shares, as alpha1 + beta1 < 1."""
    y, first = column(d["y"]), d["sigma1"]

    def log_density(p):
        alpha1, beta1 = p["shares"][:, 0], p["shares"][:, 1]
        variances = [torch.full_like(alpha1, first**2)]
        for before in y[:-1]:
            square = (before - p["mu"]).square()
            variances.append(p["alpha0"] + alpha1 * square + beta1 * variances[-1])
        scale = torch.stack(variances, 1).sqrt()
        return Normal(p["mu"][:, None], scale).log_prob(y).sum(1)

    shapes = {"mu": (), "alpha0": (), "shares": (3,)}
    return log_density, shapes, {"alpha0": "positive", "shares": "simplex"}


def process(d):
    x, y = column(d["x"]), column(d["y"])
    squares, eye = (x[:, None] - x).square(), torch.eye(len(x)).double()

    def log_density(p):
        rho, alpha, sigma = (p[k][:, None, None] for k in ("rho", "alpha", "sigma"))
        cov = alpha**2 * torch.exp(-0.5 * squares / rho**2) + sigma * eye
        root, info = torch.linalg.cholesky_ex(cov)
        fit = Multivariate(torch.zeros_like(x), scale_tril=root, validate_args=False)
        prior = Gamma(25.0, 4.0).log_prob(p["rho"]) + HalfNormal(2.0).log_prob(
            p["alpha"]
        )
        total = fit.log_prob(y) + prior + HalfNormal(1.0).log_prob(p["sigma"])
        return torch.where(info == 0, total, -torch.inf)

    names = ("rho", "alpha", "sigma")
    return log_density, dict.fromkeys(names, ()), dict.fromkeys(names, "positive")


def hidden_markov(d):
    y = column(d["y"])

    def log_density(p):
        moves = torch.stack([p["theta1"], p["theta2"]], 1).log()
        fits = Normal(p["mu"][:, None], 1.0).log_prob(y[:, None])
        gamma = fits[:, 0]
        for t in range(1, len(y)):
            gamma = torch.logsumexp(gamma[:, :, None] + moves, 1) + fits[:, t]
        prior = Normal(torch.tensor([3.0, 10.0]), 1.0).log_prob(p["mu"]).sum(1)
        return prior + torch.logsumexp(gamma, 1)

    shapes = {"theta1": (2,), "theta2": (2,), "mu": (2,)}
    return (
        log_density,
        shapes,
        {
            "theta1": "simplex",
            "theta2": "simplex",
            "mu": "positive_ordered",
        },
    )


def mixture(d):
    y = column(d["y"])

    def log_density(p):
        fits = Normal(p["mu"][:, None], p["sigma"][:, None]).log_prob(y[:, None])
        shares = torch.stack([p["theta"].log(), torch.log1p(-p["theta"])], 1)
        prior = HalfNormal(2.0).log_prob(p["sigma"]).sum(1)
        prior = prior + Normal(0.0, 2.0).log_prob(p["mu"]).sum(1)
        prior = prior + Beta(5.0, 5.0).log_prob(p["theta"])
        return prior + torch.logsumexp(fits + shares[:, None], 2).sum(1)

    supports = {"mu": "ordered", "sigma": "positive", "theta": "unit_interval"}
    return log_density, {"mu": (2,), "sigma": (2,), "theta": ()}, supports


def kidiq(d):
    iq, school = column(d["mom_iq"]), column(d["mom_hs"])
    X = torch.stack([torch.ones_like(iq), school, iq, iq * school], 1)
    prior = Cauchy(0.0, 2.5)
    return regression(X, d["kid_score"], lambda p: prior.log_prob(p["sigma"]))


def kilpisjarvi(d):
    x, y = column(d["x"]), column(d["y"])

    def log_density(p):
        alpha = Normal(d["pmualpha"], d["psalpha"]).log_prob(p["alpha"])
        beta = Normal(d["pmubeta"], d["psbeta"]).log_prob(p["beta"])
        f = p["alpha"][:, None] + p["beta"][:, None] * x
        return alpha + beta + Normal(f, p["sigma"][:, None]).log_prob(y).sum(1)

    names = ("alpha", "beta", "sigma")
    return log_density, dict.fromkeys(names, ()), {"sigma": "positive"}


def mesquite(d):
    names = "diam1", "diam2", "canopy_height", "total_height", "density"
    logs = [column(d[name]).log() for name in names]
    ones = torch.ones_like(logs[0])
    X = torch.stack([ones, *logs, column(d["group"])], 1)
    return regression(X, column(d["weight"]).log(), lambda p: 0.0)


def nes(d):
    age = column(d["age_discrete"])
    ages = [(age == level).double() for level in (2, 3, 4)]
    first = [column(d[name]) for name in ("real_ideo", "race_adj")]
    last = [column(d[name]) for name in ("educ1", "gender", "income")]
    X = torch.stack([torch.ones_like(age), *first, *ages, *last], 1)
    return regression(X, d["partyid7"], lambda p: 0.0)


def blr(d):
    prior = Normal(0.0, 10.0)
    return regression(
        d["X"],
        d["y"],
        lambda p: prior.log_prob(p["beta"]).sum(1) + prior.log_prob(p["sigma"]),
    )


MODELS = {
    "arma-arma11": arma,
    "eight_schools-eight_schools_noncentered": schools,
    "garch-garch11": garch,
    "gp_pois_regr-gp_regr": process,
    "hmm_example-hmm_example": hidden_markov,
    "kidiq-kidscore_interaction": kidiq,
    "kilpisjarvi_mod-kilpisjarvi": kilpisjarvi,
    "low_dim_gauss_mix-low_dim_gauss_mix": mixture,
    "mesquite-logmesquite": mesquite,
    "nes1972-nes": nes,
    "sblrc-blr": blr,
}


def flat(name, values):
    """Names of elements as Stan counts them, and their draws."""
    if name == "shares":
        return {"alpha1": values[:, 0], "beta1": values[:, 1]}
    if values.ndim == 1:
        return {name: values}
    return {f"{name}[{i + 1}]": column for i, column in enumerate(values.T)}


def errors(draws, reference):
    """Largest error of a mean, in deviations, and of a log deviation."""
    found = {}
    for name, values in draws.items():
        found |= flat(name, values)
    if "theta_trans[1]" in found:  # the reference has the schools' effects
        for i in range(1, 9):
            effect = found.pop(f"theta_trans[{i}]")
            found[f"theta[{i}]"] = found["mu"] + found["tau"] * effect
    means, stds = [], []
    for name, given in reference.items():
        means.append(abs(found[name].mean() - given["mean"]) / given["std"])
        stds.append(abs(np.log(found[name].std() / given["std"])))
    return max(means), max(stds)


def main():
    chosen = sys.argv[1:] or [""]
    print(f"{'':40s} {'family':10s} {'mean':>6s} {'std':>6s} {'khat':>6s} {'s':>6s}")
    for name, make in MODELS.items():
        if not any(part in name for part in chosen):
            continue
        folder = FOLDER / name
        model = make(json.loads((folder / "data.json").read_text()))
        reference = json.loads((folder / "moments.json").read_text())
        for family in ("full_rank", "mean_field", "flow"):
            began = time.process_time()
            vi = VariationalInference(*model, posterior=family, random_state=0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                vi.fit()
            seconds = time.process_time() - began
            mean, std = errors(vi.sample_posterior(10_000, 0), reference)
            verdict = "right" if mean < MEAN and std < STD else "off"
            verdict += " " + ("converged" if vi.converged_ else "warned")
            khat = vi.diagnostics_["khat"]
            numbers = f"{mean:6.2f} {std:6.2f} {khat:6.2f} {seconds:6.1f}"
            print(f"{name:40s} {family:10s} {numbers} {verdict}", flush=True)


if __name__ == "__main__":
    main()
