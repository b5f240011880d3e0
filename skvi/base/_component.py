"""Components: hyperparameters only, and the protocols that they share."""

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any, Protocol, Self

import torch
from sklearn.base import BaseEstimator

from skvi.base._draw import Draw
from skvi.base._layout import Layout
from skvi.base._normal_form import NormalForm
from skvi.expectations._rules import Expectations
from skvi.utils._rows import RowBuffers, RowPass
from skvi.utils._validation import validate_parameters


class Component(BaseEstimator):
    """A specification: a scikit-learn object that holds hyperparameters only.

    Components have `get_params`, `set_params`, `clone` and `repr`, hold no
    tensors and are never changed by a fit. Their parameters are checked when
    they are used, through `validate`.

    Examples
    --------
    >>> from skvi.divergences import RenyiDivergence
    >>> RenyiDivergence(alpha=0.5).get_params()
    {'alpha': 0.5}
    """

    _parameter_constraints: dict = {}
    _validate_params = validate_parameters

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        # Cached, because inspecting a signature can take longer than a fit.
        return super()._get_param_names()

    @classmethod
    @cache
    def _defaults(cls) -> dict[str, Any]:
        parameters = signature(cls).parameters
        return {name: parameters[name].default for name in cls._get_param_names()}

    @classmethod
    @cache
    def _validate_defaults(cls) -> None:
        cls()._validate_params()

    def validate(self) -> None:
        """Check the parameters.

        Raises
        ------
        ValueError
            The message says what was given and what is allowed.
        """
        given, defaults = vars(self), self._defaults()
        if all(given.get(name) is value for name, value in defaults.items()):
            self._validate_defaults()
        else:
            self._validate_params()


#: A log density and its gradient, from theta and rows.
RowSlopes = Callable[
    [torch.Tensor, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]
]


class Density(Protocol):
    """A log density over theta."""

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density at points, (S,)."""
        ...


class Proposal(Density, Protocol):
    """A density that can be drawn from."""

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Independent draws, (S, P)."""
        ...


class HasNormal(Protocol):
    """An object that can be a normal distribution."""

    def as_normal(self) -> NormalForm | None:
        """The normal, detached; None if it is not one."""
        ...


class JointDensity(Protocol):
    """Interface of targets for posteriors: see `skvi.targets.Target`."""

    @property
    def prior(self) -> "PriorDensity | None":
        """The prior in the density, if it has one."""
        ...

    @property
    def n_rows(self) -> int:
        """Number of rows of the data; 0 if there are none."""
        ...

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log density of data and parameters at points, (S,)."""
        ...

    def with_prior(self) -> Self:
        """Return the target with the prior that is known."""
        ...

    def passes(self, n_draws: int, n_rows: int) -> RowSlopes | None:
        """Return the log likelihood and its gradient, or None for no fast way."""
        ...


class PriorDensity(Proposal, HasNormal, Protocol):
    """Interface of built priors for divergences: see `skvi.priors.BuiltPrior`."""

    @property
    def is_proper(self) -> bool: ...

    @property
    def has_log_prob_terms(self) -> bool: ...

    @property
    def has_expected_log_prob(self) -> bool: ...

    def matching_normal(self) -> NormalForm | None: ...

    def tail_precision(self) -> torch.Tensor | None: ...

    def log_prob_terms(self, theta: torch.Tensor) -> torch.Tensor: ...

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor: ...

    def expected_log_prob(
        self, mean: torch.Tensor, std: torch.Tensor
    ) -> torch.Tensor: ...


class PosteriorDensity(HasNormal, Protocol):
    """Interface of posteriors for divergences: see `skvi.posteriors.Posterior`."""

    layout: Layout

    def normal(self) -> NormalForm: ...

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw: ...

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor: ...


class ConditionalDensity(Protocol):
    """Interface of likelihoods for losses: see `skvi.likelihoods.Likelihood`."""

    @property
    def learned(self) -> tuple[str, ...]: ...

    @property
    def scale_outputs(self) -> tuple[int, ...]: ...

    @property
    def _length_scale(self) -> float: ...

    @property
    def is_log_concave(self) -> bool: ...

    @property
    def tail_curvature(self) -> float | None: ...

    def bind(self, hyper: torch.Tensor) -> "ConditionalDensity": ...

    def _row_pass(self, buffers: RowBuffers) -> RowPass | None: ...

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor: ...

    def _total_log_prob(
        self, f: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor: ...

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor: ...

    def _log_escort_power(
        self, f: torch.Tensor, y: torch.Tensor, c: float
    ) -> torch.Tensor: ...

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations: ...

    def _expectations(
        self,
        derivatives: Callable[[torch.Tensor, torch.Tensor], Expectations],
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations: ...

    def _expected_density_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations: ...

    def _expected_power_integral(
        self, mean: torch.Tensor, std_or_cov: torch.Tensor, c: float, refine: int = 1
    ) -> Expectations: ...

    def _expected_escort_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations: ...
