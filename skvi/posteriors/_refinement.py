"""The pass over the data that refines samples of a normal, all at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from skvi.base import NormalForm
from skvi.base._protocols import JointDensity
from skvi.posteriors._additive import auxiliaries, kl_divergence, log_standard
from skvi.utils._random import randn

__all__ = ["Frame", "Refinement", "Samples"]

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
