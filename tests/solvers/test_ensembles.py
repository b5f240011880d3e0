"""Training of ensembles: each member gets what it would get alone."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale

from skvi._estimator._model import TrainingData
from skvi.evidence._summarize import lower_bound
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.objectives import ELBO, AlphaEnergy
from skvi.objectives._analytic import AnalyticSteps
from skvi.objectives._network_steps import make_steps
from skvi.posteriors import Ensemble, FullRankNormal, LowRankNormal, MeanFieldNormal
from skvi.solvers import Problem, SolverOptions, Stochastic
from skvi.utils._tensors import spawn
from tests.families import LogisticFamily
from tests.interrupts import interrupt
from tests.neural_network.test_conjugate import NOISE, closed_form, make_data
from tests.solvers.test_members import (
    OPTIONS,
    SOLVER,
    assert_same,
    make_problem,
    solve,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
FIXED = GaussianLikelihood(0.3)
ALL_ROWS = Stochastic(learning_rate=0.02, n_draws=4)
FULL_BATCH = SolverOptions(max_iter=6, steps_per_iter=5, early_stopping=False)


def ensemble_problem(base, n_members=3, seed=0, **parts):
    """A problem whose members start apart, and the problems of the members."""
    problem = make_problem(seed, family=Ensemble(base, n_members), **parts)
    starts = torch.Generator().manual_seed(100)
    components = [
        c.at(c.params + 0.1 * torch.randn(len(c.params), generator=starts).double())
        for c in problem.posterior.components
    ]
    posterior = problem.posterior.with_components(components)

    def make():
        generator = torch.Generator().manual_seed(seed)
        return Problem(
            problem.target, problem.objective, problem.divergence, posterior, generator
        )

    sources = spawn(torch.Generator().manual_seed(seed), n_members)
    alone = [
        Problem(problem.target, problem.objective, problem.divergence, c, source)
        for c, source in zip(components, sources, strict=True)
    ]
    return make(), alone


BASES = {
    "mean field": (MeanFieldNormal(), ELBO()),  # in one stack
    "low rank": (LowRankNormal(2), ELBO()),
    "user's": (LogisticFamily(), ELBO()),
    "sticking the landing": (FullRankNormal(), ELBO(gradient="stl")),
    "energy": (MeanFieldNormal(), AlphaEnergy()),
}


@pytest.mark.parametrize("name", BASES)
def test_members_equal_separate_fits(name):
    """With the same starts and sources of draws, where nothing is shared.

    Wrong variants: one source for all members; the parameters of the first member for
    all; their gradients divided by the number of members is no mistake for Adam.
    """
    base, objective = BASES[name]
    parts = {"likelihood": FIXED, "objective": objective, "hidden": (3,)}
    problem, alone = ensemble_problem(base, **parts)
    found = ALL_ROWS.solve(problem, FULL_BATCH)
    each = [ALL_ROWS.solve(member, FULL_BATCH) for member in alone]
    for component, own in zip(found.posterior.components, each, strict=True):
        torch.testing.assert_close(component.params, own.posterior.params)
    last = np.mean([own.history[-1] for own in each])
    assert found.history[-1] == pytest.approx(last)


def test_what_is_shared_gets_the_mean_gradient():
    """Wrong variant: the sum, which is no bound's gradient."""
    problem, alone = ensemble_problem(MeanFieldNormal())
    hyper = problem.target.hyper
    params = torch.cat([problem.posterior.params, hyper])[None]
    steps = make_steps(ELBO(), [problem], params, 4, None)
    steps.prepare([[None]])
    steps.differentiate(0)
    each = []
    for member in alone:
        own = torch.cat([member.posterior.params, hyper])[None]
        single = make_steps(ELBO(), [member], own, 4, None)
        single.prepare([[None]])
        single.differentiate(0)
        each.append(single.gradient[0])
    own, shared = torch.stack(each).split([len(each[0]) - 1, 1], 1)
    n = own.numel()
    torch.testing.assert_close(steps.gradient[0, :n], own.reshape(-1))
    torch.testing.assert_close(steps.gradient[0, n:], shared.mean(0))
    assert not torch.allclose(shared[0], shared[1])


