"""Links from the boxes of estimators in notebooks to their pages."""

from importlib.metadata import PackageNotFoundError, metadata
from typing import Any


def page_template(estimator: Any) -> str:
    """Address of the page of an estimator, for scikit-learn's `_doc_link_template`.

    The site is the "Documentation" among the addresses that the installed package has;
    the template is empty, and there is no link, if it has none.
    """
    try:
        addresses = metadata("skvi").get_all("Project-URL", [])
    except PackageNotFoundError:
        return ""
    pairs = dict(address.split(", ", 1) for address in addresses)
    site = pairs.get("Documentation", "").rstrip("/")
    return site and f"{site}/generated/{{estimator_module}}.{{estimator_name}}.html"
