"""Search for hyperparameters and inducing points of largest evidence, or ELBO."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.cluster import MiniBatchKMeans

from skvi.gaussian_process._collapsed import NormalRows
from skvi.utils._tensors import Movable

# Of L-BFGS: slope in nats per unit of a logarithm, and relative gain, at which it ends;
# steps that it remembers, of thousands of numbers.
SEARCH = {"gtol": 1e-2, "ftol": 1e-7, "maxcor": 30}
# Step of a point, in deviations of the columns, that is as one of a logarithm. With 1,
# 3,000 rows of kin8nm and 200 points end 64 nats lower; 3 to 12 end alike.
PACE = 3.0
# A value that no line search accepts.
IMPOSSIBLE = 1e10
# Rows that k-means visits at once, and passes.
KMEANS_BATCH, KMEANS_ITER = 1024, 20


@dataclass(frozen=True, eq=False)
class Place(Movable):
    """Hyperparameters theta, (H,), inducing points (M, d), and the value there.

    Without inducing points every row is one.
    """

    theta: np.ndarray
    Z: torch.Tensor | None
    value: float = -math.inf
    n_evaluations: int = 0
    interrupted: bool = False
    converged: bool = True


@dataclass(frozen=True, eq=False)
class Search:
    """What is maximized, within which limits.

    `objective` is a function of theta and Z in nats, differentiable in both; `sizes`,
    (d,), are deviations of the columns; `optimizer` is None for none,
    "fmin_l_bfgs_b", or a function as scikit-learn's Gaussian processes take it.
    """

    objective: Any
    bounds: np.ndarray
    sizes: torch.Tensor
    optimizer: Any

    def improve(self, start: Place, max_iter: int, moves: bool = False) -> Place:
        """The best place that is found from a start, inducing points moved on demand.

        After Ctrl-C the best so far.
        """
        memory = _Memory(self, start, moves)
        try:
            self._run(memory, max_iter)
        except KeyboardInterrupt:
            if memory.best.value == -math.inf:
                raise
            return replace(memory.best, interrupted=True)
        return memory.best

    def of_some(self, n_rows: int, random_state: np.random.RandomState) -> "Search":
        """The same search by at most so many rows, taken at random."""
        n = len(self.objective.rows.X)
        if n <= n_rows:
            return self
        index = torch.from_numpy(random_state.permutation(n)[:n_rows])
        return replace(self, objective=self.objective.of(index))

    def _run(self, memory: "_Memory", max_iter: int) -> None:
        n, at = len(memory.start.theta), memory.vector()
        if self.optimizer is None or not len(at):
            memory(at)
            return
        if callable(self.optimizer):

            def evaluate(theta: np.ndarray, eval_gradient: bool = True) -> Any:
                value, slope = memory(theta)
                return (value, slope) if eval_gradient else value

            found = self.optimizer(evaluate, at, bounds=self.bounds)
            memory(np.asarray(found[0], np.float64))
            return
        free = np.tile([-np.inf, np.inf], (len(at) - n, 1))
        found = minimize(
            memory,
            at,
            jac=True,
            method="L-BFGS-B",
            bounds=np.vstack([self.bounds, free]),
            options=SEARCH | {"maxiter": max_iter},
        )
        memory.best = replace(memory.best, converged=bool(found.success))


class _Memory:
    """Minus the objective and its gradient, with the best place that was passed."""

    def __init__(self, search: Search, start: Place, moves: bool) -> None:
        self.search, self.start = search, start
        #: The points that move, if any do.
        self.moving = start.Z if moves else None
        self.unit = PACE * search.sizes
        self.best = replace(start, value=-math.inf, n_evaluations=0)

    def vector(self) -> np.ndarray:
        """Theta, and inducing points if they move, in their units."""
        if self.moving is None:
            return self.start.theta
        own = (self.moving / self.unit).numpy()
        return np.append(self.start.theta, own.ravel())

    def __call__(self, at: np.ndarray) -> tuple[float, np.ndarray]:
        vector = torch.from_numpy(at.copy()).requires_grad_()
        theta, Z = vector[: len(self.start.theta)], self.start.Z
        if self.moving is not None:
            points = vector[len(theta) :].reshape(self.moving.shape)
            Z = points * self.unit
        try:
            with torch.enable_grad():
                value = self.search.objective(theta, Z)
            gradient = np.zeros(len(at))
            if value.requires_grad:
                gradient = torch.autograd.grad(value, vector)[0].numpy()
            number = float(value.detach())
        except (np.linalg.LinAlgError, torch.linalg.LinAlgError):
            number, gradient = -math.inf, np.zeros(len(at))
        n = self.best.n_evaluations + 1
        is_finite = math.isfinite(number) and bool(np.isfinite(gradient).all())
        self.best = replace(self.best, n_evaluations=n)
        if not is_finite:
            return IMPOSSIBLE, np.zeros(len(at))
        if number > self.best.value:
            Z = None if Z is None else Z.detach()
            theta = theta.detach().numpy().copy()
            self.best = Place(theta, Z, number, n)
        return -number, -gradient


def spread_points(
    rows: NormalRows, n_points: int, lengths: torch.Tensor, seed: int
) -> torch.Tensor:
    """Centers of clusters of rows, (n_points, d), in units of the length scales.

    Columns that do not matter do not count.
    """
    middle = rows.X.mean(0)
    scaled = ((rows.X - middle) / lengths).numpy().astype(np.float32)
    weight = None if rows.weight is None else rows.weight.numpy()
    means = MiniBatchKMeans(
        n_points,
        n_init=1,
        random_state=seed,
        batch_size=KMEANS_BATCH,
        max_iter=KMEANS_ITER,
    )
    centers = means.fit(scaled, sample_weight=weight).cluster_centers_
    return torch.from_numpy(centers.astype(np.float64)) * lengths + middle
