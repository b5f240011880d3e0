"""The pass over the data that refines samples of a normal, all at once."""

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
N_STEPS, STEP_SIZE, DECAY = 200, 0.05, (0.9, 0.99)
# Least rows of a step; numbers that it processes for a draw, up to which it has more
# rows, and then more pairs of draws; and most pairs.
MIN_ROWS, STEP_NUMBERS, MAX_PAIRS = 64, 2**15, 4
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

    n_samples: int
    n_auxiliary: int
    ratio: float

    def samples(
        self, target: JointDensity, normal: NormalForm, generator: torch.Generator
    ) -> Samples:
        """Draw the variables one by one, and fit what is left given each."""
        frame = Frame.of(normal, target)
        density, shape = _Density(target, frame, generator), (self.n_samples, -1)
        mean, scale = frame.normal.mean, frame.normal.scale
        q = NormalForm(mean.expand(*shape), scale.expand(*shape))
        b, log_q, curve = torch.zeros_like(q.mean), -frame.log_det, []
        for auxiliary in auxiliaries(self.n_auxiliary, self.ratio):
            marginal = auxiliary.marginal(q, b)
            a = marginal.sample(1, generator)[0]
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
            return cls.at(NormalForm(q.mean, WIDER * root), own)
        mean = (q.mean - prior.mean) / prior.scale
        if q.is_diagonal:
            return cls.at(prior, NormalForm(mean, q.scale / prior.scale))
        unit = prior.scale[:, None]
        values, vectors = torch.linalg.eigh(q.covariance() / (unit * unit.T))
        place = NormalForm(prior.mean, unit * vectors)
        return cls.at(place, NormalForm(mean @ vectors, values.sqrt()))

    @classmethod
    def at(cls, place: NormalForm, normal: NormalForm) -> "Frame":
        """Frame with the determinant of its root."""
        root = place.scale
        size = root.log().sum() if root.ndim == 1 else torch.linalg.slogdet(root)[1]
        return cls(place, normal, size)


class _Density:
    """The log joint density over that of the prior, in the coordinates of a frame.

    With a normal prior this is the log likelihood.
    """

    def __init__(
        self, target: JointDensity, frame: Frame, generator: torch.Generator
    ) -> None:
        self.target, self.frame, self.generator = target, frame, generator
        size, n_rows = frame.place.size, target.n_rows
        self.step_rows = min(n_rows, max(MIN_ROWS, STEP_NUMBERS // size))
        n_pairs = STEP_NUMBERS // (size * max(self.step_rows, 1))
        self.n_pairs = min(max(n_pairs, 1), MAX_PAIRS)

    def values(self, u: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Log density at points, (S, M, P); but for a constant."""
        theta = self.frame.place.transform(u).reshape(-1, u.shape[-1])
        value = self.target.log_joint(theta, rows).reshape(u.shape[:-1])
        return value - log_standard(u)

    def fit(
        self, start: NormalForm, b: torch.Tensor, rest: float
    ) -> tuple[NormalForm, torch.Tensor]:
        """Maximize equation 4 from a start; and its values at every step, (T, M).

        Steps are in units of the scale of the start.
        """
        x = torch.zeros_like(torch.stack([b, b])).requires_grad_()
        adam, found = torch.optim.Adam([x], lr=STEP_SIZE, betas=DECAY), []
        for step in range(N_STEPS):
            adam.param_groups[0]["lr"] = STEP_SIZE * (1 - step / N_STEPS)
            with torch.enable_grad():
                value = self._bound(_moved(start, x), b, rest)
                (gradient,) = torch.autograd.grad(-value.sum(), x)
            # A draw outside of the support says nothing.
            x.grad = gradient.nan_to_num(0.0, 0.0, 0.0)
            adam.step()
            found.append(value.detach())
        return _moved(start, x.detach()), torch.stack(found)

    def _bound(self, q: NormalForm, b: torch.Tensor, rest: float) -> torch.Tensor:
        """Equation 4, (M,), from pairs of draws."""
        noise = randn(self.generator, self.n_pairs, *b.shape)
        u = q.transform(torch.cat([noise, -noise]))
        return self.values(u, self._rows()).mean(0) - kl_divergence(q, b, rest)

    def _rows(self) -> torch.Tensor | None:
        if self.step_rows == self.target.n_rows:
            return None
        shape, source = (self.step_rows,), self.generator
        device = source.device
        return torch.randint(self.target.n_rows, shape, generator=source, device=device)


def _moved(start: NormalForm, x: torch.Tensor) -> NormalForm:
    return NormalForm(start.mean + start.scale * x[0], start.scale * x[1].exp())
