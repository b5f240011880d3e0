"""The examples on the documentation's pages print what the pages show."""

import doctest
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[1] / "doc"


PAGES_RUN = [
    "changepoints.rst",
    "decisions.rst",
    "extend.rst",
    pytest.param("log_density.rst", marks=pytest.mark.slow),
    "long_fits.rst",
    "messages.rst",
    "metrics.rst",
    "model_selection.rst",
    "predict.rst",
]


@pytest.mark.parametrize("page", PAGES_RUN)
def test_examples_of_the_pages(page):
    failed, attempted = doctest.testfile(str(PAGES / page), module_relative=False)
    assert attempted
    assert not failed
