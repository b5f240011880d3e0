"""Checkpoints of long fits in a file, from which another process can continue."""

import json
import os
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

#: Dictionaries with names as keys, lists, numbers, texts, None, and tensors.
Tree = Any

# Version of the layout of the file: another one for every change of what is stored.
FORMAT = 2
# The entry with everything except tensors, which it refers to by their entries.
HEADER, TENSOR = "header", "tensor"


class CheckpointFile:
    """The file of one fit, which may have several phases.

    It is a ``.npz`` archive of numpy, of arrays and a header in JSON: reading it runs
    no code. It is replaced atomically, so that it is complete whenever the process
    ends.

    Parameters
    ----------
    path : str or path-like
    interval : float
        Minimum number of seconds between two writes.
    identity : mapping of str to str
        What identifies the fit: parameters, data, device.
    is_read_only : bool, default=False
        Whether another process writes it.

    Raises
    ------
    ValueError
        The file exists and is not a checkpoint, or belongs to another fit.

    Examples
    --------
    >>> import tempfile
    >>> from skvi.solvers._checkpoint import CheckpointFile
    >>> path = tempfile.mkdtemp() + "/fit.npz"
    >>> CheckpointFile(path, 60.0, {"max_iter": "200"}).at("main").save({"n": 3})
    >>> CheckpointFile(path, 60.0, {"max_iter": "200"}).at("main").state
    {'n': 3}
    >>> CheckpointFile(path, 60.0, {"max_iter": "300"})
    Traceback (most recent call last):
    ...
    ValueError: checkpoint_path='...fit.npz' belongs to another fit: ...
    """

    def __init__(
        self,
        path: str | os.PathLike,
        interval: float,
        identity: Mapping[str, str],
        is_read_only: bool = False,
    ) -> None:
        self.path, self.interval = Path(path), interval
        self.is_read_only = is_read_only
        self.identity = dict(identity)
        self.phases: dict[str, Tree] = self._read() if self.path.exists() else {}
        self.last_write = time.monotonic()

    def at(self, phase: str) -> "Checkpoint":
        """The part of the file that belongs to a phase of the fit.

        Parameters
        ----------
        phase : str

        Returns
        -------
        Checkpoint
        """
        return Checkpoint(self, phase)

    def write(self, phase: str, state: Tree) -> None:
        """Replace the file by one with the given state of a phase.

        Parameters
        ----------
        phase : str
        state : Tree
        """
        self.phases[phase] = state
        self.last_write = time.monotonic()
        if self.is_read_only:
            return
        tree = {"identity": self.identity, "phases": self.phases}
        arrays: dict[str, np.ndarray] = {}
        header = json.dumps({"format": FORMAT, "tree": _take_apart(tree, arrays)})
        other = self.path.with_name(self.path.name + ".tmp")
        with open(other, "wb") as file:
            np.savez(file, header=np.array(header), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(other, self.path)

    def _read(self) -> dict[str, Tree]:
        remedy = "Remove the file, or give another checkpoint_path."
        name = f"checkpoint_path={str(self.path)!r}"
        try:
            with open(self.path, "rb") as file:
                arrays = np.load(file, allow_pickle=False)
                header = json.loads(str(arrays[HEADER]))
                known = header["format"] == FORMAT
                tree = _put_together(header["tree"], arrays) if known else None
        except (ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
            text = f"{name} is a file, but not a checkpoint of skvi. {remedy}"
            raise ValueError(text) from error
        if tree is None:
            raise ValueError(f"{name} was written by another version of skvi. {remedy}")
        others = _differences(tree["identity"], self.identity)
        if others:
            raise ValueError(
                f"{name} belongs to another fit: {others}. Use the parameters and data "
                "of that fit to continue it; for a new fit remove the file, or give "
                "another checkpoint_path."
            )
        return tree["phases"]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The part of the file that belongs to one phase of a fit."""

    file: CheckpointFile
    phase: str

    @property
    def state(self) -> Tree | None:
        """State of the phase when it was last written; None if it never was."""
        return self.file.phases.get(self.phase)

    @property
    def n_iter(self) -> int:
        """Number of iterations up to then."""
        return 0 if self.state is None else len(self.state["own"]["history"])

    @property
    def is_due(self) -> bool:
        """Whether `interval` seconds have passed since the last write."""
        return time.monotonic() - self.file.last_write >= self.file.interval

    def save(self, state: Tree) -> None:
        """Write the state of the phase."""
        self.file.write(self.phase, state)


def checkpoint_path_of(estimator: Any) -> Any:
    """The file in which the solver of an estimator saves its fit, or None."""
    return getattr(estimator.solver, "checkpoint_path", None)


def _take_apart(tree: Tree, arrays: dict[str, np.ndarray]) -> Tree:
    """The part that JSON can represent; tensors move into `arrays`."""
    if isinstance(tree, torch.Tensor):
        name = f"{TENSOR}{len(arrays)}"
        arrays[name] = tree.detach().cpu().numpy()
        return {TENSOR: name}
    if isinstance(tree, dict):
        return {key: _take_apart(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_take_apart(value, arrays) for value in tree]
    return tree


def _put_together(tree: Tree, arrays: Mapping[str, np.ndarray]) -> Tree:
    if isinstance(tree, dict):
        if set(tree) == {TENSOR}:
            return torch.from_numpy(arrays[tree[TENSOR]])
        return {key: _put_together(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_put_together(value, arrays) for value in tree]
    return tree


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Name the differences, with both values if they are short."""
    names = [n for n in {**now, **before} if before.get(n) != now.get(n)]

    def one(name: str) -> str:
        values = before.get(name, "unknown"), now.get(name, "unknown")
        if max(map(len, values)) > 60:
            return f"{name} differs"
        return f"{name} was {values[0]}, and is {values[1]}"

    return "; ".join(one(name) for name in names)
