"""What bounds may cost: seconds, precision, and posteriors that are nearly normal."""

import time
from itertools import count

import numpy as np
import pytest
import torch
from scipy.special import stdtrit

from skvi._sampling._importance import StudentT, draw_weighted
from skvi.base import Layout, NormalForm
from skvi.evidence import _near_normal
from skvi.evidence._bounds import bound_evidence
from skvi.evidence._estimates import reverse_bound
from skvi.evidence._modes import OneMode
from skvi.evidence._near_normal import near_normal_sides
from skvi.evidence._summarize import summarize
from skvi.likelihoods import BernoulliLikelihood
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.losses import LogLoss
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.posteriors import FullRankNormal
from skvi.predictors import LinearPredictor
from skvi.priors import Normal
from skvi.solvers._moment_matching import fit_proposal_normal
from skvi.targets import SupervisedTarget, Target


def many_rows(n=3000, d=3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
    return X, y


class Bell(Target):
    """A normal integral of known size, which pretends to be a linear model."""

    layout = Layout({"coef": (2,)})
    cost_per_draw = 5000
    is_log_concave = has_design = starts_near_fit = True

    def log_joint(self, theta, rows=None):
        return -0.5 * theta.square().sum(1) - np.log(2 * np.pi) + 3.0


def test_nearly_normal_posteriors_take_no_gradients(monkeypatch):
    """Wrong variant: chains that follow gradients for a posterior that q is."""
    X, y = many_rows()
    model = BayesianLogisticRegression(prior=Normal()).fit(X, y)

    def refuse(*args):
        raise AssertionError("a gradient")

    monkeypatch.setattr(SupervisedTarget, "whitened", refuse)
    bounds = model.evidence_bounds(X, y, random_state=0)
    low, high = bounds.interval()
    assert bounds.reliable
    assert high - low < 0.1
    assert "there is only one mode" in bounds.reason


def test_cost_follows_precision(monkeypatch):
    """Of nearly normal posteriors, whatever floor is left of it: less than half.

    Wrong variant: chains, pilot draws and draws of q as for a fine precision.
    """
    X, y = many_rows(30_000)
    model = BayesianLogisticRegression(prior=Normal()).fit(X, y)
    counted, log_joint = [], SupervisedTarget.log_joint

    def count_draws(self, theta, rows=None):
        counted[-1] += len(theta)
        return log_joint(self, theta, rows)

    monkeypatch.setattr(SupervisedTarget, "log_joint", count_draws)
    for precision in (0.5, 0.03):
        counted.append(0)
        bounds = model.evidence_bounds(X, y, precision=precision, random_state=0)
        assert bounds.reliable
        assert bounds.upper + 2 * bounds.upper_se - bounds.estimate < precision
        assert bounds.estimate - bounds.lower + 2 * bounds.lower_se < precision
    assert 2 * counted[0] < counted[1] < 4500


def test_single_draws_are_as_far_from_the_truth_as_blocks():
    """Two errors, where even one nearly constant weight is closer than that.

    Wrong variants: the mean of the log weights as it is; no small weights that are
    still to come.
    """
    normal = NormalForm(torch.zeros(2).double(), torch.ones(2).double())
    away = []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        sides = near_normal_sides(Bell(), OneMode(normal), generator, None, 0.5)
        posterior = FullRankNormal().build(Bell.layout)
        found = summarize(Bell(), posterior, sides, generator, "")
        away.append((3.0 - found.lower, found.upper - 3.0))
    assert np.mean(np.array(away) > 0, 0).min() > 0.95


def test_few_draws_suffice_for_a_loose_precision():
    """Wrong variant: as many draws for every precision."""
    X, y = many_rows(100, 10)
    model = BayesianLogisticRegression(prior=Normal()).fit(X, y)
    n = [
        model.evidence_bounds(X, y, precision=p, random_state=0).weights["lower"]
        for p in (0.5, 0.02)
    ]
    assert 4 * n[0].n_draws < n[1].n_draws


def test_independence_chains_draw_from_the_posterior():
    """From a proposal that is shifted and too wide.

    Wrong variant: every draw is accepted; the acceptance without the last weight.
    """
    shifted = NormalForm(torch.full((2,), 0.3).double(), torch.full((2,), 1.2).double())
    generator = torch.Generator().manual_seed(0)
    starts = torch.full((64, 2), 3.0).double()
    chains = _near_normal.IndependenceChains(
        Bell(), StudentT(shifted, 20), starts, generator, lambda what, share: None
    ).run(400)
    theta = chains.last(350).theta.flatten(0, 1)
    assert theta.mean(0).abs().max() < 0.04
    assert (theta.std(0) - 1).abs().max() < 0.04
    assert chains.last(350).rhat < 1.05


def test_sides_of_a_known_integral():
    shifted = NormalForm(torch.full((2,), 0.1).double(), torch.full((2,), 1.1).double())
    generator = torch.Generator().manual_seed(1)
    sides = near_normal_sides(Bell(), OneMode(shifted), generator, None, 0.05)
    assert float(sides.forward.exp().mean().log()) == pytest.approx(3.0, abs=0.05)
    assert float(-(-sides.reverse).exp().mean().log()) == pytest.approx(3.0, abs=0.05)


def test_other_posteriors_are_left_to_gradients():
    far = NormalForm(torch.full((2,), 3.0).double(), torch.ones(2).double())
    generator = torch.Generator().manual_seed(0)
    assert near_normal_sides(Bell(), OneMode(far), generator, None, None) is None


def logistic_target(n=40, d=8, width=30.0):
    generator = torch.Generator().manual_seed(0)
    model = LinearPredictor(d)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64)
    y = (torch.rand(n, generator=generator) < 0.5).double()
    prior = Normal(width).build(model.layout)
    return SupervisedTarget(model, BernoulliLikelihood(), LogLoss(), prior, X, y)


