"""What users add without a change to the package: each in one test of a few lines."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification
from torch.nn.functional import conv1d, relu

from skvi.base import Layout, NormalForm
from skvi.divergences import KL
from skvi.evidence import bound_evidence
from skvi.likelihoods import GaussianLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import LogLoss
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.posteriors._normal import _DiagonalPosterior
from skvi.predictors import Predictor
from skvi.priors import Normal, build_prior
from skvi.solvers import Problem, SolverOptions, Stochastic, choose_solver
from skvi.targets import SupervisedTarget, Target

BEND = 0.2


class Banana(Target):
    """A curved density over two parameters; its integral is e^-3."""

    layout = Layout({"place": (1,), "height": (1,)})

    def log_joint(self, theta, rows=None):
        x, y = theta.unbind(1)
        squares = x.square() + 4 * (y - BEND * x.square()).square()
        return -0.5 * squares - math.log(math.pi) - 3


@pytest.mark.parametrize("gradient", ["auto", "score"])
def test_density_without_prior_and_rows(gradient):
    """The best normal is known: independent, of variances v and 1/4.

    Wrong variants: log q twice; a standard normal in the place of the prior.
    """
    target, generator = Banana(), torch.Generator().manual_seed(0)
    objective, posterior = ELBO(gradient), FullRankNormal().build(target.layout)
    objective.check(KL(), target)
    problem = Problem(target, objective, KL(), posterior, generator)
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
    problem = Problem(target, ELBO(), KL(), posterior, generator)
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
    """2 GB in a file, and less than 1 GB beside it, the interpreter included.

    Wrong variants: a copy of all features, or of half of them.
    """
    rng, path = np.random.default_rng(0), tmp_path / "X"
    block = rng.standard_normal((100_000, 100), dtype=np.float32)
    coef = 0.02 * rng.standard_normal(100, dtype=np.float32)
    p = 1 / (1 + np.exp(-block @ coef))
    try:
        with path.open("wb") as X_file, (tmp_path / "X.y").open("wb") as y_file:
            for _ in range(50):
                block.tofile(X_file)
                (rng.random(len(p)) < p).astype(np.int8).tofile(y_file)
        command = [sys.executable, "-c", FIT, str(path)]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        assert path.stat().st_size == 2 * 10**9
    finally:
        path.unlink()
    converged, peak = found.stdout.split()
    assert converged == "True"
    assert int(peak) < 10**9
    mean, std = np.load(tmp_path / "X.npy")
    assert np.abs((mean - coef) / std).max() < 5
    assert (std > 0).all()
