"""Mixtures over the nodes of an earlier mixture, which is the prior."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from skvi.base import NormalForm
from skvi.divergences._linalg import precision_of
from skvi.solvers._node_fit import Fit
from skvi.solvers._node_run import FALL, MAX_NODES, NODE_TOL, NodeRun
from skvi.solvers._solution import Ending, Solution
from skvi.targets._numbers import CarriedScale

__all__ = ["CarriedNodes"]

# Nats below the likeliest scale at which a failed fit does not matter.
NEGLIGIBLE = 25.0


class CarriedNodes(NodeRun):
    """Nodes of an earlier mixture that is the prior, and beyond where that is likely.

    Their weights are those of the earlier posterior: they have no step.
    """

    n_least = 1

    def improve(self) -> Solution:
        number = cast(CarriedScale, self.numbers[0])
        every = self._from_prior(number, range(len(number.prior.log_scales)))
        for end in (0, -1) if number.prior.can_reach_further else ():
            while self._is_likely(every, end) and len(every) < MAX_NODES:
                number.prior = number.prior.with_one_beyond(end)
                beyond = self._from_prior(number, [end])
                every = beyond + every if end == 0 else every + beyond
        # Unlikely scales stay, since they can return where rows are forgotten; but not
        # those at which a fit failed.
        top = max(every, key=lambda fit: fit.value)
        tol = self._tolerance(NODE_TOL)
        nodes = [f for f in every if f.gap < tol or f.value > top.value - NEGLIGIBLE]
        self.lattice = {(i,): fit for i, fit in enumerate(nodes)}, [1.0]
        self.report()
        found = self._finish()
        largest = max(nodes, key=lambda fit: fit.z)
        if len(nodes) == 1 or largest is not top:
            return found
        message = (
            f"the scale of the prior is at {math.exp(largest.z[0]):.3g}, the largest "
            "that could be fitted: coefficients are shrunk too much. Fit recent rows "
            "anew, or use a known scale, as prior=Normal(1.0)"
        )
        return replace(found, message=message, ending=Ending.UNFINISHED)

    def _from_prior(self, number: CarriedScale, which: Iterable[int]) -> list[Fit]:
        """Fits at some of the scales, each from its own prior."""
        places = [(number.prior.log_scales[i],) for i in which]
        starts = []
        for place in places:
            prior = cast(NormalForm, self._at(place).prior.as_normal())
            starts.append((prior.mean, precision_of(prior)))
        return self._solved(places, starts)

    def _is_likely(self, every: list[Fit], end: int) -> bool:
        """Whether the scales beyond an end can have a share of the posterior."""
        highest, last = max(fit.value for fit in every), every[end]
        is_done = last.gap < self._tolerance(NODE_TOL)
        return is_done and last.value > highest - FALL
