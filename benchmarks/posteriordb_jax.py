"""The models of posteriordb.py in JAX, for libraries that need them so.

Each log density is of one draw, a dict of arrays, with the constants of its twin in
torch; shapes and supports are the twin's.
"""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import logsumexp

jax.config.update("jax_enable_x64", True)


def column(x):
    return jnp.asarray(x, dtype=float)


def regression(columns, y, log_prior):
    """Normal noise of scale sigma."""
    X, y = jnp.stack([column(x) for x in columns], 1), column(y)

    def log_density(p):
        return dist.Normal(X @ p["beta"], p["sigma"]).log_prob(y).sum() + log_prior(p)

    return log_density


def arma(d):
    y = column(d["y"])

    def log_density(p):
        def step(error, pair):
            error = pair[1] - p["mu"] - p["phi"] * pair[0] - p["theta"] * error
            return error, error

        first = y[0] - p["mu"] - p["phi"] * p["mu"]
        _, others = jax.lax.scan(step, first, (y[:-1], y[1:]))
        errors = jnp.append(others, first)
        prior = dist.Normal(0.0, 10.0).log_prob(p["mu"])
        prior += dist.Normal(0.0, 2.0).log_prob(jnp.stack([p["phi"], p["theta"]])).sum()
        prior += dist.HalfCauchy(2.5).log_prob(p["sigma"])
        return dist.Normal(0.0, p["sigma"]).log_prob(errors).sum() + prior

    return log_density


def schools(d):
    y, sigma = column(d["y"]), column(d["sigma"])

    def log_density(p):
        theta = p["mu"] + p["tau"] * p["theta_trans"]
        prior = dist.Normal(0.0, 5.0).log_prob(p["mu"])
        prior += dist.HalfCauchy(5.0).log_prob(p["tau"])
        prior += dist.Normal(0.0, 1.0).log_prob(p["theta_trans"]).sum()
        return prior + dist.Normal(theta, sigma).log_prob(y).sum()

    return log_density


def garch(d):
    y = column(d["y"])

    def log_density(p):
        alpha1, beta1 = p["shares"][0], p["shares"][1]

        def step(variance, before):
            square = (before - p["mu"]) ** 2
            variance = p["alpha0"] + alpha1 * square + beta1 * variance
            return variance, variance

        first = column(d["sigma1"]) ** 2
        _, others = jax.lax.scan(step, first, y[:-1])
        scale = jnp.sqrt(jnp.insert(others, 0, first))
        return dist.Normal(p["mu"], scale).log_prob(y).sum()

    return log_density


def process(d):
    x, y = column(d["x"]), column(d["y"])
    squares, eye = (x[:, None] - x) ** 2, jnp.eye(len(x))

    def log_density(p):
        cov = p["alpha"] ** 2 * jnp.exp(-0.5 * squares / p["rho"] ** 2)
        fit = dist.MultivariateNormal(jnp.zeros_like(x), cov + p["sigma"] * eye)
        prior = dist.Gamma(25.0, 4.0).log_prob(p["rho"])
        prior += dist.HalfNormal(2.0).log_prob(p["alpha"])
        return fit.log_prob(y) + prior + dist.HalfNormal(1.0).log_prob(p["sigma"])

    return log_density


def hidden_markov(d):
    y = column(d["y"])

    def log_density(p):
        moves = jnp.log(jnp.stack([p["theta1"], p["theta2"]]))
        fits = dist.Normal(p["mu"], 1.0).log_prob(y[:, None])

        def step(gamma, fit):
            return logsumexp(gamma[:, None] + moves, 0) + fit, None

        gamma, _ = jax.lax.scan(step, fits[0], fits[1:])
        prior = dist.Normal(jnp.array([3.0, 10.0]), 1.0).log_prob(p["mu"]).sum()
        return prior + logsumexp(gamma)

    return log_density


def mixture(d):
    y = column(d["y"])

    def log_density(p):
        fits = dist.Normal(p["mu"], p["sigma"]).log_prob(y[:, None])
        shares = jnp.stack([jnp.log(p["theta"]), jnp.log1p(-p["theta"])])
        prior = dist.HalfNormal(2.0).log_prob(p["sigma"]).sum()
        prior += dist.Normal(0.0, 2.0).log_prob(p["mu"]).sum()
        prior += dist.Beta(5.0, 5.0).log_prob(p["theta"])
        return prior + logsumexp(fits + shares, 1).sum()

    return log_density


def kidiq(d):
    iq, school = column(d["mom_iq"]), column(d["mom_hs"])
    columns = jnp.ones_like(iq), school, iq, iq * school
    prior = dist.Cauchy(0.0, 2.5)
    return regression(columns, d["kid_score"], lambda p: prior.log_prob(p["sigma"]))


def kilpisjarvi(d):
    x, y = column(d["x"]), column(d["y"])

    def log_density(p):
        prior = dist.Normal(d["pmualpha"], d["psalpha"]).log_prob(p["alpha"])
        prior += dist.Normal(d["pmubeta"], d["psbeta"]).log_prob(p["beta"])
        f = p["alpha"] + p["beta"] * x
        return prior + dist.Normal(f, p["sigma"]).log_prob(y).sum()

    return log_density


def mesquite(d):
    names = "diam1", "diam2", "canopy_height", "total_height", "density"
    logs = [jnp.log(column(d[name])) for name in names]
    columns = jnp.ones_like(logs[0]), *logs, d["group"]
    return regression(columns, jnp.log(column(d["weight"])), lambda p: 0.0)


def nes(d):
    age = column(d["age_discrete"])
    first, last = ("real_ideo", "race_adj"), ("educ1", "gender", "income")
    columns = [jnp.ones_like(age), *(d[name] for name in first)]
    columns += [age == level for level in (2, 3, 4)] + [d[name] for name in last]
    return regression(columns, d["partyid7"], lambda p: 0.0)


def blr(d):
    prior = dist.Normal(0.0, 10.0)
    return regression(
        column(d["X"]).T,
        d["y"],
        lambda p: prior.log_prob(p["beta"]).sum() + prior.log_prob(p["sigma"]),
    )


def logistic(d):
    X, y = column(d["X"]), column(d["y"])

    def log_density(p):
        prior = dist.Normal(0.0, 1.0).log_prob(p["beta"]).sum()
        return prior + dist.Bernoulli(logits=X @ p["beta"]).log_prob(y).sum()

    return log_density


TWINS = {
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
    "breast_cancer": logistic,
}
