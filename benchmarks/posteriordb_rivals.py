"""The posteriors of posteriordb.py, and a logistic regression, by other libraries too.

    pip install numpyro jax blackjax
    export SKVI_DATA=... JAX_PLATFORMS=cpu
    python benchmarks/posteriordb_rivals.py [--models PART ...] [--methods PART ...]
    python benchmarks/posteriordb_rivals.py settings  # ELBOs of settings of guides
    python benchmarks/posteriordb_rivals.py check  # log densities in torch and JAX

Each method has one setting for all models; SVI in NumPyro that of `settings`.
Rows go to results/ as they are done: errors as in posteriordb.py, ELBO, and seconds of
the processor to compile and to run (torch compiles nothing); for the logistic
regression, of log evidence -55.224, seconds until the ELBO is -55.47 (the best normal
has -55.465) and -55.37, of whole fits where a method stops by itself.
"""

import argparse
import json
import time
import warnings
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from posteriordb import FOLDER, MEAN, MODELS, STD, column, errors
from runs import sweep
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from skvi.inference import VariationalInference

RESULTS = Path(__file__).parent / "results"
CANCER = "breast_cancer"
BOUNDS = -55.47, -55.37
N_DRAWS, N_PARTS = 10_000, 40
# Steps, first step size, its last share, particles.
SETTING = 20_000, 0.05, 0.001, 10
SETTINGS = (20_000, 0.01, 0.01, 10), SETTING
KEYS = "model", "method", "steps", "rate", "last", "particles"
# Pathfinder: starts, as in its paper; steps of L-BFGS, and draws of each ELBO.
N_STARTS, N_STEPS, N_ELBO = 20, 200, 100


def logistic(d):
    X, y = column(d["X"]), column(d["y"])

    def log_density(p):
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(p["beta"]).sum(1)
        f = p["beta"] @ X.T
        return prior + (y * f - torch.nn.functional.softplus(f)).sum(1)

    return log_density, {"beta": (X.shape[1],)}, {}


def load(name):
    """Data and the model in torch."""
    if name == CANCER:
        X, y = load_breast_cancer(return_X_y=True)
        d = {"X": np.column_stack([np.ones(len(y)), scale(X)]), "y": y}
        return d, logistic(d)
    d = json.loads((FOLDER / name / "data.json").read_text())
    return d, MODELS[name](d)


class Jax:
    """A model in JAX, checked against its twin."""

    def __init__(self, name):
        try:
            import jax
            import numpyro
            from posteriordb_jax import TWINS
        except ImportError as error:
            raise SystemExit(f"{error}: pip install numpyro jax blackjax") from error
        constraints = numpyro.distributions.constraints
        names = {"ordered": "ordered_vector"}
        names["positive_ordered"] = "positive_ordered_vector"
        d, (self.torch_density, self.shapes, given) = load(name)
        self.log_density, self.key = TWINS[name](d), jax.random.PRNGKey(0)
        given = {key: given.get(key, "real") for key in self.shapes}
        self.supports = {
            key: getattr(constraints, names.get(support, support))
            for key, support in given.items()
        }

    def __call__(self):
        import numpyro
        from numpyro.distributions import ImproperUniform

        p = {
            name: numpyro.sample(name, ImproperUniform(self.supports[name], (), shape))
            for name, shape in self.shapes.items()
        }
        numpyro.factor("log_density", self.log_density(p))

    def unconstrained(self):
        """Log density of a vector, its size, and the parameters of a vector."""
        from jax.flatten_util import ravel_pytree
        from numpyro.infer.util import initialize_model

        found = initialize_model(self.key, self)
        start, unpack = ravel_pytree(found.param_info.z)
        constrain = found.postprocess_fn
        return (
            lambda x: -found.potential_fn(unpack(x)),
            len(start),
            lambda x: constrain(unpack(x)),
        )

    def check(self):
        """Largest difference of the two log densities at random points."""
        import jax

        _, size, constrain = self.unconstrained()
        x = jax.random.normal(self.key, (20, size))
        p = jax.vmap(constrain)(x)
        ours = self.torch_density({k: column(np.array(v)) for k, v in p.items()})
        theirs = np.array(jax.vmap(self.log_density)(p))
        return float(np.max(np.abs(ours.numpy() - theirs) / (1 + np.abs(theirs))))


