"""Samples of a normal that local fits refine, all in one pass."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from numbers import Integral, Real
from typing import NamedTuple

import torch

from skvi.base import Draw, Layout, NormalForm
from skvi.base._component import JointDensity
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors._multiplicative import auxiliaries, kl_divergence, log_standard
from skvi.posteriors._normal import FullRankNormal, LowRankNormal, MeanFieldNormal
from skvi.posteriors.base import Family, Posterior
from skvi.utils._tensors import rand, randn
from skvi.utils._validation import Interval

# Gradient steps after each auxiliary variable; the first step size, in standard
# deviations of what it starts from; and the decay rates of Adam.
N_STEPS, STEP_SIZE, DECAY, EPSILON = 200, 0.05, (0.9, 0.99), 1e-8
# Least rows of a step, and least share of all rows; numbers that it processes for a
# draw, up to which it has more rows, and then more pairs of draws; and most pairs.
MIN_ROWS, SHARE, STEP_NUMBERS, MAX_PAIRS = 64, 1 / 64, 2**14, 4
# The same where all rows are processed, in blocks.
BLOCK_NUMBERS = 2**17
# Width of the normal in place of a prior that is not one, in that of the start.
WIDER = 3.0


class Samples(NamedTuple):
    """Refined draws of theta, (M, P), with what is known of them.

    `log_q`, (M,): of their auxiliary variables, given theta subtracted; on average an
    upper bound of the log density. `curve`: the bound at every step, in nats, from the
    draws of the step.
    """

    theta: torch.Tensor
    log_q: torch.Tensor
    curve: torch.Tensor


@dataclass(frozen=True)
class Refinement:
    """Number of samples, and the auxiliary variables of each."""

    n_draws: int
    n_auxiliary: int
    ratio: float

    def samples(
        self, target: JointDensity, normal: NormalForm, generator: torch.Generator
    ) -> Samples:
        """Draw the variables one by one, and fit what is left given each."""
        target = target.with_prior()
        frame = Frame.of(normal, target).to(normal.mean.dtype)
        shape = (self.n_draws, -1)
        density = _Density(target, frame, generator, self.n_draws)
        mean, scale = frame.normal.mean, frame.normal.scale
        q = NormalForm(mean.expand(*shape), scale.expand(*shape))
        b, log_q, curve = torch.zeros_like(q.mean), -frame.log_det, []
        for auxiliary in auxiliaries(self.n_auxiliary, self.ratio):
            marginal = auxiliary.marginal(q, b)
            a = marginal.transform(_opposed(generator, b))
            # Equation 13: the logs of q and of the prior of the variable.
            log_q = log_q + marginal.log_prob(a) - auxiliary.log_prior(a)
            q, b = auxiliary.condition(q, b, a), b + a
            if auxiliary.after:
                q, values = density.fit(q, b, auxiliary.after)
                curve.append((values - log_q).mean(1))
        theta = frame.place.transform(b)
        return Samples(theta, log_q + log_standard(b), torch.cat(curve))


class Frame(NamedTuple):
    """Coordinates u, theta = origin + root u, in which the prior is N(0, I).

    q is factorized there; `log_det` is that of the root.
    """

    place: NormalForm
    normal: NormalForm
    log_det: torch.Tensor
    is_at_prior: bool = True

    @classmethod
    def of(cls, q: NormalForm, target: JointDensity) -> "Frame":
        """Frame of a normal and the prior; of the normal itself if there is none."""
        prior = None if target.prior is None else target.prior.as_normal()
        if prior is None or not prior.is_diagonal:
            root = q.scale
            if q.factor is not None:
                root = torch.linalg.cholesky(q.covariance())
            one = torch.ones_like(q.mean)
            own = NormalForm(0 * one, one / WIDER)
            place = NormalForm(q.mean, WIDER * root)
            return cls.at(place, own)._replace(is_at_prior=False)
        mean = (q.mean - prior.mean) / prior.scale
        if q.is_diagonal:
            return cls.at(prior, NormalForm(mean, q.scale / prior.scale))
        unit = prior.scale[:, None]
        values, vectors = torch.linalg.eigh(q.covariance() / (unit * unit.T))
        place = NormalForm(prior.mean, unit * vectors)
        return cls.at(place, NormalForm(mean @ vectors, values.sqrt()))

    def pull_back(self, slope: torch.Tensor) -> torch.Tensor:
        """Slopes in u from those in theta, (S, P)."""
        root = self.place.scale
        return slope * root if self.place.is_diagonal else slope @ root

    def to(self, dtype: torch.dtype) -> "Frame":
        """The same in another precision."""
        place, normal = (_cast(form, dtype) for form in (self.place, self.normal))
        return self._replace(place=place, normal=normal)

    @classmethod
    def at(cls, place: NormalForm, normal: NormalForm) -> "Frame":
        """Frame with the determinant of its root."""
        root = place.scale
        size = root.log().sum() if root.ndim == 1 else torch.linalg.slogdet(root)[1]
        return cls(place, normal, size)


class _Density:
    """The log joint density over that of the prior, in the coordinates of a frame.

    With a normal prior this is the log likelihood. Networks are differentiated by their
    own passes, in single precision: rounding is far below the noise of draws.
    """

    def __init__(
        self,
        target: JointDensity,
        frame: Frame,
        generator: torch.Generator,
        n_draws: int,
    ) -> None:
        self.target, self.generator = target, generator
        size, n_rows = frame.place.size, target.n_rows
        least = max(MIN_ROWS, int(SHARE * n_rows))
        self.step_rows = min(n_rows, max(least, STEP_NUMBERS // size))
        n_pairs = STEP_NUMBERS // (size * max(self.step_rows, 1))
        self.n_pairs = min(max(n_pairs, 1), MAX_PAIRS)
        n_points = 2 * self.n_pairs + (not self.has_all_rows)
        self._passes = target.passes(n_points * n_draws, self.step_rows)
        dtype = frame.normal.mean.dtype if self._passes is None else torch.float32
        self.frame, self.dtype = frame.to(dtype), dtype

    def values(
        self, u: torch.Tensor, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log density at points, (S, M, P), but for a constant; and its slopes."""

        def log_joint(theta: torch.Tensor) -> torch.Tensor:
            return self.target.log_joint(theta, rows)

        return self._with_slopes(u, log_joint)

    def step_values(self, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same from the random rows of a step."""
        rows, frame, prior = self._rows(), self.frame, self.target.prior
        if self._passes is None or prior is None:
            return self.values(u, rows)
        theta = frame.place.transform(u).reshape(-1, u.shape[-1])
        value, slope = self._passes(theta, rows)
        value = value.reshape(u.shape[:-1])
        slope = frame.pull_back(slope).reshape(u.shape)
        if frame.is_at_prior:
            return value - frame.log_det, slope
        more, by_prior = self._with_slopes(u, prior.log_prob)
        return value + more, slope + by_prior

    def _with_slopes(
        self, u: torch.Tensor, log_density: Callable[[torch.Tensor], torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log density of theta over the standard one of u, and slopes in u."""
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            theta = self.frame.place.transform(u).reshape(-1, u.shape[-1])
            value = log_density(theta).reshape(u.shape[:-1]) - log_standard(u)
            (slope,) = torch.autograd.grad(value.sum(), u)
        return value.detach(), slope

    def fit(
        self, start: NormalForm, b: torch.Tensor, rest: float
    ) -> tuple[NormalForm, torch.Tensor]:
        """Maximize equation 4 from a start; and its values at every step, (T, M).

        Steps of Adam, in units of the scale of the start.
        """
        before, start, b = b.dtype, _cast(start, self.dtype), b.to(self.dtype)
        x, found = torch.zeros_like(torch.stack([b, b])), []
        first, second = torch.zeros_like(x), torch.zeros_like(x)
        center = None if self.has_all_rows else _Center.of(self, start.mean)
        for step in range(N_STEPS):
            value, by_mean, by_log_scale = self._bound(
                _moved(start, x), b, rest, center
            )
            gradient = torch.stack([start.scale * by_mean, by_log_scale])
            # A draw outside of the support says nothing.
            gradient = gradient.nan_to_num(0.0, 0.0, 0.0)
            first.lerp_(gradient, 1 - DECAY[0])
            second.lerp_(gradient.square(), 1 - DECAY[1])
            rate = STEP_SIZE * (1 - step / N_STEPS) / (1 - DECAY[0] ** (step + 1))
            size = (second / (1 - DECAY[1] ** (step + 1))).sqrt()
            x = x + rate * first / (size + EPSILON)
            found.append(value)
        return _cast(_moved(start, x), before), torch.stack(found).to(before)

    def _bound(
        self, q: NormalForm, b: torch.Tensor, rest: float, center: "_Center | None"
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Equation 4, (M,), and gradients in means and logs of scales, from pairs.

        Of a minibatch it is compared with the center, of which all rows are known.
        """
        shape, n_draws = (self.n_pairs, *b.shape), 2 * self.n_pairs
        half = randn(self.generator, *shape, dtype=b.dtype)
        noise = torch.cat([half, -half])
        u = q.transform(noise)
        if center is not None:
            u = torch.cat([u, center.u[None]])
        values, slopes = self.step_values(u)
        value, slope = values[:n_draws].mean(0), slopes[:n_draws]
        by_scale = (slope * noise).mean(0)
        by_mean = slope.mean(0)
        if center is not None:  # the noise of pairs has the mean 0
            missed = center.slope - slopes[-1]
            value = value + center.value - values[-1]
            value = value + (missed * (q.mean - center.u)).sum(-1)
            by_mean = by_mean + missed
        value = value - kl_divergence(q, b, rest)
        by_mean = by_mean - (q.mean - b) / rest
        return value, by_mean, q.scale * by_scale - q.scale.square() / rest + 1

    @property
    def has_all_rows(self) -> bool:
        """Whether steps are no minibatches."""
        return self.step_rows == self.target.n_rows

    def _rows(self) -> torch.Tensor | None:
        if self.has_all_rows:
            return None
        shape, source = (self.step_rows,), self.generator
        device = source.device
        return torch.randint(self.target.n_rows, shape, generator=source, device=device)


class _Center(NamedTuple):
    """Points u, (M, P), with values and slopes of the density with all rows.

    A minibatch at a draw is far less noisy relative to the same minibatch at a point
    nearby (Johnson and Zhang 2013, *Accelerating stochastic gradient descent using
    predictive variance reduction*).
    """

    u: torch.Tensor
    value: torch.Tensor
    slope: torch.Tensor

    @classmethod
    def of(cls, density: _Density, u: torch.Tensor) -> "_Center":
        """Sum over blocks of rows."""
        value, slope = torch.zeros_like(u[:, 0]), torch.zeros_like(u)
        n_rows, device = density.target.n_rows, density.generator.device
        at_once = max(MIN_ROWS, BLOCK_NUMBERS // u.shape[1])
        for rows in torch.arange(n_rows, device=device).split(at_once):
            values, slopes = density.values(u[None], rows)
            value = value + values[0] * (len(rows) / n_rows)
            slope = slope + slopes[0] * (len(rows) / n_rows)
        return cls(u, value, slope)


def _opposed(generator: torch.Generator, like: torch.Tensor) -> torch.Tensor:
    """Noise whose second half of rows is minus the first: its mean is 0."""
    shape = -(-len(like) // 2), like.shape[1]
    half = randn(generator, *shape, dtype=like.dtype)
    return torch.cat([half, -half])[: len(like)]


def _cast(form: NormalForm, dtype: torch.dtype) -> NormalForm:
    return NormalForm(form.mean.to(dtype), form.scale.to(dtype))


def _moved(start: NormalForm, x: torch.Tensor) -> NormalForm:
    return NormalForm(start.mean + start.scale * x[0], start.scale * x[1].exp())


class RefinedNormal(Family):
    r"""Samples that start in a normal, and are refined one scale after the other.

    Parameters are written as a sum of auxiliary variables whose priors add up to that
    of the parameters,

    .. math:: \theta = a_1 + \dots + a_K, \qquad a_k \sim N(0, \sigma_k^2).

    The solver fits a normal q. For every sample :math:`a_1` is then drawn from q, and q
    conditioned on it and fitted again, with the prior given :math:`a_1`; and so on,
    until the sum is known. Each fit is local, so that samples have modes and
    dependencies that q has not; and none lowers the bound that `lower_bound_`
    estimates,

    .. math:: \mathrm{ELBO} \le \mathrm{E} \Big[ \log p(D, \theta) - \log p(\theta)
        - \sum_k \log \frac{q(a_k | a_{1:k-1})}{p(a_k)} \Big],

    whose left side is that of q, up to the noise of the fits.

    Parameters
    ----------
    base : MeanFieldNormal, LowRankNormal or FullRankNormal, default=None
        Family of q; None is `MeanFieldNormal`.
    n_auxiliary : int, default=5
        K. More give a higher bound, and cost proportionally more.
    n_draws : int, default=10
        Number of samples. All of them are refined at once, in `fit`, and stored:
        predictions average over them, so that log densities of test rows are better
        with 50 where functions differ by more than the noise.
    ratio : float, default=0.7
        Share that each auxiliary variable takes of the variance that is left,
        :math:`\sigma_k^2 / (\sigma_k^2 + \dots + \sigma_K^2)`; the last takes it all.

    Notes
    -----
    Where the prior is not normal, or unknown, as for a log density of one's own without
    ``prior``, a normal around q, three times as wide, is divided instead: the bound
    holds for any.

    There is no density, only one given the auxiliary variables. Draws repeat the
    samples, in random order. `posterior_.unrefined` is q: evidences and warm starts
    start from it, it is the prior of the next batch of `partial_fit`, and importance
    weights in diagnostics are its own. `posterior_.curve` is the bound at all gradient
    steps, 200 for each auxiliary variable but the last. Steps of minibatches are
    relative to a point of which all rows are known, and noise comes in opposed pairs,
    whose mean is that of q: ten samples then predict better than ten draws.

    How far the samples are from the posterior is certain: `evidence_bounds` prints how
    large their divergence can be at most, the upper bound of the evidence minus theirs.

    References
    ----------
    Havasi, Snoek, Tran, Gordon and Hernández-Lobato (2021), *Sampling the variational
    posterior with local refinement*, Entropy 23.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> from skvi.posteriors import RefinedNormal
    >>> X, y = load_iris(return_X_y=True)
    >>> regression = BayesianLogisticRegression(
    ...     prior="normal", posterior=RefinedNormal(n_draws=5), random_state=0
    ... ).fit(X, y)
    >>> regression.sample_posterior(2)["coef"].shape
    (2, 3, 4)
    """

    def __init__(
        self,
        base: Family | None = None,
        n_auxiliary: int = 5,
        n_draws: int = 10,
        ratio: float = 0.7,
    ) -> None:
        self.base, self.n_auxiliary = base, n_auxiliary
        self.n_draws, self.ratio = n_draws, ratio

    _parameter_constraints: dict = {
        "base": [None, FullRankNormal, LowRankNormal, MeanFieldNormal],
        "n_auxiliary": [Interval(Integral, 2, None, closed="left")],
        "n_draws": [Interval(Integral, 2, None, closed="left")],
        "ratio": [Interval(Real, 0, 1, closed="neither")],
    }

    def _base(self) -> Family:
        return MeanFieldNormal() if self.base is None else self.base

    def build(
        self, layout: Layout, generator: torch.Generator | None = None
    ) -> Posterior:
        """Build the normal that the solver fits; see `Family.build`."""
        self.validate()
        posterior = self._base().build(layout, generator)
        posterior.refinement = _Refiner(self.n_draws, self.n_auxiliary, self.ratio)
        return posterior

    def check_size(self, n_params: int) -> None:
        """Apply the check of the family of the normal."""
        self.validate()
        self._base().check_size(n_params)


class _Refiner(Refinement):
    """A refinement of posteriors."""

    @torch.no_grad()
    def __call__(
        self, posterior: Posterior, target: JointDensity, generator: torch.Generator
    ) -> "RefinedPosterior":
        found = self.samples(target, posterior.normal(), generator)
        return RefinedPosterior(posterior, found)


class RefinedPosterior(Posterior):
    """Samples, which draws repeat. They are the variational parameters.

    `curve` has estimates of the bound at every gradient step, in nats.
    """

    side = "upper"

    def __init__(self, unrefined: Posterior, samples: Samples) -> None:
        self.layout, self.units = unrefined.layout, unrefined.units
        self._start = unrefined
        self.params = samples.theta.reshape(-1).to(unrefined.params.dtype)
        self._log_q, self.curve = samples.log_q, samples.curve

    @property
    def n_stored(self) -> int:  # type: ignore[override]
        """Number of samples."""
        return len(self._log_q)

    @property
    def unrefined(self) -> Posterior:
        start = copy(self._start)
        start.units = self.units
        return start

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Random permutations of all samples, one after the other."""
        n_runs = -(-n_draws // self.n_stored)
        keys = rand(generator, n_runs, self.n_stored)
        which = torch.argsort(keys, 1).reshape(-1)[:n_draws]
        theta = self.params.reshape(self.n_stored, -1)[which]
        return Draw(theta, self._log_q[which], self.side)

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Raise: there is no density."""
        raise IncompatibleComponentsError(
            "A log density",
            "a family that has one; a refined posterior is a set of samples",
            "that of the normal it started from, posterior_.unrefined.log_prob",
        )
