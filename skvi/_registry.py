"""Names of parts: the one place that knows every concrete class."""

from skvi.divergences import (
    KL,
    AlphaDivergence,
    BetaDivergence,
    GammaDivergence,
    Jeffreys,
    Renyi,
)
from skvi.losses import BetaLoss, LogLoss
from skvi.objectives import ELBO, EUBO, IWELBO, ChiBound, RenyiBound
from skvi.posteriors import FullRankNormal, LowRankNormal, MeanFieldNormal
from skvi.priors import Laplace, Normal

OBJECTIVES = {
    "elbo": ELBO,
    "eubo": EUBO,
    "iwelbo": IWELBO,
    "renyi": RenyiBound,
    "chi": ChiBound,
}
DIVERGENCES = {
    "kl": KL,
    "renyi": Renyi,
    "alpha": AlphaDivergence,
    "beta": BetaDivergence,
    "gamma": GammaDivergence,
    "jeffreys": Jeffreys,
}
LOSSES = {"log": LogLoss, "beta": BetaLoss}
POSTERIORS = {
    "mean_field": MeanFieldNormal,
    "full_rank": FullRankNormal,
    "low_rank": LowRankNormal,
}
PRIORS = {"normal": Normal, "laplace": Laplace}

#: Constructor parameter -> shorthand -> class.
SHORTHANDS = {
    "objective": OBJECTIVES,
    "divergence": DIVERGENCES,
    "loss": LOSSES,
    "posterior": POSTERIORS,
    "prior": PRIORS,
    "intercept_prior": PRIORS,
}
