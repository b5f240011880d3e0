"""What starts of a fit say about other modes."""

import pytest
import torch

from skvi.base import NormalForm
from skvi.evidence._changes import other_modes
from skvi.solvers._paths import Start


@pytest.mark.parametrize("place", ["on the ridge", "elsewhere"])
def test_other_modes(place):
    """A long ridge, under a factorized normal of its width, and a start on it.

    Wrong variant: distances in deviations of the factorized normal alone.
    """
    covariance = torch.tensor([[1.0, 0.9999], [0.9999, 1.0]], dtype=torch.float64)
    zero = torch.zeros(2, dtype=torch.float64)
    ridge = NormalForm(zero, torch.linalg.cholesky(covariance))
    width = (1 / torch.linalg.inv(covariance).diagonal()).sqrt()
    best = NormalForm(zero, width)
    end = 2.0 + zero if place == "on the ridge" else torch.tensor([2.0, -2.0]).double()
    starts = [Start(ridge, 10.0), Start(NormalForm(end, width), 14.0)]
    message = other_modes(starts, best, 14.0)
    assert ("1 of 2 starts" in message) == (place == "elsewhere")
