"""The examples on the documentation's pages print what the pages show."""

import doctest
import re
from pathlib import Path

import pytest
from sklearn.neural_network import MLPClassifier, MLPRegressor

import skvi.metrics
from skvi._estimator._registry import SHORTHANDS
from skvi.linear_model import BayesianLinearRegression, BayesianPoissonRegressor
from skvi.neural_network import BayesianMLPRegressor, BayesianModuleRegressor
from tests.test_docstrings import public_objects

PAGES = Path(__file__).parents[1] / "doc"


PAGES_RUN = [
    "changepoints.rst",
    "decisions.rst",
    "extend.rst",
    "first_steps.rst",
    "install.rst",
    "linear_models.rst",
    pytest.param("log_density.rst", marks=pytest.mark.slow),
    "long_fits.rst",
    "messages.rst",
    "metrics.rst",
    "model_selection.rst",
    pytest.param("networks.rst", marks=pytest.mark.slow),
    "predict.rst",
]


@pytest.mark.parametrize("page", PAGES_RUN)
def test_examples_of_the_pages(page):
    failed, attempted = doctest.testfile(str(PAGES / page), module_relative=False)
    assert attempted
    assert not failed


def test_the_table_of_likelihoods_is_that_of_the_estimators():
    """Words, classes and estimators; wrong variant: a word without a row."""
    models = {
        "linear": BayesianLinearRegression,
        "counts": BayesianPoissonRegressor,
        "MLP": BayesianMLPRegressor,
        "module": BayesianModuleRegressor,
    }
    page = (PAGES / "parameters.rst").read_text()
    row = r'\* - ``"(\w+)"``\n +- (.+)\n +- .+\n +- (.+)\n'
    found = {word: (name, users) for word, name, users in re.findall(row, page)}
    shown = {
        k: {w for w, row in found.items() if k in row[1].split(", ")} for k in models
    }
    for key, model in models.items():
        assert shown[key] == model._parameter_constraints["likelihood"][0].options
    for word in set(found) - {"auto"}:
        made = SHORTHANDS["likelihood"][word]
        assert found[word][0] == f"``{type(made()).__name__}``"


def test_every_parameter_of_scikit_learns_networks_has_a_row():
    page = (PAGES / "networks.rst").read_text()
    table = page.partition("From MLPRegressor and MLPClassifier")[2]
    table = table.partition("What to expect")[0]
    missing = set(MLPRegressor().get_params()) | set(MLPClassifier().get_params())
    assert not {name for name in missing if f"``{name}``" not in table}


def test_every_public_name_has_a_page():
    scorers = {f"skvi.metrics.{name}" for name in skvi.metrics.__all__}
    pages = (PAGES / "api.rst").read_text().replace("~", "").split()
    assert not (set(public_objects()) | scorers) - set(pages)


def test_every_example_is_in_the_gallery():
    gallery = (PAGES / "gallery.rst").read_text()
    examples = (PAGES.parent / "examples").glob("plot_*.py")
    assert not [path.name for path in examples if f"/{path.name}>`" not in gallery]
