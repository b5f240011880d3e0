"""Several classes: expectations, the optimum, predictions, symmetries, the evidence."""

from functools import lru_cache

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.preprocessing import StandardScaler, scale

from skvi.base import NormalForm
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.expectations._softmax import expect_logsumexp
from skvi.likelihoods import BernoulliLikelihood
from skvi.likelihoods._categorical import CategoricalLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.linear_model._coefficients import NormalCoefficients
from skvi.losses import BetaLoss, GammaLoss, LogLoss, Loss
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.predictors import LinearPredictor
from skvi.priors import Laplace, Normal
from skvi.priors._blocks import build_prior
from skvi.solvers import Problem, SolverOptions, Stochastic
from skvi.solvers._choice import choose_solver
from skvi.targets import SupervisedTarget
from tests.linear_model.reference_multinomial import (
    Multinomial,
    gumbel_logsumexp,
    normal_line,
)
from tests.references.make_estimators import load, multinomial, rounded

SLOW = {"iris": pytest.mark.slow}  # the other ones take minutes
LOADERS = {"iris": load_iris, "wine": load_wine, "digits": load_digits}
REFERENCES = load()["multinomial"]
LOSSES = [LogLoss(), BetaLoss(1.5), GammaLoss(1.5)]
SETS = ["iris", "wine"]
# That of the references, whose features are standardized.
REFERENCE_PRIOR = {"prior": "normal", "intercept_prior": "normal"}
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
posteriors = pytest.mark.parametrize("posterior", ["mean_field", "full_rank"])


@lru_cache
def data(name):
    X, y = LOADERS[name](return_X_y=True)
    return scale(X), y


@lru_cache
def fitted(name, posterior, objective="elbo"):
    model = BayesianLogisticRegression(
        posterior=posterior, objective=objective, random_state=0, **REFERENCE_PRIOR
    )
    return model.fit(*data(name))


@pytest.mark.slow
def test_stored_references_are_found_again():
    again = rounded(multinomial("iris"))
    for key, value in REFERENCES["iris"].items():
        assert again[key] == pytest.approx(value, abs=1e-5)


def random_rows(n_outputs, n_rows=6, width=1.0, seed=0):
    """Means (n, K), correlated covariances (n, K, K) and labels."""
    generator = torch.Generator().manual_seed(seed)
    shape = (n_rows, n_outputs, n_outputs)
    root = torch.randn(*shape, generator=generator, dtype=torch.float64)
    mean = torch.randn(*shape[:2], generator=generator, dtype=torch.float64)
    covariance = width**2 * root @ root.mT / n_outputs
    return 2 * mean, covariance, (torch.arange(n_rows) % n_outputs).double()


