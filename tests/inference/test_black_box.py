"""Densities without derivatives, and densities whose factors are known."""

import numpy as np
import pytest
import torch
from scipy.stats import halfnorm, norm
from torch.distributions import HalfNormal, Normal

from skvi.divergences import KLDivergence
from skvi.inference import VariationalInference
from skvi.objectives import ELBO
from skvi.posteriors import MeanFieldNormal
from skvi.targets._density import DensityTarget
from skvi.targets._density_checks import check_density

Y = np.linspace(2.0, 4.0, 20)
SHAPES, SUPPORTS = {"mu": (), "sigma": ()}, {"sigma": "positive"}


def of_torch(p):
    y = torch.as_tensor(Y)[:, None]
    prior = Normal(0.0, 10.0).log_prob(p["mu"]) + HalfNormal(5.0).log_prob(p["sigma"])
    return prior + Normal(p["mu"], p["sigma"]).log_prob(y).sum(0)


def of_numpy(p):
    prior = norm.logpdf(p["mu"], 0, 10) + halfnorm.logpdf(p["sigma"], scale=5)
    return prior + norm.logpdf(Y[:, None], p["mu"], p["sigma"]).sum(0)


def of_one_draw(p):
    return of_numpy({name: np.asarray(value)[None] for name, value in p.items()})[0]


@pytest.mark.parametrize(
    ("density", "options"), [(of_numpy, {}), (of_one_draw, {"vectorize": True})]
)
def test_numpy_gives_the_fit_of_torch(density, options):
    """By central differences. Wrong variant: one-sided ones, off by 1e-5."""
    settings = {"shapes": SHAPES, "supports": SUPPORTS, "random_state": 0}
    expected = VariationalInference(of_torch, **settings).fit()
    model = VariationalInference(density, **settings, **options)
    if options:  # a loop over draws: its gradient alone, which takes a moment
        target = model._make_target(None)
        check_density(target, torch.zeros(3, 2).double())
        theta = torch.tensor([[3.0, -0.4], [1.0, 0.5]], dtype=torch.float64)
        found = target.log_joint_gradient(theta)
        right = expected._target.log_joint_gradient(theta)
        torch.testing.assert_close(found, right, rtol=1e-7, atol=1e-7)
        return
    model.fit()
    for name in SHAPES:
        assert model.mean_[name] == pytest.approx(expected.mean_[name], rel=1e-7)
        assert model.std_[name] == pytest.approx(expected.std_[name], rel=1e-7)


def chain(n, with_factors):
    """A random walk of n steps that is observed with noise."""
    y = torch.linspace(-2.0, 2.0, n, dtype=torch.float64)

    def log_density(p):
        x = torch.stack([p[f"x{i}"] for i in range(n)], 1)
        factors = {"x0": Normal(0.0, 1.0).log_prob(x[:, 0])}
        for i in range(1, n):
            step = Normal(x[:, i - 1], 0.5).log_prob(x[:, i])
            factors[f"x{i - 1}, x{i}"] = step
        for i in range(n):
            factors[(f"x{i}",)] = Normal(x[:, i], 1.0).log_prob(y[i])
        return factors if with_factors else torch.stack(list(factors.values())).sum(0)

    return DensityTarget(log_density, {f"x{i}": () for i in range(n)}, None)


def score_gradients(target, posterior, n_repeats):
    generator = torch.Generator().manual_seed(0)
    objective = ELBO("score", rao_blackwell=True, control_variate=False)
    found = []
    for _ in range(n_repeats):
        leaf = posterior.params.detach().clone().requires_grad_()
        q = posterior.at(leaf)
        loss, _ = objective.surrogate(target, q, KLDivergence(), None, 16, generator)
        found.append(torch.autograd.grad(loss, leaf)[0])
    return torch.stack(found)


