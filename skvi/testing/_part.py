"""One check for every kind of part."""

from collections.abc import Callable, Sequence
from typing import Any

from skvi.base._component import Component
from skvi.divergences import Divergence
from skvi.likelihoods import Likelihood
from skvi.losses import Loss
from skvi.posteriors import Family
from skvi.priors import Prior
from skvi.solvers import Solver
from skvi.testing._ensure import check_component
from skvi.testing._likelihoods import (
    LIKELIHOODS,
    check_divergence,
    check_likelihood,
    check_loss,
)
from skvi.testing._posteriors import check_family, check_prior, check_solver

CHECKS: dict[type[Component], Callable[[Any, int], None]] = {
    Divergence: check_divergence,
    Prior: check_prior,
    Family: check_family,
    Likelihood: check_likelihood,
    Solver: check_solver,
}


def check_part(
    part: Component,
    likelihoods: Sequence[Likelihood] | None = None,
    random_state: int = 0,
) -> None:
    """Check that a part satisfies the contract of its kind.

    Parameters
    ----------
    part : Loss, Likelihood, Divergence, Prior, Family, Solver or any other part
        A prior must be independent and equal over the coefficients of a block, a
        divergence must be able to regularize a posterior, and a likelihood must have no
        hyperparameters that are still to be learned.
    likelihoods : sequence of Likelihood, default=None
        Only for a loss: the likelihoods that it is intended for. None is a normal one,
        and those of two and of three classes.
    random_state : int, default=0
        Seed of the draws.

    Raises
    ------
    AssertionError
        The message says what is wrong.

    Notes
    -----
    Every part is a scikit-learn parameter object, which can be cloned and pickled. And:

    - Losses of rows are independent and finite in the tails; gradients, expectations
      under a normal f and their derivatives agree with fine rules.
    - Draws, densities and power integrals of a likelihood agree with each other: the
      mean of ``p(y | f)^(c - 1)`` over draws is the integral of ``p^c``.
    - A divergence is 0 if both distributions are equal, nonnegative, and never NaN; a
      closed form agrees with the estimate from draws, and `terms` with finite
      differences.
    - The density of a prior integrates to 1 and is what `sample` draws from; gradients
      and expectations agree with fine rules, and the natural scales of a layout
      multiply the prior's own.
    - The variational parameters of a family are one flat vector; draws and their log
      density are differentiable in it. If the density is exact it integrates to 1, and
      the mean of its score over draws is 0.
    - A solver leaves its problem as it is, and takes a normal, of the families
      "full_rank" and "mean_field" those that it can solve, closer to a normal density.
      If it says that it has converged, the normal is the density, up to 0.5 nats.

    Examples
    --------
    >>> from skvi.likelihoods import BernoulliLikelihood
    >>> from skvi.losses import BetaLoss
    >>> from skvi.priors import Laplace
    >>> from skvi.testing import check_part
    >>> check_part(Laplace(scale=0.5))
    >>> check_part(BetaLoss(beta=1.3), likelihoods=[BernoulliLikelihood()])
    """
    check_component(part)
    if isinstance(part, Loss):
        check_loss(
            part, LIKELIHOODS if likelihoods is None else likelihoods, random_state
        )
        return
    if likelihoods is not None:
        raise ValueError(f"likelihoods are those of a loss. Got {part!r}.")
    for kind, check in CHECKS.items():
        if isinstance(part, kind):
            check(part, random_state)
