"""Priors over the parameter vector theta."""

import math
from collections.abc import Mapping
from numbers import Real

import torch

from skvi.base import Component, Layout, NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.utils._arrays import NumpyState
from skvi.utils._random import rand, randn
from skvi.utils._validation import Interval

__all__ = ["BuiltPrior", "Laplace", "Normal", "Prior", "build_prior"]

_POSITIVE = [Interval(Real, 0, None, closed="neither")]


class BuiltPrior(NumpyState):
    """A prior with tensors: what `Prior.build` returns.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.priors import Normal
    >>> Normal(scale=2.0).build(Layout({"coef": (1, 2)})).as_normal().scale
    tensor([2., 2.], dtype=torch.float64)
    """

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density at points.

        Parameters
        ----------
        theta : Tensor of shape (S, P)

        Returns
        -------
        Tensor of shape (S,)
            In nats, summed over the parameters, with all constants.
        """
        raise NotImplementedError

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        """Gradient of `log_prob` in theta.

        Parameters
        ----------
        theta : Tensor of shape (S, P)

        Returns
        -------
        Tensor of shape (S, P)
            In nats per unit of theta.
        """
        with torch.enable_grad():
            theta = theta.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.log_prob(theta).sum(), theta)
        return gradient

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Draw from the prior.

        Parameters
        ----------
        n_draws : int
            S.
        generator : torch.Generator

        Returns
        -------
        Tensor of shape (S, P)
            Independent draws.
        """
        raise NotImplementedError

    def as_normal(self) -> NormalForm | None:
        """View the prior as a normal.

        Returns
        -------
        NormalForm or None
            None where the prior is not normal.
        """
        return None

    def matching_normal(self) -> NormalForm | None:
        """Normal with the prior's mean and variances, from which solvers start.

        Returns
        -------
        NormalForm or None
            None where the prior has no such moments.
        """
        return self.as_normal()

    def tail_precision(self) -> torch.Tensor | None:
        """Quadratic decay of the log density far out.

        Returns
        -------
        Tensor of shape (P,) or None
            T, where ``log_prob`` is ``-theta' diag(T) theta / 2 + O(|theta|)``: 0
            for tails heavier than normal ones. None where it is not of this form.
        """
        normal = self.as_normal()
        if normal is None or not normal.is_diagonal:
            return None
        return normal.scale.square().reciprocal()

    @property
    def has_expected_log_prob(self) -> bool:
        """Whether `expected_log_prob` has a closed form."""
        return False

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        """E[log pi(theta)] per coordinate for theta_j ~ N(mean_j, std_j^2).

        Parameters
        ----------
        mean, std : Tensor of shape (P,)

        Returns
        -------
        Tensor of shape (P,)
            In nats, exact, differentiable; the sum is ``E[log_prob]``.
        """
        raise NotImplementedError


class Prior(Component):
    """Base class of prior specifications: a subclass owes `build`.

    Examples
    --------
    >>> from skvi.priors import Normal, Prior
    >>> isinstance(Normal(), Prior)
    True
    """

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior over every coordinate of a layout.

        Parameters
        ----------
        layout : Layout
            Of theta, or of one block of it.

        Returns
        -------
        BuiltPrior
            Over ``layout.size`` parameters, in unconstrained coordinates.

        Raises
        ------
        ValueError
            A hyperparameter is out of its range.
        """
        raise NotImplementedError


class Normal(Prior):
    """Independent N(0, scale^2) on every coefficient.

    Parameters
    ----------
    scale : float, default=1.0
        Standard deviation, in units of the block's natural size (`Block.scale`).
        1 suits standardised features.

    Examples
    --------
    >>> from skvi.priors import Normal
    >>> Normal(scale=2.5)
    Normal(scale=2.5)
    """

    _parameter_constraints: dict = {"scale": _POSITIVE}

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior over every coordinate of a layout."""
        self.validate()
        return _BuiltNormal(_full(layout, self.scale))


