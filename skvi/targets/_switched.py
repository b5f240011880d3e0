"""Points at which a density may be as large as at one: switched labels and signs."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice

import torch
from torch.distributions.transforms import Transform

from skvi.targets._maps import SUPPORTS
from skvi.utils._tensors import CPU

# Labels that may be switched, at most, sets of blocks that switch together, and images.
MAX_LABELS, MAX_SETS, MAX_IMAGES = 12, 128, 2048
# Two positions of each element that is exchanged.
Pairs = tuple[torch.Tensor, torch.Tensor]


class Switches:
    """Maps of parameters on their supports that often leave a density unchanged.

    Two labels of all blocks that have an axis of so many labels are exchanged, in any
    set of these blocks; a probability p with them may become 1 - p, and two numbers of
    one support may be exchanged. Signs change of blocks, or of one label.
    """

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], supports: Mapping[str, Transform]
    ) -> None:
        sizes = [torch.Size(shape).numel() for shape in shapes.values()]
        places = torch.arange(sum(sizes), device=CPU).split(sizes)
        self.at = {
            name: place.reshape(torch.Size(shapes[name]))
            for name, place in zip(shapes, places, strict=True)
        }
        self.supports = supports
        self.real = [k for k, t in supports.items() if t == SUPPORTS["real"]]

    def images(self, values: torch.Tensor) -> torch.Tensor:
        """Images, (M, N), of the elements of all blocks, (N,)."""
        found = [values.clone()[None][:0]]
        for swaps, mirrored in self._exchanges():
            other = values.clone()
            for first, second in swaps:
                other[first], other[second] = values[second], values[first]
            for place in mirrored:
                other[place] = 1 - values[place]
            found.append(other[None])
        for negated in self._negations():
            other = values.clone()
            other[negated] = -values[negated]
            found.append(other[None])
        return torch.cat(found)[:MAX_IMAGES]

    def _axes(self, names: Sequence[str]) -> dict[int, list[tuple[torch.Tensor, int]]]:
        """Blocks and axes by their number of labels."""
        found: dict[int, list[tuple[torch.Tensor, int]]] = {}
        for name in names:
            for axis, n in enumerate(self.at[name].shape):
                if 1 < n <= MAX_LABELS:
                    found.setdefault(n, []).append((self.at[name], axis))
        return found

    def _exchanges(self) -> Iterator[tuple[list[Pairs], list[torch.Tensor]]]:
        """Exchanged positions, and those of probabilities that are mirrored."""
        axes = self._axes(list(self.at))
        for n in axes:
            for chosen in islice(_sets(axes[n]), MAX_SETS if n > 2 else 0):
                for k, m in combinations(range(n), 2):
                    yield [(b.select(a, k), b.select(a, m)) for b, a in chosen], []
        numbers = [name for name in self.at if not self.at[name].ndim]
        pairs: list[tuple[torch.Tensor, ...]] = [
            (b.select(a, 0), b.select(a, 1)) for b, a in axes.get(2, [])
        ]
        pairs += [
            (self.at[first], self.at[second])
            for first, second in combinations(numbers, 2)
            if self.supports[first] == self.supports[second]
        ]
        unit = SUPPORTS["unit_interval"]
        pairs += [(self.at[k],) for k, t in self.supports.items() if t == unit]
        for some in islice(_sets(pairs), MAX_SETS):
            places = torch.cat([p.flatten() for pair in some for p in pair])
            if len(places.unique()) == len(places):
                swaps = [(pair[0], pair[1]) for pair in some if len(pair) == 2]
                yield swaps, [pair[0] for pair in some if len(pair) == 1]

    def _negations(self) -> Iterator[torch.Tensor]:
        """Positions of elements whose signs change together."""
        axes = self._axes(self.real)
        for n in axes:
            for chosen in islice(_sets(axes[n]), MAX_SETS):
                for k in range(n):
                    yield torch.cat([b.select(a, k).flatten() for b, a in chosen])
        for names in islice(_sets(self.real), MAX_SETS):
            yield torch.cat([self.at[name].flatten() for name in names])


def _sets(members: Sequence) -> Iterator[tuple]:
    """All sets of one or more members, the largest first: labels are of all blocks."""
    for size in range(len(members), 0, -1):
        yield from combinations(members, size)
