"""Linear models with normal noise: at known numbers they have a closed form."""

from collections.abc import Sequence

import torch

from skvi.base import NormalForm
from skvi.base._rows import Rows
from skvi.solvers._mode import lower_of_inverse
from skvi.targets import SupervisedTarget
from skvi.targets._numbers import LikelihoodNumber, Number
from skvi.utils._tensors import LOG_2PI

#: K normals, whether they exist, log integrands, (K,), and their slopes, (K, m).
Integrals = tuple[NormalForm, torch.Tensor, torch.Tensor, torch.Tensor]


class NormalNoise:
    """Posteriors of theta, and integrals over it, at places of the numbers."""

    def __init__(
        self, target: SupervisedTarget, numbers: Sequence[Number], weight: float
    ) -> None:
        rows, last = target.rows, numbers[-1]
        self.target, self.weight = target, weight
        self.noise = last.number if isinstance(last, LikelihoodNumber) else None
        self.w = torch.ones_like(rows.y) if rows.weight is None else rows.weight
        self.y = rows.y if rows.offset is None else rows.y - rows.offset
        self.gram = target.predictor.gram(rows.X, self.w)
        self.right = target.predictor.pull_back(rows.X, self.w * self.y)
        self.middle = target.prior.matching_normal().mean

    @staticmethod
    def is_that_of(target: SupervisedTarget) -> bool:
        """Whether losses are squares of one f, of rows in memory."""
        is_normal = target.likelihood_spec.is_normal and target.loss.is_log_loss
        has_one = target.has_design and target.predictor_spec.n_outputs == 1
        return is_normal and has_one and isinstance(target.rows, Rows)

    @torch.inference_mode(False)
    def at(self, places: Sequence[Sequence[float]]) -> Integrals:
        """Slopes are those at a fixed normal: the envelope theorem."""
        with torch.enable_grad():
            z = self.gram.new_tensor(places).requires_grad_()
            prior, value, log_noise = self._numbers(z)
            with torch.no_grad():
                share = log_noise.exp() / self.weight
                normal, exists = self._posteriors(prior, share)
                around = normal.covariance()
                squares = self._squares(normal, around)
                away = normal.mean - self.middle
                around += away[:, :, None] * away[:, None]
                if prior.ndim == 2:
                    around = around.diagonal(dim1=1, dim2=2)
            loss = log_noise.exp() * squares - self.w.sum() * (log_noise - LOG_2PI)
            loss = 0.5 * loss - self.target.constant
            apart = 0.5 * ((prior * around).flatten(1).sum(1) - normal.size)
            value = value + normal.half_log_det - apart - loss / self.weight
            (slopes,) = torch.autograd.grad(value.sum(), z)
        return normal, exists, value.detach(), slopes

    def _numbers(self, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Precisions of the prior, log weights, and logs of that of the noise."""
        if self.noise is None:
            fixed = -2 * self.target.likelihood._scale.log()
            return *self.target.prior.precisions_at(z), fixed.expand(len(z))
        prior, weights = self.target.prior.precisions_at(z[:, :-1])
        last = z[:, -1]
        weights = weights + self.noise.log_density(last)
        return prior, weights, -2 * self.noise.power * last

    def _posteriors(
        self, prior: torch.Tensor, share: torch.Tensor
    ) -> tuple[NormalForm, torch.Tensor]:
        full = prior if prior.ndim == 3 else torch.diag_embed(prior)
        right = share[:, None] * self.right + full @ self.middle
        precision = torch.addcmul(full, share[:, None, None], self.gram)
        scale, exists = lower_of_inverse(precision)
        mean = scale @ (scale.mT @ right[:, :, None])
        return NormalForm(mean[:, :, 0], scale), exists

    def _squares(self, normal: NormalForm, covariance: torch.Tensor) -> torch.Tensor:
        """Expected sums of squares of residuals."""
        f = self.target.predictor.project(self.target.rows.X, normal.mean.T)
        own = self.w @ (self.y[:, None] - f).square()
        return own + (self.gram * covariance).sum((1, 2))
