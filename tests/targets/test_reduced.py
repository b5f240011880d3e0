"""Models with fewer rows than features, in the space of the rows."""

import numpy as np
import pytest
import torch
from scipy import sparse

from skvi.likelihoods import BernoulliLikelihood
from skvi.likelihoods._categorical import CategoricalLikelihood
from skvi.losses import LogLoss
from skvi.predictors import LinearPredictor
from skvi.priors import HalfCauchy, Normal
from skvi.priors._blocks import build_prior
from skvi.targets import SupervisedTarget
from skvi.targets._reduced import reduced
from skvi.utils._rows import as_rows


def target(n_classes, is_sparse=False, n=6, d=10):
    rng = np.random.default_rng(0)
    k = 1 if n_classes == 2 else n_classes
    model = LinearPredictor(d, k)
    blocks = {"coef": Normal(HalfCauchy(0.5)), "intercept": Normal(10.0)}
    likelihood = BernoulliLikelihood() if k == 1 else CategoricalLikelihood(k)
    X, y = rng.normal(size=(n, d)), torch.arange(n).double() % n_classes
    X[:, 0] = X[:, 1]  # of lower rank than it has columns
    rows = as_rows(sparse.csr_array(X)) if is_sparse else torch.from_numpy(X)
    prior = build_prior(blocks, model.layout)
    return SupervisedTarget(model, likelihood, LogLoss(), prior, rows, y)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_fitted_values_and_prior_are_the_same(n_classes, is_sparse):
    """At a known scale, and so at all of them. Wrong variants: the noise in the rows.

    The ratio of the densities of all coefficients is that of the others, in the prior.
    """
    whole = target(n_classes, is_sparse)
    small = reduced(whole)
    generator = torch.Generator().manual_seed(0)
    size = small.target.layout.size
    theta = torch.randn(20_000, size, generator=generator, dtype=torch.float64)
    scale = torch.full((20_000,), 2.0, dtype=torch.float64)
    full = small.expand(theta, scale, generator)
    dense = whole.X.to(torch.float64) if not is_sparse else whole.X
    torch.testing.assert_close(
        whole.predictor.forward(full[:50], dense),
        small.target.predictor.forward(theta[:50], small.target.X),
    )
    # Coordinates outside of the row space have the prior's deviation.
    (rank, d), k = small.basis.shape, small.n_outputs
    inside = full[:, : k * d].reshape(-1, k, d) @ small.basis.T
    torch.testing.assert_close(inside.flatten(1), theta[:, : k * rank])
    squares = full[:, : k * d].square().sum(1) - inside.square().sum((1, 2))
    wanted = 4.0 * k * (d - rank)
    assert float(squares.mean()) == pytest.approx(wanted, rel=0.03)


def test_only_with_fewer_rows_and_one_scale():
    assert reduced(target(2, n=12)) is None
    assert reduced(target(2)).target.layout.size == 7
