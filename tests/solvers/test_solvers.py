"""Every solver finds the optimum that an independent optimizer finds."""

import math

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import BetaLoss, LogLoss
from skvi.objectives import ELBO, EUBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor, MLPPredictor
from skvi.priors import Laplace, Normal
from skvi.solvers import Problem as SolverProblem
from skvi.solvers import SolverOptions, Stochastic
from skvi.solvers._choice import choose_solver
from skvi.solvers._run import unfinished
from skvi.solvers._solution import remaining_gain
from skvi.targets import SupervisedTarget
from tests.reference import SYNTHETIC, Problem, real_data, synthetic_data
from tests.references.make_hard_sets import (
    FAMILIES,
    VARIANTS,
    cases,
    compute,
    optimum,
    problem_of,
)

# Of the references, whose features are standardized.
REFERENCE_PRIOR = {"prior": "normal", "intercept_prior": "normal"}


def normal_of(model):
    normal = model.posterior_.as_normal()
    return normal.mean.numpy(), normal.scale.numpy()


def check_optimum(variant, name, scale, family):
    """The value is that of q, and no other q is better by more than 0.001 nat."""
    model = BayesianLogisticRegression(
        posterior=family,
        prior=Laplace(scale) if "laplace" in variant else Normal(scale),
        intercept_prior=Normal(scale),
        **PARTS[variant],
    )
    model.fit(*synthetic_data(name))
    # Optima of weak divergences can be wider than the prior, which is reported.
    message = model.diagnostics_["message"]
    assert model.converged_ or "wider than its prior" in message
    value = problem_of(variant, name, scale).value(*normal_of(model))
    assert -model.objective_value_ == pytest.approx(value, abs=1e-4)
    assert value < optimum(variant, name, scale, family) + 0.001
    return model


PARTS = {
    "elbo": {},
    "laplace": {},
    "beta": {"loss": BetaLoss(1.5)},
    "power": {"divergence": KLDivergence(weight=0.5)},
    "renyi_0.5": {"divergence": RenyiDivergence(0.5)},
    "renyi_0.75": {"divergence": RenyiDivergence(0.75)},
    "laplace_beta": {"loss": BetaLoss(1.2)},
}
#: Every variant on every set; scales and families take turns.
GENERALIZED = [
    (variant, name, (1.0, 10.0)[(i + j) % 2], FAMILIES[(i + j // 2) % 2])
    for i, variant in enumerate(list(PARTS)[1:])
    for j, name in enumerate(SYNTHETIC)
]


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("name", SYNTHETIC)
def test_elbo_on_hard_sets(name, scale):
    """More features than rows, separable, tiny and correlated, wide priors.

    Wrong variant: no halving of steps (`while False`) and no acceleration check.
    """
    for family in FAMILIES:
        model = check_optimum("elbo", name, scale, family)
        assert model.lower_bound_ == model.objective_value_
        assert np.all(np.diff(model.loss_curve_) <= 1e-9)


@pytest.mark.filterwarnings("ignore:.*wider than its prior")
@pytest.mark.parametrize(("variant", "name", "scale", "family"), GENERALIZED)
def test_generalized_posteriors_on_hard_sets(variant, name, scale, family):
    """Other losses, divergences and priors.

    Wrong variants: the beta loss without its integral; the Laplace density's
    derivative in the variance without the factor 2; Rényi's precision gradient
    without 1/alpha.
    """
    family = "mean_field" if "renyi" in variant else family
    model = check_optimum(variant, name, scale, family)
    if variant in ("power", "renyi_0.5", "renyi_0.75"):
        bound = -problem_of("elbo", name, scale).value(*normal_of(model))
        assert model.lower_bound_ == pytest.approx(bound, abs=1e-4)


def test_beta_loss_with_a_wide_prior():
    """Its quadrature must follow standard deviations of f in the hundreds."""
    check_optimum("beta", "wide", 100.0, "full_rank")


@pytest.mark.slow
def test_undamped_steps_would_fail():
    """What makes the sets hard: the full natural steps swing between two points."""
    for name, scale in [("wide", 10.0), ("correlated", 10.0), ("separable", 100.0)]:
        values = [problem_of("elbo", name, scale).undamped(n) for n in (29, 30)]
        best = optimum("elbo", name, scale, "full_rank")
        assert min(values) > best + 4
        assert max(values) > best + 100


@pytest.mark.slow
@pytest.mark.parametrize("case", list(cases())[::9], ids=str)
def test_stored_optima_are_those_of_the_reference(case):
    assert optimum(*case) == pytest.approx(compute(*case), abs=1e-5)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("correlated", "elbo"),
        ("separable", "power"),
        ("correlated", "weak"),
        ("tiny", "weak"),
    ],
)
def test_tolerance_bounds_the_gap(name, variant):
    """`tol` is in nats: a converged fit is so close to its optimum.

    Wrong variant: the gap in the metric of the posterior for every weight of KL,
    which measures nats divided by the weight.
    """
    weight = VARIANTS[variant].get("weight", 1.0)
    best = optimum(variant, name, 1.0, "mean_field")
    for tol in (1e-2, 1e-4, 1e-6):
        model = BayesianLogisticRegression(
            posterior="mean_field",
            divergence=KLDivergence(weight=weight),
            tol=tol,
            **REFERENCE_PRIOR,
        ).fit(*synthetic_data(name))
        assert model.converged_
        assert -model.objective_value_ - best < 2 * tol


def test_too_few_iterations_warn_and_keep_the_best():
    X, y = synthetic_data("separable")
    wide = {"prior": Normal(100.0), "intercept_prior": Normal(100.0)}
    model = BayesianLogisticRegression(max_iter=1, **wide)
    with pytest.warns(ConvergenceWarning, match="increase max_iter"):
        model.fit(X, y)
    assert model.n_iter_ == len(model.loss_curve_) == 1
    assert not model.converged_
    value = Problem(X, y, scale=100.0).value(*normal_of(model))
    assert -model.lower_bound_ == pytest.approx(value, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "posterior"),
    [(ELBO("stl"), "full_rank"), (ELBO("reparam"), "mean_field")],
)
def test_stochastic_elbo_reaches_the_optimum(objective, posterior, global_random_seed):
    """The average of the last sweep is within 0.02 nat of the deterministic optimum.

    Wrong variants: "stl" with parameters of log q attached and draws detached; the
    entropy's sign.
    """
    X, y = real_data("virginica")
    exact = BayesianLogisticRegression(posterior=posterior, prior="normal").fit(X, y)
    model = BayesianLogisticRegression(
        objective=objective,
        posterior=posterior,
        solver="stochastic",
        random_state=global_random_seed,
        prior="normal",
    )
    model.fit(X, y)
    assert model.diagnostics_["solver"] == "stochastic"
    assert exact.lower_bound_ - 0.02 < model.lower_bound_ <= exact.lower_bound_ + 1e-6
    assert model.coef_ == pytest.approx(exact.coef_, abs=0.1)
    assert model.coef_std_ == pytest.approx(exact.coef_std_, rel=0.1)


