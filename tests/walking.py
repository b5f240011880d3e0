"""Helpers of the walk over all combinations of parts: axes, outcomes, optima."""

import re
import warnings
from copy import copy
from itertools import combinations, product

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skvi._estimator._evidence import data_of_fit
from skvi._estimator._parts import (
    DIVERGENCES,
    LOSSES,
    OBJECTIVES,
    POSTERIORS,
    PRIORS,
)
from skvi.divergences import FDivergence, KLDivergence
from skvi.exceptions import IncompatibleComponentsError, NoOptimumError, SkviWarning
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.objectives import ELBO
from skvi.priors import Normal
from skvi.solvers._choice import SOLVERS, choose_solver
from skvi.targets._numbers import numbers_of

# What a message must have: something to do, and something to do it with.
VERB = re.compile(r"\b(use|give|choose|fix|set|increase|lower|leave|add)\b", re.I)
ALLOWED = re.compile(r"\w+=['\w(]|'\w+'|\w+\(|max_iter|n_draws|noise_scale")
# Nats that a fit may lie above a neighbor: without and with noise in the fit.
EXACT, NOISY = 1e-4, 0.02
STEPS = (0.03, 0.3)
BATCHES, DRAWS = 12, 500


def _hinge(f, y):
    return torch.relu(1 - (2 * y - 1) * f)


def absolute(f, y):
    return (f - y).abs()


def _absolute_log(f, y):
    return (f - torch.log(y + 0.5)).abs()


def _data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(16, 2))
    f = X @ [0.8, -0.5] + 0.3
    y = f + 0.7 * rng.normal(size=16)
    return {
        "class": (X, (f + rng.logistic(size=16) > 0).astype(int)),
        "real": (X, y),
        "count": (X, rng.poisson(np.exp(f))),
    }


DATA = _data()
#: Name -> estimator, its data, and a loss function that suits them.
MODELS = {
    "logistic": (BayesianLogisticRegression(prior="normal"), "class", _hinge),
    "linear_fixed": (
        BayesianLinearRegression(posterior="full_rank", noise_scale=0.7),
        "real",
        absolute,
    ),
    "linear_learn": (
        BayesianLinearRegression(posterior="full_rank", noise_scale="learn"),
        "real",
        absolute,
    ),
    "linear": (BayesianLinearRegression(posterior="full_rank"), "real", absolute),
    "poisson": (BayesianPoissonRegressor(prior="normal"), "count", _absolute_log),
}
#: Axis -> name -> value. A part that is registered is walked over.
AXES = {
    "loss": {name: name for name in LOSSES} | {"callable": None},
    "divergence": {name: name for name in DIVERGENCES}
    | {"kl/2": KLDivergence(weight=0.5), "hellinger": FDivergence("hellinger")},
    "posterior": {name: name for name in POSTERIORS},
    "prior": {name: name for name in PRIORS} | {"learn": Normal("learn")},
    "objective": {name: name for name in OBJECTIVES}
    | {"score": ELBO(gradient="score")},
}


class Ready(Exception):
    """The parts go together; nothing was trained yet."""


class _Asking:
    """Mixin: asks for every solver, and stops before training."""

    def _choose_solver(self, problem):
        self.verdicts = {}
        for name in ("auto", *SOLVERS):
            try:
                self.verdicts[name] = choose_solver(problem, name).name
            except IncompatibleComponentsError as error:
                self.verdicts[name] = error
        raise Ready


class _Quick:
    """Mixin: few gradient steps."""

    _steps_per_iter = 10


def model_of(name, mixin=None, **values):
    """Build an estimator with the values that these names stand for."""
    base, data, function = MODELS[name]
    params = {
        axis: AXES[axis][value] if axis in AXES else value
        for axis, value in values.items()
    }
    if values.get("loss") == "callable":
        params["loss"] = function
    model = clone(base).set_params(random_state=0, **params)
    if mixin is not None:
        kind = type(type(base).__name__, (mixin, type(base)), {})
        model = kind(**model.get_params(deep=False))
    return model, *DATA[data]


def says_what_to_do(message):
    """Whether a message names a remedy, and something that is allowed."""
    return bool(VERB.search(message)) and bool(ALLOWED.search(message))


def solvers_of(name, **values):
    """Solvers that may fit a combination, each once; faults of the refusals.

    "auto" must be one of them, and every other one says why not.
    """
    model, X, y = model_of(name, _Asking, **values)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            model.fit(X, y)
        except IncompatibleComponentsError as error:
            text = str(error)
            return [], [] if says_what_to_do(text) else [f"no remedy: {text}"]
        except Ready:
            pass
    refused = [v for v in model.verdicts.values() if not isinstance(v, str)]
    faults = [f"no remedy: {e}" for e in refused if not says_what_to_do(str(e))]
    able = [v for n, v in model.verdicts.items() if isinstance(v, str) and n != "auto"]
    if not isinstance(model.verdicts["auto"], str):
        faults.append("solver='auto' is refused, which leaves no fit")
    return able, faults


