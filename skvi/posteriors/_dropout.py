"""Multiplicative normal noise on the weights of a layer: dropout as a posterior."""

import torch

from skvi.base import Layout, NormalForm
from skvi.posteriors._normal import NormalPosterior
from skvi.posteriors.base import Family, Posterior
from skvi.utils._device import CPU

__all__ = ["GaussianDropout"]

# Standard deviation of weights of mean 0, in units of the natural scale of the layer:
# with none at all the density is a point mass there, and the divergence infinite.
FLOOR = 1e-3
# Smallest ratio of a variance to the squared mean.
MIN_RATIO = 1e-8


class GaussianDropout(Family):
    r"""Dropout with normal noise, whose rate is learned for every layer.

    Every weight has a mean m and, as in Gaussian dropout, a standard deviation
    proportional to it:

    .. math:: q(w) = N(m, \alpha m^2 + (10^{-3} s)^2)

    with one :math:`\alpha` for each block of weights and its natural scale s. It
    is the noise of dropout with the rate ``p = alpha / (1 + alpha)``, which multiplies
    weights by numbers of mean 1 and variance ``p / (1 - p)``. Other blocks, such as
    intercepts, have a standard deviation for each number. So there are about P numbers
    to learn, half of those of `MeanFieldNormal`, and the rates need no validation set.

    Attributes of what it builds: ``rates``, a dict with the rate of each block.

    Notes
    -----
    q is a normal with a density, so that the divergence from a normal prior is in
    closed form, the ELBO is a bound, and evidence bounds hold. None of that is true of
    dropout by zeros (Gal and Ghahramani 2016), whose posterior has no density. The
    floor :math:`10^{-3} s` matters only for weights next to 0. Noise is drawn for
    weights, not for inputs, so that the weights of a unit are independent.

    Mean-field normals are more flexible, and do better: weights that the data do not
    inform keep the width of the prior, whereas here weights close to 0 are necessarily
    narrow, which costs many nats. With 20 units the ELBO of dropout was lower by 74
    nats on a wave in 150 rows, 191 on friedman1 (300 rows, test R^2 0.70 instead of
    0.92) and 59 on diabetes data.

    References
    ----------
    Kingma, Salimans and Welling (2015), *Variational dropout and the local
    reparameterization trick*, section 3.2; Hron, Matthews and Ghahramani (2018),
    *Variational Bayesian dropout: pitfalls and fixes*, on what goes wrong with
    improper priors and without densities.

    Examples
    --------
    >>> from skvi.posteriors._dropout import GaussianDropout
    >>> from skvi.predictors import MLPPredictor
    >>> layout = MLPPredictor(3, 1, hidden_layer_sizes=(4,)).layout
    >>> posterior = GaussianDropout().build(layout)
    >>> posterior.params.shape  # 21 means, 5 deviations of intercepts, 2 rates
    torch.Size([28])
    >>> list(posterior.rates)
    ['coef_0', 'coef_1']
    """

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the posterior at mean 0; see `Family.build`."""
        return _DropoutPosterior(layout)


class _DropoutPosterior(NormalPosterior):
    """Variational parameters: means, log deviations of other blocks, log alphas."""

    is_diagonal = True

    def __init__(self, layout: Layout) -> None:
        self.names = [
            name
            for name, block in layout.items()
            if block.role == "weight" and name not in layout.positive
        ]
        self.floor = (FLOOR * layout.natural_scales()).square()
        others = [name for name in layout if name not in self.names]
        self.others = layout.positions(others)
        self.weights = layout.positions(self.names)
        layers = range(len(self.names))
        index = [i for i in layers for _ in range(layout[self.names[i]].size)]
        self.layer = torch.tensor(index, dtype=torch.long, device=CPU)
        super().__init__(layout)

    @property
    def rates(self) -> dict[str, float]:
        """Dropout rates of the blocks of weights."""
        ratios = self._split(self.params.detach())[2].exp().tolist()
        pairs = zip(self.names, ratios, strict=True)
        return {name: ratio / (1 + ratio) for name, ratio in pairs}

    def _split(self, params: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sizes = [self.layout.size, len(self.others), len(self.names)]
        return params.split(sizes)

    def normal(self, params: torch.Tensor | None = None) -> NormalForm:
        params = self.params if params is None else params
        mean, log_std, log_ratio = self._split(params)
        device = mean.device
        weights, floor = self.weights.to(device), self.floor.to(mean)
        ratio = log_ratio.exp()[self.layer.to(device)]
        variance = ratio * mean[weights].square() + floor[weights]
        scale = torch.empty_like(mean)
        scale = scale.index_put((weights,), variance.sqrt())
        scale = scale.index_put((self.others.to(device),), log_std.exp())
        return NormalForm(mean, scale)

    def _params_of(self, normal: NormalForm) -> torch.Tensor:
        """The same means, and in each block of weights the same mean variance."""
        device = normal.mean.device
        weights, layer = self.weights.to(device), self.layer.to(device)
        variance, floor = normal.variance, self.floor.to(normal.mean)
        zeros = variance.new_zeros(len(self.names))
        own = (variance - floor)[weights]
        above = zeros.index_add(0, layer, own)
        squares = zeros.index_add(0, layer, normal.mean[weights].square())
        tiny = torch.finfo(squares.dtype).tiny
        ratio = (above / squares.clamp(min=tiny)).clamp(MIN_RATIO, 1 / MIN_RATIO)
        log_std = 0.5 * variance[self.others.to(device)].log()
        return torch.cat([normal.mean, log_std, ratio.log()])