@pytest.mark.parametrize("base", [MeanFieldNormal(), LowRankNormal(2)], ids=repr)
def test_components_take_the_share_of_their_member(base):
    """Of the divergence. Wrong variants: the whole; that of another member."""
    n_members = 2 if isinstance(base, MeanFieldNormal) else 1
    problems = [ensemble_problem(base, 3, seed)[0] for seed in range(n_members)]
    shares = [0.2, 0.6][:n_members]

    def gradients(problems, shares):
        rows = [torch.cat([p.posterior.params, p.target.hyper]) for p in problems]
        for problem in problems:
            problem.generator.manual_seed(0)
        steps = make_steps(ELBO(), problems, torch.stack(rows), 4, None)
        steps.prepare([[None] for _ in problems])
        steps.weigh_divergence(shares)
        steps.differentiate(0)
        return steps.gradient.clone()

    found = gradients(problems, shares)
    for problem, share, own in zip(problems, shares, found, strict=True):
        torch.testing.assert_close(own, gradients([problem], [share])[0])
        whole, part = (gradients([problem], [w])[0] for w in (1.0, 0.5))
        half = whole + (share - 1.0) / (1.0 - 0.5) * (whole - part)
        torch.testing.assert_close(own, half)
        assert not torch.allclose(own, whole)


def test_one_scale_of_the_noise_in_one_stack(monkeypatch):
    """Members of a learned noise: one target; and ensembles of a search in one stack.

    Wrong variant: a stack for each ensemble.
    """
    counts = []
    original = AnalyticSteps.__init__

    def count(self, members, *args, **kwargs):
        counts.append(len(members))
        original(self, members, *args, **kwargs)

    monkeypatch.setattr(AnalyticSteps, "__init__", count)
    lengths = [2, 4]

    def make():
        return [ensemble_problem(MeanFieldNormal(), 3, seed)[0] for seed in (0, 1)]

    options = [replace(OPTIONS, max_iter=n) for n in lengths]
    together = solve(make(), options)
    assert counts[0] == 6
    assert counts[-1] == 3  # who is done leaves with all components
    for problem, option, found in zip(make(), options, together, strict=True):
        assert len(found.target.hyper) == 1
        assert_same(found, SOLVER.solve(problem, option))


def waves(n=150):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.normal(size=n)


SMALL = {"hidden_layer_sizes": (5,), "max_iter": 20, "random_state": 0}
SMALL |= {"activation": "relu", "divergence": "kl"}  # the fewest iterations


def test_an_estimator_with_an_ensemble():
    """Shorthand, draws from all members, pickles.

    Wrong variants: all members start at the same place; prediction from one of them.
    """
    X, y = waves()
    model = BayesianMLPRegressor(posterior="ensemble", **SMALL).fit(X, y)
    members = model.posterior_.components
    assert len(members) == 8
    means = torch.stack([m.as_normal().mean for m in members])
    assert float(means.std(0).mean()) > 0.1
    theta = torch.from_numpy(model._theta)
    nearest = torch.stack([m.log_prob(theta) for m in members]).argmax(0)
    counts = nearest.bincount(minlength=8)
    assert counts.min() >= 12  # of 100 draws
    assert counts.max() <= 13
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict(X), model.predict(X))


