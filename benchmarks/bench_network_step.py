"""Gradient steps of a Bayesian network beside a plain one's and NumPyro's.

    python benchmarks/bench_network_step.py              # all tables, about 10 minutes
    python benchmarks/bench_network_step.py steps        # one of them
    python benchmarks/bench_network_step.py --repeats 3 --epochs 10 steps

One hidden layer of 50 ReLU units, batches of 100 rows, 10 draws, learned noise, Adam,
single precision. Rows of a table are measured in turns, `--repeats` times, in one
process; medians, with the smallest in brackets. What is timed of ours is the solver
inside of `fit`: minibatches, progress reports, averages and the schedule included.

steps    microseconds per gradient step: `fit` in single and double precision, a
         deterministic torch loop (nn.Sequential and Adam, also fused), NumPyro's
         compiled scan over an epoch. The peers make no value at the end of an epoch.
elbo     seconds of whole fits of so many epochs with a step size that falls linearly,
         and the ELBO that they reach (one evaluation for both); NumPyro's scan without
         compilation and with
members  one fit beside 2, 4 and 8 in a stack, seconds for the same number of steps
noise    why weights are drawn and not activations: variances of the gradient, and
         microseconds of a hand-written step that draws activations
fallback a family without analytic gradients beside a plain torch loop of it

A peer that is not installed is left out (pip install numpyro).

2026-11-22, x86_64, 2 virtual cores, torch 2.13.0, numpyro 0.22.0, jax 0.10.2. Other
processes ran beside (load 2 to 5), so that shares mean more than times:

- steps, 1,000 / 9,000 / 45,000 rows: 95 / 93 / 99 us, in double precision 143 / 144 /
  152; torch and Adam 191 / 193 / 197 (ours is 0.48 to 0.50 of it), with fused Adam 137
  to 140 (0.68 to 0.71); NumPyro 234 / 348 / 278 us (0.27 to 0.40).
- elbo: 1,000 rows, 100 epochs 0.18 s and -787 nats, NumPyro 0.45 s and -798 (2 s with
  compilation), 200 epochs 0.31 s and -780, 0.64 s and -770; 9,000 rows, 22 epochs
  0.40 s and -4290, 0.83 s (2.5 s) and -4324; 11 epochs 0.25 s and -4438, 0.52 s and
  -4683. The guide starts as our posteriors did before their last layer started small
  and they warmed up: then both had -4510 (mean of six) from the same starts, which
  differ by up to 270 nats.
- members: 2, 4 and 8 take 1.6, 2.9 and 5.4 times as long as one on one thread: three
  quarters of a step are arithmetic. With nothing else on the machine two threads make
  of that 1.3, 2.2 and 3.9; beside busy processes they wait for each other, and a step
  of eight took 2 to 20 ms in place of 0.5.
- noise: 4 draws of activations are as noisy as 5 pairs of weights in the means, and six
  times less so in the deviations, but their gradient takes longer than our whole step;
  10 draws take twice as long again.
- fallback: full rank 1.14 to 1.33 times a plain torch loop.
"""

import argparse
import importlib.util
import math
import os
import platform
import statistics
import time
import warnings
from dataclasses import replace
from datetime import date

import numpy as np
import torch

from skvi.neural_network import BayesianMLPRegressor
from skvi.solvers import Stochastic

HIDDEN, BATCH, DRAWS, RATE = 50, 100, 10, 0.02
SHAPES = [(1_000, 8), (9_000, 8), (45_000, 9)]
# Those of a fresh process; all tables but that of members use one.
THREADS = torch.get_num_threads()