class TestCategoricalLikelihood:
    @pytest.mark.parametrize("n_classes", [2, 10])
    def test_masses_powers_and_derivatives(self, n_classes, numeric_gradient):
        """Masses sum to 1; powers; closed derivatives against differences.

        Wrong variants: log sum exp of f for that of c f; the sign of the slope.
        """
        likelihood = CategoricalLikelihood(n_classes)
        f = random_rows(n_classes)[0][None]
        labels = torch.arange(n_classes).double()
        logs = torch.stack([likelihood.log_prob(f, y.expand(6)) for y in labels], -1)
        assert logs.exp().sum(-1) == pytest.approx(1)
        assert likelihood.mean(f) == pytest.approx(logs.exp())
        for c in (0.5, 1.0, 2.0):
            expected = torch.logsumexp(c * logs, -1)
            assert likelihood.log_power_integral(f, c) == pytest.approx(expected)
        y = random_rows(n_classes)[2]
        value, first, second = likelihood.log_prob_derivatives(f, y)
        generic = super(CategoricalLikelihood, likelihood).log_prob_derivatives(f, y)
        for found, other in zip((value, first, second), generic, strict=True):
            assert torch.allclose(found, other, atol=1e-12)
        assert torch.equal(likelihood._log_prob_slope(f, y), first)
        for i in range(2):
            slope = numeric_gradient(
                lambda g, i=i: likelihood.log_prob(g[None, None], y[i : i + 1])[0, 0],
                f[0, i],
            )
            assert slope == pytest.approx(first[0, i].numpy(), abs=1e-8)

    def test_two_columns_are_one_of_log_odds(self):
        f = random_rows(2)[0][None]
        odds = f[..., 1:] - f[..., :1]
        y = random_rows(2)[2]
        a, b = CategoricalLikelihood(2), BernoulliLikelihood()
        assert a.log_prob(f, y) == pytest.approx(b.log_prob(odds, y))
        power = a.log_power_integral(f, 1.7)
        assert power == pytest.approx(b.log_power_integral(odds, 1.7))

    def test_samples_have_the_probabilities(self, generator, z_score):
        """Wrong variant: a cumulative sum that starts at the second class."""
        likelihood, f = CategoricalLikelihood(4), random_rows(4)[0][None]
        draws = likelihood.sample(f.expand(40_000, -1, -1), generator)
        frequency = torch.nn.functional.one_hot(draws.long(), 4).double()
        assert z_score(frequency, likelihood.mean(f)[0]) < 5

    def test_no_infinity_far_out(self):
        f = torch.tensor([[[800.0, -800.0, 0.0]]], dtype=torch.float64)
        for loss in LOSSES:
            for y in range(3):
                found = loss.expected(
                    CategoricalLikelihood(3),
                    f[0],
                    1e4 * torch.eye(3).double()[None],
                    torch.tensor([float(y)]),
                )
                assert all(bool(torch.isfinite(part).all()) for part in found)


