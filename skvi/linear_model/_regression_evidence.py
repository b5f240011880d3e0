"""Evidence of linear regression: what vague hyperpriors cost."""

import math
from collections.abc import Sequence
from dataclasses import replace

from skvi.evidence import EvidenceBounds
from skvi.priors import GammaHyperprior
from skvi.utils._warnings import warn_user

__all__ = ["warn_of_vague", "with_cost"]

# Hyperpriors below this shape are flat over many orders of magnitude.
VAGUE_SHAPE = 1e-2


COST = (
    "; {} vague hyperpriors cost about {:.1f} nats, as much for all models that have "
    "them: compare with others only under proper ones, such as "
    "HierarchicalNormal(shape=1.0, rate=1.0)"
)


def warn_of_vague(gammas: Sequence[GammaHyperprior], n_features: int) -> None:
    """Warn of a cost that depends on the number of features."""
    shapes = [g.shape for g in gammas if g.shape < VAGUE_SHAPE and not g.is_shared]
    if shapes:
        cost = -sum(n_features * math.log(shape) for shape in shapes)
        warn_user(
            f"{n_features} vague Gamma hyperpriors, one for each coefficient, cost the "
            f"evidence about {cost:.1f} nats whatever the data: models with fewer "
            "features win for that reason alone. Give the prior a scale, such as "
            "prior=ARD(shape=1.0, rate=1.0).",
            UserWarning,
        )


def with_cost(
    found: EvidenceBounds, gammas: Sequence[GammaHyperprior]
) -> EvidenceBounds:
    """Name what shared hyperpriors cost: as much for every model that has them."""
    shapes = [g.shape for g in gammas if g.shape < VAGUE_SHAPE and g.is_shared]
    if not shapes:
        return found
    cost = -sum(math.log(shape) for shape in shapes)
    return replace(found, reason=found.reason + COST.format(len(shapes), cost))
