"""Evidence where a prior has one unknown scale, by chains that move it as well.

A mixture of normals at known scales serves where the posterior at each of them is
nearly normal. Where it is not, as with classes that few coefficients separate, chains
run in the parameters and the scale, in coordinates in which they are nearly
independent, from a normal that is wider.
"""

from dataclasses import replace

import torch

from skvi.base import NormalForm
from skvi.evidence._clock import Clock
from skvi.evidence._mixture_path import in_parameters
from skvi.evidence._scale_modes import ScaleFits
from skvi.evidence._tempered import TemperedSides, tempered_sides
from skvi.priors._half_cauchy import score_of_scale
from skvi.sampling._state import Report
from skvi.targets import SupervisedTarget
from skvi.targets._unknown_scale import UnknownScaleTarget

__all__ = ["is_affordable", "scale_sides"]

# Scales at which normals are kept, and how much wider the start of the path is than the
# normal that matches them: too narrow costs R-hat, too wide rungs.
N_NODES, WIDER = 9, 1.3
N_SYSTEMS, MIN_SWEEPS, N_STARTS = 8, 400, 2
# Nats that the mass at scales beyond the fitted ones is worth at most: a density that
# has fallen by five nats, and falls on at least like that of a Cauchy.
REST = 0.01
# Multiply-adds that a run may take, about a minute, and moves of a typical ladder.
MAX_WORK, MOVES = 6e10, 15 * 7 * N_SYSTEMS * 800


def is_affordable(target: SupervisedTarget) -> bool:
    """Whether such a run takes about a minute at most.

    Parameters
    ----------
    target : SupervisedTarget
    """
    size = target.layout.size
    return MOVES * size * (target.cost_per_draw + N_NODES * size) <= MAX_WORK


@torch.no_grad()
def scale_sides(
    target: SupervisedTarget,
    fits: ScaleFits,
    generator: torch.Generator,
    n_draws: int | None,
    precision: float | None,
    report: Report,
    clock: Clock,
) -> TemperedSides:
    """Bound log Z by chains of parameters and the scale.

    Parameters
    ----------
    target : SupervisedTarget
        With one unknown scale.
    fits : ScaleFits
        At two scales at least.
    generator : torch.Generator
    n_draws, precision, report
        As of `tempered_sides`.
    clock : Clock

    Returns
    -------
    TemperedSides
        Its chains are those of the target's own parameters.
    """
    lifted = _lift(target, fits)
    normal = _start(lifted, fits)
    sides = tempered_sides(
        lifted,
        normal.sample(N_STARTS, generator),
        generator,
        n_draws,
        precision,
        clock.left(),
        report,
        normal,
        MIN_SWEEPS,
        N_SYSTEMS,
    )
    sides = in_parameters(target, lifted, sides)
    return replace(sides, below=sides.below - REST, above=sides.above + REST)


def _lift(target: SupervisedTarget, fits: ScaleFits) -> UnknownScaleTarget:
    last = len(fits.normals) - 1
    chosen = sorted({round(last * i / (N_NODES - 1)) for i in range(N_NODES)})
    log_scales = [fits.log_scales[i] for i in chosen]
    return UnknownScaleTarget(target, log_scales, [fits.normals[i] for i in chosen])


def _start(lifted: UnknownScaleTarget, fits: ScaleFits) -> NormalForm:
    """Independent normals, that of the score with the moments of its mass."""
    log_scales = lifted.unit.new_tensor(fits.log_scales)
    scores = score_of_scale(log_scales)
    # Masses are those of the log scale.
    mass = torch.softmax(log_scales.new_tensor(fits.values), 0)
    mass = mass * torch.gradient(log_scales)[0]
    mass = mass / mass.sum()
    mean, scale = mass.new_zeros(lifted.layout.size), mass.new_ones(lifted.layout.size)
    mean[-1] = mass @ scores
    scale[-1] = (mass @ (scores - mean[-1]).square()).sqrt()
    return NormalForm(mean, WIDER * scale)
