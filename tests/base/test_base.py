"""Components, layouts, normal forms, arrays."""

import importlib
import inspect
import math
import pickle
import pkgutil

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone

import skvi
from skvi.base import Layout, NormalForm
from skvi.base._component import Component
from skvi.utils._tensors import make_generator
from skvi.utils._validation import as_tensor


def find_specifications():
    """Every public component that is not a base class, with its defaults."""
    found = {}
    for info in pkgutil.walk_packages(skvi.__path__, "skvi."):
        if "._" in info.name:
            continue
        module = importlib.import_module(info.name)
        for name in getattr(module, "__all__", []):
            obj = getattr(module, name)
            if inspect.isclass(obj) and issubclass(obj, Component):
                if Component not in (obj, *obj.__bases__):
                    found[name] = obj
    found.pop("CallableLoss", None)  # a function has no repr that can be evaluated
    needed = {
        "CategoricalLikelihood": {"n_classes": 3},
        "FDivergence": {"generator": "hellinger"},
        "IndependentLikelihood": {
            "likelihoods": [skvi.likelihoods.GaussianLikelihood()]
        },
    }
    return [found[name](**needed.get(name, {})) for name in sorted(found)]


SPECIFICATIONS = find_specifications()
every_specification = pytest.mark.parametrize("spec", SPECIFICATIONS, ids=repr)


def test_specifications_are_found():
    assert len(SPECIFICATIONS) >= 12
    assert {"KLDivergence", "BetaLoss", "FullRankNormal"} <= {
        type(s).__name__ for s in SPECIFICATIONS
    }


@every_specification
def test_specification_is_a_parameter_object(spec):
    spec.validate()
    copies = [clone(spec), pickle.loads(pickle.dumps(spec))]
    copies.append(eval(repr(spec), {type(s).__name__: type(s) for s in SPECIFICATIONS}))
    for copy in copies:
        assert type(copy) is type(spec)
        # By their reprs: a list of specifications is copied with what it holds.
        found, given, stored = (
            {name: repr(value) for name, value in params.items()}
            for params in (copy.get_params(), spec.get_params(), vars(copy))
        )
        assert found == given == stored
    assert not any(isinstance(v, torch.Tensor) for v in vars(spec).values())


@pytest.mark.parametrize(
    ("spec", "name"), [(s, n) for s in SPECIFICATIONS for n in s.get_params()], ids=repr
)
def test_bad_parameter_is_named(spec, name):
    value = 0 if name == "checkpoint_path" else "nonsense"  # any text is a path
    bad = clone(spec).set_params(**{name: value})  # the constructor only stores
    with pytest.raises(
        ValueError, match=f"'{name}' parameter of {type(spec).__name__}"
    ):
        bad.validate()


LAYOUT = Layout(
    {"coef": (2, 3), "noise": (), "scale": (2,)},
    {"scale": "exp", "noise": "softplus"},
    roles={"noise": "noise", "scale": "scale"},
    limits={"noise": (-3.0, 2.0)},
)


def test_layout_partitions_theta():
    assert LAYOUT.size == sum(block.size for block in LAYOUT.values()) == 9
    positions = [i for block in LAYOUT.values() for i in range(9)[block.slice]]
    assert positions == list(range(9))
    assert list(LAYOUT) == ["coef", "noise", "scale"]
    assert len(LAYOUT) == 3
    with pytest.raises(TypeError):
        LAYOUT["coef"] = LAYOUT["scale"]


def test_layout_unpacks_in_order():
    theta = torch.arange(18, dtype=torch.float64).reshape(2, 9) / 10
    blocks = LAYOUT.unpack(theta)
    assert torch.equal(blocks["coef"][1], theta[1, :6].reshape(2, 3))
    torch.testing.assert_close(blocks["noise"], theta[:, 6].exp().log1p())
    # Wrong variant: the unconstrained coordinates themselves.
    torch.testing.assert_close(blocks["scale"], theta[:, 7:].exp())


