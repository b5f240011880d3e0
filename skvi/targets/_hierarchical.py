"""Linear regression with Gamma hyperpriors on its precisions."""

import math
from copy import copy
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from skvi.base import Layout, NormalForm
from skvi.base._rows import Rows
from skvi.predictors import LinearPredictor
from skvi.priors import BuiltPrior
from skvi.targets._blocks import BlockRows, triangle_of
from skvi.targets._least_squares import LeastSquares, Triangle, summarize
from skvi.targets._precisions import (
    BuiltHierarchy,
    ConjugateForm,
    Hyperprior,
    Precision,
    ScaleDensity,
    UnknownNumber,
)
from skvi.targets._supervised import SupervisedTarget, with_prior
from skvi.targets._whitened import WhitenedTarget
from skvi.utils._rows import SparseRows
from skvi.utils._tensors import LOG_2PI
from skvi.utils._validation import median_distance, weighted_median

# Decompositions of more columns (or rows, if they are fewer) take too long.
MAX_DECOMPOSED = 3000


class HierarchicalTarget(SupervisedTarget):
    """A linear model whose precisions can be parameters with Gamma hyperpriors.

    theta is that of the predictor, followed by the block "noise_precision" (or the
    name in `Likelihood.gamma_block`) if it has a hyperprior. It is positive: theta
    holds its logarithm, and `log_joint` is the density in theta, with the Jacobian.

    Parameters
    ----------
    predictor, likelihood, loss : LinearPredictor, Likelihood, Loss
    prior : BuiltPrior
        Over the parameters of the predictor.
    X : Tensor or SparseRows of shape (n, d)
        With an intercept, `is_centered` says that weighted means are zero.
    y : Tensor of shape (n,)
    sample_weight : Tensor of shape (n,), default=None
    constant : float, default=0.0
    noise_hyperprior : GammaHyperprior or HalfCauchy, default=None
        On the likelihood's `Likelihood.gamma_block`, which is then "learn".
    is_centered : bool, default=True
    offset : Tensor of shape (n,), default=None
        As in `SupervisedTarget`.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> from skvi.losses import LogLoss
    >>> from skvi.predictors import LinearPredictor
    >>> from skvi.targets._hierarchical import HierarchicalTarget
    >>> from skvi.priors import GammaHyperprior, Normal
    >>> X, y = torch.ones(2, 1).double(), torch.tensor([1.0, 3.0])
    >>> gamma, model = GammaHyperprior(1.0, 1.0), LinearPredictor(1, 1, False)
    >>> prior = Normal(GammaHyperprior()).build(model.layout)
    >>> target = HierarchicalTarget(
    ...     model,
    ...     GaussianLikelihood("learn"),
    ...     LogLoss(),
    ...     prior,
    ...     X,
    ...     y,
    ...     noise_hyperprior=gamma,
    ... )
    >>> target.layout
    Layout({'coef': (1, 1), 'noise_precision': (1,)})
    """

    def __init__(
        self,
        predictor: Any,
        likelihood: Any,
        loss: Any,
        prior: Any,
        X: Any,
        y: torch.Tensor,
        sample_weight: torch.Tensor | None = None,
        constant: float = 0.0,
        noise_hyperprior: Hyperprior | None = None,
        is_centered: bool = True,
        offset: torch.Tensor | None = None,
    ) -> None:
        self.noise_hyperprior = noise_hyperprior
        super().__init__(
            predictor, likelihood, loss, prior, X, y, sample_weight, constant, offset
        )
        if noise_hyperprior is not None:
            name = likelihood.gamma_block[0]
            self.layout = predictor.layout + Layout(
                {name: (1,)}, {name: "exp"}, roles={name: "scale"}
            )
            self.prior_spec = BuiltHierarchy(self.layout, prior, noise_hyperprior)
            # The loss depends on more than f, and theta has blocks that the design does
            # not map to f.
            self.has_design = False
        self._is_centered = is_centered or not predictor.fit_intercept
        self._data, self._form, self._is_summarized = None, None, False

    @property
    def _sums(self) -> LeastSquares | None:
        """Sums of squares, computed on demand; None if there are none.

        They exist for normal noise, log loss and centered features, up to 3,000 columns
        or rows.
        """
        if not self._is_summarized:
            self._is_summarized = True
            rows, columns = self.X.shape
            size = columns if isinstance(self.X, SparseRows) else min(rows, columns)
            is_plain = self.loss.is_log_loss and self.likelihood_spec.is_normal
            if is_plain and self._is_centered and size <= MAX_DECOMPOSED:
                with (
                    torch.inference_mode(False),
                    torch.no_grad(),
                ):  # for graphs of others
                    self._data = self._summarize()
        return self._data

    def _summarize(self) -> LeastSquares:
        predictor, rows = self.predictor, self.rows
        if not isinstance(rows, BlockRows):
            return summarize(predictor, rows.X, rows.y, rows.weight)
        found: Triangle = rows.total(triangle_of, [self])
        sizes = rows.total_weight, len(rows)
        return found.least_squares(*sizes, predictor.fit_intercept)

    def _initial_scales(self) -> torch.Tensor:
        """Log of half a robust scale of y, then the prior's."""
        own = self.prior_spec.initial_hyper().to(self.rows.device)
        if len(own) and self.likelihood_spec.is_location:
            own = own + math.log(coef_scale(self))
        if self.noise_hyperprior is not None or not self.likelihood_spec.learned:
            return own
        if not self.likelihood_spec.is_location:
            return torch.cat(
                [self.likelihood_spec.initial_hyper(self.rows.start.y), own]
            )
        y, w = self._targets_and_weights()
        scale = median_distance(y, w, weighted_median(y, w))
        if scale == 0:  # where most targets are equal
            return torch.cat(
                [self.likelihood_spec.initial_hyper(self.rows.start.y), own]
            )
        return torch.cat([own.new_tensor([math.log(0.5 * scale)]), own])

    def _targets_and_weights(self) -> tuple[np.ndarray, np.ndarray]:
        y, weight = self.rows.start.y, self.rows.start.weight
        w = torch.ones_like(y) if weight is None else weight
        return y.cpu().numpy(), w.cpu().numpy()

    @property
    def _learned_of_likelihood(self) -> tuple[str, ...]:
        """Noise with a hyperprior is part of theta: `_likelihood_at` binds it."""
        return () if self.noise_hyperprior is not None else self.likelihood_spec.learned

    def at(self, hyper: torch.Tensor) -> "HierarchicalTarget":
        """Target with other hyperparameters, which shares the sums of squares."""
        if not self._is_summarized:
            _ = self._sums  # once, and not in every copy
        return super().at(hyper)

    def _likelihood_at(self, theta: torch.Tensor) -> Any:
        """Likelihood with the noise of every draw."""
        if self.noise_hyperprior is None:
            return self.likelihood
        name, power = self.likelihood_spec.gamma_block
        return self.likelihood_spec.bind(
            power * theta[None, :, self.layout[name].slice]
        )

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log joint density, with the Jacobian of the precisions.

        Parameters
        ----------
        theta : Tensor of shape (S, P)
        rows : Tensor of int, default=None
            Rows to use, scaled up to all rows.

        Returns
        -------
        Tensor of shape (S,)
            In nats. For log loss from all rows it takes a few operations per
            feature, not per row.
        """
        if rows is not None or self._sums is None:
            return super().log_joint(theta, rows)
        blocks = self.predictor.layout.unpack(theta)
        intercept = blocks["intercept"][:, 0] if "intercept" in blocks else None
        squares = self._sums.sum_of_squares(blocks["coef"][:, 0], intercept)
        log_precision = self._log_noise_precision(theta)
        fit = self._sums.n * (log_precision - LOG_2PI) - log_precision.exp() * squares
        return self.constant + self.prior.log_prob(theta) + 0.5 * fit

    def _log_noise_precision(self, theta: torch.Tensor) -> torch.Tensor:
        if self.noise_hyperprior is not None:
            return theta[:, self.layout["noise_precision"].slice][:, 0]
        return -2 * self.likelihood._scale.log()

    def log_joint_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        """Gradient of the log joint density, (S, P)."""
        if self.has_design and self._sums is None:
            return super().log_joint_gradient(theta)
        return super(SupervisedTarget, self).log_joint_gradient(theta)

    def log_joint_and_gradient(
        self, theta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, (S,), and its gradient, (S, P)."""
        if self.has_design and self._sums is None:
            return super().log_joint_and_gradient(theta)
        return super(SupervisedTarget, self).log_joint_and_gradient(theta)

    def whitened(self, normal: NormalForm) -> WhitenedTarget:
        """Go through theta, which holds the precisions; see `Target.whitened`."""
        return WhitenedTarget(self, normal)

    def expected_loss(
        self,
        posterior: Any,
        rows: torch.Tensor | None = None,
        n_draws: int = 10,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """E_q[sum_i w_i loss_i]; from draws if theta contains precisions."""
        if self.noise_hyperprior is None:
            return super().expected_loss(posterior, rows, n_draws, generator)
        theta = posterior.draw(n_draws, generator).theta
        return self._total(self.pointwise(theta, rows), rows).mean() - self.constant

    def frozen(self) -> "HierarchicalTarget":
        """Fix learned parameters at their values; see `SupervisedTarget.frozen`."""
        fixed = super().frozen()
        fixed._form = None
        return fixed

    def powered(self, power: float) -> "HierarchicalTarget":
        """Take a power of the likelihood; see `SupervisedTarget.powered`."""
        other = super().powered(power)
        other.forget_sums()
        return other

    def forget_sums(self) -> None:
        """Compute them anew, where they are needed: the rows have changed."""
        self._data, self._form, self._is_summarized = None, None, False

    def conjugate_form(self) -> ConjugateForm | None:
        """Return the quantities that coordinate ascent needs.

        Returns
        -------
        ConjugateForm or None
            None for losses other than the log loss, features that are not centered, and
            priors that are not normal with mean 0, given precisions.
        """
        if self._form is None or len(self.hyper):
            self._form = self._find_form()
        return self._form

    def _find_form(self) -> ConjugateForm | None:
        if self._sums is None or self.prior_spec.learned:
            return None
        coef, fixed = self._coef_precision()
        if coef is None:
            return None
        intercept = float(fixed[-1]) if self.predictor.fit_intercept else None
        return ConjugateForm(self._sums, self._noise(), coef, intercept, self.constant)

    def _coef_precision(self) -> tuple[Precision | None, torch.Tensor]:
        """That of the coefficients, and prior precisions of all at a scale of 1.

        None if they are not normal with mean 0 given one scale.
        """
        prior, density = base_prior(self), None
        if prior.n_unknown_scales == 1:
            own = torch.arange(self.predictor.n_features, device=self.rows.device)
            if bool((prior.scale_weights()[: len(own)] == 0).any()):
                return None, own  # of another scale, which is known
            density, prior = prior.marginal(own), prior.given_scale(1.0)
        normal = prior.as_normal()
        if normal is None or not normal.is_diagonal or bool(normal.mean.any()):
            return None, self.hyper
        fixed = 1 / normal.variance
        coef = fixed[: self.predictor.n_features]
        is_shared = bool((coef == coef[0]).all())
        if is_shared:
            unit = float(coef[0].log())
            known = None if density is None else ScaleDensity(density, unit)
            return Precision(coef[:1], known), fixed
        return None if density else Precision(coef), fixed

    def _noise(self) -> Precision:
        if self.noise_hyperprior is None:
            value = self.likelihood._scale.detach().reshape(1) ** -2
            return Precision(value, is_learned=len(self.hyper) > 0)
        sums = cast(LeastSquares, self._sums)
        explained = float(sums.values @ sums.solution.square())
        variance = (sums.residual + explained) / sums.n
        value = sums.values.new_tensor([1 / max(variance, 1e-12)])
        return Precision(value, self.noise_hyperprior)


def with_own_prior(target: SupervisedTarget, prior: BuiltPrior) -> SupervisedTarget:
    """Copy with another prior of the parameters of the predictor."""
    if (gamma := target.noise_hyperprior) is None:
        return with_prior(target, prior)
    found = with_prior(target, BuiltHierarchy(target.layout, prior, gamma))
    cast(HierarchicalTarget, found)._form = None
    return found


def base_prior(target: SupervisedTarget) -> Any:
    """Prior of the parameters of the predictor."""
    prior = target.prior
    return prior.prior if isinstance(prior, BuiltHierarchy) else prior


def coef_scale(target: HierarchicalTarget) -> float:
    """Size of coefficients at which one feature varies as much as the target.

    In the units of the fit: 1 if features and target are standardized.
    """
    (y, w), predictor = target._targets_and_weights(), target.predictor_spec
    d, size = predictor.n_features, median_distance(y, w, 0.0)
    scale = target.y.new_full((predictor.layout.size,), 1e-150)
    scale[:d] = 1.0
    normal = NormalForm(torch.zeros_like(scale), scale)
    with torch.no_grad():
        variance = predictor.moments(target.rows.start.X, normal)[1]
    explained = float(torch.from_numpy(w) @ variance.cpu())
    std = math.sqrt(explained / (d * float(w.sum())))
    ratio = size / std if std > 0 else 0.0
    return ratio if 0 < ratio < math.inf else 1.0


def by_sums(target: SupervisedTarget, plain: SupervisedTarget) -> SupervisedTarget:
    """A target with the same sums over rows, of about as many rows as parameters.

    `plain` is that of the parameters of the predictor alone; it is returned where sums
    are not all that matters, or there are few rows. Weights add up to their sum, which
    a scale of normal noise depends on.
    """
    data = target._sums if isinstance(target, HierarchicalTarget) else None
    is_plain = isinstance(plain.rows, Rows) and plain.rows.offset is None
    if data is None or not is_plain or not plain.loss.is_log_loss:
        return plain
    d, n_rows = data.n_features, len(data.values) + 2
    if n_rows >= plain.n_rows:
        return plain
    A = plain.y.new_zeros(n_rows, plain.layout.size)
    y = plain.y.new_zeros(n_rows)
    roots, rest = data.values.sqrt(), max(data.residual, 0.0)
    A[:-2, :d], y[:-2] = roots[:, None] * data.vectors.T, roots * data.solution
    A[-2, d:], y[-2], y[-1] = data.n**0.5, data.n**0.5 * data.mean, rest**0.5
    share = data.n / n_rows
    weight = torch.full_like(y, share)
    predictor = LinearPredictor(A.shape[1], 1, fit_intercept=False)
    found = copy(plain)
    found.predictor_spec = predictor
    found.rows = replace(plain.rows, X=A / share**0.5, y=y / share**0.5, weight=weight)
    return found


def beside_number(
    target: HierarchicalTarget,
) -> tuple[SupervisedTarget, UnknownNumber]:
    """The target of the predictor's parameters, and the number of the likelihood.

    The likelihood then learns it, as a hyperparameter.
    """
    gamma = cast(Hyperprior, target.noise_hyperprior)
    rows, spec = target.rows.start, target.likelihood_spec
    parts = target.predictor, spec, target.loss, target.prior_spec.prior
    weight, offset = rows.weight, rows.offset
    plain = SupervisedTarget(*parts, rows.X, rows.y, weight, target.constant, offset)
    plain.rows = target.rows
    plain.hyper = torch.cat([plain.hyper[: len(spec.learned)], target.hyper])
    return plain, UnknownNumber(gamma, spec.gamma_block[1])
