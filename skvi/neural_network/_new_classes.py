"""New outputs of a network for new classes, while what was learned is carried."""

from dataclasses import replace
from math import sqrt

import numpy as np
import torch

from skvi.base import NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors import MeanFieldNormal
from skvi.predictors import MLPPredictor
from skvi.priors._posterior import prior_of_posterior

__all__ = ["with_new_classes"]


def with_new_classes(estimator, past, labels):
    """Give a classifier the outputs of more classes; the past with their prior.

    The posterior of other layers, and of known classes, stays; that of a new class is
    the first prior. Two classes, which have one output f, become the outputs -f/2 and
    f/2, each with half of its variance.
    """
    own = estimator.posterior_.unrefined.as_normal()
    first = past.prior.matching_normal()
    if own is None or not own.is_diagonal or first is None:
        raise IncompatibleComponentsError(
            f"posterior={estimator.posterior!r} and prior={estimator.prior!r} cannot "
            "get more classes. Use posterior='mean_field', and a prior with a scale."
        )
    old, n_classes = estimator._model.predictor, len(labels.classes)
    inner = old.sizes[1:-1], old.activation_name
    new = MLPPredictor(
        old.sizes[0],
        n_classes,
        *inner,
        *estimator._scales,
        skip_outputs=range(n_classes) if old.skip_outputs else (),
    )
    where = np.searchsorted(labels.classes, estimator.classes_)
    family = MeanFieldNormal().build(new.layout)
    prior = _widened(first, first, old.layout, new.layout, where)
    posterior = _widened(own, first, old.layout, new.layout, where)
    estimator.posterior_ = family.near(posterior)
    estimator.classes_ = labels.classes
    return replace(past, prior=prior_of_posterior(family.near(prior), new.layout))


def _widened(normal, first, old, new, where):
    """A normal with the outputs of a new layout, `where` those that it has are.

    The others are as the first output of another normal.
    """
    outputs = [-0.5, 0.5], [sqrt(0.5)] * 2  # of one output, means and deviations
    parts = []
    pairs = (normal.mean, first.mean), (normal.scale, first.scale)
    for (own, other), factors in zip(pairs, outputs, strict=True):
        both = old.unpack(torch.stack([own, other]))
        blocks = {name: values[0] for name, values in both.items()}
        for name, block in new.items():
            known = blocks[name]
            if known.shape != block.shape:
                if known.shape[-1] == 1:
                    known = known * known.new_tensor(factors)
                wide = both[name][1, ..., :1].expand(block.shape).clone()
                wide[..., where] = known
                blocks[name] = wide
        parts.append(torch.cat([blocks[name].flatten() for name in new]))
    return NormalForm(*parts)
