"""scikit-learn's own checks, with strings and with objects."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from skvi.divergences import KL, Renyi
from skvi.linear_model import BayesianLogisticRegression
from skvi.losses import BetaLoss
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.priors import Laplace, Normal

ESTIMATORS = [
    BayesianLogisticRegression(),
    BayesianLogisticRegression(posterior="mean_field", prior="laplace"),
    # Full-rank Rényi fits of more features than rows end in flat valleys, where seven
    # equal digits are too much to ask; without an intercept the checks of class
    # weights fail for every linear classifier.
    BayesianLogisticRegression(
        divergence="renyi", loss="beta", posterior="mean_field", tol=1e-9
    ),
    BayesianLogisticRegression(class_weight="balanced", n_jobs=1),
    BayesianLogisticRegression(
        objective=ELBO(),
        divergence=Renyi(alpha=0.8),
        loss=BetaLoss(beta=1.3),
        posterior=MeanFieldNormal(),
        prior=Normal(scale=2.0),
        intercept_prior=Normal(scale=5.0),
    ),
    BayesianLogisticRegression(
        divergence=KL(weight=0.5),
        posterior=FullRankNormal(),
        prior={"coef": Laplace(), "intercept": Normal()},
    ),
    BayesianLogisticRegression(objective="eubo", posterior="mean_field"),
]


@parametrize_with_checks(ESTIMATORS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sklearn_checks(estimator, check):
    check(estimator)
