"""The alpha-energy: both forms against closed forms, grids and draws; its limits."""

import math

import pytest
import torch

from skvi.base import NormalForm
from skvi.divergences import KLDivergence
from skvi.divergences._forms import log_power_integral
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood
from skvi.likelihoods._categorical import CategoricalLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import BetaLoss, LogLoss
from skvi.objectives import ELBO, AlphaEnergy
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor, MLPPredictor
from skvi.priors import Normal
from skvi.priors._blocks import build_prior
from skvi.targets import SupervisedTarget
from skvi.targets._least_squares import FreeEnergy
from tests.densities import randn
from tests.objectives.conjugate import NOISE, PRIOR_SCALE, SIZE, N, small_problem

alphas = pytest.mark.parametrize("alpha", [0.1, 1.0, 2.5])
kinds = pytest.mark.parametrize("kind", ["gaussian", "bernoulli"])
families = pytest.mark.parametrize(
    "family", [MeanFieldNormal(), FullRankNormal()], ids=repr
)
every_pair = pytest.mark.parametrize(
    ("kind", "family", "alpha"),
    [
        ("gaussian", MeanFieldNormal(), 0.5),
        ("gaussian", FullRankNormal(), 2.5),
        ("bernoulli", FullRankNormal(), 0.5),
        ("bernoulli", MeanFieldNormal(), 2.5),
    ],
)


def make_target(kind, predictor=None, weight=None, loss=None, rows=None, scale=None):
    predictor, X = predictor or LinearPredictor(1), 0.8 + randn(N, 1)
    prior = build_prior(Normal(scale or PRIOR_SCALE), predictor.layout)
    y = X[:, 0] + randn(N, seed=1)
    likelihood = GaussianLikelihood(NOISE)
    if kind == "bernoulli":
        y, likelihood = (y > 0.3).double(), BernoulliLikelihood()
    if rows is not None:
        X, y = X[rows], y[rows]
    weight = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    return SupervisedTarget(
        predictor, likelihood, loss or LogLoss(), prior, X, y, weight
    )


TARGETS = {kind: make_target(kind) for kind in ("gaussian", "bernoulli")}


def make_posterior(family, target=TARGETS["gaussian"]):
    posterior = family.build(target.layout)
    size = target.layout.size
    root = 0.4 * torch.eye(size).double() + 0.1 * randn(size, size, seed=4).tril()
    posterior = posterior.near(NormalForm(0.3 + 0.5 * randn(size, seed=3), root))
    posterior.params.requires_grad_()
    return posterior


def run(objective, target, posterior, n_draws=10, seed=0, rows=None):
    generator = torch.Generator().manual_seed(seed)
    surrogate, value = objective.surrogate(
        target, posterior, KLDivergence(), rows, n_draws, generator
    )
    assert not value.requires_grad
    return value, torch.autograd.grad(surrogate, posterior.params)[0]


def power_means(target, posterior, alpha, form, n_draws=200_000, n_blocks=50):
    """The energy from draws, in blocks, with a jackknife against the log's bias."""
    normal = posterior.as_normal()
    theta = normal.transform(randn(n_draws, SIZE, seed=9))
    gain = -target.pointwise(theta)
    if form == "exact":
        ratio = target.prior.log_prob(theta) - normal.log_prob(theta)
        gain = gain + ratio[:, None] / N
    means = torch.exp(alpha * gain).reshape(n_blocks, -1, N).mean(1)
    others = (means.sum(0) - means) / (n_blocks - 1)
    value = -(means.mean(0).log().sum()) / alpha
    left_out = -others.log().sum(1) / alpha
    error = float(left_out.std()) * (n_blocks - 1) / math.sqrt(n_blocks)
    if form == "large_n":
        value = value + KLDivergence().closed_form(normal, target.prior)
    return value, error