def outcome(name, solver, quick=True, **values):
    """Fit one combination; return (what came of it, faults, model or None)."""
    few = {"max_iter": 2} if quick and solver == "stochastic" else {}
    mixin = _Quick if quick else None
    model, X, y = model_of(name, mixin, solver=solver, **few, **values)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(X, y)
        except NoOptimumError as error:
            text = str(error)
            return "no optimum", [] if says_what_to_do(text) else [text], None
        except Exception as error:  # every other one is a fault
            return "error", [f"{type(error).__name__}: {error}"], None
        faults = _faults_of_numbers(model, X)
    faults += _faults_of_report(model, caught)
    return "converged" if model.converged_ else "reported", faults, model


def _faults_of_numbers(model, X):
    found = {
        "lower_bound_": model.lower_bound_,
        "objective_value_": model.objective_value_,
        "parameters": model.posterior_.unrefined.params.numpy(),
        "coef_": model.coef_,
        "coef_std_": model.coef_std_,
        "predictions": model.predict(X),
    }
    if hasattr(model, "predict_proba"):
        found["probabilities"] = model.predict_proba(X)
    return [f"{k} is not finite" for k, v in found.items() if not np.isfinite(v).all()]


def _faults_of_report(model, caught):
    faults, message = [], model.diagnostics_["message"]
    if len(caught) != bool(message):
        texts = [f"{w.category.__name__}: {w.message}" for w in caught]
        faults.append(f"message {message!r}, but warnings {texts}")
    if any(w.category not in (ConvergenceWarning, SkviWarning) for w in caught):
        faults.append(f"{caught[0].category.__name__}")
    if not model.converged_ and not message:
        faults.append("not converged, in silence")
    if message and not says_what_to_do(message):
        faults.append(f"no remedy: {message}")
    return faults


class Evaluation:
    """What a fit minimized, rebuilt from the fitted attributes."""

    def __init__(self, model, X, y):
        self.divergence, self.posterior = (
            model.divergence_,
            copy(model.posterior_.unrefined),
        )
        self.target = model._model.target(data_of_fit(model, X, y, None))
        self.objective = clone(model.objective_)
        if getattr(self.objective, "gradient", "auto") == "score":
            self.objective = ELBO()  # the same value, without the scores of all draws
        self.hyper = torch.from_numpy(model._hyper.copy())
        self.start = model.posterior_.unrefined.params
        self.learns = len(self.hyper) and self.objective.direction != "upper"
        if model.diagnostics_["solver"] == "empirical_bayes":
            # Others than KL hold the scales that KL finds.
            self.learns = self.learns and self.divergence.kl_weight is not None

    def surrogate(self, params, hyper, seed):
        """Surrogate and value, both scalars, from the draws of a seed."""
        self.posterior.params, self.target.hyper = params, hyper
        generator = torch.Generator().manual_seed(seed)
        return self.objective.surrogate(
            self.target, self.posterior, self.divergence, None, DRAWS, generator
        )

    def values(self, params, hyper):
        """Estimates from common draws, (BATCHES,); one where there is no noise."""
        with torch.no_grad():
            first, second = (
                float(self.surrogate(params, hyper, seed)[1]) for seed in (0, 1)
            )
            if first == second:
                return np.array([first])
            rest = [
                float(self.surrogate(params, hyper, seed)[1])
                for seed in range(2, BATCHES)
            ]
        return np.array([first, second, *rest])

    def expectation(self):
        """Minimized expectation from draws of theta alone: value and its error."""
        self.posterior.params, self.target.hyper = self.start, self.hyper
        generator = torch.Generator().manual_seed(9)
        with torch.no_grad():
            draw = self.posterior.draw(8000, generator)
            theta, log_q = draw.theta, draw.log_q
            log_prior = self.target.prior.log_prob(theta)
            loss = log_prior - self.target.log_joint(theta)
            if self.divergence.kl_weight is not None:
                parts = loss + self.divergence.kl_weight * (log_q - log_prior)
                divergence = 0.0
            elif self.posterior.as_normal() is None or not (
                self.divergence.has_closed_form(self.target.prior)
            ):
                return None
            else:
                normal, parts = self.posterior.as_normal(), loss
                divergence = float(
                    self.divergence.closed_form(normal, self.target.prior)
                )
        return float(parts.mean()) + divergence, float(parts.std()) / 8000**0.5

    def scales(self):
        """Natural size of a move of each variational parameter: 1 / root Fisher."""
        generator = torch.Generator().manual_seed(7)
        self.posterior.params = self.start
        with torch.no_grad():
            theta = self.posterior.draw(200, generator).theta
        leaf = self.start.clone().requires_grad_()
        log_q = self.posterior.log_prob(theta, leaf)
        (score,) = torch.autograd.grad(
            log_q, leaf, torch.eye(200, dtype=log_q.dtype), is_grads_batched=True
        )
        fisher = score.square().mean(0)
        return torch.where(fisher > 1e-12, fisher, torch.inf).rsqrt()

    def directions(self):
        """Moves of parameters and hyperparameters: downhill, and two at random."""
        scales = torch.cat([self.scales(), torch.full_like(self.hyper, 0.3)])
        params = torch.cat([self.start, self.hyper]).requires_grad_()
        split, gradient = len(self.start), torch.zeros_like(params)
        for seed in range(100, 104):
            parts = params[:split], params[split:]
            found = torch.autograd.grad(self.surrogate(*parts, seed)[0], params)
            gradient += found[0].detach()
        generator = torch.Generator().manual_seed(11)
        moves = [-gradient * scales, *torch.randn(2, len(params), generator=generator)]
        moves = [move.double() for move in moves]
        for move in moves:
            if not self.learns:
                move[split:] = 0
        return [m * scales / max(float(m.norm()), 1e-12) for m in moves]

    def better_neighbor(self, tolerance):
        """Say by how much a neighbor is better; empty where none is."""
        here, split = self.values(self.start, self.hyper), len(self.start)
        for i, move in enumerate(self.directions()):
            for step in STEPS:
                there = self.values(
                    self.start + step * move[:split], self.hyper + step * move[split:]
                )
                gain = here - there
                error = gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else 0.0
                if gain.mean() > tolerance + 5 * error:
                    return (
                        f"converged, but {gain.mean():.3g} (error {error:.2g}) nats "
                        f"lower at a step of {step} in direction {i}"
                    )
        return ""


