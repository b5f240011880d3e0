"""What users add without a change to the package: each in one test of a few lines."""

import math
import pickle
import re
import subprocess
import sys
import warnings
from doctest import DocTestParser
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.special
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale
from torch.nn.functional import conv1d, relu

from skvi.base import Layout, NormalForm
from skvi.divergences import Divergence, KLDivergence
from skvi.evidence._bounds import bound_evidence
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import LogLoss
from skvi.neural_network import BayesianMLPRegressor
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal, NormalizingFlow
from skvi.posteriors._normal import _DiagonalPosterior
from skvi.predictors import Predictor
from skvi.priors import HalfCauchy, Normal
from skvi.priors._blocks import build_prior
from skvi.solvers import Problem, SolverOptions, Stochastic
from skvi.solvers._choice import choose_solver
from skvi.targets import SupervisedTarget, Target

PAGE = Path(__file__).parents[1] / "doc" / "extend.rst"


@pytest.fixture(scope="module")
def page():
    """What the page on extending defines, and the lines of each class."""
    module, lines = ModuleType("extend"), {}
    sys.modules["extend"] = module  # so that objects can be pickled
    for example in DocTestParser().get_examples(PAGE.read_text()):
        word = example.source.split()[0]
        if word in ("class", "from", "import"):
            exec(example.source, vars(module))
        if word == "class":
            name = re.match(r"class (\w+)", example.source)[1]
            lines[name] = sum(map(bool, example.source.split("\n")))
    module.lines = lines
    yield module
    del sys.modules["extend"]


def test_parts_are_short(page):
    """Blank lines left out."""
    for most, *names in [
        (20, "ExponentialLikelihood"),
        (15, "VariancePenalizedKL"),
        (40, "RealNVP"),
        (50, "OrdinalLikelihood", "OrdinalRegression"),
        (40, "FixedDraws"),
    ]:
        assert sum(page.lines[name] for name in names) <= most


