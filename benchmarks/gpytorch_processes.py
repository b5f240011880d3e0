"""Gaussian processes beside GPyTorch's: bounds, minibatches and several layers.

    pip install gpytorch
    SKVI_DATA=... PYTHONPATH=. python benchmarks/gpytorch_processes.py [PART ...]

First standard split, standardized features and target, double precision, processor
seconds of one thread. GPyTorch goes on until it has used twice the seconds of skvi,
which is measured first: `equal` and `twice` are its scores after the seconds of skvi
and at the end. Both have one Matern 5/2 kernel with a scale for each feature, and
centers of clusters as the first inducing points.

- bound: 500 points, all rows in each step; the score is the lower bound of both.
- batches: 100 points, batches of 500; the score is the mean log density of held-out
  rows. `epochs` is GPyTorch's after as many epochs as skvi; "natural" has natural
  gradients for the inducing values.
- deep: two layers, 100 points; log density of held-out rows. "example" has the settings
  of GPyTorch's own example (10 hidden outputs, normal kernels, 128 points, 10 draws),
  and as many epochs as the seconds allow. "tuned" moves all features, and has skvi's
  kernel and number of points, small deviations of the hidden values at the start, one
  draw, and batches of 500.
"""

import csv
import math
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from gaussian_processes import PAGE, density, split_of
from runs import read, sweep
from sklearn.cluster import MiniBatchKMeans
from sklearn.preprocessing import StandardScaler

from skvi.gaussian_process import (
    DeepGaussianProcessRegressor,
    SparseGaussianProcessRegressor,
)

try:
    import gpytorch as gp
except ImportError:
    sys.exit("gpytorch is not installed: pip install gpytorch")

RESULTS = Path(__file__).parent / "results" / "gpytorch_processes.csv"
BATCH, LIMIT = 500, 2.0
BATCH_ITER = 100
KEYS = "part", "set", "model"


def data_of(name):
    """Standardized split, and the deviation of y."""
    X, y, X_new, y_new = split_of(name)
    keep = X.std(0) > 0
    scaler = StandardScaler().fit(X[:, keep])
    X, X_new = scaler.transform(X[:, keep]), scaler.transform(X_new[:, keep])
    return X, (y - y.mean()) / y.std(), X_new, (y_new - y.mean()) / y.std(), y.std()


def centers(X, n_points):
    means = MiniBatchKMeans(n_points, n_init=1, random_state=0, batch_size=1024)
    return torch.from_numpy(means.fit(X).cluster_centers_)


def kernel_of(d, shape=()):
    """Skvi's default kernel, at its start."""
    shape = torch.Size(shape)
    base = gp.kernels.MaternKernel(nu=2.5, ard_num_dims=d, batch_shape=shape)
    base.lengthscale = 0.7 * math.sqrt(d)
    kernel = gp.kernels.ScaleKernel(base, batch_shape=shape)
    kernel.outputscale = 1.0
    return kernel


def likelihood_of(noise=0.1):
    likelihood = gp.likelihoods.GaussianLikelihood(
        noise_constraint=gp.constraints.GreaterThan(1e-8)
    )
    likelihood.noise = noise
    return likelihood


class SparseRegression(gp.models.ExactGP):
    """Titsias' bound."""

    def __init__(self, X, y, likelihood):
        super().__init__(X, y, likelihood)
        self.mean_module = gp.means.ZeroMean()
        self.covar_module = gp.kernels.InducingPointKernel(
            kernel_of(X.shape[1]), centers(X.numpy(), 500), likelihood
        )

    def forward(self, X):
        return gp.distributions.MultivariateNormal(
            self.mean_module(X), self.covar_module(X)
        )


class Variational(gp.models.ApproximateGP):
    """Inducing values that are trained."""

    def __init__(self, X, is_natural):
        Z = centers(X.numpy(), 100)
        values = gp.variational.CholeskyVariationalDistribution
        if is_natural:
            values = gp.variational.NaturalVariationalDistribution
        strategy = gp.variational.VariationalStrategy(self, Z, values(len(Z)))
        super().__init__(strategy)
        self.mean_module = gp.means.ZeroMean()
        self.covar_module = kernel_of(X.shape[1])

    def forward(self, X):
        return gp.distributions.MultivariateNormal(
            self.mean_module(X), self.covar_module(X)
        )