def exact_form(target, normal, alpha, scaled=True):
    """Closed: q^(1-a) prior^a is another normal, times a power integral; a = alpha/n.

    Without `scaled` the 1/n inside is forgotten.
    """
    n = target.n_rows
    a = alpha / n if scaled else alpha
    prior = target.prior.as_normal()
    precision = (1 - a) * torch.linalg.inv(normal.covariance())
    precision = precision + a * torch.diag(1 / prior.variance)
    shift = (1 - a) * torch.linalg.solve(normal.covariance(), normal.mean)
    covariance = torch.linalg.inv(precision)
    tilted = NormalForm(covariance @ shift, torch.linalg.cholesky(covariance))
    mean, variance = target.predictor.moments(target.X, tilted)
    rows = FreeEnergy(LogLoss(), alpha).expected(
        target.likelihood, mean, variance.sqrt(), target.y, refine=4
    )[0]
    return rows.sum() - n / alpha * log_power_integral(normal, prior, 1 - a, a)


# --- one row ------------------------------------------------------------------------


def on_a_grid(log_prob, mean, std, alpha):
    """Log E p^alpha over a grid that holds the integrand, wherever it lives."""
    reach = 15 * std + alpha * std**2
    f = torch.linspace(mean - reach, mean + reach, 40_001, dtype=torch.float64)
    log_density = -0.5 * ((f - mean) / std) ** 2 - math.log(
        std * math.sqrt(2 * math.pi)
    )
    total = torch.logsumexp(alpha * log_prob(f) + log_density, 0)
    return -float(total + (f[1] - f[0]).log()) / alpha


ROWS = [(0.3, 0.2), (1.0, 1.5), (-4.0, 0.6), (-9.0, 3.0), (-60.0, 6.0), (40.0, 9.0)]


@alphas
@pytest.mark.parametrize("likelihood", [BernoulliLikelihood(), GaussianLikelihood(0.8)])
def test_free_energy_of_a_row(likelihood, alpha):
    """Far on the wrong side too. Wrong variants: nodes around the mean only (off by
    nats there); the log of a power that has underflowed."""
    y = torch.ones(1, dtype=torch.float64)
    for mean, std in ROWS:
        m, s = torch.tensor([mean]).double(), torch.tensor([std]).double()
        value, _, _ = FreeEnergy(LogLoss(), alpha).expected(likelihood, m, s, y)
        expected = on_a_grid(
            lambda f: likelihood.log_prob(f[None, :, None], y)[0], mean, std, alpha
        )
        assert float(value) == pytest.approx(expected, rel=1e-6, abs=2e-7), (mean, std)


