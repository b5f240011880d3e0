"""Importance-weighted objectives: check, draws, gradient rules, rows of a step."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from skvi.objectives._steps import MAX_ELEMENTS, MAX_STEPS, Rows
from skvi.objectives.base import Objective
from skvi.utils._processes import share_of_rows

# Below this range of the scaled log weights their power mean is computed by a series.
SMALL_RANGE = 1.0


class WeightsObjective(Objective):
    """Base class of importance-weighted objectives, functions of the log weights.

    The log weights are ``lw = log p(D, theta) - log q(theta)``. A subclass must
    implement `bound`, `training_weights`, and the factors of its gradient rules:
    `path_weights` and `score_factor`.

    Notes
    -----
    The hyperparameters of a target (learned noise) follow the exact gradient of a
    maximized bound. Under a minimized one they ascend ``sum(softmax(lw) *
    log_joint)`` with the weights and theta held fixed (Fisher's identity): minimizing
    the bound in them would lower the evidence without limit.

    Examples
    --------
    >>> from skvi.objectives import EUBO, IWELBO
    >>> EUBO().kind, IWELBO().kind
    ('weights', 'weights')
    """

    kind = "weights"
    min_draws = 2
    #: Fits start at the ELBO's solution; steps of the usual size would lead away from
    #: it, to where draws can hardly distinguish a wide q from a good one.
    rate_share = 0.2
    #: Factor of ``sum(weights * d log q / d lambda)`` in the gradient of the loss.
    score_factor = -1.0

    def bound(self, log_weights: torch.Tensor) -> torch.Tensor:
        """Estimate the bound.

        Parameters
        ----------
        log_weights : Tensor of shape (..., S)
            ``log p(D, theta) - log q(theta)`` at draws of q, in nats.

        Returns
        -------
        Tensor
            A scalar in nats: reduced over the last axis, averaged over the others.
        """
        raise NotImplementedError

    def training_weights(self, log_weights: torch.Tensor) -> torch.Tensor:
        """Self-normalized weights of the draws in the gradient.

        Parameters
        ----------
        log_weights : Tensor of shape (..., S)

        Returns
        -------
        Tensor of shape (..., S)
            Detached; their sum over the last axis is 1.
        """
        raise NotImplementedError

    def path_weights(self, weights: torch.Tensor) -> torch.Tensor:
        """Factors of ``d lw / d theta`` along the path of the draws, in the loss.

        Parameters
        ----------
        weights : Tensor of shape (..., S)
            The `training_weights`.

        Returns
        -------
        Tensor of shape (..., S)
        """
        raise NotImplementedError

    def group_shape(self, n_draws: int) -> tuple[int, int]:
        """Groups of draws, and draws in each of them.

        Parameters
        ----------
        n_draws : int
            Requested total number of draws.

        Returns
        -------
        n_groups, n_per_group : int
        """
        return 1, n_draws

    def surrogate(
        self,
        target: Any,
        posterior: Any,
        divergence: Any,
        rows: torch.Tensor | None,
        n_draws: int,
        generator: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Minus a lower bound, or an upper one; see `Objective.surrogate`."""
        rule = "doubly_reparam" if self.gradient == "auto" else self.gradient
        shape = self.group_shape(n_draws)
        draw = posterior.draw(math.prod(shape), generator)
        theta, log_q = draw.theta, draw.log_q
        if rule == "score":
            draw = draw.detach()
            theta, log_q = draw.theta, posterior.log_q(draw)
        elif rule == "doubly_reparam":
            log_q = posterior.path_log_q(draw)
        for_theta, for_hyper = target.log_joint_split(theta, rows)
        log_weights = (for_theta - log_q).reshape(shape)
        fixed = log_weights.detach()
        weights = self.training_weights(fixed)
        if rule == "score":
            factors = self.score_factor * weights
            surrogate = weighted_sum(factors, log_q.reshape(shape))
        elif rule == "reparam":
            surrogate = weighted_sum(-weights, log_weights)
        else:
            surrogate = weighted_sum(self.path_weights(weights), log_weights)
        if for_hyper is not None:
            if self.direction == "upper":
                weights = normalize(fixed)
            surrogate = surrogate - weighted_sum(weights, for_hyper.reshape(shape))
        value = self.bound(fixed)
        return surrogate.mean(), value if self.direction == "upper" else -value


def normalize(log_weights: torch.Tensor, power: float = 1.0) -> torch.Tensor:
    """Detached ``softmax(power * log_weights)``; 0 where all of them are -inf."""
    return torch.softmax(power * log_weights.detach(), -1).nan_to_num(nan=0.0)


def weighted_sum(factors: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Sum over the last axis, in which 0 times an infinite value is 0."""
    return torch.where(factors == 0, 0.0, factors * values).sum(-1)


def log_power_mean(log_weights: torch.Tensor, power: float) -> torch.Tensor:
    """``log(mean(w^power)) / power`` over the last axis; the mean of log w at 0.

    In log space, and accurate to rounding for every power, however small: if ``power *
    lw`` hardly varies, it is expanded around the mean of lw.
    """
    mean = log_weights.mean(-1, keepdim=True)
    if power == 0:
        return mean[..., 0]
    count = log_weights.shape[-1]
    direct = (torch.logsumexp(power * log_weights, -1) - math.log(count)) / power
    low, high = log_weights.amin(-1, True), log_weights.amax(-1, True)
    is_small = abs(power) * (high - low) <= SMALL_RANGE  # False if it is NaN
    centered = torch.where(is_small, log_weights - mean, 0.0)
    series = torch.log1p(torch.expm1(power * centered).mean(-1)) / power
    return torch.where(is_small[..., 0], mean[..., 0] + series, direct)


class Batch(NamedTuple):
    """Rows of one step of M members; short batches are padded with weight 0.

    X is (M, n, d + 1) and ends in ones; weights, (M, 1, n), scale a minibatch up to all
    rows, and average over draws: `total`, (M,), is their sum over both.
    """

    X: torch.Tensor
    y: torch.Tensor
    weight: torch.Tensor
    total: torch.Tensor
    offset: torch.Tensor | None


class MemberBatches:
    """Buffers with the rows of some steps: `steps` of `n_rows` rows each.

    Of several processes each has its share of a step, every `n_shares`-th row. Their
    weights make the mean over processes that of all rows.
    """

    def __init__(
        self,
        targets: Sequence[Any],
        batch_size: int | None,
        n_draws: int,
        like: torch.Tensor,
    ) -> None:
        self.targets, self.n_draws = targets, n_draws
        constants = [float(target.constant) for target in targets]
        self.constant = like.new_tensor(constants, dtype=torch.float64)
        largest = max(target.n_rows for target in targets)
        self._first, self.n_shares = share_of_rows()
        n_of_step = largest if batch_size is None else batch_size
        self.n_rows = -(-n_of_step // self.n_shares)
        first = targets[0]
        width = math.prod(first.X.shape[1:]) + 1
        self.max_steps, n_kept = MAX_STEPS, 1
        if batch_size is not None:
            n_kept = max(1, min(MAX_STEPS, MAX_ELEMENTS // (batch_size * width)))
            self.max_steps = n_kept
        shape = (n_kept, len(targets), self.n_rows)
        self._X = like.new_ones(*shape, width)
        self._y = like.new_zeros(*shape, *first.y.shape[1:])
        self._weight = like.new_zeros(shape)
        self._count = like.new_zeros(shape[:2])
        self._offset = None
        if first.rows.offset is not None:
            self._offset = like.new_zeros(shape)
        self._sizes: list[list[int]] = [[] for _ in targets]
        self.steps = [self._step(k) for k in range(n_kept)]
        if batch_size is None:
            for m in range(len(targets)):
                rows = torch.arange(targets[m].n_rows, device=like.device)
                self._fill(m, [rows])
            self.steps *= MAX_STEPS
        self._is_full = batch_size is None

    def own(self, rows: torch.Tensor) -> torch.Tensor:
        """The share of this process in what has the rows of a step as last axis."""
        return rows[..., self._first :: self.n_shares]

    def _step(self, k: int) -> Batch:
        offset = None if self._offset is None else self._offset[k][:, None, :, None]
        y, weight = self._y[k][:, None], self._weight[k][:, None]
        return Batch(self._X[k], y, weight, self._count[k], offset)

    def fill(self, rows: Sequence[Sequence[Rows]]) -> None:
        """Gather the rows of the next steps, of each member."""
        if self._is_full:
            return
        for m, of_member in enumerate(rows):
            self._fill(m, [part for part in of_member if part is not None])

    def _fill(self, m: int, rows: list[torch.Tensor]) -> None:
        target, totals = self.targets[m], [len(part) for part in rows]
        rows = [self.own(part) for part in rows]
        sizes = [len(part) for part in rows]
        index = _padded(rows, sizes, self.n_rows)
        flat, shape, steps = index.view(-1), index.shape, slice(len(rows))
        part = target.rows.take(flat)
        self._X[steps, m, :, :-1] = part.X.view(*shape, -1)
        self._y[steps, m] = part.y.view(*shape, *part.y.shape[1:])
        if self._offset is not None:
            self._offset[steps, m] = part.offset.view(shape)
        if target.rows.weight is None and self._sizes[m] == totals:
            return  # the weights are there
        self._sizes[m] = totals
        pair = torch.tensor([sizes, totals], dtype=torch.float64, device=index.device)
        counts, all_counts = pair[:, :, None]
        scale = self.n_shares * target.n_rows / (all_counts * self.n_draws)
        inside = torch.arange(self.n_rows, device=index.device) < counts
        weight = torch.where(inside, scale, 0.0)
        if target.rows.weight is not None:
            weight = weight * part.weight.view(shape)
        self._weight[steps, m] = weight
        self._count[steps, m] = self.n_draws * weight.sum(1)


def _padded(rows: list[torch.Tensor], sizes: list[int], length: int) -> torch.Tensor:
    """Positions of rows, (T, length); short parts are padded with the first row."""
    if min(sizes) == length:
        return torch.stack(rows)
    index = pad_sequence(rows, batch_first=True)
    return torch.nn.functional.pad(index, (0, length - index.shape[1]))