class DeepLayer(gp.models.deep_gps.DeepGPLayer):
    """A layer of GPyTorch's example, or one like skvi's."""

    def __init__(self, X, width, is_example, is_last):
        d, shape = X.shape[1], torch.Size([width] if width else [])
        Z = torch.randn(*shape, 128, d) if is_example else centers(X.numpy(), 100)
        if not is_example and width:
            Z = Z.expand(*shape, *Z.shape).clone()
        values = gp.variational.CholeskyVariationalDistribution(
            Z.shape[-2],
            batch_shape=shape,
            mean_init_std=1e-3,
        )
        strategy = gp.variational.VariationalStrategy(self, Z, values)
        super().__init__(strategy, d, width)
        self.is_last, self.is_example = is_last, is_example
        constant = gp.means.ConstantMean(), gp.means.LinearMean(d, batch_shape=shape)
        self.mean_module = constant[0] if is_last else constant[1]
        self.covar_module = kernel_of(d, shape)
        if is_example:
            normal = gp.kernels.RBFKernel(ard_num_dims=d, batch_shape=shape)
            self.covar_module = gp.kernels.ScaleKernel(normal, batch_shape=shape)
        elif not is_last:
            with torch.no_grad():
                values.chol_variational_covar.mul_(1e-2)
                self.mean_module.weights.copy_(torch.eye(d)[..., None])
                self.mean_module.bias.zero_()

    def forward(self, X):
        return gp.distributions.MultivariateNormal(
            self.mean_module(X), self.covar_module(X)
        )


class Deep(gp.models.deep_gps.DeepGP):
    """Two layers."""

    def __init__(self, X, is_example):
        super().__init__()
        width = 10 if is_example else X.shape[1]
        self.hidden = DeepLayer(X, width, is_example, False)
        inner = X if not is_example else X.new_zeros(1, width)
        self.last = DeepLayer(inner, None, is_example, True)
        self.likelihood = likelihood_of(0.6932 if is_example else 0.1)

    def forward(self, X):
        return self.last(self.hidden(X))


class Watch:
    """Processor seconds of training, and the scores at marks."""

    def __init__(self, limit):
        self.limit, self.seconds, self.start = limit, 0.0, time.process_time()
        self.marks = {}

    def passes(self, name, is_due, score):
        """Note the score once it is due; scoring takes no time."""
        self.seconds += time.process_time() - self.start
        if is_due and name not in self.marks:
            self.marks[name] = score()
        self.start = time.process_time()

    @property
    def is_over(self):
        return self.seconds + time.process_time() - self.start > self.limit


def bound_of_gpytorch(name, model, ours):
    """The largest bound by Adam or L-BFGS, and when."""
    X, y, *_ = (torch.from_numpy(np.ascontiguousarray(a)) for a in data_of(name)[:2])
    watch = Watch(LIMIT * ours)
    likelihood = likelihood_of()
    process = SparseRegression(X, y, likelihood).train()
    objective = gp.mlls.ExactMarginalLogLikelihood(likelihood, process)
    parameters, values = list(process.parameters()), []
    if "L-BFGS" in model:
        optimizer = torch.optim.LBFGS(
            parameters, max_iter=10, history_size=20, line_search_fn="strong_wolfe"
        )
    else:
        optimizer = torch.optim.Adam(parameters, lr=float(model.split()[-1]))

    def closure():
        optimizer.zero_grad()
        loss = -objective(process(X), y)
        loss.backward()
        values.append(-float(loss) * len(y))
        watch.passes("equal", watch.seconds > ours, lambda: max(values))
        return loss

    while not watch.is_over:
        optimizer.step(closure)
    watch.passes("twice", True, lambda: max(values))
    return watch, len(values)


def trained(watch, model, optimizers, objective, X, y, batch, score, due):
    """Steps by minibatches until the time is over; number of epochs."""
    n_steps, epoch = math.ceil(len(y) / batch), 0
    while not watch.is_over:
        for rows in torch.randperm(len(y)).split(batch):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = -objective(model(X[rows]), y[rows])
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            watch.passes("equal", due(watch), score)
            if watch.is_over:
                break
        epoch += 1
        watch.passes("epochs", epoch * n_steps >= 10 * BATCH_ITER, score)
    watch.passes("twice", True, score)
    return epoch


def batches_of_gpytorch(name, model, ours):
    """Log densities of a variational process."""
    X, y, X_new, y_new, scale = data_of(name)
    X, y, X_new = (torch.from_numpy(np.ascontiguousarray(a)) for a in (X, y, X_new))
    watch, is_natural = Watch(LIMIT * ours), "natural" in model
    likelihood, process = likelihood_of(), Variational(X, is_natural)
    hyper = [*process.hyperparameters(), *likelihood.parameters()]
    inducing = list(process.variational_parameters())
    optimizers = [torch.optim.Adam(hyper, lr=0.01)]
    if is_natural:
        optimizers.append(gp.optim.NGD(inducing, num_data=len(y), lr=0.1))
    else:
        optimizers[0].add_param_group({"params": inducing})
    objective = gp.mlls.VariationalELBO(likelihood, process, len(y))

    @torch.no_grad()
    def score():
        process.eval()
        found = likelihood(process(X_new))
        process.train()
        parts = found.mean.numpy(), found.stddev.numpy(), y_new
        return density(*parts) - math.log(scale)

    parts = process, optimizers, objective, X, y, BATCH, score
    return watch, trained(watch, *parts, lambda watch: watch.seconds > ours)


