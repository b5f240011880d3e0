"""L-BFGS, which fits of log densities on fixed draws, and paths to modes, take."""

import numpy as np
import pytest
import torch

from skvi.solvers._mode import LBFGS


def rosenbrock(x):
    value = 100 * (x[1:] - x[:-1] ** 2).square().sum() + (1 - x[:-1]).square().sum()
    return value


@pytest.mark.parametrize("wall", [np.inf, 1.05])
def test_lbfgs_minimizes_beside_a_wall(wall):
    """Wrong variant: a value behind the wall is accepted as a decrease."""
    seen = []

    def evaluate(x):
        if float(x.max()) > wall:
            return np.inf, torch.zeros_like(x)
        with torch.enable_grad():
            leaf = x.clone().requires_grad_()
            value = rosenbrock(leaf)
            (gradient,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), gradient

    state = LBFGS(evaluate, torch.full((6,), -1.0, dtype=torch.float64))
    for _ in range(200):
        seen.append(state.value)
        if not state.step():
            break
    assert np.all(np.diff(seen) <= 0)
    torch.testing.assert_close(state.x, torch.ones(6).double(), rtol=1e-5, atol=1e-5)
    assert state.decrement < 1e-10
