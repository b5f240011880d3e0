"""Posteriors that are normal given an auxiliary variable, and bounds of their density.

With noise e ~ N(0, I), u | e ~ N(m(e), diag(s(e)^2)), and a density r(e | u), a term

    w(u, e) = q(u | e) N(e; 0, I) / r(e | u)

has the mean q(u) under e ~ r. For a draw u, made from e_0, and e_1 .. e_K from r,

    log mean of w(u, e_0) .. w(u, e_K)   is above log q(u) in expectation, and
    log mean of w(u, e_1) .. w(u, e_K)   is below it:

r = N(0, I) gives both semi-implicit bounds, K = 0 the hierarchical one (Sobolev and
Vetrov 2019). By symmetry in 0 .. K, the mean of p(u) over the first of these means is
the integral of p: such weights bound evidences from below.
"""

import math
from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import torch

from skvi.base import Draw, Layout, NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors._whitened import WhitenedPosterior
from skvi.utils._tensors import LOG_2PI, log_mean_exp, rand, randn

# Terms of a lower bound of log q where the upper one has no others than that of e_0.
N_BELOW = 10
# Variance of u that comes from e at the start.
SHARE = 0.1
# Choices of a chain, and the draws that each is among.
N_CHOICES, N_OFFERED = 5, 10


@dataclass(frozen=True)
class Settings:
    """What the families differ in; see `SemiImplicitMixture`."""

    n_auxiliary: int
    n_hidden: int
    n_mixture: int  # K
    is_learned: bool  # whether r is
    is_unbiased: bool
    whiten: bool


