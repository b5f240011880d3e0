"""Callbacks, printed lines, warm starts and minibatches."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

from skvi.linear_model import BayesianLogisticRegression
from skvi.neural_network import BayesianMLPClassifier, BayesianMLPRegressor
from skvi.objectives import ELBO
from skvi.solvers import Stochastic, _moment_matching

quick = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
SMALL = {
    "hidden_layer_sizes": (3,),
    "max_iter": 4,
    "solver": Stochastic(n_draws=2),
    "random_state": 0,
}
MODELS = {
    "natural_gradient": BayesianLogisticRegression(prior="normal", tol=1e-11),
    "eubo": BayesianLogisticRegression(
        objective="eubo", random_state=0, prior="normal"
    ),
    "renyi": BayesianLogisticRegression(
        objective="renyi",
        posterior="mean_field",
        max_iter=10,
        random_state=0,
        prior="normal",
    ),
    "stochastic": BayesianLogisticRegression(
        solver=Stochastic(n_draws=2), max_iter=3, random_state=0, prior="normal"
    ),
    "minibatches": BayesianLogisticRegression(
        solver=Stochastic(batch_size=50), max_iter=4, random_state=0, prior="normal"
    ),
    "mlp_regressor": BayesianMLPRegressor(
        skip_connection=False,
        likelihood="gaussian",
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        **SMALL,
    ),
    "mlp_classifier": BayesianMLPClassifier(
        skip_connection=False, divergence="kl", posterior="mean_field", **SMALL
    ),
    "mlp_eubo": BayesianMLPRegressor(
        skip_connection=False,
        likelihood="gaussian",
        activation="softplus",
        divergence="kl",
        posterior="mean_field",
        objective="eubo",
        **SMALL,
    ),
}
models = pytest.mark.parametrize("name", list(MODELS))


def make_data():
    X, y = load_iris(return_X_y=True)
    return scale(X[50:]), y[50:]


X, Y = make_data()


def state_of(model):
    return model.posterior_.params.numpy()


def setting(parameter, name):
    """A parameter of the stochastic solver, which networks have as well."""
    return parameter if name.startswith("mlp") else f"solver__{parameter}"


def fit(name, *callbacks, data=(X, Y), **params):
    model = clone(MODELS[name]).set_params(**params)
    if callbacks:
        model.set_callbacks(*callbacks)
    return model.fit(*data)


def callbacks():
    """scikit-learn's callbacks, which it has from version 1.9."""
    return pytest.importorskip("sklearn.callback")


class Recorder:
    """A callback that counts iterations, and stops or raises after some of them."""

    def __init__(self, stop_after=None, raise_after=None):
        self.stop_after, self.raise_after = stop_after, raise_after
        self.n_tasks, self.seen = 0, []

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context, *, X=None, fitted_estimator=None):
        if context.task_name != "iteration":
            return False
        self.n_tasks += 1
        self.seen.append(fitted_estimator.predict(X))
        if self.n_tasks == self.raise_after:
            raise KeyboardInterrupt
        return self.n_tasks == self.stop_after


# --- callbacks ------------------------------------------------------------------------


@quick
@models
def test_monitored_scores(name):
    """One for every iteration, and the last is the fitted model's.

    Wrong variants: the posterior of the iteration before (or its parameters before
    averaging) is scored; moment matching reports nothing.
    """
    metric = "neg_log_loss"
    if name in ("mlp_regressor", "mlp_eubo"):
        metric = "neg_root_mean_squared_error"
    monitor = callbacks().ScoringMonitor(scoring=metric)
    model = fit(name, monitor)
    rows = monitor.get_logs().data
    scores = [row[metric] for row in rows if row["task_name"] == "iteration"]
    assert len(scores) == model.n_iter_ == len(model.loss_curve_)
    assert np.isfinite(scores).all()
    assert scores[-1] == pytest.approx(get_scorer(metric)(model, X, Y), rel=1e-6)
    if len(scores) > 2:
        assert len(set(scores)) > 1


@pytest.mark.parametrize("name", ["natural_gradient", "mlp_classifier"])
@quick
def test_monitored_scores_are_weighted(name):
    """Wrong variant: the weights of the fit are not handed to the callback."""
    monitor = callbacks().ScoringMonitor(scoring="accuracy")
    weight = np.where(Y == 1, 5.0, 0.5)
    model = fit(name, monitor, data=(X, Y, weight))
    accuracy = get_scorer("accuracy")
    score = monitor.get_logs().data[-1]["accuracy"]
    assert score == accuracy(model, X, Y, sample_weight=weight)
    assert score != accuracy(model, X, Y)


