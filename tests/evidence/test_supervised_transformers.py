"""Evidence of features that were made from y is refused, wherever they are made."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.feature_selection import (
    SelectFromModel,
    VarianceThreshold,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    StandardScaler,
)

from skvi.utils._wrappers import supervised_transformers


class Bare:
    """Neither tags nor parameters."""

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return X


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


@pytest.mark.parametrize("step", UNSUPERVISED, ids=name)
def test_transformers_without_y_are_allowed(step):
    """Wrong variant: every selector, or whatever takes a y, is refused."""
    assert supervised_transformers(make_pipeline(step, LogisticRegression())) == []
