"""Bounds from powers of the weights: Rényi, chi, importance-weighted, EUBO."""

import math
from numbers import Integral, Real
from typing import Any

import torch

from skvi.exceptions import IncompatibleComponentsError
from skvi.objectives._orders import power_exists
from skvi.objectives._weights import (
    WeightsObjective,
    log_power_mean,
    normalize,
    weighted_sum,
)
from skvi.utils._validation import Interval, StrOptions


class _PowerBound(WeightsObjective):
    """``log(mean(w^(1 - alpha))) / (1 - alpha)``, in Rényi's parametrization."""

    @property
    def _order(self) -> float:
        """Rényi's alpha."""
        raise NotImplementedError

    @property
    def direction(self) -> str:  # type: ignore[override]
        """Whether the exact bound is a lower or an upper bound of log p(D)."""
        return "lower" if self._order >= 0 else "upper"

    @property
    def score_factor(self) -> float:  # type: ignore[override]
        """Factor of the score form, alpha / (1 - alpha); for alpha < 0 only."""
        return self._order / (1 - self._order)

    def exists(self, target: Any, posterior: Any) -> bool | None:
        """Whether E_q[w^(1 - alpha)] is finite; see `Objective.exists`."""
        return power_exists(target, posterior, 1 - self._order)

    def bound(self, log_weights: torch.Tensor) -> torch.Tensor:
        """Log power mean of the weights; see `WeightsObjective.bound`."""
        return log_power_mean(log_weights, 1 - self._order).mean()

    def training_weights(self, log_weights: torch.Tensor) -> torch.Tensor:
        """``softmax((1 - alpha) lw)``; see `WeightsObjective.training_weights`."""
        return normalize(log_weights, 1 - self._order)

    def path_weights(self, weights: torch.Tensor) -> torch.Tensor:
        """Doubly reparameterized factors; see `WeightsObjective.path_weights`."""
        alpha = self._order
        if alpha < 0:
            return alpha * weights
        # The score term of the total derivative, moved to the path (Tucker et al.).
        return -(alpha * weights + (1 - alpha) * weights.square())


class RenyiBound(_PowerBound):
    r"""Rényi's variational bound, of every real order except 1.

    .. math:: L_\alpha(q) = \frac{1}{1-\alpha} \log E_q\left[
              \left(\frac{p(D, \theta)}{q(\theta)}\right)^{1-\alpha}\right]
              = \log p(D) - D_\alpha(q \| p(\theta|D))

    It decreases in alpha: alpha = 0 is log p(D) itself (the importance-weighted ELBO
    from S draws), alpha -> 1 the ELBO. Orders of at least 0 are lower bounds and are
    maximized, negative ones are upper bounds and are minimized.

    Parameters
    ----------
    alpha : float, default=0.5
        Order. 1 is refused: it is `ELBO`. Between 0 and 1 the fit lies between
        that of the EUBO (all of the posterior's width) and that of the ELBO
        (its bulk), and the exact bound always exists.
    gradient : {"auto", "reparam", "doubly_reparam", "score"}, default="auto"
        "auto" solves moment equations if 0 < alpha < 1, q is normal and the model
        linear, and otherwise trains with "doubly_reparam". "reparam" differentiates the
        estimate from S draws, for alpha >= 0 only; "score" is for alpha < 0 only.

    Attributes
    ----------
    direction : {"lower", "upper"}
        "lower" for alpha >= 0.

    Notes
    -----
    *Exactly*, alpha > 0 is a lower bound and alpha < 0 an upper one. *From S
    draws*, alpha >= 0 stays a lower bound in expectation; alpha < 0 is biased low (at S
    = 1 every order is the ELBO), so that the estimate is not a valid bound. For alpha <
    0 or alpha > 1 the exact bound can be infinite (see `exists`); any sample is finite.

    With ``w = softmax((1 - alpha) lw)``, detached: "reparam" is
    ``sum(w dlw/dlambda)`` and "doubly_reparam" ``sum((alpha w + (1 - alpha) w^2)
    (dlw/dtheta) dtheta/dlambda)``, equal in expectation at every S. For alpha < 0
    they are ``alpha / (1 - alpha) sum(w dlog q/dlambda)`` with theta held fixed
    ("score") and ``alpha sum(w (dlw/dtheta) dtheta/dlambda)``, with a bias of
    O(1/S); there the objective defined by the estimate from S draws is unbounded below.
    Minibatches bias the bound, which is not linear in the log likelihood.

    References
    ----------
    Li and Turner (2016), *Rényi divergence variational inference*, eq. 9. Tucker
    et al. (2019), *Doubly reparameterized gradient estimators*.

    Examples
    --------
    >>> import torch
    >>> from skvi.objectives import RenyiBound
    >>> log_weights = torch.tensor([0.0, 1.0])
    >>> [round(float(RenyiBound(a).bound(log_weights)), 3) for a in (2, 0.5, -1)]
    [0.38, 0.562, 0.717]
    >>> RenyiBound(2).direction, RenyiBound(-1).direction
    ('lower', 'upper')
    """

    _parameter_constraints: dict = {
        "alpha": [Interval(Real, None, None, closed="neither")],
        "gradient": [StrOptions({"auto", "reparam", "doubly_reparam", "score"})],
    }

    def __init__(self, alpha: float = 0.5, gradient: str = "auto") -> None:
        self.alpha = alpha
        self.gradient = gradient

    @property
    def _order(self) -> float:
        return float(self.alpha)

    @property
    def tilt(self) -> float | None:  # type: ignore[override]
        """Power of q in the tilted density: alpha, between 0 and 1."""
        return self._order if 0 < self._order < 1 else None

    def validate(self) -> None:
        """Check the parameters, and that the gradient rule suits the order.

        Raises
        ------
        ValueError
            The message says what was given and what to use instead.
        """
        super().validate()
        if self.alpha == 1:
            raise IncompatibleComponentsError(
                "RenyiBound",
                "alpha other than 1; got alpha=1, whose limit is the ELBO",
                "objective='elbo'",
            )
        refused, other, why = _RULES[self.direction]
        if self.gradient == refused:
            raise IncompatibleComponentsError(
                f"RenyiBound(alpha={self.alpha})",
                f"another rule than gradient={refused!r}, which {why}",
                f"gradient='auto', 'doubly_reparam' or {other!r}",
            )


