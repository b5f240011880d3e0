"""The examples on the documentation's pages print what the pages show."""

import csv
import doctest
import importlib
import re
import sys
from pathlib import Path

import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.neural_network import MLPClassifier, MLPRegressor

import skvi.metrics
from skvi.changepoint import BayesianChangepointDetector
from skvi.inference import VariationalInference
from skvi.linear_model import (
    BayesianBetaRegressor,
    BayesianGammaRegressor,
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegressor,
    BayesianTweedieRegressor,
)
from skvi.neural_network import BayesianMLPRegressor, BayesianModuleRegressor
from tests.test_docstrings import public_objects

PAGES = Path(__file__).parents[1] / "doc"


PAGES_RUN = [
    "changepoints.rst",
    "decisions.rst",
    "extend.rst",
    "first_steps.rst",
    "gaussian_processes.rst",
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


KINDS = ["linear", "counts", "positive", "amounts", "rates", "MLP", "module"]


def test_the_table_of_likelihoods_has_all_words_and_their_classes():
    row = r'\* - ``"(\w+)"``\n +- (.+)\n +- .+\n +- (.+)\n'
    public = {name.lower() for name in skvi.likelihoods.__all__}
    alone = "none, the word alone"
    rows = re.findall(row, (PAGES / "parameters.rst").read_text())
    models = [BayesianLinearRegression, BayesianPoissonRegressor]
    models += [
        BayesianGammaRegressor,
        BayesianTweedieRegressor,
        BayesianBetaRegressor,
    ]
    models += [BayesianMLPRegressor, BayesianModuleRegressor]
    for key, model in zip(KINDS, models, strict=True):
        found = {word: name for word, name, users in rows if key in users.split(", ")}
        assert set(found) == model._parameter_constraints["likelihood"][0].options
        for word in set(found) - {"auto"}:
            # That of counts beside zeros is a part.
            own = re.sub("_(poisson|negative_binomial)$", "", word).replace("_", "")
            name = f"``{own}likelihood``" if f"{own}likelihood" in public else alone
            assert found[word].lower() == name


def test_every_parameter_of_scikit_learns_networks_has_a_row():
    page = (PAGES / "networks.rst").read_text()
    table = page.partition("From MLPRegressor")[2].partition("What to expect")[0]
    names = {*MLPRegressor().get_params(), *MLPClassifier().get_params()}
    assert not {name for name in names if f"``{name}``" not in table}


def test_every_public_name_has_a_page():
    scorers = {f"skvi.metrics.{name}" for name in skvi.metrics.__all__}
    pages = (PAGES / "api.rst").read_text().replace("~", "").split()
    assert not (set(public_objects()) | scorers) - set(pages)


def _files_entered(fit):
    """Files of skvi in the order in which a second fit enters them."""
    root, entered, before = Path(skvi.__file__).parent, {}, sys.gettrace()
    fit()
    sys.settrace(lambda frame, *event: entered.setdefault(frame.f_code.co_filename))
    try:
        fit()
    finally:
        sys.settrace(before)
    paths = [Path(path) for path in entered]
    return [str(p.relative_to(root)) for p in paths if p.is_relative_to(root)]


def _files_named(text):
    """Files of a walk, with the folder of the name before where it is left out."""
    folder, named = Path(), []
    for name in re.findall(r"``(\S+\.py)``", text):
        folder = Path(name).parent if "/" in name else folder
        named.append(str(folder / Path(name).name))
    return named


FITS = [
    lambda X, y: BayesianLogisticRegression().fit(X, y),
    lambda X, y: BayesianMLPRegressor(max_iter=1, random_state=0).fit(X, X[:, 0]),
    lambda X, y: BayesianChangepointDetector().fit(X[:, :1]),
    lambda X, y: VariationalInference(lambda p: -(p["a"] ** 2), {"a": ()}).fit(),
]
SLOW = [(), pytest.mark.slow, (), ()]
WALKS = [pytest.param(k, marks=marks) for k, marks in enumerate(SLOW)]


@pytest.mark.filterwarnings("ignore:BayesianMLPRegressor")
@pytest.mark.parametrize("k", WALKS, ids="linear network detector density".split())
def test_a_fit_enters_the_files_of_its_walk_in_order(k):
    page = (PAGES / "extend.rst").read_text().partition("From X and y")[2]
    walk = re.split(r"\n\*An? .+\*, ", page)[k + 1]
    X, y = load_breast_cancer(return_X_y=True)
    named = dict.fromkeys(_files_named(walk))
    entered = _files_entered(lambda: FITS[k](X[::9], y[::9]))
    assert len(named) > 6
    assert [path for path in entered if path in named] == list(named)


def test_every_example_is_in_the_gallery_with_its_picture():
    gallery = (PAGES / "gallery.rst").read_text()
    names = [path.stem for path in (PAGES.parent / "examples").glob("plot_*.py")]
    assert not [name for name in names if f"/{name}.py>`" not in gallery]
    pictures = {path.stem for path in (PAGES / "images" / "gallery").glob("*.png")}
    assert set(names) == pictures == set(re.findall(r"gallery/(\w+)\.png", gallery))


def test_tables_of_claims_are_made_from_the_stored_results(monkeypatch):
    monkeypatch.syspath_prepend(PAGES.parent / "benchmarks")
    claims = importlib.import_module("claims")
    page = (PAGES / "claims.rst").read_text()
    tables = claims.tables()
    errors = [row["check"].split(", right is ") for row in tables["errors"]]
    assert sum(len(pair) == 2 and pair[0] != pair[1] for pair in errors) == 12
    for name, rows in tables.items():
        stored = claims.read(PAGES / "claims" / f"{name}.csv")
        assert [{k: str(v) for k, v in row.items()} for row in rows] == stored
        assert f":file: claims/{name}.csv" in page


def test_items_of_the_sources_have_a_state_and_else_a_reason():
    for path in (PAGES / "claims").glob("items_*.csv"):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        states = {row["state"] for row in rows}
        assert states <= {"there", "in part", "missing", "refused"}
        assert all(row["reason"] for row in rows if row["state"] != "there")
        assert len({row["item"] for row in rows}) == len(rows)
        scripts = re.findall(r"``(plot_\w+|\w+\.py)``", path.read_text())
        names = [script.removesuffix(".py") + ".py" for script in scripts]
        assert all(list(PAGES.parent.glob(f"[be]*s/{name}")) for name in names)
