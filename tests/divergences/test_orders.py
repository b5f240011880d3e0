"""Orders of the alpha-, beta- and gamma-divergence: integrals, limits, ranges."""

import mpmath
import pytest
import torch

from skvi.base import NormalForm
from skvi.divergences import (
    AlphaDivergence,
    BetaDivergence,
    FDivergence,
    GammaDivergence,
    JeffreysDivergence,
    KLDivergence,
    RenyiDivergence,
)
from skvi.exceptions import IncompatibleComponentsError
from tests.divergences.normals import Prior

NEGATIVE, WITHIN, ABOVE = (-0.2,), (0.05, 0.4, 0.7), (1.05, 1.4, 1.9)
RATIOS, POWERS = (AlphaDivergence, RenyiDivergence), (BetaDivergence, GammaDivergence)
CASES = [(c, o) for c in RATIOS for o in NEGATIVE + WITHIN + ABOVE]
CASES += [(c, o) for c in POWERS for o in WITHIN + ABOVE]
every_case = pytest.mark.parametrize(("kind", "order"), CASES)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def integrands(kind, order, log_q, log_pi):
    """What is integrated, at points: q^order and pi^order, or their product alone."""
    if kind in RATIOS:
        return (torch.exp(order * log_q + (1 - order) * log_pi),)
    powers = (order * log_q).exp(), (order * log_pi).exp()
    return *powers, torch.exp(log_q + (order - 1) * log_pi)


def combine(kind, order, integrals, log):
    """The definition of a divergence in its integrals."""
    k = order * (order - 1)
    if kind is AlphaDivergence:
        return (integrals[0] - 1) / k
    if kind is not BetaDivergence:
        integrals = [log(i) for i in integrals]
    if kind is RenyiDivergence:
        return integrals[0] / k
    own, prior, cross = integrals
    return (own + (order - 1) * prior - order * cross) / k


@every_case
@pytest.mark.parametrize("width", [0.6, 0.95, 1.05])
def test_one_dimension_against_quadrature(kind, order, width, integrate):
    """Every order, also by the limits' branches.

    Wrong variants: beta without the factor of its middle term; gamma with 1/gamma
    only; alpha in the scaling of Amari.
    """
    q, pi = (
        NormalForm(tensor(0.4), tensor(width)),
        NormalForm(tensor(-0.3), tensor(1.1)),
    )

    def parts(t):
        logs = q.log_prob(t[:, None]), pi.log_prob(t[:, None])
        return integrands(kind, order, *logs)

    integrals = [
        integrate(lambda t, i=i: parts(t)[i], -60, -15, 0, 15, 60)
        for i in range(1 if kind in RATIOS else 3)
    ]
    value = kind(order).closed_form(q, Prior(pi))
    expected = combine(kind, order, integrals, torch.log)
    torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-11)


DELTAS = [1.1e-2, -1.1e-2, 1e-5, 1.01e-7, -0.99e-7, 1e-13, 0]


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("width", [0.1, 0.99, 1.7])
@pytest.mark.parametrize("kind", RATIOS + POWERS)
def test_near_the_limit_kl(kind, delta, width):
    """Against fifty digits. Wrong variant: the plain formula, which cancels."""
    order = 1 + delta
    q, pi = NormalForm(tensor(0.3), tensor(width)), NormalForm(tensor(0.0), tensor(1.2))
    value = float(kind(order).closed_form(q, Prior(pi)))
    if delta == 0:
        assert value == pytest.approx(
            float(KLDivergence().closed_form(q, Prior(pi))), rel=1e-12
        )
        return
    with mpmath.workdps(50):
        c, m = mpmath.mpf(order), mpmath.mpf(0.3)
        s, t = mpmath.mpf(width) ** 2, mpmath.mpf(1.2) ** 2

        def integral(a, b):
            mixed = a * t + b * s
            norms = (1 - a) * mpmath.log(s) + (1 - b) * mpmath.log(t)
            powers = (1 - a - b) * mpmath.log(2 * mpmath.pi)
            log = (powers + norms - mpmath.log(mixed) - a * b * m**2 / mixed) / 2
            return mpmath.exp(log)

        pairs = [(c, 1 - c)] if kind in RATIOS else [(c, 0), (0, c), (1, c - 1)]
        found = [integral(*pair) for pair in pairs]
        expected = float(combine(kind, c, found, mpmath.log))
    assert value == pytest.approx(expected, rel=1e-6, abs=1e-9)


