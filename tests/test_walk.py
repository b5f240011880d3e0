"""One walk over loss, divergence, family, prior, objective and solver.

Each combination is refused before training with a remedy, or reports that it has no
optimum or did not get there, or converges to an optimum that is checked against its
neighbors. The axes come from the registry. A slow test shows every pair of values;
``pytest -m walk`` takes every combination of all axes but the loss, which alternates:
seeds 0 to 3 (``--random-seed``) together are the full product.
"""

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from skvi.base import Layout, NormalForm
from skvi.divergences import RenyiDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import GaussianLikelihood
from skvi.losses._callable import CallableLoss
from skvi.neural_network import BayesianMLPRegressor
from skvi.posteriors import Family, FullRankNormal, Gamma, Product
from skvi.predictors import LinearPredictor
from skvi.priors import Normal
from skvi.solvers._choice import SOLVERS
from skvi.solvers._newton import Descent
from skvi.solvers._stochastic._optimizers import Adam
from skvi.solvers._stochastic._schedules import StableDecay
from skvi.targets import SupervisedTarget
from tests.families import LogisticFamily
from tests.walking import (
    AXES,
    DATA,
    MODELS,
    Evaluation,
    absolute,
    faults_of_optimum,
    model_of,
    outcome,
    pairwise,
    says_what_to_do,
    solvers_of,
    walk,
)


def trains(row):
    """Whether a divergence may stand beside an objective: with the ELBO only."""
    return row["objective"] in ("elbo", "score") or row["divergence"] == "kl"


PAIRS = pairwise({"name": MODELS, **AXES}, trains)


@pytest.mark.slow
@pytest.mark.parametrize("row", PAIRS, ids=lambda row: "-".join(row.values()))
def test_pairs(row):
    faults = [f"{label}: {fault}" for label, _, fault in walk(**row) if fault]
    assert not faults, "\n".join(faults)


# What the full walk found once: estimator, loss, divergence, family, prior, objective.
FOUND = [
    "linear log kl full_rank learn chi",  # no noise in the split of log joints
    "linear gamma gamma mean_field log_uniform elbo",  # improper, refused too late
    "linear beta kl mean_field laplace alpha_energy",  # an expectation of no loss
    "linear_fixed beta kl mean_field learn chi",  # the start lost a prior's scale
    "poisson log kl full_rank normal alpha_energy",  # nothing to learn
]


@pytest.mark.parametrize("row", FOUND)
def test_combinations_that_failed_once(row):
    row = dict(zip(("name", *AXES), row.split(), strict=True))
    faults = [f"{label}: {fault}" for label, _, fault in walk(**row) if fault]
    assert not faults, "\n".join(faults)


@pytest.mark.walk
@pytest.mark.parametrize("prior", AXES["prior"])
@pytest.mark.parametrize("objective", AXES["objective"])
@pytest.mark.parametrize("name", MODELS)
def test_every_combination(name, objective, prior, global_random_seed):
    losses, faults = list(AXES["loss"]), []
    rest = product(AXES["divergence"], AXES["posterior"])
    for i, (divergence, posterior) in enumerate(rest):
        row = {
            "name": name,
            "loss": losses[(i + global_random_seed) % len(losses)],
            "divergence": divergence,
            "posterior": posterior,
            "prior": prior,
            "objective": objective,
        }
        if trains(row):
            faults += [f"{label}: {fault}" for label, _, fault in walk(**row) if fault]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("name", MODELS)
def test_divergences_belong_to_the_elbo(name):
    """Every other pair of objective and divergence is refused, with a remedy."""
    for objective, divergence in product(AXES["objective"], AXES["divergence"]):
        row = {"objective": objective, "divergence": divergence}
        able, faults = solvers_of(name, **row)
        assert not faults
        assert trains(row) or not able, row