def test_seconds_cut_draws_and_not_the_truth(monkeypatch):
    """On a clock that says 1 ms more at every look.

    Wrong variant: it is never looked at.
    """
    ticks = count()
    monkeypatch.setattr(time, "monotonic", lambda: 1e-3 * next(ticks))
    target = logistic_target()
    posterior = FullRankNormal().build(target.layout)
    posterior = posterior.near(fit_proposal_normal(target))
    found = []
    for limit in (None, 1.5):
        generator = torch.Generator().manual_seed(0)
        found.append(
            bound_evidence(
                target,
                posterior,
                generator,
                None,
                0.003,
                method="importance",
                max_seconds=limit,
            )
        )
    (low, high), (lowest, highest) = (b.interval() for b in found)
    assert max(low, lowest) < min(high, highest)
    assert found[1].weights["lower"].n_draws < found[0].weights["lower"].n_draws


def of_network(kind, units, n=40, d=1):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=n)
    y = y if kind is BayesianMLPRegressor else y > 0
    options = {"posterior": "mean_field", "max_iter": 20, "random_state": 0}
    return kind(hidden_layer_sizes=units, **options), X, y


def of_linear(kind, n=100, d=4, **options):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    f = X[:, 0] - X[:, 1]
    y = f + rng.normal(size=n)
    if kind is BayesianLogisticRegression:
        y = y > 0
    elif kind is BayesianPoissonRegressor:
        y = rng.poisson(np.exp(f / 2))
    return kind(**options), X, y


