"""Parallel training of several members, in stacks of equal structure."""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch

from skvi.objectives._network_steps import make_steps
from skvi.solvers._stochastic._optimizers import LONGEST_STEP, AdamStack
from skvi.solvers._stochastic._training import Training
from skvi.utils._processes import average


def train(trainings: Sequence[Training]) -> None:
    """Train all members to their ends; those of equal structure form a stack.

    Each is trained as it would be alone, and leaves its stack when finished. After
    Ctrl-C all of them can be ended in their current state.
    """
    groups = defaultdict(list)
    for i, training in enumerate(trainings):
        structure = training.structure()
        groups[i if structure is None else structure].append(training)
    stacks = [_Stack(group) for group in groups.values()]
    while stacks:
        stacks = [stack for stack in stacks if stack.advance()]


class _Stack:
    """Members with the same structure: their parameters are the rows of a matrix."""

    def __init__(self, trainings: Sequence[Training]) -> None:
        self.trainings = [t for t in trainings if not _has_ended(t)]
        self._gather()
        if self.trainings:
            first = self.trainings[0]
            self.steps = make_steps(
                first.problem.objective,
                [t.problem for t in self.trainings],
                self.params,
                first.n_draws,
                _most_rows(self.trainings),
            )
            self._stack_optimizers()
            for training in self.trainings:
                training.go_on(self.steps)
            if self.steps.confines:  # a start, too, that is wide beside the prior
                self.steps.confine()

    def _stack_optimizers(self) -> None:
        optimizers = [training.optimizer for training in self.trainings]
        self.optimizer = AdamStack(optimizers, self.params, self.steps.gradient)

    def _gather(self) -> None:
        """Move the members' parameters into one matrix."""
        if not self.trainings:
            return
        self.params = torch.stack([t.params for t in self.trainings])
        for training, params in zip(self.trainings, self.params, strict=True):
            training.params = params
        self._trail: torch.Tensor | None = None
        self._shares = [1.0] * len(self.trainings)
        self._hyper = self.params[:, self.trainings[0].split :]
        self._floor = torch.stack([t.floor for t in self.trainings])
        self._ceiling = torch.stack([t.ceiling for t in self.trainings])

    def advance(self) -> bool:
        """Make some steps; return whether any members are left."""
        if not self.trainings:
            return False
        spans_epochs = self.steps.spans_epochs
        pending = min(t.pending(spans_epochs) for t in self.trainings)
        # Blocks of nearly equal length.
        count = math.ceil(pending / math.ceil(pending / self.steps.max_steps))
        values, trail = self._run(count)
        is_finite = bool(torch.isfinite(values).all() & torch.isfinite(trail[-1]).all())
        for m, training in enumerate(self.trainings):
            training.record(values[:, m], trail[:, m], is_finite)
            training.save(self.steps)
        self._drop()
        return bool(self.trainings)

    def _run(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Values of the next steps, (T, M), and all states, (T + 1, M, V)."""
        steps, params = self.steps, self.params
        if self._trail is None or len(self._trail) <= count:
            self._trail = params.new_empty(count + 1, *params.shape)
        trail = self._trail[: count + 1]
        with torch.inference_mode():
            steps.prepare([training.take(count) for training in self.trainings])
            updates, states = self.optimizer.updates(count), trail.unbind()
            states[0].copy_(params)
            self._weigh_divergence()
            is_near_end = self._may_reach_an_end(count)
            for k in range(count):
                steps.differentiate(k)
                if steps.shares_rows:
                    average(steps.gradient)
                for update in updates:
                    update()
                if is_near_end:
                    self._hyper.clamp_(self._floor, self._ceiling)
                if steps.confines:
                    steps.confine()
                states[k + 1].copy_(params)
            split = self.trainings[0].split
            values = steps.values(*trail[:-1].tensor_split([split], -1))
            if steps.shares_rows:
                average(values)
        return values.clone(), trail

    def _weigh_divergence(self) -> None:
        shares = [training.schedule.share for training in self.trainings]
        if self.steps.weighs_divergence and shares != self._shares:
            self.steps.weigh_divergence(shares)
            self._shares = shares

    def _may_reach_an_end(self, n_steps: int) -> bool:
        """Whether hyperparameters could reach a limit of their ranges."""
        if not self._hyper.shape[1]:
            return False
        longest = LONGEST_STEP * max(t.optimizer.rate for t in self.trainings)
        room = torch.minimum(self._hyper - self._floor, self._ceiling - self._hyper)
        return bool(room.min() <= n_steps * longest)

    def _drop(self) -> None:
        """Continue without the finished members."""
        left = [m for m, t in enumerate(self.trainings) if not _has_ended(t)]
        if len(left) == len(self.trainings):
            return
        for training in self.trainings:
            training.params = training.params.clone()
        self.trainings = [self.trainings[m] for m in left]
        self._gather()
        if left:
            self.steps = self.steps.keep(left, self.params)
            self._stack_optimizers()


def _most_rows(trainings: Sequence[Training]) -> int | None:
    """Rows of the largest minibatch of any member; None if all members use all rows."""
    sizes = [training.batch_size for training in trainings]
    return max((size for size in sizes if size is not None), default=None)


def _has_ended(training: Training) -> bool:
    """Whether a member is finished, which is then evaluated."""
    if training.is_done:
        training.finish()
    return training.is_done
