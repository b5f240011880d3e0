"""Mixtures of the posteriors at several scales of a prior."""

from collections.abc import Sequence

import torch

from skvi.base import Draw, NormalForm
from skvi.posteriors._ensemble import draw_components
from skvi.posteriors.base import Posterior
from skvi.utils._random import rand

__all__ = ["MixtureOverScales"]


class MixtureOverScales(Posterior):
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
        self.layout, self.units = nodes[0].layout, nodes[0].units
        # Stored without their parameters, to avoid a copy.
        self._nodes = tuple(node.at(node.params[:0]) for node in nodes)
        like = nodes[0].params.new_tensor
        self.log_scales = like(list(log_scales))
        params = [node.params for node in nodes]
        self.params = torch.cat([*params, like(list(log_weights))])

    @property
    def log_weights(self) -> torch.Tensor:
        """Log weights of the nodes, (K,)."""
        return self._split(self.params)[1]

    @property
    def nodes(self) -> tuple[Posterior, ...]:
        """The posterior at each scale."""
        return self._split(self.params)[0]

    @property
    def likeliest(self) -> Posterior:
        """The node with the largest weight."""
        return self.nodes[int(self.log_weights.argmax())]

    def normals(self) -> list[NormalForm]:
        """The nodes as normals.

        Returns
        -------
        list of NormalForm
        """
        return [node.normal(node.params.detach()) for node in self.nodes]

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
            Of low rank: with the correlations of the likeliest node.
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
        factor = None if near.factor is None else ratio[:, None] * near.factor
        return self.likeliest.near(NormalForm(mean, ratio * near.scale, factor))

    def _split(
        self, params: torch.Tensor
    ) -> tuple[tuple[Posterior, ...], torch.Tensor]:
        n_nodes = len(self._nodes)
        rows, log_weights = params[:-n_nodes], params[-n_nodes:]
        pairs = zip(self._nodes, rows.reshape(n_nodes, -1), strict=True)
        return tuple(node.at(row) for node, row in pairs), log_weights

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw a scale, then theta; see `Posterior.draw`."""
        ends = self.log_weights.exp().cumsum(0)
        uniform = rand(generator, n_draws)
        component = torch.searchsorted(ends[:-1].contiguous(), uniform)
        theta, _ = draw_components(self.nodes, component, generator)
        return Draw(theta, self.log_prob(theta), self.side, component=component)

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log density of the mixture; see `Posterior.log_prob`."""
        nodes, log_weights = self._split(self.params if params is None else params)
        logs = torch.stack([node.log_prob(theta) for node in nodes])
        return torch.logsumexp(logs + log_weights[:, None], 0)
