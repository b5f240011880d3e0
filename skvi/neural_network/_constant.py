"""Networks that are a constant: no fit should be worse than one.

A training that is too short, or whose steps are too long, can end below the density of
a constant. Every family has a state that is one: the last layer near 0, and the others
at their prior, where they cost nothing. A fit that is worse than this state, both in
the density of its rows and in what it minimizes, ends there.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from skvi.base import NormalForm
from skvi.neural_network._flatness import spaced_rows
from skvi.objectives._ensemble_steps import estimate
from skvi.posteriors import Posterior
from skvi.solvers import Problem, Solution
from skvi.solvers._lbfgs import LBFGS
from skvi.solvers._solution import Ending, State
from skvi.solvers._stochastic._ends import fresh_value, mean_and_error
from skvi.targets._rows import shift
from skvi.utils._arrays import weighted_sum
from skvi.utils._random import make_generator, randn

__all__ = ["at_least_constant"]

# Nats a row by which a fit may be worse than a constant, as it is by chance.
SMALL_LOSS = 0.05
# Largest variance of the constant's networks, in units of the noise: it costs about
# half as many nats a row.
WIDEST = 0.05
# Means, in units of deviations, that hardly count: the noise of dropout is a multiple
# of them.
SMALL_MEAN = 0.01
# Draws that tell whether a fit may be worse, and whether it is; steps, of at most twice
# as many rows and with so many draws, that tell which state is lower.
FEW_DRAWS, MANY_DRAWS = 4, 100
N_STEPS, STEP_ROWS, STEP_DRAWS = 20, 2000, 10
# Rows that show whether outputs depend on them.
N_PROBED = 20
# Steps to the best constant, at most, and its distance from there in nats a row.
MAX_STEPS, EXACT = 100, 1e-6


def at_least_constant(problem: Problem, solution: Solution) -> Solution:
    """The solution, with a constant in place of every member that is worse than one.

    Estimates from weights are not compared: they are lowest where q is worst.
    """
    if solution.interrupted or problem.objective.kind != "expectation":
        return solution
    posterior, target = solution.state
    found = _constants(problem, solution.state, _Constant.fit(target))
    if None in found and any(found):
        # The others keep the noise and the scales, which all of them share.
        constant = _Constant.fit(target, target.hyper)
        found = _constants(problem, solution.state, constant)
    if not any(found):
        return solution
    pairs = zip(found, posterior.components, strict=True)
    members = [old if new is None else new.posterior for new, old in pairs]
    target = next(state.target for state in found if state is not None)
    which = "some members" if None in found else "networks"
    message = (
        f"training ended with {which} that are worse than a constant, which is what "
        f"was kept; {solution.message or 'lower the learning_rate'}"
    )
    state = State(posterior.with_components(members), target)
    parts = problem.objective, problem.at(state), None, STEP_DRAWS
    values = torch.stack([estimate(*parts).detach() for _ in range(N_STEPS)])
    value, error = mean_and_error(values)
    return replace(
        solution,
        state=state,
        value=value,
        value_se=error,
        ending=Ending.UNFINISHED,
        message=message,
    )


def _constants(
    problem: Problem, end: State, constant: "_Constant"
) -> list[State | None]:
    """A constant for every component that is worse than one; None for the others."""
    ends = [State(component, end.target) for component in end.posterior.components]
    starts = problem.posterior.components
    pairs = zip(ends, starts, strict=True)
    return [constant.instead_of(problem, *pair) for pair in pairs]


@dataclass(frozen=True, eq=False)
class _Constant:
    """Outputs that suit all rows best, (K,), and the target with the noise around them.

    `loss` is that of some rows, of total `weight`, which states are compared on.
    Hyperparameters that are not free are those of other members, too.
    """

    f: torch.Tensor
    target: Any
    rows: torch.Tensor
    loss: float
    weight: float
    is_free: bool

    @classmethod
    def fit(cls, target: Any, hyper: torch.Tensor | None = None) -> "_Constant":
        """Minimize the loss in outputs, and in the noise unless `hyper` is given."""
        spec, start = target.likelihood_spec, target.initial_hyper()
        start = start if hyper is None else hyper.detach().double()
        index = torch.from_numpy(spaced_rows(target.n_rows)).to(start.device)
        rows, n_outputs = target.rows.take(index), spec.n_outputs
        n_own = len(spec.learned)
        low, high = (x[:n_own].to(start) for x in target.point_layout.limits())

        def noise(z: torch.Tensor) -> torch.Tensor:
            return (
                start[:n_own] if hyper is not None else z[n_outputs:].clamp(low, high)
            )

        def evaluate(z: torch.Tensor) -> tuple[float, torch.Tensor]:
            with torch.enable_grad():
                z = z.detach().requires_grad_()
                f = shift(z[:n_outputs].expand(1, len(rows), -1), rows)
                likelihood = spec.bind(noise(z)) if n_own else spec
                loss = target.loss.total(likelihood, f, rows.y, rows.weight)
                loss = loss.sum() / rows.total_weight
                (slope,) = torch.autograd.grad(loss, z)
            value = float(loss.detach())
            return (math.inf if math.isnan(value) else value), slope

        zeros = start.new_zeros(n_outputs)
        search = LBFGS(evaluate, torch.cat([zeros, start[:n_own]]))
        for _ in range(MAX_STEPS):
            if not search.decrement > EXACT or not search.step():
                break
        found = torch.cat([noise(search.x), start[n_own:]])
        total = rows.total_weight
        parts = target.at(found), index, search.value * total, total, hyper is None
        return cls(search.x[:n_outputs], *parts)

    def instead_of(
        self, problem: Problem, end: State, start: Posterior
    ) -> State | None:
        """A state that is better than the end, near the family's start; or None."""
        allowed = self.loss + SMALL_LOSS * self.weight
        # The mean of the losses is at least that of the mean of the densities.
        if self._loss(end, FEW_DRAWS) <= allowed:
            return None
        state = self.state(start)
        if state is None:
            return None
        losses = [self._loss(s, MANY_DRAWS) for s in (state, end)]
        if not losses[0] < losses[1]:
            return None
        posterior = state.posterior
        posterior = posterior.at(posterior.params.to(end.posterior.params))
        state = State(posterior, state.target)
        return state if _value(problem, state) < _value(problem, end) else None

    @torch.no_grad()
    def _loss(self, state: State, n_draws: int) -> float:
        """Loss of some rows: minus the log of their mean density, or the mean loss."""
        source = make_generator(0, self.rows.device)
        theta = state.posterior.draw(n_draws, source).theta
        losses = state.target.pointwise(theta, self.rows).double()
        if state.target.loss.is_log_loss:
            losses = math.log(n_draws) - torch.logsumexp(-losses, 0, keepdim=True)
        weight = self.target.rows.take(self.rows).weight
        return float(weighted_sum(losses, weight).mean())

    def state(self, start: Posterior) -> State | None:
        """Constant networks of a family; None if no layer of the network makes it."""
        normal = self.target.reference.matching_normal()
        layer = None if normal is None else self._last_layer(normal)
        if layer is None:
            return None
        ratio = self._ratio(normal, layer)
        scale = normal.scale.clone()
        scale[layer] *= ratio
        mean = SMALL_MEAN * scale
        for k, slope in enumerate(self._slopes(mean, layer)):
            at = slope != 0
            mean[at] = (self.f[k] * slope / slope.square().sum())[at]
            scale[at] = scale[at].clamp(max=self._units[k] / self.target.n_rows**0.5)
        posterior = start.near(NormalForm(mean, scale))
        return State(posterior, self._at_scales(layer, ratio))

    @property
    def _units(self) -> list[float]:
        """Length scales of the outputs; logs of scales have no unit."""
        likelihood = self.target.likelihood
        units = [float(likelihood.length_scale)] * likelihood.n_outputs
        for k in likelihood.scale_outputs:
            units[k] = 1.0
        return units

    @torch.no_grad()
    def _outputs(self, theta: torch.Tensor) -> torch.Tensor:
        """Outputs of a few rows, (S, n, K)."""
        X = self.target.rows.take(self.rows[:N_PROBED]).X
        return self.target.predictor.forward(theta, X)

    def _draws(self, normal: NormalForm) -> torch.Tensor:
        source = make_generator(0, normal.mean.device)
        return normal.transform(randn(source, MANY_DRAWS, normal.n_noise))

    def _last_layer(self, normal: NormalForm) -> slice | None:
        """Weights without which outputs are those of no features: the last such."""
        theta = self._draws(normal)
        for block in reversed([*self.target.layout.values()]):
            f = self._outputs(_without(theta, block.slice))
            if block.role == "weight" and bool((f == f[:, :1]).all()):
                return block.slice
        return None

    def _ratio(self, normal: NormalForm, layer: slice) -> float:
        """Size of the layer's weights, in those of the prior, that suits the noise.

        Each weight of a linear model costs least where the variances of all of its
        outputs sum to the noise variance.
        """
        theta = self._draws(normal)
        change = self._outputs(theta) - self._outputs(_without(theta, layer))
        size = change.square().mean((0, 1)).sqrt() / change.new_tensor(self._units)
        n_weights = layer.stop - layer.start
        wanted = min(n_weights / self.target.n_rows, WIDEST) ** 0.5
        return min(wanted / float(size.max().clamp(min=1e-300)), 1.0)

    def _slopes(self, mean: torch.Tensor, layer: slice) -> list[torch.Tensor]:
        """Slopes of the outputs in their intercepts, (P,) each."""
        with torch.enable_grad():
            theta = _without(mean[None], layer).requires_grad_()
            X = self.target.rows.take(self.rows[:1]).X
            outputs = self.target.predictor.forward(theta, X)[0, 0].unbind()
            slopes = [
                torch.autograd.grad(f, theta, retain_graph=True)[0][0] for f in outputs
            ]
        for slope in slopes:
            slope[layer] = 0
        return slopes

    def _at_scales(self, layer: slice, ratio: float) -> Any:
        """The target, with learned scales that only the layer has in units of it."""
        target = self.target
        index = target.prior_spec.learned_scales()
        if index is None or not self.is_free:
            return target
        is_other = torch.ones(len(index), dtype=torch.bool, device=index.device)
        is_other[layer] = False
        own = set(index[layer].tolist()) - set(index[is_other].tolist()) - {-1}
        hyper, start = target.hyper.clone(), len(target.likelihood_spec.learned)
        for k in own:
            hyper[start + k] += math.log(ratio)
        return target.at(hyper)


def _without(theta: torch.Tensor, layer: slice) -> torch.Tensor:
    """Parameters, (S, P), with 0 in place of some."""
    theta = theta.clone()
    theta[:, layer] = 0
    return theta


def _value(problem: Problem, state: State) -> float:
    """What is minimized, in steps that are the same for every state."""
    n_batches = max(problem.target.n_rows // STEP_ROWS, 1)
    parts = replace(problem.at(state), generator=None), n_batches, N_STEPS, STEP_DRAWS
    return fresh_value(*parts)
