"""Names of parts: the one place that knows every concrete class."""

from skvi.divergences import KL, Renyi
from skvi.losses import BetaLoss, LogLoss
from skvi.objectives import ELBO, EUBO
from skvi.posteriors import FullRankNormal, MeanFieldNormal
from skvi.priors import Laplace, Normal

OBJECTIVES = {"elbo": ELBO, "eubo": EUBO}
DIVERGENCES = {"kl": KL, "renyi": Renyi}
LOSSES = {"log": LogLoss, "beta": BetaLoss}
POSTERIORS = {"mean_field": MeanFieldNormal, "full_rank": FullRankNormal}
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
