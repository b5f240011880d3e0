"""Rényi's bound on linear models: the fitted optimum, and what fits report."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_expit, logsumexp
from sklearn.exceptions import ConvergenceWarning

from skvi._estimator._evidence import data_of_fit
from skvi.base import NormalForm
from skvi.divergences import KLDivergence
from skvi.divergences._forms import log_power_integral
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import LogLoss
from skvi.objectives import ELBO, EUBO, IWELBO, ChiBound, RenyiBound
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor
from skvi.priors import Normal
from skvi.solvers import Problem, SolverOptions, Stochastic
from skvi.solvers._choice import choose_solver
from skvi.solvers._moment_matching import MomentMatching
from skvi.targets import SupervisedTarget
from tests.reference import REAL, real_data, synthetic_data

# Of the references, whose features are standardized.
REFERENCE_PRIOR = {"prior": "normal", "intercept_prior": "normal"}

families = pytest.mark.parametrize("posterior", ["full_rank", "mean_field"])


def fit(name, **parts):
    return BayesianLogisticRegression(**{**REFERENCE_PRIOR, **parts}).fit(
        *real_data(name)
    )


def compare(model, other):
    """Largest distance of means, and of log variances, in standard deviations."""
    a, b = model.posterior_.as_normal(), other.posterior_.as_normal()
    means = (a.mean - b.mean).abs() / b.variance.sqrt()
    return float(means.max()), float((a.variance / b.variance).log().abs().max())


@pytest.mark.parametrize(
    ("name", "posterior"),
    [
        ("setosa", "full_rank"),
        ("setosa", "mean_field"),
        ("breast_cancer", "full_rank"),
    ],
)
def test_order_near_1_is_the_elbo(name, posterior):
    """Solution and value. Wrong variants: tilted moments without the exact ones of
    the normal subtracted (noise over 1 - alpha), or not divided by 1 - alpha."""
    elbo = fit(name, posterior=posterior)
    renyi = fit(name, posterior=posterior, objective=RenyiBound(0.999), random_state=0)
    found = renyi.diagnostics_
    assert found["solver"] == "moment_matching"
    assert renyi.converged_
    error = found["moment_error"]
    assert error < 0.02
    means, variances = compare(renyi, elbo)
    assert means < 5 * error + 1e-3
    assert variances < 5 * math.sqrt(2) * error + 5e-3  # d log variance / d alpha
    assert renyi.lower_bound_ > elbo.lower_bound_ - 0.05
    gap = REAL[name][2] - elbo.lower_bound_
    distance = abs(renyi.objective_value_ - elbo.lower_bound_)
    assert distance < 5 * found["value_error"] + 0.002 * gap
    assert found["bound_exists"] is True


def grid_optimum(x, y, alpha):
    """Mean and standard deviation of the exact optimum, one coefficient."""
    theta = np.linspace(-6, 14, 4001)
    log_p = log_expit(np.outer(theta, x) * (2 * y - 1)).sum(1)
    log_p += -0.5 * theta**2 / 9 - np.log(3 * np.sqrt(2 * np.pi))
    step = theta[1] - theta[0]

    def loss(params):
        mean, log_std = params
        log_q = -0.5 * ((theta - mean) / np.exp(log_std)) ** 2 - log_std
        log_q -= 0.5 * np.log(2 * np.pi)
        power = (1 - alpha) * log_p + alpha * log_q
        return -(logsumexp(power) + np.log(step)) / (1 - alpha)

    found = minimize(loss, [1.0, 0.0], tol=1e-12)
    return found.x[0], np.exp(found.x[1]), -found.fun


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
@families
def test_one_coefficient_against_a_grid(alpha, posterior):
    """A skewed posterior. Wrong variants: alpha and 1 - alpha exchanged; the
    posterior's own moments (the EUBO); the ELBO's."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(8)
    y = (x + 0.3 * rng.standard_normal(8) > 0).astype(int)
    model = BayesianLogisticRegression(
        objective=RenyiBound(alpha),
        posterior=posterior,
        prior=Normal(3.0),
        fit_intercept=False,
        random_state=0,
    ).fit(x[:, None], y)
    mean, std, value = grid_optimum(x, y, alpha)
    found = model.diagnostics_
    error = found["moment_error"]
    assert error < 0.02
    assert abs(model.coef_[0, 0] - mean) < 5 * error * std
    assert abs(math.log(model.coef_std_[0, 0] / std)) < 5 * error
    assert abs(model.objective_value_ - value) < 5 * found["value_error"]
    if alpha != 0.5:
        wrong = grid_optimum(x, y, 1 - alpha)[1]
        assert abs(math.log(model.coef_std_[0, 0] / wrong)) > 5 * error