# With the usual number of gradient steps, where fits get to their end.
PATIENT = [
    ("logistic", {"objective": "score", "posterior": "mean_field"}),
    ("logistic", {"divergence": "hellinger"}),
    ("logistic", {"objective": "iwelbo"}),
    ("logistic", {"loss": "callable", "divergence": "renyi"}),
    ("linear_fixed", {"objective": "chi", "prior": "normal"}),
    ("linear_learn", {"loss": "beta", "prior": "student_t"}),
    ("linear", {"prior": "laplace", "objective": "iwelbo"}),
    ("poisson", {"divergence": "jeffreys", "posterior": "mean_field"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "values"), PATIENT)
def test_stochastic_fits_that_end(name, values):
    kind, faults, model = outcome(name, "stochastic", quick=False, **values)
    if kind == "converged":
        faults += faults_of_optimum(model, *model_of(name)[1:])
    assert not faults


def test_walk_finds_a_wrong_optimum():
    """Wrong variants: a q that is moved, widened, or of another divergence."""
    model, X, y = model_of("logistic")
    model.fit(X, y)
    assert not faults_of_optimum(model, X, y)
    fitted = model.posterior_.params
    for change in (0.03 * torch.eye(9)[0], 0.03 * torch.eye(9)[4]):
        model.posterior_.params = fitted + change.double()
        assert "nats lower" in faults_of_optimum(model, X, y)[0]
    model.posterior_.params = fitted
    model.divergence_ = AXES["divergence"]["kl/2"]
    assert len(faults_of_optimum(model, X, y)) == 2
    noisy, X, y = model_of("logistic", objective="eubo")
    noisy.fit(X, y)
    assert not Evaluation(noisy, X, y).better_neighbor(0.0)
    noisy.posterior_.params = noisy.posterior_.params - 0.3 * torch.eye(9)[4].double()
    assert Evaluation(noisy, X, y).better_neighbor(0.0)


def test_messages_without_a_remedy_are_found():
    assert says_what_to_do("cannot do this. Use solver='auto'.")
    assert not says_what_to_do("cannot do this with solver='x'.")
    assert not says_what_to_do("cannot do this. Use something else.")


#: What "auto" is for so few parameters.
AUTO = {"posterior": "full_rank"}


def is_change(model, axis, value):
    given = model.get_params()[axis]
    return value not in (given, AUTO.get(axis) if given == "auto" else given)


CHANGES = [
    (name, axis, value)
    for name, (model, *_) in MODELS.items()
    for axis, values in AXES.items()
    for value in values
    if is_change(model, axis, value)
]
#: One estimator shows each value; pairs of values are a slow test.
SHOWN = {
    (list(MODELS)[i % len(MODELS)], axis, value)
    for i, (axis, value) in enumerate((a, v) for a in AXES for v in AXES[a])
}


@cache
def base_fit(name, solver):
    return outcome(name, solver)[2]


@pytest.mark.parametrize(("name", "axis", "value"), [c for c in CHANGES if c in SHOWN])
def test_nothing_is_ignored(name, axis, value):
    """Changing one part changes the posterior that one and the same solver finds.

    Or it is refused, or has no optimum, and says so.
    """
    able, faults = solvers_of(name, **{axis: value})
    if not able:
        assert not faults
        return
    base, _ = solvers_of(name)
    solver = next(s for s in able if s in base)
    kind, faults, model = outcome(name, solver, **{axis: value})
    if model is None:
        assert kind == "no optimum"
        assert not faults
        return
    fits = model, base_fit(name, solver)
    moments = [np.append(m.coef_, m.coef_std_) for m in fits]
    change = np.abs(moments[0] - moments[1]).max()
    assert change > 1e-6


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_are_not_ignored(name, solver):
    able, faults = solvers_of(name)
    assert not faults
    if solver in able:
        _, faults, model = outcome(name, solver)
        assert not faults
        assert model.diagnostics_["solver"] == solver
    else:
        model, X, y = model_of(name, solver=solver)
        with pytest.raises(IncompatibleComponentsError, match=f"solver='{solver}'"):
            model.fit(X, y)


class BoundFamily(Family):
    """A family whose log density is a bound."""

    def build(self, layout, generator=None):
        posterior = FullRankNormal().build(layout)
        posterior.side = "lower"
        posterior.as_normal = lambda: None
        return posterior


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "family",
    [
        BoundFamily(),
        Gamma(),
        Product({"weights": FullRankNormal()}),
        Product({"noise_precision": FullRankNormal()}),
        Product({("coef", "noise_precision"): FullRankNormal()}),
    ],
    ids=repr,
)
def test_families_that_do_not_fit(family, name):
    """Densities are known on the side that an objective needs, precisions are Gamma."""
    for objective in AXES["objective"]:
        model, X, y = model_of(name, objective=objective)
        with pytest.raises(IncompatibleComponentsError) as error:
            model.set_params(posterior=family, solver="auto").fit(X, y)
        assert says_what_to_do(str(error.value))