class TestExpectations:
    @pytest.mark.parametrize(
        ("n_classes", "width"),
        [(2, 4.0), (3, 0.05), (3, 2.0), (4, 1.0), (7, 0.05), (7, 0.5), (7, 4.0)],
    )
    def test_independent_f(self, n_classes, width):
        """Against the one-dimensional Gumbel form, which shares nothing with it.

        Wrong variants: variances for standard deviations; contrasts of norm sqrt(2).
        """
        likelihood = CategoricalLikelihood(n_classes)
        mean, covariance, y = random_rows(n_classes, width=width)
        variance = covariance.diagonal(dim1=1, dim2=2)
        exact, p, by_std = gumbel_logsumexp(mean.numpy(), variance.sqrt().numpy())
        diagonal = torch.diag_embed(variance)
        value, first, second = likelihood.expected_log_loss(mean, diagonal, y)
        own = mean.gather(1, y.long()[:, None])[:, 0].numpy()
        tol = 1e-5
        assert value.numpy() == pytest.approx(exact - own, abs=tol)
        onehot = np.eye(n_classes)[y.long()]
        assert first.numpy() == pytest.approx(p - onehot, abs=tol)
        curvature = second.diagonal(dim1=1, dim2=2).numpy()
        std = variance.sqrt().numpy()
        assert curvature * std == pytest.approx(by_std, abs=5 * tol)

    @every_loss
    @pytest.mark.parametrize("n_classes", [3, 7])
    def test_correlated_f(self, n_classes, loss, z_score):
        """Against draws; closed forms against the generic rule; a shared shift."""
        likelihood = CategoricalLikelihood(n_classes)
        mean, covariance, y = random_rows(n_classes)
        found = loss.expected(likelihood, mean, covariance, y)
        # The closed form of powers of p^gamma follows their spread, gamma times f's.
        finer = isinstance(loss, GammaLoss) and n_classes < 5
        generic = Loss.expected(loss, likelihood, mean, covariance, y, 1 + finer)
        # The generic rule has one kind of nodes, and the log loss another.
        tol = 0.02 if n_classes > 4 and loss.is_log_loss else 1e-12
        tol = 1e-6 if finer else tol
        for a, b in zip(found, generic, strict=True):
            assert torch.allclose(a, b, atol=tol)
        shifted = loss.expected(likelihood, mean + 3.0, covariance + 2.0, y)
        for a, b in zip(found, shifted, strict=True):
            assert torch.allclose(a, b, atol=1e-9)
        assert found[1].sum(1) == pytest.approx(0, abs=1e-12)
        assert found[2].sum(2) == pytest.approx(0, abs=1e-12)
        generator = torch.Generator().manual_seed(1)
        eps = torch.randn(100_000, *mean.shape, generator=generator).double()
        root = torch.linalg.cholesky(covariance + 1e-12 * torch.eye(n_classes))
        f = mean + torch.einsum("nij,snj->sni", root, eps)
        for i in range(len(mean)):
            draws = loss(likelihood, f[:, i : i + 1], y[i : i + 1])
            error = 1e-6 if n_classes < 5 else 0.01
            assert z_score(draws[:, 0], found[0][i], rounding=error) < 5

    @every_loss
    @pytest.mark.parametrize("n_classes", [2, 4])
    def test_derivatives_are_those_of_the_value(self, n_classes, loss):
        """In the mean, and half of them in the covariance (Price).

        Wrong variants: p p' without its diagonal; no factor c in powers.
        """
        likelihood = CategoricalLikelihood(n_classes)
        mean, covariance, y = random_rows(n_classes, n_rows=2)
        _, first, second = loss.expected(likelihood, mean, covariance, y)
        step = 1e-4
        for k in range(n_classes):
            move = step * torch.eye(n_classes).double()[k]
            up = loss.expected(likelihood, mean + move, covariance, y)
            down = loss.expected(likelihood, mean - move, covariance, y)
            slope = (up[0] - down[0]) / (2 * step)
            assert slope == pytest.approx(first[:, k].numpy(), abs=1e-6)
            bend = (up[1] - down[1]) / (2 * step)
            assert bend == pytest.approx(second[:, k].numpy(), abs=1e-5)
            spread = torch.diag(move)
            up = loss.expected(likelihood, mean, covariance + spread, y)[0]
            down = loss.expected(likelihood, mean, covariance - spread, y)[0]
            by_variance = (up - down) / (2 * step)
            assert by_variance == pytest.approx(0.5 * second[:, k, k], abs=1e-5)

    @pytest.mark.parametrize("n_classes", [3, 4, 7])
    def test_refine_measures_the_error(self, n_classes):
        mean, covariance, y = random_rows(n_classes)
        likelihood = CategoricalLikelihood(n_classes)
        values = [
            likelihood.expected_log_loss(mean, covariance, y, refine)[0]
            for refine in (1, 2, 8)
        ]
        worst = float((values[0] - values[2]).abs().max())
        assert worst < (1e-6 if n_classes < 5 else 0.02)
        second = float((values[1] - values[2]).abs().max())
        assert second < worst + 1e-12

    def test_weak_covariances(self):
        """Ten classes with one common factor, against the Gumbel form at its values.

        Wrong variants: half of the series' first term; slopes without its part; no
        covariances in the curvature.
        """
        strength, tol = 0.3, 1e-5
        mean, _, _ = random_rows(10)
        generator = torch.Generator().manual_seed(1)
        loading = torch.randn(6, 10, generator=generator, dtype=torch.float64)
        loading *= strength
        variance = 2 + 4 * torch.rand(6, 10, generator=generator, dtype=torch.float64)
        covariance = torch.diag_embed(variance) + loading[:, :, None] * loading[:, None]
        value, p, second = expect_logsumexp(2 * mean, covariance)
        fine = expect_logsumexp(2 * mean, covariance, refine=2)[0]
        z, w = normal_line(25)
        std = variance.sqrt().numpy()
        exact, exact_p, by_loading = 0.0, 0.0, 0.0
        for node, weight in zip(z, w, strict=True):
            at = (2 * mean + node * loading).numpy()
            found = gumbel_logsumexp(at, std)
            exact, exact_p = exact + weight * found[0], exact_p + weight * found[1]
            by_loading = by_loading + weight * node * found[1]
        assert value.numpy() == pytest.approx(exact, abs=tol)
        assert fine.numpy() == pytest.approx(exact, abs=0.5 * tol)
        assert p.numpy() == pytest.approx(exact_p, abs=30 * tol)
        # Stein: E z p = E Hessian @ loading.
        bend = (second @ loading[..., None])[..., 0].numpy()
        assert bend == pytest.approx(by_loading, abs=30 * tol)
        assert second.sum(2) == pytest.approx(0, abs=1e-12)

    def test_a_row_does_not_depend_on_the_others(self):
        for n_classes in (3, 7):
            mean, covariance, y = random_rows(n_classes, n_rows=20)
            covariance = covariance * torch.linspace(1e-3, 10, 20)[:, None, None]
            likelihood = CategoricalLikelihood(n_classes)
            together = likelihood.expected_log_loss(mean, covariance, y)[0]
            rows = [
                likelihood.expected_log_loss(
                    mean[i : i + 1], covariance[i : i + 1], y[i : i + 1]
                )[0]
                for i in range(20)
            ]
            assert together == pytest.approx(torch.cat(rows), abs=1e-10)

    def test_no_spread_is_the_value_at_the_mean(self):
        for n_classes in (3, 7):
            mean, covariance, y = random_rows(n_classes)
            likelihood = CategoricalLikelihood(n_classes)
            found = likelihood.expected_log_loss(mean, 0 * covariance, y)
            exact = likelihood.log_prob_derivatives(mean[None], y)
            for a, b in zip(found, exact, strict=True):
                assert torch.allclose(a, -b[0], atol=1e-12)


