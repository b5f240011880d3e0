"""Stochastic natural gradients of mean-field normals."""

from dataclasses import replace

import pytest
import torch

from skvi.base import Layout
from skvi.divergences import KL
from skvi.exceptions import IncompatibleComponentsError
from skvi.neural_network import BayesianMLPRegressor
from skvi.objectives import ELBO, EUBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.priors import Normal
from skvi.solvers import Problem, SolverOptions, choose_solver
from skvi.solvers._stochastic._ivon import IvonSteps
from skvi.solvers._stochastic._solver import Ivon
from skvi.targets import Target
from tests.solvers.test_ensembles import FULL_BATCH, ensemble_problem
from tests.solvers.test_members import OPTIONS, assert_same, make_problem, solve

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_steps_are_those_of_the_paper(weight):
    """Algorithm 1 of Shen et al. (2024), written again in means and precisions.

    Wrong variants: no term of second order; the variance before the step for the
    means; momentum that is not corrected; the weight of the entropy left out; a
    gradient in the log of the variance.
    """
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(7, generator=generator).double()
    mean, precision = params[:3].clone(), (-2 * params[3:6]).exp()
    steps, momentum = IvonSteps(params, 0.2, 3, weight=weight), torch.zeros(3).double()
    for t in range(1, 20):
        steps.rate = 0.2 / t
        gradient = torch.randn(7, generator=generator).double() * 10.0 ** (t % 5 - 2)
        curvature = precision * (gradient[3:6] + weight)  # of what is minimized
        stack = IvonSteps.stack([steps], params[None], gradient[None])
        for update in stack.updates(1):
            update()
        share, found = 0.03 * steps.rate, curvature / weight
        second = 0.5 * share**2 * (precision - found) ** 2 / precision
        precision = (1 - share) * precision + share * found + second
        momentum = 0.9 * momentum + 0.1 * gradient[:3]
        newton = momentum / (1 - 0.9**t) / (weight * precision)
        mean = mean - steps.rate * newton
        torch.testing.assert_close(params[:3], mean)
        torch.testing.assert_close(params[3:6], -0.5 * precision.log())


class _Bowl(Target):
    """A normal density whose coordinates have units of all sizes."""

    def __init__(self, scale):
        self.scale, self.layout = scale, Layout({"coef": (1, len(scale))})
        self.prior = None

    def log_joint(self, theta, rows=None):
        return -0.5 * ((theta / self.scale - 1.0) ** 2).sum(1)


def test_units_do_not_matter():
    """Twelve orders of magnitude in one step size, of which Adam makes half.

    Wrong variants: steps of the means that are not in units of the variance; a share of
    the precision's step that is added to the standard deviation.
    """
    scale = torch.logspace(-6, 6, 13, dtype=torch.float64)
    start = MeanFieldNormal().build(Layout({"coef": (1, 13)}))
    start = start.at(torch.cat([torch.zeros(13).double(), scale.log() - 1.0]))
    source = torch.Generator().manual_seed(0)
    problem = Problem(_Bowl(scale), ELBO("reparam"), KL(), start, source)
    options = SolverOptions(max_iter=40, early_stopping=False)
    found = Ivon().solve(problem, options).posterior.as_normal()
    assert ((found.mean - scale) / scale).abs().max() < 0.1
    assert (found.variance.sqrt() / scale).log().abs().max() < 0.1


def test_members_get_what_they_get_alone():
    """Wrong variants: step sizes of the first; one weight for all."""
    rates = (0.2, 0.05, 0.2)
    solvers = [Ivon(batch_size=20, learning_rate=r, n_draws=4) for r in rates]
    options = [replace(OPTIONS, max_iter=6)] * 3

    def make():
        learned = {"prior": Normal("learn")}
        weights = enumerate((0.1, 1.0, 3.0))
        return [make_problem(s, divergence=KL(w), **learned) for s, w in weights]

    together = solve(make(), options, solvers)
    for solver, problem, found in zip(solvers, make(), together, strict=True):
        assert found.solver == "ivon"
        assert_same(found, solver.solve(problem, options[0]))


def test_ensembles_step_as_their_members():
    """Wrong variant: means and deviations of all members in the order of one."""
    problem, alone = ensemble_problem(MeanFieldNormal(), hidden=(3,))
    options = replace(FULL_BATCH, max_iter=1)
    solver = Ivon(learning_rate=0.1, n_draws=4)
    found = solver.solve(problem, options)
    each = [solver.solve(member, options) for member in alone]
    for component, own in zip(found.posterior.components, each, strict=True):
        # The noise is shared: it moves along the mean of the members' gradients.
        torch.testing.assert_close(
            component.params, own.posterior.params, rtol=0.01, atol=0.01
        )


def test_states_go_on():
    """Wrong variants: what Adam knows of the point parameters is left out; a state that
    changes with what it came from."""
    generator = torch.Generator().manual_seed(0)
    params, gradient = torch.randn(2, 7, generator=generator).double()
    steps = IvonSteps(params, 0.2, 3)

    def advance(steps, params):
        for update in IvonSteps.stack([steps], params[None], gradient[None]).updates(2):
            update()
            update()

    advance(steps, params)
    state, later = steps.state_dict(), params.clone()
    advance(steps, params)
    other = IvonSteps(later, 0.7, 3)
    other.load_state_dict(state)
    advance(other, later)
    torch.testing.assert_close(later, params, rtol=0, atol=0)
    with pytest.raises(ValueError, match="another optimizer"):
        other.load_state_dict({"rate": 1.0})
    with pytest.raises(ValueError, match="needs"):
        IvonSteps(torch.zeros(9), 0.2, 4).load_state_dict(state)


def test_what_has_no_curvature_is_refused():
    """Before training, and with the solver that can."""
    for parts in ({"family": FullRankNormal()}, {"objective": EUBO()}):
        with pytest.raises(IncompatibleComponentsError, match="stochastic"):
            choose_solver(make_problem(0, **parts), "ivon")
    X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).numpy()
    model = BayesianMLPRegressor(solver="ivon", posterior="full_rank", max_iter=2)
    with pytest.raises(IncompatibleComponentsError, match="mean_field"):
        model.fit(X, X[:, 0])


def test_networks_take_it():
    """Wrong variant: a parameter that changes nothing."""
    X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)).numpy()
    fits = [
        BayesianMLPRegressor(
            skip_connection=False,
            noise="constant",
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
            solver=solver,
            max_iter=5,
            random_state=0,
        ).fit(X, X[:, 0])
        for solver in ("auto", "stochastic", "ivon")
    ]
    assert [fit.diagnostics_["solver"] for fit in fits][1:] == ["stochastic", "ivon"]
    assert fits[0].lower_bound_ == fits[1].lower_bound_ != fits[2].lower_bound_
