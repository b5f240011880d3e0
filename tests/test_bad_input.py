"""Bad input gets scikit-learn's own kind of error, or a right and finite answer."""

import re
import warnings
from datetime import date, datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import sklearn
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset

from skvi.changepoint import BayesianChangepointDetector
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.linear_model import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
)
from skvi.losses import BetaLoss
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.objectives import ELBO, EUBO
from skvi.posteriors import FullRankNormal
from skvi.priors import Laplace, Normal
from skvi.solvers import Stochastic
from skvi.solvers._natural_gradient import NaturalGradient
from tests.reference import Problem, real_data

# The reference has a fixed scale, which features of other units do not suit; the
# default comes after all parts.
NORMAL = {"prior": "normal", "intercept_prior": "normal"}
PARTS = [
    NORMAL,
    {"posterior": "mean_field", **NORMAL},
    {"divergence": "renyi"},
    {"loss": "beta", **NORMAL},
    {"prior": "laplace"},
    {"objective": "eubo", "random_state": 0, **NORMAL},
]
DEFAULT = {}

# A few rows are separable, and their coefficients have no mean under the default prior.
MEDIANS = ".*does not determine the means"
pytestmark = pytest.mark.filterwarnings(f"ignore:{MEDIANS}:skvi.exceptions.SkviWarning")


def small(n=8, d=3):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, d)), np.arange(n) % 2


def assert_sane(model, X):
    """Everything finite, deviations positive, probabilities in range."""
    for name in ("coef_", "coef_std_", "intercept_", "loss_curve_"):
        assert np.isfinite(getattr(model, name)).all(), name
    for name in ("lower_bound_", "lower_bound_se_", "objective_value_"):
        assert np.isfinite(getattr(model, name)), name
    assert (model.coef_std_ > 0).all()
    p = model.predict_proba(X)
    assert np.isfinite(p).all()
    assert (p >= 0).all()
    assert np.isfinite(model.predict_log_proba(X)).all()


def planted(value, n=8):
    X, _ = small(n)
    X[3, 1] = value
    return X


_days = np.arange(8).astype("datetime64[D]").astype("datetime64[ns]")
DAYS = pd.DataFrame({"day": _days, "end": _days})


@pytest.mark.parametrize(
    ("X", "y", "weight", "error", "message"),
    [
        (planted(np.nan), None, None, ValueError, "contains NaN"),
        (planted(np.inf), None, None, ValueError, "contains infinity"),
        (small()[0] * 1j, None, None, ValueError, "Complex data not supported"),
        (np.full((8, 2), "a"), None, None, ValueError, "could not convert string"),
        (DAYS, None, None, ValueError, "2 column.* dates or durations .datetime64"),
        (DAYS.assign(a=0.5), None, None, ValueError, "days since a first day"),
        (DAYS.to_numpy(), None, None, ValueError, "days since a first day"),
        (small()[0][:, 0], None, None, ValueError, "Expected 2D array"),
        (small()[0][None], None, None, ValueError, "Found array with dim 3"),
        (np.empty((0, 3)), [], None, ValueError, "0 sample"),
        (np.empty((8, 0)), None, None, ValueError, "0 feature"),
        (small()[0][:7], None, None, ValueError, "inconsistent numbers of samples"),
        (small()[0], [0, 1, np.nan] + [1] * 5, None, ValueError, "contains NaN"),
        (small()[0], np.linspace(0, 1, 8), None, ValueError, "Unknown label type"),
        (small()[0], np.zeros(8), None, ValueError, "only one class"),
        (small()[0], np.eye(8), None, ValueError, "y is one-hot"),
        (small()[0], None, -np.ones(8), ValueError, "[Nn]egative values"),
        (small()[0], None, np.zeros(8), ValueError, "one non-zero number"),
        (small()[0], None, np.ones(7), ValueError, "sample_weight.shape"),
        (small()[0], None, [np.nan] * 8, ValueError, "contains NaN"),
        (
            scipy.sparse.csr_array(small()[0] * np.nan),
            None,
            None,
            ValueError,
            "contains NaN",
        ),
    ],
)
def test_impossible_data(X, y, weight, error, message):
    y = small()[1] if y is None else y
    model = BayesianLogisticRegression()
    with pytest.raises(error, match=message):
        model.fit(X, y, sample_weight=weight)
    assert not hasattr(model, "posterior_")
    for method in (model.predict, model.predict_proba):
        with pytest.raises(NotFittedError):
            method(small()[0])
    with pytest.raises(NotFittedError):
        model.evidence_bounds(*small())
    with pytest.raises(NotFittedError):
        model.sample_posterior()


