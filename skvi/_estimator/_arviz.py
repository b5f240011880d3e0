"""Draws of a fitted estimator for ArviZ, with what they say of every row."""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from skvi.utils._arviz import as_tree
from skvi.utils._interrupts import limit_threads
from skvi.utils._tensors import make_generator


def to_arviz(
    self,
    X: Any,
    y: Any,
    *,
    sample_weight: ArrayLike | None = None,
    n_draws: int = 1000,
    random_state: int | np.random.RandomState | None = None,
    **row_data: ArrayLike | None,
) -> Any:
    """Draws of the posterior for the tables, plots and comparisons of ArviZ.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        The training features.
    y : array-like of shape (n_samples,)
        The training target.
    sample_weight : array-like of shape (n_samples,), default=None
        Needed if the fit had weights.
    n_draws : int, default=1000
        If it is a multiple of four, the independent draws are four chains.
    random_state : int, RandomState instance or None, default=None
    **row_data : array-like of shape (n_samples,)
        Further data of the rows that the fit had: ``exposure`` of counts, ``offset``,
        ``n_trials``.

    Returns
    -------
    xarray.DataTree
        "posterior": draws in the units of the data, as of `sample_posterior`, with the
        scale of the noise in place of its precision. "log_likelihood": minus the loss
        of every row that the fit used, times its weight. "posterior_predictive" and
        "observed_data": targets of these rows; a class is its position in `classes_`.
        "sample_stats": "log_p", the log joint density of data and parameters, and
        "log_q", that of the fitted posterior, or a bound of it where the family has
        only bounds. Both are densities in the coordinates of the fit, so that neither
        depends on the units of features to which the prior adapts.

    Raises
    ------
    ImportError
        arviz-base is not installed.
    ValueError
        The data are not those of the fit, or the fit had weights and none are given.

    Notes
    -----
    With ``stats = tree["sample_stats"]``, approximate leave-one-out of ArviZ, which
    corrects for the distance of the fitted posterior from the exact one, is
    ``arviz_stats.loo_approximate_posterior(tree, stats["log_p"], stats["log_q"])``.
    """
    check_is_fitted(self)
    rows = {"sample_weight": sample_weight, **row_data}
    random_state = check_random_state(random_state)
    groups = self._arviz_groups(X, y, rows, n_draws, random_state)
    posterior = groups["posterior"]
    if (precision := posterior.pop("noise_precision", None)) is not None:
        posterior["noise_scale"] = precision**-0.5
    dims, coords = self._arviz_labels(posterior)
    dims["y"] = ["row", "target"][: groups["observed_data"]["y"].ndim]
    return as_tree(groups, dims, coords)


@torch.no_grad()
def draws_of(
    estimator: Any, X: Any, y: Any, rows: dict, n_draws: int, random_state: Any
) -> dict[str, dict[str, np.ndarray]]:
    """Groups of `to_arviz` by name; arrays have shapes (S, ...)."""
    estimator._check_n_draws(n_draws)
    data = estimator._data_of_fit(X, y, **rows)
    hyper = torch.from_numpy(estimator._hyper.copy())
    target = estimator._model.target(data).at(hyper).frozen()
    draw = estimator.posterior_.draw(n_draws, make_generator(random_state))
    own = estimator._row_data_of(data)
    with limit_threads(n_draws * len(data.y) * target.layout.size):
        parts = [target._losses(draw.theta, p) for p in target._parts(n_draws)]
        log_p = target.log_joint_batched(draw.theta)
    log_density = -torch.cat(parts, 1).double().numpy()
    if estimator.loss_function_.is_log_loss:
        log_density -= estimator._model.log_units(data.y)
    if data.weight is not None:
        log_density *= data.weight
    new = estimator._observations(data.X, draw.theta, random_state, **own)
    return {
        "posterior": estimator._in_units(draw.theta),
        "log_likelihood": {"y": log_density},
        "posterior_predictive": {"y": np.moveaxis(new, -1, 0)},
        "sample_stats": {"log_p": log_p.double().numpy(), "log_q": draw.log_q.numpy()},
        "observed_data": {"y": data.y},
    }
