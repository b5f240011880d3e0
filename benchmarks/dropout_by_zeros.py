"""Dropout by zeros, as a posterior with a density, beside mean-field normals.

    SKVI_DATA=folder PYTHONPATH=. python benchmarks/dropout_by_zeros.py   # ten minutes
    PYTHONPATH=. python benchmarks/dropout_by_zeros.py --check            # one minute

The weights w of a unit, outgoing, are either near m or near 0, with one rate p for each
layer:

    q(w) = (1 - p) N(w; m, diag s^2) + p N(w; 0, diag s^2)

Gradients go along the paths of the normals; that of p is the score of the zeros times
what a draw has above the mean of all other draws, the baseline. `--check` compares them
with a sum over the zeros of a small network, and prints their variances with and
without the baseline. "zeros, fixed width" has s = 0.02 natural scales of a layer.

One hidden layer of 50 relu units, normal prior, the whole divergence, 400 iterations;
70 % of the rows for training.
"""

import argparse
import itertools
import os
import time
import warnings
from pathlib import Path

import torch
from runs import sweep
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch.nn.functional import logsigmoid, pad
from uci_networks import load

from skvi.base import Draw, NormalForm
from skvi.neural_network import BayesianMLPRegressor
from skvi.posteriors import Family
from skvi.posteriors._multiplicative import _inputs
from skvi.posteriors.base import Posterior
from skvi.predictors import MLPPredictor
from skvi.utils._tensors import rand, randn

RESULT = Path(__file__).parent / "results" / "dropout_by_zeros.csv"
DATA = "diabetes", "friedman1", "yacht"
FAMILIES = "mean_field", "zeros", "zeros, fixed width"
START_RATE, FIXED_WIDTH = 0.1, 0.02


class Scored(Draw):
    """Draws with the log probability of their zeros in place of weights."""

    has_baseline = True

    def weigh(self, values):
        """The values, whose gradient is that of the score, too."""
        own, n_others = values.detach(), len(values) - 1
        baseline = (own.sum() - own) / n_others if self.has_baseline else 0.0
        return values + (self.weight - self.weight.detach()) * (own - baseline)


class Zeros(Family):
    """Dropout by zeros."""

    def __init__(self, learns_width=True):
        self.learns_width = learns_width

    def build(self, layout, generator=None):
        """Near 0."""
        return ZerosPosterior(layout, self.learns_width)


