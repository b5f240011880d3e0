"""Where fits begin, what they take as a density, and what Ctrl-C leaves."""

import numpy as np
import pytest
import torch
from torch.distributions import Beta, Normal

from skvi.inference import VariationalInference

TWO = {"a": (), "b": ()}
Y = torch.linspace(0.0, 2.0, 5, dtype=torch.float64)


def tilted(p):
    """Normal: mean 0 and 1, deviation 1 and .5."""
    return Normal(0.0, 1.0).log_prob(p["a"]) + Normal(1.0, 0.5).log_prob(p["b"])


class Counted:
    """A density that Ctrl-C comes to in one of its calls."""

    def __init__(self, last=None):
        self.n_calls, self.last = 0, last

    def __call__(self, p):
        self.n_calls += 1
        if self.n_calls == self.last:
            raise KeyboardInterrupt
        return tilted(p)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "posterior",
    ["full_rank", "mean_field", pytest.param("flow", marks=pytest.mark.slow)],
)
def test_ctrl_c_keeps_the_best_so_far(posterior):
    """At ten calls of a density: usable, near the truth, or fitted not at all.

    Wrong variant: without the normals of paths, the first half keeps nothing.
    """
    params = {"posterior": posterior, "random_state": 0, "max_iter": 2}
    whole = Counted()
    VariationalInference(whole, TWO, **params).fit()
    kept = []
    for last in np.linspace(1, whole.n_calls, 10).astype(int):
        vi = VariationalInference(Counted(last), TWO, **params)
        with pytest.raises(KeyboardInterrupt) as caught:
            vi.fit()
        kept.append(hasattr(vi, "posterior_"))
        assert ("was kept" if kept[-1] else "nothing is fitted") in str(caught.value)
        if kept[-1]:
            assert not vi.converged_
            assert vi.diagnostics_["ending"] == "interrupted"
            assert vi.mean_["b"] == pytest.approx(1.0, abs=0.1)
            assert vi.lower_bound_ == pytest.approx(0.0, abs=0.05)
            assert "khat" not in str(vi.summary())
    assert not kept[0]  # the checks of the density
    assert sum(kept) >= 5


def test_a_random_density_is_named():
    """Wrong variant: without the second call it "treats draws together".

    The message names what takes minibatches.
    """
    g = torch.Generator().manual_seed(0)

    def minibatch(p):
        rows = Y[torch.randperm(5, generator=g)[:2]]
        return tilted(p) + 2.5 * Normal(p["a"][:, None], 1.0).log_prob(rows).sum(1)

    with pytest.raises(ValueError, match=r"is random: two calls.*pass batch_size"):
        VariationalInference(minibatch, TWO).fit()


def test_the_start_is_where_it_begins():
    """A density that is 0 near 0; wrong variant: paths begin around 0 nevertheless."""

    def far(p):
        x = p["x"]
        inside = Normal(500.0, 2.0).log_prob(x).sum(1)
        return torch.where((x - 500).abs().amax(1) < 100, inside, -torch.inf)

    vi = VariationalInference(far, {"x": (2,)}, start={"x": [480, 520]}, random_state=0)
    vi.fit()
    np.testing.assert_allclose(vi.mean_["x"], 500.0, atol=1e-3)
    assert vi.lower_bound_ == pytest.approx(0.0, abs=1e-4)
    with pytest.raises(ValueError, match="NaN or infinite at all"):
        vi.set_params(start=None).fit()


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ({"a": 0.0}, "start must name all"),
        ({"a": 0.0, "s": [1.0, 1.0]}, "must have the shape"),
        ({"a": 0.0, "s": -1.0}, "inside the support"),
    ],
)
def test_wrong_starts_are_named(start, words):
    vi = VariationalInference(tilted, {"a": (), "s": ()}, {"s": "positive"})
    with pytest.raises(ValueError, match=words):
        vi.set_params(start=start).fit()


def test_a_density_of_one_draw():
    """`vectorize` gives the fit of the same density of all draws, digits included.

    Wrong variant: data that are mapped over as well.
    """

    def one(p, y):
        return (
            Beta(0.5, 2.0).log_prob(p["q"]) + Normal(p["m"][0], 1.0).log_prob(y).sum()
        )

    def every(p, y):
        rows = Normal(p["m"], 1.0).log_prob(y).sum(1)
        return Beta(0.5, 2.0).log_prob(p["q"]) + rows

    found = [
        VariationalInference(
            density,
            {"q": (), "m": (1,)},
            {"q": "unit_interval"},
            vectorize=density is one,
            start={"q": 0.3, "m": [0.5]},
            posterior="mean_field",
            random_state=0,
        ).fit(Y)
        for density in (one, every)
    ]
    assert found[0].lower_bound_ == pytest.approx(found[1].lower_bound_, abs=1e-6)
    assert found[0].mean_["q"] == pytest.approx(found[1].mean_["q"], abs=1e-6)
    assert found[0].diagnostics_["message"] == found[1].diagnostics_["message"]


def test_a_summary_has_the_means_of_the_fit():
    """Wrong variant: those of the draws of its intervals."""
    vi = VariationalInference(tilted, TWO, random_state=0).fit()
    table = vi.summary()
    np.testing.assert_allclose(table.mean, [vi.mean_["a"], vi.mean_["b"]], rtol=1e-12)
    np.testing.assert_allclose(table.std, [vi.std_["a"], vi.std_["b"]], rtol=1e-12)
    assert "khat of density / posterior" in str(table)
