"""Evidence of features that were made from y is refused, wherever they are made."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin, TransformerMixin
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.cross_decomposition import CCA, PLSSVD, PLSRegression
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.feature_selection import (
    RFE,
    RFECV,
    SelectFromModel,
    SelectKBest,
    SelectPercentile,
    SequentialFeatureSelector,
    VarianceThreshold,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Lasso, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    StandardScaler,
    TargetEncoder,
)

import skvi
from skvi.linear_model import BayesianLogisticRegression
from skvi.model_selection import EvidenceSearch
from skvi.plotting import EvidenceBoundsDisplay
from skvi.utils._wrappers import supervised_transformers


class NeedsY(TransformerMixin, BaseEstimator):
    """No tag, but y has no default."""

    def fit(self, X, y):
        return self

    def transform(self, X):
        return X


class NeedsTarget(NeedsY):
    """The second argument has another name."""

    def fit(self, X, target):
        return self


class LearnsY(RegressorMixin, NeedsY):
    """A regressor that takes y=None and says that it is optional."""

    def fit(self, X, y=None):
        return self

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags


class Bare:
    """Neither tags nor parameters."""

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return X


SUPERVISED = [
    SelectKBest(k=2),
    SelectPercentile(),
    SelectFromModel(Lasso()),
    RFE(Lasso()),
    RFECV(Lasso()),
    SequentialFeatureSelector(Lasso()),
    TargetEncoder(),
    LinearDiscriminantAnalysis(),
    NeighborhoodComponentsAnalysis(),
    PLSRegression(),
    CCA(),
    PLSSVD(),
    NeedsY(),
    NeedsTarget(),
    LearnsY(),
    GridSearchCV(PCA(), {"n_components": [1, 2]}),
    make_pipeline(PCA(), SelectKBest()),
    ColumnTransformer([("a", PCA(), [0]), ("b", SelectKBest(k=1), [1, 2])]),
    ColumnTransformer([("a", PCA(), [0])], remainder=SelectKBest(k=1)),
    FeatureUnion([("a", PCA()), ("b", make_pipeline(PCA(), SelectKBest()))]),
    FrozenEstimator(SelectKBest()),
]
UNSUPERVISED = [
    "passthrough",
    StandardScaler(),
    PCA(2),
    KBinsDiscretizer(),
    FunctionTransformer(np.tanh),
    VarianceThreshold(),
    KMeans(2),
    SelectFromModel(PCA()),
    ColumnTransformer([("a", PCA(), [0])], remainder="passthrough"),
    FeatureUnion([("a", PCA(1)), ("b", "drop")]),
    FrozenEstimator(StandardScaler()),
    Bare(),
]


def name(part):
    return part if isinstance(part, str) else repr(part).replace("\n", "")[:60]


@pytest.fixture(scope="module")
def noise():
    rng = np.random.default_rng(0)
    return rng.normal(size=(100, 500)), rng.permutation(np.arange(100) % 2)


@pytest.mark.parametrize("step", SUPERVISED, ids=name)
def test_a_search_refuses_before_any_fit(step):
    """Wrong variants: only tags are asked (`SelectKBest` has none); only direct steps.

    The data would let every fit fail: nothing is fitted.
    """
    for steps in (
        make_pipeline(step, BayesianLogisticRegression(prior="normal")),
        make_pipeline(
            StandardScaler(),
            make_pipeline(step, BayesianLogisticRegression(prior="normal")),
        ),
    ):
        search = EvidenceSearch(steps, {}, error_score="raise")
        with pytest.raises(ValueError, match="makes its features from y"):
            search.fit(None, None)


@pytest.mark.parametrize("step", UNSUPERVISED, ids=name)
def test_transformers_without_y_are_allowed(step):
    """Wrong variant: every selector, or whatever takes a y, is refused."""
    assert supervised_transformers(make_pipeline(step, LogisticRegression())) == []


def test_noise_has_no_evidence_by_chosen_features(noise):
    """Coins and 500 columns of noise: the features that fit y are no model of it.

    Coins alone have -69.3 nats. What is allowed on purpose shows the reason of it: an
    evidence far above that. Wrong variant: the keyword is not handed on.
    """
    X, y = noise
    model = make_pipeline(SelectKBest(k=5), BayesianLogisticRegression(prior="normal"))
    fitted = model.fit(X, y)
    with pytest.raises(ValueError, match=r"by SelectKBest\..*horseshoe"):
        skvi.evidence_bounds(fitted, X, y)
    allowed = {"allow_supervised_transformers": True, "random_state": 0}
    bounds = skvi.evidence_bounds(fitted, X, y, n_draws=512, **allowed)
    assert bounds.lower > 100 * np.log(0.5) + 5
    grid = {"selectkbest__k": [1, 5]}
    with pytest.raises(ValueError, match="by SelectKBest"):
        EvidenceSearch(model, grid).fit(X, y)
    found = EvidenceSearch(model, grid, precision=1.0, **allowed).fit(X, y)
    assert found.best_params_ == {"selectkbest__k": 5}
    with pytest.raises(ValueError, match="by SelectKBest"):
        skvi.evidence_bounds(found, X, y)


def test_searches_around_and_displays_refuse_too(noise):
    """Wrong variant: the walk ends at a search that is around the pipeline."""
    X, y = noise[0][:, :5], noise[1]
    model = make_pipeline(
        SelectKBest(k=2), BayesianLogisticRegression(max_iter=5, prior="normal")
    )
    search = GridSearchCV(model, {"selectkbest__k": [2]}, cv=2).fit(X, y)
    for refuse in (
        lambda: skvi.evidence_bounds(search, X, y),
        lambda: EvidenceBoundsDisplay.from_estimator(search, X, y),
    ):
        with pytest.raises(ValueError, match=r"features.* from y, by SelectKBest"):
            refuse()


def test_only_some_candidates(noise):
    """One supervised candidate is enough: nothing is compared with it."""
    model = Pipeline(
        [("select", PCA()), ("model", BayesianLogisticRegression(prior="normal"))]
    )
    search = EvidenceSearch(model, {"select": ["passthrough", SelectKBest()]})
    with pytest.raises(ValueError, match="by SelectKBest"):
        search.fit(None, None)
