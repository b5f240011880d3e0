"""An inverse autoregressive flow: the module behind `NormalizingFlow`."""

import math
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from skvi.utils._device import CPU

__all__ = ["InverseAutoregressive"]

# Change of a slope of log densities, of normals of scale 1, that does not matter.
SMALL_CHANGE = 1e-3


class InverseAutoregressive(nn.Module):
    """Layers that bend each coordinate, and move it by a function of those before.

    Of the bent x the i-th coordinate becomes ``shift_i + exp(log_scale_i) x_i``, where
    both depend on coordinates before i by a layer of tanh units (Kingma et al. 2016,
    *Improved variational inference with inverse autoregressive flow*); the order is
    reversed from layer to layer. Bending is ``sinh(tail asinh(x) + skew)`` (Jones and
    Pewsey 2009, *Sinh-arcsinh distributions*), without which the first coordinate
    would stay normal. The start is the identity, for random hidden units.
    """

    places_in: torch.Tensor
    places_out: torch.Tensor

    def __init__(self, size: int, n_layers: int, n_hidden: int) -> None:
        super().__init__()
        order = torch.arange(size, device=CPU)
        orders = torch.stack([order, order.flip(0)])[
            torch.arange(n_layers, device=CPU) % 2
        ]
        # A unit sees coordinates up to its own place, and moves those after.
        unit = torch.arange(n_hidden, device=CPU) % max(size - 1, 1)
        masks_in = orders[:, None] <= unit[:, None]
        masks_out = (unit < orders[..., None])[:, None].expand(-1, 2, -1, -1)
        # Places of the weights that are not zero: as numbers, which are found once.
        self.register_buffer("places_in", masks_in.flatten().nonzero()[:, 0])
        self.register_buffer("places_out", masks_out.flatten().nonzero()[:, 0])
        weights = torch.randn(len(self.places_in), device=CPU) / size**0.5
        self.weights = nn.Parameter(weights)
        self.places = nn.Parameter(torch.randn(n_layers, n_hidden, device=CPU))
        # Of shifts and log scales; skews and logs of tails; each with a constant.
        self.moves = nn.Parameter(torch.zeros(len(self.places_out), device=CPU))
        self.constants = nn.Parameter(torch.zeros(n_layers, 2, size, device=CPU))
        self.bends = nn.Parameter(torch.zeros(n_layers, 2, size, device=CPU))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Noise to coordinates, (S, P), and the log determinant, (S,)."""
        found: tuple[torch.Tensor, torch.Tensor] = _Pass.apply(
            x, *self._nets(), self.bends
        )
        return found

    def score(self, noise: torch.Tensor) -> torch.Tensor:
        """Slopes of the log density of coordinates in them, (S, P), at those of noise.

        From layer to layer the slopes of the determinant are subtracted, and the rest
        multiplied by the inverse of the Jacobian (Vaitl et al. 2022, *Gradients should
        stay on path*).
        """
        score, tape = -noise, _run(noise, *self._nets(), self.bends)[-1]
        for x, _, before, y, after, hidden, scale, tail, *net in tape:
            weights, _, moves, _ = net
            # d log cosh = tanh, of the argument of the bend and of its inverse.
            score = (score * before - tail * (y / after) + x / before) / (tail * after)
            curve, moved = 1 - hidden * hidden, scale * y
            score = score - (moves[x.shape[1] :].sum(0) * curve) @ weights
            start = score = score / scale
            # The Jacobian is triangular: as many passes are exact, few are enough.
            for _ in range(x.shape[1]):
                last, both = score, torch.cat([score, score * moved], 1)
                score = start - (both @ moves * curve) @ weights / scale
                if float((score - last).abs().max()) < SMALL_CHANGE:
                    break
        return score

    def inverse(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Coordinates to noise, one after the other, and the log determinant."""
        log_det = torch.zeros_like(x[:, 0])
        nets = zip(*self._nets(), self.bends, strict=True)
        for *net, (skew, log_tail) in reversed([*nets]):
            bent = torch.zeros_like(x)
            for _ in range(x.shape[1]):  # each pass completes one coordinate more
                _, shift, log_scale = _moves(bent, *net)
                bent = (x - shift) * (-log_scale).exp()
            x = torch.sinh((torch.asinh(bent) - skew) * (-log_tail).exp())
            # Slopes of sinh are roots of 1 + sinh^2.
            slope = 0.5 * (torch.log1p(bent * bent) - torch.log1p(x * x))
            log_det = log_det - (log_scale + log_tail + slope).sum(1)
        return x, log_det

    def _nets(self) -> tuple[torch.Tensor, ...]:
        """Weights of all layers, with zeros, and constants."""
        n_layers, n_hidden = self.places.shape
        size = self.bends.shape[2]
        weights = _spread(self.places_in, self.weights, (n_layers, n_hidden, size))
        moves = _spread(self.places_out, self.moves, (n_layers, 2 * size, n_hidden))
        return weights, self.places, moves, self.constants.flatten(1)