EDGES = [(kind(1.5), 3, 1) for kind in RATIOS]
EDGES += [(kind(-0.5), 1 / 3, -1) for kind in RATIOS]
EDGES += [(BetaDivergence(0.75), 4, 1), (GammaDivergence(0.5), 2, 1)]


GENERATORS = {
    "hellinger": lambda t: (t.sqrt() - 1) ** 2,
    "jensen_shannon": lambda t: 0.5 * (t * t.log() - (t + 1) * ((t + 1) / 2).log()),
    "total_variation": lambda t: 0.5 * (t - 1).abs(),
    "chi2": lambda t: (t - 1) ** 2,
}
KNOWN = [
    (lambda t: t * t.log(), KLDivergence()),
    (lambda t: -t.log(), AlphaDivergence(0)),
    (lambda t: (t - 1) * t.log(), JeffreysDivergence()),
    ("hellinger", AlphaDivergence(0.5, joint=True)),
    ("chi2", AlphaDivergence(2, joint=True)),
]


@pytest.fixture
def logs(make_normal, generator):
    """Log densities at 10^5 draws of q, and both normals."""
    q, pi = make_normal(2, "full", 1, 0.8), make_normal(2, "diag", 2, 0.9)
    eps = torch.randn(10**5, 2, generator=generator, dtype=torch.float64)
    theta = q.transform(eps)
    return q, pi, q.log_prob(theta), pi.log_prob(theta)


@pytest.mark.parametrize(("generator_", "closed"), KNOWN)
def test_f_divergences_that_are_known(generator_, closed, logs, z_score):
    """Wrong variants: pi / q for q / pi; the mean over draws of the prior."""
    q, pi, log_q, log_pi = logs
    spec = FDivergence(generator_)
    factor = {"hellinger": 0.5, "chi2": 2.0}.get(generator_, 1.0)
    expected = factor * KLDivergence().closed_form(pi, Prior(q))
    if not isinstance(closed, AlphaDivergence) or closed.alpha != 0:
        expected = factor * closed.closed_form(q, Prior(pi))
    values = torch.vmap(lambda a, b: spec._at(a - b))(log_q[:, None], log_pi[:, None])
    assert z_score(values[:, 0], expected) < 5
    assert z_score(values[:, 0], 1.5 * expected) > 5
    assert float(spec.monte_carlo(log_q, log_pi)) == pytest.approx(float(values.mean()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "generator_", [*GENERATORS, *GENERATORS.values(), lambda t: t * t.log()]
)
def test_extreme_ratios_are_finite(generator_, dtype):
    """By tangents in the log ratio; KL is reached exactly. Wrong variant: a clamp."""
    ratio = torch.tensor([-2000.0, -1.0, 1.0, 2000.0], dtype=dtype, requires_grad=True)
    values = FDivergence(generator_)._weighted(ratio)
    (gradient,) = torch.autograd.grad(values.sum(), ratio)
    assert torch.isfinite(torch.stack([values, gradient])).all()
    kl = FDivergence(lambda t: t * t.log())._weighted(ratio)
    torch.testing.assert_close(kl, ratio, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    "f", [lambda t: t.log(), lambda t: t * t, lambda t: -((t - 1) ** 2)]
)
def test_functions_that_are_no_generators(f):
    with pytest.raises(IncompatibleComponentsError, match=r"convex with f\(1\) = 0"):
        FDivergence(f).check_regularizer()


def test_functions_that_are_generators():
    for f in [*GENERATORS, *GENERATORS.values()]:
        FDivergence(f).check_regularizer()
