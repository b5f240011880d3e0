"""Arrays of hypotheses that come and go."""

import numpy as np

__all__ = ["Store"]


class Store:
    """Named arrays with a common first axis, which grows, and shrinks by swaps.

    Nothing is moved when a row is appended or another one dropped, but for the last
    rows, which fill the holes: the order of rows means nothing.

    Parameters
    ----------
    rows : dict
        Name -> array; their types and shapes but for the first axis.
    capacity : int
        Number of rows there is place for, at first.
    """

    def __init__(self, rows: dict[str, np.ndarray], capacity: int = 64) -> None:
        self.n = 0
        self.arrays = {
            name: np.empty((capacity, *np.shape(a)[1:]), np.asarray(a).dtype)
            for name, a in rows.items()
        }

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name][: self.n]

    def view(self) -> dict[str, np.ndarray]:
        """All arrays, as they are: writing into them changes the store."""
        return {name: array[: self.n] for name, array in self.arrays.items()}

    def append(self, rows: dict[str, np.ndarray]) -> None:
        """Add rows at the end."""
        first = next(iter(rows.values()))
        end = self.n + len(first)
        if end > len(next(iter(self.arrays.values()))):
            self._grow(max(end, 2 * self.n))
        for name, array in rows.items():
            self.arrays[name][self.n : end] = array
        self.n = end

    def drop(self, mask: np.ndarray) -> None:
        """Remove the rows of a mask, (n,)."""
        end = self.n - int(np.count_nonzero(mask))
        holes = mask[:end].nonzero()[0]
        if len(holes):
            movers = end + (~mask[end:]).nonzero()[0]
            for array in self.arrays.values():
                array[holes] = array[movers]
        self.n = end

    def _grow(self, capacity: int) -> None:
        for name, array in self.arrays.items():
            larger = np.empty((capacity, *array.shape[1:]), array.dtype)
            larger[: self.n] = array[: self.n]
            self.arrays[name] = larger

    def __getstate__(self) -> dict:
        # What lies beyond the last row is anyone's.
        return {"n": self.n, "arrays": {k: a.copy() for k, a in self.view().items()}}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