#: For each direction: the rule that is not a gradient, alternative, and reason.
_RULES = {
    "lower": ("score", "reparam", "is not the gradient of what is maximized"),
    "upper": ("reparam", "score", "minimizes something without a minimum"),
}


class ChiBound(_PowerBound):
    r"""Chi upper bound (CUBO): Rényi's bound of order ``1 - order``.

    .. math:: U_n(q) = \frac{1}{n} \log E_q\left[
              \left(\frac{p(D, \theta)}{q(\theta)}\right)^n\right]

    Minimizing it penalizes a q that is too narrow more than the EUBO does.

    Parameters
    ----------
    order : float, default=2
        n > 1. 2 belongs to the chi-squared divergence of the posterior from q.
    gradient : {"auto", "score", "doubly_reparam"}, default="auto"
        "auto" is "doubly_reparam", whose noise vanishes if q is the posterior. Both
        have a bias of O(1/S), which is large while a few draws dominate the weights.

    Notes
    -----
    The exact bound is above log p(D), but finite only if q has the heavier tails: for
    logistic models with prior covariance P and normal q of covariance V only if ``order
    / P - (order - 1) / V`` is positive definite. Otherwise estimates do not converge:
    see `exists`. Even if it is finite, an estimate from S draws is biased low and not a
    valid bound.

    With ``w = softmax(order * lw)``, detached: "score" is ``(1 - order) / order
    sum(w dlog q/dlambda)`` with theta held fixed, "doubly_reparam" ``(1 - order)
    sum(w (dlw/dtheta) dtheta/dlambda)``. Minibatches bias the bound.

    References
    ----------
    Dieng et al. (2017), *Variational inference via chi upper bound minimization*,
    eq. 5.

    Examples
    --------
    >>> import torch
    >>> from skvi.objectives import ChiBound, RenyiBound
    >>> log_weights = torch.tensor([0.0, 1.0])
    >>> round(float(ChiBound(2).bound(log_weights)), 3)
    0.717
    >>> bool(ChiBound(3).bound(log_weights) == RenyiBound(-2).bound(log_weights))
    True
    """

    _parameter_constraints: dict = {
        "order": [Interval(Real, 1, None, closed="neither")],
        "gradient": [StrOptions({"auto", "score", "doubly_reparam"})],
    }

    def __init__(self, order: float = 2, gradient: str = "auto") -> None:
        self.order = order
        self.gradient = gradient

    @property
    def _order(self) -> float:
        return 1 - float(self.order)