@alphas
@pytest.mark.parametrize("loss", [LogLoss(), BetaLoss(1.3)], ids=repr)
@pytest.mark.parametrize("likelihood", [BernoulliLikelihood(), GaussianLikelihood(0.8)])
def test_free_energy_derivatives(likelihood, loss, alpha, numeric_gradient):
    """In the mean, and twice that in the variance. Wrong variant: the curvature of an
    expectation, which lacks ``alpha`` times the squared slope."""
    free, y = FreeEnergy(loss, alpha), torch.tensor([1.0, 0.0, 1.0]).double()
    mean, std = randn(3) - 1, torch.tensor([0.3, 0.9, 2.0]).double()

    def value(m, v):
        return free.expected(likelihood, m, v.sqrt(), y, refine=3)[0].sum()

    _, first, second = free.expected(likelihood, mean, std, y, refine=3)
    by_mean = numeric_gradient(lambda m: value(m, std**2), mean)
    by_variance = numeric_gradient(lambda v: value(mean, v), std**2)
    torch.testing.assert_close(first, by_mean, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(second, 2 * by_variance, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n_classes", [3, 6])
def test_free_energy_of_several_columns(n_classes, numeric_gradient, z_score):
    likelihood, alpha = CategoricalLikelihood(n_classes), 0.7
    y, mean = torch.tensor([0.0, 2.0]).double(), randn(2, n_classes)
    root = 0.5 * randn(2, n_classes, n_classes, seed=2)
    covariance = root @ root.mT
    free = FreeEnergy(LogLoss(), alpha)
    value, first, second = free.expected(likelihood, mean, covariance, y)
    f = mean + (root @ randn(50_000, 2, n_classes, 1, seed=5))[..., 0]
    powers = torch.exp(alpha * likelihood.log_prob(f, y))
    assert z_score(powers, torch.exp(-alpha * value)) < 5
    for row in range(2):

        def of_mean(m, i=row):
            moved = mean.clone()
            moved[i] = m
            return free.expected(likelihood, moved, covariance, y)[0][i]

        numeric = numeric_gradient(of_mean, mean[row])
        torch.testing.assert_close(first[row], numeric, rtol=1e-3, atol=1e-4)
        assert torch.linalg.eigvalsh(second[row]).isfinite().all()


def test_draws_of_a_row_are_biased_upwards(z_score):
    """Wrong variant: the mean of logs, which is the expected loss."""
    losses = randn(40_000, 10).square()
    free, expected = FreeEnergy(LogLoss(), 1.0), -math.log(3**-0.5)
    of_few = torch.stack([free.reduce(row[:, None])[0] for row in losses[:9000]])
    assert z_score(of_few, expected) > 5
    assert float(of_few.mean()) > expected
    large = free.reduce(losses.reshape(-1, 1))
    assert float(large) == pytest.approx(expected, abs=0.005)


# --- the whole energy ---------------------------------------------------------------


@every_pair
def test_large_n_form(kind, family, alpha, numeric_gradient):
    """Draws, and finite differences. Wrong variant: KL forgotten."""
    target, posterior = TARGETS[kind], make_posterior(family)
    value, gradient = run(AlphaEnergy(alpha), target, posterior)
    expected, error = power_means(target, posterior, alpha, "large_n")
    assert abs(float(value - expected)) < 5 * error
    again = run(AlphaEnergy(alpha), target, posterior, seed=1)[0]
    assert torch.equal(value, again)  # no draws

    def energy(params):
        posterior.params = params.clone().requires_grad_()
        return run(AlphaEnergy(alpha), target, posterior)[0]

    numeric = numeric_gradient(energy, posterior.params.detach())
    torch.testing.assert_close(gradient, numeric, rtol=1e-5, atol=1e-6)


@every_pair
def test_exact_form(kind, family, alpha, numeric_gradient, z_score):
    """Closed form, draws, and the gradient. Wrong variant: no 1/n inside."""
    target, posterior = TARGETS[kind], make_posterior(family)
    closed = exact_form(target, posterior.as_normal(), alpha)
    expected, error = power_means(target, posterior, alpha, "exact")
    assert abs(float(closed - expected)) < 5 * error
    if alpha < 1:
        wrong = exact_form(target, posterior.as_normal(), alpha, scaled=False)
        assert abs(float(wrong - expected)) > 50 * error
    objective = AlphaEnergy(alpha, form="exact")
    pairs = [run(objective, target, posterior, 10_000, seed) for seed in range(20)]
    values, gradients = (torch.stack(part) for part in zip(*pairs, strict=True))
    assert z_score(values, closed) < 5

    def energy(params):
        return exact_form(target, posterior.normal(params), alpha)

    numeric = numeric_gradient(energy, posterior.params.detach())
    assert z_score(gradients, numeric) < 5
    assert z_score(gradients, 0.9 * numeric) > 5


@kinds
def test_the_forms_meet_for_many_rows(kind):
    """The distance stays while the energy grows. Wrong variant: a KL for every row."""
    distances = []
    for copies in (1, 10, 100):
        target = make_target(kind, rows=torch.arange(N).repeat(copies))
        posterior = make_posterior(MeanFieldNormal())
        large = run(AlphaEnergy(), target, posterior)[0]
        exact = exact_form(target, posterior.as_normal(), 0.5)
        distances.append(abs(float(large - exact)) / float(large))
    assert distances[1] < distances[0] / 3  # the KL does not grow with the rows
    assert distances[2] < distances[1] / 3


@kinds
@families
def test_small_alpha_is_the_elbo(kind, family):
    """Value and gradient, with an error of O(alpha). Wrong variant: the sign."""
    target, posterior = TARGETS[kind], make_posterior(family)
    elbo, slope = run(ELBO(), target, posterior)
    for alpha in (1e-2, 1e-3, 1e-6):
        value, gradient = run(AlphaEnergy(alpha), target, posterior)
        assert -20 * alpha * abs(float(elbo)) < float(value - elbo) < 0
        torch.testing.assert_close(gradient, slope, rtol=50 * alpha, atol=50 * alpha)
    sampled = run(ELBO("reparam"), target, posterior, 50)
    for form in ("exact", "large_n"):
        objective = AlphaEnergy(1e-7, form, "reparam")
        found = run(objective, target, posterior, 50)
        torch.testing.assert_close(found, sampled, rtol=1e-4, atol=1e-4)


@kinds
def test_alpha_1_is_the_predictive_density(kind):
    """Of every row under q. Wrong variant: of all rows under one theta."""
    target, posterior = TARGETS[kind], make_posterior(FullRankNormal())
    normal = posterior.as_normal()
    mean, variance = target.predictor.moments(target.X, normal)
    if kind == "gaussian":
        scale = (variance + NOISE**2).sqrt()
        log_density = torch.distributions.Normal(mean, scale).log_prob(target.y)
    else:
        sign = 2 * target.y - 1
        rows = torch.stack([sign * mean, variance.sqrt()], 1).tolist()
        log_density = torch.stack(
            [
                -torch.tensor(on_a_grid(torch.nn.functional.logsigmoid, m, s, 1.0))
                for m, s in rows
            ]
        )
    expected = (
        KLDivergence().closed_form(normal, target.prior) - log_density.double().sum()
    )
    value = run(AlphaEnergy(1.0), target, posterior)[0]
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "objective", [AlphaEnergy(), AlphaEnergy(form="exact")], ids=repr
)
def test_minibatches_average_to_all_rows(objective):
    """1/n stays that of all rows. Wrong variant: 1/|B| inside, or KL scaled."""
    posterior, target = make_posterior(MeanFieldNormal()), TARGETS["bernoulli"]
    parts = [
        run(objective, target, posterior, rows=torch.tensor(rows))
        for rows in ([0, 3], [1, 7], [2, 6], [4, 5])
    ]
    for i, full in enumerate(run(objective, target, posterior)):
        mean = torch.stack([part[i] for part in parts]).mean(0)
        # The nodes follow the widest row of a batch, and are good to 1e-9 each.
        torch.testing.assert_close(mean, full, rtol=1e-8, atol=1e-8)


@kinds
@pytest.mark.parametrize(
    "objective",
    [AlphaEnergy(), AlphaEnergy(gradient="reparam"), AlphaEnergy(form="exact")],
    ids=repr,
)
def test_weights_are_repetitions(kind, objective):
    """Wrong variants: the weight inside the power; n rows instead of their weight."""
    weight = [2.0, 1, 0, 3, 1, 1, 1, 2]
    rows = torch.arange(N).repeat_interleave(torch.tensor(weight).long())
    posterior = make_posterior(MeanFieldNormal())
    weighted = run(objective, make_target(kind, weight=weight), posterior)
    repeated = run(objective, make_target(kind, rows=rows), posterior)
    torch.testing.assert_close(weighted, repeated, rtol=1e-10, atol=1e-10)


def test_one_draw_is_the_elbo():
    posterior = make_posterior(MeanFieldNormal())
    for kind, target in TARGETS.items():
        elbo = run(ELBO("reparam"), target, posterior, 1)
        found = run(AlphaEnergy(2.0, "exact"), target, posterior, 1)
        torch.testing.assert_close(found, elbo, rtol=1e-9, atol=1e-9, msg=kind)


def test_networks_sample_activations(z_score):
    """The same expectation at every number of draws. Wrong variant: rows summed
    before the power mean, which needs one theta for all rows."""
    target = make_target("bernoulli", MLPPredictor(1, 1, (3,), "tanh"))
    posterior = make_posterior(MeanFieldNormal(), target)
    local, whole = (
        [
            run(AlphaEnergy(2.0, gradient=g), target, posterior, 10, s)
            for s in range(150)
        ]
        for g in ("auto", "reparam")
    )
    for i in range(2):
        found = torch.stack([pair[i] for pair in local])
        drawn = torch.stack([pair[i] for pair in whole])
        assert z_score(found - drawn, 0.0) < 5
    objective = AlphaEnergy(2.0)
    large = [run(objective, target, posterior, 1000, s)[0] for s in range(20)]
    mean = sum(large) / len(large)
    assert mean < torch.stack([pair[0] for pair in local]).mean()  # less biased


def test_learned_noise_has_a_gradient(numeric_gradient):
    """Linear too, where quadrature would not see it. Wrong variant: detached noise."""
    predictor, y = LinearPredictor(1), randn(N, seed=1)
    prior = Normal().build(predictor.layout)
    target = SupervisedTarget(
        predictor, GaussianLikelihood("learn"), LogLoss(), prior, randn(N, 1), y
    )
    posterior = make_posterior(MeanFieldNormal(), target)
    for objective in (AlphaEnergy(), AlphaEnergy(form="exact")):

        def energy(hyper, objective=objective):
            target.hyper = hyper
            return run(objective, target, posterior)[0]

        target.hyper = target.initial_hyper().requires_grad_()
        generator = torch.Generator().manual_seed(0)
        surrogate, _ = objective.surrogate(
            target, posterior, KLDivergence(), None, 10, generator
        )
        (found,) = torch.autograd.grad(surrogate, target.hyper)
        expected = numeric_gradient(energy, target.initial_hyper())
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


# --- fits, and what is refused ------------------------------------------------------


@pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])
@pytest.mark.parametrize("loss", ["log", "beta"])
def test_fit_without_noise(posterior, loss):
    """The bound is the ELBO. Wrong variant: minus the energy as a bound."""
    X, y = small_problem()
    model = BayesianLogisticRegression(
        objective="alpha_energy", loss=loss, posterior=posterior, prior="normal"
    ).fit(X, y)
    assert model.converged_
    assert model.diagnostics_["solver"] == "natural_gradient"
    assert model.lower_bound_ < model.objective_value_
    assert model.lower_bound_se_ == 0
    best = BayesianLogisticRegression(
        loss=loss, posterior=posterior, prior="normal"
    ).fit(X, y)
    assert model.lower_bound_ < best.lower_bound_
    assert model.coef_std_.mean() > best.coef_std_.mean()


