"""Every row of the table says what is true of it; the interval uses what is sure."""

import math
import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from skvi._sampling._chains import Chains, HamiltonianChains
from skvi.evidence import EvidenceBounds, _conjugate
from skvi.evidence._table import BoundsTable, NamedBound
from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.priors import GammaHyperprior, Laplace, Normal
from skvi.solvers._moment_matching import fit_proposal_normal
from tests.evidence.test_evidence import bounds_of, conjugate

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
OWN = {"IW-ELBO": "lower", "IW-EUBO": "upper"}
NOTHING = {name for name, side in COMMON.items() if "alpha=-" in name}
NOTHING |= {"chi (order=2) of q", "EUBO of q, self-normalized", "bridge"}


@pytest.fixture(scope="module")
def sampled():
    """A conjugate model and its mean-field posterior: the table, and the truth."""
    target, posterior, exact = conjugate()
    return bounds_of(target, posterior, 0, method="importance").table, exact


def test_rows_and_their_directions(sampled):
    """Wrong variants: chi or the self-normalized EUBO as a certificate."""
    table, exact = sampled
    assert {name: row.direction for name, row in table.items()} == COMMON | OWN
    for name, row in table.items():
        assert row.is_certificate == (name not in NOTHING)
        assert ("no valid bound" in row.certifies or name == "bridge") == (
            name in NOTHING
        )
        assert math.isfinite(row.standard_error)
        if row.is_certificate:
            sign = 1 if row.direction == "lower" else -1
            assert sign * (row.value - exact) < 5 * row.standard_error + 1e-9
    assert table["ELBO of q"].holds == "always"
    assert table["lower, 95 %"].holds == "with 95 % probability"
    # The joint density falls like a normal one: everything from posterior draws exists.
    assert table["EUBO of q"].exists is table["upper, 95 %"].exists is True


def test_order_of_the_bounds(sampled):
    """ELBO < Renyi < IW < log p(D) < IW < EUBO for one q, by known inequalities."""
    table, _ = sampled
    names = ["ELBO of q", "Renyi (alpha=0.5) of q", "IW-EUBO of q", "EUBO of q"]
    rows = [table[name] for name in names]
    for low, high in pairwise(rows):
        error = math.hypot(low.standard_error, high.standard_error)
        assert low.value < high.value + 5 * error + 1e-9
    q = [table["ELBO of q"], table["IW-ELBO of q"]]
    assert q[0].value < q[1].value
    assert q[1].k == 16


def test_rows_of_q_against_closed_forms(sampled):
    """EUBO and Renyi bounds of a normal q and a normal posterior, J of DESIGN 5.

    Wrong variants: the chains' weights with the other sign; alpha for 1 - alpha.
    """
    target, posterior, exact = conjugate()
    q = posterior.as_normal()
    p = fit_proposal_normal(target)  # the exact posterior
    mean, cov = p.mean.numpy(), p.covariance().numpy()
    q_mean, q_cov = q.mean.numpy(), q.covariance().numpy()
    table, _ = sampled
    d = len(mean)
    trace = np.trace(np.linalg.solve(q_cov, cov))
    shift = (mean - q_mean) @ np.linalg.solve(q_cov, mean - q_mean)
    log_det = np.linalg.slogdet(q_cov)[1] - np.linalg.slogdet(cov)[1]
    eubo = exact + 0.5 * (trace + shift - d + log_det)
    row = table["EUBO of q"]
    assert abs(row.value - eubo) < 5 * row.standard_error
    # log of the integral of the geometric mean of q and p (the Bhattacharyya distance).
    middle = (cov + q_cov) / 2
    shift = (mean - q_mean) @ np.linalg.solve(middle, mean - q_mean) / 8
    dets = [np.linalg.slogdet(matrix)[1] for matrix in (middle, cov, q_cov)]
    distance = shift + 0.5 * dets[0] - 0.25 * (dets[1] + dets[2])
    row = table["Renyi (alpha=0.5) of q"]
    assert abs(row.value - (exact - 2 * distance)) < 5 * row.standard_error
    assert row.standard_error < 0.3 * distance


