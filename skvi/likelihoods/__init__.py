"""Likelihoods: p(y | f), where f is what the predictor returns.

Values are in nats per row; nothing is averaged.
"""

from skvi.likelihoods._beta import BetaLikelihood
from skvi.likelihoods._categorical import BernoulliLikelihood
from skvi.likelihoods._counts import PoissonLikelihood
from skvi.likelihoods._gaussian import GaussianLikelihood, HeteroscedasticLikelihood
from skvi.likelihoods._hurdle import HurdleLikelihood, ZeroInflatedLikelihood
from skvi.likelihoods._negative_binomial import NegativeBinomialLikelihood
from skvi.likelihoods._noise import NoiseLikelihood
from skvi.likelihoods._ordinal import OrdinalLikelihood
from skvi.likelihoods._positive import GammaLikelihood
from skvi.likelihoods._rounded import RoundedLikelihood
from skvi.likelihoods._skewed import GeneralizedGammaLikelihood, JohnsonSULikelihood
from skvi.likelihoods._student_t import StudentTLikelihood
from skvi.likelihoods.base import Likelihood

__all__ = [
    "BernoulliLikelihood",
    "BetaLikelihood",
    "GammaLikelihood",
    "GaussianLikelihood",
    "GeneralizedGammaLikelihood",
    "HeteroscedasticLikelihood",
    "HurdleLikelihood",
    "JohnsonSULikelihood",
    "Likelihood",
    "NegativeBinomialLikelihood",
    "NoiseLikelihood",
    "OrdinalLikelihood",
    "PoissonLikelihood",
    "RoundedLikelihood",
    "StudentTLikelihood",
    "ZeroInflatedLikelihood",
]
