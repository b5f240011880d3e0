"""Posteriors that bend in the coordinates of a normal, mixtures, and exact ones."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from numbers import Integral
from typing import Self, cast

import torch

from skvi.base import Draw, Layout, NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors._ensemble import BASES
from skvi.posteriors._mixture import Mixture
from skvi.posteriors.base import Family, Posterior
from skvi.utils._tensors import CPU, randn
from skvi.utils._validation import Interval, StrOptions


class WhitenedPosterior(Posterior):
    """Distribution of theta = mean + scale u; u has that of the family.

    Mean and scale are those of `anchor`, a normal that is no variational parameter:
    N(0, 1) at first. `near` replaces it, so that units and correlations of theta do
    not matter to the family, whose u is near N(0, 1) at its start.

    A subclass must implement `draw_white` and, unless its `side` is "none",
    `log_prob_white`; and set `params`.
    """

    starts_at_normal = True
    anchor: NormalForm
    #: Gradients of skews and curvatures are noisier than those of means.
    least_draws = 64

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        one = torch.ones(layout.size, dtype=torch.float64, device=CPU)
        self.anchor = NormalForm(torch.zeros_like(one), one)

    def draw_white(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw u, with its log density; see `Posterior.draw`.

        Parameters
        ----------
        n_draws : int
        generator : torch.Generator

        Returns
        -------
        Draw
            Of u in place of theta.
        """
        raise NotImplementedError

    def log_prob_white(self, u: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """Log density of u; see `Posterior.log_prob`.

        Parameters
        ----------
        u : Tensor of shape (S, P)
        params : Tensor of shape (n_variational,)

        Returns
        -------
        Tensor of shape (S,)
            In nats.
        """
        raise NotImplementedError

    def near(self, normal: NormalForm) -> Self:
        """Place the posterior at a normal; u and its parameters stay as they are."""
        if normal.factor is not None:
            scale = torch.linalg.cholesky(normal.covariance())
            normal = NormalForm(normal.mean, scale)
        other = copy(self)
        device = self.params.device
        other.anchor = NormalForm(normal.mean.to(device), normal.scale.to(device))
        return other

    def to_white(self, theta: torch.Tensor) -> torch.Tensor:
        """Map theta to u.

        Parameters
        ----------
        theta : Tensor of shape (S, P)

        Returns
        -------
        Tensor of shape (S, P)
        """
        return self.anchor.whiten(theta - self.anchor.mean)

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw theta, with its log density; see `Posterior.draw`."""
        return self._from_white(self.draw_white(n_draws, generator))

    def _from_white(self, draw: Draw) -> Draw:
        """Draw of theta from one of u."""
        theta = self.anchor.transform(draw.theta)
        return replace(draw, theta=theta, log_q=draw.log_q - self.anchor.half_log_det)

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log density; see `Posterior.log_prob`."""
        params = self.params if params is None else params
        log_q = self.log_prob_white(self.to_white(theta), params)
        return log_q - self.anchor.half_log_det


class Exact(Family):
    """The exact posterior, for linear regressions whose priors are conjugate.

    Given the precisions of noise and coefficients the posterior is normal; those that
    are unknown are integrated by quadrature. Its ELBO is the log evidence.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skvi.linear_model import BayesianLinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> BayesianLinearRegression().fit(X, y).posterior_family_
    Exact()
    """

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Posterior before the data; only the solver "exact" can use it."""
        return Unsolved(layout)


class Unsolved(Posterior):
    """Exact posterior before its data: it has no draws and no density yet."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.params = (
            layout,
            torch.zeros(0, dtype=torch.float64, device=CPU),
        )


# Distance of members from the mode at which they start, in its standard deviations.
APART = 1.0