@pytest.mark.slow
def test_wide_correlated_classes_keep_their_curvature():
    """Where a power series fails, points take over: errors stay below 0.05.

    Wrong variant: the series wherever its value hardly moves (errors of 1000).
    """
    generator = torch.Generator().manual_seed(0)
    root, mean = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((400, 5, 2), (400, 5))
    )
    covariance = 64 * root @ root.mT
    second = expect_logsumexp(20 * mean, covariance)[2]
    assert float(torch.linalg.eigvalsh(second).min()) > -1e-8
    fine = expect_logsumexp(20 * mean, covariance, refine=8)[2]
    assert float((second - fine).abs().max()) < 0.05


def make_target(name, loss=None, prior=None, weight=None):
    X, y = data(name)
    predictor = LinearPredictor(X.shape[1], 3)
    return SupervisedTarget(
        predictor,
        CategoricalLikelihood(3),
        loss or LogLoss(),
        build_prior(prior or Normal(), predictor.layout),
        torch.from_numpy(X),
        torch.from_numpy(y),
        weight,
    )


def test_log_joint_and_its_gradient():
    """Values against numpy; the closed gradient against autograd.

    Wrong variants: weights on the class axis; the transpose of the coefficients.
    """
    weight = torch.linspace(0.5, 2, 150, dtype=torch.float64)
    target = make_target("iris", weight=weight)
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(4, target.layout.size, generator=generator).double()
    expected = Multinomial(*data("iris"), w=weight.numpy()).log_joint(theta.numpy())
    assert target.log_joint(theta) == pytest.approx(expected)
    leaf = theta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(target.log_joint(leaf).sum(), leaf)
    assert torch.allclose(target.log_joint_gradient(theta), gradient)


