"""Every example runs without a warning, and draws its picture."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))
#: A small set in place of one of 31 coefficients, and a line that says it was read.
ARGUMENTS = {"plot_eubo_paper_tables": ("--sets", "iris", "spectf", "--data", ".")}
PRINTS = {"plot_eubo_paper_tables": "Table 1, spectf: 40 rows, 3 coefficients"}


def write_table(path):
    """Two features, the target, and a column after it that is no feature."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = X[:, 0] + rng.logistic(size=40) > 0
    lines = [f"{a},{b},{int(c)},test" for (a, b), c in zip(X, y, strict=True)]
    path.parent.mkdir()
    path.write_text("\n".join(["a,b,target,part", *lines]))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    picture = tmp_path / "picture.png"
    write_table(tmp_path / "spectf" / "spectf.csv")
    arguments = str(picture), *ARGUMENTS.get(path.stem, ())
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    # On the data that come with scikit-learn: others take minutes.
    environment = {k: v for k, v in os.environ.items() if k != "SKVI_DATA"} | {
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), *arguments],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert picture.stat().st_size > 10_000
    assert PRINTS.get(path.stem, "") in done.stdout
    assert "nan" not in done.stdout.lower()
