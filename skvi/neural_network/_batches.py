"""Batches of networks: what `partial_fit` can go on from."""

from copy import copy
from typing import Any

from skvi._estimator._continual import check_next_prior
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.solvers._checkpoint import checkpoint_path_of

__all__ = ["check_stream", "posterior_to_continue"]

ONE_OF_MANY = (
    "a mixture cannot be the prior of the next batch, so that partial_fit goes on with "
    "one of the networks of the fit; posterior='mean_field' has one from the start"
)


def check_stream(network: Any) -> None:
    """Raise if a posterior of these parameters cannot be the next prior."""
    if network.early_stopping or network.validation_fraction is not None:
        raise ValueError(
            f"early_stopping={network.early_stopping!r} and validation_fraction="
            f"{network.validation_fraction!r} are for fits: partial_fit makes the "
            "posterior of each batch the prior of the next one, so that every "
            "batch must be learned to its end, from all of its rows. Use "
            "early_stopping=False and validation_fraction=None."
        )
    if checkpoint_path_of(network) is not None:
        raise ValueError(
            "A checkpoint is that of one fit, and every batch is another one. Use "
            "checkpoint_path=None for partial_fit, and keep the estimator itself "
            "(pickle, skops) between batches."
        )
    if hasattr(network, "posterior_"):
        past = posterior_to_continue(network)
        check_next_prior(past.unrefined.as_normal(), network.posterior_family_)
        if past is not network.posterior_:
            network._warn(ONE_OF_MANY, SkviWarning)
    if len(points := getattr(network, "deterministic", ())):
        raise IncompatibleComponentsError(
            f"deterministic={points!r} are point estimates, without a posterior "
            "that could be the prior of the next batch. Use deterministic=() for "
            "partial_fit."
        )


def posterior_to_continue(network: Any) -> Any:
    """A member of the mixture that "auto" fitted: its networks differ by chance."""
    if not (network._is_auto("posterior") and len(network.posterior_.components) > 1):
        return network.posterior_
    one = copy(network.posterior_.components[0])
    one.units = network.posterior_.units
    return one
