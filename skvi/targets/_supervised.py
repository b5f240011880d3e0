"""Supervised learning: losses of a predictor on data, networks' own passes."""

from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Self

import torch

from skvi.base import NormalForm
from skvi.base._rows import Rows
from skvi.priors import BuiltPrior
from skvi.targets._blocks import BlockRows, expected_loss_of, total_loss_of
from skvi.targets._least_squares import (
    ExpectedLoss,
    as_std_or_cov,
    hyper_path,
)
from skvi.targets._rows import (
    SupervisedRows,
    moments_of,
    row_terms,
    shift,
    shift_mean,
    terms_at_moments,
)
from skvi.targets._whitened import WhitenedLinear, WhitenedTarget
from skvi.targets.base import Target
from skvi.utils._tensors import Movable
from skvi.utils._validation import CACHE_ELEMENTS, like_rows, weighted_sum


class NetworkSlopes(Movable):
    """The log likelihood and its gradient, for up to S draws and always n rows.

    For targets with `has_own_passes`. All arithmetic of rows is in `dtype`.
    """

    def __init__(
        self, target: Any, n_draws: int, n_rows: int, dtype: torch.dtype
    ) -> None:
        self.target, self.likelihood = target, target.likelihood
        self._like = target.y.new_empty((), dtype=dtype)
        self._passes = target.predictor.passes(1, n_draws, n_rows, self._like)
        for block in self._passes.weights:  # of draws that are fewer
            block.zero_()

    def __call__(
        self, theta: torch.Tensor, rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Value, (S,), and gradient, (S, P), estimated from n rows."""
        part = self.target.rows.take(rows)
        share = len(self.target.rows) / len(part)
        value = torch.full_like(theta[:, 0], self.target.constant)
        gradient = torch.zeros_like(theta)
        self.add(theta, part, self.columns(part), (value, gradient), share)
        return value, gradient

    def columns(self, part: Rows) -> torch.Tensor:
        """Features as the passes take them."""
        X = torch.nn.functional.pad(part.X.to(self._like.dtype), [0, 1], value=1.0)
        return X.T.contiguous()[None]

    def add(
        self,
        theta: torch.Tensor,
        part: Rows,
        columns: torch.Tensor,
        sums: tuple[torch.Tensor, torch.Tensor],
        share: float = 1.0,
    ) -> None:
        """Add a multiple of the rows' part to values and gradients, in place."""
        passes, n_draws = self._passes, len(theta)
        for block, own in zip(passes.weights, passes.blocks(theta), strict=True):
            block[0, :n_draws] = own
        f = shift(passes.forward(columns)[0], part)
        log_prob = self.likelihood.log_prob(f, part.y)[:n_draws]
        sums[0].add_(weighted_sum(log_prob, part.weight), alpha=share)
        slope = self.likelihood._log_prob_slope(f, part.y)
        if part.weight is not None:
            slope = slope * like_rows(part.weight, slope[0])
        passes.slope[0] = slope.reshape(f.shape)
        passes.pull_back()
        gradients = passes.blocks(sums[1])
        for own, found in zip(gradients, passes.gradients, strict=True):
            own.add_(found[0, 0, :n_draws], alpha=share)


class WhitenedNetwork(WhitenedTarget):
    """Log joint density of a network in whitened coordinates, by its own passes."""

    def __init__(self, target: Any, normal: NormalForm) -> None:
        super().__init__(target, normal)
        self.prior, n_rows = target.prior, len(target.rows)
        per_draw = n_rows * target.predictor.row_width
        at_once = CACHE_ELEMENTS * torch.get_num_threads()
        self.n_draws = max(1, at_once // max(per_draw, 1))
        self.slopes = NetworkSlopes(target, self.n_draws, n_rows, torch.float64)
        self.columns = self.slopes.columns(target.rows)

    def value_and_slope(
        self, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, (S,), and its gradient in the position, (S, P)."""
        theta = self.normal.transform(position)
        value = self.prior.log_prob(theta) + self.target.constant
        gradient = self.prior.log_prob_gradient(theta)
        parts = (x.split(self.n_draws) for x in (theta, value, gradient))
        for own, *sums in zip(*parts, strict=True):
            self.slopes.add(own, self.target.rows, self.columns, sums)
        return value, self._pull_back(gradient)

    def slope(self, position: torch.Tensor) -> torch.Tensor:
        """Gradient alone, (S, P)."""
        return self.value_and_slope(position)[1]


# Above this number of parameters a dense tail precision is too expensive.
MAX_TAIL_PARAMS = 2000
# A whitened copy of the features is stored up to this size: 128 MiB.
MAX_DESIGN_ELEMENTS = 2**24


class SupervisedTarget(SupervisedRows):
    """Loss of a predictor on data, plus the log prior.

    ``log_joint(theta) = -(n / |rows|) sum_i w_i loss_i(theta) + log prior(theta)``

    Parameters
    ----------
    predictor, likelihood, loss : Predictor, Likelihood, Loss
    prior : BuiltPrior
    X : Tensor of shape (n, ...) or SparseRows of shape (n, d)
    y : Tensor of shape (n,)
    sample_weight : Tensor of shape (n,), default=None
        w, not negative; None is 1 for every row.
    constant : float, default=0.0
        Added to the log joint density: the Jacobian of standardized targets.
    offset : Tensor of shape (n,), default=None
        Added to f of every row, such as the log of an exposure; None is 0.
    deterministic : sequence of str, default=()
        Blocks of the predictor that are not part of theta: point parameters, learned
        besides q like noise and prior scales. `prior` is over the other blocks.

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
    ...     predictor, GaussianLikelihood(1.0), LogLoss(), prior, X, y
    ... )
    >>> round(float(target.log_joint(torch.zeros(1, 1))), 4)
    -2.7568
    """

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log joint density, (S,); with `rows` an unbiased estimate of it."""
        log_prior = self.prior.log_prob(theta) + self.constant
        if rows is None and isinstance(self.rows, BlockRows):
            return log_prior - self.rows.total(total_loss_of, [self], theta)
        if rows is not None:
            part = self.rows.take(rows)
            return log_prior - self._scaled_up(self._losses(theta, part), part.weight)
        for part in self._parts(len(theta)):
            log_prior = log_prior - self._total_loss(theta, part)
        return log_prior

    def powered(self, power: float) -> Self:
        """Return the same target with a power of the likelihood, by weights of rows.

        Parameters
        ----------
        power : float
            The inverse of the weight of a KL divergence.

        Returns
        -------
        SupervisedTarget
            Shares the features.
        """
        other, weight = copy(self), self.rows.weight
        weight = torch.ones_like(self.y) if weight is None else weight
        other.rows = replace(self.rows, weight=power * weight)
        return other

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
        has_points = bool(len(self.predictor_spec.point_layout))
        parts = self._parts(len(theta)) if rows is None else [self.rows.take(rows)]
        scaled = weighted_sum if rows is None else self._scaled_up
        for part in parts:
            f = shift(frozen.predictor.forward(theta, part.X), part)
            g = f.detach()  # only the losses are evaluated twice
            if has_points:
                g = shift(self.predictor.forward(theta.detach(), part.X), part)
            for_theta = for_theta - scaled(self.loss(fixed, f, part.y), part.weight)
            for_hyper = for_hyper - scaled(self.loss(free, g, part.y), part.weight)
        return for_theta, for_hyper

    def log_joint_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        """Gradient of the log joint density in theta, (S, P)."""
        if not (self.has_design and self.loss.is_log_loss):
            return super().log_joint_gradient(theta)
        return self._add_slopes(theta, self.prior.log_prob_gradient(theta), None)

    def log_joint_and_gradient(
        self, theta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, (S,), and its gradient, (S, P), from the same f."""
        if not (self.has_design and self.loss.is_log_loss):
            return super().log_joint_and_gradient(theta)
        value = self.prior.log_prob(theta) + self.constant
        gradient = self.prior.log_prob_gradient(theta)
        return value, self._add_slopes(theta, gradient, value)

    def _add_slopes(
        self, theta: torch.Tensor, gradient: torch.Tensor, value: torch.Tensor | None
    ) -> torch.Tensor:
        """Add the rows' part to the gradient, and in place to the value."""
        for part in self._parts(len(theta)):
            f = shift(self.predictor.forward(theta, part.X), part)
            if value is not None:
                value -= self.loss.total(self.likelihood, f, part.y, part.weight)
            slope = self.likelihood._log_prob_slope(f, part.y)
            if part.weight is not None:
                slope = slope * like_rows(part.weight, slope[0])
            gradient = gradient + self.predictor.pull_back_draws(part.X, slope)
        return gradient

    def whitened(self, normal: NormalForm) -> WhitenedTarget:
        """Whiten the design once, or use the passes of a network, if possible."""
        one_column = self.has_design and self.predictor.n_outputs == 1
        is_small = self.n_rows * self.layout.size <= MAX_DESIGN_ELEMENTS
        is_dense = isinstance(self.X, torch.Tensor)
        if one_column and is_small and is_dense and self.loss.is_log_loss:
            return WhitenedLinear(self, normal)
        if self._has_own_passes:
            return WhitenedNetwork(self, normal)
        return super().whitened(normal)

    def passes(self, n_draws: int, n_rows: int) -> NetworkSlopes | None:
        """In single precision; see `Target.passes`."""
        if not self._has_own_passes:
            return None
        return NetworkSlopes(self, n_draws, n_rows, torch.float32)

    @property
    def _has_own_passes(self) -> bool:
        """Whether a network differentiates the density itself."""
        is_dense = isinstance(self.X, torch.Tensor) and self.X.ndim == 2
        is_network = self.predictor.structure is not None
        return is_network and is_dense and self.loss.is_log_loss

    @property
    def is_log_concave(self) -> bool:  # type: ignore[override]
        """Whether prior and likelihood are, and f is linear in theta."""
        is_convex = self.loss.is_log_loss and self.likelihood_spec.is_log_concave
        return self.has_design and is_convex and self.reference.is_log_concave

    def tail_precision(self) -> tuple[torch.Tensor, bool] | None:
        """Prior precision, plus that of a likelihood with quadratic tails.

        Returns
        -------
        precision : Tensor of shape (P,) or (P, P)
            See `Target.tail_precision`.
        is_exact : bool
            False if the likelihood's part is left out: for predictors that are
            not linear, likelihoods with unknown decay, and above 2000 parameters. The
            rest is a lower bound if the likelihood is bounded above.

            None instead of both if the prior's tails are not known.
        """
        precision = self.prior.tail_precision()
        if precision is None:
            return None
        curvature = self.loss.tail_curvature(self.likelihood)
        if curvature == 0 and self.has_design:
            return precision, True
        known = curvature is not None and self.has_design
        if not known or self.layout.size > MAX_TAIL_PARAMS:
            return precision, False
        weight, own = torch.ones_like(self.y), self.rows.weight
        weight = weight if own is None else own * weight
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
        locally sampled activations for a factorized q and a predictor that has
        them; else from draws of q.

        Parameters
        ----------
        posterior : Posterior or NormalForm
            A normal, over theta, only for a linear predictor.
        rows : Tensor of int, default=None
            Rows to use, scaled up to all rows.
        n_draws : int, default=10
            S, if draws are taken.
        generator : torch.Generator, default=None
            Required if draws are taken.

        Returns
        -------
        Tensor
            A scalar in nats, summed over all data; unbiased if it is estimated from S
            draws or from random `rows`.
        """
        normal = posterior
        if not isinstance(posterior, NormalForm):
            if not self.has_design or posterior.as_normal() is None:
                losses = self.sampled_losses(posterior, rows, n_draws, generator)
                return self._total(losses, rows).mean() - self.constant
            normal = posterior.normal()
        part, likelihood = self.rows.take(rows), self.likelihood
        mean, variance = self.predictor.moments(part.X, normal)
        mean = shift_mean(mean, part)
        losses = ExpectedLoss.apply(mean, variance, self.loss, likelihood, part.y)
        if self.hyper.requires_grad and self.likelihood_spec.learned:
            at = mean, variance, self.loss, likelihood, part.y
            losses = losses + hyper_path(*at)
        return self._scaled_up(losses[None], part.weight)[0] - self.constant

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
            shapes (n, K) and (n, K, K) for K > 1. Empty for rows in blocks.
        """
        if isinstance(self.rows, BlockRows):
            value = self.rows.total(expected_loss_of, [self], normal, refine)
            return value - self.constant, value.new_zeros(0), value.new_zeros(0)
        is_wide = self.predictor_spec.n_outputs > 1  # as large as second derivatives
        if is_wide or normal.rows is not None:
            return terms_at_moments(self, *moments_of(self, normal), refine)

        def of_rows(part: Rows, _: slice) -> tuple[torch.Tensor, torch.Tensor]:
            mean, variance = self.predictor.moments(part.X, normal)
            return mean, as_std_or_cov(variance)

        return row_terms(self, of_rows, partial(self.loss.expected, refine=refine))


def with_design(target: SupervisedTarget) -> SupervisedTarget:
    """Copy for many products with all rows; see `Predictor.with_design`."""
    found = copy(target)
    if isinstance(target.rows, BlockRows):
        return found
    predictor, X = target.predictor.with_design(target.X)
    found.predictor_spec, found.rows = predictor, replace(target.rows, X=X)
    return found


def with_prior(target: SupervisedTarget, prior: BuiltPrior) -> SupervisedTarget:
    """Copy with another prior, that learns as many numbers, on the same data."""
    found = copy(target)
    found.prior_spec = prior
    return found


class AveragedTarget(Target):
    """Mean of a log joint density over draws, (M, P), of its discrete blocks.

    A smooth log density of the other blocks: ELBO and optimum of a posterior of these,
    if the discrete ones are independent and as likely as among the draws.
    """

    def __init__(self, target: Target, draws: torch.Tensor) -> None:
        self.inner, self.draws = target, draws
        self.layout = target.layout.without(*target.layout.discrete)
        self.where = target.layout.positions(self.layout)

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Mean over the draws, (S,)."""
        every = self.draws.expand(len(theta), -1, -1).clone()
        every[:, :, self.where] = theta[:, None]
        logs = self.inner.log_joint(every.flatten(0, 1), rows)
        return logs.reshape(len(theta), -1).mean(1)

    def over_all(self, normal: NormalForm) -> NormalForm:
        """A normal of the smooth blocks, with N(0, 1) for each discrete coordinate."""
        mean = torch.zeros_like(self.draws[0])
        scale = torch.diag(torch.ones_like(mean))
        mean[self.where] = normal.mean
        full = torch.diag(normal.scale) if normal.is_diagonal else normal.scale
        scale[self.where[:, None], self.where] = full
        return NormalForm(mean, scale)
