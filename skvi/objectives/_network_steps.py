"""Base class of the gradients that use the passes of a network."""

from collections.abc import Sequence

import torch

from skvi.objectives._batches import MemberBatches
from skvi.objectives._steps import Member, Rows, Source, Steps
from skvi.utils._random import NoiseStream
from skvi.utils._row_pass import RowBuffers

__all__ = ["NetworkSteps", "can_train"]

# Multiply-adds of a step below which many are made before progress is reported.
QUICK_WORK = 2**26


def can_train(member: Member) -> bool:
    """Whether passes give the slopes, and the divergence has a closed form."""
    target = member.target
    if not target.has_row_slopes or target.prior is None:
        return False
    return bool(member.divergence.has_closed_form(target.prior))


class NetworkSteps(Steps):
    """Base class: rows, noise, and the slopes of the loss in draws of theta.

    Members must have equal predictors, losses and likelihoods. `noise` continues that
    of other steps.
    """

    weighs_divergence = True

    def __init__(
        self,
        members: Sequence[Member],
        params: torch.Tensor,
        n_draws: int,
        batch_size: int | None,
        n_noise: int,
        noise: NoiseStream | None = None,
    ) -> None:
        super().__init__(params)
        self.members, self.n_draws, self.batch_size = members, n_draws, batch_size
        targets = [member.target for member in members]
        if noise is None:
            generators = [member.generator for member in members]
            noise = NoiseStream(generators, n_draws, n_noise, params.dtype)
        self.noise = noise
        self.batches = MemberBatches(targets, batch_size, n_draws, like=params)
        first, shape = targets[0], (len(members), n_draws, self.batches.n_rows)
        self.passes = first.predictor.passes(*shape, like=params)
        self._columns = [batch.X.mT for batch in self.batches.steps]
        start = len(members[0].posterior.params)
        self._noise_scale = slice(len(first.likelihood_spec.learned))
        hyper = (x[:, start:][:, self._noise_scale] for x in (params, self.gradient))
        buffers = RowBuffers(self.passes.f, self.passes.slope, *hyper)
        self._row_pass = first.loss._row_pass(first.likelihood_spec, buffers)

    @property
    def sources(self) -> list[Source]:
        return [self.noise]

    @property
    def max_steps(self) -> int:
        return min(super().max_steps, self.batches.max_steps)

    @property
    def spans_epochs(self) -> bool:  # type: ignore[override]
        """Whether steps are so fast that progress need not be reported every epoch."""
        n_weights = len(self.members) * self.n_draws * self.noise.block.shape[-1]
        return n_weights * self.batches.n_rows < QUICK_WORK

    def prepare(self, rows: Sequence[Sequence[Rows]]) -> None:
        self.batches.fill(rows)

    def _pull_back(self, step: int) -> None:
        """Put the gradient of the mean loss in the drawn weights in `passes`."""
        batch = self.batches.steps[step]
        f = self.passes.forward(self._columns[step])
        if batch.offset is not None:
            f += batch.offset
        self._row_pass(batch.y, batch.weight, batch.total)
        self.passes.pull_back()

    def _losses(self, hyper: torch.Tensor) -> torch.Tensor:
        """Mean losses of the steps so far, (T, M), with hyperparameters (T, M, H)."""
        losses = self._row_pass.values(hyper[..., self._noise_scale])
        return losses.double() - self.batches.constant
