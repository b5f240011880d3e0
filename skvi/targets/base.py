"""What every target must implement."""

from copy import copy
from typing import TYPE_CHECKING, Any, Self

import torch

from skvi.base import Layout, NormalForm
from skvi.base._component import RowSlopes
from skvi.priors import BuiltPrior
from skvi.priors._posterior import FlatReference
from skvi.targets._whitened import WhitenedTarget
from skvi.utils._interrupts import check_time
from skvi.utils._tensors import CPU, Movable

if TYPE_CHECKING:
    from skvi.targets._precisions import ConjugateForm, Hyperprior

__all__ = ["Target"]

# Draws evaluated at once.
BATCH_DRAWS = 256
FLAT = FlatReference()


class Target(Movable):
    """A log joint density over a layout: everything else is an optional capability.

    A subclass must implement `layout` and `log_joint`. Further capabilities are
    declared by `has_design`, and by what its methods return:
    code that uses a capability checks for it, and reports what is missing.

    Attributes
    ----------
    layout : Layout
        The layout of theta, with P parameters.
    prior : BuiltPrior or None
        The prior contained in the log joint density. Without one the ELBO is ``E_q[log
        joint - log q]``; components that need a prior raise an error.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout
    >>> from skvi.targets import Target
    >>> class Bell(Target):
    ...     layout = Layout({"coef": (1,)})
    ...
    ...     def log_joint(self, theta, rows=None):
    ...         return -0.5 * theta.square().sum(1)
    >>> Bell().log_joint_gradient(torch.tensor([[2.0]]))
    tensor([[-2.]])
    """

    layout: Layout
    prior: BuiltPrior | None = None
    #: Whether theta determines the losses; else `elbo_draws` estimates the ELBO.
    has_density: bool = True
    #: Unconstrained point parameters, besides theta: a fit learns them by type-II
    #: maximum likelihood. `point_layout` says what they are.
    hyper: torch.Tensor = torch.zeros(0, dtype=torch.float64, device=CPU)
    #: Whether f is linear in theta, and `predictor` and `X` have the design matrix:
    #: `loss_terms`, Newton steps, and modes of the likelihood alone; f is normal under
    #: a normal q, and `expected_loss` and `expected_loss_terms` need no draws.
    has_design = False
    #: Whether the log joint density is known to be concave: there is one mode.
    is_log_concave = False
    #: Hyperprior of a precision in theta, beside what the predictor needs; None if
    #: theta has none. No chain returns from its draws: chains start near the fit, as
    #: they do without a prior.
    noise_hyperprior: "Hyperprior | None" = None
    #: Remedy if a learned parameter of the likelihood degenerates to 0.
    floor_remedy = "fix it at a number"

    @property
    def reference(self) -> BuiltPrior:
        """Density that divergences compare q with: the prior, or 1 without one."""
        prior = self.prior  # which may be bound anew at every access
        return FLAT if prior is None else prior

    @property
    def symmetry(self) -> Any:
        """Finite group that leaves the data's part unchanged, a `Symmetry`, or None."""
        return None

    def initial_normal(self, generator: torch.Generator) -> NormalForm | None:
        """Start of a fit.

        Parameters
        ----------
        generator : torch.Generator

        Returns
        -------
        NormalForm or None
            A normal over theta. None if the family's own start near 0 suffices.
        """
        return None

    def images(self, theta: torch.Tensor) -> torch.Tensor:
        """Points where the density may be as large as at a given one.

        Parameters
        ----------
        theta : Tensor of shape (P,)

        Returns
        -------
        Tensor of shape (M, P)
            Such as with labels switched; by default none.
        """
        return theta[None][:0]

    def at(self, hyper: torch.Tensor) -> Self:
        """Target with other hyperparameters.

        Parameters
        ----------
        hyper : Tensor of shape (H,)
            Unconstrained.

        Returns
        -------
        Target
            Everything else is shared.
        """
        other = copy(self)
        other.hyper = hyper
        return other

    def with_prior(self) -> Self:
        """Return the target with the prior that is known, if it was given apart.

        Returns
        -------
        Target
            By default the target itself.
        """
        return self

    def frozen(self) -> Self:
        """Return the target with its point parameters fixed.

        Returns
        -------
        Target
            Itself, unless it learns something.
        """
        return self

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log joint density log p(D, theta), or its generalization by a loss.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        rows : Tensor of int, default=None
            Rows to use, scaled up to all rows; None is all rows.

        Returns
        -------
        Tensor of shape (S,)
            In nats, summed over the data, with all constants; unbiased if `rows` are
            drawn at random.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement log_joint.")

    def log_joint_by_group(
        self,
        theta: torch.Tensor,
        groups: torch.Tensor,
        rows: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, and the part of it that depends on each group.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        groups : Tensor of int of shape (P,)
            Number of the group that each coordinate is in.
        rows : Tensor of int, default=None
            As in `log_joint`.

        Returns
        -------
        value : Tensor of shape (S,)
            That of `log_joint`.
        terms : Tensor of shape (S, G) or (S, 1)
            Without the factors that no coordinate of a group is in, outside of its
            Markov blanket; by default all of it for all.
        """
        value = self.log_joint(theta, rows)
        return value, value[:, None]

    def log_joint_split(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log joint density twice, so that gradient rules can separate paths.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        rows : Tensor of int, default=None
            As in `log_joint`.

        Returns
        -------
        for_theta : Tensor of shape (S,)
            In nats; its gradient flows into `theta`, not into `hyper`.
        for_hyper : Tensor of shape (S,) or None
            The same values; the gradient flows into `hyper` only. None if nothing is
            learned.
        """
        return self.log_joint(theta, rows), None

    def expected_loss(
        self,
        posterior: Any,
        rows: torch.Tensor | None = None,
        n_draws: int = 10,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Expected loss under q: the part of the log joint without the prior.

        Parameters
        ----------
        posterior : Posterior
        rows : Tensor of int, default=None
            As in `log_joint`.
        n_draws : int, default=10
            Draws of q.
        generator : torch.Generator, default=None
            Source of the draws.

        Returns
        -------
        Tensor
            A scalar in nats, summed over the data, differentiable in the
            posterior's parameters: ``E_q[log prior - log joint]``, an unbiased
            estimate from S draws.
        """
        theta = posterior.draw(n_draws, generator).theta
        return (self.reference.log_prob(theta) - self.log_joint(theta, rows)).mean()

    def elbo_draws(
        self, posterior: Any, n_draws: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Independent estimates of the ELBO of targets without `has_density`.

        Parameters
        ----------
        posterior : Posterior
        n_draws : int
            S.
        generator : torch.Generator

        Returns
        -------
        Tensor of shape (S,)
            In nats.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement elbo_draws.")

    def tail_precision(self) -> tuple[torch.Tensor, bool] | None:
        """Quadratic decay of the log joint density in the tails.

        Returns
        -------
        precision : Tensor of shape (P,) or (P, P)
            T, such that ``log_joint <= c - theta' T theta / 2 + O(|theta|)``.
        is_exact : bool
            Whether the log joint is also above such an expression.

            None instead of both if nothing is known.
        """
        return None

    def log_joint_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        """Gradient of the log joint density in theta, from all rows.

        Parameters
        ----------
        theta : Tensor of shape (S, P)

        Returns
        -------
        Tensor of shape (S, P)
            In nats per unit of theta, summed over the data.
        """
        return self.log_joint_and_gradient(theta)[1]

    def log_joint_and_gradient(
        self, theta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density and its gradient in theta, in one pass over all rows.

        Parameters
        ----------
        theta : Tensor of shape (S, P)

        Returns
        -------
        value : Tensor of shape (S,)
            In nats, summed over the data.
        gradient : Tensor of shape (S, P)
            In nats per unit of theta; that of `log_joint_gradient`.
        """
        with torch.enable_grad():
            theta = theta.detach().requires_grad_()
            value = self.log_joint(theta)
            (gradient,) = torch.autograd.grad(value.sum(), theta)
        return value.detach(), gradient

    def whitened(self, normal: NormalForm) -> WhitenedTarget:
        """Return the log joint density in the whitened coordinates of a normal.

        Parameters
        ----------
        normal : NormalForm
            Over theta, factorized or full.

        Returns
        -------
        WhitenedTarget
            Its values are still log densities of theta, in nats; its gradients are with
            respect to the coordinates.
        """
        return WhitenedTarget(self, normal)

    def passes(self, n_draws: int, n_rows: int) -> RowSlopes | None:
        """Return a fast estimate of the log likelihood and its gradient, if any.

        Parameters
        ----------
        n_draws : int
            Most draws that it takes.
        n_rows : int
            Number of rows that it takes.

        Returns
        -------
        callable or None
            Of theta, (S, P), and the rows, a Tensor of int or None for all. Returns the
            log joint density without the prior, (S,), and its gradient, (S, P). None
            instead if there is only automatic differentiation of `log_joint`.
        """
        return None

    @torch.no_grad()
    def log_joint_batched(self, theta: torch.Tensor) -> torch.Tensor:
        """Log joint density without gradients, in batches that fit in memory.

        Parameters
        ----------
        theta : Tensor of shape (S, P)

        Returns
        -------
        Tensor of shape (S,)
            In nats, summed over all rows.
        """
        values = []
        for part in theta.split(BATCH_DRAWS):
            check_time()
            values.append(self.log_joint(part))
        return torch.cat(values)

    @property
    def point_layout(self) -> Layout:
        """The layout of `hyper`: names, roles and ranges.

        By default a single block, without a role that solvers know, and without limits.
        """
        return Layout({"hyper": (len(self.hyper),)} if len(self.hyper) else {})

    @property
    def learned(self) -> tuple[str, ...]:
        """Names of the blocks of `hyper`."""
        return tuple(self.point_layout)

    def conjugate_form(self) -> "ConjugateForm | None":
        """Return the quantities that coordinate ascent needs.

        Returns
        -------
        ConjugateForm or None
            None by default: the model is not conjugate.
        """
        return None

    def initial_hyper(self) -> torch.Tensor:
        """Hyperparameters from which a fit starts, and which scale their lower limits.

        Returns
        -------
        Tensor of shape (H,)
            Unconstrained, in float64.
        """
        return torch.zeros_like(self.hyper)

    @property
    def n_rows(self) -> int:
        """Number of rows that minibatches are taken from; 0 if there are none."""
        return 0

    @property
    def cost_per_draw(self) -> int:
        """Number of elements processed by one evaluation of the log joint."""
        return self.layout.size
