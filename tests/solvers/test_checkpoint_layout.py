"""What checkpoints hold, and that one of another layout is refused."""

import io
import json

import numpy as np
import pytest

from skvi.solvers import SolverOptions, Stochastic
from skvi.solvers._checkpoint import FORMAT, CheckpointFile
from tests.solvers.test_members import make_problem

#: The entries of every format: whoever changes them has to count on.
LAYOUTS = {
    2: {
        "own": "best end history message optimizer params schedule start stopped "
        "validation _epoch _n_of_epoch _rows _sweep _total",
        "own.end": "last length score total values",
        "own.best": "end optimizer rest",
        "own.best.end": "last length score total values",
        "own.optimizer": "count first rate second",
        "own.validation": "best mark scores waited",
        "own.schedule": "best best_error first is_level largest_fall lowest "
        "lowest_error n_all n_before n_held n_ignored n_observations n_seen patience "
        "rise seen smallest start tol waited warm_up",
    }
}
KINDS = (
    {"early_stopping": False},
    {"early_stopping": True},
    {"early_stopping": True, "score": lambda state: 0.0},
)


def checkpoint(path, **options):
    """A finished training, and its file."""
    file = CheckpointFile(path, 0.0, {"seed": "0"})
    options |= {"max_iter": 3, "steps_per_iter": 100, "checkpoint": file.at("main")}
    return Stochastic().solve(make_problem(0), SolverOptions(**options)), file


def test_the_layout_has_a_number(tmp_path):
    """Wrong variant: an entry without a new format."""
    found = {}
    for k, options in enumerate(KINDS):
        _, file = checkpoint(tmp_path / f"{k}.npz", **options)
        tree = file.at("main").state
        assert set(tree) == {"own", "sources", "generator"}
        for place in LAYOUTS[FORMAT]:
            part = tree
            for name in place.split("."):
                part = part.get(name, {})
            found.setdefault(place, set()).update(part)
    assert found == {
        place: set(text.split()) for place, text in LAYOUTS[FORMAT].items()
    }


def test_a_file_of_the_first_layout_is_refused(tmp_path):
    """It had no best state. Wrong variant: it is read as if it were of today."""
    path = tmp_path / "fit.npz"
    solution, _ = checkpoint(path)
    again, _ = checkpoint(path)
    assert again.value == solution.value
    with np.load(path) as arrays:
        parts = dict(arrays)
    header = json.loads(str(parts.pop("header")))
    del header["tree"]["phases"]["main"]["own"]["best"]
    content = io.BytesIO()
    np.savez(content, header=json.dumps(header | {"format": 1}), **parts)
    path.write_bytes(content.getvalue())
    with pytest.raises(ValueError, match=r"another version of skvi\. Remove the file"):
        checkpoint(path)
    assert path.read_bytes() == content.getvalue()
