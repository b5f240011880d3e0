"""Orders of the alpha-, beta- and gamma-divergence: integrals, limits, ranges."""

import math

import mpmath
import pytest
import torch
from sklearn.base import clone

from skvi.base import Layout, NormalForm
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
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.priors import Laplace, Normal
from skvi.priors._blocks import build_prior
from skvi.utils._validation import InvalidParameterError
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


@every_case
def test_joint_form_against_a_grid(kind, order, make_normal):
    """In two dimensions. Wrong variant: the sum over coordinates for a full q."""
    axis = torch.linspace(-45, 45, 361, dtype=torch.float64)
    theta = torch.cartesian_prod(axis, axis)
    spec = kind(order)
    if "joint" in spec.get_params():
        spec.set_params(joint=True)
    for shape in ("diag", "full"):
        q, pi = make_normal(2, shape, 1, 0.7), make_normal(2, "diag", 2, 1.1)
        parts = integrands(kind, order, q.log_prob(theta), pi.log_prob(theta))
        sums = [p.sum() * 0.25**2 for p in parts]
        expected = combine(kind, order, sums, torch.log)
        value = spec.closed_form(q, Prior(pi))
        torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-10)


@every_case
def test_factorized_normals_are_taken_by_coordinate(kind, order, make_normal):
    """The sum of the divergences of coordinates. Wrong variant: the joint form."""
    q, pi = make_normal(3, "diag", 1, 0.8), make_normal(3, "diag", 2, 1.1)
    spec = kind(order)
    each = [
        float(
            spec.closed_form(
                NormalForm(q.mean[i : i + 1], q.scale[i : i + 1]),
                Prior(NormalForm(pi.mean[i : i + 1], pi.scale[i : i + 1])),
            )
        )
        for i in range(3)
    ]
    value = float(spec.closed_form(q, Prior(pi)))
    assert value == pytest.approx(sum(each), rel=1e-12)
    if "joint" in spec.get_params():
        joint = clone(spec).set_params(joint=True).closed_form(q, Prior(pi))
        assert abs(float(joint) / value - 1) > 1e-3


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


@pytest.mark.parametrize("kind", RATIOS)
def test_order_zero_is_the_other_kl(kind, make_normal):
    q, pi = make_normal(2, "diag", 1), make_normal(2, "diag", 2)
    expected = float(KLDivergence().closed_form(pi, Prior(q)))
    for order, rel in [(0, 1e-10), (1e-13, 1e-10), (0.99e-7, 1e-5), (-1.01e-7, 1e-5)]:
        value = float(kind(order).closed_form(q, Prior(pi)))
        assert value == pytest.approx(expected, rel=rel)


EDGES = [(kind(1.5), 3, 1) for kind in RATIOS]
EDGES += [(kind(-0.5), 1 / 3, -1) for kind in RATIOS]
EDGES += [(BetaDivergence(0.75), 4, 1), (GammaDivergence(0.5), 2, 1)]


@pytest.mark.parametrize(("spec", "edge", "side"), EDGES, ids=repr)
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("low", [False, True])
def test_infinite_outside_the_range(spec, edge, side, joint, low):
    """var(q) / var(pi) at the edge, beyond it, and far beyond: inf, never NaN.

    Wrong variants: the log of a negative number; the ratio of another order.
    """
    assert spec.max_variance_ratio == pytest.approx(edge if side == 1 else math.inf)
    if "joint" in spec.get_params():
        spec = clone(spec).set_params(joint=joint)
    prior = Normal(2.0).build(Layout({"coef": (3,)}))
    for factor, is_finite in [(0.99, True), (1.01, False), (1e6, False)]:
        ratio = edge * factor**side
        variance = torch.full((3,), edge * 0.9**side, dtype=torch.float64)
        variance[1] = ratio
        q = NormalForm(tensor(0.1, 0.2, 0.3), 2 * variance.sqrt())
        if low:
            own = q.scale.square() * 0.75
            columns = 0.5 * torch.diag(q.scale)[:, 1:2]
            own[[0, 2]] = q.scale.square()[[0, 2]]
            q = NormalForm(q.mean, own.sqrt(), columns)
        value = spec.closed_form(q, prior)
        assert torch.isfinite(value) if is_finite else value == math.inf
        assert spec.terms(q, prior).value == pytest.approx(float(value), rel=1e-9)


def test_infinity_has_a_gradient():
    """A step of training ends there with a message.

    Wrong variant: a constant, on which automatic differentiation raises.
    """
    params = tensor(0.0, 0.0, 2.0, 0.0).requires_grad_()
    q = NormalForm(params[:2], params[2:].exp())
    prior = Normal().build(Layout({"coef": (2,)}))
    for spec, edge, side in EDGES:
        if edge > 1 and side == 1:
            value = spec.closed_form(q, prior)
            assert value == math.inf
            torch.autograd.grad(value, params)


@pytest.mark.parametrize("spec", [c(o) for c in RATIOS for o in (0, -2.0)], ids=repr)
def test_orders_that_cannot_regularize(spec):
    with pytest.raises(IncompatibleComponentsError, match=r"alpha > 0; alpha=1 is KL"):
        spec.check_regularizer()