def test_parts_of_a_layout():
    # Wrong variants: positions in the order of the layout; roles and limits lost.
    part = LAYOUT.only("scale", "coef")
    assert LAYOUT.positions(part).tolist() == [7, 8, 0, 1, 2, 3, 4, 5]
    rest = LAYOUT.without("scale", "coef")
    assert list(rest) == ["noise"]
    both = part + rest
    theta = torch.arange(9.0)[None]
    moved = both.unpack(theta[:, LAYOUT.positions(both)])
    for name, value in LAYOUT.unpack(theta).items():
        assert torch.equal(moved[name], value)
        block, old = both[name], LAYOUT[name]
        assert (block.role, block.limits) == (old.role, old.limits)
    low, high = LAYOUT.limits()
    assert (
        low.isinf().tolist()
        == high.isinf().tolist()
        == 6 * [True] + [False] + 2 * [True]
    )
    assert (float(low[6]), float(high[6])) == (-3.0, 2.0)
    assert LAYOUT.positions([]).tolist() == []


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Layout({"a": ()}, {"a": "log"}), r"block 'a' .* Got 'log' instead"),
        (lambda: Layout({"a": ()}, roles={"a": "bias"}), "role of block 'a'"),
        (lambda: Layout({"a": ()}, roles={"b": "weight"}), "no blocks .'b'."),
        (lambda: LAYOUT.only("bias"), "no blocks .'bias'."),
        (lambda: LAYOUT + LAYOUT.only("coef"), "share names"),
    ],
)
def test_layout_refuses_what_it_does_not_know(make, match):
    with pytest.raises(ValueError, match=match):
        make()


@pytest.mark.parametrize("kind", ["diag", "full"])
class TestNormalForm:
    def test_agrees_with_scipy(self, kind, make_normal):
        # Wrong variants: scale used as covariance, or as its transpose.
        normal = make_normal(3, kind)
        reference = stats.multivariate_normal(normal.mean, normal.covariance())
        theta = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(4, 3)
        torch.testing.assert_close(
            normal.log_prob(theta),
            torch.from_numpy(reference.logpdf(theta)),
            rtol=1e-10,
            atol=1e-12,
        )
        assert float(normal.entropy()) == pytest.approx(reference.entropy(), rel=1e-12)
        assert normal.is_diagonal == (kind == "diag")

    def test_second_moments_agree(self, kind, make_normal):
        normal = make_normal(3, kind)
        covariance = normal.covariance()
        scale = torch.diag(normal.scale) if kind == "diag" else normal.scale
        torch.testing.assert_close(covariance, scale @ scale.T)
        torch.testing.assert_close(normal.variance, covariance.diagonal())
        expected = 0.5 * torch.linalg.slogdet(covariance).logabsdet
        torch.testing.assert_close(normal.half_log_det, expected)

    def test_whiten_inverts_transform(self, kind, make_normal):
        normal = make_normal(3, kind)
        eps = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(4, 3)
        theta = normal.transform(eps)
        torch.testing.assert_close(normal.whiten(theta - normal.mean), eps)
        torch.testing.assert_close(
            normal.log_prob_whitened(eps), normal.log_prob(theta)
        )

    def test_transform_has_the_moments(self, kind, make_normal, generator, z_score):
        # Wrong variant: eps @ scale in place of eps @ scale'.
        normal = make_normal(2, kind)
        eps = torch.randn(1_000_000, 2, generator=generator, dtype=torch.float64)
        theta = normal.transform(eps)
        assert z_score(theta, normal.mean) < 5
        deviation = theta - normal.mean
        products = deviation[:, :, None] * deviation[:, None]
        assert z_score(products, normal.covariance()) < 5


@pytest.mark.parametrize(
    ("array", "shares"),
    [
        (np.arange(6.0), True),
        (np.arange(6.0).reshape(2, 3).T, True),
        (np.arange(6.0)[::-1], False),
        (np.arange(6.0).astype(">f8"), False),
        (np.broadcast_to(np.float64(3), 4), True),
        (np.ones(4, dtype="f8,f4")["f0"], False),  # strides of 12 bytes
    ],
    ids=["plain", "transposed", "reversed", "big-endian", "read-only", "field"],
)
def test_as_tensor(array, shares):
    tensor = as_tensor(array)
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert np.shares_memory(tensor.numpy(), array) == shares


def test_make_generator_follows_random_state():
    def first(state):
        return float(torch.rand(1, generator=make_generator(state)))

    assert first(3) == first(3) != first(4)
    stream = np.random.RandomState(3)
    assert first(stream) != first(stream)  # a RandomState advances
    assert math.isfinite(first(None))


