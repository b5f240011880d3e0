"""A target beside the unknown scale of its prior, or number of its likelihood."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch

from skvi.base import Layout, NormalForm
from skvi.priors import BuiltPrior, Normal
from skvi.priors._blocks import build_prior
from skvi.targets._numbers import ScaleScore
from skvi.targets._precisions import UnknownNumber, exponent
from skvi.targets._reduced import ReducedTarget
from skvi.targets._supervised import SupervisedTarget, with_prior
from skvi.targets.base import Target
from skvi.utils._tensors import LOG_2PI

# Standard deviations of starts of chains, in units of those of the posterior.
WIDE, WIDE_SCORE = 3.0, 1.5
# Distance of a node of the log scale on either side, to which its powers are followed.
FAR = 1e3
# Of directions that the data say nothing of.
SEED = 0


@dataclass(frozen=True, eq=False)
class NodeGrid:
    """Normals near the posterior, at nodes of a scale and of a number.

    Parameters
    ----------
    normals : sequence of NormalForm
        Of full rank; K times L of them, number after number for each scale.
    values : Tensor of shape (K, L)
        Log of the density of both coordinates at the nodes, up to a constant.
    log_scales : Tensor of shape (K,), default=None
        Nodes of the log scale in ascending order, at least two; None, with K = 1, where
        the scale is known.
    by_scale : Tensor of shape (K, L), default=None
        Derivatives of the values.
    numbers, by_number : Tensor of shape (L,) and (K, L), default=None
        The same of the log of the number of the likelihood.
    """

    normals: Sequence[NormalForm]
    values: torch.Tensor
    log_scales: torch.Tensor | None = None
    by_scale: torch.Tensor | None = None
    numbers: torch.Tensor | None = None
    by_number: torch.Tensor | None = None


class _Flat(BuiltPrior):
    """No prior: the likelihood alone."""

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(theta[:, 0])

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(theta)


class _Place(NamedTuple):
    """Parameters at lifted draws, both coordinates, and the log determinant."""

    theta: torch.Tensor
    log_scale: torch.Tensor | None
    number: torch.Tensor | None
    log_det: torch.Tensor


class LiftedTarget(Target):
    r"""The same evidence as another target's, over its unknown scale or number, too.

    The log scale z of the prior is that of a score u (`ScaleScore`), and so is the log
    number t of the likelihood, given z. Given both, the parameters are ``w (m + L e)``,
    with mean and scale, in units w of the standard deviations, interpolated between
    normals that are near the posterior at the nodes. Then (e, u) is about N(0, I),
    however wide the scale is: without them the posterior is a funnel, narrow where the
    scale is large. Only the map is interpolated, and goes on beyond the nodes by powers
    of the scale; the density is exact for every z and t.

    Parameters
    ----------
    target : SupervisedTarget
        With one unknown scale, beside which its prior is normal with mean 0, or none.
    grid : NodeGrid
    number : UnknownNumber, default=None
        That of the likelihood, where `grid` has nodes of it.
    full : ReducedTarget, default=None
        Where the target is that of a row space.
    """

    def __init__(
        self,
        target: SupervisedTarget,
        grid: NodeGrid,
        number: UnknownNumber | None = None,
        full: ReducedTarget | None = None,
    ) -> None:
        self.grid, self.number, self.full = grid, number, full
        self.rest, self.n_params = target.prior, target.layout.size
        self.likelihood = with_prior(target, _Flat())
        self.scale_score = self.number_score = None
        if grid.log_scales is not None:
            unit = target.prior.given_scale(1.0).as_normal()
            if unit is None:
                raise ValueError("Beside its unknown scale the prior must be normal.")
            self.unit = unit.scale
            self.is_scaled = (target.prior.scale_weights() > 0).to(unit.scale.dtype)
            self.scale_score = _marginal_score(grid)
        if number is not None:
            # Near 0 the number has the density of its prior.
            self.tail = min(1.0, exponent(number.hyperprior))
            tables = self._beyond(grid.values), self._beyond(grid.by_number / self.tail)
            self.number_score = ScaleScore(self.tail * grid.numbers, *tables)
        n_scores = (grid.log_scales is not None) + (number is not None)
        self.layout = Layout({"standardized": (self.n_params,), "score": (n_scores,)})
        # Not a factor of the density, but what chains start from.
        wide = {"standardized": Normal(WIDE), "score": Normal(WIDE_SCORE)}
        self.prior = build_prior(wide, self.layout)
        self._stack(grid.normals)

    def _stack(self, normals: Sequence[NormalForm]) -> None:
        """Lay out the normals for one matrix product, with far nodes of the scale."""
        log_widths = torch.stack([0.5 * n.variance.log() for n in normals])
        widths = log_widths.exp()
        self.means = self._beyond(torch.stack([n.mean for n in normals]) / widths)
        scales = torch.stack([n.scale for n in normals]) / widths[:, :, None]
        scales, self.log_widths = self._beyond(scales), log_widths
        z = self.grid.log_scales
        if z is not None:
            table = log_widths.reshape(len(z), -1, self.n_params)
            powers = table.diff(dim=0)[[0, -1]] / z.diff()[[0, -1], None, None]
            far = FAR * powers.clamp(0, 1)
            table = torch.cat([table[:1] - far[:1], table, table[-1:] + far[1:]])
            self.nodes = torch.cat([z[:1] - FAR, z, z[-1:] + FAR])
            self.log_widths = table.flatten(0, 1)
        self.diagonals = scales.diagonal(dim1=1, dim2=2)
        # All normals at once: e times one matrix.
        self.forth = scales.permute(2, 0, 1).flatten(1).contiguous()

    def _beyond(self, table: torch.Tensor) -> torch.Tensor:
        """What belongs to the nodes, also at the far ones of the scale: as at the ends.

        Of shape (K, ...) or (K L, ...).
        """
        z = self.grid.log_scales
        if z is None:
            return table
        table = table.reshape(len(z), -1, *table.shape[1:])
        return torch.cat([table[:1], table, table[-1:]]).flatten(0, 1)

    @property
    def cost_per_draw(self) -> int:
        """Elements that one evaluation touches."""
        return self.likelihood.cost_per_draw

    def theta(self, lifted: torch.Tensor) -> torch.Tensor:
        """Parameters of the target itself at draws.

        Parameters
        ----------
        lifted : Tensor of shape (S, P + m)

        Returns
        -------
        Tensor of shape (S, P) or (S, P + 1)
            The log number last, if it is unknown.
        """
        place = self._place(lifted)
        theta = place.theta
        if self.full is not None:
            generator = torch.Generator(theta.device).manual_seed(SEED)
            scale = self._coef_scale(place)
            theta = self.full.expand(theta, scale, generator)
        if place.number is None:
            return theta
        return torch.cat([theta, place.number[:, None]], 1)

    def _coef_scale(self, place: _Place) -> torch.Tensor:
        """Prior standard deviation of the coefficients, (S,)."""
        if place.log_scale is not None:
            return self.unit[0] * place.log_scale.exp()
        return self.rest.as_normal().scale[0].expand(len(place.theta))

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log joint density of standardized parameters and scores, (S,)."""
        place = self._place(theta)
        likelihood = self._likelihood_at(place.number)
        return likelihood.log_joint(place.theta, rows) + self._other_terms(place)

    @torch.no_grad()
    def log_joint_and_gradient(
        self, theta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, (S,), and its gradient, (S, P + m)."""
        with torch.enable_grad():
            lifted = theta.detach().requires_grad_()
            place = self._place(lifted)
            other = self._other_terms(place)
            value, slopes = self._likelihood_and_slopes(place)
            # The rows are passed once, and the map is differentiated alone.
            parts = (place.theta, place.number)
            surrogate = other.sum()
            for part, slope in zip(parts, slopes, strict=True):
                if part is not None:
                    surrogate = surrogate + (slope * part).sum()
            (gradient,) = torch.autograd.grad(surrogate, lifted)
        return value + other.detach(), gradient

    def _likelihood_and_slopes(self, place: _Place) -> tuple[torch.Tensor, tuple]:
        """Log likelihood, and its slopes in the parameters and the number."""
        theta = place.theta.detach()
        if place.number is None:
            value, slope = self.likelihood.log_joint_and_gradient(theta)
            return value, (slope, None)
        leaves = theta.requires_grad_(), place.number.detach().requires_grad_()
        value = self._likelihood_at(leaves[1]).log_joint(leaves[0])
        return value.detach(), torch.autograd.grad(value.sum(), leaves)

    def _likelihood_at(self, number: torch.Tensor | None) -> SupervisedTarget:
        """The rows with the number of every draw."""
        if self.number is None or number is None:
            return self.likelihood
        bound = copy(self.likelihood)
        bound.likelihood_spec = self.number.bind(
            bound.likelihood_spec, number[None, :, None]
        )
        bound.hyper = bound.hyper.new_zeros(0)
        return bound

    def _other_terms(self, place: _Place) -> torch.Tensor:
        """Log priors of everything, and the log determinant, (S,)."""
        total = place.log_det
        if self.number is not None and place.number is not None:
            total = total + self.number.log_density(place.number)
        if place.log_scale is None:
            return total + self.rest.log_prob(place.theta)
        log_scale = self.unit.log() + self.is_scaled * place.log_scale[:, None]
        squares = (place.theta * torch.exp(-log_scale)).square()
        terms = 0.5 * squares + log_scale + 0.5 * LOG_2PI
        return total + self.rest.log_density_of_scale(place.log_scale) - terms.sum(1)

    def _place(self, lifted: torch.Tensor) -> _Place:
        """The map from standardized parameters and scores."""
        e, scores = lifted.split([self.n_params, lifted.shape[1] - self.n_params], 1)
        log_scale, number, log_det = None, None, torch.zeros_like(e[:, 0])
        by_scale = by_number = lifted.new_ones(len(lifted), 1)
        if self.scale_score is not None:
            log_scale, log_det = self.scale_score.map(scores[:, 0])
            by_scale = _hats(self.nodes, log_scale)
        if self.number_score is not None:
            each, log_slope = self.number_score.map(scores[:, -1])
            number = (by_scale.T * each).sum(0) / self.tail
            slope = (by_scale.T * log_slope.exp()).sum(0) / self.tail
            log_det = log_det + slope.log()
            by_number = _hats(self.grid.numbers, number)
        hats = (by_scale[:, :, None] * by_number[:, None]).flatten(1)
        log_width = hats @ self.log_widths
        at_nodes = (e @ self.forth).reshape(len(e), *self.means.shape) + self.means
        theta = (hats[:, None] @ at_nodes)[:, 0] * log_width.exp()
        log_det = log_det + (log_width + (hats @ self.diagonals).log()).sum(1)
        return _Place(theta, log_scale, number, log_det)


def _marginal_score(grid: NodeGrid) -> ScaleScore:
    """Score of the log scale, whatever the number is."""
    values = torch.logsumexp(grid.values, 1)
    weights = torch.softmax(grid.values, 1)
    return ScaleScore(grid.log_scales, values, (weights * grid.by_scale).sum(1))


def _hats(nodes: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Weights of linear interpolation, (S, K)."""
    right = torch.searchsorted(nodes, x.detach().contiguous()).clamp(1, len(nodes) - 1)
    left = (right - 1)[:, None]
    part = ((x[:, None] - nodes[left]) / nodes.diff()[left]).clamp(0, 1)
    zero = x.new_zeros(len(x), len(nodes))
    return zero.scatter(1, left, 1 - part).scatter(1, left + 1, part)