@pytest.mark.parametrize("kind", [BetaDivergence, GammaDivergence])
@pytest.mark.parametrize("order", [0, -0.5, math.inf])
def test_orders_that_are_not_defined(kind, order):
    with pytest.raises(InvalidParameterError, match="must be a float in the range"):
        kind(order).check_regularizer()


def test_jeffreys_is_both_directions(make_normal):
    """Wrong variant: their mean."""
    for shapes in [("diag", "diag"), ("full", "diag"), ("diag", "full")]:
        q, pi = make_normal(3, shapes[0], 1), make_normal(3, shapes[1], 2)
        expected = KLDivergence().closed_form(
            q, Prior(pi)
        ) + KLDivergence().closed_form(pi, Prior(q))
        value = JeffreysDivergence().closed_form(q, Prior(pi))
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=0)
        swapped = JeffreysDivergence().closed_form(pi, Prior(q))
        torch.testing.assert_close(value, swapped, rtol=1e-10, atol=0)


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


@pytest.mark.parametrize("name", GENERATORS)
def test_named_generators_are_their_functions(name, logs):
    """But for a multiple of t - 1, whose mean is zero: the same second difference."""
    t = torch.linspace(0.05, 6, 200, dtype=torch.float64)
    named = FDivergence(name)._weighted(t.log()) * t
    gap = (named - GENERATORS[name](t)) / (t - 1)
    torch.testing.assert_close(gap, gap[0].expand_as(gap), rtol=1e-9, atol=1e-11)


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


@pytest.mark.parametrize(
    "spec", [BetaDivergence(1.3), GammaDivergence(1.3), JeffreysDivergence()]
)
@pytest.mark.parametrize("family", [MeanFieldNormal(), FullRankNormal()])
def test_estimates_with_draws_of_the_prior(spec, family, make_normal, generator):
    """Their gradients and values, where q is narrower than the prior.

    Wrong variants: importance sampling from q, which misses the prior's mass.
    """
    layout = Layout({"coef": (3,)})
    prior, posterior = Normal(1.5).build(layout), family.build(layout)
    posterior = posterior.near(make_normal(3, "diag", 1, 0.2))
    posterior.params.requires_grad_()
    if "joint" in spec.get_params():
        spec = clone(spec).set_params(joint=True)

    def gradient(value):
        return torch.autograd.grad(value, posterior.params)[0]

    values, gradients = [], []
    for _ in range(60):
        draw = posterior.draw(2000, generator)
        theta, log_q = draw.theta, draw.log_q
        log_prior = prior.log_prob(theta)
        value = spec.estimate(posterior, prior, log_q, log_prior, generator)
        values.append(value.detach())
        gradients.append(gradient(value))
    exact = spec.closed_form(posterior.normal(), prior)
    found = [
        (torch.stack(values), exact.detach()),
        (torch.stack(gradients), gradient(exact)),
    ]
    for draws, expected in found:
        error = (draws.mean(0) - expected).abs()
        se = draws.std(0) / math.sqrt(len(draws))
        # The bias of logs of means, O(1/2000), is less than the error of one estimate.
        slack = 0.02 * draws.std(0) if isinstance(spec, GammaDivergence) else 0
        assert float((error / (5 * se + slack + 1e-9)).max()) < 1


def test_direction_of_the_bias_of_gamma(logs):
    """Two draws: from the cross term upwards, as the class says.

    The first term alone is biased downwards: log of a mean. Wrong variant: signs.
    """
    _, _, log_q, log_pi = logs
    b = 0.5
    first = torch.logsumexp(b * log_q.reshape(-1, 2), 1) - math.log(2)
    cross = torch.logsumexp(b * log_pi.reshape(-1, 2), 1) - math.log(2)
    exact = [torch.logsumexp(b * v, 0) - math.log(len(v)) for v in (log_q, log_pi)]
    for parts, value in zip((first, cross), exact, strict=True):
        assert parts.mean() < value - 5 * parts.std() / math.sqrt(len(parts))


def test_priors_that_do_not_suit(monkeypatch):
    """An improper prior has no constant; one without a variance no Jeffreys."""
    layout = Layout({"coef": (2,)})
    JeffreysDivergence().check_prior(Laplace().build(layout))
    JeffreysDivergence().check_prior(build_prior({"coef": Normal(1e3)}, layout))
    prior = Laplace().build(layout)
    monkeypatch.setattr(
        type(prior), "log_prob", lambda self, t: -torch.log1p(t.square()).sum(1)
    )
    monkeypatch.setattr(
        type(prior), "log_prob_gradient", lambda self, t: -2 * t / (1 + t.square())
    )
    with pytest.raises(IncompatibleComponentsError, match="without a variance"):
        JeffreysDivergence().check_prior(prior)
    AlphaDivergence().check_prior(prior)
    monkeypatch.setattr(type(prior), "is_proper", False, raising=False)
    for spec in (
        AlphaDivergence(),
        BetaDivergence(),
        GammaDivergence(),
        JeffreysDivergence(),
    ):
        with pytest.raises(IncompatibleComponentsError, match="improper prior"):
            spec.check_prior(prior)
    for spec in (KLDivergence(), RenyiDivergence()):
        spec.check_prior(prior)
