"""Problems of the reference, by "class/name": see reference.py."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from benchmarks.reference_data import made, real, series, wave
from benchmarks.reference_values import (
    N_ERRORS,
    Value,
    equal,
    exact,
    of_evidence,
    of_model,
)
from skvi import changepoint, linear_model, neural_network
from skvi.divergences import FDivergence, KLDivergence, RenyiDivergence
from skvi.likelihoods import (
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    NegativeBinomialLikelihood,
    StudentTLikelihood,
)
from skvi.losses import BetaLoss
from skvi.metrics import log_predictive_density_scorer
from skvi.model_selection import BatchedGridSearchCV, EvidenceSearch
from skvi.objectives import ELBO, IWELBO
from skvi.posteriors import Ensemble
from skvi.priors import ARD, GammaHyperprior, Normal, StudentT
from skvi.solvers import Stochastic

N_SEEDS = 6
PROPER = {"prior": Normal(GammaHyperprior(1, 1)), "noise_scale": GammaHyperprior(1, 1)}
COMPETING = [changepoint.Regression(), changepoint.Regression(2)]


@dataclass(frozen=True)
class Problem:
    """Values by seed, with or without the truths of bounds."""

    run: Callable[[int, bool], dict[str, Value]]
    n_seeds: int = 1


def train(model: Any, n_chunks: int, X: Any, *y: Any, **options: Any) -> Any:
    """Fit at once, or a stream in chunks."""
    for part in np.array_split(np.arange(len(X)), n_chunks) if n_chunks else ():
        model.partial_fit(X[part], *(column[part] for column in y), **options)
    return model if n_chunks else model.fit(X, *y, **options)


def fitted(make, data, evidence=None, truth=True, n_seeds=1, rtol=None, **params):
    """Fit an estimator; `rows` names its weights or exposures."""
    name, n_chunks = params.pop("rows", None), params.pop("n_chunks", 0)
    is_elbo = {"objective", "divergence", "loss", "solver"}.isdisjoint(params)
    X, y = data
    rows = {name: np.random.default_rng(1).uniform(0.5, 2, len(y))} if name else {}
    options = {"classes": np.unique(y)} if n_chunks else rows

    def run(seed: int, wants_truth: bool) -> dict[str, Value]:
        model = train(make(random_state=seed, **params), n_chunks, X, y, **options)
        values = of_model(model, X, y, rows, rtol)
        ask, bounds = partial(model.evidence_bounds, X, y, random_state=0, **rows), None
        if evidence is not None:
            bounds = ask(**evidence)
            values |= of_evidence(bounds)
        if truth and is_elbo:
            if wants_truth and bounds is None:
                bounds = ask(max_seconds=30)
            top = bounds.interval(N_ERRORS)[1] if bounds and bounds.reliable else None
            bound = replace(values["lower_bound"], kind="lower", truth=top)
            values["lower_bound"] = bound
            del values["objective_value"]  # the same
        return values

    return Problem(run, n_seeds)


def changes(X, n_chunks=0, **params):
    """Changepoints, from the whole series or from chunks of a stream."""

    def run(seed: int, wants_truth: bool) -> dict[str, Value]:
        model = train(changepoint.BayesianChangepointDetector(**params), n_chunks, X)
        return {
            "changepoints": equal(model.changepoints_.tolist()),
            "segment_models": equal(model.segment_models_.tolist()),
            "log_evidence": exact(model.log_evidence_),
            "densities": exact(model.log_densities_[::50]),
            "predictions": exact(model.predictions_[1::50]),
            "stds": exact(model.prediction_stds_[1::50]),
            "change": Value("exact", model.change_probability_[::25], 1e-6),
            "models": exact(model.model_posterior_),
        }

    return Problem(run)


def search(make, model, grid, data, n_seeds=1, **options):
    """What a search finds; scores, or the evidence of each candidate."""

    def run(seed: int, wants_truth: bool) -> dict[str, Value]:
        seeded = {"random_state": seed} if make is EvidenceSearch else {}
        model.set_params(**{} if seeded else {"random_state": seed})
        found = make(model, grid, **seeded, **options).fit(*data)
        values = {"best": equal(str(found.best_params_))}
        if not seeded:
            return values | {"scores": exact(found.cv_results_["mean_test_score"])}
        for i, bounds in enumerate(found.evidence_bounds_):
            values |= {f"{k}_{i}": v for k, v in of_evidence(bounds).items()}
        return values | {"decided": equal(bool(found.decided_))}

    return Problem(run, n_seeds)


def hinge(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(1 - (2 * y - 1) * f)


def convolution(n_outputs: int) -> torch.nn.Module:
    first = torch.nn.Conv2d(1, 4, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten()
    last = torch.nn.LayerNorm(36), torch.nn.Linear(36, n_outputs)
    return torch.nn.Sequential(*first, *last)


def each(text: str, make: Callable, data: tuple, **params: Any) -> dict[str, Problem]:
    """Problems by name, such as "prior=laplace", for parts that are strings."""
    pairs = {pair: [pair.split("=")] for pair in text.split()}
    return {name: make(data, **dict(pair), **params) for name, pair in pairs.items()}


@cache
def problems() -> dict[str, Problem]:
    """All of them, by "class/name"."""
    linear = partial(fitted, linear_model.BayesianLinearRegression)
    counts = partial(fitted, linear_model.BayesianPoissonRegressor)
    classes = partial(fitted, linear_model.BayesianLogisticRegression)
    closed, normal = partial(linear, rtol=1e-6), partial(classes, prior="normal")
    drawn = partial(normal, n_seeds=N_SEEDS, max_iter=20)
    # All iterations are made, so that the work does not depend on the seed.
    fixed = {
        "max_iter": 40,
        "solver": Stochastic(tol=0.0),
        "n_seeds": N_SEEDS,
        "truth": False,
    }
    module = partial(
        fitted, neural_network.BayesianModuleClassifier, **fixed | {"max_iter": 20}
    )
    fixed |= {"hidden_layer_sizes": 8, "posterior": "mean_field"}
    net = partial(fitted, neural_network.BayesianMLPRegressor, **fixed)
    label = partial(fitted, neural_network.BayesianMLPClassifier, **fixed)
    diabetes, cancer, iris = real("diabetes"), real("breast_cancer"), real("iris")
    alone_alike = {
        "divergence": "kl",
        "solver": Stochastic(n_draws=10, tol=0.0),
        "batch_size": 120,
    }
    numbers, heavy = made("numbers", 150, 6), made("heavy", 150, 6)
    few, events = made("classes", 120, 4), made("counts", 200, 5)
    apart, wide = made("apart", 60, 3), made("classes", 60, 400)
    sparse = made("classes", 800, 800, 0.01)
    features = {"feature_columns": [1], "models": "linear_regression"}
    X, y = real("digits", 300)
    images = X.reshape(-1, 1, 8, 8), y % 3
    targets = numbers[0], numbers[0][:, :2] ** 2
    given = {"prior": Normal(0.5), "noise_scale": 0.7}
    learned = {"prior": Normal("learn"), "noise_scale": "learn"}
    blocks = {"prior": {"coef": "laplace"}, "intercept_prior": StudentT(3)}
    path = {"method": "tempering"}
    two = {"hidden_layer_sizes": 2, "prior": "normal", "n_seeds": 1}
    two |= {
        "likelihood": GaussianLikelihood(0.2),
        "posterior": "mean_field",
        "activation": "tanh",
        "evidence": {"precision": 1.0},
        "truth": True,
    }
    varying = HeteroscedasticLikelihood(StudentTLikelihood())
    logistic = linear_model.BayesianLogisticRegression()
    priors = {"prior": [Normal(0.1), Normal(), "laplace"]}
    line = linear_model.BayesianLinearRegression(**PROPER)
    powers = make_pipeline(PolynomialFeatures(include_bias=False), line)
    degrees = {"polynomialfeatures__degree": [1, 2, 3]}
    small = {
        "posterior": "mean_field",
        "divergence": KLDivergence(),
        "hidden_layer_sizes": 8,
        "max_iter": 20,
        "solver": Stochastic(tol=0.0),
    }
    small = neural_network.BayesianMLPRegressor(**small)
    weights = {"divergence__weight": [0.1, 1.0]}
    scoring = {"scoring": log_predictive_density_scorer, "cv": 3, "n_seeds": N_SEEDS}
    groups = {
        "linear": {
            "default": closed(diabetes, evidence={}),
            "given": closed(numbers, evidence={}, **given),
            "proper": closed(numbers, evidence={}, **PROPER),
            "raw": closed(diabetes, fit_intercept=False, normalize_y=False),
            "wide": closed(made("numbers", 60, 300)),
            "wide, given": closed(made("numbers", 60, 600), **given),
            "sparse": closed(made("numbers", 500, 300, 0.02)),
            "many rows": closed(made("numbers", 100_000, 10)),
            "weights": closed(numbers, rows="sample_weight", truth=False),
            "targets": closed(targets),
            "float32": linear(made("numbers", 150, 6, dtype="f4"), rtol=1e-5),
            "learned": linear(numbers, **learned),
            "ard": linear(diabetes, prior=ARD(1, 1)),
            "blocks": linear(numbers, **blocks),
            "renyi": linear(numbers, divergence=RenyiDivergence(0.5), **given),
            "callable": linear(heavy, loss=hinge, **given),
            **each("prior=laplace prior=horseshoe", linear, numbers),
            **each("posterior=mean_field", linear, diabetes),
            **each("likelihood=student_t loss=beta loss=gamma", linear, heavy),
        },
        "counts": {
            "default": counts(events, rows="exposure"),
            "rates": counts(events, rows="sample_weight", truth=False),
            "dispersion": counts(events, likelihood=NegativeBinomialLikelihood(0.5)),
            "near Poisson": counts(events, likelihood=NegativeBinomialLikelihood(1e-5)),
            "sparse": counts(made("counts", 500, 200, 0.02), posterior="mean_field"),
            "many rows": counts(made("counts", 100_000, 8), prior="normal"),
            "evidence": counts(events, evidence={}, rows="exposure", prior="normal"),
            **each("likelihood=negative_binomial loss=beta", counts, events),
            **each("prior=laplace", counts, events),
        },
        "classes": {
            "default": classes(cancer),
            "iris": classes(iris),
            "balanced": classes(few, class_weight="balanced", truth=False),
            "separable": classes(apart),
            "sparse": classes(sparse, posterior="mean_field", truth=False),
            "ard": classes(few, prior=ARD(1, 1)),
            "learned": classes(few, prior=Normal("learn")),
            "wide": normal(wide, truth=False),
            "many rows": normal(made("classes", 100_000, 10)),
            "digits": normal((X, y), posterior="mean_field", truth=False),
            "digits, full rank": normal(real("digits", 150), truth=False),
            "power": normal(few, divergence=KLDivergence(0.5)),
            "hinge": normal(few, loss=hinge),
            "hellinger": drawn(few, divergence=FDivergence("hellinger")),
            **each("prior=laplace prior=student_t prior=horseshoe", classes, few),
            **each("posterior=mean_field", normal, cancer),
            **each("divergence=renyi", normal, few),
            # A correlated posterior collapses, to where iterations happen to end.
            **each("divergence=alpha", normal, few, posterior="mean_field"),
            **each("divergence=beta divergence=gamma", normal, few),
            **each("divergence=jeffreys", normal, few),
            **each("loss=beta loss=gamma", normal, few),
            **each("objective=iwelbo objective=renyi objective=chi", drawn, few),
            **each("objective=eubo objective=alpha_energy", drawn, few),
            **each("solver=stochastic", drawn, few),
        },
        "networks": {
            "sizes": net(
                wave(80),
                hidden_layer_sizes="auto",
                max_iter=4000,
                solver=Stochastic(tol=0.1),
            ),
            "mixture": net(numbers, posterior="auto"),
            "early": net(numbers, early_stopping=True, validation_fraction=0.2),
            "beta": net(heavy, loss=BetaLoss(1.2)),
            "targets": net(targets),
            "score": net(few, objective=ELBO(gradient="score"), posterior="full_rank"),
            "importance": net(numbers, objective=IWELBO(5)),
            "binary": label(few),
            "two layers": label(iris, hidden_layer_sizes=(8, 4)),
            "ensemble": label(few, posterior=Ensemble(n_members=3), **alone_alike),
            "partial fit": label(iris, n_chunks=3),
            "module": module(images, module=convolution, deterministic="3"),
            **each("likelihood=heteroscedastic", net, numbers),
            "student": net(heavy, likelihood=varying),
            **each("posterior=low_rank", net, numbers),
            **each("prior=log_uniform prior=horseshoe", net, numbers),
            **each("objective=alpha_energy", net, heavy),
        },
        "evidence": {
            "default": classes(few, evidence={}),
            "laplace": classes(few, evidence={}, prior="laplace"),
            "separable": normal(apart, evidence={}),
            "cancer": normal(cancer, evidence={}),
            "iris": normal(iris, evidence={}),
            "many rows": normal(made("classes", 5000, 5), evidence={}),
            "path": normal(few, evidence=path, posterior="mean_field"),
            "horseshoe": linear(made("numbers", 60, 3), evidence={}, prior="horseshoe"),
            "heavy": linear(heavy, evidence={}, likelihood="student_t", prior="normal"),
            "learned": linear(numbers, evidence={}, **learned),
            "symmetric": net(wave(12), **two),
        },
        "changepoints": {
            "default": changes(series("levels")),
            "robust": changes(series("outlier"), loss="beta"),
            "lengths": changes(series("outlier"), loss="beta", run_length_loss="log"),
            "missing": changes(series("missing"), models="known_noise"),
            "trials": changes(series("trials"), models="bernoulli"),
            "counts": changes(series("counts"), models="poisson", hazard=50.0),
            "trend": changes(series("trend"), models="linear_trend"),
            "memory": changes(series("memory"), models=COMPETING),
            "vector": changes(series("memory"), models="vector_autoregression"),
            "features": changes(series("features"), **features),
            "stream": changes(series("levels", 600), n_chunks=20, burn_in=50),
        },
        "searches": {
            "priors": search(EvidenceSearch, logistic, priors, few),
            "degrees": search(EvidenceSearch, powers, degrees, made("numbers", 60, 2)),
            "weights": search(BatchedGridSearchCV, small, weights, numbers, **scoring),
        },
    }
    pairs = ((kind, *pair) for kind, group in groups.items() for pair in group.items())
    return {f"{kind}/{name}": problem for kind, name, problem in pairs}