def faults_of_optimum(model, X, y):
    """What is wrong with an optimum that a fit claims."""
    found = Evaluation(model, X, y)
    is_refined = model.posterior_.unrefined is not model.posterior_
    if is_refined and numbers_of(found.target)[1]:
        return []  # of a mixture: its base has the moments, and is no optimum
    noisy = model.diagnostics_["solver"] in ("stochastic", "moment_matching")
    fault = found.better_neighbor(NOISY if noisy else EXACT)
    faults = [fault] if fault else []
    if noisy or found.objective.kind != "expectation":
        return faults
    expected = found.expectation()
    if expected is not None:
        value, error = expected
        # Beside a number the fit minimizes over both, which is more by the divergence
        # of the number given theta.
        excess = value + model.objective_value_
        excess = excess if numbers_of(found.target)[1] else abs(excess)
        if excess > 5 * error + EXACT:
            faults.append(
                f"objective {-model.objective_value_:.4f}, but {value:.4f} "
                f"(error {error:.2g}) from draws"
            )
    return faults


def walk(name, solvers=None, **values):
    """Walk over the solvers of one combination; return (label, outcome, fault)."""
    label = f"{name} " + " ".join(values.values())
    able, faults = solvers_of(name, **values)
    found = [(label, "refused", fault) for fault in faults]
    found += [] if able else [(label, "refused", "")]
    for solver in able if solvers is None else [s for s in able if s in solvers]:
        kind, faults, model = outcome(name, solver, **values)
        if kind == "converged":
            _, X, y = model_of(name)
            faults += faults_of_optimum(model, X, y)
        label_here = f"{label} {solver}"
        found += [(label_here, kind, fault) for fault in faults or [""]]
    return found


def pairwise(axes, allowed=lambda row: True):
    """Rows that show every allowed pair of values of two axes, found greedily."""
    names = list(axes)
    rows = [dict(zip(names, v, strict=True)) for v in product(*axes.values())]
    rows = [row for row in rows if allowed(row)]
    pairs_of = [
        {(i, j, r[a], r[b]) for (i, a), (j, b) in combinations(enumerate(names), 2)}
        for r in rows
    ]
    missing, chosen = set().union(*pairs_of), []
    rng = np.random.default_rng(0)
    while missing:
        some = rng.choice(len(rows), min(len(rows), 400), replace=False)
        best = max(some, key=lambda k: len(pairs_of[k] & missing))
        if pairs_of[best] & missing:
            chosen.append(rows[best])
            missing -= pairs_of[best]
        else:
            pair = min(missing, key=str)
            k = next(k for k, pairs in enumerate(pairs_of) if pair in pairs)
            chosen.append(rows[k])
            missing -= pairs_of[k]
    return chosen