@pytest.mark.slow
def test_stochastic_eubo_reaches_the_optimum(global_random_seed):
    """The posterior's own moments, but for the bias 1/S and the reference's noise.

    The ELBO's mean-field deviations are 12 to 24 % smaller. Wrong variants: the
    weights not detached; the gradient through log q's parameters as well.
    """
    X, y = real_data("setosa")

    def fit(seed, **parts):
        parts = {"posterior": "mean_field", "random_state": seed, **parts}
        return BayesianLogisticRegression(**{"prior": "normal", **parts}).fit(X, y)

    exact = [fit(seed, objective="eubo") for seed in range(5)]
    mean = np.mean([m.coef_ for m in exact], 0)
    std = np.mean([m.coef_std_ for m in exact], 0)
    error = 1 / np.sqrt(5 * exact[0].diagnostics_["ess"])
    model = fit(
        global_random_seed,
        objective=EUBO("doubly_reparam"),
        solver=Stochastic(n_draws=100),
    )
    assert model.converged_
    assert np.all(np.abs(model.coef_std_ / std - 1) < 1 / 100 + 5 * error / np.sqrt(2))
    assert np.all(np.abs(model.coef_ - mean) < (1 / 100 + 5 * error) * std)
    assert np.all(fit(0).coef_std_ < 0.9 * std)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
def test_noisy_eubo_arrives_or_says_that_it_did_not():
    """The score form with few draws may be lost far away, where its estimate of the
    EUBO means nothing; a fit that is ten nats off has not converged."""
    X, y = real_data("virginica")
    model = BayesianLogisticRegression(
        objective=EUBO("score"), solver="stochastic", random_state=0, **REFERENCE_PRIOR
    ).fit(X, y)
    assert model.lower_bound_ > -20.5636 - 1 or not model.converged_


