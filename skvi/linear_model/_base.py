"""What all Bayesian linear models share."""

import zlib
from numbers import Integral, Real

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted, validate_data

from skvi._variational import BaseVariational
from skvi.base import NormalForm
from skvi.evidence import bound_evidence
from skvi.predictors import LinearPredictor
from skvi.priors import build_prior
from skvi.targets import SupervisedTarget
from skvi.utils._arrays import as_tensor
from skvi.utils._random import make_generator, randn
from skvi.utils._threads import limit_threads
from skvi.utils._validation import (
    Interval,
    StrOptions,
    _check_sample_weight,
    validate_arguments,
)

__all__ = ["BayesianLinearModel"]


class BayesianLinearModel(BaseVariational):
    """Base class: a linear predictor with one column, and a normal posterior.

    A subclass owes `_encode(y)` and `_likelihood()`.
    """

    def _fit(self, X, y, sample_weight):
        """Validate, build the target, solve, set the linear attributes."""
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        target_values, self._dtype = self._encode(y), X.dtype
        self._resolve_all()
        if sample_weight is not None:
            sample_weight = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
            self._check_weighted(target_values[sample_weight > 0])
        target = self._build_target(X, target_values, sample_weight)
        with limit_threads(len(X) * target.layout.size**2):
            self._solve(target, X=X, y=y, metadata={"sample_weight": sample_weight})
        self._n_samples_fit = len(X)
        self._had_weights = sample_weight is not None
        self._fingerprint = _fingerprint(X, target_values, sample_weight)
        return self

    def _build_target(self, X, y, sample_weight):
        if sample_weight is not None:
            # Rows of weight zero must not influence anything, nodes included.
            keep = sample_weight > 0
            if not keep.all():
                X, y, sample_weight = X[keep], y[keep], sample_weight[keep]
        predictor = LinearPredictor(X.shape[1], fit_intercept=self.fit_intercept)
        prior = build_prior(self.prior_, predictor.layout)
        return SupervisedTarget(
            predictor,
            self._likelihood(),
            self.loss_function_,
            prior,
            as_tensor(X),
            as_tensor(y),
            None if sample_weight is None else as_tensor(sample_weight),
        )

    def _posterior_attributes(self):
        found = super()._posterior_attributes()
        normal = found["posterior_"].as_normal()
        mean = normal.mean.numpy().astype(self._dtype)
        std = normal.variance.sqrt().numpy().astype(self._dtype)
        d = self.n_features_in_
        found |= {"coef_": mean[None, :d], "coef_std_": std[None, :d]}
        zero = np.zeros(1, self._dtype)
        found["intercept_"] = mean[d:] if self.fit_intercept else zero
        found["intercept_std_"] = std[d:] if self.fit_intercept else zero
        return found

    def _predictor(self):
        return LinearPredictor(self.n_features_in_, fit_intercept=self.fit_intercept)

    def _predictive_moments(self, X):
        """Mean and standard deviation of f for every row, in float64."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        normal: NormalForm = self.posterior_.as_normal()
        with torch.no_grad(), limit_threads(len(X) * len(normal.mean) ** 2):
            mean, variance = self._predictor().moments(as_tensor(X), normal)
        return mean, variance.sqrt(), X.dtype

    def sample_posterior(self, n_samples=1, random_state=None):
        """Draw parameters from the fitted posterior.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        dict of str to ndarray
            "coef" of shape (n_samples, 1, d) and, with an intercept, "intercept"
            of shape (n_samples, 1).
        """
        check_is_fitted(self)
        validate_arguments(
            type(self).__name__,
            {"n_samples": n_samples},
            {"n_samples": [Interval(Integral, 1, None, closed="left")]},
        )
        normal = self.posterior_.as_normal()
        generator = make_generator(random_state)
        with torch.no_grad():
            eps = randn(generator, n_samples, len(normal.mean))
            blocks = self.posterior_.layout.unpack(normal.transform(eps))
        return {name: block.numpy().copy() for name, block in blocks.items()}

    def evidence_bounds(
        self,
        X,
        y,
        *,
        sample_weight=None,
        method="auto",
        n_draws=None,
        precision=None,
        random_state=None,
    ):
        """Bound the log evidence log p(D) of the model from below and above.

        The evidence is what the model (likelihood, prior, features) gave to these
        data before it saw them: the number by which Bayesian models are compared.
        It does not depend on objective, divergence or posterior family.

        Parameters
        ----------
        X : array-like of shape (n, d)
            The training features.
        y : array-like of shape (n,)
            The training target.
        sample_weight : array-like of shape (n,), default=None
            Needed if the fit had weights; the evidence is then a generalised one.
        method : {"auto", "importance"}, default="auto"
            "importance": importance sampling from a Student-t that is fitted to
            the posterior, and posterior chains for the upper side.
        n_draws : int, default=None
            Draws on each side, at least 64. None chooses as many as `precision`
            needs.
        precision : float, default=None
            Nats between each bound and log p(D) to aim for; None is 0.03. Not
            together with `n_draws`.
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        EvidenceBounds
            With ``lower``, ``upper``, their standard errors, ``estimate``,
            ``reliable`` and ``reason``; ``print(bounds)`` shows the table.

        Raises
        ------
        ValueError
            The data are not those of the fit, or the fit
            had weights and none are given.

        Notes
        -----
        Values are in nats, summed over the data, with all constants. With a loss
        other than log loss, or with weights, the result bounds a generalised
        evidence ``log E_prior[exp(-sum of weighted losses)]``, labelled so, which
        is comparable only within the same loss and weights.
        """
        check_is_fitted(self)
        validate_arguments(
            type(self).__name__,
            {"method": method, "n_draws": n_draws, "precision": precision},
            {
                "method": [StrOptions({"auto", "importance"})],
                "n_draws": [None, Interval(Integral, 64, None, closed="left")],
                "precision": [None, Interval(Real, 0, None, closed="neither")],
            },
        )
        if n_draws is not None and precision is not None:
            raise ValueError("Give n_draws or precision, not both.")
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], reset=False)
        target_values = self._encode(y, reset=False)
        self._check_size(X, sample_weight)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
        if _fingerprint(X, target_values, sample_weight) != self._fingerprint:
            raise ValueError(
                "evidence_bounds needs the X, y and sample_weight of the fit; these "
                "are others. For other data use predict_log_density."
            )
        weighted = sample_weight is not None and bool(np.any(sample_weight != 1))
        plain = self.loss_function_.is_log_loss and not weighted
        target = self._build_target(X, target_values, sample_weight)
        with limit_threads(64 * len(X) * target.layout.size):
            return bound_evidence(
                target,
                self.posterior_,
                make_generator(random_state),
                n_draws,
                precision,
                "log evidence" if plain else "generalised log evidence",
            )

    def _check_size(self, X, sample_weight):
        if len(X) != self._n_samples_fit:
            raise ValueError(
                f"evidence_bounds needs the {self._n_samples_fit} rows of the fit; "
                f"got {len(X)} rows. For other data use predict_log_density."
            )
        if self._had_weights and sample_weight is None:
            raise ValueError(
                "The model was fitted with sample_weight, which define the evidence: "
                "pass the same sample_weight to evidence_bounds."
            )


def _fingerprint(X, y, sample_weight):
    """Checksum of targets, weights and 32 rows: tells other data apart, cheaply."""
    rows = np.linspace(0, len(X) - 1, 32).astype(int)
    parts = [X[rows].astype(np.float64), y]
    if sample_weight is not None:
        parts.append(sample_weight)
    return [zlib.crc32(np.ascontiguousarray(part).tobytes()) for part in parts]