#: Models whose bounds take other phases; the first of each are the slowest.
BUDGETS = {
    "network of one unit": lambda: of_network(BayesianMLPRegressor, 1),
    "network of classes": lambda: of_network(BayesianMLPClassifier, 5, 100, 3),
    "two layers": lambda: of_network(BayesianMLPRegressor, (3, 3), 200, 4),
    "horseshoe": lambda: of_linear(BayesianLinearRegression, prior="horseshoe"),
    "sparse classes": lambda: of_linear(
        BayesianLogisticRegression, 300, 10, prior="horseshoe", posterior="mean_field"
    ),
    "vague scales": lambda: of_linear(BayesianLogisticRegression, prior="ard"),
    "unknown scale": lambda: of_linear(BayesianLogisticRegression, 500, 30),
    "more features than rows": lambda: of_linear(BayesianLogisticRegression, 60, 150),
    "heavy tails": lambda: of_linear(BayesianLinearRegression, likelihood="student_t"),
    "counts": lambda: of_linear(
        BayesianPoissonRegressor, likelihood="negative_binomial"
    ),
    "laplace": lambda: of_linear(BayesianLogisticRegression, 2000, 20, prior="laplace"),
}


@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("network of one unit", 0.4),
        *(pytest.param(name, 2.0, marks=pytest.mark.slow) for name in BUDGETS),
    ],
)
def test_every_phase_ends_in_time(name, seconds, monkeypatch):
    """Within a fifth of the seconds, those of the processor; bounds contain the truth.

    Wrong variants: a path is tuned in one piece; each phase has its least number of
    sweeps, however long they take.
    """
    model, X, y = BUDGETS[name]()
    model.fit(X, y)
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", time.process_time)
        begin = time.process_time()
        bounds = model.evidence_bounds(X, y, max_seconds=seconds, random_state=0)
        took = time.process_time() - begin
    assert took < 1.2 * seconds
    if bounds.reliable:
        whole = model.evidence_bounds(X, y, random_state=1)
        (low, high), (least, most) = bounds.interval(4), whole.interval(4)
        assert max(low, least) < min(high, most)
    elif bounds.method == "none":
        assert "max_seconds ended before" in bounds.reason
        assert np.isfinite(bounds.table["ELBO of q"].value)


def test_the_clock_stops_between_batches():
    generator = torch.Generator().manual_seed(0)
    unit = NormalForm(torch.zeros(2).double(), torch.ones(2).double())
    draws = draw_weighted(Bell(), StudentT(unit), 5000, generator, deadline=0.0)
    assert len(draws.log_weights) == 512


def test_progress_says_how_wide_the_sides_are(capsys):
    X, y = many_rows(300)
    model = BayesianLogisticRegression(prior=Normal(), verbose=1).fit(X, y)
    model.evidence_bounds(X, y, random_state=0)
    assert "nats apart so far" in capsys.readouterr().out


def test_integer_weights_are_repeated_rows():
    """Wrong variant: integer weights make the evidence a generalized one."""
    X, y = many_rows(60)
    weight = np.random.default_rng(1).integers(0, 4, size=60)
    again = np.repeat(X, weight, 0), np.repeat(y, weight)
    model = BayesianLogisticRegression(prior=Normal())
    expected = model.fit(*again).evidence_bounds(*again, random_state=0)
    model.fit(X, y, sample_weight=weight)
    found = model.evidence_bounds(X, y, sample_weight=weight, random_state=0)
    assert found.quantity == expected.quantity == "log evidence"
    assert found.estimate == pytest.approx(expected.estimate, abs=0.02)
    model.set_params(class_weight={0: 2, 1: 1}).fit(X, y, sample_weight=weight)
    found = model.evidence_bounds(X, y, sample_weight=weight, random_state=0)
    assert found.quantity == "generalized log evidence"
    model.set_params(class_weight=None).fit(X, y, sample_weight=weight / 2)
    found = model.evidence_bounds(X, y, sample_weight=weight / 2, random_state=0)
    assert found.quantity == "generalized log evidence"


def test_errors_of_few_chains_are_larger():
    """So that quantiles for 64 of them hold. Wrong variant: those of a normal."""
    values = torch.randn(8, 10, generator=torch.Generator().manual_seed(0)).double()
    plain = float((-values).mean(1).std()) / 8**0.5
    error = reverse_bound(values, 1)[1]
    assert error * stdtrit(63, 0.99) == pytest.approx(plain * stdtrit(7, 0.99))
