"""What every posterior and every family must implement."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Self

import torch

from skvi.base import Draw, Layout, NormalForm
from skvi.base._component import Component, JointDensity
from skvi.base._draw import Side
from skvi.base._layout import Units
from skvi.utils._tensors import Movable

__all__ = ["Family", "Posterior"]


class Posterior(Movable):
    """A posterior with tensors: what `Family.build` returns.

    Attributes
    ----------
    layout : Layout
    params : Tensor of shape (n_variational,)
        All variational parameters in one flat vector.
    side : {"exact", "upper", "lower", "none"}
        Whether `log_prob` and the log densities of draws are exact, an upper or a lower
        bound, or unavailable.

    Notes
    -----
    A posterior is never changed by the code that uses it: `at` gives one with other
    variational parameters, `near` one close to a normal, `with_parts` one with other
    parts.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.posteriors import FullRankNormal
    >>> posterior = FullRankNormal().build(Layout({"coef": (1, 3)}))
    >>> posterior.params.shape
    torch.Size([9])
    """

    side: Side = "exact"
    #: Whether coordinates are independent, so that layers can be sampled locally.
    is_diagonal = False
    #: Positions that a normal's precision is not diagonal in; None if it has no border.
    border: torch.Tensor | None = None
    #: Whether `log_prob_terms` is available: q is a product over coordinates or groups.
    has_log_prob_terms = False
    #: Whether draws move with all of `params`: not with the weights of a mixture, for
    #: which there is `draw_strata`.
    has_full_path = True
    #: Whether `path_log_q` costs about as much as a draw; `log_prob` may cost far more.
    has_quick_path = False
    #: Whether fits start near that of a normal: other solvers cannot find a start.
    starts_at_normal = False
    #: Fraction of a stochastic solver's step size that suits `params`, and the fewest
    #: draws of a step, if these are left to the solver.
    rate_share = 1.0
    least_draws = 1
    #: Units of the data, if the fit standardized the target: a fit that takes the
    #: posterior as its prior uses the same units.
    units: Units | None = None
    #: Number of samples that draws repeat; None if every draw is a new one.
    n_stored: int | None = None
    #: What `refine` applies, as a function of the posterior and its arguments.
    refinement: "Callable[..., Posterior] | None" = None
    layout: Layout
    params: torch.Tensor

    def __repr__(self) -> str:
        """List the blocks; equal for posteriors of the same kind."""
        blocks = ", ".join(f"{name}{b.shape}" for name, b in self.layout.items())
        return f"<{type(self).__name__.strip('_')} of {blocks}>"

    def at(self, params: torch.Tensor) -> Self:
        """Posterior of the same family with other variational parameters.

        Parameters
        ----------
        params : Tensor of shape (n_variational,)

        Returns
        -------
        Posterior
            Everything except `params` is shared.
        """
        other = copy(self)
        other.params = params
        return other

    def paces(self, of_theta: torch.Tensor) -> torch.Tensor:
        """Relative step sizes of `params` that suit a stochastic solver.

        Parameters
        ----------
        of_theta : Tensor of shape (P,)
            Those of parameters themselves.

        Returns
        -------
        Tensor of shape (n_variational,)
            By default the smallest of them for all, at most 1.
        """
        return of_theta.min().clamp(max=1.0).expand(len(self.params))

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw theta, with its log density, differentiable in `params`.

        Parameters
        ----------
        n_draws : int
            S.
        generator : torch.Generator

        Returns
        -------
        Draw
            Independent draws, (S, P), and log q of each of them in nats: exact, or
            the bound that `side` names.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement draw.")

    def draw_strata(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw for the gradient of an expectation, which may weigh the draws.

        Parameters
        ----------
        n_draws : int
            At least S.
        generator : torch.Generator

        Returns
        -------
        Draw
            With `weight`, differentiable in all of `params`; by default that of `draw`.
        """
        return self.draw(n_draws, generator)

    def draw_below(self, n_draws: int, generator: torch.Generator) -> Draw | None:
        """Draw theta with a lower bound of its log density, as `draw` has an upper one.

        Parameters
        ----------
        n_draws : int
            S.
        generator : torch.Generator

        Returns
        -------
        Draw or None
            Its side is "lower"; None by default: there is no such bound.
        """
        return None

    def log_q(self, draw: Draw, params: torch.Tensor | None = None) -> torch.Tensor:
        """Log density of draws, or its bound, at other variational parameters.

        Parameters
        ----------
        draw : Draw
            A draw from this family.
        params : Tensor of shape (n_variational,), default=None
            As in `log_prob`.

        Returns
        -------
        Tensor of shape (S,)
            In nats. `log_prob` by default; a family whose density is only known given
            an auxiliary variable uses that of the draw.
        """
        return self.log_prob(draw.theta, params)

    def path_log_q(self, draw: Draw) -> torch.Tensor:
        """Log density of draws, which changes where they move, but not in itself.

        Without the derivative in the parameters at fixed draws, whose mean is 0, the
        gradient of the ELBO has no noise if q is the posterior (Roeder et al. 2017,
        *Sticking the landing*).

        Parameters
        ----------
        draw : Draw
            A draw from this posterior.

        Returns
        -------
        Tensor of shape (S,)
            In nats, or its bound, as of `log_q`.
        """
        return self.log_q(draw, self.params.detach())

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log density at points.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        params : Tensor of shape (n_variational,), default=None
            Used in place of the posterior's own parameters, for example detached.

        Returns
        -------
        Tensor of shape (S,)
            In nats, with all constants; see `side`.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement log_prob.")

    def normal(self, params: torch.Tensor | None = None) -> NormalForm:
        """Normal of these variational parameters, differentiable in them.

        A family whose `as_normal` is not None must implement it.

        Parameters
        ----------
        params : Tensor of shape (n_variational,), default=None
            As in `log_prob`.

        Returns
        -------
        NormalForm
            Over all P parameters.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement normal.")

    def log_prob_terms(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log density of every independent coordinate, or group of coordinates.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        params : Tensor of shape (n_variational,), default=None
            As in `log_prob`. Each element belongs to one group only.

        Returns
        -------
        Tensor of shape (S, G)
            In nats; the sum over groups is `log_prob`.
        """
        raise NotImplementedError

    def groups(self) -> torch.Tensor:
        """Number of the group that each coordinate is in; see `log_prob_terms`.

        Returns
        -------
        Tensor of int of shape (P,)
            By default each coordinate is one.
        """
        return torch.arange(self.layout.size, device=self.params.device)

    def near(self, normal: NormalForm) -> Self:
        """Posterior of the same family as close to a normal as the family allows.

        Used to start fits. A family whose `as_normal` is not None must implement it,
        and return the normal itself, or the closest member of the family.

        Parameters
        ----------
        normal : NormalForm
            Over all P parameters.

        Returns
        -------
        Posterior
            By default, the posterior itself.
        """
        if self.as_normal() is not None:
            raise NotImplementedError(f"{type(self).__name__} must implement near.")
        return self

    def near_modes(self, normals: Sequence[NormalForm]) -> Self:
        """Posterior of the same family that covers several modes if the family can.

        Parameters
        ----------
        normals : sequence of NormalForm
            One near each mode, the best one first.

        Returns
        -------
        Posterior
            By default, `near` the first one.
        """
        return self.near(normals[0])

    def refine(self, target: JointDensity, generator: torch.Generator) -> "Posterior":
        """Improve the solver's result, once, before attributes are set.

        Parameters
        ----------
        target : Target
            Target with all data of the fit, at the fitted hyperparameters.
        generator : torch.Generator

        Returns
        -------
        Posterior
            A posterior over the same layout, of this family or another; by default the
            posterior itself. The fit uses it instead of the solver's result, and
            estimates its ELBO.
        """
        if self.refinement is None:
            return self
        return self.refinement(self, target, generator)

    @property
    def unrefined(self) -> "Posterior":
        """The posterior that the solver found, before `refine`.

        Warm starts, evidences and priors of other data use it.
        """
        return self

    @property
    def parts(self) -> Mapping[tuple[str, ...], "Posterior"]:
        """Independent posteriors by the names of their blocks, each over its layout.

        A posterior that does not factorize is its own single part.
        """
        return {tuple(self.layout): self}

    def with_parts(self, parts: Mapping[tuple[str, ...], "Posterior"]) -> "Posterior":
        """Posterior with some of its parts replaced.

        Parameters
        ----------
        parts : mapping of tuple of str to Posterior
            Keys of `parts`, with posteriors of the same families.

        Returns
        -------
        Posterior
        """
        return parts.get(tuple(self.layout), self)

    def part(self, name: str) -> "Posterior":
        """Part that a block belongs to.

        Parameters
        ----------
        name : str

        Returns
        -------
        Posterior
            One of `parts`.
        """
        return next(part for names, part in self.parts.items() if name in names)

    @property
    def components(self) -> tuple["Posterior", ...]:
        """Components of a mixture with equal weights, each trained as if alone.

        A posterior that is not a mixture is its own single component.
        """
        return (self,)

    def with_components(self, components: Sequence["Posterior"]) -> "Posterior":
        """Posterior with its components replaced.

        Parameters
        ----------
        components : sequence of Posterior
            As many as `components`, of the same families.

        Returns
        -------
        Posterior
        """
        return components[0]

    def real_part(self) -> "Posterior":
        """Marginal posterior of the blocks that can take every real value.

        Returns
        -------
        Posterior
            Without positive blocks, such as precisions; the posterior itself if there
            are none.
        """
        return self

    def as_prior(self) -> "Posterior":
        """Posterior in the role of the prior of other data.

        Returns
        -------
        Posterior
            Itself by default; a mixture over scales is replaced by a normal.
        """
        return self

    def as_normal(self) -> NormalForm | None:
        """View the posterior as a detached normal.

        Returns
        -------
        NormalForm or None
            None if the posterior is not normal.
        """
        return None


class Family(Component):
    """Base class of families: a subclass must implement `build`.

    Examples
    --------
    >>> from skvi.posteriors import Family, MeanFieldNormal
    >>> isinstance(MeanFieldNormal(), Family)
    True
    """

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build a posterior over a layout, at its starting point.

        Parameters
        ----------
        layout : Layout
            The layout of theta, with P parameters.
        generator : torch.Generator, default=None
            Randomizes the starting point if the family needs it.

        Returns
        -------
        Posterior
            In float64.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement build.")

    def check_size(self, n_params: int) -> None:
        """Raise if the family is too expensive for this number of parameters.

        Parameters
        ----------
        n_params : int
            P, the length of theta.

        Raises
        ------
        ValueError
            The message names a family that can be used.
        """
