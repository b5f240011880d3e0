"""Displays of weights and posteriors: the artists hold the right numbers."""

import math

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.integrate import cumulative_trapezoid
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

from skvi._sampling._importance import pareto_khat
from skvi.evidence._estimates import summarize_weights
from skvi.linear_model import BayesianLinearRegression, BayesianLogisticRegression
from skvi.plotting import PosteriorDisplay, WeightsDisplay
from skvi.priors import ARD, Laplace, Normal

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    return X, (X[:, 0] + rng.normal(size=60) > 0).astype(int)


@pytest.fixture(scope="module")
def bounds(data):
    model = BayesianLogisticRegression(prior="normal").fit(*data)
    return model.evidence_bounds(*data, n_draws=4096, random_state=0)


def texts(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


# Weights


def test_summary_of_known_weights():
    """Wrong variant: the upper side's weights not inverted."""
    generator = torch.Generator().manual_seed(0)
    forward = torch.randn(10_000, generator=generator).double() - 5
    reverse = torch.randn(64, 100, generator=generator).double() - 4
    found = summarize_weights(forward, reverse)
    lower, upper = found["lower"], found["upper"]
    assert (lower.n_draws, upper.n_draws) == (10_000, 6400)
    assert lower.khat == pareto_khat(forward)
    assert upper.khat == pareto_khat(-reverse.flatten())
    w = torch.softmax(-reverse.flatten(), 0).sort(descending=True).values.numpy()
    np.testing.assert_allclose(upper.tail, w[upper.ranks - 1])
    assert upper.ess == pytest.approx(1 / (w**2).sum())
    assert max(len(s.tail) for s in found.values()) <= 512


@pytest.mark.parametrize("value", [0.0, -math.inf, math.nan])
def test_summary_of_constant_and_impossible_weights(value):
    forward = torch.full((100,), -3.0)
    forward[:5] = value if value else -3.0
    found = summarize_weights(forward, forward[None])
    assert found["lower"].ess == pytest.approx(95 if value else 100)
    WeightsDisplay(found).plot().figure_.canvas.draw()


def test_weights_on_the_artists(bounds):
    tail = WeightsDisplay.from_bounds(bounds)
    for side in ("lower", "upper"):
        found = bounds.weights[side]
        np.testing.assert_array_equal(tail.lines_[side].get_xdata(), found.ranks)
        np.testing.assert_array_equal(tail.lines_[side].get_ydata(), found.tail)
        fit = tail.fits_[side].get_ydata()
        # The fitted tail meets the observed one in the middle and at the cutoff.
        half = np.searchsorted(found.ranks, found.ranks[-1] / 2)
        assert fit[half] == pytest.approx(found.tail[half], rel=0.1)
        assert fit[-1] == pytest.approx(found.tail[-1], rel=0.1)
    assert texts(tail.ax_)[0].startswith("lower side: fine; the largest of 4,096")


def test_weights_of_estimators_and_errors(data):
    fitted = BayesianLogisticRegression(prior="normal").fit(*data)
    display = WeightsDisplay.from_estimator(
        fitted, *data, n_draws=512, random_state=0, plot_kwargs={"color": "k"}
    )
    assert display.lines_["lower"].get_color() == "k"
    legend = WeightsDisplay(display.weights, reliable=False).plot().ax_.get_legend()
    assert legend.get_title().get_text() == "The bounds are not reliable."
    X, y = data
    exact = BayesianLinearRegression(prior="normal", noise_scale=1.0).fit(X, y)
    with pytest.raises(ValueError, match=r"no weights to judge: they are exact.*auto"):
        WeightsDisplay.from_estimator(exact, X, y)
    with pytest.raises(NotFittedError):
        WeightsDisplay.from_estimator(BayesianLogisticRegression(), *data)


# Posterior against prior


def areas(display):
    return [
        np.trapezoid(values, display.grid)
        for values in (*display.posterior, *display.prior)
    ]


@pytest.mark.parametrize(
    ("prior", "density"),
    [
        (Normal(0.7), stats.norm(0, 0.7)),
        (Laplace(0.5), stats.laplace(0, 0.5)),
        (ARD(1.5, 2.0), stats.t(3, 0, math.sqrt(2.0 / 1.5))),
    ],
)
@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::skvi.exceptions.SkviWarning",
)
def test_densities_of_classifiers(data, prior, density):
    """In units of X. Wrong variants: the variance for the standard deviation; log
    densities; priors in the units of the fit.
    """
    model = BayesianLogisticRegression(prior=prior, max_iter=5, random_state=0)
    display = PosteriorDisplay.from_estimator(model.fit(*data))
    unit = np.broadcast_to(model.posterior_.units.x_scale, len(model.coef_[0]))
    mean, std = model.coef_[0], model.coef_std_[0]
    for i in range(2):
        expected = stats.norm(mean[i], std[i]).pdf(display.grid)
        np.testing.assert_allclose(display.posterior[i], expected, atol=1e-12)
        wanted = unit[i] * density.pdf(unit[i] * display.grid)
        np.testing.assert_allclose(display.prior[i], wanted)
    assert areas(display)[:2] == pytest.approx([1, 1], abs=1e-4)


