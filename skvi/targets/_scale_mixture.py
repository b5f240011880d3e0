"""A target beside the random scales of its coefficients, where densities are smooth.

A prior with a spike and heavy tails makes a posterior of narrow ridges. Beside the
scales it is that of a normal, and where the data say little of a coefficient its
standardized value and its scale are nearly independent.
"""

import torch

from skvi.base import Layout, NormalForm
from skvi.priors._scale_mixture import ScaleMixture
from skvi.targets._hierarchical import base_prior, with_own_prior
from skvi.targets._supervised import SupervisedTarget
from skvi.targets.base import Target
from skvi.utils._log_space import LOG_2PI

__all__ = ["ScaleMixtureTarget", "mixture_of"]

# Limit of logs of squared scales times precisions: beyond, results are constant.
MAX_LOG = 600.0
# Standard deviations of what has no scale of its own, in units of those near the fit.
WIDER = 2.0


def mixture_of(target: Target) -> ScaleMixture | None:
    """Scale mixture that the prior of a linear model or network is, if it is one."""
    if not isinstance(target, SupervisedTarget) or target.learned:
        return None
    prior = base_prior(target)
    return None if prior is None else prior.scale_mixture()


class ScaleMixtureTarget(Target):
    """A target lifted to its coefficients' prior scales, with the same evidence.

    A coefficient is ``c h v^2 / (1 + h v^2) + e v / sqrt(1 + h v^2)``, with scale v and
    the likelihood's center c and precision h: e is about N(0, 1), whatever v is.
    """

    prior = None

    def __init__(
        self,
        given: SupervisedTarget,
        mixture: ScaleMixture,
        near: NormalForm,
        likelihood: NormalForm,
    ) -> None:
        self.given, self.mixture = given, mixture
        self.where, self.near = mixture.where, near
        self.center = likelihood.mean[self.where]
        self.log_known = -likelihood.variance[self.where].log()
        sizes = {"standardized": (near.size,), "log_scale": (len(self.where),)}
        self.layout = Layout(sizes)

    @staticmethod
    def of(
        target: Target, near: NormalForm, likelihood: NormalForm | None
    ) -> "ScaleMixtureTarget | None":
        """Lift a target if its prior allows; `near` replaces an unknown likelihood."""
        mixture = mixture_of(target)
        if mixture is None or not isinstance(target, SupervisedTarget):
            return None
        target = with_own_prior(target, mixture.rest)
        return ScaleMixtureTarget(target, mixture, near, likelihood or near)

    @property
    def cost_per_draw(self) -> int:
        """Elements that one evaluation touches."""
        return self.given.cost_per_draw

    def start(self) -> NormalForm:
        """Normal that is wide in everything: where a path may begin, (P + k,)."""
        scales = self.mixture.start()
        mean, scale = self.near.mean.clone(), WIDER * self.near.variance.sqrt()
        mean[self.where], scale[self.where] = 0.0, 1.0
        return NormalForm(
            torch.cat([mean, scales.mean]), torch.cat([scale, scales.scale])
        )

    def theta(self, lifted: torch.Tensor) -> torch.Tensor:
        """Parameters of the target itself, (S, P + k) -> (S, P)."""
        return self._lift(lifted)[0]

    def log_joint(
        self, theta: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log joint density of standardized parameters and scales, (S,)."""
        below, terms, _ = self._lift(theta)
        return self.given.log_joint(below, rows) + terms

    @torch.no_grad()
    def log_joint_and_gradient(
        self, theta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log joint density, (S,), and its gradient, (S, P + k)."""
        below, terms, (by_e, by_x, own_e, own_x) = self._lift(theta)
        value, slope = self.given.log_joint_and_gradient(below)
        mixed = slope[:, self.where]
        gradient = torch.cat([slope, mixed * by_x + own_x], 1)
        gradient[:, self.where] = mixed * by_e + own_e
        return value + terms, gradient

    def _lift(
        self, lifted: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        """Parameters, log density of all but the data, and slopes.

        The slopes are those of coefficients and of log density terms, in e and x.
        """
        size = self.near.size
        e, x = lifted[:, self.where], lifted[:, size:]
        scale = self.mixture.terms(x)
        log_known = (2 * scale.log_scale + self.log_known).clamp(max=MAX_LOG)
        known = log_known.exp()  # h v^2
        free = 1 / (1 + known)
        root = free.sqrt()
        v = torch.exp(0.5 * (log_known - self.log_known))
        width = v * root
        shifted = self.center * known * free
        ratio = shifted / v + e * root  # coefficient over its scale
        theta = lifted[:, :size].clone()
        theta[:, self.where] = shifted + e * width
        terms = scale.log_prob - 0.5 * (ratio.square() + LOG_2PI - free.log())
        by_scale = 2 * shifted * free + e * width * free
        ratio_by_scale = shifted / v * (1 - known) * free - e * known * free * root
        own_scale = -known * free - ratio * ratio_by_scale
        slopes = (
            width,
            by_scale * scale.slope,
            -ratio * root,
            own_scale * scale.slope + scale.log_prob_slope,
        )
        return theta, terms.sum(1), slopes
