"""The examples on the documentation's pages print what the pages show."""

import doctest
from pathlib import Path

import pytest

import skvi.metrics
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


def test_every_public_name_has_a_page():
    scorers = {f"skvi.metrics.{name}" for name in skvi.metrics.__all__}
    pages = (PAGES / "api.rst").read_text().replace("~", "").split()
    assert not (set(public_objects()) | scorers) - set(pages)


def test_every_example_is_in_the_gallery():
    gallery = (PAGES / "gallery.rst").read_text()
    examples = (PAGES.parent / "examples").glob("plot_*.py")
    assert not [path.name for path in examples if f"/{path.name}>`" not in gallery]
