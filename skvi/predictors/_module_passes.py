"""Forward and backward passes of modules, by automatic differentiation."""

from collections.abc import Callable

import torch

__all__ = ["ModulePasses"]


class ModulePasses:
    """f of S modules for each of M members, and its gradients; used as `MLPPasses`.

    `evaluate` maps theta, (S, P), and rows, (n, ...), to f, (S, n, K).
    """

    def __init__(
        self,
        evaluate: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        row_shape: tuple[int, ...],
        n_params: int,
        n_outputs: int,
        sizes: tuple[int, int, int],
        like: torch.Tensor,
    ) -> None:
        n_members, n_draws, n_rows = sizes
        self._evaluate, self._shape = evaluate, (n_members, n_rows, *row_shape)
        self.weights = [like.new_empty(n_members, n_draws, n_params)]
        self.gradients = [like.new_empty(2, n_members, n_draws, n_params)]
        self.f, self.slope = like.new_empty(2, *sizes, n_outputs)

    def blocks(self, theta: torch.Tensor) -> list[torch.Tensor]:
        """All of theta, (..., P), is one block."""
        return [theta]

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        """Evaluate f at `weights`; see `MLPPasses.forward`."""
        with torch.inference_mode(False), torch.enable_grad():
            X = columns.mT[..., :-1].reshape(self._shape)
            self._theta = self.weights[0].clone().requires_grad_()
            found = map(self._evaluate, self._theta, X)
            self._found = torch.stack(list(found))
        return self.f.copy_(self._found.detach())

    def pull_back(self) -> None:
        """Compute the gradient of a sum over rows, after `forward` and `slope`."""
        with torch.inference_mode(False):
            (found,) = torch.autograd.grad(self._found, self._theta, self.slope)
        self.gradients[0][0].copy_(found)