@pytest.mark.parametrize("family", [MeanFieldNormal(), FullRankNormal()], ids=repr)
def test_expected_loss_is_differentiable(family, numeric_gradient):
    """Minibatches too: the mean over batches is the whole, and so is the gradient."""
    target = make_target("iris")
    posterior = family.build(target.layout)
    posterior = posterior.near(
        NormalForm(0.3 * torch.ones(15).double(), posterior.normal().scale * 8)
    )
    params = posterior.params.clone().requires_grad_()
    posterior.params = params
    value = target.expected_loss(posterior)
    (gradient,) = torch.autograd.grad(value, params)
    assert float(value.detach()) == pytest.approx(
        float(target.expected_loss_terms(posterior.as_normal())[0])
    )
    batches = torch.arange(150).reshape(3, 50)
    parts = [target.expected_loss(posterior, rows) for rows in batches]
    assert float(sum(parts).detach()) / 3 == pytest.approx(float(value.detach()))
    (mean,) = torch.autograd.grad(sum(parts) / 3, params)
    assert torch.allclose(mean, gradient)

    def evaluate(p):
        posterior.params = p
        return target.expected_loss(posterior)

    with torch.no_grad():
        expected = numeric_gradient(evaluate, params.detach(), step=1e-4)
    assert torch.allclose(gradient, expected, atol=1e-4)


@posteriors
@pytest.mark.parametrize("name", SETS)
def test_lower_bound_is_the_optimum(name, posterior):
    """Against L-BFGS with quadrature of its own, whose values are stored.

    Wrong variants: the covariance's diagonal for all of it; one node.
    """
    model = fitted(name, posterior)
    value = REFERENCES[name][posterior]
    assert model.lower_bound_ == pytest.approx(-value, abs=1e-4)
    assert model.converged_
    assert model.lower_bound_se_ == 0
    assert model.diagnostics_["quadrature_error"] < 1e-5
    normal = model.posterior_.as_normal()
    problem = Multinomial(*data(name))
    at = problem.gradient(normal.mean.numpy(), normal.scale.numpy())[0]
    assert model.lower_bound_ == pytest.approx(-at, abs=1e-5)


@pytest.mark.slow
def test_lower_bound_of_digits_is_the_optimum():
    """Ten classes, factorized: 0.01 nat of the independent optimum."""
    X, y = data("digits")
    X, y = X[::12], y[::12]
    X = scale(X)
    model = BayesianLogisticRegression(posterior="mean_field", **REFERENCE_PRIOR)
    model.fit(X, y)
    problem = Multinomial(X, y, line=(49, 0.5))
    value = problem.optimum(full_rank=False, n_runs=1, max_iter=150)[0]
    assert model.converged_
    assert model.lower_bound_ == pytest.approx(-value, abs=0.01)


@posteriors
def test_two_symmetric_columns_are_the_binary_model(posterior):
    """Prior scale s for two columns is sqrt(2) s for their difference.

    The mean-field ELBO is the same too only without the shared direction, so it is
    compared for the full rank. Wrong variant: scale 2 s.
    """
    X, y = data("iris")
    X, y = scale(X[50:]), y[50:] - 1
    own = Normal(2**0.5 * 1.5)
    binary = BayesianLogisticRegression(prior=own, intercept_prior=own, tol=1e-9)
    binary.fit(X, y)
    predictor = LinearPredictor(4, 2)
    prior = Normal(1.5).build(predictor.layout)
    target = SupervisedTarget(
        predictor,
        CategoricalLikelihood(2),
        LogLoss(),
        prior,
        torch.from_numpy(X),
        torch.from_numpy(y),
    )
    family = FullRankNormal() if posterior == "full_rank" else MeanFieldNormal()
    problem = Problem(target, ELBO(), KLDivergence(), family.build(target.layout), None)
    solution = choose_solver(problem).solve(problem, SolverOptions(tol=1e-9))
    if posterior == "full_rank":
        assert -solution.value == pytest.approx(binary.lower_bound_, abs=1e-6)
    else:
        assert -solution.value < binary.lower_bound_
    mean = solution.posterior.as_normal().mean
    odds = mean[4:8] - mean[:4]
    if posterior == "full_rank":
        assert odds == pytest.approx(binary.coef_[0], abs=1e-4)


