"""A prior with one unknown scale: what it adds to the steps under a known one."""

import math

import torch

from skvi.base import NormalForm
from skvi.priors import BuiltPrior
from skvi.solvers._mode import DENSE_LIMIT, add, find_mode, scale_of
from skvi.targets import SupervisedTarget

__all__ = ["UnknownScale", "find_start", "implied_scale", "shrinkage"]

# Longest step of a log precision, and largest elasticity.
LONGEST, STEEPEST = 3.0, 0.9999
# Modes from which the scale is guessed, until its log moves by less than this.
N_MODES, NEAR = 10, 0.1


def implied_scale(prior: BuiltPrior, normal: NormalForm) -> float:
    """Scale that a normal posterior implies: ``E[1 / s^2]^(-1/2)`` under the best q(s).

    At the optimum the normal is the posterior under a normal prior of this scale.
    """
    return UnknownScale(prior, normal.mean, normal.variance).precision ** -0.5


class UnknownScale:
    """Mean and variance of the precision 1 / s^2 of a prior beside a normal posterior.

    ``-E_q[log prior]`` has the derivatives ``E[1 / s^2] / 2`` and ``-Var[1 / s^2] / 4``
    in the expected sum of squares T: the Hessian gets a term of rank one.
    """

    def __init__(
        self, prior: BuiltPrior, mean: torch.Tensor, variance: torch.Tensor
    ) -> None:
        self.weights = prior.scale_weights()
        squares = self.weights @ (mean.square() + variance)
        self.precision, self.variance = prior.expected_precision(squares)

    def elasticity(self, moved: float) -> float:
        """How fast log E[1 / s^2] follows the log of the prior's precision.

        `moved` is the derivative of -T in that precision.
        """
        return min(0.5 * self.variance * moved, STEEPEST)

    def shift(self, change: float, moved: float) -> tuple[float, float]:
        """Newton step of the precision, and the nats it gains beside the step's own.

        `change` is the derivative of T along the step at this precision.
        """
        rest = 1 - self.elasticity(moved)
        shift = -0.5 * self.variance * change / rest
        ratio = max(-LONGEST, min(LONGEST, shift / self.precision))
        gain = 0.125 * self.variance * change**2 / rest
        return self.precision * math.expm1(ratio), gain


def shrinkage(weights: torch.Tensor, normal: NormalForm) -> float:
    """How fast the expected sum of squares falls with the precision of the prior.

    For quadratic losses, and without the correlations of a low-rank factor.
    """
    root, gradient = normal.scale, weights * normal.mean
    half = weights.sqrt()
    if normal.scale.ndim == 1:
        variance = normal.variance
        return float(
            2 * (gradient.square() @ variance) + (weights * variance).square().sum()
        )
    inner = half[:, None] * root
    moved = 2 * (root.T @ gradient).square().sum()
    return float(moved + (inner.T @ inner).square().sum())


def find_start(
    target: SupervisedTarget, is_diagonal: bool
) -> tuple[NormalForm, torch.Tensor, torch.Tensor]:
    """Diagonal normal prior, and mode and curvature under it; see `find_mode`.

    The normal is the nearest to the prior, or has the scale that the mode implies.
    """
    prior = target.prior.matching_normal()
    mean, curvature = find_mode(target, prior)
    if target.prior.n_unknown_scales != 1:
        return prior, mean, curvature
    log_scale = 0.0
    for _ in range(N_MODES):
        step = _step_at_mode(target, prior, mean, curvature, log_scale, is_diagonal)
        log_scale += step
        prior = target.prior.given_scale(math.exp(log_scale)).as_normal()
        mean, curvature = find_mode(target, prior, start=mean)
        if abs(step) < NEAR:
            break
    return prior, mean, curvature


def _step_at_mode(
    target: SupervisedTarget,
    prior: NormalForm,
    mean: torch.Tensor,
    curvature: torch.Tensor,
    log_scale: float,
    is_diagonal: bool,
) -> float:
    """`_step` at the normal with the curvature at the mode."""
    if is_diagonal or target.layout.size > DENSE_LIMIT:
        gram = target.predictor.gram_diagonal(target.X, curvature)
    else:
        gram = target.predictor.gram(target.X, curvature)
    root = scale_of(add(gram, 1 / prior.variance))
    return 0.0 if root is None else _step(target, NormalForm(mean, root), log_scale)


def _step(target: SupervisedTarget, normal: NormalForm, log_scale: float) -> float:
    """Newton step of the log scale, by the best normal at this one."""
    scale = UnknownScale(target.prior, normal.mean, normal.variance)
    moved = shrinkage(scale.weights, normal)
    lack = -0.5 * math.log(scale.precision) - log_scale
    step = lack / (1 - scale.elasticity(moved))
    return max(-0.5 * LONGEST, min(0.5 * LONGEST, step))
