"""Fits to one batch after the other: yesterday's posterior is today's prior."""

from dataclasses import dataclass
from typing import Any

from skvi._model import Response
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors import Posterior

__all__ = ["Stream", "check_next_prior", "fit_batch"]


@dataclass(frozen=True, eq=False)
class Stream:
    """What a batch takes from those before it: response, posterior and noise scale.

    All are None in a first batch, except a response that was given in advance.
    """

    response: Response | None = None
    posterior: Posterior | None = None
    noise_scale: Any = None


def fit_batch(
    network: Any, X: Any, y: Any, sample_weight: Any, response: Response | None = None
) -> Any:
    """Fit one more batch; if that fails, stay at the batches before, if any."""
    _check(network)
    before = dict(vars(network)) if network.__sklearn_is_fitted__() else None
    if before is not None:
        noise = before.get("noise_scale_")
        network._stream = Stream(network._model.response, network.posterior_, noise)
    else:
        network._stream = Stream(response)
    try:
        return network._fit(X, y, sample_weight)
    except BaseException:
        if before is not None:
            vars(network).clear()
            vars(network).update(before)
        raise
    finally:
        vars(network).pop("_stream", None)


def _check(network: Any) -> None:
    """Raise if a posterior of these parameters cannot be the next prior."""
    if network.early_stopping or network.validation_fraction is not None:
        raise ValueError(
            f"early_stopping={network.early_stopping!r} and validation_fraction="
            f"{network.validation_fraction!r} are for fits: partial_fit makes the "
            "posterior of each batch the prior of the next one, so that every "
            "batch must be learned to its end, from all of its rows. Use "
            "early_stopping=False and validation_fraction=None."
        )
    if network.checkpoint_path is not None:
        raise ValueError(
            "A checkpoint is that of one fit, and every batch is another one. Use "
            "checkpoint_path=None for partial_fit, and keep the estimator itself "
            "(pickle, skops) between batches."
        )
    if len(points := getattr(network, "deterministic", ())):
        raise IncompatibleComponentsError(
            f"deterministic={points!r} are point estimates, without a posterior that "
            "could be the prior of the next batch. Use deterministic=() for "
            "partial_fit."
        )


def check_next_prior(posterior: Posterior, given: Any) -> None:
    """Raise if a posterior, of the family that was given, cannot be a prior."""
    if posterior.as_normal() is None:
        raise IncompatibleComponentsError(
            f"partial_fit makes the posterior the prior of the next batch, which "
            f"must be normal: posterior={given!r} is not. Use "
            "posterior='mean_field', 'low_rank' or 'full_rank'."
        )