def conjugate():
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    X[:, 1] = X[:, 0] + 0.5 * X[:, 1]
    y = X.sum(1) + torch.randn(12, generator=generator, dtype=torch.float64)
    predictor = LinearPredictor(3, fit_intercept=False)
    prior = Normal(2.0).build(predictor.layout)
    target = SupervisedTarget(
        predictor, GaussianLikelihood(0.7), LogLoss(), prior, X, y
    )
    precision = X.T @ X / 0.49 + torch.eye(3, dtype=torch.float64) / 4
    mean = torch.linalg.solve(precision, X.T @ y / 0.49)
    covariance = torch.linalg.inv(precision)
    marginal = 0.49 * torch.eye(12, dtype=torch.float64) + 4 * X @ X.T
    normal = torch.distributions.MultivariateNormal(0 * y, marginal)
    scale = torch.linalg.cholesky(covariance)
    return target, NormalForm(mean, scale), float(normal.log_prob(y))


def solve(target, family, objective, seed=0):
    posterior = family.build(target.layout)
    generator = torch.Generator().manual_seed(seed)
    problem = Problem(target, objective, KLDivergence(), posterior, generator)
    assert isinstance(choose_solver(problem), MomentMatching)
    solution = MomentMatching().solve(problem, SolverOptions())
    return solution, solution.posterior.as_normal()


