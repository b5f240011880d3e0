"""An inverse autoregressive flow: the module behind `NormalizingFlow`."""

from collections.abc import Iterator

import torch
from torch import nn

from skvi.utils._device import CPU

__all__ = ["InverseAutoregressive"]


class InverseAutoregressive(nn.Module):
    """Layers that bend each coordinate, and move it by a function of those before.

    Of the bent x the i-th coordinate becomes ``shift_i + exp(log_scale_i) x_i``, where
    both depend on coordinates before i by a layer of tanh units (Kingma et al. 2016,
    *Improved variational inference with inverse autoregressive flow*); the order is
    reversed from layer to layer. Bending is ``sinh(tail asinh(x) + skew)`` (Jones and
    Pewsey 2009, *Sinh-arcsinh distributions*), without which the first coordinate
    would stay normal. The start is the identity, for random hidden units.
    """

    masks_in: torch.Tensor
    masks_out: torch.Tensor

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
        self.register_buffer("masks_in", masks_in)
        self.register_buffer("masks_out", masks_out.clone())
        weights = torch.randn(int(masks_in.sum()), device=CPU) / size**0.5
        self.weights = nn.Parameter(weights)
        self.places = nn.Parameter(torch.randn(n_layers, n_hidden, device=CPU))
        # Of shifts and log scales; skews and logs of tails; each with a constant.
        self.moves = nn.Parameter(torch.zeros(int(masks_out.sum()), device=CPU))
        self.constants = nn.Parameter(torch.zeros(n_layers, 2, size, device=CPU))
        self.bends = nn.Parameter(torch.zeros(n_layers, 2, size, device=CPU))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Noise to coordinates, (S, P), and the log determinant, (S,)."""
        log_det, nets = torch.zeros_like(x[:, 0]), self._nets()
        for layer, net in enumerate(nets):
            x, part = self._bend(layer, x)
            shift, log_scale = _moves(x, *net)
            x = shift + log_scale.exp() * x
            log_det = log_det + part + log_scale.sum(1)
        return x, log_det

    def inverse(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Coordinates to noise, one after the other, and the log determinant."""
        log_det = torch.zeros_like(x[:, 0])
        for layer, net in reversed([*enumerate(self._nets())]):
            bent = torch.zeros_like(x)
            for _ in range(x.shape[1]):  # each pass completes one coordinate more
                shift, log_scale = _moves(bent, *net)
                bent = (x - shift) * (-log_scale).exp()
            skew, log_tail = self.bends[layer]
            x = torch.sinh((torch.asinh(bent) - skew) * (-log_tail).exp())
            log_det = log_det - log_scale.sum(1) - self._bend(layer, x)[1]
        return x, log_det

    def _bend(self, layer: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        skew, log_tail = self.bends[layer]
        y = torch.sinh(log_tail.exp() * torch.asinh(x) + skew)
        # sqrt(1 + y^2) is the cosh of the argument.
        log_slope = log_tail + 0.5 * (torch.log1p(y * y) - torch.log1p(x * x))
        return y, log_slope.sum(1)

    def _nets(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Weights of each layer, with zeros, and constants."""
        weights = _spread(self.masks_in, self.weights)
        moves = _spread(self.masks_out, self.moves)
        return zip(weights, self.places, moves, self.constants, strict=True)


def _spread(mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Array of zeros, but for these values where the mask is true."""
    zeros = torch.zeros(mask.shape, dtype=values.dtype, device=values.device)
    return zeros.index_put(mask.nonzero(as_tuple=True), values)


def _moves(x: torch.Tensor, *net: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Shifts and log scales, (S, P) each."""
    weights, places, moves, constants = net
    hidden = torch.tanh(x @ weights.T + places)
    return tuple(hidden @ moves.mT + constants[:, None])