def test_likelihood(page):
    """The evidence of one rate, by a grid; with a rate per row, the mean of new times.

    The page checks its parts. Wrong variant: expectations of another density.
    """
    rng = np.random.default_rng(0)
    ones, t = np.ones((20, 1)), rng.exponential(2.0, 20)
    model = page.WaitingTimeRegressor(prior=Normal(1.5))
    model.fit_intercept = False
    model.fit(ones, t)
    c = np.linspace(-8, 6, 20_001)
    log_joint = 20 * c - np.exp(c) * t.sum() - 0.5 * (c / 1.5) ** 2
    log_joint -= np.log(1.5 * np.sqrt(2 * np.pi))
    truth = scipy.special.logsumexp(log_joint) + np.log(c[1] - c[0])
    low, high = model.evidence_bounds(ones, t, random_state=0).interval()
    assert high - 0.1 < low < truth < high
    w = scipy.special.softmax(log_joint)
    assert model.predict(ones[:1])[0] == pytest.approx(w @ np.exp(-c), rel=0.01)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_divergence(page):
    """The objective at the fit, with the variance of a normal's log ratio by hand.

    Wrong variants: the weight left out; a standard deviation for the variance.
    """
    X, y = make_classification(60, 2, n_redundant=0, n_informative=2, random_state=1)
    divergence = page.VariancePenalizedKL(weight=0.5)
    parts = {"posterior": "mean_field", "prior": "normal", "intercept_prior": "normal"}
    solver = Stochastic(n_draws=100)
    model = BayesianLogisticRegression(
        divergence=divergence, solver=solver, max_iter=5, random_state=0, **parts
    ).fit(X, y)
    q = model.posterior_.as_normal()
    m, v = q.mean.numpy(), q.variance.numpy()
    variance = (0.5 * (v - 1) ** 2 + m**2 * v).sum()
    expected = model.lower_bound_ - 0.5 * variance
    # The value is an average over the last steps.
    assert 0.5 * variance > 0.5
    assert model.objective_value_ == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(
    ("share", "lost"), [(0.0, False), (1e-3, True)], ids=["KL", "bounded"]
)
def test_bounded_divergences_are_reported(share, lost):
    """KL(q || (1 - s) prior + s q) is at most -log(s): a point mass is the optimum.

    Wrong variant: only divergences of this package are looked at.
    """

    class Skewed(Divergence):
        def __init__(self, share):
            self.share = share

        def monte_carlo(self, log_q, log_prior):
            ratio = (log_prior - log_q).exp()
            return -torch.log((1 - self.share) * ratio + self.share).mean()

    X, y = load_breast_cancer(return_X_y=True)
    model = BayesianLogisticRegression(
        divergence=Skewed(share), posterior="mean_field", prior="normal", random_state=0
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.set_params(max_iter=12).fit(scale(X[:, :4]), y)
    said = any("collapsed toward a point mass" in str(w.message) for w in caught)
    assert said == lost


def test_flow(page):
    """A curved density, of which no normal comes near; its integral is e^-3.

    Wrong variants: the determinant of the inverse; a normal start that never moves;
    another start for the same seed.
    """
    target, found = Banana(), []
    for seed in (0, 0, 1):
        generator = torch.Generator().manual_seed(seed)
        family = NormalizingFlow(module=page.RealNVP)
        flow = family.build(target.layout, generator)
        found.append(flow.params)
        problem = Problem(target, ELBO("reparam"), KLDivergence(), flow, generator)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    solver = Stochastic(learning_rate=0.02, n_draws=20)
    fit = solver.solve(problem, SolverOptions(6))
    normal = 0.09  # nats between the best normal and the density
    assert fit.value - 5 * fit.value_se < 3 + 0.5 * normal
    again = pickle.loads(pickle.dumps(fit.posterior.at(fit.posterior.params)))
    theta = fit.posterior.draw(5, generator).theta.detach()
    assert torch.equal(again.log_prob(theta), fit.posterior.log_prob(theta))


def test_ordinal_regression(page):
    """Slopes of the expected loss in the cutpoints vanish; probabilities by draws.

    Wrong variants: cutpoints that stay at their start; the first node of a mixture in
    the place of all; gaps for cutpoints.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2)) + 3
    latent = X @ [1.0, -0.5] + rng.logistic(size=300)
    y = np.digitize(latent, [0.5, 1.5, 3.0])
    labels = np.array(["bad", "fair", "good", "ideal"])[y]
    model = page.OrdinalRegression(prior=Normal(HalfCauchy())).fit(X, labels)
    assert model.score(X, labels) > np.bincount(y).max() / 300
    with pytest.raises(ValueError, match="labels that were not in the fit"):
        model.evidence_bounds(X, y)
    draws = model.sample_posterior(1000, random_state=0)
    f = draws["coef"][:, 0] @ X.T + draws["intercept"]
    gaps = np.array([*model.diagnostics_["learned"].values()])
    assert np.abs(gaps - [1.0, 1.5]).max() < 0.3
    edges = np.array([-np.inf, 0, gaps[0], gaps.sum(), np.inf])

    def probabilities(edges, f):
        return np.diff(scipy.special.expit(edges - f[..., None]), axis=-1)

    p = probabilities(edges, f[:, :20]).mean(0)
    np.testing.assert_allclose(model.predict_proba(X[:20]), p, atol=0.01)
    for k, lower in ((2, 1), (3, 1)):  # both cutpoints move with the first gap
        step = np.zeros(5)
        step[k:4] = 1e-3
        at = [probabilities(edges + s * step, f)[:, range(300), y] for s in (-1, 1)]
        slope = np.log(at[1] / at[0]).sum(1) / 2e-3
        assert abs(slope.mean()) < 5 * slope.std() / 1000**0.5 + 0.3, lower


def test_parameters_of_a_likelihood_are_checked(page):
    class Model(page.OrdinalRegression):
        def _assemble(self, data, response):
            return self._generalized_linear(data, response, GaussianLikelihood(-1.0))

    with pytest.raises(ValueError, match="'noise_scale' parameter of Gaussian"):
        Model().fit([[0.0], [1.0]], [0, 1])


def test_solver(page):
    """The optimum of a natural gradient; its parameters can be searched.

    Wrong variants: new draws in every step; the value of the start; the iterations of
    the solver as those of a fit without a result.
    """
    X, y = make_classification(80, 2, n_redundant=0, n_informative=2, random_state=1)
    exact = BayesianLogisticRegression(prior="normal").fit(X, y)
    model = BayesianLogisticRegression(
        objective=ELBO("reparam"), solver=page.FixedDraws(), prior="normal"
    ).set_params(random_state=0, solver__n_draws=2000)
    model.fit(X, y)
    assert model.converged_
    assert len(model.loss_curve_) == model.n_iter_ > 5
    assert model.lower_bound_ == pytest.approx(exact.lower_bound_, abs=0.02)
    np.testing.assert_allclose(model.coef_std_, exact.coef_std_, rtol=0.05)
    with pytest.warns(ConvergenceWarning, match="increase max_iter"):
        clone(model).set_params(max_iter=1, solver__n_draws=5).fit(X, y)
    network = BayesianMLPRegressor(
        skip_connection=False,
        likelihood="gaussian",
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        hidden_layer_sizes=2,
        random_state=0,
        max_iter=1,
    )
    with pytest.warns(ConvergenceWarning, match="increase max_iter"):
        network.set_params(solver=page.FixedDraws(3)).fit(X, X[:, 0])


BEND = 0.2


class Banana(Target):
    """A curved density over two parameters; its integral is e^-3."""

    layout = Layout({"place": (1,), "height": (1,)})

    def log_joint(self, theta, rows=None):
        x, y = theta.unbind(1)
        squares = x.square() + 4 * (y - BEND * x.square()).square()
        return -0.5 * squares - math.log(math.pi) - 3


@pytest.mark.parametrize(
    "gradient", ["auto", pytest.param("score", marks=pytest.mark.slow)]
)
def test_density_without_prior_and_rows(gradient):
    """The best normal is known: independent, of variances v and 1/4.

    Wrong variants: log q twice; a standard normal in the place of the prior.
    """
    target, generator = Banana(), torch.Generator().manual_seed(0)
    objective, posterior = ELBO(gradient), FullRankNormal().build(target.layout)
    objective.check(KLDivergence(), target)
    problem = Problem(target, objective, KLDivergence(), posterior, generator)
    rate = 0.1 * objective.rate_share
    solver = choose_solver(problem, Stochastic(n_draws=20, learning_rate=rate))
    fit = solver.solve(problem, SolverOptions(20))
    v = (math.sqrt(0.25 + 16 * BEND**2) - 0.5) / (16 * BEND**2)
    q = fit.posterior.as_normal()
    expected = torch.tensor([[v, 0.0], [0.0, 0.25]]).double()
    torch.testing.assert_close(q.covariance(), expected, rtol=0, atol=0.05)
    assert float(q.mean[1]) == pytest.approx(BEND * v, abs=0.03)
    loss = 0.5 * v + 0.5 + 4 * (BEND * v) ** 2 + math.log(math.pi) + 3
    loss -= 0.5 * math.log(v / 4) + 1 + math.log(2 * math.pi)
    assert fit.value == pytest.approx(loss, abs=5 * fit.value_se)
    bounds = bound_evidence(target, fit.posterior, generator, n_draws=2000)
    low, high = bounds.interval()
    assert bounds.reliable
    assert high - 0.15 < low < -3 < high


class Convolution(Predictor):
    """Normalization of 2 channels, 4 filters of width 3, and their means weighted."""

    n_outputs = 1
    layout = Layout(
        {
            "norm.weight": (2, 1),
            "norm.bias": (2, 1),
            "conv1.weight": (4, 2, 3),
            "conv1.bias": (4,),
            "head.weight": (4,),
        },
        scales={"conv1.weight": 6**-0.5},
        roles={
            "norm.weight": "affine",
            "norm.bias": "affine",
            "conv1.bias": "intercept",
        },
    )

    def forward(self, theta, X):
        p, s = self.layout.unpack(theta), len(theta)
        h = (p["norm.weight"] * X[:, None] + p["norm.bias"]).flatten(1, 2)
        h = conv1d(
            h, p["conv1.weight"].flatten(0, 1), p["conv1.bias"].flatten(), groups=s
        )
        h = relu(h).mean(2).unflatten(1, (s, 4))
        return (h * p["head.weight"]).sum(2).T[..., None]

    def initial_normal(self, generator):
        scale = self.layout.natural_scales()
        mean = scale * torch.randn(len(scale), generator=generator, dtype=torch.float64)
        mean[:4] = torch.tensor([1.0, 1.0, 0.0, 0.0])  # of the normalization
        return NormalForm(mean, 0.01 * scale)


def test_convolution_with_a_deterministic_normalization():
    """One channel comes in units of an eighth; the fit sees it, as points beside q.

    Wrong variants: a normalization that stays at its start; one that q holds as well.
    """
    net, generator = Convolution(), torch.Generator().manual_seed(0)
    Z = torch.randn(300, 2, 10, generator=generator, dtype=torch.float64)
    truth = net.initial_normal(torch.Generator().manual_seed(5)).mean
    f = net.forward(truth[None], Z)[0, :, 0]
    y = f / f.std() + 0.1 * torch.randn(300, generator=generator, dtype=torch.float64)
    X, points = Z * torch.tensor([[1.0], [8.0]]), ("norm.weight", "norm.bias")
    spec = {"conv1.weight": Normal(), "head.weight": Normal(2.0), "intercept": Normal()}
    prior = build_prior(spec, net.layout.without(*points))
    parts = net, GaussianLikelihood("learn"), LogLoss(), prior
    target = SupervisedTarget(*parts, X[:200], y[:200], deterministic=points)
    posterior = MeanFieldNormal().build(target.layout)
    posterior = posterior.near(target.initial_normal(generator))
    assert list(posterior.layout) == ["conv1.weight", "conv1.bias", "head.weight"]
    assert target.learned == ("noise_scale", *points)
    problem = Problem(target, ELBO(), KLDivergence(), posterior, generator)
    fit = Stochastic(n_draws=3).solve(problem, SolverOptions(max_iter=10))
    theta = fit.posterior.draw(50, generator).theta
    f = fit.target.predictor.forward(theta, X[200:])
    residual = y[200:] - f.mean(0)[:, 0]
    learned = target.point_layout.unpack(fit.target.hyper[None])
    weight = learned["norm.weight"].flatten()
    assert float(residual.var() / y[200:].var()) < 0.05
    assert float(weight[0] / weight[1]) == pytest.approx(8, rel=0.6)
    assert float(learned["noise_scale"]) == pytest.approx(0.1, rel=0.5)


class _Matched(_DiagonalPosterior):
    """Independent normals in the fit; afterwards one with the posterior's moments."""

    def refine(self, target, generator):
        draw = self.draw(40_000, generator)
        weight = (target.log_joint(draw.theta) - draw.log_q).softmax(0)[:, None]
        mean = (weight * draw.theta).sum(0)
        deviation = weight.sqrt() * (draw.theta - mean)
        factor = torch.linalg.cholesky(deviation.T @ deviation)
        return FullRankNormal().build(self.layout).near(NormalForm(mean, factor))


class Matched(MeanFieldNormal):
    def build(self, layout, generator=None):
        return _Matched(layout)


def test_family_that_refines_what_the_solver_found():
    """Attributes, predictions and bounds are those of the refined posterior.

    Wrong variants: the ELBO before; moments of draws without their weights.
    """
    X, y = make_classification(60, 2, n_redundant=0, n_informative=2, random_state=1)
    X[:, 1] += 0.8 * X[:, 0]
    fits = [
        BayesianLogisticRegression(
            posterior=family, random_state=0, prior="normal", intercept_prior="normal"
        ).fit(X, y)
        for family in ("mean_field", Matched(), "full_rank")
    ]
    coarse, refined, fine = fits
    assert refined.converged_
    np.testing.assert_allclose(refined.coef_std_, fine.coef_std_, rtol=0.05)
    assert (np.abs(coarse.coef_std_ / fine.coef_std_ - 1) > 0.1).any()
    gap = fine.lower_bound_ - refined.lower_bound_
    assert -4 * refined.lower_bound_se_ < gap < 0.05
    assert coarse.lower_bound_ < fine.lower_bound_ - 0.05
    wide = fine.predict_proba(X)
    np.testing.assert_allclose(refined.predict_proba(X), wide, atol=0.02)


FIT = """
import sys, threading, time
import numpy as np
from skvi.linear_model import BayesianLogisticRegression
peak, path = [], sys.argv[1]
def watch():
    while True:
        lines = open("/proc/self/status").read().splitlines()
        peak.append(max(int(x.split()[1]) for x in lines if x.startswith("RssAnon")))
        time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
X = np.memmap(path, np.float32, "r").reshape(-1, 100)
y = np.fromfile(path + ".y", np.int8)
model = BayesianLogisticRegression(
    prior="normal", posterior="mean_field", n_jobs=2
).fit(X, y)
np.save(path + ".npy", [model.coef_[0], model.coef_std_[0]])
print(model.converged_, max(peak) * 1024)
"""


@pytest.mark.slow
def test_logistic_regression_on_a_memory_map(tmp_path):
    """1 GB in a file, and less than .8 GB beside it, the interpreter included.

    The peak varies from .66 to .71 with the timing of threads. Wrong variants: a copy
    of all features, or of half of them, which adds .5.
    """
    rng, path = np.random.default_rng(0), tmp_path / "X"
    block = rng.standard_normal((100_000, 100), dtype=np.float32)
    coef = 0.02 * rng.standard_normal(100, dtype=np.float32)
    p = 1 / (1 + np.exp(-block @ coef))
    try:
        with path.open("wb") as X_file, (tmp_path / "X.y").open("wb") as y_file:
            for _ in range(25):
                block.tofile(X_file)
                (rng.random(len(p)) < p).astype(np.int8).tofile(y_file)
        command = [sys.executable, "-c", FIT, str(path)]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        assert path.stat().st_size == 10**9
    finally:
        path.unlink()
    converged, peak = found.stdout.split()
    assert converged == "True"
    assert int(peak) < 8 * 10**8
    mean, std = np.load(tmp_path / "X.npy")
    assert np.abs((mean - coef) / std).max() < 5
    assert (std > 0).all()
