"""Half-steps for precisions with Gamma posteriors, given a normal q of the rest."""

from typing import cast

import numpy as np
import torch
from numpy.polynomial import Chebyshev
from scipy.optimize import minimize
from scipy.special import digamma

from skvi.base import NormalForm
from skvi.base._gamma_form import GammaForm
from skvi.likelihoods import Likelihood
from skvi.posteriors import Posterior
from skvi.solvers._solution import State
from skvi.solvers.base import Problem
from skvi.targets import HierarchicalTarget
from skvi.targets._hierarchical import conditional
from skvi.targets._rows import shift_mean
from skvi.utils._device import Movable
from skvi.utils._scale_mixture import gamma_nodes, noise_nodes

__all__ = ["GammaSteps"]

# Nodes for steps of the parameter of the likelihood; if many rows determine it, the
# loss is a polynomial of its logarithm there, which this number of nodes determines.
MANY_NODES, MANY_ROWS, DEGREE = 128, 20.0, 18
# Maximum change of log shape and log rate in one step.
LARGEST_MOVE = 1.5
# Relative tolerance for rounding in the steps.
TIGHT = {"ftol": 1e-15, "gtol": 1e-10}


class GammaSteps:
    """The problem of q(coef) given q(precisions), and the steps of the latter.

    The product posterior has one normal part, and Gamma parts for the precisions.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.target = cast(HierarchicalTarget, problem.target)
        self.names = self.target.layout.positive
        self.own, self.power = self.target.likelihood_spec.gamma_block
        parts = problem.posterior.parts
        self.key = next(names for names in parts if "coef" in names)
        self.part = parts[self.key]

    @property
    def normal(self) -> NormalForm:
        """The normal part."""
        return cast(NormalForm, self.part.as_normal())

    def gamma(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Shapes and rates of a block of precisions."""
        gamma = cast(GammaForm, self.problem.posterior.part(name).as_gamma())
        return gamma.shape.cpu().numpy(), gamma.rate.cpu().numpy()

    def conditional(self) -> Problem:
        """Problem of q(coef) alone: losses averaged over the noise, mean precisions."""
        target, loss = self.target, self.target.loss
        if self.own in self.names:
            shape, rate = self.gamma(self.own)
            inverse, log_w = gamma_nodes(float(shape[0]), float(rate[0]))
            loss = AveragedLoss(target, -self.power * inverse.log(), log_w.exp())
        precision = None
        if "coef_precision" in self.names:
            shape, rate = self.gamma("coef_precision")
            precision = torch.from_numpy(shape / rate).to(self.target.rows.device)
        return self.problem.at(State(self.part, conditional(target, loss, precision)))

    def joined(self, part: Posterior) -> Posterior:
        """The complete posterior with another normal part."""
        return self.problem.posterior.with_parts({self.key: part})

    def noise_scale(self) -> torch.Tensor:
        """Scale of the noise: that of the mean precision, if it is a parameter."""
        if self.own not in self.names:
            return self.target.likelihood._scale
        shape, rate = self.gamma(self.own)
        return torch.from_numpy(shape / rate)[0] ** self.power

    def constant(self) -> float:
        """The difference of the complete and the conditional objective, in nats."""
        total = 0.0
        for name in self.names:
            shape, rate = self.gamma(name)
            total += self._divergence(name, shape, rate)
        if "coef_precision" in self.names:
            shape, rate = self.gamma("coef_precision")
            gap = np.log(shape) - digamma(shape)
            total += 0.5 * float(gap.sum()) * self._per_precision(shape)
        return total

    def _divergence(self, name: str, shape: np.ndarray, rate: np.ndarray) -> float:
        """Divergence of the precisions of a block from their hyperprior."""
        gamma = self.target.prior.gammas[name]
        prior = gamma.shape, gamma.rate
        return self.problem.divergence.between_gammas(shape, rate, prior)

    def _per_precision(self, shape: np.ndarray) -> float:
        return self.target.predictor.n_features / len(shape)

    def step(self) -> Posterior:
        """Posterior with optimal distributions of the precisions given q(coef)."""
        steps = {"coef_precision": self._coef, self.own: self._noise}
        posterior = self.problem.posterior
        parts: dict[tuple[str, ...], Posterior] = {}
        for name in self.names:
            parts[name,] = posterior.part(name).near_gamma(steps[name]())
        return posterior.with_parts(parts)

    def _coef(self) -> GammaForm:
        """Best Gamma distributions of the coefficients' precisions, in closed form."""
        normal = self.normal
        shape, _ = self.gamma("coef_precision")
        gamma = self.target.prior.gammas["coef_precision"]
        d = self.target.predictor.n_features
        squares = (normal.mean[:d].square() + normal.variance[:d]).cpu().numpy()
        if len(shape) == 1:
            squares = squares.sum(keepdims=True)
        count = self._per_precision(shape)
        shape = np.full_like(shape, gamma.shape + 0.5 * count)
        return _gamma_of(shape, gamma.rate + 0.5 * squares)

    def _noise(self) -> GammaForm:
        """Best Gamma distribution, by quadrature over the log precision."""
        (shape,), (rate,) = self.gamma(self.own)
        target = self.target
        inverse, _ = noise_nodes(shape, rate, MANY_NODES, reach=1.5)
        t = -inverse.log().numpy()

        def at(log_number: np.ndarray) -> np.ndarray:
            hyper = torch.from_numpy(self.power * log_number)
            return _losses_at(target, hyper, self.normal).cpu().numpy()

        loss = (
            at(t)
            if shape < MANY_ROWS
            else Chebyshev.interpolate(at, DEGREE, domain=[t.min(), t.max()])(t)
        )

        def objective(x: np.ndarray) -> float:
            a, b = np.exp(x)
            log_w = a * t - b * np.exp(t)
            w = np.exp(log_w - log_w.max())
            mean = float(w @ loss / w.sum())
            return mean + self._divergence(self.own, np.array([a]), np.array([b]))

        start = np.log([shape, rate])
        bounds = [(x - LARGEST_MOVE, x + LARGEST_MOVE) for x in start]
        found = minimize(
            objective, start, method="L-BFGS-B", bounds=bounds, options=TIGHT
        )
        best = found.x if found.fun <= objective(start) else start
        return _gamma_of(*np.exp(best)[:, None])


