"""Every row of the table says what is true of it; the interval uses what is sure."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
from torch.distributions import MultivariateNormal, kl_divergence

from skvi.inference import VariationalInference
from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.posteriors import RefinedNormal
from skvi.priors import Laplace

COMMON = {
    "ELBO of q": "lower",
    "Renyi (alpha=0.5) of q": "lower",
    "IW-ELBO of q": "lower",
    "lower, 95 %": "lower",
    "bridge": "estimate",
    "upper, 95 %": "upper",
    "IW-EUBO of q": "upper",
    "EUBO of q": "upper",
    "EUBO of q, self-normalized": "upper",
    "Renyi (alpha=-0.5) of q": "upper",
    "Renyi (alpha=-1) of q": "upper",
    "chi (order=2) of q": "upper",
}
NOTHING = {name for name, side in COMMON.items() if "alpha=-" in name}
NOTHING |= {"chi (order=2) of q", "EUBO of q, self-normalized", "bridge"}


def test_infinite_bounds_say_so():
    """q narrower than half the prior: chi is infinite, and the row prints a number."""
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)[:, :8]
    model = BayesianLogisticRegression(posterior="mean_field", prior="normal").fit(X, y)
    table = model.evidence_bounds(X, y, n_draws=256, random_state=0).table
    row = table["chi (order=2) of q"]
    assert row.exists is False
    assert math.isfinite(row.value)
    assert row.certifies == "+inf in expectation; no valid bound"
    # The self-normalized EUBO of a poor q is too small.
    row = table["EUBO of q, self-normalized"]
    assert row.value < table["EUBO of q"].value
    assert not row.is_certificate


# The conjugate table


# Several targets


def test_several_targets_without_closed_form():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    Y = X @ rng.normal(size=(2, 2)) + rng.normal(size=(40, 2)) * [0.3, 3]
    model = BayesianLinearRegression(prior=Laplace(), noise_scale=1.0).fit(X, Y)
    bounds = model.evidence_bounds(X, Y, n_draws=512, random_state=0)
    assert "IW-ELBO" in bounds.table
    assert "lower, 95 %" not in bounds.table
    assert bounds.table["IW-ELBO"].value == pytest.approx(bounds.lower)


@pytest.mark.filterwarnings("ignore:.*not close to the density")
@pytest.mark.parametrize("correlation", [0.5, 0.8])
def test_distance_of_refined_samples(correlation):
    """From the normal with the moments of the samples, which is at least as near to a
    normal posterior as they are, to the fit before, whose distance is known.

    Wrong variants: the ELBO before the refinement, or of other draws of its normal; two
    opposed samples that count as two.
    """
    covariance = torch.eye(3).double() * (1 - correlation) + correlation
    p = MultivariateNormal(torch.zeros(3).double(), covariance)
    model = VariationalInference(
        lambda theta: p.log_prob(theta["x"]),
        {"x": 3},
        posterior=RefinedNormal(n_draws=400),
        random_state=0,
    ).fit()
    theta = model.posterior_.params.reshape(400, -1)
    same = MultivariateNormal(theta.mean(0), theta.T.cov())
    bounds = model.evidence_bounds(random_state=0)
    before = -0.5 * float(torch.linalg.slogdet(torch.linalg.inv(covariance))[1])
    before += 0.5 * float(torch.linalg.inv(covariance).diagonal().log().sum())
    error = bounds.table["ELBO of the samples"].standard_error
    assert error == pytest.approx(model.lower_bound_se_)
    assert f"{bounds.divergence:.2g} (standard error" in str(bounds)
    assert float(kl_divergence(same, p)) < bounds.divergence < before - 4 * error
    assert bounds.divergence == pytest.approx(
        -bounds.table["ELBO of the samples"].value, abs=4 * bounds.upper_se + 1e-6
    )
