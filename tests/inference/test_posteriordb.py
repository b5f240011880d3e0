"""Posteriors that others wrote, with their reference draws."""

import json
import os
import runpy
import warnings
from pathlib import Path

import pytest

from skvi.inference import VariationalInference

ROOT = Path(__file__).parents[2]
DATA = os.environ.get("SKVI_DATA")
QUICK = "kilpisjarvi_mod-kilpisjarvi", "gp_pois_regr-gp_regr", "mesquite-logmesquite"
SLOW = (
    "arma-arma11",
    "garch-garch11",
    "hmm_example-hmm_example",
    "kidiq-kidscore_interaction",
    "low_dim_gauss_mix-low_dim_gauss_mix",
    "nes1972-nes",
    "sblrc-blr",
)
pytestmark = pytest.mark.skipif(not DATA, reason="needs SKVI_DATA")


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "benchmarks" / "posteriordb.py"))


def fit(script, name, **params):
    folder = Path(DATA) / "posteriordb" / name
    model = script["MODELS"][name](json.loads((folder / "data.json").read_text()))
    reference = json.loads((folder / "moments.json").read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vi = VariationalInference(*model, random_state=0, **params).fit()
    return vi, *script["errors"](vi.sample_posterior(10_000, 0), reference)


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_moments_are_those_of_long_chains(script, name):
    """In raw units: years, IQ. Wrong variant: a fit from 0 without curvature."""
    vi, mean, std = fit(script, name)
    assert vi.converged_
    assert mean < script["MEAN"]
    assert std < script["STD"]


@pytest.mark.parametrize("name", [QUICK[0], QUICK[2]])
def test_correlations_that_a_family_lacks_are_reported(script, name):
    """Deviations are too small by factors of 4 and 200."""
    vi, _, std = fit(script, name, posterior="mean_field")
    assert std > 1
    assert not vi.converged_
