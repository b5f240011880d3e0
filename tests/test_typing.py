"""What a type checker knows of the estimators."""

from pathlib import Path

import pytest

import skvi

CODE = """
from skvi.linear_model import BayesianLinearRegression

BayesianLinearRegression(divergence=3)
model = BayesianLinearRegression(divergence="kl").fit([[1.0], [2.0]], [1.0, 2.0])
model.predict([[1.0]]).no_such_name
"""


@pytest.mark.slow
def test_mypy_refuses_a_number_as_divergence_and_knows_that_predictions_are_arrays(
    tmp_path, monkeypatch
):
    api = pytest.importorskip("mypy.api")
    monkeypatch.setenv("MYPYPATH", str(Path(skvi.__file__).parents[1]))
    (tmp_path / "code.py").write_text(CODE)
    options = "--follow-imports=silent", "--ignore-missing-imports", "--config-file="
    cache = f"--cache-dir={tmp_path}"
    found, _, _ = api.run([*options, cache, str(tmp_path / "code.py")])
    number, name, *rest = found.splitlines()
    assert 'incompatible type "int"; expected "str | Divergence"' in number
    assert '"ndarray[' in name
    assert "no_such_name" in name
    assert len(rest) == 1