def test_a_second_fit_goes_on():
    """With members in turn, where there are more of them, or other families.

    Wrong variants: all members go on with the first; members that are new start at
    networks of zeros.
    """
    X, y = waves()
    model = BayesianMLPRegressor(
        posterior=Ensemble(n_members=2), likelihood="gaussian", **SMALL
    ).fit(X, y)
    before = [c.as_normal().mean for c in model.posterior_.components]
    model.set_params(warm_start=True, max_iter=1, solver__learning_rate=1e-6)
    families = {
        "ensemble": [0, 1, 0, 1, 0, 1, 0, 1],
        "mean_field": [0],
        Ensemble("full_rank", 3): [0, 0, 0],
    }
    for family, origins in families.items():
        model.set_params(posterior=family).fit(X, y)
        components = model.posterior_.components
        for component, origin in zip(components, origins, strict=True):
            moved = component.as_normal().mean - before[origin]
            assert float(moved.abs().max()) < 1e-3


def test_the_bound_is_that_of_the_mixture():
    """Wrong variant: the mean of the members' bounds is reported."""
    X, y = waves()
    model = BayesianMLPRegressor(posterior=Ensemble(n_members=4), **SMALL).fit(X, y)
    bound, error = model.lower_bound_, model.lower_bound_se_
    data = TrainingData.gather(model._model.response, X, y, None, None)
    target = model._model.target(data).at(torch.from_numpy(model._hyper))
    generator = torch.Generator().manual_seed(0)
    found = [
        lower_bound(target, component, generator, 2000)[0]
        for component in model.posterior_.components
    ]
    gain = bound - np.mean(found)
    assert abs(gain - np.log(4)) < 5 * error + 0.3


def test_searches_set_the_number_of_members():
    X, y = load_iris(return_X_y=True)
    X, y = scale(X), y
    search = GridSearchCV(
        BayesianMLPClassifier(posterior="ensemble", **SMALL),
        {"posterior__n_members": [1, 3]},
        cv=2,
    ).fit(X, y)
    counts = [p["posterior__n_members"] for p in search.cv_results_["params"]]
    assert counts == [1, 3]
    n_members = len(search.best_estimator_.posterior_.components)
    assert n_members == search.best_params_["posterior__n_members"]
    assert search.best_score_ > 0.6


@pytest.mark.slow
def test_the_evidence_of_an_ensemble():
    """Without hidden layers the evidence is known."""
    X, y = make_data()
    model = BayesianMLPRegressor(
        posterior=Ensemble(n_members=2),
        divergence="kl",
        likelihood=GaussianLikelihood(NOISE),
        hidden_layer_sizes=(),
        max_iter=60,
        random_state=0,
    ).fit(X, y)
    evidence = closed_form(X, y, NOISE)[2]
    assert model.lower_bound_ < evidence + 4 * model.lower_bound_se_
    bounds = model.evidence_bounds(X, y, random_state=0)
    low, high = bounds.interval()
    assert low < evidence < high
    assert high - low < 0.2


def test_linear_models_take_ensembles_too():
    """One mode: the mixture is its base."""
    X, y = load_iris(return_X_y=True)
    X, y = scale(X[50:, :2]), y[50:]
    one = BayesianLogisticRegression(prior="laplace", posterior="mean_field").fit(X, y)
    parts = {"posterior": Ensemble(n_members=2), "max_iter": 4, "random_state": 0}
    model = BayesianLogisticRegression(prior="laplace", **parts).fit(X, y)
    assert abs(model.lower_bound_ - one.lower_bound_) < 0.5
    np.testing.assert_allclose(model.coef_, one.coef_, atol=0.3)
    np.testing.assert_allclose(model.predict_proba(X), one.predict_proba(X), atol=0.05)


@pytest.mark.parametrize("call", [3, 40])
def test_ctrl_c_keeps_all_members(monkeypatch, call):
    """In the first stretch the state as it is, later the last average."""
    X, y = waves()
    interrupt(monkeypatch, AnalyticSteps, "differentiate", call)
    model = BayesianMLPRegressor(posterior=Ensemble(n_members=3), **SMALL)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.diagnostics_["ending"] == "interrupted"
    assert len(model.posterior_.components) == 3
    assert np.isfinite(model.lower_bound_)
    assert np.isfinite(model.predict(X)).all()
