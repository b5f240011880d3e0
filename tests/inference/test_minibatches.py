"""Minibatches of rows for a log likelihood of one's own."""

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from skvi.exceptions import IncompatibleComponentsError
from skvi.inference import VariationalInference, _beginning
from skvi.posteriors import LowRankNormal
from skvi.solvers import Stochastic
from skvi.targets import _density
from skvi.targets._density import RowsDensityTarget

G = torch.Generator().manual_seed(3)
X = torch.randn(600, 3, generator=G, dtype=torch.float64)
X[:, 2] = 100 * (X[:, 0] + 0.3 * X[:, 2])  # correlated, and of other units
Y = X.sum(1) + torch.randn(600, generator=G, dtype=torch.float64)
SHAPES = {"w": (3,)}


def log_likelihood(p, rows):
    X, y = rows
    return Normal(p["w"] @ X.T, 1.0).log_prob(y).sum(1)


def log_prior(p):
    return Normal(0.0, 2.0).log_prob(p["w"]).sum(1)


def exact():
    """Posterior, and log evidence."""
    covariance = torch.linalg.inv(X.T @ X + torch.eye(3, dtype=torch.float64) / 4)
    marginal = torch.eye(600, dtype=torch.float64) + 4 * X @ X.T
    log_z = MultivariateNormal(0 * Y, marginal).log_prob(Y)
    return covariance @ X.T @ Y, covariance, float(log_z)


def logistic(p, rows):
    f = p["w"] @ rows["X"].T
    return (rows["y"] * f - torch.nn.functional.softplus(f)).sum(1)


@pytest.mark.parametrize("has_anchor", [False, True])
def test_gradients_of_batches_are_unbiased(has_anchor):
    """Those of disjoint batches have the mean of all rows.

    Wrong variants: rows are not scaled up by n/batch; the anchor's gradient of rows,
    or of all, is left out.
    """
    data = {"X": X / 100, "y": (Y > 0).double()}
    target = RowsDensityTarget(logistic, SHAPES, None, data, log_prior)
    point, g = torch.tensor([0.5, -0.2, 1.0], dtype=torch.float64), torch.Generator()
    theta = point + 0.1 * torch.randn(5, 3, generator=g.manual_seed(1)).double()
    if has_anchor:
        target = target.anchored(point)

    def of(rows):
        x = theta.clone().requires_grad_()
        value = target.log_joint(x, rows)
        return value.detach(), torch.autograd.grad(value.sum(), x)[0]

    batches = torch.randperm(600, generator=g).split(30)
    values, slopes = zip(*map(of, batches), strict=True)
    value, slope = of(None)
    torch.testing.assert_close(torch.stack(values).mean(0), value)
    torch.testing.assert_close(torch.stack(slopes).mean(0), slope)
    noise = (torch.stack(slopes) - slope).std()
    assert (noise < 1) == has_anchor


def test_many_rows_come_in_parts(monkeypatch):
    """Wrong variant: the last part, which is shorter, is left out."""
    target = RowsDensityTarget(log_likelihood, SHAPES, None, (X, Y), log_prior)
    theta = torch.ones(4, 3, dtype=torch.float64)
    once = target.log_joint_and_gradient(theta)
    monkeypatch.setattr(_density, "AT_ONCE", 4 * 128)
    torch.testing.assert_close(target.log_joint_and_gradient(theta), once)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*full_rank', which has correlations")
@pytest.mark.parametrize("posterior", ["full_rank", "mean_field", LowRankNormal(3)])
def test_a_fit_by_batches_is_that_of_all_rows(posterior):
    """Of a linear regression; wrong variants: no n/batch, coordinates not whitened."""
    model = VariationalInference(
        log_likelihood,
        SHAPES,
        log_prior=log_prior,
        batch_size=50,
        posterior=posterior,
        random_state=0,
    ).fit((X, Y))
    mean, covariance, log_z = exact()
    std = covariance.diagonal().sqrt().numpy()
    assert np.abs((model.mean_["w"] - mean.numpy()) / std).max() < 0.05
    if posterior == "mean_field":
        std = torch.linalg.inv(covariance).diagonal().rsqrt().numpy()
    else:
        assert model.converged_
        assert model.lower_bound_ == pytest.approx(log_z, abs=0.02)
        assert log_z == pytest.approx(model.evidence_bounds().estimate, abs=0.05)
    np.testing.assert_allclose(model.std_["w"], std, rtol=0.05)


@pytest.mark.parametrize(
    ("params", "data", "message"),
    [
        ({"batch_size": 601}, (X, Y), "at most the number of rows of the data, 600"),
        ({}, None, "data of fit must be a tensor, or a tuple.*Got 'NoneType'"),
        ({}, (X, Y[:5]), r"same number of rows.*Got \(600, 3\), \(5,\)"),
        ({}, (X.numpy(), Y), "must be a tensor|numpy arrays"),
        ({"log_prior": None}, "prior", "Pass the log prior.* as log_prior"),
        ({}, "mean", "take sums, no means, over rows"),
        ({}, "rows", r"one number a draw, of shape \(3,\)"),
        ({"objective": "renyi"}, (X, Y), "needs objective='elbo'"),
        ({"solver": Stochastic(batch_size=9)}, (X, Y), "batch_size='auto'"),
    ],
)
def test_what_has_no_batches_is_named(params, data, message):
    """Wrong variant: parts of the likelihood are not added up."""
    wrong = {
        "prior": lambda p, rows: log_likelihood(p, rows) + log_prior(p),
        "mean": lambda p, rows: log_likelihood(p, rows) / len(rows[1]),
        "rows": lambda p, rows: Normal(p["w"] @ rows[0].T, 1.0).log_prob(rows[1]),
    }
    density = wrong.get(data, log_likelihood) if isinstance(data, str) else None
    data = (X, Y) if isinstance(data, str) else data
    params = {"log_prior": log_prior, "batch_size": 20, **params}
    vi = VariationalInference(density or log_likelihood, SHAPES, **params)
    with pytest.raises((ValueError, IncompatibleComponentsError), match=message):
        vi.fit(data)


def test_a_log_prior_is_added():
    """With all rows, too; wrong variant: it is used with batches only."""
    parts = {"log_prior": log_prior, "random_state": 0}
    model = VariationalInference(log_likelihood, SHAPES, **parts).fit((X, Y))
    assert model.lower_bound_ == pytest.approx(exact()[2], abs=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_starts_of_some_rows_are_no_other_modes(monkeypatch):
    """A tenth of the rows have their mode some deviations away from that of all.

    Wrong variants: starts are compared with the end; they are modes of the evidence.
    """
    monkeypatch.setattr(_beginning, "N_ROWS", 60)
    parts = {"log_prior": log_prior, "batch_size": 60, "random_state": 0}
    model = VariationalInference(log_likelihood, SHAPES, max_iter=20, **parts)
    model.fit((X, Y))
    assert "other modes" not in model.diagnostics_["message"]
    assert model._modes == []