def make_data(n, d, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(np.float32)
    directions = rng.standard_normal((d, 4)) / math.sqrt(d)
    y = np.sin(X @ directions).sum(1) + 0.4 * rng.standard_normal(n)
    return X, ((y - y.mean()) / y.std()).astype(np.float32)


def prior_scales(d):
    """Of the flat vector, in the order of its layout."""
    parts = [(d * HIDDEN, math.sqrt(2 / d)), (HIDDEN, 1.0)]
    parts += [(HIDDEN, math.sqrt(1 / HIDDEN)), (1, 1.0)]
    return torch.cat([torch.full((count,), scale) for count, scale in parts])


def networks(theta, X):
    """f of S networks, (S, n)."""
    S, d = len(theta), X.shape[1]
    W, b, v, c = theta.split([d * HIDDEN, HIDDEN, HIDDEN, 1], 1)
    hidden = torch.baddbmm(b[:, None], X.expand(S, *X.shape), W.view(S, d, HIDDEN))
    return torch.baddbmm(c[:, None], torch.relu(hidden), v[..., None])[..., 0]


def median(seconds):
    """Median and smallest."""
    return f"{statistics.median(seconds):8.4g} ({min(seconds):.4g})"


# --- one fit of ours ------------------------------------------------------------------


class Clock:
    """Times the solver inside of fits."""

    def __enter__(self):
        self.seconds, self.original = [], Stochastic.solve

        def solve(solver, problem, options):
            start = time.perf_counter()
            solution = self.original(solver, problem, options)
            self.seconds.append(time.perf_counter() - start)
            self.last = problem, options, solution
            return solution

        Stochastic.solve = solve
        return self

    def __exit__(self, *error):
        Stochastic.solve = self.original


def fit(X, y, epochs, seed=0, **params):
    model = BayesianMLPRegressor(
        hidden_layer_sizes=HIDDEN,
        activation="relu",
        batch_size=BATCH,
        n_draws=DRAWS,
        learning_rate=RATE,
        max_iter=epochs,
        random_state=seed,
        **params,
    )
    with Clock() as clock:
        model.fit(X, y)
    return model, clock


def our_step(X, y, dtype):
    X, y = X.astype(dtype), y.astype(dtype)

    def run(epochs):
        _, clock = fit(X, y, epochs)
        return clock.seconds[-1]

    return run


# --- peers ----------------------------------------------------------------------------


def plain_step(X, y, fused):
    """A deterministic network: what a user of torch would write."""
    X, y = torch.from_numpy(X), torch.from_numpy(y)[:, None]

    def run(epochs):
        net = torch.nn.Sequential(
            torch.nn.Linear(X.shape[1], HIDDEN), torch.nn.ReLU(), torch.nn.Linear(50, 1)
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01, fused=fused or None)
        start = time.perf_counter()
        for _ in range(epochs):
            for rows in torch.randperm(len(X)).split(BATCH):
                optimizer.zero_grad()
                loss = (net(X[rows]) - y[rows]).square().mean()
                loss.backward()
                optimizer.step()
        return time.perf_counter() - start

    return run


def numpyro_training(X, y, epochs, seed=0):
    """Compile an epoch, and return a function that trains: seconds, mean, std, noise.

    One flat vector with a factorized normal guide, a closed divergence, draws in one
    vectorized product, and a scan over the minibatches of an epoch.
    """
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, TraceMeanField_ELBO
    from numpyro.optim import Adam

    n, d = X.shape
    scales, start = jnp.asarray(prior_scales(d).numpy()), np.random.default_rng(seed)
    first = start.standard_normal(len(scales)).astype(np.float32) * np.asarray(scales)
    first[d * HIDDEN : (d + 1) * HIDDEN] = first[-1] = 0
    X, y = jnp.asarray(X), jnp.asarray(y)

    def model(x, t):
        noise = numpyro.param("noise", 0.5, constraint=dist.constraints.positive)
        theta = numpyro.sample("theta", dist.Normal(0, scales).to_event(1))
        W = theta[: d * HIDDEN].reshape(d, HIDDEN)
        b, v = theta[d * HIDDEN : (d + 1) * HIDDEN], theta[(d + 1) * HIDDEN : -1]
        f = jax.nn.relu(x @ W + b) @ v + theta[-1]
        with numpyro.plate("rows", n, subsample_size=len(t)):
            numpyro.sample("y", dist.Normal(f, noise), obs=t)

    def guide(x, t):
        mean = numpyro.param("mean", jnp.asarray(first))
        std = numpyro.param(
            "std", 0.01 * scales, constraint=dist.constraints.softplus_positive
        )
        numpyro.sample("theta", dist.Normal(mean, std).to_event(1))

    batches = math.ceil(n / BATCH)
    steps = epochs * batches
    rate = lambda i: RATE * jnp.maximum(1 - i / steps, 1 / 32)
    loss = TraceMeanField_ELBO(num_particles=DRAWS, vectorize_particles=True)
    svi = SVI(model, guide, Adam(rate), loss)

    @jax.jit
    def epoch(state, key):
        order = jax.random.permutation(key, n)[: batches * BATCH].reshape(-1, BATCH)

        def step(state, rows):
            return svi.update(state, X[rows], y[rows])

        return jax.lax.scan(step, state, order)

    def train(count=epochs):
        key = jax.random.PRNGKey(seed)
        started = time.perf_counter()
        state = svi.init(key, X[:BATCH], y[:BATCH])
        for i in range(count):
            state, losses = epoch(state, jax.random.fold_in(key, i))
        losses.block_until_ready()
        seconds = time.perf_counter() - started
        found = {k: np.asarray(v) for k, v in svi.get_params(state).items()}
        return seconds, found["mean"], found["std"], float(found["noise"])

    return train


def numpyro_step(X, y, epochs):
    train = numpyro_training(X, y, epochs)
    train(1)
    return lambda count: train(count)[0]


# --- tables ---------------------------------------------------------------------------


def has_numpyro():
    return importlib.util.find_spec("numpyro") is not None


def table_steps(args):
    print("steps: microseconds per gradient step")
    for n, d in SHAPES:
        X, y = make_data(n, d)
        epochs = max(2, args.steps * BATCH // n)
        runs = {
            "skvi, float32": our_step(X, y, np.float32),
            "skvi, float64": our_step(X, y, np.float64),
            "torch, Adam": plain_step(X, y, False),
            "torch, fused Adam": plain_step(X, y, True),
        }
        if has_numpyro():
            runs["NumPyro, scan"] = numpyro_step(X, y, epochs)
        found = {name: [] for name in runs}
        for run in runs.values():
            run(2)
        for _ in range(args.repeats):
            for name, run in runs.items():
                found[name].append(run(epochs))
        steps = epochs * math.ceil(n / BATCH)
        ours = statistics.median(found["skvi, float32"])
        for name, seconds in found.items():
            micro = [1e6 * s / steps for s in seconds]
            share = ours / statistics.median(seconds)
            print(f"  {n:>6} x {d}  {name:<20}{median(micro)}  ours/it {share:.2f}")


@torch.no_grad()
def exact_elbo(X, y, mean, std, noise, n_draws=200):
    """From 200 draws, the same for everybody; in nats of the standardized target."""
    generator, scales = torch.Generator().manual_seed(0), prior_scales(X.shape[1])
    X, y = torch.from_numpy(X), torch.from_numpy(y)
    mean, std = (torch.as_tensor(np.asarray(x)).float() for x in (mean, std))
    squares = 0.0
    for _ in range(n_draws // 10):
        theta = mean + std * torch.randn(10, len(mean), generator=generator)
        for part in range(0, len(X), 4096):
            rows = slice(part, part + 4096)
            f = networks(theta, X[rows])
            squares += float((y[rows] - f).square().sum()) / n_draws
    ratio = (std / scales).double()
    moments = ratio.square() + (mean / scales).double().square()
    kl = float((0.5 * moments - 0.5 - ratio.log()).sum())
    rows = 0.5 * squares / noise**2 + len(X) * math.log(noise * math.sqrt(2 * math.pi))
    return -rows - kl


def numpyro_fit(X, y, epochs, seed):
    """Seconds without and with compilation, ELBO."""
    start = time.perf_counter()
    train = numpyro_training(X, y, epochs, seed)
    _, *state = train()
    cold = time.perf_counter() - start
    return train()[0], cold, exact_elbo(X, y, *state)


def our_fit(X, y, epochs, seed):
    start = time.perf_counter()
    model, clock = fit(X, y, epochs, seed, normalize_y=False)
    seconds = time.perf_counter() - start
    q = clock.last[2].posterior.as_normal()
    return seconds, exact_elbo(X, y, q.mean, q.scale, model.noise_scale_)


def table_elbo(args):
    print("elbo: seconds of a whole fit, and its ELBO in nats; medians of three starts")
    for n, d in SHAPES[:2]:
        X, y = make_data(n, d)
        for epochs in (max(3, g * 1000 // n) for g in (25, 50, 100, 200)):
            fits = [our_fit(X, y, epochs, seed) for seed in range(3)]
            seconds, values = (statistics.median(x) for x in zip(*fits, strict=True))
            line = f"  {n:>5} x {d}, {epochs:>3} epochs: skvi {seconds:6.3f} s"
            line += f" {values:9.1f}"
            if has_numpyro():
                fits = [numpyro_fit(X, y, epochs, seed) for seed in range(3)]
                found = [statistics.median(x) for x in zip(*fits, strict=True)]
                line += f"   NumPyro {found[0]:6.3f} s {found[2]:9.1f}"
                line += f" ({found[1]:.3f} s with compilation)"
            print(line, flush=True)


def members_of(problem, count):
    """The same problem with other draws."""
    sources = [torch.Generator().manual_seed(seed) for seed in range(count)]
    return [replace(problem, generator=source) for source in sources]


def table_members(args):
    print("members: seconds of the same number of steps of each")
    n, d = SHAPES[0]
    X, y = make_data(n, d)
    epochs = max(2, args.steps * BATCH // n)
    _, clock = fit(X, y, epochs)
    problem, options, _ = clock.last
    counts = (1, 2, 4, 8)
    settings = [(t, count) for t in sorted({1, THREADS}) for count in counts]
    found = {setting: [] for setting in settings}
    for _ in range(args.repeats):
        for threads, count in settings:
            torch.set_num_threads(threads)
            members = members_of(problem, count)
            start = time.perf_counter()
            Stochastic().solve_members(members, [options] * count)
            found[threads, count].append(time.perf_counter() - start)
    torch.set_num_threads(1)
    one = statistics.median(found[1, 1])
    for (threads, count), seconds in found.items():
        ratio = statistics.median(seconds) / one
        print(
            f"  {threads} threads, {count} members {median(seconds)} s, {ratio:.2f} "
            "times one"
        )


def local_networks(mean, std, X, eps):
    """f with activations drawn in place of weights; eps of (S, n, units + 1)."""
    d, k = X.shape[1], HIDDEN
    variance = std.square()
    W, b, v, c = mean.split([d * k, k, k, 1])
    VW, Vb, Vv, Vc = variance.split([d * k, k, k, 1])
    m = X @ W.view(d, k) + b
    s = (X.square() @ VW.view(d, k) + Vb).sqrt()
    h = torch.relu(m + s * eps[..., :k])
    return h @ v + c + (h.square() @ Vv + Vc).sqrt() * eps[..., k]


class LocalStep:
    """Analytic gradient with drawn activations, through buffers: its cost alone."""

    def __init__(self, X, y, n_draws):
        n = len(X)
        self.X1 = torch.cat([X, torch.ones(n, 1)], 1)
        self.X2, self.y, self.S = self.X1.square(), y, n_draws
        self.eps = torch.empty(8, n_draws, n, HIDDEN)
        self.last = torch.empty(8, n_draws, n)
        self.h, self.h2, self.g, self.t = torch.empty(4, n_draws, n, HIDDEN)

    def __call__(self, mean, std, k, generator):
        if k % 8 == 0:
            self.eps.normal_(generator=generator)
            self.last.normal_(generator=generator)
        eps, last, d1 = self.eps[k % 8], self.last[k % 8], self.X1.shape[1]
        var = std.square()
        W, v = mean[: d1 * HIDDEN].view(d1, HIDDEN), mean[d1 * HIDDEN :]
        VW, Vv = var[: d1 * HIDDEN].view(d1, HIDDEN), var[d1 * HIDDEN :]
        m, s = self.X1 @ W, (self.X2 @ VW).sqrt_()
        h = torch.addcmul(m, s, eps, out=self.h).clamp_(min=0)
        h2 = torch.mul(h, h, out=self.h2)
        s2 = (torch.matmul(h2, Vv[:-1]) + Vv[-1]).sqrt_()
        f = torch.matmul(h, v[:-1]) + v[-1] + s2 * last
        df = f - self.y
        dv2 = df * last / (2 * s2)
        flat = df.reshape(-1)
        g_v = flat @ h.view(-1, HIDDEN), flat.sum()
        g_Vv = dv2.reshape(-1) @ h2.view(-1, HIDDEN), dv2.sum()
        g = torch.mul(df[..., None], v[:-1], out=self.g)
        g.addcmul_(h, dv2[..., None] * (2 * Vv[:-1]))
        torch.ops.aten.threshold_backward.grad_input(g, h, 0, grad_input=g)
        dm, ds = g.sum(0), torch.mul(g, eps, out=self.t).sum(0)
        return g_v, g_Vv, self.X1.T @ dm, self.X2.T @ (ds / (2 * s))


def table_noise(args):
    print("noise: variances of the gradient at a fitted posterior, and cost of a step")
    n, d = SHAPES[0]
    X, y = make_data(n, d)
    model, clock = fit(X, y, 100, normalize_y=False)
    q = clock.last[2].posterior.as_normal()
    noise = model.noise_scale_
    X, y = torch.from_numpy(X[:BATCH]), torch.from_numpy(y[:BATCH])
    generator, size = torch.Generator().manual_seed(0), len(q.mean)

    def randn(*shape):
        return torch.randn(*shape, generator=generator)

    def weights(mean, std):
        return networks(mean + std * randn(DRAWS, size), X)

    def mirrored(mean, std):
        eps = randn(DRAWS // 2, size)
        return networks(mean + std * torch.cat([eps, -eps]), X)

    def local(count):
        return lambda mean, std: local_networks(
            mean, std, X, randn(count, BATCH, HIDDEN + 1)
        )

    rules = {"weights, 10 draws": weights, "weights, 5 pairs": mirrored}
    rules |= {f"activations, {s} draws": local(s) for s in (1, 2, 4, 10)}
    for name, rule in rules.items():
        found = []
        for _ in range(400):
            leaf = torch.cat([q.mean, q.scale.log()]).float().requires_grad_()
            mean, log_std = leaf.split(size)
            f = rule(mean, log_std.exp())
            value = 0.5 * n / BATCH * ((f - y) / noise).square().sum(1).mean()
            found.append(torch.autograd.grad(value, leaf)[0])
        spread = torch.stack(found).var(0)
        line = f"  {name:<24} means {float(spread[:size].sum()):9.4g}"
        line += f"  log deviations {float(spread[size:].sum()):9.4g}"
        if name.startswith("act"):
            step = LocalStep(X, y, int(name.split()[1]))
            with torch.inference_mode():
                mean, std = q.mean.float(), q.scale.float()
                times = []
                for _ in range(args.repeats):
                    start = time.perf_counter()
                    for k in range(400):
                        step(mean, std, k, generator)
                    times.append((time.perf_counter() - start) / 400e-6)
            line += f"  gradient alone {median(times)} us"
        print(line, flush=True)


def table_fallback(args):
    print("fallback: full rank, microseconds per step")
    n, d = SHAPES[0]
    X, y = make_data(n, d)
    epochs = max(2, args.steps // 5 * BATCH // n)
    steps = epochs * math.ceil(n / BATCH)

    def ours():
        _, clock = fit(X, y, epochs, posterior="full_rank")
        return 1e6 * clock.seconds[-1] / steps

    def plain():
        return 1e6 * full_rank_loop(X, y, epochs) / steps

    found = {"skvi": [], "torch loop": []}
    for _ in range(args.repeats):
        found["skvi"].append(ours())
        found["torch loop"].append(plain())
    for name, micro in found.items():
        print(f"  {name:<12}{median(micro)}")


def full_rank_loop(X, y, epochs):
    """Reparameterized draws of a full-rank normal, closed divergence, autograd."""
    n, d = X.shape
    scales, X, y = prior_scales(d), torch.from_numpy(X), torch.from_numpy(y)
    size = len(scales)
    rows, columns = torch.tril_indices(size, size, -1)
    mean = (scales * torch.randn(size)).requires_grad_()
    log_diagonal = (0.01 * scales).log().requires_grad_()
    rest = torch.zeros(len(rows), requires_grad=True)
    log_noise = torch.tensor(-0.7, requires_grad=True)
    optimizer = torch.optim.Adam([mean, log_diagonal, rest, log_noise], lr=0.01)
    start = time.perf_counter()
    for _ in range(epochs):
        for index in torch.randperm(n).split(BATCH):
            diagonal = log_diagonal.exp()
            lower = torch.zeros(size, size).index_put((rows, columns), rest)
            factor = diagonal[:, None] * lower + torch.diag(diagonal)
            f = networks(mean + torch.randn(DRAWS, size) @ factor.T, X[index])
            z = (y[index] - f) / log_noise.exp()
            loss = n / len(index) * (0.5 * z.square() + log_noise).sum(1).mean()
            moments = (factor / scales[:, None]).square().sum()
            moments = moments + (mean / scales).square().sum()
            optimizer.zero_grad()
            (loss + 0.5 * moments - log_diagonal.sum()).backward()
            optimizer.step()
    return time.perf_counter() - start


TABLES = {
    "steps": table_steps,
    "elbo": table_elbo,
    "members": table_members,
    "noise": table_noise,
    "fallback": table_fallback,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="table", help=", ".join(TABLES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000, help="in one measurement")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # fits that end by the number of epochs
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    print(
        f"{date.today()}, {os.cpu_count()} cores, {platform.machine()}, torch "
        f"{torch.__version__}, load {load:.1f}"
    )
    for name in args.tables or TABLES:
        TABLES[name](args)


if __name__ == "__main__":
    main()