@pytest.mark.parametrize("alpha", [0.02, 0.5, 0.98])
def test_conjugate_model(alpha):
    """Without noise: the posterior for full rank; for mean field the optimum of the
    closed form. Wrong variant: the factorized posterior's marginals alone."""
    target, exact, log_z = conjugate()
    solution, q = solve(target, FullRankNormal(), RenyiBound(alpha))
    torch.testing.assert_close(q.mean, exact.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(q.covariance(), exact.covariance(), rtol=1e-6, atol=1e-8)
    assert -solution.value == pytest.approx(log_z, abs=1e-6)
    solution, q = solve(target, MeanFieldNormal(), RenyiBound(alpha))
    torch.testing.assert_close(q.mean, exact.mean, rtol=1e-5, atol=1e-6)
    log_std = q.scale.log().requires_grad_()
    bound = log_power_integral(
        NormalForm(q.mean, log_std.exp()), exact, alpha, 1 - alpha
    ) / (1 - alpha)
    (gradient,) = torch.autograd.grad(bound, log_std)
    assert float(gradient.abs().max()) < 1e-5
    assert -solution.value == pytest.approx(log_z + float(bound.detach()), abs=1e-6)
    assert solution.converged


@families
def test_between_elbo_and_eubo(posterior):
    """Widths and bounds move from one to the other. Wrong variant: alpha reversed."""
    fits = [
        fit("setosa", posterior=posterior, objective=objective, random_state=0)
        for objective in (
            "elbo",
            RenyiBound(0.8),
            "renyi",
            RenyiBound(0.2),
            "eubo",
        )
    ]
    entropy = [float(f.posterior_.as_normal().entropy()) for f in fits]
    assert entropy == sorted(entropy)
    values = [f.objective_value_ for f in fits]
    assert values == sorted(values)
    assert values[3] < REAL["setosa"][2] + 0.02 < values[4]
    elbo = [f.lower_bound_ for f in fits]
    assert elbo == sorted(elbo, reverse=True)


@pytest.mark.slow
def test_mean_field_on_correlated_data():
    """Where q alone is a hopeless proposal: its moments against other seeds' and the
    ELBO's. Wrong variant: the moments of the proposal."""
    a, b = (
        fit(
            "breast_cancer",
            posterior="mean_field",
            objective=RenyiBound(0.9),
            random_state=seed,
        )
        for seed in range(2)
    )
    error = math.hypot(*(m.diagnostics_["moment_error"] for m in (a, b)))
    assert error < 0.1
    assert compare(a, b)[0] < 5 * error
    assert REAL["breast_cancer"][0] < a.objective_value_ < REAL["breast_cancer"][2]


def test_poor_draws_keep_the_elbo():
    """Fewer rows than features and heavy tails: said, and nothing made worse."""
    X, y = synthetic_data("wide")
    parts = {"prior": "laplace", "posterior": "full_rank"}
    model = BayesianLogisticRegression(
        objective=RenyiBound(0.9), random_state=0, **{**REFERENCE_PRIOR, **parts}
    )
    with pytest.warns(ConvergenceWarning, match="the ELBO's solution was kept"):
        model.fit(X, y)
    elbo = BayesianLogisticRegression(**{**REFERENCE_PRIOR, **parts}).fit(X, y)
    assert not model.converged_
    assert model.lower_bound_ == pytest.approx(elbo.lower_bound_, abs=0.01)
    assert elbo.lower_bound_ < model.objective_value_ < elbo.lower_bound_ + 5


def test_the_seed_decides():
    a, b, c = (fit("setosa", objective="renyi", random_state=s) for s in (1, 1, 2))
    assert np.array_equal(a.coef_, b.coef_)
    assert not np.array_equal(a.coef_, c.coef_)


@pytest.mark.parametrize(
    ("objective", "tilt"),
    [
        (EUBO(), 0.0),
        (RenyiBound(0.3), 0.3),
        (RenyiBound(0), None),
        (RenyiBound(1.5), None),
        (RenyiBound(-1), None),
        (ChiBound(), None),
        (IWELBO(), None),
        (ELBO(), None),
    ],
    ids=repr,
)
def test_which_objectives_match_moments(objective, tilt):
    assert objective.tilt == tilt
    target = conjugate()[0]
    posterior = MeanFieldNormal().build(target.layout)
    problem = Problem(target, objective, KLDivergence(), posterior, torch.Generator())
    assert bool(MomentMatching.missing(problem)) == (tilt is None)
    target.hyper = torch.zeros(1)
    assert MomentMatching.missing(problem)


# --- stochastic fits ----------------------------------------------------------------

STOCHASTIC = {
    "iwelbo": "iwelbo",
    "path": RenyiBound(0.5, "doubly_reparam"),
    "reparam": RenyiBound(0.5, "reparam"),
    "order 0": RenyiBound(0),
    "order 2": RenyiBound(2),
    "order -1": RenyiBound(-1),
    "chi": "chi",
    "score": ChiBound(gradient="score"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("iwelbo", "chi") else pytest.mark.slow)
        for name in STOCHASTIC
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_stochastic_fits(name):
    """Three sweeps from N(0, 0.1^2): nearer to log p(D), with a sensible value.

    Wrong variant: an upper bound that is maximized.
    """
    X, y = real_data("setosa")
    model = BayesianLogisticRegression(
        objective=STOCHASTIC[name],
        posterior="mean_field",
        max_iter=3,
        solver=Stochastic(n_draws=20),
        random_state=0,
        **REFERENCE_PRIOR,
    ).fit(X, y)
    assert model.diagnostics_["solver"] == "stochastic"
    assert model.lower_bound_ > -11  # at the start: -40
    assert -11 < model.objective_value_ < -4
    assert len(model.loss_curve_) == 3
    sign = -1 if model.objective_.direction == "lower" else 1
    assert sign * model.loss_curve_[-1] == model.objective_value_
    assert np.isfinite(model.predict_proba(X)).all()


@pytest.mark.slow
def test_iwelbo_converges():
    """Above the ELBO's optimum, below log p(D), and wider than the ELBO's q."""
    model = fit(
        "setosa",
        objective=IWELBO(5),
        posterior="mean_field",
        solver=Stochastic(n_draws=50),
        random_state=0,
    )
    elbo = fit("setosa", posterior="mean_field")
    assert model.converged_
    assert elbo.lower_bound_ + 0.1 < model.objective_value_ < REAL["setosa"][2]
    widths = [float(m.posterior_.as_normal().entropy()) for m in (elbo, model)]
    assert widths[0] < widths[1]


# --- what is reported ---------------------------------------------------------------


def test_infinite_bounds_are_reported():
    """Once, with what to do. Wrong variants: no verdict, two warnings."""
    X, y = real_data("setosa")
    model = BayesianLogisticRegression(
        objective="chi", max_iter=2, random_state=0, **REFERENCE_PRIOR
    )
    with pytest.warns(ConvergenceWarning) as caught:
        model.fit(X, y)
    (message,) = [str(w.message) for w in caught]
    for part in ("increase max_iter", "ChiBound()", "+inf", "objective='eubo'"):
        assert part in message
    assert model.diagnostics_["bound_exists"] is False
    assert model.diagnostics_["message"] in message
    # A start that is wider than the new prior.
    heavy = BayesianLogisticRegression(
        warm_start=True, random_state=0, **REFERENCE_PRIOR
    ).fit(X, y)
    heavy.set_params(objective=RenyiBound(9.0), prior=Normal(0.05), max_iter=1)
    with pytest.warns(ConvergenceWarning, match="-inf in expectation"):
        heavy.fit(X, y)
    assert heavy.diagnostics_["bound_exists"] is False
    for objective in ("elbo", "eubo", "renyi"):
        assert fit("setosa", objective=objective, random_state=0).diagnostics_[
            "bound_exists"
        ]


def test_breast_cancer_has_no_chi_bound():
    model = fit("breast_cancer")
    X, y = real_data("breast_cancer")
    target = model._model.target(data_of_fit(model, X, y, None, None))
    for objective in (ChiBound(2), RenyiBound(-1), ChiBound(1.1)):
        assert objective.exists(target, model.posterior_) is False
    for objective in (RenyiBound(0.5), RenyiBound(3.0)):
        assert objective.exists(target, model.posterior_) is True


@pytest.mark.parametrize("scale", [1.0, 0.2])
def test_rows_of_the_table(scale):
    """A wide prior makes chi infinite, a narrow one is not moved by the data.

    Wrong variants: the standard error of one block for that of all; the verdict of
    the other side.
    """
    X, y = real_data("virginica")
    X = X if scale == 1 else X[::10]
    y = y if scale == 1 else y[::10]
    own = Normal(scale)
    model = BayesianLogisticRegression(prior=own, intercept_prior=own).fit(X, y)
    tables = [model.evidence_bounds(X, y, random_state=s).table for s in range(2)]
    renyi = [t["Renyi (alpha=0.5) of q"] for t in tables]
    assert renyi[0].direction == "lower"
    assert renyi[0].certifies == "a bound in expectation"
    values = np.array([r.value for r in renyi])
    errors = np.array([r.standard_error for r in renyi])
    assert np.ptp(values) < 6 * errors.max()
    bridge = tables[0]["bridge"]
    elbo = tables[0]["ELBO of q"].value
    noise = 5 * (errors[0] + bridge.standard_error)
    assert elbo - noise < values[0] < bridge.value + noise
    for name in ("chi (order=2) of q", "Renyi (alpha=-1) of q"):
        row = tables[0][name]
        assert row.direction == "upper"
        if scale == 1:
            assert row.certifies == "+inf in expectation; no valid bound"
        else:
            assert "biased low" in row.certifies
            assert row.value > bridge.value - noise
    bounds = model.evidence_bounds(X, y, random_state=0)
    assert "no valid bound" in str(bounds.table)


def test_jackknife_error_of_a_mean():
    """Of a linear statistic it is that of block means."""
    from skvi.evidence._estimates import jackknife

    log_weights = torch.randn(
        3200, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    value, error = jackknife(torch.mean, log_weights)
    assert value == pytest.approx(float(log_weights.mean()))
    blocks = log_weights.reshape(32, 100).mean(1)
    assert error == pytest.approx(float(blocks.std()) / math.sqrt(32), rel=1e-10)


def test_bernoulli_tail_is_flat():
    assert BernoulliLikelihood().tail_curvature == 0
    assert GaussianLikelihood(0.5).tail_curvature == 4
