"""Passes of networks whose activations are drawn for each row, without autograd.

Under independent normal weights the inputs of the units of a layer are normal given the
layer below: the means are products with the means of the weights, the variances those
of squares with variances (Kingma et al. 2015, *Variational dropout and the local
reparameterization trick*, section 2). Every row has noise of its own, which averages
out over the rows.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch

from skvi.predictors._passes import STEPS, layer_blocks

#: For means and for variances.
Pair = tuple[torch.Tensor, torch.Tensor]


class _Affine:
    """Moments of what weights make of features, the same for all draws.

    `weights` are views (M, inputs, outputs) of their means and variances, `gradient`
    of the gradients; `out`, (M, outputs, S, n), are added to or overwritten.
    """

    def __init__(self, weights: Pair, gradient: Pair, out: Pair, slope: Pair) -> None:
        self.weights = [block.mT for block in weights]
        self.gradient, self.out, self.slope = gradient, out, slope
        self.is_single = slope[0].shape[2] == 1

    def forward(self, features: Pair, index: torch.Tensor | None = None) -> None:
        """Write the moments, or add them to some outputs."""
        for W, X, out in zip(self.weights, features, self.out, strict=True):
            found = torch.bmm(W, X)[:, :, None]
            if index is None:
                out.copy_(found)
            else:
                out.index_add_(1, index, found.expand(-1, -1, out.shape[2], -1))

    def pull_back(self, features: Pair, index: torch.Tensor | None = None) -> None:
        """Write the gradients, of some outputs."""
        for X, g, out in zip(features, self.slope, self.gradient, strict=True):
            own = g if index is None else g.index_select(1, index)
            own = own[:, :, 0] if self.is_single else own.sum(2)
            torch.bmm(X, own.mT, out=out)


class _Upper:
    """A layer on hidden units `h`, (M, inputs + 1, S n), of which the last is 1."""

    def __init__(
        self, weights: Pair, gradient: Pair, out: Pair, slope: Pair, h: torch.Tensor
    ) -> None:
        self.h, self.squares, self.units = h, torch.empty_like(h), h[:, :-1]
        self.forwards = [block.mT for block in weights]
        self.backwards = [block[:, :-1] for block in weights]
        self.gradient, self.out = gradient, out
        self.slope, self.turned = slope, [g.mT for g in slope]

    def forward(self) -> None:
        """Write the moments, after the activation."""
        torch.mul(self.h, self.h, out=self.squares)
        torch.bmm(self.forwards[0], self.h, out=self.out[0])
        torch.bmm(self.forwards[1], self.squares, out=self.out[1])

    def pull_back(self, below: torch.Tensor) -> None:
        """Write the gradients in the moments of weights and in the units below."""
        torch.bmm(self.h, self.turned[0], out=self.gradient[0])
        torch.bmm(self.squares, self.turned[1], out=self.gradient[1])
        torch.bmm(self.backwards[1], self.slope[1], out=below).mul_(self.units)
        below.baddbmm_(self.backwards[0], self.slope[0])


class LocalPasses:
    """f of S draws for each of M members, and backpropagation to means and deviations.

    `theta` are two matrices, (M, P), which `forward` reads: means and variances.
    `gradient` are two which `pull_back` writes: that in means, and that in deviations
    divided by these. All views are made once, as in `MLPPasses`.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        theta: Pair,
        gradient: Pair,
        n_draws: int,
        n_rows: int,
        skip_outputs: Sequence[int] = (),
    ) -> None:
        self._activate, self._multiply, _ = STEPS[activation]
        M, units, like, shape = len(theta[0]), sizes[1:], theta[0], (n_draws, n_rows)
        shapes = [(a + 1, b) for a, b in pairwise(sizes)]
        shapes += [(sizes[0], len(skip_outputs))] if skip_outputs else []

        def empty(width: int) -> torch.Tensor:
            return like.new_empty(M, width, n_draws * n_rows)

        def by_draw(pair: Pair) -> Pair:
            return pair[0].unflatten(2, shape), pair[1].unflatten(2, shape)

        weights = list(zip(*(layer_blocks(x, shapes) for x in theta), strict=True))
        found = list(zip(*(layer_blocks(x, shapes) for x in gradient), strict=True))
        # One more unit of every hidden layer is always 1: intercepts are weights.
        hidden = [empty(size + 1).fill_(1) for size in units[:-1]]
        drawn = [*(h[:, :-1] for h in hidden), empty(units[-1])]
        outs = [(mean, torch.empty_like(mean)) for mean in drawn]
        slopes = [(empty(size), empty(size)) for size in units]
        self._first = _Affine(
            weights[0], found[0], by_draw(outs[0]), by_draw(slopes[0])
        )
        inner = zip(weights[1:], found[1:], outs[1:], slopes[1:], hidden, strict=False)
        self._upper = [_Upper(*parts) for parts in inner]
        self._skip: _Affine | None = None
        if skip_outputs:
            self._index = torch.tensor(skip_outputs, device=like.device)
            ends = by_draw(outs[-1]), by_draw(slopes[-1])
            self._skip = _Affine(weights[-1], found[-1], *ends)
        self._noise = like.new_empty(M, sum(units), *shape)
        noises = self._noise.flatten(2).split(list(units), 1)
        self._draws = list(zip(outs, slopes, noises, strict=True))
        f, slope = by_draw((outs[-1][0], slopes[-1][0]))
        self.f, self.slope = f.permute(0, 2, 3, 1), slope.permute(0, 2, 3, 1)

    def fill(self, noise: torch.Tensor) -> None:
        """Take the noise of a step, (M, pairs, units, n): antithetic pairs of draws.

        It may have more rows, of members that have finished.
        """
        given, n_first = noise.transpose(1, 2), noise.shape[1]
        given = given[..., : self._noise.shape[3]]
        self._noise[:, :, :n_first] = given
        if n_second := self._noise.shape[2] - n_first:
            torch.neg(given[:, :, :n_second], out=self._noise[:, :, n_first:])

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Draw f: a buffer of shape (M, S, n, K).

        `columns`, (M, d + 1, n), has a column for each row of X, and ends in ones.
        """
        self._features = columns, columns.square()
        self._first.forward(self._features)
        self._draw(0)
        for i, layer in enumerate(self._upper, 1):
            self._activate(layer.units)
            layer.forward()
            if self._skip is not None and i == len(self._upper):
                self._skip.forward(self._without_ones(), self._index)
            self._draw(i)
        return self.f

    def _without_ones(self) -> Pair:
        columns, squares = self._features
        return columns[:, :-1], squares[:, :-1]

    def _draw(self, i: int) -> None:
        (mean, spread), _, noise = self._draws[i]
        mean.addcmul_(spread.sqrt_(), noise)

    def pull_back(self) -> None:
        """Write the gradient of a sum over rows, after `forward` and `slope`."""
        for i in reversed(range(len(self._draws))):
            (_, spread), (slope, in_spread), noise = self._draws[i]
            # Half the slope in a variance, whose derivative is twice the deviation.
            torch.mul(slope, noise, out=in_spread).div_(spread)
            if self._skip is not None and i == len(self._upper):
                self._skip.pull_back(self._without_ones(), self._index)
            if i:
                layer, below = self._upper[i - 1], self._draws[i - 1][1][0]
                layer.pull_back(below)
                self._multiply(below, layer.units)
        self._first.pull_back(self._features)