def test_low_rank_normal():
    """All of a normal with a factor against its covariance matrix.

    Wrong variant: the capacity matrix left out of the determinant.
    """
    generator = torch.Generator().manual_seed(0)
    mean, scale, factor, theta = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((5,), (5,), (5, 2), (7, 5))
    )
    normal = NormalForm(mean, scale.abs() + 0.1, factor)
    covariance = torch.diag(normal.scale.square()) + factor @ factor.T
    full = NormalForm(mean, torch.linalg.cholesky(covariance))
    torch.testing.assert_close(normal.log_prob(theta), full.log_prob(theta))
    torch.testing.assert_close(normal.entropy(), full.entropy())
    torch.testing.assert_close(normal.variance, full.variance)
    torch.testing.assert_close(normal.covariance(), covariance)
    whitened = normal.whiten(theta - mean)
    torch.testing.assert_close(
        whitened.square().sum(1), full.squared_distance(theta - mean)
    )
    # The map from noise is linear: its matrix is a root of the covariance.
    root = normal.transform(torch.eye(normal.n_noise, dtype=torch.float64)) - mean
    torch.testing.assert_close(root.T @ root, covariance)


@pytest.mark.parametrize("kind", ["diag", "full", "low_rank"])
def test_normals_with_leading_axes(kind, generator):
    """Every method, as of the normals one by one; broadcast as torch does.

    Wrong variants: determinants summed over all axes; every row times every matrix.
    """
    mean, scale, theta = (
        torch.randn(4, 3, 5, generator=generator, dtype=torch.float64).exp()
        for _ in range(3)
    )
    factor = torch.randn(4, 3, 5, 2, generator=generator, dtype=torch.float64)
    if kind == "full":
        scale = factor @ factor.mT + torch.diag_embed(scale)
        scale = torch.linalg.cholesky(scale)
    factor = factor if kind == "low_rank" else None
    many = NormalForm(mean, scale, factor)
    eps = torch.randn(4, 3, many.n_noise, generator=generator, dtype=torch.float64)
    where = torch.tensor([3, 1])

    def answers(normal, theta, eps):
        deviation, some = theta - normal.mean, normal.marginal(where)
        found = [normal.variance, normal.half_log_det, normal.covariance()]
        found += [normal.entropy(), normal.transform(eps), normal.log_prob(theta)]
        found += [normal.whiten(deviation), normal.squared_distance(deviation)]
        found += [some.mean, some.covariance()]
        return found if kind == "low_rank" else [*found, normal.log_prob_whitened(eps)]

    def each(i, j):
        own = None if factor is None else factor[i, j]
        one = NormalForm(mean[i, j], scale[i, j], own)
        return answers(one, theta[i, j][None], eps[i, j][None])

    expected = zip(*(each(i, j) for i in range(4) for j in range(3)), strict=True)
    for found, parts in zip(answers(many, theta, eps), expected, strict=True):
        torch.testing.assert_close(found, torch.stack(parts).reshape(found.shape))
    crossed = many.log_prob(theta[:, :1].expand(6, 4, 1, 5))  # six points for each
    assert crossed.shape == (6, 4, 3)
    assert many.sample(2, generator).shape[:3] == (2, 4, 3)
    one = NormalForm(mean[1, 2], scale[1, 2], None if factor is None else factor[1, 2])
    torch.testing.assert_close(crossed[3, 1, 2], one.log_prob(theta[1, :1])[0])


@pytest.mark.parametrize("kind", ["diag", "full", "low_rank"])
def test_draws_of_a_normal(kind, make_normal, generator, z_score):
    """First and second moments. Wrong variants: noise unscaled; factor transposed."""
    normal = make_normal(3, "diag", width=2.0)
    if kind == "full":
        factor = torch.diag(normal.scale) + torch.ones(3, 3).double().tril(-1)
        normal = NormalForm(normal.mean, factor)
    if kind == "low_rank":
        factor = torch.ones(3, 1, dtype=torch.float64)
        normal = NormalForm(normal.mean, normal.scale, factor)
    theta = normal.sample(20_000, generator)
    deviation = theta - normal.mean
    products = deviation[:, :, None] * deviation[:, None]
    assert z_score(theta, normal.mean) < 5
    assert z_score(products, normal.covariance()) < 5
