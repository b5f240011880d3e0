"""Families whose log density is known up to a bound."""

import numpy as np
import pytest
import torch
from scipy import stats

from skvi.base import Draw, Layout, NormalForm
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import GaussianLikelihood
from skvi.losses import LogLoss
from skvi.objectives import ELBO, EUBO, IWELBO, ChiBound, RenyiBound
from skvi.posteriors import Family, FullRankNormal, Posterior, Product
from skvi.predictors import LinearPredictor
from skvi.priors import Normal
from skvi.solvers import Problem, SolverOptions, Stochastic
from skvi.targets import SupervisedTarget


class SemiImplicitMixture(Posterior):
    """Normal given z ~ N(0, 1): theta = mean + size * z + std * noise.

    Its log density is bounded from above, in expectation, by the log mean density
    given the z that made the draw and K others.
    """

    side = "upper"

    def __init__(self, layout, n_others):
        self.layout, self.n_others = layout, n_others
        start = torch.zeros(3, layout.size, dtype=torch.float64)
        start[1:] = torch.tensor([[0.1], [-1.0]])
        self.params = start.reshape(-1)

    def draw(self, n_draws, generator):
        mean, size, log_std = self.params.reshape(3, -1)
        z = torch.randn(self.n_others + 1, n_draws, 1, generator=generator).double()
        noise = torch.randn(n_draws, len(mean), generator=generator).double()
        theta = mean + size * z[0] + log_std.exp() * noise
        given = NormalForm(theta, log_std.exp())
        log_q = given.log_prob_terms(mean + size * z).sum(-1).logsumexp(0)
        log_q = log_q - np.log(self.n_others + 1)
        return Draw(theta, log_q, self.side, noise, auxiliary=z[0])


class SemiImplicitFamily(Family):
    def __init__(self, n_others=50):
        self.n_others = n_others

    def build(self, layout, generator=None):
        return SemiImplicitMixture(layout, self.n_others)


def make_problem(objective, n_others=50, side="upper", divergence=None):
    """Two collinear features and a known noise: a posterior along a diagonal."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 1))
    X = torch.from_numpy(np.hstack([x, x + 0.3 * rng.normal(size=(30, 1))]))
    y = X.sum(1) + torch.from_numpy(rng.normal(size=30))
    model = LinearPredictor(2, fit_intercept=False)
    prior = Normal().build(model.layout)
    target = SupervisedTarget(model, GaussianLikelihood(1.0), LogLoss(), prior, X, y)
    posterior = SemiImplicitFamily(n_others).build(model.layout)
    posterior.side = side
    generator = torch.Generator().manual_seed(0)
    covariance = X @ X.T + torch.eye(30)
    evidence = stats.multivariate_normal(cov=covariance.numpy()).logpdf(y.numpy())
    problem = Problem(
        target, objective, divergence or KLDivergence(), posterior, generator
    )
    return problem, evidence


def test_an_upper_bound_of_log_q_trains_the_elbo():
    """The value stays below the evidence, and the fit learns the diagonal.

    With few other z the bound is loose, and a wrong one far from it. Wrong variant:
    log q without the z that made the draw, a lower bound of log q.
    """
    for n_others in (50, 2):
        problem, evidence = make_problem(ELBO(), n_others)
        options = SolverOptions(max_iter=8)
        found = Stochastic().solve(problem, options)
        assert -found.value < evidence + 3 * found.value_se
        if n_others == 50:
            assert -found.value > evidence - 0.15
            theta = found.posterior.draw(4000, problem.generator).theta
            assert np.corrcoef(theta.detach().T.numpy())[0, 1] < -0.5


def check(problem):
    problem.objective.check_posterior(
        problem.posterior, problem.divergence, problem.target
    )


@pytest.mark.parametrize("objective", [EUBO(), RenyiBound(), IWELBO(), ChiBound()])
def test_importance_weights_refuse_bounds(objective):
    problem, _ = make_problem(objective)
    with pytest.raises(IncompatibleComponentsError, match=r"upper bound.*elbo"):
        check(problem)


@pytest.mark.parametrize("gradient", ["stl", "score"])
def test_rules_that_need_the_score_refuse_bounds(gradient):
    problem, _ = make_problem(ELBO(gradient=gradient))
    with pytest.raises(IncompatibleComponentsError, match="along the path"):
        check(problem)


def test_other_divergences_refuse_bounds():
    problem, _ = make_problem(ELBO(), divergence=RenyiDivergence(0.5))
    with pytest.raises(IncompatibleComponentsError, match="for KL"):
        check(problem)


@pytest.mark.parametrize("side", ["lower", "none"])
def test_the_elbo_refuses_lower_bounds_and_nothing(side):
    problem, _ = make_problem(ELBO(), side=side)
    with pytest.raises(IncompatibleComponentsError, match="full_rank"):
        check(problem)


class HierarchicalVariational(SemiImplicitMixture):
    """The density of theta given the z that made the draw."""

    def log_q(self, draw, params=None):
        mean, size, log_std = (self.params if params is None else params).reshape(3, -1)
        given = NormalForm(mean + size * draw.auxiliary, log_std.exp())
        return given.log_prob_terms(draw.theta).sum(-1)


class HierarchicalFamily(Family):
    def build(self, layout, generator=None):
        return HierarchicalVariational(layout, 0)


def test_parts_of_a_product_keep_what_made_their_draws():
    """Wrong variant: log q of the whole theta, at which the part has no density."""
    layout = Layout({"coef": (1, 2), "intercept": (1,)})
    blocks = {"coef": HierarchicalFamily(), "intercept": FullRankNormal()}
    product = Product(blocks).build(layout)
    draw = product.draw(5, torch.Generator().manual_seed(0))
    # Without other z the bound is the density given the z of the draw.
    torch.testing.assert_close(product.log_q(draw), draw.log_q)
    torch.testing.assert_close(product.log_q(draw.detach()), draw.log_q)
    moved = product.at(product.params + 0.1)
    assert not torch.allclose(moved.log_q(draw), draw.log_q)
    torch.testing.assert_close(product.log_q(draw, moved.params), moved.log_q(draw))