PARTS = [
    {},
    {"posterior": "mean_field"},
    {"loss": BetaLoss(1.3), "prior": Laplace()},
    {"divergence": RenyiDivergence(0.8), "fit_intercept": False},
]


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_parts_converge_and_predict(parts):
    """Robust losses, sparse priors and other divergences: converged, and sensible."""
    X, y = data("iris")
    model = BayesianLogisticRegression(**{"prior": "normal", **parts}).fit(X, y)
    assert model.converged_
    assert model.coef_.shape == model.coef_std_.shape == (3, 4)
    assert model.intercept_.shape == (3,)
    assert model.score(X, y) > 0.8
    assert np.all(np.isfinite(model.predict_log_proba(X)))
    assert np.all(np.diff(model.loss_curve_) < 1e-6)


@pytest.mark.parametrize(
    ("name", "posterior"), [("iris", "full_rank"), ("wine", "mean_field")]
)
def test_probabilities_are_posterior_averages(name, posterior):
    """Against posterior draws. Wrong variant: the softmax of the mean of f."""
    X, _ = data(name)
    model = fitted(name, posterior)
    p = model.predict_proba(X)
    assert p.shape == (len(X), 3)
    assert p.sum(1) == pytest.approx(1, abs=1e-12)
    draws = model.sample_posterior(40_000, random_state=0)
    assert draws["coef"].shape == (40_000, 3, X.shape[1])
    assert draws["intercept"].shape == (40_000, 3)
    rows = slice(None, None, 25)
    f = np.einsum("skd,nd->snk", draws["coef"], X[rows]) + draws["intercept"][:, None]
    q = softmax(f, 2)
    assert np.all(np.abs(q.mean(0) - p[rows]) < 5 * q.std(0) / 200 + 1e-6)
    log_p = model.predict_log_proba(X)
    assert log_p == pytest.approx(np.log(p))
    score = model.decision_function(X)
    assert score == pytest.approx(log_p - log_p.mean(1, keepdims=True))
    assert np.array_equal(model.predict(X), model.classes_[p.argmax(1)])


