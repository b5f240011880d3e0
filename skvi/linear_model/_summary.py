"""A table of coefficients with their intervals."""

from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from skvi.utils._validation import Interval, validate_arguments

__all__ = ["CoefficientTable", "summary"]

# Maximum number of printed rows.
MAX_PRINTED = 40
# Ratio of standard deviations from which every row has decimals of its own.
MAX_RATIO = 100.0
HEADINGS = ("mean", "std", "lower", "upper")
# Fitted attributes that are shown below the coefficients.
NUMBERS = ("noise_scale_", "dispersion_", "prior_scale_", "lower_bound_")


@dataclass(frozen=True)
class CoefficientTable:
    """Posterior means, standard deviations and credible intervals of coefficients.

    Prints as a table; ``to_dict`` is what pandas and others read.

    Parameters
    ----------
    names : tuple of str
        Names of the rows: "intercept", and the features.
    groups : tuple
        Class or target of each row; empty if there is only one.
    group_name : str
        "class" or "target".
    mean, std, lower, upper : ndarray of shape (n_rows,)
        In the units of the coefficients; `lower` and `upper` are the ends of marginal
        central credible intervals.
    coverage : float
    title : str
    numbers : dict of str to float
        Other fitted numbers, such as the scale of the noise.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> print(BayesianLinearRegression().fit(100 * X[:, :2], y).summary())
    BayesianLinearRegression: 90 % credible intervals
                  mean    std    lower    upper
    intercept  152.133  3.614  146.189  158.078
    x0           2.756  0.803    1.426    4.066
    x1           0.194  0.738   -1.021    1.407
    noise_scale_ 75.985, lower_bound_ -2550.7
    """

    names: tuple[str, ...]
    groups: tuple[Any, ...]
    group_name: str
    mean: np.ndarray
    std: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    coverage: float
    title: str = ""
    numbers: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, list]:
        """Return one list for each column.

        Returns
        -------
        dict of str to list
            "class" or "target" if there are several, "name", "mean", "std", "lower",
            "upper".
        """
        found: dict[str, list] = {}
        if self.groups:
            found[self.group_name] = list(self.groups)
        found["name"] = list(self.names)
        for heading in HEADINGS:
            found[heading] = vars(self)[heading].tolist()
        return found

    def to_frame(self) -> Any:
        """Return a pandas data frame, with the names as its index.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        import pandas as pd

        columns = self.to_dict()
        index = [name for name in (self.group_name, "name") if name in columns]
        return pd.DataFrame(columns).set_index(index)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.names)

    def __str__(self) -> str:
        """Return one line for each coefficient, up to a maximum."""
        labels = [str(name) for name in self.names]
        if self.groups:
            pairs = zip(self.groups, labels, strict=True)
            labels = [f"{group}  {name}" for group, name in pairs]
        labels = labels[:MAX_PRINTED]
        wide = max(map(len, labels), default=0)
        digits = _digits(self.std[:MAX_PRINTED])
        columns = [
            [f"{x:.{n}f}" for x, n in zip(vars(self)[name], digits, strict=False)]
            for name in HEADINGS
        ]
        columns = [[h, *c] for h, c in zip(HEADINGS, columns, strict=True)]
        widths = [max(map(len, column)) for column in columns]
        lines = [f"{self.title}: {100 * self.coverage:.4g} % credible intervals"]
        for label, *cells in zip(["", *labels], *columns, strict=True):
            padded = (c.rjust(w) for c, w in zip(cells, widths, strict=True))
            lines.append("  ".join([label.ljust(wide), *padded]))
        if len(self) > MAX_PRINTED:
            lines.append(f"... and {len(self) - MAX_PRINTED} more")
        if self.numbers:
            pairs = (f"{name} {value:.5g}" for name, value in self.numbers.items())
            lines.append(", ".join(pairs))
        return "\n".join(lines)

    __repr__ = __str__


def _digits(std: np.ndarray) -> np.ndarray:
    """Decimals, the same for all, that show three digits of standard deviations.

    Those for a typical deviation, unless some would then have one digit or none.
    """
    known = (std > 0) & np.isfinite(std)
    if not known.any():
        return np.full(len(std), 3)
    typical = float(np.median(std[known]))
    own = np.where(known, std, typical)
    if own.max() < MAX_RATIO * own.min():
        own = np.full(len(std), typical)
    return np.clip(2 - np.floor(np.log10(own)), 0, 12).astype(int)


def summary(self, coverage=0.9, feature_names=None):
    """Table of the coefficients with their credible intervals.

    Parameters
    ----------
    coverage : float, default=0.9
        Posterior probability of each marginal interval, in (0, 1).
    feature_names : array-like of str of shape (n_features,), default=None
        None is the names of the fit, or x0, x1, ... if it had none.

    Returns
    -------
    CoefficientTable
        Prints as a table; ``to_frame()`` is one of pandas.
    """
    check_is_fitted(self)
    validate_arguments(
        type(self).__name__,
        {"coverage": coverage},
        {"coverage": [Interval(Real, 0, 1, closed="neither")]},
    )
    names = _check_feature_names_in(self, feature_names)
    columns = _columns(self.intercept_, self.coef_)
    first = 0 if self.fit_intercept else 1
    names = ["intercept", *map(str, names)][first:]
    labels = self._group_labels() if len(columns) > 1 else []
    ends = self._coefficient_ends((1 - coverage) / 2)
    four = (columns, _columns(self.intercept_std_, self.coef_std_), *ends)
    found = vars(self)
    return CoefficientTable(
        tuple(names) * len(columns),
        tuple(label for label in labels for _ in names),
        self._group_name,
        *(part[:, first:].ravel() for part in four),
        coverage=coverage,
        title=type(self).__name__,
        numbers={k: found[k] for k in NUMBERS if isinstance(found.get(k), float)},
    )


def _columns(intercept, coef):
    """Intercept and coefficients, in double precision, (n_columns, 1 + d)."""
    coef = np.atleast_2d(np.asarray(coef, dtype=np.float64))
    intercept = np.atleast_1d(np.asarray(intercept, dtype=np.float64))
    return np.column_stack([intercept, coef])