def test_a_prior_of_each_coefficient_is_drawn(data):
    """Also of "auto" with another divergence. Wrong variant: in units of the fit."""
    for parts in ({"prior": Normal([2.0, 0.5], [0.0, 1.0])}, {"divergence": "renyi"}):
        model = BayesianLogisticRegression(**parts).fit(np.array(data[0]) * 3, data[1])
        display, prior = PosteriorDisplay.from_estimator(model), model.prior_["coef"]
        loc = np.broadcast_to(prior.loc, 2)
        for values, at, width in zip(display.prior, loc, prior.scale, strict=True):
            np.testing.assert_allclose(values, stats.norm(at, width).pdf(display.grid))


@pytest.mark.parametrize("scale", [1.0, "learn"])
def test_densities_of_regressions_are_in_units_of_y(data, scale):
    """y a thousand times as large: both densities are. Wrong variant: prior in the
    units of the fit."""
    X, y = data
    y = 1000 * (X[:, 0] - 0.5 * X[:, 1] + 0.1 * y)
    model = BayesianLinearRegression(prior=Normal(scale)).fit(X, y)
    display = PosteriorDisplay.from_estimator(model)
    width = (scale if scale != "learn" else model.prior_scale_) * y.std()
    for values in display.prior:
        np.testing.assert_allclose(values, stats.norm(0, width).pdf(display.grid))
    peak = display.grid[display.posterior.argmax(1)]
    step = np.diff(display.grid)[0]
    np.testing.assert_allclose(peak, model.coef_, atol=step)
    # Against draws, which are in units of y by themselves.
    draws = model.sample_posterior(4000, random_state=0)["coef"]
    mean = np.trapezoid(display.posterior * display.grid, display.grid)
    assert np.abs(draws.mean(0) - mean).max() < 5 * draws.std(0).max() / 60


@pytest.mark.parametrize("posterior", ["full_rank", "exact"])
def test_priors_at_inferred_scales(data, posterior):
    """As wide as what was inferred. Wrong variant: the precision for the variance."""
    X, y = data
    y = 1000 * (X[:, 0] - 0.5 * X[:, 1] + 0.1 * y)
    model = BayesianLinearRegression(posterior=posterior).fit(X, y)
    display = PosteriorDisplay.from_estimator(model)
    for values, precision in zip(display.prior, model.lambda_, strict=True):
        peak = stats.norm.pdf(0) * math.sqrt(precision)
        assert values.max() == pytest.approx(peak, rel=0.2)


def test_a_posterior_as_prior_is_drawn(data):
    X, y = data
    first = BayesianLogisticRegression(fit_intercept=False).fit(X[:30], y[:30])
    second = BayesianLogisticRegression(
        fit_intercept=False, prior=first.posterior_
    ).fit(X[30:], y[30:])
    display = PosteriorDisplay.from_estimator(second)
    for i in range(2):
        expected = stats.norm(first.coef_[0, i], first.coef_std_[0, i])
        np.testing.assert_allclose(display.prior[i], expected.pdf(display.grid))


