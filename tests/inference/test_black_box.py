"""Densities without derivatives, and their factors."""

import itertools
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from scipy import optimize, special
from scipy.stats import norm
from torch.distributions import Beta as BetaDensity
from torch.distributions import Binomial, Normal, Poisson, constraints
from torch.distributions import Gamma as GammaDensity

from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.inference import VariationalInference
from skvi.objectives import ELBO, EUBO
from skvi.posteriors import Beta, FullRankNormal, Gamma, Product
from skvi.priors import Normal as NormalPrior

Y = np.linspace(2.0, 4.0, 20)


def of_both(p):
    return -(p["mu"] ** 2) - p["sigma"] ** 2


@pytest.mark.parametrize(
    ("density", "options", "message"),
    [
        (lambda p: norm.logpdf(p["mu"]), {}, r"does not depend on \['sigma'\]"),
        (lambda p: {"nu": -(p["mu"] ** 2)}, {}, "does not name"),
        (lambda p: -((p["mu"] + p["sigma"]).numpy() ** 2), {}, "one combination"),
        (lambda p: -(p["mu"].numpy()[0] ** 2), {}, "one number a draw"),
        (lambda p: -float(p["mu"]), {}, "one draw takes vectorize=True"),
        (of_both, {"divergence": "renyi"}, "a prior of its own"),
        (of_both, {"prior": lambda p: p["mu"][:, None]}, "prior must return one"),
        (of_both, {"divergence": "beta", "prior": of_both}, "needs draws of the prior"),
        (of_both, {"prior": NormalPrior("learn")}, "learns"),
        (
            of_both,
            {"divergence": KLDivergence(0.5), "prior": of_both, "objective": "eubo"},
            "Use objective='elbo'",
        ),
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
    data = torch.as_tensor(Y) if "batch_size" in options else None
    model = VariationalInference(density, {"mu": (), "sigma": ()}, **options)
    with pytest.raises(ValueError, match=message):
        model.fit(data)


SPINS = {"z": (2,), "k": ()}
KINDS = {"z": "boolean", "k": constraints.integer_interval(1, 3)}


def fitted(*args, max_iter=6, **params):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return VariationalInference(
            *args, random_state=0, max_iter=max_iter, **params
        ).fit()


class NoSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return -0.5 * x**2


@pytest.mark.parametrize("objective", ["elbo", ELBO("score", rao_blackwell=True)])
def test_categories_that_numpy_looks_up_and_simulators(objective):
    """The best product of both. Wrong variants: a graph is taken for a derivative; a
    search far out goes along the category, too (an index error).
    """

    def density(p):
        table = np.log([0.2, 0.5, 0.3])[p["k"].numpy()]
        return torch.from_numpy(table) + NoSlope.apply(p["mu"] - p["k"])

    k = {"k": constraints.integer_interval(0, 2)}
    model = fitted(density, {"k": (), "mu": ()}, k, objective=objective, max_iter=2)

    def negative_elbo(x):
        q = special.softmax(x)
        spread = q @ np.arange(3) ** 2 - (q @ np.arange(3)) ** 2
        return q @ np.log(q / [0.2, 0.5, 0.3]) + (spread - np.log(2 * np.pi)) / 2

    best = -optimize.minimize(negative_elbo, np.zeros(3)).fun
    assert model.lower_bound_ == pytest.approx(best, abs=0.03)
    assert model.probabilities_["k"].argmax() == 1


def log_lik(p):
    return norm.logpdf([[1.0], [2.5], [3.1], [0.4], [2.2]], p["mu"], 1.5).sum(0)


def log_prior(p):
    return norm.logpdf(p["mu"], 0, 2)


@pytest.mark.parametrize(
    ("divergence", "prior"),
    [
        (KLDivergence(0.5), log_prior),
        (KLDivergence(0.5), {"mu": NormalPrior(2.0)}),
        (RenyiDivergence(0.5), NormalPrior(2.0)),
        (RenyiDivergence(1.5), NormalPrior(2.0)),
    ],
)
def test_another_divergence_from_the_prior(divergence, prior):
    """The smallest loss and divergence, as sums over a grid.

    Wrong variants: the prior remains in the loss; the bound is that of a power.
    """
    t, order = np.linspace(-15, 15, 6001), getattr(divergence, "alpha", 1)

    def parts(x):
        q, pi = norm.logpdf(t, x[0], np.exp(x[1])), log_prior({"mu": t})
        area = (t[1] - t[0]) * np.exp(order * q + (1 - order) * pi)
        loss = -(t[1] - t[0]) * np.exp(q) @ log_lik({"mu": t})
        if order == 1:
            return np.array([loss, area @ (q - pi)])
        return np.array([loss, np.log(area.sum()) / (order * (order - 1))])

    weights = [1, getattr(divergence, "weight", 1)]
    best = optimize.minimize(lambda x: parts(x) @ weights, [1.5, -0.3])
    params = {"prior": prior, "divergence": divergence, "tol": 1e-10}
    model = fitted(log_lik, {"mu": ()}, max_iter=100, **params)
    q = model.posterior_.as_normal()
    found = float(q.mean), float(q.scale.log())
    np.testing.assert_allclose(found, best.x, atol=1e-4)
    if order == 1:
        error = 1e-6 + 4 * model.lower_bound_se_
        assert model.lower_bound_ == pytest.approx(-parts(found).sum(), abs=error)


def factors(p):
    pair = -((p["a"] - p["b"]) ** 2) - p["b"] ** 2
    return {"a, b": pair, "a, y": 3 * p["y"] * p["a"], "z": 20 * p["z"]}


@pytest.mark.parametrize("control", [False, "auto"])
def test_parts_are_rewarded_by_their_own_factors(control):
    """Mean gradient: that of the ELBO of two dependent numbers and two booleans.

    Wrong variants: a factor rewards the first of its parameters only (biased); all
    factors reward all (no less noise).
    """
    objective = ELBO("score", rao_blackwell=True, control_variate=control)
    shapes, supports = dict.fromkeys("zyab", ()), dict.fromkeys("zy", "boolean")

    def gradients(density):
        target = VariationalInference(density, shapes, supports)._make_target(None)
        q = Product({"a, b": FullRankNormal()}).build(target.layout)
        leaf = torch.linspace(0.5, -1.5, len(q.params)).double().requires_grad_()
        generator = torch.Generator().manual_seed(1)
        parts = target, q.at(leaf), KLDivergence(), None, 20, generator
        values = (objective.surrogate(*parts)[0] for _ in range(80))
        found = torch.stack([torch.autograd.grad(v, leaf)[0] for v in values])
        return found, leaf, q.at(leaf).parts

    found, leaf, parts = gradients(factors)
    normal = parts["a", "b"].normal()
    square = normal.covariance() + normal.mean.outer(normal.mean)
    (z,), (y,) = (parts[name,].log_probs().exp() for name in "zy")
    value = -square[0, 0] + 2 * square[0, 1] - 2 * square[1, 1] + normal.entropy()
    value = value + 3 * y[1] * normal.mean[0] + 20 * z[1] - z @ z.log() - y @ y.log()
    (exact,) = torch.autograd.grad(-value, leaf)
    assert ((found.mean(0) - exact).abs() < 0.45 * found.std(0) + 1e-12).all()
    blind = gradients(lambda p: sum(factors(p).values()))[0]
    assert control or found.var(0).mean() < 0.5 * blind.var(0).mean()


def coupled(p):
    """Two spins whose coupling depends on a category."""
    z = 2 * p["z"] - 1
    strength = torch.tensor([0.2, 0.6, 0.9], dtype=torch.float64)[p["k"] - 1]
    return strength * z[:, 0] * z[:, 1] + 0.4 * z[:, 0] - 0.3 * z[:, 1]


@pytest.fixture(scope="module")
def spins():
    return fitted(coupled, SPINS, KINDS)


def states():
    every = list(itertools.product([0.0, 1.0], [0.0, 1.0], [1, 2, 3]))
    z = torch.tensor([s[:2] for s in every], dtype=torch.float64)
    return {"z": z, "k": torch.tensor([s[2] for s in every])}


def test_the_best_independent_probabilities(spins):
    """By enumeration: the largest ELBO of all factorized q, and log Z above it.

    Wrong variants: a relaxation of the spins; a Jacobian of a discrete parameter.
    """
    values = states()
    joint = coupled(values).numpy()
    z, k = values["z"].numpy(), values["k"].numpy()

    def negative_elbo(x):
        first, second = special.expit(x[:2])
        of_k = special.softmax(np.r_[x[2:], 0.0])
        q = np.where(z[:, 0] == 1, first, 1 - first) * of_k[k - 1]
        q *= np.where(z[:, 1] == 1, second, 1 - second)
        return float(q @ (np.log(q) - joint))

    starts = np.random.default_rng(0).normal(size=(10, 4))
    best = min(
        (optimize.minimize(negative_elbo, x) for x in starts), key=lambda r: r.fun
    )
    log_z = special.logsumexp(joint)
    assert spins.lower_bound_ == pytest.approx(
        -best.fun, abs=2e-3 + 4 * spins.lower_bound_se_
    )
    assert -best.fun < log_z - 0.05
    of_k = special.softmax(np.r_[best.x[2:], 0.0])
    np.testing.assert_allclose(spins.probabilities_["k"], of_k, atol=0.03)
    np.testing.assert_allclose(
        spins.probabilities_["z"][:, 1], special.expit(best.x[:2]), atol=0.03
    )
    np.testing.assert_allclose(
        spins.mean_["z"], spins.probabilities_["z"][:, 1], atol=0.04
    )
    low, high = spins.evidence_bounds(random_state=0).interval()
    assert log_z - 0.1 < low < log_z < high < log_z + 0.1


def test_draws_and_probabilities_on_the_supports(spins):
    """Booleans are floats, categories are indices. Wrong variant: values from 0."""
    draws = spins.sample_posterior(100, 0)
    assert draws["z"].dtype == np.float64
    assert draws["k"].dtype == np.int64
    assert set(np.unique(draws["k"])) <= {1, 2, 3}
    values = {name: v.numpy() for name, v in states().items()}
    again = pickle.loads(pickle.dumps(spins))
    assert np.exp(again.log_prob(values)).sum() == pytest.approx(1.0, abs=1e-9)
    assert again.log_prob({"z": [[0.0, 1.0]], "k": [4]})[0] == -np.inf
    assert "k" in str(spins.summary())


def test_dependence_is_reported():
    """A factorized q of two equal spins: its probabilities are those of one state."""

    def equal(p):
        z = 2 * p["z"] - 1
        return 2.0 * z[:, 0] * z[:, 1]

    model = fitted(equal, {"z": (2,)}, {"z": "boolean"})
    assert not model.converged_
    assert "a probability of 'z' by" in model.diagnostics_["message"]
    assert "sum discrete parameters out" in model.diagnostics_["message"]


def conjugate(p):
    """Counts with a Gamma rate, and successes with a Beta share."""
    y = torch.tensor([3.0, 5.0, 2.0, 4.0])
    rate = GammaDensity(2.0, 1.0).log_prob(p["rate"])
    share = BetaDensity(2.0, 3.0).log_prob(p["share"])
    share = share + Binomial(10, p["share"]).log_prob(torch.tensor(7.0))
    return rate + Poisson(p["rate"][:, None]).log_prob(y).sum(1) + share


def test_labels_of_a_mixture():
    """Each point has the label of its cluster; the clusters have their means.

    Wrong variant: equal probabilities at the start, which stay equal.
    """
    y = torch.tensor([-2.1, -1.9, -2.3, 1.8, 2.1, 2.4], dtype=torch.float64)

    def density(p):
        mean = p["mean"].gather(1, p["label"])
        prior = Normal(0.0, 3.0).log_prob(p["mean"]).sum(1) - 6 * math.log(2)
        return prior + Normal(mean, 0.3).log_prob(y).sum(1)

    shapes = {"label": (6,), "mean": (2,)}
    supports = {"label": constraints.integer_interval(0, 1)}
    model = fitted(density, shapes, supports, max_iter=5)
    np.testing.assert_allclose(np.sort(model.mean_["mean"]), [-2.1, 2.1], atol=0.1)
    labels = model.probabilities_["label"].argmax(1)
    assert len(set(labels[:3])) == len(set(labels[3:])) == 1
    assert labels[0] != labels[3]


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"integer_interval\(low, high\)"):
        VariationalInference(
            coupled, SPINS, KINDS | {"k": constraints.nonnegative_integer}
        ).fit()
    with pytest.raises(IncompatibleComponentsError, match="'positive'"):
        VariationalInference(
            conjugate, {"rate": (), "share": ()}, posterior=Product({"rate": Gamma()})
        ).fit()
    with pytest.raises(IncompatibleComponentsError, match="exact density"):
        VariationalInference(
            coupled, {**SPINS, "x": ()}, KINDS, posterior="semi_implicit"
        ).fit()
    with pytest.raises(IncompatibleComponentsError, match="discrete"):
        VariationalInference(coupled, SPINS, KINDS, objective=EUBO()).fit()
    with pytest.raises(IncompatibleComponentsError, match="'unit_interval'"):
        VariationalInference(
            conjugate,
            {"rate": (), "share": ()},
            {"rate": "positive"},
            posterior=Product({"rate": Beta()}),
        ).fit()
