"""Noise of gradient rules for a small convolution on scikit-learn's digits.

    PYTHONPATH=. python benchmarks/convolution_gradients.py    # a minute

The network has a convolution with 8 channels of 3 x 3 pixels, relu, pooling, and a
dense layer with 730 of its 810 parameters. At a fitted mean-field q, with the weight 1
of the divergence, each line has the total variance of a gradient of the expected loss
from 64 rows, in coordinates in which the Fisher information of q is the identity: with
fixed rows, and with random ones; milliseconds of a gradient; and how far its mean is
from that of two pairs of draws, as a root mean square of standard errors (1 without
bias) and the largest of 1,620.

weights          of all rows
flipout          the same, with random signs of the noise in each row (Wen et al. 2018)
dense layer      its outputs for each row, and weights of the convolution
both layers      the mean-field form: outputs of the convolution, too, as if they were
                 independent at all positions

A pair has opposed noise.
"""

import argparse
import time
import warnings

import torch
from digits_convolution import split
from torch import nn
from torch.nn.functional import conv2d, cross_entropy, linear, max_pool2d

from skvi.neural_network import BayesianModuleClassifier
from skvi.solvers import Stochastic

WIDTH, N_ROWS, N_CLASSES = 8, 64, 10


def network(n_outputs=N_CLASSES):
    """The network of all rules."""
    layers = nn.Conv2d(1, WIDTH, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(9 * WIDTH, n_outputs))


def pooled(h):
    """Hidden units from the outputs of the convolution."""
    return max_pool2d(torch.relu(h), 2).flatten(1)


class Gradients:
    """Gradients at a q, from fixed or from random rows."""

    def __init__(self, X, y, model):
        self.X, self.y = torch.from_numpy(X), torch.from_numpy(y)
        self.layout, q = model.posterior_.layout, model.posterior_.as_normal()
        self.q = q.mean.float(), q.scale.float()

    def blocks(self, values):
        """Weights and biases of the convolution and of the dense layer."""
        return [block[0] for block in self.layout.unpack(values[None]).values()]

    def sample(self, rule, n_draws, count, seed, has_fixed_rows):
        """So many gradients, and milliseconds of each."""
        generator, found = torch.Generator().manual_seed(seed), []
        rows, start = torch.arange(N_ROWS), time.process_time()
        for _ in range(count):
            mean, std = (v.clone().requires_grad_() for v in self.q)
            if not has_fixed_rows:
                rows = torch.randperm(len(self.X), generator=generator)[:N_ROWS]
            f = rule(self, mean, std, self.X[rows], n_draws, generator)
            labels = self.y[rows].repeat(len(f) // N_ROWS)
            loss = cross_entropy(f, labels) * len(self.X)
            by_mean, by_std = torch.autograd.grad(loss, (mean, std))
            scaled = by_mean * self.q[1], by_std * self.q[1] / 2**0.5
            found.append(torch.cat(scaled))
        seconds = time.process_time() - start
        return torch.stack(found), 1e3 * seconds / count


def opposed(n_draws, generator, *shapes):
    """Noise of one draw, or of pairs of draws, one after the other."""
    for _ in range((n_draws + 1) // 2):
        noise = [torch.randn(shape, generator=generator) for shape in shapes]
        yield noise
        if n_draws > 1:
            yield [-one for one in noise]


def weights(g, mean, std, X, n_draws, generator):
    found = []
    for (noise,) in opposed(n_draws, generator, mean.shape):
        a, b, A, B = g.blocks(mean + std * noise)
        found.append(linear(pooled(conv2d(X, a, b)), A, B))
    return torch.cat(found)


def flipout(g, mean, std, X, n_draws, generator):
    n, found = len(X), []

    def sign(*shape):
        return 2.0 * torch.randint(0, 2, shape, generator=generator) - 1

    pixels, channels, bias = sign(n, 1, 1, 1), sign(n, WIDTH, 1, 1), sign(n, WIDTH)
    units, classes, last = sign(n, 9 * WIDTH), sign(n, N_CLASSES), sign(n, N_CLASSES)
    a, b, A, B = g.blocks(mean)
    for (noise,) in opposed(n_draws, generator, mean.shape):
        da, db, dA, dB = g.blocks(std * noise)
        h = conv2d(X, a, b) + channels * conv2d(X * pixels, da)
        h = pooled(h + (bias * db)[..., None, None])
        f = linear(h, A, B) + classes * linear(h * units, dA)
        found.append(f + last * dB)
    return torch.cat(found)


def dense_layer(g, mean, std, X, n_draws, generator):
    (_, _, A, B), (_, _, vA, vB), found = *map(g.blocks, (mean, std.square())), []
    shapes = mean.shape, (len(X), N_CLASSES)
    for noise, by_row in opposed(n_draws, generator, *shapes):
        a, b, *_ = g.blocks(mean + std * noise)
        h = pooled(conv2d(X, a, b))
        found.append(linear(h, A, B) + linear(h.square(), vA, vB).sqrt() * by_row)
    return torch.cat(found)


def both_layers(g, mean, std, X, n_draws, generator):
    (a, b, A, B), (va, vb, vA, vB), found = *map(g.blocks, (mean, std.square())), []
    shapes = (len(X), WIDTH, 6, 6), (len(X), N_CLASSES)
    for by_place, by_row in opposed(n_draws, generator, *shapes):
        h = conv2d(X, a, b) + conv2d(X.square(), va, vb).sqrt() * by_place
        h = pooled(h)
        found.append(linear(h, A, B) + linear(h.square(), vA, vB).sqrt() * by_row)
    return torch.cat(found)


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicates", type=int, default=1000)
    count = parser.parse_args().replicates
    torch.set_num_threads(1)
    X, y, *_ = split(0, False)
    model = BayesianModuleClassifier(
        module=network,
        divergence="kl",
        solver=Stochastic(n_draws=2, learning_rate=0.01),
        max_iter=100,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gradients = Gradients(X, y, model.fit(X, y))
    reference, _ = gradients.sample(weights, 4, count, 0, True)
    for rule in (weights, flipout, dense_layer, both_layers):
        for n_draws in (1, 2):
            fixed, _ = gradients.sample(rule, n_draws, count, 1, True)
            drawn, ms = gradients.sample(rule, n_draws, count, 2, False)
            error = ((fixed.var(0) + reference.var(0)) / count).sqrt()
            z = (fixed.mean(0) - reference.mean(0)) / error
            print(
                f"{rule.__name__:12} {n_draws}   fixed rows {fixed.var(0).sum():8.0f}"
                f"   random rows {drawn.var(0).sum():8.0f}   {ms:.2f} ms   bias "
                f"{z.square().mean().sqrt():.2f}, {z.abs().max():.1f} errors",
                flush=True,
            )


if __name__ == "__main__":
    main()