@pytest.mark.parametrize(
    ("family", "objective"),
    [
        (LogisticFamily(), "eubo"),
        (Product(), "elbo"),
        (Product({"coef_0": LogisticFamily()}), "elbo"),
    ],
    ids=repr,
)
def test_networks_take_every_family(family, objective):
    """Wrong variant: a network that asks every family to become a normal."""
    X, y = DATA["real"]
    model = BayesianMLPRegressor(
        objective=objective, divergence="kl", posterior=family,
        hidden_layer_sizes=4, max_iter=1, random_state=0,
    )  # fmt: skip
    for warm_start in (False, True):
        model.set_params(warm_start=warm_start)
        with pytest.warns(ConvergenceWarning):
            model.fit(X, y)
        assert np.isfinite(model.predict(X)).all()


def test_product_takes_marginals(make_normal):
    """Wrong variant: conditional instead of marginal covariances."""
    layout = Layout({"a": (2,), "b": (1,), "c": (1,)})
    posterior = Product({("a", "c"): FullRankNormal()}).build(layout)
    normal = make_normal(4, "full")
    posterior = posterior.near(normal)
    where = torch.tensor([0, 1, 3])
    part = posterior.part("a").as_normal()
    expected = normal.covariance()[where][:, where]
    torch.testing.assert_close(part.covariance(), expected)
    torch.testing.assert_close(part.mean, normal.mean[where])
    low = NormalForm(normal.mean, normal.variance.sqrt(), normal.scale[:, :2])
    expected = low.covariance()[where][:, where]
    torch.testing.assert_close(low.marginal(where).covariance(), expected)


def test_huge_first_values_are_no_excuse():
    """Wrong variant: 1 % of all that fell, however much that was."""
    falls = [1e6 * torch.exp(-0.7 * torch.tensor(float(k))) for k in range(16)]
    verdicts = []
    for n_terms in (100, 1e9):
        schedule = StableDecay(Adam(torch.zeros(1), 0.1), 16, 1e-5, n_terms)
        for value in falls:
            schedule.observe(value.expand(10))
        verdicts.append(schedule.converged)
    assert verdicts == [False, True]


def test_line_searches_that_go_too_far():
    """Wrong variant: a loss that is asked for values at infinite f."""
    _, X, y = model_of("linear_fixed")
    predictor, tensor = LinearPredictor(2), torch.from_numpy
    prior = Normal().build(predictor.layout)
    parts = predictor, GaussianLikelihood(1.0), CallableLoss(absolute), prior
    target = SupervisedTarget(*parts, tensor(X), tensor(y))
    for size in (1e200, torch.inf, torch.nan):
        normal = NormalForm(
            torch.full((3,), size, dtype=torch.float64), torch.ones(3).double()
        )
        found = Descent(
            [target], RenyiDivergence(0.5), normal.mean[None], normal.scale[None]
        )
        assert found.place(0) is None


@pytest.mark.filterwarnings("ignore:.*vague Gamma")
def test_improper_priors_have_no_evidence_beside_hyperpriors():
    """Wrong variant: a hierarchy that is proper whatever is in it."""
    model, X, y = model_of("linear", prior="log_uniform", max_iter=1)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    with pytest.raises(ValueError, match="improper"):
        model.evidence_bounds(X, y, random_state=0)