@pytest.mark.parametrize(
    "model",
    [
        BayesianLinearRegression(),
        BayesianPoissonRegressor(),
        BayesianMLPRegressor(
            skip_connection=False,
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
        ),
    ],
)
def test_names_of_classes_are_no_numbers(model):
    """Wrong variant: NumPy's words, which name neither y nor the remedy."""
    X, y = small()
    with pytest.raises(ValueError, match=r"such as no, yes\. .*use a classifier"):
        model.fit(X, np.where(y, "yes", "no"))


DATES = {
    "numpy": _days,
    "column": _days[:, None],
    "frame": pd.DataFrame({"y": _days}),
    "time zone": pd.Series(_days).dt.tz_localize("UTC"),
    "list of timestamps": list(pd.Series(_days)),
    "datetime": [datetime(2026, 1, day) for day in range(1, 9)],
    "date": np.array([date(2026, 1, day) for day in range(1, 9)]),
    "durations": pd.Series(_days - _days[0]),
    "periods": pd.Series(_days).dt.to_period("D"),
}


@pytest.mark.parametrize("y", DATES.values(), ids=DATES.keys())
@pytest.mark.parametrize(
    "model",
    [
        BayesianLinearRegression(),
        BayesianPoissonRegressor(),
        BayesianMLPRegressor(
            skip_connection=False,
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
        ),
    ],
)
def test_dates_are_no_numbers(model, y):
    """Wrong variants: nanoseconds; Python's words about float() and a Timestamp."""
    X, _ = small()
    message = "holds dates or durations .*Predict days since a first day"
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
    assert not hasattr(model, "posterior_")
    fitted = BayesianLinearRegression().fit(X, np.arange(8.0))
    with pytest.raises(ValueError, match=message):
        fitted.predict_log_density(X, y)


def test_dates_may_be_classes():
    X, y = small()
    model = BayesianLogisticRegression().fit(X, _days[y])
    assert set(model.predict(X)) == set(_days[:2])


def test_column_of_numbers():
    """As scikit-learn's `LinearRegression`. Wrong variant: vectors, with a warning."""
    X, y = small()
    model = BayesianLinearRegression().fit(X, y[:, None])
    flat = BayesianLinearRegression().fit(X, y)
    np.testing.assert_allclose(model.predict(X), flat.predict(X)[:, None])
    assert model.coef_.shape == (1, 3)
    assert model.predict_interval(X).shape == (8, 2, 1)
    density = model.predict_log_density(X, y[:, None])
    np.testing.assert_allclose(density, flat.predict_log_density(X, y))


def test_column_of_counts_warns():
    """Counts are a single target, as in scikit-learn's `PoissonRegressor`."""
    X, y = small()
    with pytest.warns(DataConversionWarning, match="column-vector"):
        model = BayesianPoissonRegressor().fit(X, y[:, None])
    assert model.predict(X).shape == (8,)


def test_column_of_labels_warns():
    X, y = small()
    with pytest.warns(DataConversionWarning, match="column-vector"):
        model = BayesianLogisticRegression().fit(X, y[:, None])
    assert np.array_equal(model.coef_, BayesianLogisticRegression().fit(X, y).coef_)


@pytest.mark.parametrize("parts", PARTS)
def test_columns_that_say_nothing_keep_their_prior(parts):
    """Zero, constant and doubled columns, without and with others.

    All-zero features leave the intercept's posterior, against the reference.
    """
    X, y = small(20)
    y[:12] = 1
    model = BayesianLogisticRegression(tol=1e-9, **parts).fit(np.zeros((20, 2)), y)
    alone = BayesianLogisticRegression(tol=1e-9, **parts).fit(np.zeros((20, 1)), y)
    assert_sane(model, np.zeros((3, 2)))
    noise = 0.1 if "objective" in parts else 1e-4
    assert model.intercept_ == pytest.approx(alone.intercept_, abs=noise)
    assert model.coef_ == pytest.approx(0, abs=noise)
    if parts in PARTS[:2]:
        assert model.coef_std_ == pytest.approx(1, abs=1e-4)
        exact = Problem(np.zeros((20, 2)), y).optimum(full_rank=True)[0]
        assert model.lower_bound_ == pytest.approx(-exact, abs=1e-4)
    wide = np.hstack([X, np.full((20, 1), 7.0), np.zeros((20, 1)), X[:, :1]])
    doubled = BayesianLogisticRegression(tol=1e-9, **parts).fit(wide, y)
    assert_sane(doubled, wide)
    assert doubled.coef_[0, 0] == pytest.approx(doubled.coef_[0, 5], abs=noise)


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        *(((2, 5), parts) for parts in (*PARTS, DEFAULT)),
        ((2, 1), PARTS[3]),
        ((2, 1), DEFAULT),
        ((6, 40), PARTS[0]),
        ((6, 40), DEFAULT),
    ],
)
def test_few_rows(shape, parts):
    """One row per class, and more features than rows: the prior carries the rest."""
    X, y = small(*shape)
    model = BayesianLogisticRegression(**parts).fit(X, y)
    assert_sane(model, X)
    assert model.score(X, y) == 1
    if parts is NORMAL:
        assert model.lower_bound_ == pytest.approx(
            -Problem(X - X.mean(0), y).optimum(full_rank=True)[0], abs=1e-3
        )