def test_fit_is_stationary():
    X, y = small_problem()
    predictor = LinearPredictor(3)
    target = SupervisedTarget(
        predictor,
        BernoulliLikelihood(),
        LogLoss(),
        Normal().build(predictor.layout),
        torch.from_numpy(X - X.mean(0)),
        torch.from_numpy(y).double(),
    )
    for family, name in ((MeanFieldNormal(), "mean_field"), (FullRankNormal(), "full")):
        name = "full_rank" if name == "full" else name
        model = BayesianLogisticRegression(
            objective=AlphaEnergy(1.0),
            posterior=name,
            tol=1e-9,
            prior="normal",
            intercept_prior="normal",
        ).fit(X, y)
        posterior = family.build(target.layout)
        posterior = posterior.near(model.posterior_.as_normal())
        posterior.params.requires_grad_()
        value, gradient = run(AlphaEnergy(1.0), target, posterior)
        assert float(gradient.abs().max()) < 1e-3
        assert float(value) == pytest.approx(-model.objective_value_, rel=1e-8)
        elbo = run(ELBO(), target, posterior)[0]
        assert model.lower_bound_ == pytest.approx(-float(elbo), rel=1e-8)


def test_existence():
    posterior = make_posterior(MeanFieldNormal())
    exists = [
        AlphaEnergy(alpha, form).exists(TARGETS["gaussian"], posterior)
        for alpha, form in ((2.0, "exact"), (9.0, "exact"), (9.0, "large_n"))
    ]
    assert exists == [True, None, True]