class IWELBO(_PowerBound):
    r"""Importance-weighted ELBO: the log mean weight of K draws.

    .. math:: L_K(q) = E_{\theta_1 \dots \theta_K \sim q}\left[\log \frac{1}{K}
              \sum_k \frac{p(D, \theta_k)}{q(\theta_k)}\right]

    A lower bound in expectation that rises to log p(D) with K. The q that
    maximizes it is a good importance proposal, wider than that of the ELBO; the larger
    K is, the less q itself approximates the posterior.

    Parameters
    ----------
    n_importance : int, default=10
        K, draws in one log mean.
    gradient : {"auto", "reparam", "doubly_reparam"}, default="auto"
        "auto" is "doubly_reparam": ``sum(w^2 (dlw/dtheta) dtheta/dlambda)`` with
        ``w = softmax(lw)``, detached, whose noise vanishes if q is the posterior.
        "reparam" differentiates the estimate; its signal-to-noise ratio decreases as K
        grows. Both have the same expectation.

    Notes
    -----
    The solver's `n_draws` counts draws in total: ``max(1, n_draws //
    n_importance)`` groups of K are averaged, which lowers the noise. Minibatches
    bias the bound.

    References
    ----------
    Burda, Grosse and Salakhutdinov (2016), *Importance weighted autoencoders*,
    eq. 8. Tucker et al. (2019), *Doubly reparameterized gradient estimators*,
    eq. 8.

    Examples
    --------
    >>> import torch
    >>> from skvi.objectives import IWELBO
    >>> log_weights = torch.tensor([0.0, 1.0, 2.0, 3.0])
    >>> round(float(IWELBO(4).bound(log_weights)), 3)
    2.054
    >>> round(float(IWELBO(2).bound(log_weights)), 3)  # two groups
    1.62
    """

    _parameter_constraints: dict = {
        "n_importance": [Interval(Integral, 1, None, closed="left")],
        "gradient": [StrOptions({"auto", "reparam", "doubly_reparam"})],
    }
    _order = 0.0

    min_draws = 1  # of `n_importance` values each

    def __init__(self, n_importance: int = 10, gradient: str = "auto") -> None:
        self.n_importance = n_importance
        self.gradient = gradient

    def group_shape(self, n_draws: int) -> tuple[int, int]:
        """Groups of K; see `WeightsObjective.group_shape`."""
        return max(1, n_draws // self.n_importance), self.n_importance

    def bound(self, log_weights: torch.Tensor) -> torch.Tensor:
        """Average of log mean exp over groups of K weights.

        Parameters
        ----------
        log_weights : Tensor of shape (..., S)
            ``log p(D, theta) - log q(theta)`` at draws of q, in nats. The last axis is
            cut into ``S // K`` groups, the remainder is ignored; fewer than K weights
            form one group.

        Returns
        -------
        Tensor
            A scalar in nats, a lower bound of log p(D) in expectation.
        """
        count = log_weights.shape[-1]
        size = min(self.n_importance, count)
        kept = log_weights[..., : count // size * size]
        return super().bound(kept.reshape(-1, size))


class EUBO(WeightsObjective):
    r"""Evidence upper bound: minimizes KL(posterior || q).

    .. math:: U(q) = E_{p(\theta|D)}[\log p(D, \theta) - \log q(\theta)]
              = \log p(D) + KL(p(\theta|D) \| q)

    A normal q at the optimum has the mean and covariance of the posterior (for a
    mean-field q: its marginal standard deviations); those of the ELBO are often too
    small.

    Parameters
    ----------
    gradient : {"auto", "score", "doubly_reparam"}, default="auto"
        "auto" matches moments if q is normal, and otherwise trains with
        "doubly_reparam". Both rules train on self-normalized weights of fresh draws;
        their bias is O(1/S) and large while the effective sample size is small. The
        noise of "doubly_reparam" vanishes if q is the posterior.

    Notes
    -----
    The exact EUBO is above log p(D). Its self-normalized estimate from draws of q can
    fall below: `evidence_bounds` takes its upper bound from posterior draws. The
    gradient of the exact EUBO is ``-E_p[d log q(theta; lambda) / d lambda]`` with theta
    held fixed. Differentiating the weights as well minimizes something that has no
    lower bound at a finite number of draws.

    References
    ----------
    Ji and Shen (2019), *Stochastic variational inference via upper bound*, eq. 2;
    the algorithm's printed gradient is not used (it vanishes in the mean). Tucker
    et al. (2019), *Doubly reparameterized gradient estimators*.

    Examples
    --------
    >>> from skvi.objectives import EUBO
    >>> EUBO(gradient="score")
    EUBO(gradient='score')
    """

    _parameter_constraints: dict = {
        "gradient": [StrOptions({"auto", "score", "doubly_reparam"})]
    }
    direction = "upper"
    tilt = 0.0

    def __init__(self, gradient: str = "auto") -> None:
        self.gradient = gradient

    def bound(self, log_weights: torch.Tensor) -> torch.Tensor:
        """Self-normalized estimate of the EUBO.

        Parameters
        ----------
        log_weights : Tensor of shape (..., S)
            ``log p(D, theta) - log q(theta)`` at draws of q, in nats.

        Returns
        -------
        Tensor
            A scalar in nats: reduced over the last axis, averaged over the others.
            Its bias is O(1/S), so that it can be below log p(D).
        """
        means = weighted_sum(normalize(log_weights), log_weights)
        top = log_weights.amax(-1)
        return torch.where(top == -math.inf, top, means).mean()

    def training_weights(self, log_weights: torch.Tensor) -> torch.Tensor:
        """``softmax(lw)``; see `WeightsObjective.training_weights`."""
        return normalize(log_weights)

    def path_weights(self, weights: torch.Tensor) -> torch.Tensor:
        """Minus the weights; see `WeightsObjective.path_weights`."""
        return -weights