@pytest.mark.parametrize(("prior", "exists"), [("normal", True), (Laplace(), None)])
def test_existence_of_upper_bounds(prior, exists):
    """Known for normal priors only: a Student-t posterior may have no variance."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 1))
    y = (X[:, 0] > 0).astype(int)  # separable
    model = BayesianLogisticRegression(prior=prior).fit(X, y)
    table = model.evidence_bounds(
        X, y, n_draws=64, method="importance", random_state=0
    ).table
    for name in ("IW-EUBO", "EUBO of q", "IW-EUBO of q", "upper, 95 %"):
        assert table[name].exists is exists
    assert table["ELBO of q"].exists is True


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


def test_table_for_pandas_and_print(sampled):
    table, _ = sampled
    frame = pd.DataFrame(table.to_dict()).set_index("bound")
    assert list(frame.index) == list(table)
    row = table["IW-ELBO"]
    assert frame.loc["IW-ELBO", "value"] == row.value
    assert frame.loc["IW-ELBO", "k"] == row.k
    assert set(frame.columns) == {
        *("value", "standard_error", "direction", "certifies", "exists", "holds", "k"),
        "is_certificate",
    }
    lines = str(table).splitlines()
    assert len(lines) == len(table)
    assert f"IW-ELBO (K={row.k})" in lines[3]
    assert pickle.loads(pickle.dumps(table)) == table
    assert BoundsTable().to_dict() == {}
    hopeless = replace(row, value=3e250, standard_error=math.inf)
    assert "3e+250 +- inf" in str(BoundsTable(hopeless=hopeless))


def make(lower, upper, elbo=None, holds="always", se=0.01):
    rows = {}
    if elbo is not None:
        rows["ELBO of q"] = NamedBound(elbo, 0.0, "lower", "", holds=holds)
    return EvidenceBounds(
        lower=lower,
        upper=upper,
        lower_se=se,
        upper_se=se,
        estimate=lower,
        gap=upper - lower,
        ess=1.0,
        khat=0.0,
        reliable=True,
        reason="",
        method="importance",
        table=rows,
    )


def test_interval_uses_a_sure_elbo():
    """Wrong variants: a noisy ELBO as if it were sure; an interval turned around."""
    assert make(-2.0, -1.0).interval() == pytest.approx((-2.02, -0.98))
    assert make(-2.0, -1.0, -1.5).interval() == pytest.approx((-1.5, -0.98))
    assert make(-2.0, -1.0, -3.0).interval() == pytest.approx((-2.02, -0.98))
    noisy = make(-2.0, -1.0, -1.5, holds="in expectation")
    assert noisy.interval() == pytest.approx((-2.02, -0.98))
    assert make(-2.0, -1.0, -1.5).interval(0) == (-1.5, -1.0)
    # It refutes the upper side: there is no upper bound left.
    assert make(-2.0, -1.0, -0.5).interval() == (-0.5, math.inf)
    # Above the upper end by what chance does, while it is called reliable. Wrong
    # variant: infinite from `n_se` errors on.
    assert make(-2.0, -1.0, -0.97).interval() == pytest.approx((-0.97, -0.96))
    assert make(-2.0, -1.0, -0.955).interval() == (-0.955, math.inf)
    # Up to rounding all three agree.
    low, high = make(-1.0, -1.0, -1.0 + 1e-12, se=0.0).interval()
    assert low == -1.0
    assert high == pytest.approx(-1.0)
    # An upper bound that is below the ELBO by rounding alone.
    low, high = make(-1.1, -1.0, -1.0 + 1e-12, se=0.0).interval()
    assert low == pytest.approx(-1.0, abs=1e-9)
    assert high == pytest.approx(-1.0)


def test_interval_of_an_exact_posterior():
    """q is the posterior: the ELBO is log p(D), and the interval starts there."""
    target, _, exact = conjugate()
    q = FullRankNormal().build(target.layout)
    q = q.near(fit_proposal_normal(target))
    bounds = bounds_of(target, q, 0, precision=0.1, method="importance")
    low, high = bounds.interval()
    assert low == pytest.approx(exact, abs=1e-9)
    assert bounds.lower - 2 * bounds.lower_se < low - 1e-4
    assert low <= high


def test_an_elbo_above_the_upper_bound_is_reported(monkeypatch):
    """Posterior draws of another posterior, and an exact ELBO that shows it."""
    target, posterior, _ = conjugate()
    run = HamiltonianChains.run

    def lower(self, n, deadline=math.inf):
        chains = run(self, n, deadline)
        return Chains(chains.theta, chains.log_joint - 3, chains.acceptance)

    monkeypatch.setattr(HamiltonianChains, "run", lower)
    bounds = bounds_of(target, posterior, 0, method="importance")
    assert not bounds.reliable
    assert "nats above the upper bound" in bounds.reason
    assert bounds.interval()[1] == math.inf


# The conjugate table


@pytest.mark.filterwarnings("ignore:.*vague Gamma hyperpriors")
@pytest.mark.parametrize(("n", "seed"), [(20, 2), (200, 8), (2000, 2)])
def test_quadrature_finds_the_peak_of_noiseless_data(n, seed):
    """log p(D) against scipy's quadrature around the peak, far from the start.

    Wrong variant: the optimizer's own first steps, which are none at 0: errors of
    0.003, 0.6 and 4 nats that were called exact.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 1))
    y = X @ rng.normal(size=1)
    model = BayesianLinearRegression(prior="normal").fit(X, y)
    bounds = model.evidence_bounds(X, y, method="exact")
    assert bounds.gap < 1e-6
    assert bounds.reliable
    assert model.lower_bound_ == pytest.approx(bounds.estimate, abs=1e-6)
    row = bounds.table["quadrature"]
    assert row.holds == "always"
    assert row.certifies.endswith("nats, from quadrature")