class AveragedLoss(Movable):
    """Loss of a row, averaged over the unknown parameter of its likelihood.

    Over m values that `Likelihood.bind` takes, with weights, (m,).
    """

    is_log_loss = False

    def __init__(
        self, target: HierarchicalTarget, hyper: torch.Tensor, weights: torch.Tensor
    ) -> None:
        device = target.rows.device
        self.loss, self.likelihood = target.loss, target.likelihood_spec
        self.weights = weights.to(device)
        # Not at the place of use, where tensors may not support derivatives.
        self.bound = [
            self.likelihood.bind(number.reshape(1)) for number in hyper.to(device)
        ]

    def expected(
        self,
        likelihood: Likelihood,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Expected loss and its derivatives, averaged; see `Loss.expected`."""
        each = [self.loss.expected(b, mean, std_or_cov, y, refine) for b in self.bound]
        value, first, second = (
            torch.tensordot(self.weights, torch.stack(found), 1)
            for found in zip(*each, strict=True)
        )
        return value, first, second

    def tail_curvature(self, likelihood: Likelihood) -> None:
        """None: it is not known."""


def _gamma_of(shape: np.ndarray, rate: np.ndarray) -> GammaForm:
    return GammaForm(torch.from_numpy(shape), torch.from_numpy(rate))


def _losses_at(
    target: HierarchicalTarget, hyper: torch.Tensor, normal: NormalForm
) -> torch.Tensor:
    """Expected loss of all rows at every value that `Likelihood.bind` takes."""
    mean, variance = target.predictor.moments(target.X, normal)
    rows = shift_mean(mean, target.rows), variance.sqrt(), target.y
    each = (
        target.loss.expected(target.likelihood_spec.bind(number.reshape(1)), *rows)[0]
        for number in hyper.to(mean.device)
    )
    losses, w = torch.stack(list(each)), target.rows.weight
    return losses.sum(1) if w is None else losses @ w