@pytest.mark.parametrize(
    ("factor", "parts"),
    # Without the divergence, whose default prior is relative to the columns.
    [*((1e8, parts) for i, parts in enumerate(PARTS) if i != 2)]
    + [(1e-8, PARTS[0]), (1e-8, PARTS[3])],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_huge_scales(factor, parts):
    """Tiny features leave the prior; with the prior scaled along nothing changes."""
    X, y = real_data("virginica")
    with pytest.warns(SkviWarning, match="standardize the features"):
        model = BayesianLogisticRegression(**parts).fit(X * factor, y)
    assert_sane(model, X * factor)
    if factor < 1:
        assert model.coef_ == pytest.approx(
            0, abs=0.1 if "objective" in parts else 1e-3
        )
    elif "objective" not in parts:
        # The prior allows no better odds than separation along one direction.
        assert model.score(X * factor, y) > 0.9
    if parts is NORMAL:
        model.set_params(prior=Normal(1 / factor), intercept_prior=Normal(1.0))
        model.set_params(tol=1e-8).fit(X * factor, y)
        plain = BayesianLogisticRegression(tol=1e-8, **NORMAL).fit(X, y)
        assert model.lower_bound_ == pytest.approx(plain.lower_bound_, abs=1e-5)
        assert model.coef_ * factor == pytest.approx(plain.coef_, abs=1e-3)


@pytest.mark.parametrize(
    ("scale", "parts"),
    [*((1e6, parts) for parts in PARTS), (1e-6, PARTS[0]), (1e-6, PARTS[4])],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_extreme_priors(scale, parts):
    """1e-6 leaves the coin toss; 1e6 on separated data is finite and improves."""
    X, y = real_data("virginica")
    model = BayesianLogisticRegression(**parts)
    model.set_params(prior__scale=scale, intercept_prior=Normal(1.0)).fit(X, y)
    assert_sane(model, X)
    if scale < 1:
        assert model.coef_ == pytest.approx(0, abs=1e-4)
        assert model.predict_proba(X) == pytest.approx(0.5, abs=0.05)
    if parts in PARTS[:2]:
        full_rank = parts is NORMAL
        problem = Problem(X, y, scale=scale)
        model.set_params(intercept_prior=Normal(scale)).fit(X, y)
        best = problem.optimum(full_rank)[0]
        assert -model.lower_bound_ == pytest.approx(best, abs=0.005)


NAN = float("nan")


@pytest.mark.parametrize(
    "params",
    [
        {"objective": "kl"}, {"objective": KLDivergence()}, {"divergence": "KL"},
        {"loss": 1}, {"loss": "logistic"}, {"posterior": "diagonal"},
        {"posterior": None}, {"prior": None}, {"prior": "gauss"},
        {"intercept_prior": 1.0}, {"fit_intercept": "yes"}, {"solver": "newton"},
        {"solver": Stochastic(n_draws=0)}, {"solver": Stochastic(n_draws=2.5)},
        {"solver": Stochastic(learning_rate=0.0)},
        {"solver": Stochastic(learning_rate="fast")},
        {"solver": Stochastic(batch_size=0)}, {"solver": NaturalGradient},
        {"max_iter": 0}, {"tol": 0.0}, {"tol": -1}, {"tol": NAN},
        {"random_state": "seed"},
        {"prior": Normal(0.0)}, {"prior": Normal(-1)}, {"prior": Laplace("wide")},
        {"prior": Normal(NAN)}, {"prior": Normal(np.inf)},
        {"divergence": KLDivergence(weight=0)}, {"loss": BetaLoss(beta=1.0)},
        {"divergence": RenyiDivergence(alpha=NAN)},
        {"objective": ELBO("reinforce")}, {"objective": EUBO("stl")},
    ],
)  # fmt: skip
def test_wrong_parameters(params):
    """Named as scikit-learn names them, with what is allowed and what was given.

    Wrong variant: choices in the order of a set, another one in every process.
    """
    (name,) = params
    nested = "scale|weight|beta|alpha|gradient|n_draws|learning_rate|batch_size"
    message = rf"(?s)The '({name}|{nested})' parameter of \w+ "
    model = BayesianLogisticRegression(**params)
    assert clone(model).get_params(deep=False).keys() == model.get_params(False).keys()
    with pytest.raises(ValueError, match=message + "must be .*Got .* instead") as said:
        model.fit(*small())
    for choices in re.findall(r"among \{(.*?)\}", str(said.value)):
        assert choices.split(", ") == sorted(choices.split(", "))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (
            {"objective": "eubo", "divergence": "renyi"},
            "EUBO RenyiDivergence() objective='elbo'",
        ),
        (
            {"objective": "eubo", "divergence": KLDivergence(2.0)},
            "EUBO KLDivergence(weight=2.0) 'kl'",
        ),
        (
            {"objective": ELBO("stl"), "divergence": "renyi"},
            "stl RenyiDivergence() 'reparam'",
        ),
        (
            {"objective": "eubo", "solver": Stochastic(n_draws=1)},
            "EUBO n_draws=1 2 objective='elbo'",
        ),
        (
            {"objective": "alpha_energy", "solver": Stochastic(n_draws=1)},
            "AlphaEnergy n_draws=1 2",
        ),
        (
            {"divergence": RenyiDivergence(-0.5)},
            "RenyiDivergence(alpha=-0.5) alpha > 0",
        ),
        ({"prior": {"intercept": Normal()}}, "intercept_prior=Normal()"),
        ({"prior": {"coef": Normal(), "bias": Normal()}}, "coef intercept bias"),
        ({"solver": "moment_matching"}, "moment_matching ELBO() 'auto'"),
        (
            {"objective": "eubo", "solver": "natural_gradient"},
            "natural_gradient EUBO() 'auto'",
        ),
    ],
)
def test_impossible_combinations(params, words, monkeypatch):
    """Refused before any training, with the parts and the remedy in the message."""
    trained = []
    monkeypatch.setattr(
        "skvi.solvers._natural_gradient.NaturalGradient.solve",
        lambda *_: trained.append(1),
    )
    with pytest.raises(IncompatibleComponentsError) as error:
        BayesianLogisticRegression(**params).fit(*small())
    for word in words.split(" "):
        assert word in str(error.value)
    assert not trained