def test_a_poor_quadrature_is_not_called_exact(monkeypatch):
    """Nodes far from each other: unreliable, labeled, and "auto" samples instead."""
    monkeypatch.setattr(_conjugate, "FINENESS", (0.2, 0.3))
    monkeypatch.setattr(_conjugate, "MAX_ERROR", 1e-4)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = X[:, 0] + rng.normal(size=30)
    prior = Normal(GammaHyperprior(1.0, 1.0))
    model = BayesianLinearRegression(prior=prior, noise_scale=1.0).fit(X, y)
    bounds = model.evidence_bounds(X, y, method="exact")
    assert not bounds.reliable
    assert "has an error of" in bounds.reason
    assert bounds.table["quadrature"].holds == "never"
    assert bounds.gap > 2e-4
    sampled = model.evidence_bounds(X, y, random_state=0)
    assert sampled.method != "quadrature"
    assert sampled.reliable


def test_exact_row():
    target, _, _ = conjugate()
    X, y = target.X.numpy(), target.y.numpy()
    model = BayesianLinearRegression(
        prior="normal", noise_scale=0.6, normalize_y=False, posterior=MeanFieldNormal()
    ).fit(X, y)
    bounds = model.evidence_bounds(X, y)
    row = bounds.table["exact"]
    assert (row.holds, row.certifies) == ("always", "exact up to rounding")
    assert bounds.interval() == (row.value, row.value)


# Several targets


def test_tables_of_several_targets_add_up():
    """Rows of different K, methods and senses. Wrong variants: errors that add up
    linearly; the 95 % rows of single targets as those of all."""
    one = BoundsTable(
        {
            "ELBO of q": NamedBound(-1.0, 0.0, "lower", "exactly", holds="always"),
            "IW-ELBO": NamedBound(-0.9, 0.3, "lower", "mean", k=5),
            "chi": NamedBound(2.0, 0.0, "upper", "nothing", holds="never"),
            "lower, 95 %": NamedBound(
                -2.0, 0.0, "lower", "", holds="with 95 % probability"
            ),
            "EUBO of q": NamedBound(1.0, 0.0, "upper", "finite"),
        }
    )
    other = dict(one)
    other["ELBO of q"] = NamedBound(-1.0, 0.1, "lower", "in mean")
    other["IW-ELBO"] = replace(one["IW-ELBO"], standard_error=0.4, k=9)
    other["EUBO of q"] = replace(one["EUBO of q"], exists=None, certifies="perhaps")
    del other["chi"]
    found = BoundsTable.sum([one, other])
    assert list(found) == ["ELBO of q", "IW-ELBO", "EUBO of q"]
    assert found["ELBO of q"] == NamedBound(-2.0, 0.1, "lower", "in mean")
    assert found["IW-ELBO"].k is None
    assert found["IW-ELBO"].standard_error == pytest.approx(0.5)
    assert found["EUBO of q"].exists is None
    assert found["EUBO of q"].certifies == "perhaps"


def test_an_estimate_is_no_certificate():
    """Wrong variant: whatever holds in expectation is one, in either direction."""
    row = NamedBound(-7.0, 0.1, "estimate", "nothing")
    assert not row.is_certificate
    assert replace(row, direction="upper").is_certificate


def test_several_targets_without_closed_form():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    Y = X @ rng.normal(size=(2, 2)) + rng.normal(size=(40, 2)) * [0.3, 3]
    model = BayesianLinearRegression(prior=Laplace(), noise_scale=1.0).fit(X, Y)
    bounds = model.evidence_bounds(X, Y, n_draws=512, random_state=0)
    assert "IW-ELBO" in bounds.table
    assert "lower, 95 %" not in bounds.table
    assert bounds.table["IW-ELBO"].value == pytest.approx(bounds.lower)
