"""Every example runs without a warning, and draws its picture."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    picture = tmp_path / "picture.png"
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    # On the data that come with scikit-learn: others take minutes.
    environment = {k: v for k, v in os.environ.items() if k != "SKVI_DATA"} | {
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), str(picture)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert picture.stat().st_size > 10_000
    assert "nan" not in done.stdout.lower()
