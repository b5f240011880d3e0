"""Half-steps for precisions with Gamma posteriors, beside a normal q of the rest."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import digamma, gammaln

from skvi.base import NormalForm
from skvi.solvers.base import Problem
from skvi.utils._arrays import NumpyState
from skvi.utils._scale_mixture import noise_nodes

__all__ = ["GammaSteps"]

# Nodes for the noise precision: its logarithm is nearly normal for many rows.
FEW_NODES, MANY_NODES, MANY_ROWS = 24, 64, 20.0
# Largest move of log shape and log rate in one step.
LARGEST_MOVE = 1.5
# Relative slack of rounding in the steps.
TIGHT = {"ftol": 1e-15, "gtol": 1e-10}


class GammaSteps:
    """The problem of q(coef) given q(precisions), and the steps of the latter.

    Parameters
    ----------
    problem : Problem
        Of a `HierarchicalTarget` whose theta holds precisions, with a product
        posterior: normal parts, and Gamma parts for the precisions.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.target = problem, problem.target
        self.names = [n for n in self.target.layout if n.endswith("_precision")]

    def gamma(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Shapes and rates of a block of precisions."""
        shape, rate = self.problem.posterior.part(name).moments()
        return shape.numpy(), rate.numpy()

    def conditional(self) -> Problem:
        """Problem of q(coef) alone: losses averaged over the noise, mean precisions."""
        target, posterior = self.target, self.problem.posterior
        loss = target.loss
        if "noise_precision" in self.names:
            shape, rate = self.gamma("noise_precision")
            few = float(shape[0]) > MANY_ROWS
            noise, log_w = noise_nodes(
                float(shape[0]), float(rate[0]), FEW_NODES if few else MANY_NODES
            )
            loss = AveragedLoss(target, noise.sqrt(), log_w.exp())
        precision = None
        if "coef_precision" in self.names:
            shape, rate = self.gamma("coef_precision")
            precision = torch.from_numpy(shape / rate)
        part = posterior.part("coef")
        return replace(
            self.problem,
            target=target.conditional(loss, precision),
            posterior=part,
        )

    def keep(self, conditional: Problem) -> None:
        """Take over the normal part of a solved problem."""
        self.problem.posterior.set_part("coef", conditional.posterior)
        self.target.hyper = conditional.target.hyper

    def fitted(self) -> tuple[NormalForm, torch.Tensor]:
        """Normal of the coefficients, and the scale of the noise."""
        normal = self.problem.posterior.part("coef").as_normal()
        if "noise_precision" not in self.names:
            return normal, self.target.likelihood._scale
        shape, rate = self.problem.posterior.part("noise_precision").moments()
        return normal, (rate / shape).sqrt()[0]

    def constant(self) -> float:
        """What the conditional objective lacks of the whole one, in nats."""
        total = 0.0
        for name in self.names:
            shape, rate = self.gamma(name)
            total += _divergence(shape, rate, self.target.prior.gammas[name])
        if "coef_precision" in self.names:
            shape, rate = self.gamma("coef_precision")
            gap = np.log(shape) - digamma(shape)
            total += 0.5 * float(gap.sum()) * self._per_precision(shape)
        return total

    def _per_precision(self, shape: np.ndarray) -> float:
        return self.target.predictor.n_features / len(shape)

    def step(self) -> None:
        """Move the precisions to their best distributions given q(coef)."""
        normal = self.problem.posterior.part("coef").as_normal()
        if "coef_precision" in self.names:
            self._step_coef(normal)
        if "noise_precision" in self.names:
            self._step_noise(normal)

    def _set(self, name: str, shape: np.ndarray, rate: np.ndarray) -> None:
        part = self.problem.posterior.part(name)
        part.set_gamma(torch.from_numpy(shape), torch.from_numpy(rate))
        self.problem.posterior.set_part(name, part)

    def _step_coef(self, normal: NormalForm) -> None:
        """Closed form."""
        shape, _ = self.gamma("coef_precision")
        gamma = self.target.prior.gammas["coef_precision"]
        d = self.target.predictor.n_features
        squares = (normal.mean[:d].square() + normal.variance[:d]).numpy()
        if len(shape) == 1:
            squares = squares.sum(keepdims=True)
        count = self._per_precision(shape)
        self._set(
            "coef_precision",
            np.full_like(shape, gamma.shape + 0.5 * count),
            gamma.rate + 0.5 * squares,
        )

    def _step_noise(self, normal: NormalForm) -> None:
        """Best Gamma distribution, by quadrature over the log precision."""
        (shape,), (rate,) = self.gamma("noise_precision")
        gamma, target = self.target.prior.gammas["noise_precision"], self.target
        noise, _ = noise_nodes(shape, rate, 2 * MANY_NODES, reach=1.5)
        losses = [float(x) for x in _losses_at(target, noise.sqrt(), normal)]
        t, loss = -noise.log().numpy(), np.array(losses)

        def objective(x: np.ndarray) -> float:
            a, b = np.exp(x)
            log_w = a * t - b * np.exp(t)
            w = np.exp(log_w - log_w.max())
            mean = float(w @ loss / w.sum())
            return mean + _divergence(np.array([a]), np.array([b]), gamma)

        start = np.log([shape, rate])
        bounds = [(x - LARGEST_MOVE, x + LARGEST_MOVE) for x in start]
        found = minimize(
            objective, start, method="L-BFGS-B", bounds=bounds, options=TIGHT
        )
        if found.fun <= objective(start):
            a, b = np.exp(found.x)
            self._set("noise_precision", np.array([a]), np.array([b]))


class AveragedLoss(NumpyState):
    """Loss of a row, averaged over noise scales.

    Parameters
    ----------
    target : HierarchicalTarget
        Its loss and its likelihood are evaluated.
    scales, weights : Tensor of shape (m,)
    """

    is_log_loss = False

    def __init__(
        self, target: Any, scales: torch.Tensor, weights: torch.Tensor
    ) -> None:
        self.loss, self.likelihood = target.loss, target._likelihood
        self.scales, self.weights = scales, weights

    def expected(
        self,
        likelihood: Any,
        mean: torch.Tensor,
        spread: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Expected loss and its derivatives, averaged; see `Loss.expected`."""
        parts = []
        for scale, weight in zip(self.scales, self.weights, strict=True):
            bound = self.likelihood.bind(scale.log().reshape(1))
            found = self.loss.expected(bound, mean, spread, y, refine)
            parts.append([weight * value for value in found])
        value, first, second = (torch.stack(p).sum(0) for p in zip(*parts, strict=True))
        return value, first, second

    def tail_curvature(self, likelihood: Any) -> None:
        """Not known."""


def _losses_at(target: Any, scales: torch.Tensor, normal: NormalForm) -> list:
    """Expected loss of all rows at every noise scale."""
    mean, variance = target.predictor.moments(target.X, normal)
    w, found = target.sample_weight, []
    for scale in scales:
        bound = target._likelihood.bind(scale.log().reshape(1))
        value = target.loss.expected(bound, mean, variance.sqrt(), target.y)[0]
        found.append(value.sum() if w is None else w @ value)
    return found


def _divergence(shape: np.ndarray, rate: np.ndarray, gamma: Any) -> float:
    """KL divergence of Gamma distributions from a hyperprior, summed."""
    a0, b0 = gamma.shape, gamma.rate
    value = (shape - a0) * digamma(shape) - gammaln(shape) + gammaln(a0)
    value = value + a0 * (np.log(rate) - np.log(b0)) + shape * (b0 / rate - 1)
    return float(value.sum())