def deep_of_gpytorch(name, model, ours):
    """Log densities of two layers."""
    X, y, X_new, y_new, scale = data_of(name)
    parts = (np.ascontiguousarray(a) for a in (X, y, X_new, y_new))
    X, y, X_new, y_new = map(torch.from_numpy, parts)
    torch.manual_seed(0)
    watch, is_example = Watch(LIMIT * ours), model == "GPyTorch, example"
    process = Deep(X, is_example).train()
    objective = gp.mlls.DeepApproximateMLL(
        gp.mlls.VariationalELBO(process.likelihood, process, len(y))
    )
    optimizers = [torch.optim.Adam(process.parameters(), lr=0.01)]

    @torch.no_grad()
    def score():
        process.eval()
        with gp.settings.num_likelihood_samples(100):
            found = process.likelihood(process(X_new))
        process.train()
        each = torch.distributions.Normal(found.mean, found.stddev).log_prob(y_new)
        each = torch.logsumexp(each, 0) - math.log(len(each))
        return float(each.mean()) - math.log(scale)

    batch = 1024 if is_example else BATCH
    parts = process, optimizers, objective, X, y, batch, score
    with gp.settings.num_likelihood_samples(10 if is_example else 1):
        return watch, trained(watch, *parts, lambda watch: watch.seconds > ours)


def of_skvi(part, name):
    """Score and seconds of skvi."""
    X, y, X_new, y_new, scale = data_of(name)
    options = {"n_inducing": 500 if part == "bound" else 100, "random_state": 0}
    if part == "deep":
        model = DeepGaussianProcessRegressor(**options)
    else:
        model = SparseGaussianProcessRegressor(**options)
    if part == "batches":
        model.set_params(batch_size=BATCH, max_iter=BATCH_ITER)
    start = time.process_time()
    model.fit(X, y)
    seconds = time.process_time() - start
    if part == "bound":
        return model.lower_bound_, seconds
    return model.predict_log_density(X_new, y_new).mean() - math.log(scale), seconds


PARTS = {
    "bound": (
        ("kin8nm", "power"),
        ("GPyTorch, L-BFGS", "GPyTorch, Adam 0.1"),
        bound_of_gpytorch,
    ),
    "batches": (
        ("kin8nm",),
        ("GPyTorch, Adam", "GPyTorch, natural"),
        batches_of_gpytorch,
    ),
    "deep": (
        ("kin8nm",),
        ("GPyTorch, example", "GPyTorch, tuned"),
        deep_of_gpytorch,
    ),
}
TITLES = {
    "bound": "lower bound, 500 points",
    "batches": "log density, minibatches, 100 points",
    "deep": "log density, two layers, 100 points",
}


def one_run(part, name, model):
    """A row of the table."""
    row = {"part": part, "set": name, "model": model}
    if model == "skvi":
        score, seconds = of_skvi(part, name)
        marks, steps = {"equal": score, "twice": score}, ""
    else:
        same = {"part": part, "set": name, "model": "skvi"}.items()
        ours = next(r for r in read(RESULTS) if same <= r.items())
        watch, steps = PARTS[part][2](name, model, float(ours["seconds"]))
        marks, seconds = watch.marks, watch.seconds
    names = "epochs", "equal", "twice"
    shown = {k: f"{marks[k]:.4f}" if k in marks else "" for k in names}
    return row | {"seconds": f"{seconds:.1f}", "steps": steps} | shown


def table():
    """The table of the page: the settings of GPyTorch that end best."""
    runs, rows = read(RESULTS), []
    for part, name in dict.fromkeys((r["part"], r["set"]) for r in runs):
        own = [r for r in runs if (r["part"], r["set"]) == (part, name)]
        ours, *theirs = sorted(own, key=lambda r: r["model"] != "skvi")
        digits = ".1f" if part == "bound" else ".3f"
        if theirs:
            best = max(theirs, key=lambda r: float(r["twice"]))
            rows.append(
                {
                    "score": TITLES[part],
                    "data": name,
                    "skvi": format(float(ours["twice"]), digits),
                    "seconds": format(float(ours["seconds"]), ".0f"),
                    "GPyTorch, as many seconds": format(float(best["equal"]), digits),
                    "GPyTorch, twice as many": format(float(best["twice"]), digits),
                    "its setting": best["model"].removeprefix("GPyTorch, "),
                }
            )
    with (PAGE / "gpytorch.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    asked = sys.argv[1:] or PARTS
    runs = [
        (part, name, model)
        for part in PARTS
        if part in asked
        for name in PARTS[part][0]
        for model in ("skvi", *PARTS[part][1])
    ]
    for row in sweep(RESULTS, KEYS, runs, one_run, "GPyTorch 1.15.2"):
        print(*row.values(), flush=True)
    table()