def test_factors_leave_the_gradient_and_take_its_noise():
    """Each coordinate is rewarded by the factors that it is in.

    The mean is the gradient of the negative ELBO, by the path of draws. Wrong variants:
    the steps reward their first coordinate only (biased); all factors reward all (no
    less noise).
    """
    n = 6
    posterior = MeanFieldNormal().build(chain(n, True).layout)
    found = score_gradients(chain(n, True), posterior, 300)
    blind = score_gradients(chain(n, False), posterior, 300)
    leaf = posterior.params.detach().clone().requires_grad_()
    generator = torch.Generator().manual_seed(1)
    surrogate = ELBO("reparam").surrogate
    loss, _ = surrogate(
        chain(n, False), posterior.at(leaf), KLDivergence(), None, 50_000, generator
    )
    (exact,) = torch.autograd.grad(loss, leaf)
    error = found.std(0) / len(found) ** 0.5
    assert ((found.mean(0) - exact).abs() < 5 * error).all()
    assert (found.var(0).mean() / blind.var(0).mean()).item() < 0.3


def test_coordinates_get_their_jacobians_and_factors():
    """Values by hand. Wrong variant: the Jacobian rewards all coordinates."""
    target = DensityTarget(
        lambda p: {"mu": -(p["mu"] ** 2), ("mu", "sigma"): -p["sigma"] * p["mu"] ** 2},
        SHAPES,
        SUPPORTS,
        log_prior=lambda p: {"sigma": -p["sigma"]},
    )
    theta = torch.tensor([[2.0, 0.0], [1.0, 0.3]], dtype=torch.float64)
    mu, log_sigma = theta.T
    sigma = log_sigma.exp()
    total, terms = target.log_joint_by_coordinate(theta)
    shared = -sigma * mu**2
    expected = torch.stack([-(mu**2) + shared, shared - sigma + log_sigma], 1)
    torch.testing.assert_close(terms, expected)
    torch.testing.assert_close(total, target.log_joint(theta))
    torch.testing.assert_close(total, -(mu**2) + shared - sigma + log_sigma)


def test_draws_at_which_a_factor_fails_have_no_density():
    """Others keep theirs. Wrong variant: the error of one draw is raised for all."""

    def log_density(p):
        if (p["sigma"] > 50).any():
            raise ValueError("far out")
        return {"mu": -(p["mu"] ** 2), "sigma": -p["sigma"]}

    target = DensityTarget(log_density, SHAPES, SUPPORTS)
    theta = torch.tensor([[1.0, 0.0], [1.0, 9.0], [2.0, 0.0]], dtype=torch.float64)
    total, terms = target.log_joint_by_coordinate(theta)
    torch.testing.assert_close(total, target.log_joint(theta))
    assert total.tolist() == [-2.0, -np.inf, -5.0]
    assert terms[2].tolist() == [-4.0, -1.0]


@pytest.mark.slow
def test_a_density_of_steps_has_a_score():
    """Rounded arguments: all slopes are 0. Moments by a sum over a fine grid."""

    def log_density(p):
        return norm.logpdf(np.round(2 * p["x"].numpy()) / 2, 3.0, 1.0)

    model = VariationalInference(
        log_density, {"x": ()}, objective=ELBO("score"), random_state=0
    ).fit()
    x = np.linspace(-5, 11, 160_001)
    w = np.exp(log_density({"x": torch.from_numpy(x)}))
    mean = (w * x).sum() / w.sum()
    std = ((w * (x - mean) ** 2).sum() / w.sum()) ** 0.5
    assert model.mean_["x"] == pytest.approx(mean, abs=0.05)
    assert model.std_["x"] == pytest.approx(std, abs=0.05)


@pytest.mark.parametrize(
    ("density", "options", "message"),
    [
        (lambda p: norm.logpdf(p["mu"]), {}, r"does not depend on \['sigma'\]"),
        (lambda p: {"nu": -(p["mu"] ** 2)}, {}, "does not name"),
        (lambda p: -((p["mu"] + p["sigma"]).numpy() ** 2), {}, "one combination"),
        (lambda p: -(p["mu"].numpy()[0] ** 2), {}, "one number a draw"),
        (
            lambda p, rows: -((p["mu"].numpy()[:, None] - rows.numpy()) ** 2).sum(1),
            {"batch_size": 5},
            "With batch_size log_density must be differentiable",
        ),
        (
            lambda p, rows: {"mu": -((p["mu"][:, None] - rows) ** 2).sum(1)},
            {"batch_size": 5},
            "no factors",
        ),
    ],
)
def test_refusals(density, options, message):
    """They name what is wrong."""
    data = torch.as_tensor(Y) if options else None
    model = VariationalInference(density, {"mu": (), "sigma": ()}, **options)
    with pytest.raises(ValueError, match=message):
        model.fit(data)
