"""Mixtures of the posteriors at several scales of a prior."""

from collections.abc import Sequence

import torch

from skvi.base import NormalForm
from skvi.base._protocols import JointDensity
from skvi.posteriors._mixture import Mixture
from skvi.posteriors.base import Posterior

__all__ = ["MixtureOverScales"]


class MixtureOverScales(Mixture):
    r"""Posterior under a prior of unknown scale: a mixture over nodes of its logarithm.

    .. math:: q(\theta) = \sum_k w_k q_k(\theta)

    Variational parameters: those of the components, then the log weights.

    Parameters
    ----------
    nodes : sequence of Posterior
        The posterior at each scale, all of one family.
    log_weights : sequence of float
        Logs of the probabilities of the scales.
    log_scales : sequence of float
        In ascending order.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.posteriors import MeanFieldNormal, MixtureOverScales
    >>> base = MeanFieldNormal().build(Layout({"coef": (1, 1)}))
    >>> one = torch.ones(1).double()
    >>> nodes = [base.near(NormalForm(m * one, one)) for m in (0.0, 1.0)]
    >>> q = MixtureOverScales(nodes, [-0.6931471805599453] * 2, [-1.0, 1.0])
    >>> float(q.draw(10_000, torch.Generator().manual_seed(0)).theta.mean())
    0.5
    """

    def __init__(
        self,
        nodes: Sequence[Posterior],
        log_weights: Sequence[float],
        log_scales: Sequence[float],
    ) -> None:
        like = nodes[0].params.new_tensor
        super().__init__(nodes, like(list(log_weights)))
        self.units, self.log_scales = nodes[0].units, like(list(log_scales))

    @property
    def nodes(self) -> tuple[Posterior, ...]:
        """The posterior at each scale."""
        return self.members

    @property
    def likeliest(self) -> Posterior:
        """The node with the largest weight."""
        return self.nodes[int(self.log_weights.argmax())]

    def in_family(self, posterior: Posterior) -> "MixtureOverScales":
        """The mixture with nodes of another family.

        Parameters
        ----------
        posterior : Posterior
            Of the family.

        Returns
        -------
        MixtureOverScales
        """
        nodes = [posterior.near(normal) for normal in self.normals()]
        log_weights = self.log_weights.detach().tolist()
        return MixtureOverScales(nodes, log_weights, self.log_scales.tolist())

    def as_prior(self) -> Posterior:
        """The member of the family of the nodes that has the mixture's moments.

        Returns
        -------
        Posterior
        """
        weights, normals = self.log_weights.detach().exp(), self.normals()
        means = torch.stack([normal.mean for normal in normals])
        mean = weights @ means
        moved = weights.sqrt()[:, None] * (means - mean)
        near = normals[int(weights.argmax())]
        if near.scale.ndim == 2:
            covariances = torch.stack([normal.covariance() for normal in normals])
            covariance = torch.tensordot(weights, covariances, 1) + moved.T @ moved
            root = torch.linalg.cholesky(covariance)
            return self.likeliest.near(NormalForm(mean, root))
        variances = torch.stack([normal.variance for normal in normals])
        variance = weights @ variances + moved.square().sum(0)
        ratio = (variance / near.variance).sqrt()
        return self.likeliest.near(NormalForm(mean, ratio * near.scale))

    def refine(self, target: JointDensity, generator: torch.Generator) -> Posterior:
        """Refine the normal of `as_prior`; see `Posterior.refine`."""
        start = self.as_prior()
        refined = start.refine(target, generator)
        return self if refined is start else refined
