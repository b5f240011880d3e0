"""What importance weights and other starts say about a posterior."""

import math

import pytest
import torch
from torch.distributions import Gamma, HalfCauchy, LKJCholesky, LogNormal

from skvi.base import NormalForm
from skvi.evidence._changes import Changes, other_modes
from skvi.posteriors import FullRankNormal
from skvi.solvers._paths import Start
from skvi.targets._density import DensityTarget


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


def changes(density, shape, support, normal, seed):
    target = DensityTarget(
        lambda p: density(p["x"]).reshape(len(p["x"]), -1).sum(1),
        {"x": shape},
        {"x": support},
    )
    q = FullRankNormal().build(target.layout).near(normal)
    return Changes.of(target, q, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(5))
def test_constants_do_not_change(seed):
    """Zeros above the diagonal of a matrix, and its first element.

    Wrong variant: deviations of at least 1e-300 (4e284 of them).
    """
    b = torch.tensor([2.5, 2.5, 2.0], dtype=torch.float64)  # of partial correlations
    normal = NormalForm(0 * b, torch.diag((torch.polygamma(1, b) / 2).sqrt()))
    density = LKJCholesky(3, torch.tensor(2.0, dtype=torch.float64)).log_prob
    found = changes(density, (3, 3), "corr_cholesky", normal, seed)
    assert found.mean < 0.1
    assert found.std < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shift", [0.0, 0.4])
def test_changes_are_beyond_their_errors(seed, shift):
    """A hundred logs of gammas, and normals of their moments, but for one mean.

    Wrong variant: changes without errors, which are 0.2 of some of them.
    """
    shape = torch.tensor(6.0, dtype=torch.float64)
    d, size = 100, torch.polygamma(1, shape)
    mean = torch.digamma(shape).expand(d).clone()
    mean[0] += shift * size.sqrt()
    normal = NormalForm(mean, size.sqrt() * torch.eye(d, dtype=torch.float64))
    density = Gamma(shape, torch.tensor(1.0, dtype=torch.float64)).log_prob
    found = changes(density, (d,), "positive", normal, seed)
    assert (found.mean > 0.15) == (shift > 0), found.mean


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("density", [LogNormal(0.0, 30.0), HalfCauchy(1.0)])
def test_heavy_tails_are_judged_by_their_coordinates(density, seed):
    """Moments that overflow or are infinite. Wrong variant: of the values."""
    std = 30.0 if isinstance(density, LogNormal) else math.pi / 2
    one = torch.ones(1, dtype=torch.float64)
    normal = NormalForm(0 * one, std * one[None])
    found = changes(density.log_prob, (), "positive", normal, seed)
    assert max(found.mean, found.std) < 0.1
    wide = NormalForm(0 * one, 1.5 * std * one[None])
    found = changes(density.log_prob, (), "positive", wide, seed)
    assert found.std > 0.15
    assert math.isfinite(found.std)
