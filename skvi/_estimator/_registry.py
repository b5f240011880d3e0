"""Shorthands of components: the only module that knows every concrete class."""

from collections.abc import Callable
from functools import partial

from skvi.divergences import (
    AlphaDivergence,
    BetaDivergence,
    GammaDivergence,
    JeffreysDivergence,
    KLDivergence,
    RenyiDivergence,
)
from skvi.likelihoods import (
    GaussianLikelihood,
    GeneralizedGammaLikelihood,
    HeteroscedasticLikelihood,
    HurdleLikelihood,
    JohnsonSULikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    RoundedLikelihood,
    StudentTLikelihood,
)
from skvi.losses import BetaLoss, GammaLoss, LogLoss
from skvi.objectives import ELBO, EUBO, IWELBO, AlphaEnergy, ChiBound, RenyiBound
from skvi.posteriors import (
    Ensemble,
    FullRankNormal,
    HierarchicalVariational,
    LowRankNormal,
    MeanFieldNormal,
    MixtureOfNormals,
    MultiplicativeFlow,
    NormalizingFlow,
    RefinedNormal,
    SemiImplicitMixture,
)
from skvi.posteriors._dropout import GaussianDropout
from skvi.priors import (
    ARD,
    GammaHyperprior,
    Horseshoe,
    Laplace,
    Normal,
    Prior,
    StudentT,
)
from skvi.priors._log_uniform import LogUniform
from skvi.solvers._choice import SOLVERS

OBJECTIVES = {
    "elbo": ELBO,
    "eubo": EUBO,
    "iwelbo": IWELBO,
    "renyi": RenyiBound,
    "chi": ChiBound,
    "alpha_energy": AlphaEnergy,
}
DIVERGENCES = {
    "kl": KLDivergence,
    "renyi": RenyiDivergence,
    "alpha": AlphaDivergence,
    "beta": BetaDivergence,
    "gamma": GammaDivergence,
    "jeffreys": JeffreysDivergence,
}
LOSSES = {"log": LogLoss, "beta": BetaLoss, "gamma": GammaLoss}
POSTERIORS = {
    "mean_field": MeanFieldNormal,
    "full_rank": FullRankNormal,
    "low_rank": LowRankNormal,
    "ensemble": Ensemble,
    "mixture": MixtureOfNormals,
    "semi_implicit": SemiImplicitMixture,
    "hierarchical_variational": HierarchicalVariational,
    "multiplicative_flow": MultiplicativeFlow,
    "flow": NormalizingFlow,
    "refined": RefinedNormal,
}
#: Posteriors of models with layers.
NETWORK_POSTERIORS = {"dropout": GaussianDropout}


def _hierarchical() -> Normal:
    """A hyperprior of its own each time, which `set_params` may change."""
    return Normal(GammaHyperprior())


PRIORS: dict[str, Callable[[], Prior]] = {
    "normal": Normal,
    "laplace": Laplace,
    "student_t": StudentT,
    "ard": ARD,
    "hierarchical": _hierarchical,
    "horseshoe": Horseshoe,
    "log_uniform": LogUniform,
}
#: Noise of a continuous target, and counts.
NOISES = {"gaussian": GaussianLikelihood, "student_t": StudentTLikelihood}
COUNTS = {
    "poisson": PoissonLikelihood,
    "negative_binomial": partial(NegativeBinomialLikelihood, "hyperprior"),
}
#: Other numbers, for networks: noise that varies, rounded, skewed, positive, with a
#: repeated value.
OTHERS = {
    "heteroscedastic": HeteroscedasticLikelihood,
    "rounded": RoundedLikelihood,
    "johnson_su": JohnsonSULikelihood,
    "generalized_gamma": GeneralizedGammaLikelihood,
    "hurdle": HurdleLikelihood,
}

#: Constructor parameter -> shorthand -> class.
SHORTHANDS = {
    "objective": OBJECTIVES,
    "divergence": DIVERGENCES,
    "likelihood": NOISES | COUNTS | OTHERS,
    "loss": LOSSES,
    "posterior": POSTERIORS | NETWORK_POSTERIORS,
    "prior": PRIORS,
    "intercept_prior": PRIORS,
    "solver": SOLVERS,
}
