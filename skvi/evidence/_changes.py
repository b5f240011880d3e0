"""What importance weights and other starts say about a posterior."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from skvi._sampling._importance import StudentT, WeightedDraws
from skvi.base import NormalForm
from skvi.base._component import Density, Proposal
from skvi.evidence._fitted import TAIL_DF, WideBeside
from skvi.posteriors import Posterior
from skvi.posteriors._mixture import Mixture
from skvi.solvers._fixed_draws import balanced_noise
from skvi.solvers._paths import LOW, Start
from skvi.targets._density import DensityTarget

# Changes above which a posterior is not called close: of a mean in deviations, and of
# the log of a deviation.
LARGE_MEAN, LARGE_STD = 0.15, math.log(1.15)
# Standard errors that a change must exceed, and spread of what is constant, relative to
# its mean. Share of a variance that one draw may have.
N_ERRORS, CONSTANT, SHARE = 3.0, 1e-12, 0.1
# Draws, at least; times as many in each further round, rounds, and elements in memory.
N_DRAWS, MORE, ROUNDS, ELEMENTS = 4000, 4, 2, 2**24
# Fewer draws where each takes many rows: these at draws, and draws at least.
ROWS, FEW_DRAWS = 2**25, 500
# Deviations between centers of modes that count.
FAR = 4.0


@dataclass(frozen=True, eq=False)
class Changes:
    """Largest change of moments by importance weights, and where it is.

    Half of the draws are the posterior's, or where its density is unknown those of the
    normal of its moments; half of a Student-t distribution around it. Weights are
    relative to both: they see tails, and are at most twice those of the first half.
    Where draws have an upper bound of their density, which is known nowhere else, they
    are all there is, with weights whose mean is the integral nevertheless. Changes of
    probabilities of discrete values are in halves.
    """

    theta: torch.Tensor  # draws of the posterior
    normal: NormalForm  # of its moments
    mean: float = 0.0
    std: float = 0.0
    where: str = ""
    khat: float = math.inf  # of the first half
    efficiency: float = 0.0

    @staticmethod
    def of(
        target: DensityTarget, given: Posterior, generator: torch.Generator
    ) -> "Changes":
        """Find the changes of parameters from a posterior to the density.

        From more draws, while errors are too large to tell. Stored samples are weighted
        by the posterior that they were made from.
        """
        posterior, n_draws = given.unrefined, draws_for(target)
        theta = balanced_draws(posterior, n_draws, generator)
        normal = posterior.as_normal()
        if normal is None or normal.factor is not None:
            equal = WeightedDraws(theta, theta.new_zeros(n_draws))
            normal = equal.moments() or NormalForm(theta.mean(0), theta.std(0))
        if given.n_stored:
            theta = given.draw(given.n_stored, generator).theta
        values, n_rounds = target.constrain(theta)[0], 0
        while True:
            weights, seen, w = _weighted(target, posterior, normal, n_draws, generator)
            found = Changes(theta, normal, khat=weights.khat)
            found = replace(found, efficiency=weights.ess / n_draws)
            reweighted, is_clear = target.constrain(seen)[0], True
            for name, value in values.items():
                where = target.layout[name].slice
                is_discrete = name in target.layout.discrete
                compare = _change_discrete if is_discrete else _change
                change = compare(value, reweighted[name], w)
                change = change or _change(theta[:, where], seen[:, where], w, 1.0)
                by_mean, by_std, is_sure = cast(tuple[float, float, bool], change)
                is_clear = is_clear and is_sure
                if max(by_mean, by_std) > max(found.mean, found.std):
                    found = replace(found, mean=by_mean, std=by_std, where=name)
            n_rounds, n_draws = n_rounds + 1, MORE * n_draws
            if is_clear or n_rounds > ROUNDS or theta.shape[1] * n_draws > ELEMENTS:
                break
        is_finite = target.layout.is_finite
        return replace(found, khat=-math.inf) if is_finite else found

    def message(self, posterior: Posterior) -> str:
        """Say what is wrong, and a remedy; empty if nothing is."""
        if self.mean < LARGE_MEAN and self.std < LARGE_STD:
            return ""
        remedy = (
            "write the model so that parameters are nearer to normal and to "
            "independent, such as standardized effects in hierarchical models"
        )
        if posterior.n_stored:
            remedy = f"store more than {posterior.n_stored} samples, or {remedy}"
        elif posterior.is_diagonal:
            remedy = f"use posterior='full_rank', which has correlations, or {remedy}"
        elif posterior.as_normal() is not None:
            remedy = f"use posterior='flow', which can bend, or {remedy}"
        elif isinstance(posterior, Mixture):
            remedy = f"increase n_components of the mixture, or {remedy}"
        elif posterior.layout.discrete:
            remedy = f"sum discrete parameters out of the log density, or {remedy}"
        elif len(posterior.parts) > 1:
            remedy = f"let a factor of Product have several names, or {remedy}"
        what = (
            f"the mean of {self.where!r} by {self.mean:.2g} standard deviations and "
            f"its standard deviation by a factor of {math.exp(min(self.std, 99)):.2g}"
        )
        if self.where in posterior.layout.discrete:
            what = f"a probability of {self.where!r} by {self.mean / 2:.2g}"
        return (
            "the posterior is not close to the density: importance weights change "
            f"{what} (Pareto k {self.khat:.2g}). To mend it, {remedy}"
        )


def balanced_draws(
    posterior: Posterior, n_draws: int, generator: torch.Generator
) -> torch.Tensor:
    """Draws, (S, P), with the exact mean and covariance if it is normal."""
    normal = posterior.as_normal()
    if normal is None:
        return posterior.draw(n_draws, generator).theta
    noise = normal.n_noise, normal.is_diagonal
    return normal.transform(balanced_noise(generator, n_draws, *noise))


def draws_for(target: DensityTarget) -> int:
    """Draws that judge a posterior, fewer where each takes many rows of data."""
    n_draws = N_DRAWS
    if target.n_rows:
        n_draws = max(FEW_DRAWS, min(N_DRAWS, ROWS // target.n_rows))
    return max(n_draws, 4 * target.layout.size)


def _weighted(
    target: DensityTarget,
    posterior: Posterior,
    normal: NormalForm,
    n_draws: int,
    generator: torch.Generator,
) -> tuple[WeightedDraws, torch.Tensor, torch.Tensor]:
    """Draws of the posterior with weights; all draws, and their normalized weights."""
    draw = None
    if posterior.side != "exact":
        draw = posterior.draw(n_draws, generator)
    if draw is not None and draw.side == "upper":
        logs = target.log_joint_batched(draw.theta) - draw.log_q
        return WeightedDraws(draw.theta, logs), draw.theta, torch.softmax(logs, 0)
    near: Density = normal
    if posterior.side == "exact":
        near, first = posterior, posterior.draw(n_draws, generator).theta
    else:
        first = normal.sample(n_draws, generator)
    wide: Proposal = StudentT(normal, TAIL_DF)
    if target.layout.discrete:
        wide = WideBeside(posterior, normal)
    seen = torch.cat([first, wide.sample(n_draws, generator)])
    log_p, log_q = target.log_joint_batched(seen), near.log_prob(seen)
    weights = WeightedDraws(first, (log_p - log_q)[:n_draws])
    logs = log_p - torch.logaddexp(log_q, wide.log_prob(seen))
    return weights, seen, torch.softmax(logs, 0)


def _change(
    values: torch.Tensor, seen: torch.Tensor, w: torch.Tensor, share: float = SHARE
) -> tuple[float, float, bool] | tuple[()]:
    """Largest change of a mean, in deviations, and of the log of a deviation.

    Beyond their errors, where these are small enough to tell; last, whether they are.
    Empty where one draw has more than a share of a variance, as in heavy tails, and the
    coordinates tell more.
    """
    draws, x = values.reshape(len(values), -1), seen.reshape(len(seen), -1)
    mean, std = draws.mean(0), draws.std(0)
    varies = ~(std <= CONSTANT * mean.abs())
    kept = w > 0  # far draws may overflow
    w, x, mean, std = w[kept], x[kept][:, varies], mean[varies], std[varies]
    if not len(std):
        return 0.0, 0.0, True
    center = w @ x
    square = (x - center).square()
    variance = w @ square
    is_even = (w[:, None] * square <= share * variance).all(0)
    if share < 1 and not bool((is_even & variance.isfinite() & std.isfinite()).all()):
        return ()
    shift = (center - mean).abs() / std
    spread = (0.5 * variance.log() - std.log()).abs()
    of_shift = (w.square() @ square).sqrt() / std
    of_spread = (w.square() @ (square - variance).square()).sqrt() / (2 * variance)
    found, is_sure = [], True
    for change, one_error, large in (
        (shift, of_shift, LARGE_MEAN),
        (spread, of_spread, LARGE_STD),
    ):
        error = N_ERRORS * one_error
        is_open = (change > large) & (change - error < large)
        is_sure = is_sure and not bool(is_open.any())
        certain = torch.where(error < large, (change - error).clamp(min=0), change)
        found.append(float(certain.nan_to_num(nan=math.inf).max()))
    return found[0], found[1], is_sure


def _change_discrete(
    values: torch.Tensor, seen: torch.Tensor, w: torch.Tensor
) -> tuple[float, float, bool]:
    """Largest change of the probability of a value, in halves, and 0."""
    draws, x = values.reshape(len(values), -1), seen.reshape(len(seen), -1)
    changes = [
        w @ (x == k).to(w) - (draws == k).double().mean(0) for k in draws.unique()
    ]
    return 2 * float(torch.stack(changes).abs().max()), 0.0, True


def modes_of(starts: Sequence[Start], best: NormalForm) -> list[NormalForm]:
    """The best normal, and others of nearly as much mass, far from one another."""
    modes = [best]
    for start in starts:
        is_near_best = start.value < starts[0].value + LOW
        if is_near_best and are_far(start.normal, modes):
            modes.append(start.normal)
    return modes


def other_modes(starts: Sequence[Start], best: NormalForm, value: float) -> str:
    """Say that other starts ended at other modes of nearly as much mass, if so.

    `value` is minus the ELBO of the posterior, `best` the normal of its moments. That
    of the best start is at the same mode if it is near: a factorized `best` may be too
    narrow to see that others are on the same ridge.
    """
    own = [best]
    own += [s.normal for s in starts[:1] if not are_far(s.normal, [best])]
    found = [
        start
        for start in starts
        if start.value < value + LOW and are_far(start.normal, own)
    ]
    if not found:
        return ""
    return (
        f"{len(found)} of {len(starts)} starts ended at other modes, with an ELBO of "
        f"{-min(start.value for start in found):.4g}: the posterior has several, and "
        "this is one of them. Use posterior='mixture', break the symmetry (support "
        "'ordered', for example), or give a prior that tells them apart"
    )


def are_far(normal: NormalForm, others: Sequence[NormalForm]) -> bool:
    """Whether its center is far from others', in deviations of both."""
    pairs = [pair for n in others for pair in ((normal, n), (n, normal))]
    return all(
        float(of.squared_distance((to.mean - of.mean)[None])) > FAR**2
        for of, to in pairs
    )