class MixtureOfNormals(Family):
    r"""Mixture of normals, trained together, whose weights are learned as well.

    .. math:: q(\theta) = \sum_k w_k \mathrm{N}(\theta; \mu_k, \Sigma_k)

    Skewed posteriors, curved ones and those of several modes are closer to a mixture
    than to one normal, and a mixture of factorized normals has correlations.

    Parameters
    ----------
    n_components : int, default=4
        K.
    base : {"full_rank", "low_rank", "mean_field"} or Family, default="full_rank"
        Family of the components, which must be normal.

    Notes
    -----
    The ELBO is trained in strata: the mean over the draws of a component is multiplied
    by its weight, so that the gradient in the weights is exact given these means, and
    has little noise (Roeder et al. 2017; Morningstar et al. 2021). With other
    objectives weights have the gradient of the score only: ``gradient="score"``.

    Fits start at a normal: every component one deviation away from its mean, in random
    directions, so that they become different. A density of one's own
    (:class:`skvi.inference.VariationalInference`) may have several modes: components
    are placed at all that its starts have found. No fit finds modes far from its
    starts.

    A mixture of K components is above its best component by log K nats at most.
    For a logistic regression on the breast-cancer data, of log evidence -55.22, four
    factorized normals have an ELBO of -66.59 (one: -67.46), four full ones -55.34 (one:
    -55.46), in 5 and 9 s of one core (2026-11-25, x86_64).

    Components that gain nothing end with small weights. :class:`Ensemble` has equal
    weights, and members that are trained independently.

    References
    ----------
    Morningstar, Vikram, Ham, Gallagher and Dillon (2021), *Automatic differentiation
    variational inference with mixture models*.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout
    >>> from skvi.posteriors import MixtureOfNormals
    >>> family = MixtureOfNormals(n_components=3, base="mean_field")
    >>> posterior = family.build(Layout({"coef": (1, 2)}))
    >>> posterior.params.shape  # 2 means and 2 deviations each, and 3 weights
    torch.Size([15])
    """

    _parameter_constraints: dict = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "base": [StrOptions(set(BASES)), Family],
    }

    def __init__(self, n_components: int = 4, base: str | Family = "full_rank") -> None:
        self.n_components = n_components
        self.base = base

    def _family(self) -> Family:
        return BASES[self.base]() if isinstance(self.base, str) else self.base

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the components around N(0, 1); see `Family.build`."""
        self.validate()
        family = self._family()
        family.validate()
        member = family.build(layout, generator)
        if member.as_normal() is None:
            raise IncompatibleComponentsError(
                f"{type(self).__name__}(base={self.base!r})",
                "normal posteriors",
                "'full_rank', 'low_rank' or 'mean_field', or Ensemble(base=...)",
            )
        if generator is None:
            generator = torch.Generator(CPU).manual_seed(0)
        away = randn(generator, self.n_components, layout.size)
        away = APART * torch.nn.functional.normalize(away, dim=1)
        one = torch.ones(layout.size, dtype=torch.float64, device=CPU)
        return _MixturePosterior(member, away).near(NormalForm(0 * one, one))

    def check_size(self, n_params: int) -> None:
        """Apply the check of the family of the components."""
        self.validate()
        self._family().check_size(n_params)


class _Relative(WhitenedPosterior):
    """A normal whose variational parameters are those of u."""

    def __init__(self, white: Posterior) -> None:
        super().__init__(white.layout)
        self._is_full = cast(NormalForm, white.as_normal()).scale.ndim == 2
        self._white, self.params = white, white.params

    def near(self, normal: NormalForm) -> Self:
        """Place it at a normal; one of diagonal scale at conditional deviations."""
        unit = torch.ones_like(normal.mean)
        start = NormalForm(torch.zeros_like(unit), unit)
        placed = super().near(normal if self._is_full else _factorized(normal))
        if not (self._is_full or self._white.is_diagonal or normal.is_diagonal):
            root = torch.linalg.cholesky(normal.covariance())
            start = NormalForm(start.mean, placed.anchor.whiten(root.T).T)
        return placed.at(self._white.near(start).params)

    def draw_white(self, n_draws: int, generator: torch.Generator) -> Draw:
        return self._white.at(self.params).draw(n_draws, generator)

    def log_prob_white(self, u: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        return self._white.log_prob(u, params)

    def as_normal(self) -> NormalForm:
        white = cast(NormalForm, self._white.at(self.params).as_normal())
        mean = self.anchor.transform(white.mean)
        if white.is_diagonal and self.anchor.is_diagonal:
            return NormalForm(mean, self.anchor.scale * white.scale)
        zero = torch.zeros_like(mean)
        spread = NormalForm(zero, self.anchor.scale)
        root = torch.linalg.cholesky(white.covariance())
        return NormalForm(mean, spread.transform(root.T).T)


def _factorized(normal: NormalForm) -> NormalForm:
    """The factorized normal of the largest ELBO, with conditional deviations."""
    if normal.is_diagonal:
        return normal
    precision = torch.cholesky_inverse(torch.linalg.cholesky(normal.covariance()))
    return NormalForm(normal.mean, precision.diagonal().rsqrt())


class _MixturePosterior(Mixture):
    """Variational parameters: those of the components in their u, log weights."""

    starts_at_normal = True
    least_draws = 64

    def __init__(self, white: Posterior, away: torch.Tensor) -> None:
        """Copies of one normal; `away`, (K, P), tells where `near` puts them."""
        self._away = away
        log_weights = torch.zeros_like(away[:, 0])
        super().__init__([_Relative(white)] * len(away), log_weights)

    def near(self, normal: NormalForm) -> Self:
        """Components around a normal; see `Posterior.near`."""
        return self.near_modes([normal])

    def near_modes(self, normals: Sequence[NormalForm]) -> Self:
        """Components at normals in turn, apart where several are at one.

        See `Posterior.near_modes`.
        """
        n_modes, members = len(normals), []
        for k, (member, away) in enumerate(zip(self.members, self._away, strict=True)):
            normal = normals[k % n_modes]
            is_alone = k + n_modes >= len(self._away) and k < n_modes
            if not is_alone:
                away = away.to(normal.mean.device)
                normal = replace(normal, mean=_displaced(normal, away))
            members.append(member.near(normal))
        other = copy(self)
        other._members = tuple(member.at(member.params[:0]) for member in members)
        return other.with_members(members)


def _displaced(normal: NormalForm, away: torch.Tensor) -> torch.Tensor:
    """A point at a distance in deviations of a normal."""
    if normal.factor is None:
        return normal.transform(away)
    root = torch.linalg.cholesky(normal.covariance())
    return normal.mean + root @ away
