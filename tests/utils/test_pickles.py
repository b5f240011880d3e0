"""What is built from specifications is pickled as numpy, whatever it consists of."""

import copy
import pickle
import pickletools

import pytest
import torch
from scipy import sparse

from skvi.base import Layout, NormalForm
from skvi.base._rows import Rows
from skvi.likelihoods import (
    BernoulliLikelihood,
    GaussianLikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    StudentTLikelihood,
)
from skvi.likelihoods._categorical import CategoricalLikelihood
from skvi.losses import LogLoss
from skvi.posteriors import (
    Ensemble,
    FullRankNormal,
    LowRankNormal,
    MeanFieldNormal,
    Product,
)
from skvi.predictors import LinearPredictor, MLPPredictor
from skvi.priors import ARD, GammaHyperprior, Horseshoe, Laplace, Normal, StudentT
from skvi.priors._blocks import build_prior
from skvi.priors._heavy_tailed import LogUniform
from skvi.priors._posterior import FlatReference
from skvi.targets import SupervisedTarget
from skvi.targets._hierarchical import HierarchicalTarget
from skvi.targets._least_squares import with_free_energy
from skvi.utils._rows import as_rows
from skvi.utils._tensors import Movable

MODEL = LinearPredictor(3)
LAYOUT = Layout(
    {"coef": (1, 3), "intercept": (1,), "noise_precision": (1,)},
    {"noise_precision": "exp"},
)
X = torch.randn(10, 3, generator=torch.Generator().manual_seed(0)).double()
GAMMA = GammaHyperprior(1.0, 1.0)


class Nested(Movable):
    def __init__(self):
        leaf = torch.ones(2, requires_grad=True)
        self.parts = [{"a": (leaf, 1)}, [torch.arange(3)]]
        self.by_name = {"normal": NormalForm(leaf.detach(), leaf.detach()), 7: "x"}


def make_target(X, loss=None):
    prior, y = Normal("learn").build(MODEL.layout), torch.arange(10.0)
    weights = {"sample_weight": torch.ones(10).double()}
    likelihood = GaussianLikelihood("learn")
    return SupervisedTarget(
        MODEL, likelihood, loss or LogLoss(), prior, X, y, **weights
    )


def make_hierarchy():
    specs = {"coef": Normal(GammaHyperprior(1.0, 1.0)), "intercept": Normal()}
    prior = build_prior(specs, MODEL.layout)
    rows, likelihood = (X - X.mean(0), X.sum(1)), GaussianLikelihood("learn")
    parts = MODEL, likelihood, LogLoss(), prior, *rows
    target = HierarchicalTarget(*parts, noise_hyperprior=GAMMA)
    target.conjugate_form()  # is kept
    return target


def make_parts():
    inner = Product({"coef": MeanFieldNormal(), "intercept": LowRankNormal(1)})
    product = Product({("coef", "intercept"): inner}).build(LAYOUT)
    specs = (Normal(2.0), Laplace(), StudentT(), Horseshoe(), LogUniform(), ARD())
    named = {"coef": Laplace("learn"), "intercept": Normal()}
    likelihoods = (
        BernoulliLikelihood(),
        CategoricalLikelihood(3),
        NegativeBinomialLikelihood(),
        PoissonLikelihood(),
        StudentTLikelihood(4.0, 1.0),
        GaussianLikelihood("learn").bind(torch.zeros(1).double()),
    )
    families = (MeanFieldNormal(), FullRankNormal(), LowRankNormal(2), Ensemble())
    dense = make_target(X)
    return {
        "nested": Nested(),
        "product of a product": product,
        **{repr(family): family.build(MODEL.layout) for family in families},
        **{repr(spec): spec.build(MODEL.layout.only("coef")) for spec in specs},
        "mapping of priors": build_prior(named, MODEL.layout),
        "bound prior": Normal("learn").build(MODEL.layout).bind(torch.zeros(1)),
        "posterior as prior": build_prior(
            families[1].build(MODEL.layout), MODEL.layout
        ),
        "no prior": FlatReference(),
        **{repr(likelihood): likelihood for likelihood in likelihoods},
        "network": MLPPredictor(3, 1, (2,)),
        "rows": Rows(X, X[:, 0]),
        "target": dense,
        "sparse target": make_target(as_rows(sparse.csr_array(X.numpy()))),
        "free energy": with_free_energy(dense, 0.5),
        "whitened": dense.frozen().whitened(
            FullRankNormal().build(MODEL.layout).as_normal()
        ),
        "hierarchy": make_hierarchy(),
    }


PARTS = make_parts()


def tensors_of(value, place=""):
    """All tensors at every depth, of all objects: place -> tensor."""
    if isinstance(value, torch.Tensor):
        return {place: value}
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list | tuple):
        pairs = enumerate(value)
    elif type(value).__module__.startswith(("skvi.", "test")) and vars(value):
        pairs = vars(value).items()
    else:
        return {}
    found = {}
    for name, part in pairs:
        found |= tensors_of(part, f"{place}/{name}")
    return found


def globals_of(data):
    """Modules whose names a pickle looks up."""
    strings = [str(a) for _, a, _ in pickletools.genops(data) if isinstance(a, str)]
    return {string.split(" ")[0].split(".")[0] for string in strings}


@pytest.mark.parametrize("name", PARTS)
def test_pickles_hold_numpy(name):
    """Wrong variant: tensors in lists are left to torch."""
    data = pickle.dumps(PARTS[name])
    assert "torch" not in globals_of(data)
    before, after = tensors_of(PARTS[name]), tensors_of(pickle.loads(data))
    assert before.keys() == after.keys()
    for place, tensor in before.items():
        assert after[place].dtype == tensor.dtype
        assert torch.equal(after[place], tensor)


def test_the_walk_finds_tensors():
    assert len(tensors_of(PARTS["nested"])) == 4
    assert len(tensors_of(PARTS["product of a product"])) > 3
    assert {"/rows/X", "/hyper"} <= tensors_of(PARTS["target"]).keys()
    with pytest.raises(AssertionError):  # what a tensor by itself looks like
        assert "torch" not in globals_of(pickle.dumps(torch.ones(1)))


def test_copies_share_tensors():
    """Wrong variant: a copy goes through the pickle, and loses gradients."""
    original = PARTS["nested"]
    assert copy.copy(original).parts is original.parts
    assert copy.deepcopy(original).parts[1][0] is not original.parts[1][0]