def test_predictions_do_not_depend_on_the_batch():
    """With ten classes, whose expectations take other paths than those of a few."""
    X, y = data("digits")
    model = BayesianLogisticRegression(
        posterior="mean_field", max_iter=2, tol=1e3, prior="normal"
    )
    model.fit(X[:200], y[:200])
    X = np.vstack([X[:8], 100 * X[:8], 0.01 * X[:8]])
    order = np.random.default_rng(0).permutation(len(X))
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        call = getattr(model, method)
        batched = call(X)
        rows = np.concatenate([call(row[None]) for row in X])
        np.testing.assert_allclose(rows, batched, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(call(X[order]), batched[order], rtol=1e-11)
        assert np.all(np.isfinite(batched))


def test_labels_far_off_keep_their_digits():
    """A probability below 1e-100 is not rounded to zero."""
    X, y = data("iris")
    model = BayesianLogisticRegression(prior=Normal(0.01)).fit(X, y)
    posterior = model.posterior_.as_normal()
    far = NormalForm(100 * posterior.mean, posterior.scale)
    own = model._coefficients
    model._coefficients = NormalCoefficients.of(model._model, far)
    log_p = model.predict_log_proba(100 * X[:10])
    assert log_p.min() < -200
    assert np.all(np.isfinite(log_p))
    model._coefficients = own
    density = model.predict_log_density(X, y)
    expected = np.log(model.predict_proba(X)[np.arange(150), y])
    assert density == pytest.approx(expected)


@pytest.mark.parametrize("name", ["iris", pytest.param("wine", marks=pytest.mark.slow)])
def test_bounds_enclose_the_evidence(name):
    """Both sides around an independent estimate, which is stored.

    Wrong variants: a gradient of the log joint without the prior; labels off by one.
    """
    X, y = data(name)
    truth, error = REFERENCES[name]["evidence"]
    assert error < 0.01
    bounds = fitted(name, "full_rank").evidence_bounds(X, y, random_state=0)
    assert bounds.reliable, bounds.reason
    assert bounds.lower - 2 * bounds.lower_se <= truth + 3 * error
    assert bounds.upper + 2 * bounds.upper_se >= truth - 3 * error
    assert abs(bounds.estimate - truth) < 0.03 + 3 * error
    assert bounds.lower > fitted(name, "full_rank").lower_bound_
    assert bounds.gap < 0.2


def test_an_unknown_scale_of_separable_classes(recwarn):
    """Converges quickly, and warns of nothing, where f is wide.

    Wrong variant: the fit starts at the scale that modes imply (9 instead of 20).
    """
    X = np.random.default_rng(0).standard_normal((150, 4))
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    model = BayesianLogisticRegression(prior="auto").fit(X, y)
    assert model.converged_
    assert not recwarn.list
    assert model.n_iter_ <= 10
    assert 17 < (model.prior_scale_ * X.std(0)).mean() < 24


@pytest.mark.slow
def test_stochastic_solver_agrees():
    X, y = data("iris")
    model = BayesianLogisticRegression(
        solver="stochastic", posterior="mean_field", random_state=0, **REFERENCE_PRIOR
    ).fit(X, y)
    assert model.diagnostics_["solver"] == Stochastic.name
    exact = fitted("iris", "mean_field").lower_bound_
    assert model.lower_bound_ == pytest.approx(exact, abs=0.05)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=SLOW.get(name, pytest.mark.walk)) for name in SETS],
)
def test_no_worse_than_cross_validation(name):
    """Test log loss over 10 splits, against LogisticRegressionCV.

    Both choose the strength of the prior by the training data: one by the lower bound
    of the evidence, the other one by cross-validation.
    """
    X, y = LOADERS[name](return_X_y=True)
    splits = StratifiedShuffleSplit(10, test_size=0.3, random_state=0)
    differences = []
    for train, test in splits.split(X, y):
        scaler = StandardScaler().fit(X[train])
        A, B = scaler.transform(X[train]), scaler.transform(X[test])
        reference = LogisticRegressionCV(
            max_iter=2000,
            scoring="neg_log_loss",
            use_legacy_attributes=False,
            l1_ratios=(0,),
        ).fit(A, y[train])
        models = [
            BayesianLogisticRegression(prior=Normal(s)).fit(A, y[train])
            for s in (0.3, 1.0, 3.0, 10.0)
        ]
        model = max(models, key=lambda m: m.lower_bound_)
        scores = [log_loss(y[test], m.predict_proba(B)) for m in (model, reference)]
        differences.append(scores[0] - scores[1])
    mean, error = np.mean(differences), np.std(differences, ddof=1) / 10**0.5
    assert mean <= 2 * error, f"{name}: {mean:.4f} +- {error:.4f}"


def test_nodes_around_a_top_that_newton_oversteps(monkeypatch):
    """Wrong variant: nodes laid around the place before the step (.06 nats too low)."""
    rng = np.random.default_rng(100)
    X = rng.normal(size=(60, 10))
    f = X @ rng.normal(size=10) * 0.7
    f -= f.mean()
    rng.logistic(size=60), rng.poisson(np.exp(f.clip(-6, 6)))  # it is a rare case
    rng.negative_binomial(1, expit(-f.clip(-5, 5))), rng.standard_t(2, size=60)
    y = np.digitize(f + rng.logistic(size=60), [-1, 0, 1])
    X[:, :2] = [1, 0]
    model = BayesianLogisticRegression(posterior="mean_field")
    found = model.fit(X, y).lower_bound_
    monkeypatch.setattr("skvi.solvers._nodes.LONGEST", 0.1)
    assert found == pytest.approx(model.fit(X, y).lower_bound_, abs=0.01)
