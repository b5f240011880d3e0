"""Coordinate ascent for linear regression with conjugate priors."""

import math
from typing import Any

import numpy as np
import torch

from skvi.solvers._conjugate import Conjugate, State
from skvi.solvers._verdict import unfinished
from skvi.solvers.base import (
    FLOOR_MESSAGE,
    INTERRUPTED,
    Ending,
    Problem,
    Solution,
    SolverOptions,
    ending_of,
    remaining_gain,
)

__all__ = ["CoordinateAscent"]


class CoordinateAscent:
    """Closed-form updates of q(coef) q(noise precision) q(coef precisions).

    Given the mean precisions, the normal q(coef) is known, full-rank or factorised;
    given its moments, the Gamma distributions of the precisions are; learnt ones
    move to the value of largest ELBO. No update lowers the ELBO, up to rounding. One
    decomposition of the features makes an update cost O(d) where all coefficients
    share a precision, and a Cholesky factorisation otherwise. Extrapolations
    of the precisions speed it up, and are undone where the ELBO would fall.

    Where nothing but the coefficients is unknown, one update is the exact posterior,
    and the value the exact log evidence (for a full-rank q).

    References
    ----------
    *Variational inference*, lecture notes, section 10.3, extended to unknown noise and
    to one precision for each coefficient; the printed ``E[w' w]`` lacks a trace.
    Extrapolation: Varadhan and Roland (2008), *SQUAREM*.

    Examples
    --------
    >>> from skvi.solvers import CoordinateAscent
    >>> CoordinateAscent.name
    'coordinate_ascent'
    """

    name = "coordinate_ascent"

    @staticmethod
    def missing(problem: Problem) -> str:
        """Say what the problem lacks for this solver.

        Parameters
        ----------
        problem : Problem

        Returns
        -------
        str
            Empty where the solver can be used.
        """
        objective, divergence = problem.objective, problem.divergence
        if objective.kind != "expectation" or objective.gradient != "auto":
            return f"it maximises the ELBO without draws, not {objective!r}"
        if not divergence.is_standard:
            return f"the model is conjugate under KL(), not under {divergence!r}"
        if not _is_conjugate(problem.posterior):
            return "it needs a factorised or full-rank normal posterior"
        if problem.target.conjugate_form() is None:
            return (
                "the model is not a linear regression with conjugate priors (and at "
                "most 3000 columns or rows)"
            )
        return ""

    @torch.no_grad()
    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit ``problem.posterior`` in place.

        Parameters
        ----------
        problem : Problem
        options : SolverOptions

        Returns
        -------
        Solution
            `value` is minus the ELBO, in nats, exact, with all constants.
        """
        return _Ascent(problem, options).run()


class _Ascent:
    def __init__(self, problem: Problem, options: SolverOptions) -> None:
        self.problem, self.options = problem, options
        self.form = problem.target.conjugate_form()
        posterior = problem.posterior
        part = posterior.part("coef") if hasattr(posterior, "part") else posterior
        is_diagonal = part.is_diagonal
        self.model = Conjugate(self.form, is_diagonal)
        self.history: list[float] = []
        self.stopped = False
        self.state = self._start()

    def run(self) -> Solution:
        try:
            gap = self._iterate()
            self._keep()
        except KeyboardInterrupt:
            self._keep()
            return self._solution(Ending.INTERRUPTED, INTERRUPTED, math.inf)
        converged, message = gap < self.options.tol, ""
        if not (converged or self.stopped):
            message = unfinished(len(self.history), gap)
        if not message and self.model.is_at_limit(self.state):
            message, converged = FLOOR_MESSAGE, False
        return self._solution(ending_of(converged, self.stopped), message, gap)

    def _solution(self, ending: Ending, message: str, gap: float) -> Solution:
        return Solution(
            solver=CoordinateAscent.name,
            value=-self.state.elbo,
            history=self.history,
            n_iter=len(self.history),
            ending=ending,
            message=message,
            diagnostics={"gap": gap},
            is_exact=True,
        )

    def _start(self) -> State:
        """State of the last fit, or the best of first ones and their first steps."""
        if self.options.warm_start:
            return self.model.evaluate(self._last())
        states = [self.model.evaluate(x) for x in self.model.starts()]
        if len(states) > 1:
            states += [self.model.evaluate(state.next) for state in states]
        return max(states, key=lambda state: state.elbo)

    def _last(self) -> np.ndarray:
        """Precisions of the last fit."""
        problem, parts = self.problem, []
        if self.form.noise.is_learnt:
            parts.append(-2 * problem.target.hyper.numpy())
        for name in problem.target.layout:
            if name.endswith("_precision"):
                shape, rate = problem.posterior.part(name).moments()
                parts.append((shape / rate).log().numpy())
        return np.concatenate(parts) if parts else np.zeros(0)

    def _iterate(self) -> float:
        """Improve the state until nothing is left; return what may be, in nats."""
        if not self.model.n_free:
            self._report()
            return 0.0
        gains: list[float] = []
        while len(self.history) < self.options.max_iter:
            before = self.state
            self.state = self.model.evaluate(before.next)
            if len(self.history) % 2:
                self._extrapolate(before)
            gains.append(max(self.state.elbo - before.elbo, 0.0))
            if self._report():
                break
            if remaining_gain(gains) < self.options.tol:
                break
        return remaining_gain(gains)

    def _extrapolate(self, before: State) -> None:
        """Follow the last two steps to where they lead, unless the ELBO falls."""
        first, second = self.state.x - before.x, self.state.next - self.state.x
        bend = second - first
        if not bend.any():
            return
        length = max(math.sqrt(first @ first / (bend @ bend)), 1.0)
        x = self.model.inside(before.x + 2 * length * first + length**2 * bend)
        trial = self.model.evaluate(x)
        if trial.elbo >= self.state.elbo:
            self.state = trial

    def _report(self) -> bool:
        self.history.append(-self.state.elbo)
        self.stopped = self.options.progress(-self.state.elbo, self._keep)
        return self.stopped

    def _keep(self) -> None:
        """Put the state into the posterior and the learnt hyperparameters."""
        problem, state = self.problem, self.state
        gammas = self.model.gammas(state)
        if hasattr(problem.posterior, "set_part"):
            for names in problem.posterior.names:
                part = problem.posterior.part(names[0])
                if names[0] in gammas:
                    part.set_gamma(*gammas[names[0]])
                else:
                    part.set_normal(self.model.normal(state, list(names)))
                problem.posterior.set_part(names[0], part)
        else:
            names = list(problem.target.layout)
            problem.posterior.set_normal(self.model.normal(state, names))
        if self.form.noise.is_learnt:
            problem.target.hyper = self.model.learnt_noise(state)


def _is_conjugate(posterior: Any) -> bool:
    """Whether every part has closed-form updates."""
    if not hasattr(posterior, "part"):
        return _is_simple_normal(posterior)
    pairs = [(names, posterior.part(names[0])) for names in posterior.names]
    return all(
        len(names) == 1 if hasattr(part, "set_gamma") else _is_simple_normal(part)
        for names, part in pairs
    )


def _is_simple_normal(posterior: Any) -> bool:
    """Whether it is factorised or full-rank."""
    normal = posterior.as_normal()
    return normal is not None and normal.factor is None