@quick
@models
def test_callbacks_do_not_change_the_fit(name):
    """To the last bit. Wrong variant: predictions of a callback that take draws from
    the generator of the fit, or leave the parameters in the middle of a sweep."""
    callbacks()
    watched, alone = fit(name, Recorder()), fit(name)
    assert np.array_equal(state_of(watched), state_of(alone))
    assert watched.lower_bound_ == alone.lower_bound_
    assert np.array_equal(watched.loss_curve_, alone.loss_curve_)


@pytest.mark.parametrize(
    "name", ["natural_gradient", "renyi", "stochastic", "minibatches", "mlp_classifier"]
)
def test_a_callback_stops_the_fit(name):
    """Quietly, with the state that it saw. Wrong variants: a warning; one more step."""
    callbacks()
    recorder = Recorder(stop_after=2)
    model = fit(name, recorder)
    assert recorder.n_tasks == model.n_iter_ == len(model.loss_curve_) == 2
    assert not model.converged_
    assert model.diagnostics_["ending"] == "stopped"
    assert np.array_equal(model.predict(X), recorder.seen[-1])
    assert np.isfinite(model.lower_bound_)
    assert np.isfinite(model.objective_value_)


@quick
def test_progress_bar(capsys):
    """On its own, in a pipeline, and in a search."""
    pytest.importorskip("rich")
    make = callbacks().ProgressBar
    for name in ("natural_gradient", "renyi", "mlp_classifier"):
        fit(name, make())
        assert type(MODELS[name]).__name__ in capsys.readouterr().out
    steps = StandardScaler(), clone(MODELS["natural_gradient"])
    pipeline = make_pipeline(*steps)
    pipeline.set_callbacks(make(max_propagation_depth=None)).fit(X, Y)
    assert "BayesianLogisticRegression" in capsys.readouterr().out
    grid = {"bayesianlogisticregression__posterior": ["full_rank", "mean_field"]}
    search = GridSearchCV(make_pipeline(*steps), grid, cv=2)
    search.set_callbacks(make(max_propagation_depth=None)).fit(X, Y)
    assert "GridSearchCV" in capsys.readouterr().out
    alone = GridSearchCV(make_pipeline(*steps), grid, cv=2).fit(X, Y)
    assert search.best_score_ == alone.best_score_


def test_callbacks_do_not_change_what_is_kept(monkeypatch):
    """Where the draws are too poor, and what the callback saw is given up.

    Wrong variant: the posterior that the callback was shown last stays.
    """
    callbacks()
    monkeypatch.setattr(_moment_matching, "MAX_ERROR", 0.0)
    with pytest.warns(ConvergenceWarning, match="solution was kept"):
        watched = fit("renyi", Recorder())
    with pytest.warns(ConvergenceWarning, match="solution was kept"):
        alone = fit("renyi")
    assert np.array_equal(state_of(watched), state_of(alone))


# --- printed lines --------------------------------------------------------------------