class Laplace(Prior):
    """Independent Laplace (double exponential) density on every coefficient.

    Parameters
    ----------
    scale : float, default=1.0
        The density is ``exp(-abs(theta) / scale) / (2 * scale)``, with standard
        deviation ``sqrt(2) * scale``; in units of the block's natural size.

    Examples
    --------
    >>> from skvi.priors import Laplace
    >>> Laplace(scale=0.5)
    Laplace(scale=0.5)
    """

    _parameter_constraints: dict = {"scale": _POSITIVE}

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior over every coordinate of a layout."""
        self.validate()
        return _BuiltLaplace(_full(layout, self.scale))


def _full(layout: Layout, scale: float) -> torch.Tensor:
    return scale * layout.natural_scales()


class _BuiltNormal(BuiltPrior):
    has_expected_log_prob = True

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return self.as_normal().log_prob(theta)

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        return -theta / self.scale.square()

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        return self.scale * randn(generator, n_draws, len(self.scale))

    def as_normal(self) -> NormalForm:
        return NormalForm(torch.zeros_like(self.scale), self.scale)

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        second_moment = (mean.square() + std.square()) / self.scale.square()
        return -0.5 * second_moment - torch.log(self.scale * math.sqrt(2 * math.pi))


class _BuiltLaplace(BuiltPrior):
    has_expected_log_prob = True

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def matching_normal(self) -> NormalForm:
        return NormalForm(torch.zeros_like(self.scale), math.sqrt(2) * self.scale)

    def tail_precision(self) -> torch.Tensor:
        return torch.zeros_like(self.scale)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return (-theta.abs() / self.scale - torch.log(2 * self.scale)).sum(1)

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        return -theta.sign() / self.scale

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        u = rand(generator, n_draws, len(self.scale)) - 0.5
        return -self.scale * u.sign() * torch.log1p(-2 * u.abs())

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        # Mean of the folded normal: E|theta|.
        z = mean / std
        density = torch.exp(-0.5 * z.square()) * math.sqrt(2 / math.pi)
        absolute = std * density + mean * torch.erf(z / math.sqrt(2))
        return -absolute / self.scale - torch.log(2 * self.scale)


class _BuiltBlocks(BuiltPrior):
    """Independent priors on the blocks of a layout."""

    def __init__(self, slices: list[slice], priors: list[BuiltPrior]) -> None:
        self.slices, self.priors = slices, priors
        self._normal = _concatenate([p.as_normal() for p in priors])

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        parts = zip(self.slices, self.priors, strict=True)
        return torch.stack([p.log_prob(theta[:, s]) for s, p in parts]).sum(0)

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        parts = zip(self.slices, self.priors, strict=True)
        return torch.cat([p.log_prob_gradient(theta[:, s]) for s, p in parts], 1)

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        return torch.cat([p.sample(n_draws, generator) for p in self.priors], 1)

    def as_normal(self) -> NormalForm | None:
        return self._normal

    def tail_precision(self) -> torch.Tensor | None:
        parts = [p.tail_precision() for p in self.priors]
        known = [part for part in parts if part is not None]
        return torch.cat(known) if len(known) == len(parts) else None

    def matching_normal(self) -> NormalForm | None:
        return _concatenate([p.matching_normal() for p in self.priors])

    @property
    def has_expected_log_prob(self) -> bool:
        return all(p.has_expected_log_prob for p in self.priors)

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        parts = zip(self.slices, self.priors, strict=True)
        return torch.cat([p.expected_log_prob(mean[s], std[s]) for s, p in parts])


def _concatenate(forms: list[NormalForm | None]) -> NormalForm | None:
    known = [form for form in forms if form is not None and form.is_diagonal]
    if len(known) < len(forms):
        return None
    mean = torch.cat([form.mean for form in known])
    return NormalForm(mean, torch.cat([form.scale for form in known]))


def build_prior(spec: Prior | Mapping[str, Prior], layout: Layout) -> BuiltPrior:
    """Build a prior, or a mapping from block names to priors, over a layout.

    Parameters
    ----------
    spec : Prior or mapping of str to Prior
        A mapping must name every block of the layout. "coef" also stands for the
        numbered blocks "coef_0", "coef_1", ... that are not named themselves.
    layout : Layout
        Of theta.

    Returns
    -------
    BuiltPrior
        Over all P parameters; blocks are independent.

    Raises
    ------
    IncompatibleComponentsError
        A mapping that names other blocks than the layout has.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.priors import Laplace, Normal, build_prior
    >>> layout = Layout({"coef": (1, 2), "intercept": (1,)})
    >>> prior = build_prior({"coef": Laplace(), "intercept": Normal(10.0)}, layout)
    >>> prior.as_normal() is None
    True
    """
    if not isinstance(spec, Mapping):
        return spec.build(layout)
    names = {name: name if name in spec else name.rpartition("_")[0] for name in layout}
    if set(spec) != set(names.values()):
        raise IncompatibleComponentsError(
            f"The prior names the blocks {sorted(spec)}, but this model has "
            f"{sorted(layout)}. Give exactly one prior for each block."
        )
    blocks = [layout[name] for name in layout]
    priors = [spec[names[name]].build(layout.only(name)) for name in layout]
    return _BuiltBlocks([block.slice for block in blocks], priors)
