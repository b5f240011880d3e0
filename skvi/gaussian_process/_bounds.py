"""Functions of hyperparameters and inducing points that a fit maximizes."""

import math
from functools import cached_property
from typing import Any

import torch
from torch.linalg import solve_triangular

from skvi.base import NormalForm
from skvi.divergences import KLDivergence
from skvi.gaussian_process._collapsed import (
    NormalRows,
    cholesky,
    collapsed_bound,
    log_evidence,
)
from skvi.gaussian_process._laplace import LogPrior
from skvi.kernels._kernels import covariance, variance
from skvi.losses import LogLoss
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal
from skvi.predictors._inducing import InducingPredictor
from skvi.priors import Normal
from skvi.solvers import Problem, SolverOptions
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.targets import SupervisedTarget
from skvi.utils._tensors import CPU

# Iterations and nats to the optimal q at which a kernel is judged: a line search also
# tries kernels at which q is hard to find.
MAX_ITER, TOL = 20, 1e-4


class Collapsed:
    """Log evidence for normal noise, or its bound with inducing points.

    theta has the hyperparameters of the kernel, then those of the noise.
    """

    def __init__(
        self, kernel: Any, likelihood: Any, rows: NormalRows, log_prior: LogPrior
    ) -> None:
        self.kernel, self.likelihood, self.rows = kernel, likelihood, rows
        self.log_prior = log_prior

    def __call__(self, theta: torch.Tensor, Z: torch.Tensor | None) -> torch.Tensor:
        """Nats, all rows together; without Z every row is an inducing point."""
        n = self.kernel.n_dims
        noise = self.likelihood.bind(theta[n:])._scale.square()
        parts = self.kernel, theta[:n], noise, self.rows
        value = log_evidence(*parts) if Z is None else collapsed_bound(*parts, Z)
        return value + self.log_prior(theta)

    def of(self, index: torch.Tensor) -> "Collapsed":
        """The same function of some of the rows."""
        rows = self.rows.some(index)
        return Collapsed(self.kernel, self.likelihood, rows, self.log_prior)

    def for_batches(self) -> "Fitted":
        """The same for a q that is not the best one."""
        parts = self.likelihood, LogLoss(), KLDivergence(), 1
        return Fitted(self.kernel, parts, self.rows, self.log_prior)


class Fitted:
    """ELBO at the fitted q of whitened inducing values, for any likelihood and loss.

    Its derivative in the features is that at fixed q, since q is optimal: the slope
    and half of the curvature of the expected losses, by the mean and variance of f.
    """

    def __init__(
        self,
        kernel: Any,
        parts: tuple[Any, Any, Any, int],
        rows: NormalRows,
        log_prior: LogPrior,
    ) -> None:
        self.kernel, self.rows, self.log_prior = kernel, rows, log_prior
        #: Likelihood, loss, divergence, and the number of processes.
        self.parts = parts

    @cached_property
    def distinct(self) -> torch.Tensor:
        """Rows that differ."""
        found: torch.Tensor = self.rows.X.unique(dim=0)
        return found

    def __call__(self, theta: torch.Tensor, Z: torch.Tensor | None) -> torch.Tensor:
        """Nats, all rows together; without Z every row is an inducing point."""
        n = self.kernel.n_dims
        points = self.distinct if Z is None else Z
        X = features_at(self.kernel, theta[:n], points, self.rows.X)
        found = self.log_prior(theta)
        for target in self.targets(X, theta[n:]):
            with torch.no_grad():
                normal, value = self._solve(target)
            loss = target.expected_loss(normal)
            found = found + (loss.detach() - loss) - value
        return found

    def targets(self, X: torch.Tensor, hyper: torch.Tensor) -> list[SupervisedTarget]:
        """Losses of the rows by their features, for each column of y."""
        likelihood, loss, _, k = self.parts
        predictor = InducingPredictor(X.shape[1] - 1, k)
        prior, weight = Normal().build(predictor.layout), self.rows.weight
        parts = predictor, likelihood, loss, prior, X
        columns = self.rows.y.unbind(1)
        return [SupervisedTarget(*parts, y, weight).at(hyper) for y in columns]

    def _solve(self, target: SupervisedTarget) -> tuple[NormalForm, float]:
        """The optimal q, and minus its ELBO: a function of the target alone.

        From the mode, not from the last q, with which line searches need more steps.
        """
        target = target.frozen()
        posterior = FullRankNormal().build(target.layout)
        problem = Problem(target, ELBO(), self.parts[2], posterior, None)
        solution = NaturalGradient().solve(problem, SolverOptions(MAX_ITER, TOL))
        solution.raise_interrupt()
        normal = solution.posterior.normal()
        return NormalForm(normal.mean.clone(), normal.scale.clone()), solution.value

    def of(self, index: torch.Tensor) -> "Fitted":
        """The same function of some of the rows."""
        return self.with_rows(self.rows.some(index))

    def with_rows(self, rows: NormalRows) -> "Fitted":
        """The same function of other rows."""
        return Fitted(self.kernel, self.parts, rows, self.log_prior)

    def for_batches(self) -> "Fitted":
        """The function itself; see `Collapsed.for_batches`."""
        return self


def features_at(
    kernel: Any, theta: torch.Tensor, Z: torch.Tensor, X: torch.Tensor
) -> torch.Tensor:
    """Features as `InducingFeatures`, (n, M + 1), differentiable."""
    L = cholesky(covariance(kernel, theta, Z, Z))
    phi = solve_triangular(L, covariance(kernel, theta, Z, X), upper=False)
    rest = (variance(kernel, theta, X) - phi.square().sum(0)).clamp(min=0)
    return torch.cat([phi, rest[None]]).T


def dimension_scaled_prior(
    sizes: torch.Tensor, y_scale: float, n_learned: int
) -> LogPrior:
    """Prior of the length scales of a default kernel, and of its noise.

    The prior of Hvarfner, Hellsten and Nardi (2024), *Vanilla Bayesian optimization
    performs great in high dimensions*, in units of the columns: log scales are normal
    with mean ``sqrt(2) + log(d) / 2`` and variance 3. The log variance of the noise,
    in units of y, is normal with mean -2 and variance 4: theirs, with mean -4 and
    variance 1, fits noise as if it were a function.
    """
    ones = sizes.new_ones(n_learned)  # empty if the noise is known
    middle = sizes.log() + math.sqrt(2) + 0.5 * math.log(len(sizes))
    middles = torch.cat([ones.new_zeros(1), middle, math.log(y_scale) - ones])
    deviations = [ones.new_full((1,), math.inf), torch.full_like(middle, 3**0.5), ones]
    return LogPrior(middles, torch.cat(deviations))


def uniform_prior(n_hyperparameters: int) -> LogPrior:
    """Prior of a given kernel, whose logarithms are uniform between their limits."""
    zeros = torch.zeros(n_hyperparameters, dtype=torch.float64, device=CPU)
    return LogPrior(zeros, torch.full_like(zeros, math.inf))
