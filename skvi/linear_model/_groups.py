"""Groups of columns, each with a scale of its own, and columns from labels."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from numbers import Integral
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from skvi.utils._links import page_template
from skvi.utils._validation import StrOptions, _fit_context, validate_data

# Cosine of columns beyond which posteriors of scales and correlation are bent ridges.
# Below, levels are those that were declared: in the middle of the data their prior is
# bent, and with 3 to 8 labels errors are two to five times larger.
MOST_COSINE = 0.97
MISSING = (
    "Labels, or features of slopes, are missing (None or NaN): leave these rows out, "
    "give missing labels a name, as X.fillna({'shop': 'unknown'}) does, and impute "
    "features."
)


def find_groups(estimator: Any, X: Any) -> dict[str, np.ndarray]:
    """Columns of the groups of an estimator, in ascending order; empty for None.

    X is as the user gave it, and its numbers and names of columns are known.
    """
    if (given := estimator.column_groups) is None:
        return {}
    n_features, names = estimator.n_features_in_, vars(estimator)
    labels = list(names["feature_names_in_"]) if "feature_names_in_" in names else None
    found: dict[str, np.ndarray] = {}
    owner: dict[int, str] = {}
    for name, key in _one_by_one(given):
        columns = _columns_of(key, X, labels, n_features)
        if name in ("coef", "weight", "intercept") or not isinstance(name, str):
            raise ValueError(
                f"A group of columns cannot have the name {name!r}, which the prior "
                "has for other coefficients; use a string such as 'district'."
            )
        if not len(columns):
            raise ValueError(
                f"column_groups[{name!r}] = {key!r} matches no column of X"
                + ("" if labels is None else f", with {len(labels)}: {labels[:20]}")
                + ". Leave it out, or give other names, a pattern or positions."
            )
        for k in columns.tolist():
            if owner.setdefault(k, name) != name:
                raise ValueError(
                    f"Column {k} is in two groups, {owner[k]!r} and {name!r}; each "
                    "column can be in one."
                )
        found[name] = columns
    for name, both in correlated_groups(given).items():
        sizes = {part: len(found[part]) for part in both}
        if len(sizes) != 2 or len(set(sizes.values())) > 1 or 1 in sizes.values():
            raise ValueError(
                f"column_groups[{name!r}] is a dict: its groups are correlated column "
                "by column. It needs two, with as many columns, at least two; they "
                f"have {sizes}."
            )
    return found


def _one_by_one(given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names of groups and their columns, of correlated ones as of others."""
    names: set[str] = set()
    for name, part in given.items():
        for own, columns in part.items() if isinstance(part, dict) else [(name, part)]:
            if own in names:
                raise ValueError(f"column_groups has the name {own!r} twice.")
            names.add(own)
            yield own, columns


def correlated_groups(given: dict[str, Any] | None) -> dict[str, list[str]]:
    """Names of the groups that are correlated, by that of both."""
    pairs = (given or {}).items()
    return {name: list(part) for name, part in pairs if isinstance(part, dict)}


def middles(
    pairs: dict[str, list[str]],
    data: Any,
    scale: np.ndarray,
    places: dict[str, np.ndarray],
) -> dict[str, float]:
    """Ratios of columns that are nearly proportional, the second to the first."""
    found, weight = {}, 1.0 if data.weight is None else data.weight[:, None]
    for name, both in pairs.items():
        columns = (places[part] for part in both)
        first, second = (sparse.csr_array(data.X[:, k] / scale[k]) for k in columns)
        each = first * weight
        square, product = (each * first).sum(), (each * second).sum()
        size = square * (second * second * weight).sum()
        is_near = product**2 > MOST_COSINE**2 * size
        found[name] = float(product / square) if is_near else 0.0
    return found


def with_columns(
    given: dict[str, Any] | None, found: dict[str, np.ndarray]
) -> dict[str, Any] | None:
    """`column_groups` with positions of columns, for rows that have no names."""
    pairs = correlated_groups(given)
    whole = {name: {key: found[key] for key in both} for name, both in pairs.items()}
    return {k: whole.get(k, found.get(k)) for k in given} if given else None


def _columns_of(
    given: Any, X: Any, labels: list[str] | None, n_features: int
) -> np.ndarray:
    """Positions of columns by names, a pattern, positions, a mask or a callable."""
    if callable(given):
        given = given(X)
    if isinstance(given, slice):
        return np.arange(n_features)[given]
    if isinstance(given, (str, Integral)):
        given = [given]
    if len(given) == n_features and all(isinstance(k, (bool, np.bool_)) for k in given):
        return np.flatnonzero(given)
    found: list[int] = []
    for key in given:
        if isinstance(key, str):
            found += _matching(key, labels)
        elif not -n_features <= key < n_features:
            raise ValueError(f"X has {n_features} columns; there is no column {key}.")
        else:
            found.append(int(key) % n_features)
    return np.unique(np.array(found, dtype=int))


def _matching(pattern: str, labels: list[str] | None) -> list[int]:
    """Columns with a name, or with one that matches a shell pattern."""
    if labels is None:
        raise ValueError(
            f"column_groups has the name {pattern!r}, but X has no column names: give "
            "a data frame, in a pipeline by set_output(transform='pandas') and "
            "GroupedFeatures(sparse_output=False), or positions such as "
            "slice(3, None)."
        )
    if pattern in labels:
        return [labels.index(pattern)]
    return [k for k, label in enumerate(labels) if fnmatchcase(label, pattern)]