def regression(seed=0, n=30, d=3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = np.sin(X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(n)
    return torch.from_numpy(X), torch.from_numpy(y)


def solve(predictor, posterior, objective, options, seed=0, noise=0.5, solver="auto"):
    X, y = regression()
    prior = Normal(1.0).build(predictor.layout)
    target = SupervisedTarget(
        predictor, GaussianLikelihood(noise), LogLoss(), prior, X, y
    )
    q = posterior.build(predictor.layout)
    generator = torch.Generator().manual_seed(seed)
    problem = SolverProblem(target, objective, KLDivergence(), q, generator)
    with threadpool_limits(1):
        solution = choose_solver(problem, solver).solve(problem, options)
    return target, solution.posterior.as_normal(), solution


def conjugate_posterior(noise=0.5, prior_variance=(1.0, 1.0, 1.0, 1.0)):
    X, y = regression()
    prior = 1 / torch.tensor(prior_variance, dtype=X.dtype)
    A = torch.cat([X, torch.ones(len(X), 1, dtype=X.dtype)], 1)
    covariance = torch.linalg.inv(A.T @ A / noise**2 + torch.diag(prior))
    return covariance @ A.T @ y / noise**2, covariance


@pytest.mark.parametrize("full_rank", [False, True])
def test_linear_regression_is_conjugate(full_rank):
    """The natural gradient returns the closed form: to 1e-4 of a standard deviation.

    A mean-field q has its mean and the inverse diagonal of the precision.
    """
    family = FullRankNormal() if full_rank else MeanFieldNormal()
    options = SolverOptions(tol=1e-9)
    _, normal, solution = solve(LinearPredictor(3), family, ELBO(), options)
    mean, covariance = conjugate_posterior()
    std = covariance.diagonal().sqrt()
    assert solution.solver == "natural_gradient"
    assert torch.allclose((normal.mean - mean) / std, 0 * mean, atol=1e-4)
    if full_rank:
        assert torch.allclose(normal.covariance(), covariance, rtol=1e-6, atol=1e-9)
    else:
        expected = 1 / torch.linalg.inv(covariance).diagonal()
        assert torch.allclose(normal.variance, expected, rtol=1e-6)


def test_network_improves_its_bound(global_random_seed):
    """ELBO by locally sampled activations, checked with draws of whole networks."""
    predictor = MLPPredictor(3, 1, hidden_layer_sizes=(8,), activation="tanh")
    options, gradients = SolverOptions(max_iter=8), Stochastic(learning_rate=0.02)
    target, normal, solution = solve(
        predictor,
        MeanFieldNormal(),
        ELBO(),
        options,
        global_random_seed,
        solver=gradients,
    )
    generator = torch.Generator().manual_seed(1)
    eps = torch.randn(4000, len(normal.mean), generator=generator, dtype=torch.float64)
    theta = normal.transform(eps)
    lw = target.log_joint_batched(theta) - normal.log_prob(theta)
    error = float(lw.std()) / np.sqrt(len(lw))
    assert np.mean(solution.history[-3:]) < solution.history[0] - 10
    assert float(lw.mean()) == pytest.approx(-solution.value, abs=5 * error + 0.5)


def interrupt_call(monkeypatch, owner, name, number):
    """Make one call of a method raise KeyboardInterrupt, as Ctrl-C would."""
    calls, method = [], getattr(owner, name)

    def interrupted(*args, **kwargs):
        calls.append(None)
        if len(calls) == number:
            raise KeyboardInterrupt
        return method(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)


def test_interrupted_stochastic_fit_keeps_the_last_sweep(monkeypatch):
    """In the middle of a sweep; a shorter fit has the same posterior.

    Wrong variant: the parameters in the middle of the sweep are kept.
    """
    X, y = real_data("virginica")
    parts = {"solver": "stochastic", "random_state": 0}
    interrupt_call(monkeypatch, ELBO, "surrogate", 250)
    model = BayesianLogisticRegression(**{"prior": "normal", **parts})
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    monkeypatch.undo()
    assert not model.converged_
    assert np.isfinite(model.predict_proba(X)).all()
    assert np.isfinite(model.lower_bound_)
    short = BayesianLogisticRegression(prior="normal", **parts, max_iter=2)
    with pytest.warns(ConvergenceWarning, match="increase max_iter"):
        short.fit(X, y)
    assert np.array_equal(model.coef_, short.coef_)
    assert np.array_equal(model.coef_std_, short.coef_std_)


def test_impossible_solvers_are_refused():
    X, y = real_data("virginica")
    for solver, objective, missing in [
        ("moment_matching", "elbo", "matching moments"),
        ("natural_gradient", "eubo", "expectations"),
        ("natural_gradient", ELBO("stl"), "asks for draws"),
    ]:
        model = BayesianLogisticRegression(
            solver=solver, objective=objective, prior="normal"
        )
        with pytest.raises(IncompatibleComponentsError, match=missing) as error:
            model.fit(X, y)
        assert "Use solver='auto' or one of" in str(error.value)
        assert not hasattr(model, "posterior_")


def test_messages_of_unfinished_fits():
    assert "after 1 iteration the objective may still be far" in unfinished(1, math.inf)
    assert "after 3 iterations" in unfinished(3, 0.5)
    assert "0.5 nats from its optimum; do it" in unfinished(3, 0.5, "do it")


def test_remaining_gain_is_that_of_a_geometric_series():
    """Wrong variants: without the last gain as a bound; the whole series."""
    assert remaining_gain([5.0, 4.0]) == pytest.approx(16.0)
    assert remaining_gain([4.0, 1.0]) == 1.0
    assert remaining_gain([1.0]) == math.inf
