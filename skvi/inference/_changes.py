"""What importance weights and other starts say about a posterior."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from skvi._sampling._importance import StudentT, WeightedDraws
from skvi.base import NormalForm
from skvi.inference._density import DensityTarget
from skvi.inference._start import Start
from skvi.solvers._fixed_draws import balanced_noise

__all__ = ["Changes", "other_modes"]

# Changes above which a posterior is not called close: of a mean in deviations, and of
# the log of a deviation.
LARGE_MEAN, LARGE_STD = 0.15, math.log(1.15)
# Draws, at least, and degrees of freedom of those that see tails.
N_DRAWS, TAIL_DF = 4000, 4
# Nats below the best ELBO, and deviations between centers, of modes that count.
LOW, FAR = 5.0, 4.0


@dataclass(frozen=True)
class Changes:
    """Largest change of moments by importance weights, and where it is.

    Half of the draws are the posterior's, half of a Student-t distribution around it,
    and weights are relative to both: they see tails, and are at most twice those of
    the posterior's draws.
    """

    mean: float = 0.0
    std: float = 0.0
    where: str = ""
    khat: float = math.inf  # of the posterior's own draws
    efficiency: float = 0.0

    @staticmethod
    def of(
        target: DensityTarget, normal: NormalForm, generator: torch.Generator
    ) -> "Changes":
        """Of the parameters of a density, towards it from a normal."""
        n_draws = max(N_DRAWS, 4 * normal.size)
        wide = StudentT(normal, TAIL_DF)
        eps = balanced_noise(generator, n_draws, normal.size, normal.is_diagonal)
        theta = torch.cat([normal.transform(eps), wide.sample(n_draws, generator)])
        log_p, log_q = target.log_joint_batched(theta), normal.log_prob(theta)
        own = WeightedDraws(theta[:n_draws], (log_p - log_q)[:n_draws])
        both = torch.logaddexp(log_q, wide.log_prob(theta))
        w = torch.softmax(log_p - both, 0)
        worst = Changes(khat=own.khat, efficiency=own.ess / n_draws)
        for name, value in target.constrain(theta)[0].items():
            x = value.reshape(len(w), -1)
            kept = w > 0  # far draws may overflow
            center = w[kept] @ x[kept]
            spread = (w[kept] @ (x[kept] - center).square()).sqrt().clamp(min=1e-300)
            mean, std = x[:n_draws].mean(0), x[:n_draws].std(0).clamp(min=1e-300)
            by_mean = float(((center - mean).abs() / std).max())
            by_std = float((spread / std).log().abs().max())
            if max(by_mean, by_std) > max(worst.mean, worst.std):
                worst = replace(worst, mean=by_mean, std=by_std, where=name)
        return worst

    def message(self, family: str) -> str:
        """Say what is wrong, and a remedy; empty if nothing is."""
        if self.mean < LARGE_MEAN and self.std < LARGE_STD:
            return ""
        remedy = (
            "write the model so that parameters are nearer to normal and to "
            "independent, such as standardized effects in hierarchical models"
        )
        if family == "mean_field":
            remedy = f"use posterior='full_rank', which has correlations, or {remedy}"
        return (
            "the posterior is not close to the density: importance weights change the "
            f"mean of {self.where!r} by {self.mean:.2g} standard deviations and its "
            f"standard deviation by {math.expm1(self.std):.0%} (Pareto k "
            f"{self.khat:.2g}). To mend it, {remedy}"
        )


def other_modes(starts: Sequence[Start], best: NormalForm, value: float) -> str:
    """Say that other starts ended at other modes of nearly as much mass, if so.

    `value` is minus the ELBO of the best normal.
    """
    found = [
        start
        for start in starts
        if start.value < value + LOW
        and _distance(best, start.normal) > FAR
        and _distance(start.normal, best) > FAR
    ]
    if not found:
        return ""
    return (
        f"{len(found)} of {len(starts)} starts ended at other modes, with an ELBO of "
        f"{-min(start.value for start in found):.4g}: the posterior has several, and "
        "this is one of them. Break the symmetry (support 'ordered', for "
        "example), or give a prior that tells them apart"
    )


def _distance(of: NormalForm, to: NormalForm) -> float:
    """Distance to a center, in deviations of a normal."""
    return float(of.squared_distance((to.mean - of.mean)[None]).sqrt())
