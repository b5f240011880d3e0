"""Adam: the state of one member, and of a stack of members."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

# Weights of the moments' last values, and the length of a gradient, in root mean
# squares of those before it, above which it is shortened.
BETA_1, BETA_2, LONGEST = 0.9, 0.999, 5.0
# Maximum step of a parameter, in step sizes: 0.1 / sqrt(0.001).
LONGEST_STEP = 3.2

#: The state of an optimizer: tensors and numbers by name.
Numbers = dict[str, torch.Tensor | float | int]


class Adam:
    """State of the algorithm of Kingma and Ba (2014) for one flat vector, (V,).

    `pace`, if given, multiplies the steps of each parameter.
    """

    def __init__(
        self, params: torch.Tensor, rate: float, pace: torch.Tensor | None = None
    ) -> None:
        self.rate, self.count = rate, 0
        self.first, self.second = params.new_zeros(2, *params.shape)
        self.pace = None if pace is None else pace.to(params)

    def state_dict(self) -> Numbers:
        """Everything that changes: a copy."""
        first, second = self.first.clone(), self.second.clone()
        return {
            "rate": self.rate,
            "count": self.count,
            "first": first,
            "second": second,
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor | float | int]) -> None:
        """Continue from a copy of the state of another one of the same length."""
        self.first.copy_(torch.as_tensor(state["first"]))
        self.second.copy_(torch.as_tensor(state["second"]))
        self.rate, self.count = float(state["rate"]), int(state["count"])


class AdamStack:
    """Steps of M vectors, (M, V), in place, in fused operations.

    Gradients longer than five root mean squares of those before them are shortened: a
    huge one would make the next thousand steps tiny.
    """

    def __init__(
        self, adams: Sequence[Adam], params: torch.Tensor, gradients: torch.Tensor
    ) -> None:
        self.adams = adams
        first = torch.stack([adam.first for adam in adams])
        second = torch.stack([adam.second for adam in adams])
        for adam, *moments in zip(adams, first, second, strict=True):
            adam.first, adam.second = moments
        paces = [
            torch.ones_like(adam.first) if adam.pace is None else adam.pace
            for adam in adams
        ]
        has_paces = any(adam.pace is not None for adam in adams)
        self.pace = torch.stack(paces) if has_paces else None
        # Fused operations know one step size: with paces they move a step from 0.
        self.params, moved = params, torch.zeros_like(first) if has_paces else params
        self.matrices = moved, gradients, first, second

    def updates(self, n_steps: int) -> list[Callable[[], None]]:
        """Prepare steps, which the members count as done; each call performs one."""
        groups = defaultdict(list)
        for m, adam in enumerate(self.adams):
            groups[adam.rate, adam.count].append(m)
        shorten = self._shortening(n_steps)
        for adam in self.adams:
            adam.count += n_steps
        # Slices of longer rows are not contiguous for a fused operation.
        if len(groups) == 1 and self.matrices[0].is_contiguous():
            key = next(iter(groups))
            updates = [_update([[matrix] for matrix in self.matrices], *key)]
        else:
            rows = [matrix.unbind() for matrix in self.matrices]
            updates = [
                _update([[of_kind[m] for m in members] for of_kind in rows], *key)
                for key, members in groups.items()
            ]
        if self.pace is not None:
            updates.append(partial(self._move, self.pace))
        return [shorten, *updates]

    def _move(self, pace: torch.Tensor) -> None:
        """Add the step, every parameter at its pace."""
        step = self.matrices[0]
        self.params.addcmul_(step, pace)
        step.zero_()

    def _shortening(self, n_steps: int) -> Callable[[], None]:
        """Shorten the gradients of the next steps that are much longer than others."""
        _, gradients, _, second = self.matrices
        # What the mean of the squares has to be divided by, as it starts at 0.
        weights = [
            [1 - BETA_2 ** (adam.count + k) for adam in self.adams]
            for k in range(n_steps)
        ]
        limits = iter(LONGEST / gradients.new_tensor(weights).sqrt()[..., None])

        def shorten() -> None:
            longest = second.sum(1, True).sqrt_().mul_(next(limits))
            length = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
            # The first gradient, and one after zeros, have nothing to compare with.
            share = (longest / length).clamp_(max=1.0).masked_fill_(~(longest > 0), 1.0)
            gradients.mul_(share)

        return shorten


def _update(
    tensors: Sequence[list[torch.Tensor]], rate: float, count: int
) -> Callable[[], None]:
    """Next step, given tensors, their gradients, and first and second moments."""
    params, gradients, first, second = tensors
    made = params[0].new_tensor(float(count), dtype=torch.float32)
    # Adding a Python number to a tensor takes longer than adding a tensor.
    one, counts = torch.ones_like(made), [made] * len(params)

    def update() -> None:
        made.add_(one)
        torch._fused_adam_(
            params,
            gradients,
            first,
            second,
            [],
            counts,
            lr=rate,
            beta1=BETA_1,
            beta2=BETA_2,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    return update
