"""What every target owes."""

from copy import copy
from typing import TYPE_CHECKING, Any, Self

import torch

from skvi.base import Layout, NormalForm, deal
from skvi.priors import BuiltPrior, FlatReference
from skvi.targets._whitened import WhitenedTarget
from skvi.utils._device import CPU, Movable

if TYPE_CHECKING:
    from skvi.targets._precisions import ConjugateForm

__all__ = ["Target"]

# Draws that are evaluated at once.
BATCH_DRAWS = 256
FLAT = FlatReference()


class Target(Movable):
    """Something with a log joint density over a layout: all else is a capability.

    A subclass owes `layout` and `log_joint`. What else it can do it says by the
    attributes whose names begin with "has", and by what its methods return: whoever
    uses a capability asks for it, and says what is missing where it is not there.

    Attributes
    ----------
    layout : Layout
        Of theta, with P parameters.
    prior : BuiltPrior or None
        What the log joint density holds beside the data. Without one the ELBO is
        ``E_q[log joint - log q]``; what needs a prior says so.

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
    #: Unconstrained point parameters, beside theta: a fit learns them by type-II
    #: maximum likelihood. `point_layout` says what they are.
    hyper: torch.Tensor = torch.zeros(0, dtype=torch.float64, device=CPU)
    #: Whether f is normal under a normal q, row by row, and its moments are known:
    #: `expected_loss_at` and `expected_loss_terms` integrate over it, without draws.
    has_moments = False
    #: Whether f is linear in theta, and `predictor` and `X` have the design matrix:
    #: `loss_terms`, Newton steps, and modes of the likelihood alone.
    has_design = False
    #: Whether losses of single rows are known: `pointwise`, `sampled_losses`,
    #: `total_loss`, `total_weight` and `with_free_energy`.
    has_pointwise = False
    #: Whether losses of rows and their slopes in f, and the pullback of these to
    #: theta, are there without automatic differentiation.
    has_row_slopes = False
    #: Whether theta holds precisions with hyperpriors beside what the predictor needs.
    is_extended = False
    #: Whether rows have another loss than the log loss: with it a learned noise may
    #: have no optimum.
    is_robust = False
    #: What to change where a learned number of the likelihood runs to 0.
    floor_remedy = "fix it at a number"

    @property
    def reference(self) -> BuiltPrior:
        """Density that divergences compare q with: the prior, or 1 without one."""
        return FLAT if self.prior is None else self.prior

    @property
    def symmetry(self) -> Any:
        """Finite group that leaves the data's part unchanged, a `Symmetry`, or None."""
        return None

    @property
    def starts_near_fit(self) -> bool:
        """Whether chains start around the fit only, because the prior has no draws."""
        return self.prior is None

    def initial_normal(self, generator: torch.Generator) -> NormalForm | None:
        """Where a fit may start.

        Parameters
        ----------
        generator : torch.Generator

        Returns
        -------
        NormalForm or None
            Over theta. None if a family's own start will do: near 0.
        """
        return None

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

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log joint density log p(D, theta), or its generalization by a loss.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        rows : Tensor of int, default=None
            Rows to use, scaled up to all rows; all of them where it is None.

        Returns
        -------
        Tensor of shape (S,)
            In nats, summed over the data, with all constants; unbiased where
            `rows` are drawn at random.
        """
        raise NotImplementedError

    def log_joint_split(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log joint density twice, so that gradient rules can tell paths apart.

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
            The same values; the gradient flows into `hyper` only. None where
            nothing is learned.
        """
        return self.log_joint(theta, rows), None

    def expected_loss(
        self,
        posterior: Any,
        rows: torch.Tensor | None = None,
        n_draws: int = 10,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Expected loss under q, without the prior: what is left of the log joint.

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

    def tail_precision(self) -> tuple[torch.Tensor, bool] | None:
        """Quadratic decay of the log joint density far out.

        Returns
        -------
        precision : Tensor of shape (P,) or (P, P)
            T, such that ``log_joint <= c - theta' T theta / 2 + O(|theta|)``.
        is_exact : bool
            Whether the log joint is also above such an expression.

            None instead of both where nothing is known.
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
            Its values stay log densities of theta, in nats; its gradients are those
            in the coordinates.
        """
        return WhitenedTarget(self, normal)

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
        return torch.cat([self.log_joint(part) for part in theta.split(BATCH_DRAWS)])

    @property
    def point_layout(self) -> Layout:
        """What each stretch of `hyper` is: names, roles and ranges.

        By default a single block, of no role that solvers know, and unlimited.
        """
        return Layout({"hyper": (len(self.hyper),)} if len(self.hyper) else {})

    @property
    def learned(self) -> tuple[str, ...]:
        """Names of the blocks of `hyper`."""
        return tuple(self.point_layout)

    def conjugate_form(self) -> "ConjugateForm | None":
        """Return what coordinate ascent needs.

        Returns
        -------
        ConjugateForm or None
            By default None: the model is not conjugate.
        """
        return None

    def initial_hyper(self) -> torch.Tensor:
        """Hyperparameters from which a fit starts: the scale of their floors.

        Returns
        -------
        Tensor of shape (H,)
            Unconstrained, in float64.
        """
        return torch.zeros_like(self.hyper)

    @property
    def n_rows(self) -> int:
        """Rows that minibatches are taken from; 0 where there are none."""
        return 0

    def batches(self, n_batches: int, generator: torch.Generator) -> list[torch.Tensor]:
        """Deal the rows out at random, for minibatches.

        Parameters
        ----------
        n_batches : int
        generator : torch.Generator

        Returns
        -------
        list of Tensor of int
            Of nearly equal size.
        """
        return deal(self.n_rows, n_batches, generator)

    @property
    def cost_per_draw(self) -> int:
        """Elements that one evaluation of the log joint touches."""
        return self.layout.size
