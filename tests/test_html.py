"""What notebooks show: tables in HTML, and boxes with links to the pages."""

import re
from email.message import Message
from html import unescape
from pathlib import Path

import pytest
from sklearn.datasets import load_diabetes

import skvi
from skvi.linear_model import BayesianLinearRegression
from skvi.model_selection import EvidenceSearch
from tests.test_docstrings import public_objects

API = (Path(__file__).parents[1] / "doc" / "api.rst").read_text()
X, y = load_diabetes(return_X_y=True)
MODEL = BayesianLinearRegression(noise_scale=50.0)


def cells(html):
    """The texts of a table, row by row."""
    rows = re.findall("<tr>(.*?)</tr>", html.rpartition("<table>")[2])
    return [[unescape(x) for x in re.findall("<t[hd]>(.*?)</t", row)] for row in rows]


def test_tables_show_the_numbers_that_are_printed_and_escape_texts():
    model = MODEL.fit(X[:, :2], y)
    summary = model.summary(feature_names=["<b>age</b>", "sex"])
    bounds = model.evidence_bounds(X[:, :2], y, random_state=0)
    for table in (summary, bounds, bounds.table):
        shown = cells(table._repr_html_())
        assert len(shown) > 2
        assert all(cell in str(table) for row in shown[1:] for cell in row)
    assert "<b>" not in summary._repr_html_()


def test_a_stream_shows_its_last_chunks_and_the_means():
    found = skvi.stream(
        BayesianLinearRegression(), [(X[k::50], y[k::50]) for k in range(50)]
    )
    _, *rows, total = cells(found._repr_html_())
    assert [row[0] for row in rows] == [str(k) for k in range(11, 50)]
    mean = found.mean("log_predictive_density")
    assert [total[1], float(total[3])] == [str(len(X)), pytest.approx(mean, rel=1e-4)]


def test_a_search_shows_its_verdict_and_its_candidates_from_the_best_on():
    search = EvidenceSearch(MODEL, {"prior__scale": [0.01, 1.0]}, random_state=0)
    html = search.fit(X, y)._repr_html_()
    assert search.verdict_ in unescape(html)
    (_, *rows), best = cells(html), f"{search.best_score_:.3f}"
    assert [rows[0][0], rows[0][2], rows[1][0]] == ["scale=1", best, "scale=0.01"]


@pytest.mark.parametrize(
    "address", ["Documentation, https://a.b/c/", "Home, https://a"]
)
def test_boxes_link_to_the_pages_of_the_site(address, monkeypatch):
    about = Message()
    about["Project-URL"] = address
    monkeypatch.setattr("skvi.utils._links.metadata", lambda name: about)
    kinds = [k for k in public_objects().values() if hasattr(k, "_get_doc_link")]
    links = [k.__new__(k)._get_doc_link() for k in kinds if hasattr(k, "fit")]
    pages = [link.removeprefix("https://a.b/c/generated/") for link in links if link]
    assert len(pages) == (len(links) if "Doc" in address else 0)
    assert all(f"~{page.removesuffix('.html')}\n" in API for page in pages)
