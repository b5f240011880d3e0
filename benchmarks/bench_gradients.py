"""Variance of every gradient estimator, on the breast-cancer data.

    python benchmarks/bench_gradients.py                    # the tables of the docs
    python benchmarks/bench_gradients.py --replicates 200   # a quick look

A logistic regression with 31 coefficients and a N(0, 1) prior. The variances are those
of a gradient from S draws, summed over all variational parameters, in coordinates in
which the Fisher information of q is the identity (means in standard deviations): a
number that does not depend on how q is parametrized. `error` is the largest distance
of the mean gradient from the exact one, in standard errors, where the exact one is
known by quadrature.
"""

import argparse
import os
import platform
import time
from datetime import date

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

from skvi.base import NormalForm
from skvi.divergences import KLDivergence
from skvi.likelihoods import BernoulliLikelihood
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import LogLoss
from skvi.neural_network import BayesianMLPClassifier
from skvi.objectives import ELBO, EUBO, IWELBO, ChiBound, RenyiBound
from skvi.posteriors import MeanFieldNormal
from skvi.predictors import LinearPredictor, MLPPredictor
from skvi.priors import Normal
from skvi.targets import SupervisedTarget

ELBO_RULES = {
    "score": ELBO("score", control_variate=False),
    "score + Rao-Blackwell": ELBO("score", True, control_variate=False),
    "score + control variate": ELBO("score"),
    "score + both": ELBO("score", rao_blackwell=True),
    "reparam": ELBO("reparam"),
    "stl": ELBO("stl"),
}
NETWORK_RULES = {**ELBO_RULES, "local": ELBO("local")}
OTHER_RULES = {
    "IWELBO, K = S": lambda s: {
        rule: IWELBO(s, rule) for rule in ("reparam", "doubly_reparam")
    },
    "Renyi, alpha = 0.5": lambda s: {
        rule: RenyiBound(0.5, rule) for rule in ("reparam", "doubly_reparam")
    },
    "Renyi, alpha = -0.5": lambda s: {
        rule: RenyiBound(-0.5, rule) for rule in ("score", "doubly_reparam")
    },
    "chi, order 2": lambda s: {
        rule: ChiBound(2, rule) for rule in ("score", "doubly_reparam")
    },
    "EUBO": lambda s: {rule: EUBO(rule) for rule in ("score", "doubly_reparam")},
}


def make_target():
    X, y = load_breast_cancer(return_X_y=True)
    X, predictor = StandardScaler().fit_transform(X), LinearPredictor(30)
    prior = Normal().build(predictor.layout)
    parts = predictor, BernoulliLikelihood(), LogLoss(), prior
    target = SupervisedTarget(*parts, torch.from_numpy(X), torch.from_numpy(y).double())
    return target, X, y


def make_points(target, X, y):
    """A fresh mean-field q, and the one that maximizes the ELBO."""
    fitted = BayesianLogisticRegression(posterior="mean_field", prior="normal").fit(
        X, y
    )
    zero = torch.zeros(target.layout.size, dtype=torch.float64)
    points = {"start": NormalForm(zero, zero + 0.1)}
    points["optimum"] = fitted.posterior_.as_normal()
    posteriors = {}
    for name, normal in points.items():
        posteriors[name] = MeanFieldNormal().build(target.layout)
        posteriors[name] = posteriors[name].near(normal)
        posteriors[name].params.requires_grad_()
    return posteriors


def make_network(X, y):
    """A target of 50 hidden units, and its fitted mean-field q."""
    parts = {"skip_connection": False, "activation": "softplus", "random_state": 0}
    fitted = BayesianMLPClassifier(
        posterior="mean_field", divergence="kl", hidden_layer_sizes=50, **parts
    ).fit(X, y)
    predictor = MLPPredictor(30, 1, (50,), "softplus")
    prior = Normal(1.0).build(predictor.layout)
    parts = predictor, BernoulliLikelihood(), LogLoss(), prior
    target = SupervisedTarget(*parts, torch.from_numpy(X), torch.from_numpy(y).double())
    normal = fitted.posterior_.as_normal()
    near = NormalForm(normal.mean.double(), normal.scale.double())
    posterior = MeanFieldNormal().build(target.layout).near(near)
    posterior.params.requires_grad_()
    return target, posterior


def gradient(objective, target, posterior, n_draws, generator):
    surrogate, _ = objective.surrogate(
        target, posterior, KLDivergence(), None, n_draws, generator
    )
    return torch.autograd.grad(surrogate, posterior.params)[0]


def measure(objective, target, posterior, n_draws, n_replicates):
    """Whitened gradients, (R, n_variational), and milliseconds for each."""
    generator = torch.Generator().manual_seed(0)
    normal = posterior.as_normal()
    unit = torch.cat([normal.scale, torch.full_like(normal.scale, 0.5**0.5)])
    start = time.perf_counter()
    found = [
        gradient(objective, target, posterior, n_draws, generator)
        for _ in range(n_replicates)
    ]
    cost = 1e3 * (time.perf_counter() - start) / n_replicates
    return torch.stack(found) * unit, cost, unit


def report(rules, target, posterior, args, exact=None):
    first = None
    for name, objective in rules.items():
        found, cost, unit = measure(
            objective, target, posterior, args.draws, args.replicates
        )
        variance = found.var(0).sum()
        first = variance if first is None else first
        error = ""
        if exact is not None:
            se = found.std(0) / len(found) ** 0.5
            error = f"{float(((found.mean(0) - exact * unit).abs() / se).max()):5.1f}"
        print(
            f"  {name:<24}{float(variance):>12.4g}{float(first / variance):>10.1f}"
            f"{cost:>8.2f}  {error}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicates", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=5)
    args = parser.parse_args()
    target, X, y = make_target()
    print(
        f"{date.today()}, {os.cpu_count()} cores, {platform.machine()}; "
        f"S = {args.draws}, {args.replicates} replicates"
    )
    print(f"  {'rule':<24}{'variance':>12}{'cut':>10}{'ms':>8}  error")
    for point, posterior in make_points(target, X, y).items():
        exact = gradient(ELBO(), target, posterior, 2, None)
        print(f"ELBO, {point}")
        report(ELBO_RULES, target, posterior, args, exact)
    print("ELBO, a network of 50 hidden units")
    report(NETWORK_RULES, *make_network(X, y), args)
    for name, make_rules in OTHER_RULES.items():
        print(f"{name}, optimum of the ELBO")
        report(make_rules(args.draws), target, posterior, args)


if __name__ == "__main__":
    main()
