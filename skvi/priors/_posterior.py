"""Fitted posteriors as priors, and the density 1 where there is none."""

import math
from copy import copy, deepcopy
from typing import Any, cast

import torch

from skvi.base import Layout, NormalForm
from skvi.base._normal_form import normal_product
from skvi.exceptions import IncompatibleComponentsError
from skvi.priors.base import BuiltPrior


def prior_of_posterior(posterior: Any, layout: Layout) -> BuiltPrior:
    """Use a copy of a fitted posterior as the prior of a model with the same layout.

    Raises IncompatibleComponentsError if its parameters are others, or its density is
    not exact.
    """
    if dict(posterior.layout) != dict(layout):
        raise IncompatibleComponentsError(
            f"The posterior that is given as prior, over {posterior.layout},",
            f"a model with the same parameters; got {layout}",
            "a posterior_ of the same features, outputs and sizes",
        )
    posterior = posterior.unrefined
    if posterior.side != "exact":
        raise IncompatibleComponentsError(
            "A posterior that is given as prior",
            "an exact density",
            "one of a normal family, such as posterior='full_rank'",
        )
    scales = getattr(posterior, "log_scales", None)
    if scales is not None and scales.ndim == 1:
        return MixtureAsPrior(deepcopy(posterior))
    return _PosteriorAsPrior(deepcopy(posterior.as_prior()))


class _PosteriorAsPrior(BuiltPrior):
    def __init__(self, posterior: Any) -> None:
        self.posterior = posterior

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return self.posterior.log_prob(theta)

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        with torch.no_grad():
            return self.posterior.draw(n_draws, generator).theta

    def as_normal(self) -> NormalForm | None:
        return self.posterior.as_normal()

    def matching_normal(self) -> NormalForm | None:
        normal = self.as_normal()
        return normal and NormalForm(normal.mean, normal.variance.sqrt())


class MixtureAsPrior(_PosteriorAsPrior):
    """A mixture over the scales of an earlier prior, which keep their weights.

    `log_scales` are the logs of the scales, in ascending order. `first` is the earlier
    prior, with which others can be added; None if it is unknown.
    """

    def __init__(self, posterior: Any) -> None:
        super().__init__(posterior)
        self.log_scales = posterior.log_scales.tolist()
        self.first: BuiltPrior | None = None

    @property
    def can_reach_further(self) -> bool:
        """Whether scales can be added: at equal steps, under normals."""
        if self.first is None or len(self.log_scales) < 2:
            return False
        return self.first.given_scale(1.0).as_normal() is not None

    def with_one_beyond(self, end: int) -> "MixtureAsPrior":
        """With one more scale, below all for 0, above for -1.

        The posterior there is that at the last scale, times the ratio of the earlier
        prior at both: exact where what the data said is normal.
        """
        prior, logs = cast(BuiltPrior, self.first), self.log_scales
        last, beside = logs[end], logs[1 if end == 0 else -2]
        log_scale = 2 * last - beside
        node = self.posterior.nodes[end]
        p, q = (prior.given_scale(math.exp(z)).as_normal() for z in (last, log_scale))
        normal, constant = normal_product(
            (node.as_normal(), 1.0),
            (cast(NormalForm, p), -1.0),
            (cast(NormalForm, q), 1.0),
        )
        z, new = (self.posterior.log_scales.new_tensor(v) for v in (last, log_scale))
        ratio = prior.log_density_of_scale(new) - prior.log_density_of_scale(z)
        log_weight = self.posterior.log_weights[end] + constant + ratio
        place = 0 if end == 0 else len(logs)
        nodes, weights = list(self.posterior.nodes), self.posterior.log_weights.tolist()
        nodes.insert(place, node.near(normal))
        weights.insert(place, float(log_weight))
        found = copy(self)
        found.log_scales = [*logs[:place], log_scale, *logs[place:]]
        found.posterior = type(self.posterior)(nodes, weights, found.log_scales)
        return found

    def unit_of_scale(self, part: int | None = None) -> float:
        """That of the earlier prior, with whose scales this one has nodes."""
        return 1.0 if self.first is None else self.first.unit_of_scale(part)

    def named_scales(self) -> dict[str, int]:
        """Those of the earlier prior."""
        return {} if self.first is None else self.first.named_scales()

    def _at(self, log_scale: float) -> int:
        distances = (self.posterior.log_scales - log_scale).abs()
        return int(distances.argmin())

    def given_scale(self, scale: float, part: int | None = None) -> BuiltPrior:
        """The posterior at the nearest of the scales."""
        node = self.posterior.nodes[self._at(math.log(scale))]
        return _PosteriorAsPrior(node)

    def log_density_of_scale(
        self, log_scale: torch.Tensor, part: int | None = None
    ) -> torch.Tensor:
        """Log of the weight of the nearest scale."""
        return self.posterior.log_weights[self._at(float(log_scale))]

    def as_one(self) -> BuiltPrior:
        """The normal with the moments of the mixture."""
        return _PosteriorAsPrior(self.posterior.as_prior())

    def matching_normal(self) -> NormalForm | None:
        """Factorized normal with the means and variances of the mixture."""
        return self.as_one().matching_normal()


class FlatReference(BuiltPrior):
    """Density 1 everywhere: its log adds nothing.

    It is used if a divergence compares q with the prior and there is none: ``KL(q ||
    1)`` is ``E_q[log q]``, and the loss is minus the whole log joint density.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import NormalForm
    >>> from skvi.divergences import KLDivergence
    >>> from skvi.priors._posterior import FlatReference
    >>> q = NormalForm(torch.zeros(1), torch.ones(1))
    >>> bool(KLDivergence().closed_form(q, FlatReference()) == -q.entropy())
    True
    """

    is_proper = False
    is_log_concave = True
    has_log_prob_terms = True
    has_expected_log_prob = True

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Zeros, (S,)."""
        return torch.zeros_like(theta[:, 0])

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        """Zeros, (S, P)."""
        return torch.zeros_like(theta)

    def log_prob_terms(self, theta: torch.Tensor) -> torch.Tensor:
        """Zeros, (S, P)."""
        return torch.zeros_like(theta)

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        """Zeros, (P,)."""
        return torch.zeros_like(mean)