@dataclass(frozen=True)
class Regression:
    """A factorized normal given x: a linear mean, and hidden units for both moments."""

    n_in: int
    n_hidden: int
    n_out: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Those of its parameters."""
        shapes = (self.n_out, self.n_in), (2 * self.n_out, self.n_hidden)
        return [
            *shapes,
            (self.n_hidden, self.n_in),
            (2 * self.n_out,),
            (self.n_hidden,),
        ]

    @property
    def n_params(self) -> int:
        """Length of the vector of its parameters."""
        return sum(map(math.prod, self.shapes))

    def start(
        self, linear: torch.Tensor, log_scale: float, generator: torch.Generator
    ) -> torch.Tensor:
        """Parameters of a linear mean and a constant scale; hidden units are random."""
        level = torch.zeros(2, self.n_out, dtype=linear.dtype, device=linear.device)
        level[1] = log_scale
        no_weight = level.new_zeros(self.shapes[1])
        units = [randn(generator, *self.shapes[i]) for i in (2, 4)]
        parts = linear * self.n_in**0.5, no_weight, units[0], level, units[1]
        return torch.cat([part.flatten() for part in parts])

    def __call__(self, params: torch.Tensor, x: torch.Tensor) -> NormalForm:
        """Normals given rows of x.

        Sums have the scale of one term, for steps of one size: 1 / sqrt(terms).
        """
        parts = params.split([math.prod(shape) for shape in self.shapes])
        pairs = zip(parts, self.shapes, strict=True)
        linear, last, first, level, bias = (p.reshape(shape) for p, shape in pairs)
        x = x / self.n_in**0.5
        hidden = torch.tanh(x @ first.T + bias) / self.n_hidden**0.5
        mean, log_scale = (hidden @ last.T + level).chunk(2, -1)
        return NormalForm(x @ linear.T + mean, log_scale.exp())


class AuxiliaryPosterior(WhitenedPosterior):
    """Distribution of theta = mean + scale u, with u | e factorized normal, e noise.

    A subclass must implement `conditional` and `proposal`, and set `params`: first the
    `n_forward` of the moments of u | e, then those of e | u if r is learned.
    """

    side = "upper"
    n_forward: int

    def __init__(self, layout: Layout, settings: Settings) -> None:
        super().__init__(layout)
        self.settings = settings

    def with_mixture(self, n_mixture: int) -> Self:
        """Posterior whose bounds have another number of terms, K."""
        other = copy(self)
        other.settings = replace(self.settings, n_mixture=n_mixture)
        return other

    def near(self, normal: NormalForm) -> Self:
        """Place the posterior at a normal, or at the closest factorized one."""
        if not self.settings.whiten and not normal.is_diagonal:
            precision = torch.linalg.inv(normal.covariance())
            normal = NormalForm(normal.mean, precision.diagonal().rsqrt())
        return super().near(normal)

    # --- densities --------------------------------------------------------------------

    def conditional(self, e: torch.Tensor, params: torch.Tensor) -> NormalForm:
        """Normals of u given e, (..., A)."""
        raise NotImplementedError

    def proposal(self, u: torch.Tensor, params: torch.Tensor) -> NormalForm:
        """The densities r of e given u, (S, P)."""
        raise NotImplementedError

    def log_terms(
        self,
        u: torch.Tensor,
        e: torch.Tensor,
        given: NormalForm,
        params: torch.Tensor,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Logs of w(u, e_0) .. w(u, e_K), (K + 1, S), for u that came from e, `given`.

        `given` are the normals of u given e.
        """
        r = self.proposal(u, params)
        terms = (_log_joint(u, e, given) - r.log_prob(e))[None]
        if self.settings.n_mixture:
            e = r.sample(self.settings.n_mixture, generator)
            own = _log_joint(u, e, self.conditional(e, params)) - r.log_prob(e)
            terms = torch.cat([terms, own])
        return terms

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Refuse: only draws have a bound of their density."""
        raise IncompatibleComponentsError(
            "log_prob",
            "a density that is known everywhere: that of 'semi_implicit', "
            "'hierarchical_variational' and 'multiplicative_flow' is bounded at draws",
            "a family with an exact density, such as posterior='full_rank'",
        )

    # --- draws ------------------------------------------------------------------------

    def draw_white(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw u, with an upper bound of its log density.

        If gradients are unbiased, that of the bound is the gradient of log q instead.
        """
        u, e, given = self._pairs(n_draws, generator)
        if self.settings.is_unbiased and u.requires_grad:
            log_q = self._with_score(u, e, generator)
        else:
            terms = self.log_terms(u, e, given, self.params, generator)
            log_q = log_mean_exp(terms, 0)
        return Draw(u, log_q, self.side, auxiliary=e)

    def draw_below(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw theta with a lower bound of its log density, of K terms or `N_BELOW`."""
        several = self.with_mixture(self.settings.n_mixture or N_BELOW)
        u, e, given = self._pairs(n_draws, generator)
        terms = several.log_terms(u, e, given, self.params, generator)[1:]
        return self._from_white(Draw(u, log_mean_exp(terms, 0), "lower", auxiliary=e))

    def _pairs(
        self, n_draws: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor, NormalForm]:
        """Draws of u, (S, P), of the e they come from, (S, A), and u given e."""
        dtype, n_aux = self.params.dtype, self.settings.n_auxiliary
        e = randn(generator, n_draws, n_aux, dtype=dtype)
        noise = randn(generator, n_draws, self.layout.size, dtype=dtype)
        given = self.conditional(e, self.params)
        return given.transform(noise), e, given

    # --- unbiased gradients -----------------------------------------------------------

    def _with_score(
        self, u: torch.Tensor, e: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Values of the bound, with the gradient of log q along the path of the draws.

        The gradient in u of log q(u) is the mean of that of log q(u | e) over q(e | u)
        (Titsias and Ruiz 2019), and the score in the parameters has the mean 0. r
        follows the bound.
        """
        at, fixed = u.detach().requires_grad_(), self.params.detach()
        split = self.n_forward
        params = torch.cat([fixed[:split], self.params[split:]])
        given = self.conditional(e, params)
        terms = self.log_terms(at.detach(), e, given, params, generator)
        value = log_mean_exp(terms, 0)
        others, share = self.chain(at.detach(), e, generator)
        log_prob = self.conditional(others, fixed).log_prob(at)
        (score,) = torch.autograd.grad((share * log_prob).sum(), at)
        return value + (score * (u - at.detach())).sum(1)

    @torch.no_grad()
    def chain(
        self, u: torch.Tensor, e: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Points under q(e | u), (M, S, A), and shares, of chains that start at e.

        A chain chooses its next point by weights, among this one and new draws, which
        leaves q(e | u) as it is (Andrieu, Lee and Vihola 2018, *Uniform ergodicity of
        the iterated conditional SMC and geometric ergodicity of particle Gibbs
        samplers*). Half of the draws are of r, half of the noise itself: weights are at
        most 2 q(u | e). The points are those of the last choice, which is not made.
        """
        params = self.params.detach()
        r = self.proposal(u, params)
        near = r.sample(N_CHOICES * N_OFFERED, generator)
        far = randn(generator, *near.shape, dtype=e.dtype)
        is_far = rand(generator, *near.shape[:2], 1) < 0.5
        points = torch.cat([e[None], torch.where(is_far, far, near)])
        wide = -0.5 * (points.square() + LOG_2PI).sum(-1)
        logs = _log_joint(u, points, self.conditional(points, params))
        logs = logs - torch.logaddexp(r.log_prob(points), wide)
        seen, log_w = points[:1], logs[:1]
        offers = zip(*(x[1:].split(N_OFFERED) for x in (points, logs)), strict=True)
        for offered, offered_w in offers:
            noise = -(-rand(generator, *log_w.shape).log()).log()
            which = (log_w + noise).argmax(0, keepdim=True)
            own = seen.gather(0, which[..., None].expand_as(seen[:1]))
            seen = torch.cat([own, offered])
            log_w = torch.cat([log_w.gather(0, which), offered_w])
        return seen, torch.softmax(log_w, 0)


def _log_joint(u: torch.Tensor, e: torch.Tensor, given: NormalForm) -> torch.Tensor:
    """Log density of u and e together, from that of u given e."""
    return given.log_prob(u) - 0.5 * (e.square() + LOG_2PI).sum(-1)