def test_too_many_parameters_for_full_rank():
    X = np.zeros((4, 10_000))  # and the intercept
    with pytest.raises(ValueError, match=r"10001 parameters.*posterior='mean_field'"):
        BayesianLogisticRegression(posterior="full_rank").fit(X, [0, 1, 0, 1])
    assert FullRankNormal().check_size(10_000) is None
    X[:, 0] = [-1, 1, -1, 1]
    model = BayesianLogisticRegression().fit(X, [0, 1, 0, 1])  # takes "mean_field"
    assert_sane(model, X)


def test_evidence_of_the_wrong_data():
    X, y = real_data("virginica")
    model = BayesianLogisticRegression(prior="normal")
    with pytest.raises(NotFittedError):
        model.evidence_bounds(X, y)
    model.fit(X, y)
    weight = np.ones(100)
    for args, options, message in [
        ((X[:50], y[:50]), {}, "be the 100 rows of the fit"),
        ((X[:, :3], y), {}, "X has 3 features"),
        ((X + 1e-3, y), {}, "of the fit; these differ"),
        ((X, 1 - y), {}, "of the fit; these differ"),
        ((X[::-1], y), {}, "of the fit; these differ"),
        ((X, y), {"sample_weight": weight + y}, "of the fit; these differ"),
        ((X, y + 5), {}, "not in the fit"),
        ((X, y), {"n_draws": 100, "precision": 0.1}, "not both"),
        ((X, y), {"n_draws": 10}, "'n_draws' parameter"),
        ((X, y), {"precision": 0.0}, "'precision' parameter"),
        ((X, y), {"method": "exact"}, "'method' parameter"),
        ((X, y), {"sample_weight": -weight}, "[Nn]egative"),
        ((planted(np.nan, 100), y), {}, "features|NaN"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.evidence_bounds(*args, **options)
    model.fit(X, y, sample_weight=weight)
    with pytest.raises(ValueError, match="pass the same sample_weight"):
        model.evidence_bounds(X, y)
    with pytest.raises(ValueError, match="these differ"):
        model.evidence_bounds(X, y, sample_weight=2 * weight)
    # Weights of one change nothing, so that it is the evidence itself.
    bounds = model.evidence_bounds(X, y, sample_weight=weight, n_draws=64)
    assert bounds.quantity == "log evidence"


@pytest.mark.parametrize("params", [{"n_draws": 0}, {"n_draws": 1.5}])
def test_wrong_arguments_of_methods(params):
    model = BayesianLogisticRegression().fit(*small())
    with pytest.raises(ValueError, match="'n_draws' parameter"):
        model.sample_posterior(**params)
    with pytest.raises(ValueError, match="X has 2 features"):
        model.predict(np.zeros((4, 2)))
    with pytest.raises(ValueError, match="contains NaN"):
        model.predict_proba(planted(np.nan))


def test_diverging_stochastic_fit_keeps_a_finite_state():
    """A learning rate of 1e200 overflows: the message names what went wrong."""
    X, y = small()
    model = BayesianLogisticRegression(
        solver=Stochastic(learning_rate=1e200), random_state=0
    )
    with pytest.warns(ConvergenceWarning, match="non-finite.*Lower the learning_rate"):
        model.fit(X, y)
    assert not model.converged_
    assert np.isfinite(model.coef_).all()
    assert np.isfinite(model.coef_std_).all()


def fit_or_refuse(X, y, weight, parts):
    """A finite fit, or a ValueError that says what to change; nothing raw."""
    model = BayesianLogisticRegression(random_state=0, max_iter=30, **parts)
    try:
        model.fit(X, y, sample_weight=weight)
    except ValueError as error:  # LinAlgError is a RuntimeError
        if "Standardize the features" not in str(error):
            raise
        return False
    assert_sane(model, X)
    return True


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("seed", range(2))
def test_narrow_prior_against_heavy_weights(seed):
    """Coefficients of a thousand prior scales: the line search must not fall off."""
    X = np.random.default_rng(seed).standard_normal((200, 2))
    weight = np.full(200, 1e4)
    fit_or_refuse(X, (X[:, 0] > 0).astype(int), weight, {"prior": Laplace(1e-3)})


@pytest.mark.filterwarnings("ignore:.*the features have ranges")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("seed", range(30))
def test_adversarial_data(seed):
    """Mixed scales, copied and shifted columns, extreme priors and weights."""
    rng = np.random.default_rng(seed)
    n, d = rng.choice([2, 3, 20, 100]), rng.choice([1, 2, 5, 15])
    X = rng.standard_normal((n, d))
    X = [
        X,
        X * 10.0 ** rng.integers(-8, 9, d),
        X * 10.0 ** rng.integers(-4, 5, (n, 1)),
        np.repeat(X, 3, 1) * 1e3,
        X[:, :1] + 1e-7 * X,
        X + 1e6,
    ][seed % 6]
    y = np.arange(n) % 2
    weight = 10.0 ** rng.uniform(-6, 6, n) if seed % 4 == 0 else None
    scale = 10.0 ** rng.integers(-6, 7)
    parts = {"prior": Laplace(scale) if seed % 5 == 0 else Normal(scale)}
    parts["posterior"] = ["full_rank", "mean_field"][rng.integers(2)]
    options = [{}, {}, {"loss": "beta"}, {"divergence": KLDivergence(100.0)}]
    if seed % 5:
        options.append({"divergence": "renyi"})
    fit_or_refuse(X, y, weight, parts | options[rng.integers(len(options))])


def test_warnings_point_at_the_line_of_the_user():
    """Through decorators and a pipeline. Wrong variant: a fixed stacklevel."""
    X, y = small()
    model = BayesianLogisticRegression(max_iter=1, tol=1e-12, prior="normal")
    pipeline = make_pipeline(StandardScaler(), model)
    for estimator in (model, pipeline):
        with pytest.warns(ConvergenceWarning) as record:
            estimator.fit(X, y)
        assert {warning.filename for warning in record} == {__file__}


def test_weights_may_leave_one_class_out():
    """As where the other class hardly counts: the prior is proper.

    Wrong variants: an error; the rows of weight zero decide the intercept.
    """
    X, y = small(30)
    model = BayesianLogisticRegression(prior="normal")
    none, little = (
        clone(model).fit(X, y, np.where(y == 1, 1.0, left)).predict_proba(X)
        for left in (0.0, 1e-9)
    )
    np.testing.assert_allclose(none, little, atol=1e-6)
    assert none[:, 1].mean() > 0.7


@pytest.mark.parametrize(
    "model",
    [
        BayesianLinearRegression(),
        BayesianLogisticRegression(),
        BayesianPoissonRegressor(),
        BayesianMLPRegressor(
            skip_connection=False,
            likelihood="gaussian",
            activation="softplus",
            divergence="kl",
            posterior="mean_field",
            max_iter=1,
            random_state=0,
        ),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_weights_that_are_no_counts(model):
    """Weights that sum to one say next to nothing; weights of mean one are right.

    Wrong variants: two whole rows warn; the number of rows for the sum of weights.
    """
    X, y = small(40)
    with pytest.warns(SkviWarning, match="weights of 40 rows sum to 1.*their mean"):
        model.fit(X, y, np.full(40, 1 / 40))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SkviWarning)
        warnings.filterwarnings("ignore", MEDIANS, SkviWarning)
        model.fit(X, y, np.full(40, 1.0))
        model.fit(X, y, (np.arange(40) < 2) * 1.0)


OTHER_CONTAINERS = {
    "dict": (lambda X, y: {"a": X[:, 0]}, "pandas.DataFrame"),
    "dataset": (
        lambda X, y: TensorDataset(torch.tensor(X), torch.tensor(y)),
        "np.stack, zip",
    ),
    "loader": (
        lambda X, y: DataLoader(TensorDataset(torch.tensor(X), torch.tensor(y))),
        "torch.cat",
    ),
}


@pytest.mark.parametrize("kind", OTHER_CONTAINERS)
def test_other_containers_name_the_way_to_arrays(kind):
    """Which leads there. Wrong variant: float() argument must be a string."""
    X, y = np.arange(12.0).reshape(6, 2), np.arange(6.0)
    make, way = OTHER_CONTAINERS[kind]
    for model in (BayesianLinearRegression(), BayesianMLPRegressor()):
        for target in (y, None):
            with pytest.raises(TypeError, match=re.escape(way)):
                model.fit(make(X, y), target)
    if kind == "dataset":
        found = map(np.stack, zip(*make(X, y), strict=True))
    elif kind == "loader":
        found = (torch.cat(parts) for parts in zip(*make(X, y), strict=True))
    else:
        return
    for array, expected in zip(found, (X, y), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_label_matrices_name_the_way():
    """Wrong variant: y should be a 1d array."""
    X, labels = np.arange(12.0).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2])
    one_hot = np.eye(3)[labels]
    several = np.maximum(one_hot, one_hot[::-1])
    for model in (BayesianLogisticRegression(), BayesianMLPClassifier()):
        with pytest.raises(ValueError, match=r"one-hot.*y\.argmax\(axis=1\)"):
            model.fit(X, one_hot)
        for y in (several, [["a", "b"], ["c"]] * 3, one_hot + 1):
            with pytest.raises(ValueError, match="MultiOutputClassifier"):
                model.fit(X, y)


@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize(
    "model",
    [
        BayesianLinearRegression(),
        BayesianLogisticRegression(prior="normal"),
        BayesianPoissonRegressor(),
        BayesianMLPRegressor(hidden_layer_sizes=2, max_iter=2, random_state=0),
        BayesianChangepointDetector(),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_are_arrays(model, dispatch):
    """Wrong variant: scikit-learn asks torch for a dtype of numpy."""

    def answer(X, y):
        model.fit(X, y)
        is_series = hasattr(model, "log_densities_")
        return model.log_densities_ if is_series else model.predict_log_density(X, y)

    data = small(40)
    expected = answer(*data)
    with sklearn.config_context(array_api_dispatch=dispatch):
        found = answer(*map(torch.from_numpy, data))
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_text_is_named_by_its_column(frame):
    """Wrong variant: scikit-learn names the text alone."""
    columns = {"size": [1.0, 2.0, 3.0], "city": ["Rome", "Bari", "Rome"]}
    X, y = frame(columns | {"code": ["1", "2", "3"]}), [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match=r"text in 1 column.*'city'.*OneHotEncoder"):
        BayesianLinearRegression().fit(X, y)
