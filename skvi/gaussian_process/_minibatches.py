"""Kernel, noise and inducing points from minibatches of rows."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from skvi.base import NormalForm
from skvi.base._rows import deal
from skvi.gaussian_process._bounds import Fitted, features_at
from skvi.gaussian_process._search import Place, Search
from skvi.priors import Normal
from skvi.solvers._stochastic._optimizers import Adam, AdamStack
from skvi.targets import SupervisedTarget
from skvi.targets._blocks import sums_at

# Step of Adam, in logarithms and deviations of columns, and least natural step.
RATE, SHARE = 0.02, 0.05
# Gradient steps of an iteration.
STEPS = 10


@dataclass(frozen=True, eq=False)
class Natural:
    """The normal of the inducing values: mean (P,), precision and root (P, P)."""

    mean: torch.Tensor
    precision: torch.Tensor
    scale: torch.Tensor

    def step(self, target: SupervisedTarget, share: float) -> "Natural":
        """A natural gradient step, which for normal noise and share 1 is the last."""
        at = NormalForm(self.mean[None], self.scale[None])
        sums = sums_at([target], at)
        gram, slope = sums.convex(sums.gram())[0], sums.gradient()[0] + self.mean
        gram.diagonal().add_(1.0)
        precision = torch.lerp(self.precision, gram, share)
        root = torch.linalg.cholesky(precision)
        mean = self.mean - share * torch.cholesky_solve(slope[:, None], root)[:, 0]
        scale = torch.linalg.cholesky(torch.cholesky_inverse(root))
        return Natural(mean, precision, scale)

    def normal(self) -> NormalForm:
        """Mean and root of the covariance."""
        return NormalForm(self.mean, self.scale)


class Minibatches:
    """Steps from a place: natural gradients for q, Adam for all other numbers.

    `objective` is that of all rows. Each step takes `batch_size` of them, whose losses
    are scaled up: no features of others are made.
    """

    def __init__(
        self, search: Search, batch_size: int, generator: torch.Generator
    ) -> None:
        self.search, self.generator = search, generator
        self.objective: Fitted = search.objective.for_batches()
        n = len(self.objective.rows.X)
        self.n_batches = math.ceil(n / batch_size)

    def improve(self, start: Place, max_iter: int, moves: bool) -> Place:
        """The place after `max_iter` iterations; after Ctrl-C that so far."""
        n_steps, values, batches = STEPS * max_iter, [], []
        points = torch.as_tensor(start.Z) / self.search.sizes
        vector = torch.from_numpy(start.theta.copy())
        if moves:
            vector = torch.cat([vector, points.flatten()])
        low, high = torch.from_numpy(self.search.bounds.T.copy())
        vector = vector[None]
        gradient, adam = torch.zeros_like(vector), Adam(vector[0], RATE)
        stack, q = AdamStack([adam], vector, gradient), None
        interrupted = False
        try:
            for step in range(n_steps):
                batches = batches or deal(
                    len(self.objective.rows.X), self.n_batches, self.generator
                )
                adam.rate = RATE * min(1.0, 2 * (1 - step / n_steps))
                at = vector[0].clone().requires_grad_()
                share = max(1 / (step + 1), SHARE)
                value, q = self._value(at, start, batches.pop(), q, share)
                gradient[0] = -torch.autograd.grad(value, at)[0]
                if not (value.isfinite() and gradient.isfinite().all()):
                    break
                values.append(float(value.detach()))
                for update in stack.updates(1):
                    update()
                vector[0, : len(low)].clamp_(low, high)
        except KeyboardInterrupt:
            if not values:
                raise
            interrupted = True
        except (np.linalg.LinAlgError, torch.linalg.LinAlgError):
            pass
        theta, Z = self._parts(vector[0], start)
        mean = float(np.mean(values[-len(values) // 4 :])) if values else -math.inf
        found = Place(theta.numpy().copy(), Z, mean, len(values), interrupted)
        return replace(found, converged=False)

    def _parts(self, vector: torch.Tensor, start: Place) -> tuple:
        """Hyperparameters and inducing points."""
        n = len(start.theta)
        if len(vector) == n:
            return vector, start.Z
        points = vector[n:].reshape(torch.as_tensor(start.Z).shape)
        return vector[:n], points * self.search.sizes

    def _value(
        self,
        vector: torch.Tensor,
        start: Place,
        index: torch.Tensor,
        q: list[Natural] | None,
        share: float,
    ) -> tuple[torch.Tensor, list[Natural]]:
        """Estimate of the ELBO after a step of q, differentiable in the vector."""
        theta, Z = self._parts(vector, start)
        whole, n = self.objective, self.objective.kernel.n_dims
        rows = whole.rows.some(index)
        weight = rows.y.new_ones(len(index)) if rows.weight is None else rows.weight
        scale = len(whole.rows.X) / len(index)
        part = whole.with_rows(replace(rows, weight=scale * weight))
        X = features_at(whole.kernel, theta[:n], Z, rows.X)
        targets, value = part.targets(X, theta[n:]), whole.log_prior(theta)
        if q is None:
            size = targets[0].layout.size
            eye = torch.eye(size, dtype=X.dtype, device=X.device)
            q = [Natural(torch.zeros_like(eye[0]), eye, eye)] * len(targets)
        prior, found = Normal().build(targets[0].layout), []
        for target, last in zip(targets, q, strict=True):
            with torch.no_grad():
                found.append(last.step(target.frozen(), share))
                normal = found[-1].normal()
                distance = whole.parts[2].closed_form(normal, prior)
            value = value - target.expected_loss(normal) - distance
        return value, found
