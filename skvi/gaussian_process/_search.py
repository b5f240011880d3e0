"""Search for hyperparameters and inducing points of largest evidence, or ELBO."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.cluster import MiniBatchKMeans

from skvi.utils._tensors import Movable

Objective = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]

# Iterations of a search, and of one that only has to come near.
MAX_ITER, FEW_ITER = 100, 30
# Slope in nats per unit of a logarithm at which it ends; relative gain.
SLOPE, GAIN = 1e-2, 1e-7
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


@dataclass(frozen=True, eq=False)
class Search:
    """What is maximized, within which limits.

    `objective` is a function of theta and Z in nats, differentiable in both; `sizes`,
    (d,), are the units in which inducing points move; `optimizer` is None for none,
    "fmin_l_bfgs_b", or a function as scikit-learn's Gaussian processes take it.
    """

    objective: Objective
    bounds: np.ndarray
    sizes: torch.Tensor
    optimizer: Any

    def improve(
        self, start: Place, max_iter: int = MAX_ITER, moves: bool = False
    ) -> Place:
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

    def _run(self, memory: "_Memory", max_iter: int) -> None:
        n, at = len(memory.start.theta), memory.vector()
        if self.optimizer is None or not len(at):
            memory(at)
            return
        if callable(self.optimizer):

            def evaluate(theta: np.ndarray, eval_gradient: bool = True) -> Any:
                value, slope = memory(theta)
                return (value, slope) if eval_gradient else value

            found = self.optimizer(evaluate, at, self.bounds)
            memory(np.asarray(found[0], np.float64))
            return
        free = np.tile([-np.inf, np.inf], (len(at) - n, 1))
        minimize(
            memory,
            at,
            jac=True,
            method="L-BFGS-B",
            bounds=np.vstack([self.bounds, free]),
            options={"maxiter": max_iter, "gtol": SLOPE, "ftol": GAIN},
        )


class _Memory:
    """Minus the objective and its gradient, with the best place that was passed."""

    def __init__(self, search: Search, start: Place, moves: bool) -> None:
        self.search, self.start = search, start
        #: The points that move, if any do.
        self.moving = start.Z if moves else None
        self.best = replace(start, value=-math.inf, n_evaluations=0)

    def vector(self) -> np.ndarray:
        """Theta, and inducing points if they move, in their units."""
        if self.moving is None:
            return self.start.theta
        own = (self.moving / self.search.sizes).numpy()
        return np.append(self.start.theta, own.ravel())

    def __call__(self, at: np.ndarray) -> tuple[float, np.ndarray]:
        vector = torch.tensor(at, requires_grad=True)
        theta, Z = vector[: len(self.start.theta)], self.start.Z
        if self.moving is not None:
            points = vector[len(theta) :].reshape(self.moving.shape)
            Z = points * self.search.sizes
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
    X: torch.Tensor, n_points: int, lengths: torch.Tensor, seed: int
) -> torch.Tensor:
    """Centers of clusters of rows, (n_points, d), in units of the length scales.

    Columns that do not matter do not count.
    """
    scaled = (X / lengths).numpy().astype(np.float32)
    means = MiniBatchKMeans(
        n_points,
        n_init=1,
        random_state=seed,
        batch_size=KMEANS_BATCH,
        max_iter=KMEANS_ITER,
    )
    centers = means.fit(scaled).cluster_centers_.astype(np.float64)
    return torch.from_numpy(centers) * lengths
