"""Linear models with normal noise: at known numbers they have a closed form."""

from collections.abc import Sequence

import torch

from skvi.base import NormalForm
from skvi.base._rows import Rows
from skvi.solvers._mode import lower_of_inverse
from skvi.targets import SupervisedTarget
from skvi.targets._numbers import LikelihoodNumber, Number, around_middle
from skvi.utils._tensors import LOG_2PI

#: K normals, whether they exist, log integrands, (K,), and their slopes, (K, m).
Integrals = tuple[NormalForm, torch.Tensor, torch.Tensor, torch.Tensor]


class NormalNoise:
    """Posteriors of theta, and integrals over it, at places of the numbers."""

    def __init__(
        self, target: SupervisedTarget, numbers: Sequence[Number], weight: float
    ) -> None:
        rows, self.target, self.weight = target.rows, target, weight
        last, self.n_scales = numbers[-1], target.prior.n_unknown_scales
        self.noise = last.number if isinstance(last, LikelihoodNumber) else None
        self.w = torch.ones_like(rows.y) if rows.weight is None else rows.weight
        self.y = rows.y if rows.offset is None else rows.y - rows.offset
        self.gram = target.predictor.gram(rows.X, self.w)
        self.right = target.predictor.pull_back(rows.X, self.w * self.y)

    @torch.inference_mode(False)
    @torch.enable_grad()
    def at(self, places: Sequence[Sequence[float]]) -> Integrals:
        """Slopes are those at a fixed normal: the envelope theorem."""
        z, prior = self.gram.new_tensor(places).requires_grad_(), self.target.prior
        exact, value = prior.precisions_at(z[:, : self.n_scales])
        if self.noise is None:
            log_noise = (-2 * self.target.likelihood._scale.log()).expand(len(z))
        else:
            log_noise = -2 * self.noise.power * z[:, -1]
            value = value + self.noise.log_density(z[:, -1])
        with torch.no_grad():
            normal, exists = self._posteriors(exact, log_noise.exp() / self.weight)
            f = self.target.predictor.project(self.target.rows.X, normal.mean.T)
            squares = self.w @ (self.y[:, None] - f).square()
            squares += (self.gram * normal.covariance()).sum((1, 2))
            around = around_middle(prior, normal, exact)
        loss = log_noise.exp() * squares - self.w.sum() * (log_noise - LOG_2PI)
        loss = 0.5 * loss - self.target.constant
        apart = 0.5 * ((exact * around).flatten(1).sum(1) - normal.size)
        value = value + normal.half_log_det - apart - loss / self.weight
        (slopes,) = torch.autograd.grad(value.sum(), z)
        return normal, exists, value.detach(), slopes

    def _posteriors(
        self, exact: torch.Tensor, share: torch.Tensor
    ) -> tuple[NormalForm, torch.Tensor]:
        full = exact if exact.ndim == 3 else torch.diag_embed(exact)
        right = share[:, None] * self.right
        right = right + full @ self.target.prior.matching_normal().mean
        precision = torch.addcmul(full, share[:, None, None], self.gram)
        scale, exists = lower_of_inverse(precision)
        mean = scale @ (scale.mT @ right[:, :, None])
        return NormalForm(mean[:, :, 0], scale), exists


def has_normal_noise(target: SupervisedTarget) -> bool:
    """Whether losses are squares of one f, of rows in memory."""
    is_normal = target.likelihood_spec.is_normal and target.loss.is_log_loss
    has_one = target.has_design and target.predictor_spec.n_outputs == 1
    return is_normal and has_one and isinstance(target.rows, Rows)