class GroupedFeatures(TransformerMixin, BaseEstimator):
    """Columns of a factor: one for each label, for intercepts and slopes of groups.

    The first column has labels of any type; for each label there is a column that is 1
    in its rows and 0 elsewhere. If there are further columns, which are features, so
    there is for each of them and each label: the feature in the rows of the label, less
    its mean, and 0 elsewhere. As groups of `column_groups` they are the "random
    intercepts" and "random slopes" of mixed models.

    Parameters
    ----------
    handle_unknown : {"new", "zero"}, default="new"
        Labels that the fit has not seen. With "new" there is one more column for them,
        which is 0 in all rows of the fit: its coefficient keeps the prior of its group,
        so that predictions have the variance between groups; all unknown labels have
        the same one. With "zero" all columns are 0, as for a group that is like the
        average of all.
    sparse_output : bool, default=True
        Whether the result is a CSR matrix. A dense one can be a data frame, by
        ``set_output(transform="pandas")``.

    Attributes
    ----------
    labels_ : ndarray of shape (n_labels,)
        In ascending order.
    means_ : ndarray of shape (n_features - 1,)
        Of the features.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)

    See Also
    --------
    BayesianLinearRegression : Its `column_groups` have a scale each.

    Notes
    -----
    Features are centered so that nothing changes if a feature is moved: the effects of
    the labels are those at its mean. Effects and slopes of a label are correlated if
    their groups are in one dict: ``column_groups={"region": {"level": "region_*",
    "slope": "year:region_*"}}``; as two groups they are independent. ValueError if a
    label is missing: leave these rows out, or give them a label.

    Two unknown labels share one column: predictions for each are right, but draws for
    both move together, so that those of their sum or difference are not. Labels that
    this transformer has seen, in ``GroupedFeatures().fit(all_rows)``, and the model's
    rows have not, are new groups as well, with a column each.

    Examples
    --------
    >>> from skvi.linear_model import GroupedFeatures
    >>> rows = [["north", 1.0], ["south", 2.0], ["north", 3.0]]
    >>> columns = GroupedFeatures(sparse_output=False).fit(rows)
    >>> columns.transform(rows)
    array([[ 1.,  0.,  0., -1.,  0.,  0.],
           [ 0.,  1.,  0.,  0.,  0.,  0.],
           [ 1.,  0.,  0.,  1.,  0.,  0.]])
    >>> columns.transform([["west", 3.0]])
    array([[0., 0., 1., 0., 0., 1.]])
    >>> columns.get_feature_names_out(["region", "year"])[:4].tolist()
    ['region_north', 'region_south', 'region_(new)', 'year:region_north']
    """

    _doc_link_module = "skvi"
    _doc_link_template = property(page_template)
    _parameter_constraints: dict = {
        "handle_unknown": [StrOptions({"new", "zero"})],
        "sparse_output": ["boolean"],
    }

    def __init__(self, handle_unknown: str = "new", sparse_output: bool = True) -> None:
        self.handle_unknown, self.sparse_output = handle_unknown, sparse_output

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the labels, and the means of the features.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Labels, then features.
        y : None
            Ignored.

        Returns
        -------
        self
        """
        labels, features = self._parts(X, reset=True)
        self._encoder = OneHotEncoder(handle_unknown="ignore").fit(labels)
        self.labels_ = self._encoder.categories_[0]
        self.means_ = features.mean(0)
        return self

    def transform(self, X: Any) -> Any:
        """Columns of the labels, then those of each feature.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        CSR matrix or ndarray of shape (n_samples, n_columns)
        """
        check_is_fitted(self)
        labels, features = self._parts(X, reset=False)
        known, first = self.labels_.tolist()[0], labels.tolist()[0][0]
        if isinstance(known, str) != isinstance(first, str):
            raise ValueError(
                f"Labels of the fit are such as {known!r}, these such as {first!r}: "
                "both must be text, or both numbers."
            )
        own = self._encoder.transform(labels)
        if self.handle_unknown == "new":
            own = sparse.hstack([own, 1.0 - own.sum(1)], format="csr")
        slopes = [own.multiply(x[:, None]) for x in (features - self.means_).T]
        found = sparse.hstack([own, *slopes], format="csr")
        return found if self.sparse_output else found.toarray()

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns, such as "region_north" and "year:region_north".

        Parameters
        ----------
        input_features : array-like of str of shape (n_features,), default=None
            None is the names of the fit, or x0, x1, ... if it had none.

        Returns
        -------
        ndarray of str
        """
        check_is_fitted(self)
        first, *rest = _check_feature_names_in(self, input_features)
        # Beside features whole numbers become floats.
        whole = [isinstance(x, float) and x.is_integer() for x in self.labels_]
        labels = zip(self.labels_, whole, strict=True)
        own = [f"{first}_{int(x) if is_int else x}" for x, is_int in labels]
        own += [f"{first}_(new)"] * (self.handle_unknown == "new")
        slopes = [f"{name}:{label}" for name in rest for label in own]
        return np.array(own + slopes, dtype=object)

    def _parts(self, X: Any, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        """Labels, (n, 1), and features."""
        try:
            X = validate_data(self, X, dtype=None, reset=reset)
        except (TypeError, ValueError) as error:
            is_missing = any(word in str(error) for word in ("NaN", "of NA is"))
            raise ValueError(MISSING) if is_missing else error from None
        if X.dtype == object and any(label is None for label in X[:, 0]):
            raise ValueError(MISSING)
        return X[:, :1], X[:, 1:].astype(np.float64)

    def __sklearn_tags__(self) -> Any:
        """Declare that labels may be strings."""
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.string = True
        return tags
