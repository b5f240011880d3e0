"""Linear regression whose precisions are integrated exactly."""

import numpy as np
import torch

from skvi.linear_model._exact_posterior import ConjugatePosterior
from skvi.utils._device import CPU
from skvi.utils._threads import limit_threads

__all__ = ["RegressionExactMixin"]

# Components of a smaller probability do not count for a score without far tails.
NEGLIGIBLE = 1e-7


class RegressionExactMixin:
    """Mixin: results from the exact posterior where there is one."""

    def _find_exact_posterior(self, state):
        """Exact posterior, if the fitted one differs from it only in the precisions.

        None for other objectives and divergences, whose posteriors are meant to differ,
        and for families without correlations.
        """
        is_elbo = self.objective_.kind == "expectation" and self.divergence_.is_standard
        normal = state.posterior.part("coef").as_normal()
        if not is_elbo or normal is None or normal.scale.ndim == 1:
            return None
        form = state.target.frozen().conjugate_form()
        return None if form is None else ConjugatePosterior.of(form.to(CPU))

    def _exact_mixture(self, X):
        """Distributions of new targets in the rows of X."""
        rows, predictor = self._model.design(X), self._model.predictor
        exact, units = self.exact_posterior_, self._model.units
        with torch.no_grad(), limit_threads(X.shape[0] * X.shape[1] ** 2, self.n_jobs):
            return exact.mixture(exact.functions(predictor, rows, units), units)

    def _exact_normals(self, X):
        """Normals whose mixture they are: means and deviations, (n, S), weights."""
        mixture = self._exact_mixture(X)
        w = mixture.log_weights.exp()
        kept = w > NEGLIGIBLE
        mean, std = (part[kept].T.numpy() for part in mixture.normals())
        return mean, std, (w[kept] / w[kept].sum()).numpy()

    def _coefficient_mixture(self):
        """Distributions of the coefficients, the intercept's before them."""
        exact = self.exact_posterior_
        return exact.mixture(exact.coefficients(self._model.units))

    def _coefficient_ends(self, tail):
        if self.exact_posterior_ is None:
            return super()._coefficient_ends(tail)
        ends = self._coefficient_mixture().quantiles(np.array([tail, 1 - tail])).T
        if not self.fit_intercept:
            ends = np.column_stack([np.zeros(2), ends])
        return ends[:, None]

    def _density_of(self, row, index, grid):
        if self.exact_posterior_ is None:
            return super()._density_of(row, index, grid)
        place = index + (1 if self.fit_intercept else 0)
        mixture = self._coefficient_mixture().repeat(place, len(grid))
        return np.exp(mixture.log_density(grid))

    def _sample(self, n_samples, generator):
        if self.exact_posterior_ is None:
            return super()._sample(n_samples, generator)
        return self.exact_posterior_.draw(n_samples, generator)
