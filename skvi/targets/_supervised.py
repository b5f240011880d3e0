"""Supervised learning: losses of a predictor on data."""

from copy import copy
from typing import Any

import torch

from skvi.base import NormalForm
from skvi.targets._expected_loss import ExpectedLoss, hyper_path, spread_of
from skvi.targets._free_energy import FreeEnergy
from skvi.targets._rows import SupervisedRows
from skvi.targets._whitened import WhitenedLinear, WhitenedTarget
from skvi.utils._arrays import like_rows, row_chunks

__all__ = ["SupervisedTarget"]

# Draws times rows that stay in the cache.
CACHE_ELEMENTS = 2**17
# Above so many parameters a dense tail precision costs too much.
MAX_TAIL_PARAMS = 2000
# A whitened copy of the features is kept up to this size: 128 MiB.
MAX_DESIGN_ELEMENTS = 2**24


class SupervisedTarget(SupervisedRows):
    """Loss of a predictor on data, plus the log prior.

    ``log_joint(theta) = -(n / |rows|) sum_i w_i loss_i(theta) + log prior(theta)``

    Parameters
    ----------
    predictor, likelihood, loss : LinearPredictor or MLPPredictor, Likelihood, Loss
    prior : BuiltPrior
    X : Tensor or SparseRows of shape (n, d)
    y : Tensor of shape (n,)
    sample_weight : Tensor of shape (n,), default=None
        w, not negative; None is 1 for every row.
    constant : float, default=0.0
        Added to the log joint density: the Jacobian of standardised targets.
    offset : Tensor of shape (n,), default=None
        Added to f of every row, such as the log of an exposure; None is 0.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> from skvi.losses import LogLoss
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.priors import Normal
    >>> from skvi.targets import SupervisedTarget
    >>> predictor = LinearPredictor(1, fit_intercept=False)
    >>> prior = Normal().build(predictor.layout)
    >>> X, y = torch.ones(2, 1), torch.zeros(2)
    >>> target = SupervisedTarget(
    ...     predictor, GaussianLikelihood(), LogLoss(), prior, X, y
    ... )
    >>> round(float(target.log_joint(torch.zeros(1, 1))), 4)
    -2.7568
    """

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log joint density, (S,); with `rows` an unbiased estimate of it."""
        log_prior = self.prior.log_prob(theta) + self.constant
        if rows is not None:
            return log_prior - self._total(self.pointwise(theta, rows), rows)
        for chunk in self._chunks(len(theta)):
            losses = self.pointwise(theta, chunk)
            log_prior = log_prior - self._weighted_sum(losses, chunk)
        return log_prior

    def log_joint_split(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log joint density twice; see `Target.log_joint_split`."""
        if not len(self.hyper):
            return self.log_joint(theta, rows), None
        frozen, free = self.frozen(), self._likelihood_at(theta.detach())
        fixed = frozen._likelihood_at(theta)
        for_theta = frozen.prior.log_prob(theta) + self.constant
        for_hyper = self.prior.log_prob(theta.detach()) + self.constant
        # The network runs once; only the losses are evaluated twice.
        for part in [rows] if rows is not None else self._chunks(len(theta)):
            X, y, _ = self._select(part)
            f = self._shift(self.predictor.forward(theta, X), part)
            scaled = self._total if rows is not None else self._weighted_sum
            for_theta = for_theta - scaled(self.loss(fixed, f, y), part)
            for_hyper = for_hyper - scaled(self.loss(free, f.detach(), y), part)
        return for_theta, for_hyper

    def log_joint_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        """Gradient of the log joint density in theta, (S, P)."""
        if not (self.is_linear and self.loss.is_log_loss):
            return super().log_joint_gradient(theta)
        return self._add_slopes(theta, self.prior.log_prob_gradient(theta), None)

    def log_joint_and_gradient(
        self, theta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, (S,), and its gradient, (S, P), from the same f."""
        if not (self.is_linear and self.loss.is_log_loss):
            return super().log_joint_and_gradient(theta)
        value = self.prior.log_prob(theta) + self.constant
        gradient = self.prior.log_prob_gradient(theta)
        return value, self._add_slopes(theta, gradient, value)

    def _add_slopes(
        self, theta: torch.Tensor, gradient: torch.Tensor, value: torch.Tensor | None
    ) -> torch.Tensor:
        """Add the rows' part to the gradient, and in place to the value."""
        for chunk in self._chunks(len(theta)):
            X, y, weight = self._select(chunk)
            f = self._shift(self.predictor.forward(theta, X), chunk)
            if value is not None:
                losses = self.loss(self.likelihood, f, y)
                value -= self._weighted_sum(losses, chunk)
            slope = self.likelihood.log_prob_slope(f, y)
            if weight is not None:
                slope = slope * like_rows(weight, slope[0])
            gradient = gradient + self.predictor.pull_back_draws(X, slope)
        return gradient

    def whitened(self, normal: NormalForm) -> WhitenedTarget:
        """Whiten the design once, where that fits; see `Target.whitened`."""
        one_column = self.is_linear and self.predictor.n_outputs == 1
        is_small = self.n_rows * self.layout.size <= MAX_DESIGN_ELEMENTS
        is_dense = isinstance(self.X, torch.Tensor)
        if one_column and is_small and is_dense and self.loss.is_log_loss:
            return WhitenedLinear(self, normal)
        return super().whitened(normal)

    def tail_precision(self) -> tuple[torch.Tensor, bool] | None:
        """Prior precision, plus what a likelihood with quadratic tails adds.

        Returns
        -------
        precision : Tensor of shape (P,) or (P, P)
            See `Target.tail_precision`.
        is_exact : bool
            False where the likelihood's part is left out: for predictors that are
            not linear, likelihoods that do not say how they decay, and above 2000
            parameters. What is left is a lower bound while the likelihood is
            bounded above.

            None instead of both where the prior's tails are not known.
        """
        precision = self.prior.tail_precision()
        if precision is None:
            return None
        curvature = self.loss.tail_curvature(self.likelihood)
        if curvature == 0 and self.is_linear:
            return precision, True
        known = curvature is not None and self.is_linear
        if not known or self.layout.size > MAX_TAIL_PARAMS:
            return precision, False
        weight = torch.ones_like(self.y)
        weight = weight if self.sample_weight is None else self.sample_weight * weight
        gram = self.predictor.gram(self.X, curvature * weight)
        return gram + torch.diag(precision), True

    def expected_loss(
        self,
        posterior: Any,
        rows: torch.Tensor | None = None,
        n_draws: int = 10,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """E_q[sum_i w_i loss_i], differentiable in the posterior's parameters.

        Deterministic (quadrature) for a linear predictor and a normal q; with
        locally sampled activations for a factorised q and a predictor that has
        them; else from draws of q.

        Parameters
        ----------
        posterior : Posterior
        rows : Tensor of int, default=None
            Rows to use, scaled up to all rows.
        n_draws : int, default=10
            S, where draws are taken.
        generator : torch.Generator, default=None
            Needed where draws are taken.

        Returns
        -------
        Tensor
            A scalar in nats, summed over all data; unbiased where it comes from S
            draws or from random `rows`.
        """
        if self.is_linear and posterior.as_normal() is not None:
            return self.expected_loss_at(posterior.normal(), rows)
        losses = self.sampled_losses(posterior, rows, n_draws, generator)
        return self._total(losses, rows).mean() - self.constant

    def with_free_energy(self, alpha: float) -> "SupervisedTarget":
        """Copy whose expected loss is a sum of free energies.

        Parameters
        ----------
        alpha : float
            Positive; each row's E_q[loss] becomes ``-log E_q[exp(-alpha loss)] /
            alpha``, in `expected_loss` without draws and in `expected_loss_terms`.

        Returns
        -------
        SupervisedTarget
            For solvers that need nothing but these, on the same data.
        """
        found = copy(self)
        found.loss = FreeEnergy(self.loss, alpha)
        return found

    def expected_loss_at(
        self, normal: NormalForm, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`expected_loss` of any normal, by quadrature, for a linear predictor.

        Parameters
        ----------
        normal : NormalForm
            Over theta.
        rows : Tensor of int, default=None
            Rows to use, scaled up to all rows.

        Returns
        -------
        Tensor
            A scalar in nats without Monte Carlo noise, differentiable in the mean,
            scale and factor of `normal`.
        """
        X, y, _ = self._select(rows)
        mean, variance = self.predictor.moments(X, normal)
        mean = self._shift_mean(mean, rows)
        likelihood = self.likelihood
        losses = ExpectedLoss.apply(mean, variance, self.loss, likelihood, y)
        if self.hyper.requires_grad and self._likelihood.learnt:
            losses = losses + hyper_path(mean, variance, self.loss, likelihood, y)
        return self._total(losses[None], rows)[0] - self.constant

    def expected_loss_terms(
        self, normal: NormalForm, refine: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """E_q[sum_i w_i loss_i] and its row-wise derivatives, by quadrature.

        Parameters
        ----------
        normal : NormalForm
            Over theta; the predictor must be linear in it.
        refine : int, default=1
            Multiplies the number of nodes, to verify a result.

        Returns
        -------
        value : Tensor
            A scalar in nats, summed over the data, without Monte Carlo noise.
        slope, curvature : Tensor of shape (n,)
            w_i times the expected first and second derivative of loss_i in f_i; of
            shapes (n, K) and (n, K, K) for K > 1.
        """
        mean, variance = self.predictor.moments(self.X, normal)
        return self._row_terms(
            self._shift_mean(mean, None), spread_of(variance), refine
        )

    def loss_terms(
        self, theta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return `expected_loss_terms` at a single point.

        Parameters
        ----------
        theta : Tensor of shape (P,)

        Returns
        -------
        value : Tensor
            A scalar in nats, summed over the data.
        slope, curvature : Tensor of shape (n,)
            w_i times the first and second derivative of loss_i in f_i; of shapes
            (n, K) and (n, K, K) for K > 1.
        """
        f = self.predictor.project(self.X, theta[:, None])[..., 0]
        nothing = f if f.ndim == 1 else torch.diag_embed(f)
        mean = self._shift_mean(f, None)
        return self._row_terms(mean, torch.zeros_like(nothing), 1)

    def _row_terms(
        self, mean: torch.Tensor, spread: torch.Tensor, refine: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        value, slope, curvature = self.loss.expected(
            self.likelihood, mean, spread, self.y, refine
        )
        w = self.sample_weight
        if w is None:
            return value.sum() - self.constant, slope, curvature
        return (
            w @ value - self.constant,
            like_rows(w, slope) * slope,
            like_rows(w, curvature) * curvature,
        )

    def _chunks(self, n_draws: int) -> list[slice]:
        width = n_draws * self.predictor.row_width
        return row_chunks(len(self.y), width, CACHE_ELEMENTS)