class ZerosPosterior(Posterior):
    """Parameters: means, log widths, logits of keeping a unit, one for each layer."""

    least_draws = 2

    def __init__(self, layout, learns_width):
        self.layout, self.learns_width = layout, learns_width
        self.index, self.n_units = _inputs(layout)
        sizes = [
            b.shape[b.input_axis] for b in layout.values() if b.input_axis is not None
        ]
        self.layer = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        self.scales, self.n_layers = layout.natural_scales(), len(sizes)
        logits = torch.full((len(sizes),), 1 - START_RATE).double().logit()
        means = torch.zeros(layout.size, dtype=torch.float64)
        self.params = torch.cat([means, (0.1 * self.scales).log(), logits])

    @property
    def rates(self):
        """Rate of each layer."""
        return torch.sigmoid(-self.params.detach()[-self.n_layers :]).tolist()

    def split(self, params=None):
        """Means, widths, and the logits of units."""
        params = self.params if params is None else params
        size = self.layout.size
        mean, log_width, logits = params.split([size, size, self.n_layers])
        if not self.learns_width:
            fixed = (FIXED_WIDTH * self.scales).log().to(params)
            log_width = torch.where(self.index < self.n_units, fixed, log_width)
        return mean, log_width.exp(), logits[self.layer]

    def theta(self, kept, noise):
        """Draws, for units that are kept, (S, H)."""
        mean, width, _ = self.split()
        return pad(kept, (0, 1), value=1.0)[:, self.index] * mean + width * noise

    def log_kept(self, kept):
        """Log probabilities of the units that are kept."""
        logits = self.split()[2]
        return (kept * logsigmoid(logits) + (1 - kept) * logsigmoid(-logits)).sum(1)

    def draw_strata(self, n_draws, generator):
        """With the score; noise of the normals in opposed pairs."""
        half = randn(generator, -(-n_draws // 2), self.layout.size).to(self.params)
        noise = torch.cat([half, -half])[:n_draws]
        uniform = rand(generator, n_draws, self.n_units).to(self.params)
        kept = (uniform < self.split()[2].detach().sigmoid()).to(self.params)
        theta = self.theta(kept, noise)
        return Scored(theta, self.log_prob(theta), weight=self.log_kept(kept))

    def draw(self, n_draws, generator):
        """Without the score."""
        found = self.draw_strata(n_draws, generator)
        return Draw(found.theta, found.log_q)

    def log_prob(self, theta, params=None):
        """Exact."""
        mean, width, logits = self.split(params)
        sums = []
        for center in (mean, torch.zeros_like(mean)):
            logs = torch.distributions.Normal(center, width).log_prob(theta)
            zeros = theta.new_zeros(len(theta), self.n_units + 1)
            sums.append(zeros.index_add(1, self.index, logs))
        near, at_zero = sums
        parts = logsigmoid(logits) + near[:, :-1], logsigmoid(-logits) + at_zero[:, :-1]
        return near[:, -1] + torch.logaddexp(*parts).sum(1)

    def near(self, normal):
        """With the rate of the start."""
        logits = self.params[-self.n_layers :]
        widths = normal.variance.sqrt().log()
        return self.at(torch.cat([normal.mean, widths, logits]).to(self.params))


def one_run(name, split, family):
    """Fit a family, and score it on the other rows."""
    if name == "yacht":
        X, y, _ = load(os.environ["SKVI_DATA"], name)
    elif name == "diabetes":
        X, y = load_diabetes(return_X_y=True)
    else:
        X, y = make_friedman1(600, noise=1.0, random_state=0)
    X, X_new, y, y_new = train_test_split(X, y, test_size=0.3, random_state=split)
    scaler = StandardScaler().fit(X)
    families = {"zeros": Zeros(), "zeros, fixed width": Zeros(learns_width=False)}
    model = BayesianMLPRegressor(
        hidden_layer_sizes=(50,),
        activation="relu",
        skip_connection=False,
        likelihood="gaussian",
        prior="normal",
        divergence="kl",
        posterior=families.get(family, family),
        max_iter=400,
        random_state=split,
    )
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(scaler.transform(X), y)
    seconds, rates = time.process_time() - start, getattr(model.posterior_, "rates", [])
    density = model.predict_log_density(scaler.transform(X_new), y_new).mean()
    return {
        "set": name,
        "split": split,
        "family": family,
        "elbo": f"{model.lower_bound_:.1f}",
        "density": f"{density:.4f}",
        "rates": " ".join(f"{rate:.4f}" for rate in rates),
        "seconds": f"{seconds:.1f}",
    }


def check(n_runs=2000):
    """Gradients against a sum over the zeros of a network with four units."""
    predictor = MLPPredictor(1, 1, hidden_layer_sizes=(3,), activation="tanh")
    generator, size = torch.Generator().manual_seed(0), predictor.layout.size
    width = torch.full((size,), 0.05).double()
    q = Zeros().build(predictor.layout).near(NormalForm(randn(generator, size), width))
    X = torch.linspace(-1, 1, 20).double()[:, None]

    def loss(theta):
        f = predictor.forward(theta, X)[..., 0]
        wave = (2 * X[:, 0]).sin()
        return 50 * (f - wave).square().sum(1) + 0.5 * theta.square().sum(1)

    def gradient(function):
        leaf = q.params.clone().requires_grad_()
        return torch.autograd.grad(function(q.at(leaf)), leaf)[0]

    def enumerated(q, noise):
        total = 0.0
        for states in itertools.product((0.0, 1.0), repeat=q.n_units):
            kept = torch.tensor([states]).double()
            theta = q.theta(kept, noise)
            values = q.log_prob(theta) + loss(theta)
            total = total + q.log_kept(kept).exp() * values.mean()
        return total.sum()

    blocks = randn(generator, 4000, size).split(200)
    exact = torch.stack([gradient(lambda q, e=e: enumerated(q, e)) for e in blocks])
    for Scored.has_baseline, n_draws in itertools.product((False, True), (2, 10)):

        def estimate(q, n_draws=n_draws):
            draw = q.draw_strata(n_draws, generator)
            return (draw.weigh(draw.log_q) + draw.weigh(loss(draw.theta))).mean()

        found = torch.stack([gradient(estimate) for _ in range(n_runs)])
        error = (found.var(0) / n_runs + exact.var(0) / len(exact)).sqrt()
        z = ((found.mean(0) - exact.mean(0)) / error).abs().max()
        of_rates = ", ".join(f"{v:.0f}" for v in found.var(0)[-q.n_layers :])
        name = "baseline" if Scored.has_baseline else "no baseline"
        print(f"{name}, {n_draws} draws: bias {z:.1f} errors, variances {of_rates}")


def main():
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--splits", type=int, default=3)
    options = parser.parse_args()
    if options.check:
        return check()
    runs = itertools.product(DATA, range(options.splits), FAMILIES)
    for row in sweep(RESULT, ("set", "split", "family"), runs, one_run, "Dropout"):
        print(*row.values(), flush=True)
    return None


if __name__ == "__main__":
    main()