@quick
@models
def test_printed_lines(name, capsys):
    """2: every iteration and the end. 1: at most that. 0: nothing."""
    model = fit(name, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_ + 1
    assert all(line.startswith(f"[{type(model).__name__}]") for line in lines)
    assert f"{model.loss_curve_[0]:.4f} nats" in lines[0]
    assert f"{model.n_iter_} iterations" in lines[-1]
    assert f"{model.lower_bound_:.4f} nats" in lines[-1]
    fit(name, verbose=1)
    some = capsys.readouterr().out.splitlines()
    assert 2 <= len(some) <= len(lines)
    assert some[0] == lines[0]
    fit(name)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


# --- warm starts ----------------------------------------------------------------------


@pytest.mark.parametrize("posterior", ["full_rank", "mean_field"])
def test_warm_start_is_already_there(posterior):
    """Wrong variant: the start is the mode, whatever `warm_start` says."""
    model = BayesianLogisticRegression(
        posterior=posterior, warm_start=True, prior="normal", tol=1e-8
    ).fit(X, Y)
    cold = model.n_iter_, model.lower_bound_
    model.fit(X, Y)
    assert model.n_iter_ < cold[0]
    assert model.converged_
    assert model.lower_bound_ == pytest.approx(cold[1], abs=1e-5)
    # Other data of the same shape: the prior is still the one that was given.
    other = clone(model).fit(X[::2], Y[::2])
    model.fit(X[::2], Y[::2])
    assert model.lower_bound_ == pytest.approx(other.lower_bound_, abs=1e-4)
    with pytest.raises(ValueError, match="warm_start=True continues from"):
        model.fit(X[:, :2], Y)
    model.set_params(warm_start=False).fit(X[:, :2], Y)
    assert model.coef_.shape == (1, 2)


# --- minibatches ----------------------------------------------------------------------


def test_minibatches_reach_the_optimum(global_random_seed):
    """Within 0.05 nat of the natural gradient's bound. Wrong variant: the loss of a
    minibatch is not scaled up to all rows."""
    exact = BayesianLogisticRegression(posterior="mean_field", prior="normal").fit(X, Y)
    model = BayesianLogisticRegression(
        posterior="mean_field",
        solver=Stochastic(batch_size=25),
        max_iter=800,
        random_state=global_random_seed,
        prior="normal",
    )
    model.fit(X, Y)
    assert model.diagnostics_["solver"] == "stochastic"
    assert model.diagnostics_["unit"] == "epoch"
    error = 5 * model.lower_bound_se_
    assert abs(model.lower_bound_ - exact.lower_bound_) < 0.05 + error
    np.testing.assert_allclose(model.coef_, exact.coef_, atol=0.1)
    np.testing.assert_allclose(model.coef_std_, exact.coef_std_, rtol=0.1)


@quick
@pytest.mark.parametrize("batch_size", [1, 7, 30, 99])
def test_every_row_once_per_epoch(batch_size, monkeypatch):
    """In batches of nearly equal size, in a new order each time.

    Wrong variant: the last batch, or rows that do not fill one, dropped.
    """
    seen, surrogate = [], ELBO.surrogate

    def record(self, target, posterior, divergence, rows, *args):
        seen.append(rows)
        return surrogate(self, target, posterior, divergence, rows, *args)

    monkeypatch.setattr(ELBO, "surrogate", record)
    model = BayesianLogisticRegression(
        solver=Stochastic(batch_size=batch_size),
        posterior="mean_field",
        max_iter=2,
        random_state=0,
        prior="normal",
    )
    model.fit(X, Y)
    per_epoch = -(-len(X) // batch_size)
    assert len(seen) >= 2 * per_epoch == model.n_iter_ * per_epoch
    seen = seen[: 2 * per_epoch]  # states may be compared after the training
    orders = [np.concatenate(seen[:per_epoch]), np.concatenate(seen[per_epoch:])]
    for order in orders:
        assert np.array_equal(np.sort(order), np.arange(len(X)))
    assert not np.array_equal(*orders)
    sizes = [len(rows) for rows in seen]
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1


@quick
def test_a_batch_of_all_rows_is_no_batch():
    """Wrong variant: the stochastic solver on one batch in another order."""
    for name in ("stochastic", "mlp_regressor"):
        size = setting("batch_size", name)
        full, default = fit(name, **{size: len(X)}), fit(name, **{size: 10**6})
        assert np.array_equal(state_of(full), state_of(default))
        if name != "mlp_regressor":
            assert np.array_equal(state_of(full), state_of(fit(name)))
    assert full.diagnostics_["unit"] == "sweep of 16 gradient steps"
    assert fit("mlp_regressor", batch_size=50).diagnostics_["unit"] == "epoch"


@quick
@pytest.mark.parametrize("method", ["importance", "tempering"])
def test_printed_stages_of_an_evidence(method, capsys):
    """Every stage with a share that grows; nothing without verbose."""
    model = fit("natural_gradient")
    silent = model.evidence_bounds(X, Y, method=method, random_state=0)
    assert capsys.readouterr().out == ""
    model.set_params(verbose=1)
    assert model.evidence_bounds(X, Y, method=method, random_state=0) == silent
    lines = capsys.readouterr().out.splitlines()
    assert all("] evidence, " in line and line.endswith("%") for line in lines)
    text = "\n".join(lines)
    stages = {
        "importance": ["warm-up of chains", "draws of chains"],
        "tempering": ["ladder of temperatures", "warm-up of tempered chains"],
    }[method]
    assert all(stage in text for stage in stages)