def _spread(
    places: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]
) -> torch.Tensor:
    """Array of zeros, but for these values in these places."""
    return values.new_zeros(math.prod(shape)).index_copy(0, places, values).view(shape)


def _moves(x: torch.Tensor, *net: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Hidden units, (S, H); shifts and log scales, (S, P) each."""
    weights, places, moves, constants = net
    hidden = torch.addmm(places, x, weights.T).tanh()
    return hidden, *torch.addmm(constants, hidden, moves.T).chunk(2, 1)


def _run(
    x: torch.Tensor, *nets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, list[tuple[torch.Tensor, ...]]]:
    """Coordinates, log determinant, and what derivatives of each layer need."""
    log_det: torch.Tensor = nets[-1][:, 1].sum()
    tape = []
    for *net, bend in zip(*nets, strict=True):
        skew, tail = bend[0], bend[1].exp()
        angle, before = torch.asinh(x), torch.addcmul(_one(x), x, x).sqrt_()
        y = torch.addcmul(skew, tail, angle).sinh_()
        after = torch.addcmul(_one(x), y, y).sqrt_()
        hidden, shift, log_scale = _moves(y, *net)
        scale = log_scale.exp()
        log_det = log_det + (after / before).log_().add_(log_scale).sum(1)
        tape.append((x, angle, before, y, after, hidden, scale, tail, *net))
        x = torch.addcmul(shift, scale, y)
    return x, log_det, tape


class _Pass(torch.autograd.Function):
    """The forward pass of all layers, with its derivative.

    Its arrays are small: one operation more costs as much as its arithmetic, and
    automatic differentiation records and makes twice as many.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *nets: torch.Tensor) -> Any:
        """Coordinates, (S, P), and the log determinant, (S,)."""
        x, log_det, ctx.tape = _run(x, *nets)
        return x, log_det

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor, of_det: torch.Tensor) -> Any:
        """From derivatives in coordinates and log determinant, those in all inputs."""
        found, of_det = [], of_det[:, None]
        for x, angle, before, y, after, hidden, scale, tail, *net in ctx.tape[::-1]:
            weights, _, moves, _ = net
            by_scale = slope * scale
            of_moves = torch.cat([slope, torch.addcmul(of_det, by_scale, y)], 1)
            of_units = (of_moves @ moves).mul_(1 - hidden * hidden)
            of_y = torch.addmm(by_scale, of_units, weights)
            # d log cosh = tanh, of the argument of the bend and of its inverse.
            of_bend = torch.addcmul(of_det * (y / after), of_y, after)
            by_tail = of_bend * tail
            log_tail = torch.addcmul(of_det, by_tail, angle).sum(0)
            found.append(
                (
                    of_units.T @ y,
                    of_units.sum(0),
                    of_moves.T @ hidden,
                    of_moves.sum(0),
                    torch.stack([of_bend.sum(0), log_tail]),
                )
            )
            slope = (by_tail - of_det * (x / before)) / before
        return slope, *map(torch.stack, zip(*found[::-1], strict=True))


def _one(x: torch.Tensor) -> torch.Tensor:
    return torch.ones((), dtype=x.dtype, device=x.device)
