"""Starts of further fits: the end of the last one."""

from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from skvi.posteriors import MixtureOverScales, Posterior
from skvi.solvers import Problem, Solver
from skvi.solvers._scale_nodes import OverScales
from skvi.solvers._solution import State
from skvi.targets import Target

__all__ = ["at_last_scales", "continued_state"]


def continued_state(
    problem: Problem, before: dict[str, Any], classes: ArrayLike, solver: Solver
) -> State:
    """State in which the last fit ended, as far as the next family can represent it.

    `before` holds "posterior_", "_hyper" and for classifiers "classes_" of the last
    fit. ValueError if its parameters or classes are not those of the next.
    """
    target, posterior = problem.target, problem.posterior
    last = before["posterior_"].layout
    same_classes = np.array_equal(before.get("classes_", ()), classes)
    if dict(last) != dict(target.layout) or not same_classes:
        raise ValueError(
            f"warm_start=True continues from a fit with {last}; these data and "
            f"parameters need {target.layout}, or have other classes. Use the "
            "same features, classes and sizes, or warm_start=False."
        )
    if isinstance(solver, OverScales):
        mixture = before["posterior_"]
        if isinstance(mixture, MixtureOverScales):
            posterior = mixture.in_family(posterior)
            return State(posterior, at_last_scales(target, before))
    # Components of a mixture continue those of the last fit, in turn.
    ends = [_single(end) for end in before["posterior_"].components]
    pairs = zip(posterior.components, cycle(ends))
    posterior = posterior.with_components([_continued(*pair) for pair in pairs])
    return State(posterior, at_last_scales(target, before))


def _continued(posterior: Posterior, last: Posterior) -> Posterior:
    """Posterior at the end of the last one, as far as its family can represent it."""
    normal = last.as_normal()
    if normal is not None:
        return posterior.near(normal)
    if len(last.params) != len(posterior.params):
        return posterior
    return posterior.at(last.params.clone().to(posterior.params.device))


def _single(posterior: Posterior) -> Posterior:
    """The likeliest part of a mixture over scales, near which a fit ends."""
    return getattr(posterior, "likeliest", posterior)


def at_last_scales(target: Target, before: dict[str, Any]) -> Target:
    """Target at the scales of the last fit's "_hyper", if it learns as many."""
    hyper = torch.from_numpy(before["_hyper"].copy()).to(target.hyper.device)
    return target.at(hyper) if len(hyper) == len(target.hyper) else target