def test_rows_and_choices():
    rng = np.random.default_rng(0)
    names = [f"f{i}" for i in range(15)]
    X = pd.DataFrame(rng.normal(size=(80, 15)), columns=names)
    y = (X["f3"] + X["f7"] + rng.normal(size=80) > 0).astype(int)
    # Under an unknown scale the prior has a spike; see below.
    model = BayesianLogisticRegression(prior="normal").fit(X, y)
    display = PosteriorDisplay.from_estimator(model)
    assert len(display.names) == len(display.priors_) == 12
    assert {"f3", "f7"} < set(display.names)
    chosen = PosteriorDisplay.from_estimator(model, coefficients=["f7", 3])
    assert chosen.names == ["f7", "f3"]
    labels = [label.get_text() for label in chosen.ax_.get_yticklabels()]
    assert labels == ["f7", "f3"]
    assert chosen.ax_.get_ylim()[0] > chosen.ax_.get_ylim()[1]
    # One scale for both densities of a row, which they do not leave.
    for row in range(2):
        drawn = row - chosen.priors_[row].get_ydata()
        ratio = drawn / chosen.prior[row]
        np.testing.assert_allclose(ratio, ratio[0])
        top = row - chosen.posteriors_[row].get_paths()[0].vertices[:, 1].min()
        assert top == pytest.approx(ratio[0] * chosen.posterior[row].max())
        assert top < 1
    for wrong in (["nothing"], [15], []):
        with pytest.raises(ValueError, match="coefficient"):
            PosteriorDisplay.from_estimator(model, coefficients=wrong)


def test_poles_of_priors_leave_their_rows_at_the_top(data):
    """Wrong variants: a flat top, a pole that enters the next row."""
    model = BayesianLogisticRegression(prior="horseshoe").fit(*data)
    display = PosteriorDisplay.from_estimator(model)
    for row, line in enumerate(display.priors_):
        visible = line.get_clip_box().transformed(display.ax_.transData.inverted())
        assert row - 1 < visible.ymin < row < visible.ymax
        x, y = line.get_data()
        assert y[x == 0.0] < visible.ymin
        assert (y[np.abs(x) > 0.1 * np.ptp(x)] > visible.ymin).all()
    display.figure_.canvas.draw()


def test_posterior_of_wrong_estimators(data):
    X, y = data
    with pytest.raises(NotFittedError):
        PosteriorDisplay.from_estimator(BayesianLogisticRegression())
    with pytest.raises(TypeError, match="has no coef_std_"):
        PosteriorDisplay.from_estimator(LogisticRegression().fit(X, y))
    both = BayesianLinearRegression().fit(X, np.column_stack([y, -y]) + X)
    with pytest.raises(ValueError, match="one of `outputs_`"):
        PosteriorDisplay.from_estimator(both)


def mixture_density(model, row, column, grid):
    """Of a coefficient, from the fits at the scales of the prior."""
    q, found = model.posterior_, 0.0
    for weight, normal in zip(q.log_weights.exp(), q.normals(), strict=True):
        moments = q.layout.unpack(torch.stack([normal.mean, normal.variance]))
        mean, variance = moments["coef"][:, row, column].numpy()
        unit = q.units.x_scale[column]
        at = stats.norm(mean, math.sqrt(variance)).pdf(unit * grid)
        found = found + float(weight) * unit * at
    return found


def test_classes_lie_over_each_other():
    """Wrong variants: rows of another class; a choice that is not told; a normal."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    labels = np.array(["a", "b", "c"])[np.arange(80) % 3]
    model = BayesianLogisticRegression().fit(X, labels)
    display = PosteriorDisplay.from_estimator(
        model, coefficients=[1], classes=["c", "a"]
    )
    for k, row in enumerate([2, 0]):
        expected = mixture_density(model, row, 1, display.grid)
        np.testing.assert_allclose(display.posterior[k, 0], expected, atol=1e-12)
    assert texts(display.ax_) == [
        "class c",
        "class a",
        "prior at the inferred scale",
    ]
    label = display.ax_.get_xlabel()
    assert "1 of 2 coefficients" in label
    assert "2 of 3 classes" in label
    with pytest.raises(ValueError, match="classes must be"):
        PosteriorDisplay.from_estimator(model, classes=["d"])


def test_exact_posterior_and_inferred_prior_are_drawn():
    """The mixture over precisions, and the prior that they make.

    Wrong variants: a normal; the prior before the data, which cannot be seen.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(7, 2))
    y = 100 * X[:, 0] + 20 * rng.normal(size=7)
    model = BayesianLinearRegression().fit(X, y)
    display = PosteriorDisplay.from_estimator(model)
    grid = display.grid
    draws = model.sample_posterior(40_000, random_state=0)["coef"]
    for density, some in zip(display.posterior, draws.T, strict=True):
        below = np.interp(0.0, grid, cumulative_trapezoid(density, grid, initial=0.0))
        assert below == pytest.approx((some < 0).mean(), abs=0.02)
    heights = display.prior.max(1) / display.posterior.max(1)
    assert (heights > 0.02).all()
    spread = np.sqrt(np.trapezoid(display.prior[0] * grid**2, grid))
    assert 10 < spread < 400
    assert "prior at the inferred scale" in texts(display.ax_)