def skvi(name, family):
    """Draws, ELBO, seconds to compile and to run, and after each part ELBOs."""
    _, model = load(name)
    began = time.process_time()
    vi = VariationalInference(*model, posterior=family, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vi.fit()
    seconds = time.process_time() - began
    trace = [(seconds, vi.lower_bound_)]
    return vi.sample_posterior(N_DRAWS, 0), vi.lower_bound_, 0.0, seconds, trace


def svi(name, guide, setting=SETTING):
    import jax
    import optax
    from numpyro import infer
    from numpyro.optim import optax_to_numpyro

    model, (n_steps, rate, last, n_particles) = Jax(name), setting
    began = time.process_time()
    guide = getattr(infer.autoguide, guide)(model)
    adam = optax.adam(optax.exponential_decay(rate, n_steps, last))
    loss = infer.Trace_ELBO(num_particles=n_particles)
    method = infer.SVI(model, guide, optax_to_numpyro(adam), loss)

    def part(state):
        def step(state, _):
            return method.stable_update(state)

        return jax.lax.scan(step, state, length=n_steps // N_PARTS)

    state = method.init(model.key)
    run = jax.jit(part).lower(state).compile()
    compiled = time.process_time() - began
    many = infer.Trace_ELBO(num_particles=N_DRAWS)
    elbo = jax.jit(lambda params: -many.loss(model.key, params, model, guide))
    seconds, trace = 0.0, []
    for _ in range(N_PARTS):
        began = time.process_time()
        state, _ = jax.block_until_ready(run(state))
        seconds += time.process_time() - began
        if name == CANCER:
            bound = float(elbo(method.get_params(state)))
            trace.append((compiled + seconds, bound))
    params = method.get_params(state)
    draws = guide.sample_posterior(model.key, params, sample_shape=(N_DRAWS,))
    return draws, float(elbo(params)), compiled, seconds, trace


@lru_cache(1)
def paths(name):
    """ELBOs of the best normals of each path, draws, log weights, seconds."""
    import jax
    import jax.numpy as jnp
    from blackjax.vi.pathfinder import approximate, sample

    model = Jax(name)
    began = time.process_time()
    log_density, size, constrain = model.unconstrained()
    keys = jax.random.split(model.key, N_STARTS + 1)
    starts = jax.random.uniform(keys[0], (N_STARTS, size), minval=-2.0, maxval=2.0)

    def path(key, x):
        state, _ = approximate(key, log_density, x, N_ELBO, maxiter=N_STEPS)
        x, log_q = sample(key, state, N_DRAWS)
        return state.elbo, x, jax.vmap(log_density)(x) - log_q

    run = jax.jit(path).lower(keys[0], starts[0]).compile()
    compiled = time.process_time() - began
    began = time.process_time()
    found = [run(key, x) for key, x in zip(keys[1:], starts, strict=True)]
    found = jax.block_until_ready(
        [jnp.stack(part) for part in zip(*found, strict=True)]
    )
    return *found, jax.vmap(constrain), compiled, time.process_time() - began


def pathfinder(name, choice):
    """The best path, or all, resampled by smoothed importance weights."""
    import jax
    import jax.numpy as jnp
    from blackjax.util import psis_weights

    elbos, x, log_w, constrain, compiled, seconds = paths(name)
    best, began = jnp.nanargmax(elbos), time.process_time()
    if choice == "best":
        x, elbo = x[best], float(log_w[best].mean())
    else:
        elbo = jnp.nan  # no density
        log_w = jnp.nan_to_num(log_w.ravel(), nan=-jnp.inf, posinf=-jnp.inf)
        weights = jnp.exp(psis_weights(log_w)[0])
        x = x.reshape(len(log_w), -1)
        x = x[jax.random.choice(jax.random.PRNGKey(1), len(x), (N_DRAWS,), p=weights)]
    draws = jax.block_until_ready(constrain(x))
    seconds += time.process_time() - began
    return draws, elbo, compiled, seconds, [(compiled + seconds, elbo)]


METHODS = {
    "skvi full_rank": (skvi, "full_rank"),
    "skvi flow": (skvi, "flow"),
    "NumPyro normal": (svi, "AutoMultivariateNormal"),
    "NumPyro IAF": (svi, "AutoIAFNormal"),
    "Pathfinder best": (pathfinder, "best"),
    "Pathfinder resampled": (pathfinder, "resampled"),
}


def one_run(name, method):
    run, choice = METHODS[method]
    draws, elbo, compiled, seconds, trace = run(name, choice)
    row = {"model": name, "method": method, "mean": "", "std": "", "verdict": ""}
    if name != CANCER:
        reference = json.loads((FOLDER / name / "moments.json").read_text())
        shapes = load(name)[1][1]
        mean, std = errors({k: np.array(draws[k]) for k in shapes}, reference)
        verdict = "right" if mean < MEAN and std < STD else "off"
        row |= {"mean": f"{mean:.3f}", "std": f"{std:.3f}", "verdict": verdict}
    row |= numbers(elbo, compiled, seconds)
    for bound in BOUNDS:
        reached = [s for s, value in trace if name == CANCER and value >= bound]
        row[f"to {bound}"] = f"{reached[0]:.1f}" if reached else ""
    return row


def one_setting(name, guide, *setting):
    _, *found, _ = svi(name, guide, setting)
    return dict(zip(KEYS, (name, guide, *setting), strict=True)) | numbers(*found)


def numbers(elbo, compiled, seconds):
    return {
        "elbo": f"{elbo:.3f}",
        "compile": f"{compiled:.1f}",
        "run": f"{seconds:.1f}",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "task", nargs="?", default="compare", choices=["compare", "settings", "check"]
    )
    parser.add_argument("--models", nargs="*", default=[""])
    parser.add_argument("--methods", nargs="*", default=[""])
    given = parser.parse_args()
    names = [n for n in (*MODELS, CANCER) if any(part in n for part in given.models)]
    methods = [m for m in METHODS if any(part in m for part in given.methods)]
    path = RESULTS / "posteriordb_rivals.csv"
    if given.task == "check":
        rows = ({"model": name, "difference": Jax(name).check()} for name in names)
    elif given.task == "settings":
        guides = [METHODS[m][1] for m in methods if METHODS[m][0] is svi]
        runs = [(n, g, *s) for s in SETTINGS for n in names for g in guides]
        path, title = path.with_stem(f"{path.stem}_settings"), "Settings of guides"
        rows = sweep(path, KEYS, runs, one_setting, title)
    else:
        runs = [(n, m) for n in names for m in methods]
        rows = sweep(path, KEYS[:2], runs, one_run, "Posteriors by other libraries")
    for row in rows:
        print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
