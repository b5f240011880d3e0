r"""Natural gradients of factorized normals from draws, at the cost of Adam: IVON.

Shen et al. (2024), *Variational learning is effective for large deep networks*,
algorithm 1. What is minimized is a function L(m, r) of the means m and of the logs r
of the standard deviations of q. Its gradient in r holds the curvature H that the
paper estimates by a reparametrized product of gradient and noise:

.. math:: \frac{\partial L}{\partial r} = \sigma^2 H - w

with the weight w of the entropy of q; H includes the prior and learned scales. The
optimum has the precision H / w. The paper moves the precision by a fraction b toward
it, with a second-order term that keeps it positive (its line 5), and the mean along
momentum in units of the variance (line 6). In our coordinates, with x = b g_r / w,

.. math::
    \frac{1}{\sigma^2} \leftarrow \frac{1}{\sigma^2}
        \Bigl(1 - b + b \frac{\sigma^2 H}{w}
        + \frac{1}{2} \frac{b^2 (\sigma^2 H - w)^2}{w^2} \Bigr)
        = \frac{1}{\sigma^2} \Bigl(1 + x + \frac{x^2}{2}\Bigr)
    \qquad
    m \leftarrow m - \frac{a}{w} \sigma^2 \bar g_m

The factor is at least 1/2 for every gradient. The paper leaves the prior out of the
momentum; here it is included, which makes no difference for small steps. Both steps are
invariant to the units of theta: a step size that suits one feature or layer suits them
all.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from skvi.solvers._stochastic._optimizers import Adam, AdamStack, Numbers, Optimizer

__all__ = ["IvonStack", "IvonSteps"]

# Momentum of the gradients in the means.
MOMENTUM = 0.9
# Steps of precisions and of point parameters, as fractions of that of the means.
PRECISION_SHARE, POINT_SHARE = 0.03, 0.1


class IvonSteps(Optimizer):
    """State of IVON for one member: K mean-field normals and point parameters.

    One vector: means and log deviations of each normal, then point parameters, which
    take steps of Adam. `rate` is a fraction of a Newton step.
    """

    moments = ("first",)
    longest_step = POINT_SHARE * Adam.longest_step

    def __init__(
        self,
        params: torch.Tensor,
        rate: float,
        n_params: int,
        n_components: int = 1,
        weight: float = 1.0,
    ) -> None:
        super().__init__(rate)
        self.n_params, self.n_components = n_params, n_components
        self.weight = weight
        self.first = params.new_zeros(n_components, n_params)
        self.points = Adam(params[self.split :], POINT_SHARE * rate)

    @property
    def split(self) -> int:
        """Number of variational parameters."""
        return 2 * self.n_components * self.n_params

    @classmethod
    def stack(
        cls,
        members: Sequence["IvonSteps"],
        params: torch.Tensor,
        gradients: torch.Tensor,
    ) -> "IvonStack":
        """Steps of several vectors; see `Optimizer.stack`."""
        return IvonStack(members, params, gradients)

    def sizes(self, n_steps: int) -> list[float]:
        """Next steps of the means, corrected for the momentum's start at 0."""
        scale, counts = self.rate / self.weight, range(1, n_steps + 1)
        return [scale / (1 - MOMENTUM ** (self.count + k)) for k in counts]

    def state_dict(self) -> Numbers:
        """Everything that changes: a copy; see `Optimizer.state_dict`."""
        points = {f"points_{k}": v for k, v in self.points.state_dict().items()}
        return super().state_dict() | points

    def load_state_dict(self, state: Mapping[str, torch.Tensor | float | int]) -> None:
        """Continue from a state; see `Optimizer.load_state_dict`."""
        points = {k: v for k, v in state.items() if k.startswith("points_")}
        super().load_state_dict({k: v for k, v in state.items() if k not in points})
        self.points.load_state_dict(
            {name.removeprefix("points_"): v for name, v in points.items()}
        )


class IvonStack:
    """Steps of M members with equal P and K, (M, V), in place."""

    def __init__(
        self,
        members: Sequence[IvonSteps],
        params: torch.Tensor,
        gradients: torch.Tensor,
    ) -> None:
        self.members, one = members, members[0]
        shape, split = (one.n_components, 2, one.n_params), one.split
        # Each of shape (M, K, P).
        self.mean, self.log_std = params[:, :split].unflatten(1, shape).unbind(2)
        self.slopes = gradients[:, :split].unflatten(1, shape).unbind(2)
        self.first = torch.stack([member.first for member in members])
        for member, first in zip(members, self.first, strict=True):
            member.first = first
        self.room, self.square = torch.empty_like(self.first), self.first.clone()
        self.points = AdamStack(
            [member.points for member in members],
            params[:, split:],
            gradients[:, split:],
        )

    def updates(self, n_steps: int) -> list[Callable[[], None]]:
        """Prepare steps; see `OptimizerStack.updates`."""
        like, members = self.first, self.members
        sizes = iter(
            like.new_tensor([member.sizes(n_steps) for member in members])
            .T[..., None, None]
            .unbind()
        )
        pace = like.new_tensor(
            [PRECISION_SHARE * member.rate / member.weight for member in members]
        )[:, None, None]
        for member in members:
            member.count += n_steps
            member.points.rate = POINT_SHARE * member.rate

        def update() -> None:
            in_mean, in_log_std = self.slopes
            self.first.lerp_(in_mean, 1 - MOMENTUM)
            x = torch.mul(in_log_std, pace, out=self.room)
            growth = torch.addcmul(x, x, x, value=0.5, out=self.square).log1p_()
            self.log_std.sub_(growth, alpha=0.5)
            variance = torch.mul(self.log_std, 2.0, out=self.room).exp_()
            self.mean.addcmul_(variance.mul_(self.first), next(sizes), value=-1.0)

        return [update, *self.points.updates(n_steps)]
