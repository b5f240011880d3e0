"""Shared numbers: given them the posterior of a linear model is nearly normal.

A prior has one unknown scale, a likelihood a positive number, such as a dispersion. The
coordinate z is the logarithm.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import cast

import torch

from skvi.base import NormalForm
from skvi.priors._posterior import MixtureAsPrior
from skvi.targets._hierarchical import HierarchicalTarget, beside_number
from skvi.targets._precisions import UnknownNumber
from skvi.targets._supervised import SupervisedTarget, with_prior
from skvi.targets.base import Target

__all__ = [
    "CarriedScale",
    "LikelihoodNumber",
    "Number",
    "Scale",
    "bound_at",
    "numbers_of",
]

# Distances of the differences that give slopes and curvatures.
NEAR, CLOSE, BESIDE = 1e-3, 0.01, 0.1
# Most steps to the best place beside a normal.
STEPS = 30


class Number(ABC):
    """The log of a positive number of a target, with its prior density."""

    #: Where a search begins.
    start = 0.0

    @abstractmethod
    def log_density(self, z: float) -> float:
        """Log of the prior density, in nats."""

    @abstractmethod
    def bind(self, target: SupervisedTarget, z: float) -> SupervisedTarget:
        """The target where the number is known."""

    def loss(self, known: SupervisedTarget, normal: NormalForm) -> float:
        """What depends on the number, in nats; the divergence is KL of weight 1."""
        return float(known.expected_loss_terms(normal)[0])

    def slope(
        self, target: SupervisedTarget, z: float, normal: NormalForm, weight: float
    ) -> float:
        """Slope of the log integrand at the best normal, by the envelope theorem.

        Given all other numbers; `weight` is that of the divergence.
        """
        low, high = (
            self.log_density(at) - self.loss(self.bind(target, at), normal) / weight
            for at in (z - NEAR, z + NEAR)
        )
        return (high - low) / (2 * NEAR)

    def best(self, target: SupervisedTarget, normal: NormalForm) -> float:
        """The likeliest place beside a normal, by Newton's method."""
        z = self.start
        for _ in range(STEPS):
            slope = self.slope(target, z, normal, 1.0)
            move = slope / max(self.curvature(target, z, normal, 1.0), abs(slope) / 2.0)
            z += move
            if abs(move) < NEAR:
                break
        return z

    def curvature(
        self, target: SupervisedTarget, z: float, normal: NormalForm, weight: float
    ) -> float:
        """About minus the second derivative, by which the first nodes are laid."""
        low, high = (
            self.slope(target, at, normal, weight) for at in (z - BESIDE, z + BESIDE)
        )
        return (low - high) / (2 * BESIDE)


class Scale(Number):
    """The one unknown scale of a prior that is normal beside it."""

    def __init__(self, target: SupervisedTarget) -> None:
        self.prior, self.weights = target.prior, target.prior.scale_weights()

    def log_density(self, z: float) -> float:
        """That of the hyperprior."""
        return float(self.prior.log_density_of_scale(self.weights.new_tensor(z)))

    def bind(self, target: SupervisedTarget, z: float) -> SupervisedTarget:
        """With a normal prior."""
        return with_prior(target, self.prior.given_scale(math.exp(z)))

    def slope(
        self, target: SupervisedTarget, z: float, normal: NormalForm, weight: float
    ) -> float:
        """By the expected sum of squares."""
        squares = float(self.weights @ (normal.mean.square() + normal.variance))
        size = int((self.weights > 0).sum())
        return math.exp(-2 * z) * squares - size + self._own(z)[0]

    def curvature(
        self, target: SupervisedTarget, z: float, normal: NormalForm, weight: float
    ) -> float:
        """As if the losses were quadratic."""
        precision, moved = math.exp(-2 * z), self.weights * normal.mean
        squares = float(self.weights @ (normal.mean.square() + normal.variance))
        root = normal.scale
        if normal.is_diagonal:
            inner = self.weights.sqrt() * root * root * self.weights.sqrt()
            follows = 2 * (root * moved).square().sum() + inner.square().sum()
        else:
            half = self.weights.sqrt()[:, None] * root
            follows = 2 * (root.T @ moved).square().sum()
            follows = follows + (half.T @ half).square().sum()
        rest = squares - precision * float(follows)
        return 2 * precision * rest - self._own(z)[1]

    def _own(self, z: float) -> tuple[float, float]:
        """First and second derivative of the log density."""
        low, mid, high = map(self.log_density, (z - CLOSE, z, z + CLOSE))
        return (high - low) / (2 * CLOSE), (high - 2 * mid + low) / CLOSE**2


class CarriedScale(Scale):
    """The scale of a prior that is the posterior of other data, at its nodes."""

    def __init__(self, target: SupervisedTarget) -> None:
        self.prior = cast(MixtureAsPrior, target.prior)
        self.weights = torch.ones_like(self.prior.as_one().as_normal().mean)

    def slope(self, *_: object) -> float:
        """Not needed: the nodes are given."""
        return math.nan


class LikelihoodNumber(Number):
    """A positive number of the likelihood with a Gamma prior."""

    def __init__(self, target: SupervisedTarget, number: UnknownNumber) -> None:
        self.number, self.spec = number, target.likelihood_spec
        first = target.likelihood_spec.initial_hyper(target.y)
        self.start = float(first[0]) / number.power

    def log_density(self, z: float) -> float:
        """Of the log of a Gamma variable."""
        return float(
            self.number.log_density(
                torch.tensor([z], dtype=torch.float64, device="cpu")
            )
        )

    def bind(self, target: SupervisedTarget, z: float) -> SupervisedTarget:
        """With a likelihood that knows it."""
        found = copy(target)
        with torch.inference_mode(False):  # for derivatives of likelihoods
            place = target.hyper.new_tensor([z])
            found.likelihood_spec = self.number.bind(self.spec, place)
        if target.likelihood_spec is self.spec:  # the others are those of the prior
            found.hyper = target.hyper[len(self.spec.learned) :]
        return found


def numbers_of(target: Target) -> tuple[SupervisedTarget, tuple[Number, ...]]:
    """The target of the predictor's parameters alone, and its unknown numbers."""
    plain, own = cast(SupervisedTarget, target), None
    if isinstance(target, HierarchicalTarget) and target.is_extended:
        parts = beside_number(target)
        if parts is None:
            return plain, ()
        plain, own = parts
    found: tuple[Number, ...] = ()
    if isinstance(plain.prior, MixtureAsPrior):
        found = (CarriedScale(plain),)
    elif plain.prior is not None and plain.prior.n_unknown_scales == 1:
        found = (Scale(plain),)
    return plain, found if own is None else (*found, LikelihoodNumber(plain, own))


def bound_at(
    target: SupervisedTarget, numbers: Sequence[Number], z: Sequence[float]
) -> SupervisedTarget:
    """The target of `numbers_of` with known numbers."""
    for number, at in zip(numbers, z, strict=True):
        target = number.bind(target, at)
    return target
