"""Fits to one batch after the other: yesterday's posterior is today's prior."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, cast

import torch

from skvi._estimator._model import Response
from skvi.base import NormalForm
from skvi.base._normal_form import normal_product
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors import Posterior
from skvi.posteriors._mixture import MixtureOverScales
from skvi.priors import BuiltPrior
from skvi.utils._validation import Interval, validate_arguments


@dataclass(frozen=True, eq=False)
class Past:
    """What a stream has seen: numbers for the diagnostics, and its first prior.

    `rows` have the sums of all that were seen, where such rows are all that matters.
    """

    n_batches: int
    n_rows: int
    sum_of_bounds: float
    prior: BuiltPrior | None = None
    rows: Any = None

    def and_then(self, batch: "Past") -> "Past":
        """With one more batch."""
        return replace(
            self,
            n_batches=self.n_batches + 1,
            n_rows=self.n_rows + batch.n_rows,
            sum_of_bounds=self.sum_of_bounds + batch.sum_of_bounds,
        )


@dataclass(frozen=True, eq=False)
class Stream:
    """What a batch takes from those before it.

    All are None in a first batch, except a response that was given in advance. `prior`
    is the first one; `total_weight` that of the rows before.
    """

    response: Response | None = None
    posterior: Posterior | None = None
    noise_scale: Any = None
    prior: BuiltPrior | None = None
    total_weight: float = 0.0


def learn_batch(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    rows: Any,
    *,
    response: Response | None = None,
    forgetting: float = 1.0,
) -> Any:
    """Fit one more batch; if that fails, stay at the batches before, if any.

    `response` is that of a first batch, if it is announced, or has new classes.
    """
    estimator._check_stream()
    check_forgetting(estimator, forgetting)
    is_first = not estimator.__sklearn_is_fitted__()
    past = None if is_first else _past_of(estimator)
    with unchanged_by_errors(estimator):
        estimator._stream = Stream(response)
        if past is not None:
            if response is not None:
                past = estimator._with_new_classes(past, response)
            response = response or estimator._model.response
            estimator._stream = _stream_of(estimator, past, response, forgetting)
        estimator._fit(X, y, sample_weight, rows)
        del estimator._stream
        found = _past_of(estimator)
        remember(estimator, found if past is None else past.and_then(found))
    return estimator


def check_forgetting(estimator: Any, forgetting: Any) -> None:
    """Raise unless it is a power in (0, 1]."""
    allowed = {"forgetting": [Interval(Real, 0, 1, closed="right")]}
    name, given = type(estimator).__name__, {"forgetting": forgetting}
    validate_arguments(name, given, allowed)


def remember(estimator: Any, past: Past) -> None:
    """Keep what was seen, and say so in the diagnostics."""
    estimator._past = past
    names = ("n_batches", "n_rows", "sum_of_bounds")
    estimator.diagnostics_ |= {name: getattr(past, name) for name in names}


@contextmanager
def unchanged_by_errors(estimator: Any) -> Iterator[None]:
    """Restore an estimator if a block raises anything, Ctrl-C included."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def _past_of(estimator: Any) -> Past:
    """What a fitted estimator has seen: one batch, if it was fitted by `fit`."""
    past: Past | None = vars(estimator).get("_past")
    if past is not None:
        return past
    model, n_rows = estimator._model, estimator._fingerprint[0]
    prior = model.bound_prior(estimator._hyper)
    return Past(1, n_rows, estimator.lower_bound_, prior)


def _stream_of(
    estimator: Any, past: Past, response: Response, forgetting: float
) -> Stream:
    posterior = estimator._posterior_to_continue()
    if forgetting < 1:
        posterior = _flattened(posterior, past.prior, forgetting)
    noise = vars(estimator).get("noise_scale_")
    weight = forgetting * estimator._total_weight
    return Stream(response, posterior, noise, past.prior, weight)


def check_next_prior(normal: NormalForm | None, given: Any) -> None:
    """Raise if a posterior, of the family that was given, has no normal as a prior."""
    if normal is None:
        raise IncompatibleComponentsError(
            "partial_fit",
            f"a normal posterior, the prior of the next batch; got posterior={given!r}",
            "posterior='mean_field', 'low_rank' or 'full_rank'",
        )


def _flattened(
    posterior: Posterior, prior: BuiltPrior | None, power: float
) -> Posterior:
    """``posterior^power prior^(1 - power)``, normalized: the rows before count less.

    A prior that is not normal is replaced by a normal of its scale. The weights of a
    mixture over scales are those of the joint density of scale and parameters.
    """
    if isinstance(posterior, MixtureOverScales) and not posterior.layout.positive:
        if posterior.log_scales is not None and posterior.log_scales.ndim > 1:
            posterior = posterior.as_prior()
    if not isinstance(posterior, MixtureOverScales) or posterior.layout.positive:
        posterior = posterior.unrefined
        own = posterior.as_normal()
        first = None if prior is None else prior.matching_normal()
        if own is None or first is None:
            raise IncompatibleComponentsError(
                f"forgetting={power!r}",
                "a normal posterior, without unknown numbers of the likelihood",
                "given numbers, such as noise_scale, or forgetting=1.0",
            )
        return posterior.near(normal_product((own, power), (first, 1 - power))[0])
    scales, nodes, logs = cast(BuiltPrior, prior), [], []
    pairs = zip(posterior.nodes, posterior.log_scales, strict=True)
    for (node, z), log_w in zip(pairs, posterior.log_weights, strict=True):
        first = scales.given_scale(float(z.exp())).matching_normal()
        parts = (node.as_normal(), power), (first, 1 - power)
        normal, constant = normal_product(*parts)
        nodes.append(node.near(normal))
        rest = (1 - power) * scales.log_density_of_scale(z)
        logs.append(power * log_w + rest + constant)
    log_w = torch.log_softmax(torch.stack(logs), 0)
    found = MixtureOverScales(nodes, log_w.tolist(), posterior.log_scales.tolist())
    found.units = posterior.units
    return found
