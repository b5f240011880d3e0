"""Fits to one batch after the other: yesterday's posterior is today's prior."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from skvi._model import Response
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors import Posterior

__all__ = ["Stream", "StreamMixin"]


@dataclass(frozen=True, eq=False)
class Stream:
    """What a batch takes from those before it: response, posterior and noise scale.

    All are None in a first batch, except a response that was given in advance.
    """

    response: Response | None = None
    posterior: Posterior | None = None
    noise_scale: Any = None


class StreamMixin:
    """Mixin of networks: `_partial_fit`, and the stream that a fit is a part of."""

    _stream: Stream | None = None

    @property
    def _continues(self):
        """Whether the fit goes on with the posterior of the last one."""
        return self._stream is not None and self._stream.posterior is not None

    def _partial_fit(self, X, y, sample_weight, response=None):
        """Fit one more batch; if that fails, stay at the batches before, if any."""
        self._check_stream()
        before = dict(vars(self)) if self.__sklearn_is_fitted__() else None
        if before is not None:
            noise = before.get("noise_scale_")
            response = self._model.response
            self._stream = Stream(response, self.posterior_, noise)
        else:
            self._stream = Stream(response)
        try:
            return self._fit(X, y, sample_weight)
        except BaseException:
            if before is not None:
                vars(self).clear()
                vars(self).update(before)
            raise
        finally:
            vars(self).pop("_stream", None)

    def _check_stream(self):
        """Raise if a posterior of these parameters cannot be the next prior."""
        if self.early_stopping or self.validation_fraction is not None:
            raise ValueError(
                f"early_stopping={self.early_stopping!r} and validation_fraction="
                f"{self.validation_fraction!r} are for fits: partial_fit makes the "
                "posterior of each batch the prior of the next one, so that every "
                "batch must be learned to its end, from all of its rows. Use "
                "early_stopping=False and validation_fraction=None."
            )
        if self.checkpoint_path is not None:
            raise ValueError(
                "A checkpoint is that of one fit, and every batch is another one. Use "
                "checkpoint_path=None for partial_fit, and keep the estimator itself "
                "(pickle, skops) between batches."
            )

    def _resolve_prior(self):
        return self._stream.posterior if self._continues else super()._resolve_prior()

    def _check_posterior(self, posterior):
        super()._check_posterior(posterior)
        if self._stream is not None and posterior.as_normal() is None:
            raise IncompatibleComponentsError(
                f"partial_fit makes the posterior the prior of the next batch, which "
                f"must be normal: posterior={self.posterior!r} is not. Use "
                "posterior='mean_field', 'low_rank' or 'full_rank'."
            )

    def _noise_to_fix(self):
        """`noise_scale`, or what the first batch learned."""
        learned = isinstance(self.noise_scale, str)
        if self._continues and learned:
            return np.asarray(self._stream.noise_scale)[()]
        return self.noise_scale
