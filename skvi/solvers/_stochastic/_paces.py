"""Relative step sizes of the parameters of networks."""

import torch

from skvi.base import Layout
from skvi.base._layout import Block
from skvi.solvers.base import Problem
from skvi.targets.base import Target
from skvi.utils._device import CPU

__all__ = ["paces", "without_steps"]

# Step of a weight's mean, in steps of other parameters, times the number of inputs of a
# unit; and the largest one. Chosen on training rows, with steps of 0.05: a quarter ends
# at a constant with three layers of 100 units, twice as much too, and waves in 100 rows
# end 2 to 7 nats lower with smaller ones.
WIDTH_SHARE, LARGEST = 40.0, 2.0
# Rows that tell the sizes of features.
MANY = 2000
# Roles of blocks that are parts of a network.
NETWORK = ("weight", "intercept", "affine")


def paces(problem: Problem) -> torch.Tensor | None:
    """Factors of the steps of every parameter of a network, (V,); None if all are 1.

    Adam moves all weights of a unit alike: it changes by the sum of the steps. Hence
    one over the number of inputs, the square of the natural scale (Yang et al. 2021,
    *Tuning large neural networks via zero-shot hyperparameter transfer*). What is not
    in units of weights, such as logs of standard deviations and learned scales, has no
    width. Features larger than 1 make all units as large, and their changes.
    """
    posterior, target = problem.posterior, problem.target
    if posterior.starts_at_normal or not _has_widths(target.layout):
        return None
    of_theta = _of_layout(target.layout) / _size_of_features(target)
    parts = [part.paces(of_theta) for part in posterior.components]
    return torch.cat([*parts, _of_layout(target.point_layout)])


def without_steps(
    problem: Problem, fixed: torch.Tensor, pace: torch.Tensor | None
) -> torch.Tensor:
    """Factors that are 0 for means and deviations of some parameters, (V,)."""
    n_components, params = len(problem.posterior.components), problem.params
    if pace is None:
        pace = torch.ones_like(params)
    still = fixed.to(params.device).repeat(2 * n_components)
    rest = still.new_zeros(len(params) - len(still))
    return pace.to(params).masked_fill(torch.cat([still, rest]), 0.0)


def _size_of_features(target: Target) -> float:
    """Root mean square of the largest feature in some rows; 1 if it is smaller."""
    rows = getattr(target, "rows", None)
    if rows is None or not len(rows.X):
        return 1.0
    X = rows.X[:MANY].flatten(1).double()
    return max(1.0, float(X.square().mean(0).max().sqrt()))


def _has_widths(layout: Layout) -> bool:
    """Whether any block is narrower than one, as weights of several inputs are."""
    return any(block.scale < 1 for block in layout.values())


def _of_layout(layout: Layout) -> torch.Tensor:
    """Factors of the steps of parameters themselves."""
    parts = [
        torch.full((block.size,), _of_block(block), dtype=torch.float64, device=CPU)
        for block in layout.values()
    ]
    return torch.cat([torch.zeros(0, dtype=torch.float64, device=CPU), *parts])


def _of_block(block: Block) -> float:
    if block.role not in NETWORK:
        return 1.0
    return min(WIDTH_SHARE * block.scale**2, LARGEST)
