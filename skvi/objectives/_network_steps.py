"""Gradient steps that use the passes of a network, for normals and ensembles."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

import torch

from skvi.objectives._steps import Member, Rows, Source, Steps
from skvi.objectives._weights import MemberBatches
from skvi.utils._processes import average
from skvi.utils._rows import RowBuffers
from skvi.utils._tensors import NoiseStream, antithetic, spawn

# Multiply-adds of a step below which many are made before progress is reported.
QUICK_WORK = 2**26


def can_train(member: Member) -> bool:
    """Whether passes give the slopes, and the divergence has a closed form."""
    predictor = getattr(member.target, "predictor", None)
    if predictor is None or predictor.structure is None:
        return False
    return bool(member.divergence.has_closed_form(member.target.prior))


class NetworkSteps(Steps):
    """Base class: rows, noise, and the slopes of the loss in draws of theta.

    Members must have equal predictors, losses and likelihoods. `noise` continues that
    of other steps.
    """

    def __init__(
        self,
        members: Sequence[Member],
        params: torch.Tensor,
        n_draws: int,
        batch_size: int | None,
        noise: NoiseStream | None = None,
    ) -> None:
        super().__init__(params)
        self.members, self.n_draws, self.batch_size = members, n_draws, batch_size
        targets = [member.target for member in members]
        self.batches = MemberBatches(targets, batch_size, n_draws, like=params)
        first, shape = targets[0], (len(members), n_draws, self.batches.n_rows)
        self.noise = self._noise_stream() if noise is None else noise
        self.passes = self._buffers(*shape)
        self._columns = [batch.X.mT for batch in self.batches.steps]
        start = len(members[0].posterior.params)
        self._noise_scale = slice(len(first.likelihood_spec.learned))
        hyper = (x[:, start:][:, self._noise_scale] for x in (params, self.gradient))
        buffers = RowBuffers(self.passes.f, self.passes.slope, *hyper)
        self._row_pass = first.loss._row_pass(first.likelihood_spec, buffers)

    def _noise_stream(self) -> NoiseStream:
        """Noise that the draws of all members are made of."""
        generators = [member.generator for member in self.members]
        size = self.members[0].posterior.as_normal().n_noise
        return NoiseStream(generators, self.n_draws, (size,), self.params.dtype)

    def _buffers(self, *shape: int) -> Any:
        """Passes of so many members, draws and rows."""
        return self.members[0].target.predictor.passes(*shape, like=self.params)

    @property
    def sources(self) -> list[Source]:
        return [self.noise]

    @property
    def max_steps(self) -> int:
        return min(super().max_steps, self.batches.max_steps)

    @property
    def spans_epochs(self) -> bool:  # type: ignore[override]
        """Whether steps are so fast that progress need not be reported every epoch."""
        size = self.members[0].target.layout.size
        n_weights = len(self.members) * self.n_draws * size
        return n_weights * self.batches.n_rows < QUICK_WORK

    def prepare(self, rows: Sequence[Sequence[Rows]]) -> None:
        self.batches.fill(rows)

    def _pull_back(self, step: int) -> None:
        """Put the gradient of the mean loss in the drawn weights in `passes`."""
        batch = self.batches.steps[step]
        f = self.passes.forward(self._columns[step])
        if batch.offset is not None:
            f += batch.offset
        self._row_pass(batch.y, batch.weight, batch.total)
        self.passes.pull_back()

    def _losses(self, hyper: torch.Tensor) -> torch.Tensor:
        """Mean losses of the steps so far, (T, M), with hyperparameters (T, M, H)."""
        losses = self._row_pass.values(hyper[..., self._noise_scale])
        return average(losses.double()) - self.batches.constant


@dataclass(frozen=True, eq=False)
class _Component:
    """One component of a member's posterior: a member itself."""

    target: Any
    posterior: Any
    divergence: Any
    generator: torch.Generator


def _is_mixture(member: Member) -> bool:
    return bool(member.posterior.components[0] is not member.posterior)


def _components_of(member: Member) -> list[Member]:
    """Members that train the components of one.

    Each has its own source of draws, so that it is trained as it would be alone.
    """
    components = member.posterior.components
    sources = spawn(member.generator, len(components))
    return [
        _Component(member.target, component, member.divergence, source)
        for component, source in zip(components, sources, strict=True)
    ]


def stack_structure(objective: Any, member: Member) -> Hashable | None:
    """What members must share to be trained in one stack; see `Objective.structure`.

    For mixtures, the structure of their components and their number.
    """
    if not _is_mixture(member):
        return objective.structure(member)
    components = member.posterior.components
    one = _Component(member.target, components[0], member.divergence, member.generator)
    found = objective.structure(one)
    return None if found is None else (found, len(components))


def make_steps(
    objective: Any,
    members: Sequence[Member],
    params: torch.Tensor,
    n_draws: int,
    batch_size: int | None,
) -> Steps:
    """Make the gradient steps of members, which may be mixtures: see `Objective.steps`.

    For mixtures `n_draws` is the number of each component.
    """
    if not _is_mixture(members[0]):
        return objective.steps(members, params, n_draws, batch_size)
    parts = [_components_of(member) for member in members]
    return _EnsembleSteps(objective, parts, params, n_draws, batch_size)


def estimate(objective: Any, member: Member, rows: Rows, n_draws: int) -> torch.Tensor:
    """Estimate the minimized loss, a scalar: for mixtures the mean over components."""
    values = [
        objective.surrogate(
            member.target, component, member.divergence, rows, n_draws, member.generator
        )[1]
        for component in member.posterior.components
    ]
    return torch.stack(values).mean()


class _EnsembleSteps(Steps):
    """Gradients of M mixtures of K components: those of M K members.

    The mean over components is minimized. Their own parameters get the gradients that
    they would get alone (Adam is invariant to scale), shared hyperparameters the mean.
    """

    def __init__(
        self,
        objective: Any,
        parts: Sequence[Sequence[Member]],
        params: torch.Tensor,
        n_draws: int,
        batch_size: int | None,
    ) -> None:
        super().__init__(params)
        self.parts, self.n_components = list(parts), len(parts[0])
        self.n_own = len(parts[0][0].posterior.params)
        self.n_hyper = params.shape[1] - self.n_own * self.n_components
        self._bind(params)
        members = [component for of_member in parts for component in of_member]
        settings = n_draws, batch_size
        if objective.structure(members[0]) is None:
            self.inner: Steps = _Separate(objective, members, self._rows, *settings)
        else:
            self.inner = objective.steps(members, self._rows, *settings)
        self._link()

    def _link(self) -> None:
        """Destinations and sources of gradients, of components and of all."""
        own, shared = self._parts_of(self.inner.gradient)
        mine = self._own(self.gradient), self._shared(self.gradient)
        self._gradients = [(mine[0], own), (mine[1], shared)]

    def _bind(self, params: torch.Tensor) -> None:
        self.params, self.gradient = params, torch.zeros_like(params)
        width = self.n_own + self.n_hyper
        self._rows = params.new_empty(len(params) * self.n_components, width)
        own, shared = self._parts_of(self._rows)
        # Destinations and sources.
        self._copies = [(own, self._own(params)), (shared, self._shared(params))]
        self._repeat()

    def _parts_of(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Views (M, K, ...) of the parameters of components, and of hyperparameters."""
        rows = rows.unflatten(0, (-1, self.n_components))
        return rows[..., : self.n_own], rows[..., self.n_own :]

    def _own(self, params: torch.Tensor) -> torch.Tensor:
        """View (..., M, K, V') of the parameters of components."""
        own = params[..., : self.n_own * self.n_components]
        return own.unflatten(-1, (self.n_components, self.n_own))

    def _shared(self, params: torch.Tensor) -> torch.Tensor:
        """View (..., M, 1, H) of the hyperparameters."""
        return params[..., None, self.n_own * self.n_components :]

    def _repeat(self) -> None:
        """Copy to components, each with all hyperparameters."""
        for to, source in self._copies:
            to.copy_(source)

    # As of the steps of the components.
    sources: Any = property(attrgetter("inner.sources"))
    max_steps: Any = property(attrgetter("inner.max_steps"))
    spans_epochs: Any = property(attrgetter("inner.spans_epochs"))
    limits: Any = property(attrgetter("inner.limits"))

    def weigh_divergence(self, shares: Sequence[float]) -> bool:
        """All components of a member take the same fraction."""
        each = [s for s in shares for _ in range(self.n_components)]
        return self.inner.weigh_divergence(each)

    def confine(self) -> None:
        self._repeat()
        self.inner.confine()
        (own, source), _ = self._copies
        source.copy_(own)

    def prepare(self, rows: Sequence[Sequence[Rows]]) -> None:
        """All components of a member see the same rows."""
        self.inner.prepare([own for own in rows for _ in range(self.n_components)])

    def differentiate(self, step: int) -> None:
        self._repeat()
        self.inner.differentiate(step)
        (own, found), (shared, of_each) = self._gradients
        own.copy_(found)
        torch.mean(of_each, 1, keepdim=True, out=shared)

    def values(self, own: torch.Tensor, hyper: torch.Tensor) -> torch.Tensor:
        shape = self.n_components, self.n_own
        hyper = hyper[..., None, :].expand(-1, -1, self.n_components, -1)
        parts = own.unflatten(-1, shape).flatten(1, 2), hyper.flatten(1, 2)
        values = self.inner.values(*parts)
        return values.unflatten(1, (-1, self.n_components)).mean(2)

    def keep(self, members: Sequence[int], params: torch.Tensor) -> Self:
        self.parts = [self.parts[m] for m in members]
        self._bind(params)
        n = self.n_components
        components = [m * n + k for m in members for k in range(n)]
        self.inner = self.inner.keep(components, self._rows)
        self._link()
        return self


class _Separate(Steps):
    """Members that cannot be stacked, one after the other."""

    def __init__(
        self,
        objective: Any,
        members: Sequence[Member],
        params: torch.Tensor,
        n_draws: int,
        batch_size: int | None,
    ) -> None:
        super().__init__(params)
        self.each = [
            objective.steps([member], params[m : m + 1], n_draws, batch_size)
            for m, member in enumerate(members)
        ]

    @property
    def sources(self) -> list[Source]:
        return [source for steps in self.each for source in steps.sources]

    @property
    def max_steps(self) -> int:
        return min(steps.max_steps for steps in self.each)

    @property
    def spans_epochs(self) -> bool:  # type: ignore[override]
        return all(steps.spans_epochs for steps in self.each)

    def weigh_divergence(self, shares: Sequence[float]) -> bool:
        pairs = zip(self.each, shares, strict=True)
        return all([steps.weigh_divergence([share]) for steps, share in pairs])

    @property
    def limits(self) -> Sequence[Any]:  # type: ignore[override]
        return [limits for steps in self.each for limits in steps.limits]

    def confine(self) -> None:
        for steps in self.each:
            steps.confine()

    def prepare(self, rows: Sequence[Sequence[Rows]]) -> None:
        for steps, own in zip(self.each, rows, strict=True):
            steps.prepare([own])

    def differentiate(self, step: int) -> None:
        for row, steps in zip(self.gradient, self.each, strict=True):
            steps.differentiate(step)
            row.copy_(steps.gradient[0])

    def values(self, own: torch.Tensor, hyper: torch.Tensor) -> torch.Tensor:
        parts = zip(self.each, own.split(1, 1), hyper.split(1, 1), strict=True)
        return torch.cat([steps.values(*part) for steps, *part in parts], 1)

    def keep(self, members: Sequence[int], params: torch.Tensor) -> Self:
        raise NotImplementedError("Mixtures of separate members are not in one stack.")


class NormalSteps(NetworkSteps):
    """Gradients of the negative ELBO from draws of any normal, for one member.

    The network backpropagates slopes to theta through buffers. Draws and divergence,
    which depend on the variational parameters, use automatic differentiation.
    """

    def __init__(
        self,
        members: Sequence[Member],
        params: torch.Tensor,
        n_draws: int,
        batch_size: int | None,
    ) -> None:
        super().__init__(members, params, n_draws, batch_size)
        self._divergences: list[torch.Tensor] = []
        self._share = 1.0

    def weigh_divergence(self, shares: Sequence[float]) -> bool:
        (self._share,) = shares
        return True

    def differentiate(self, step: int) -> None:
        member, noise = self.members[0], self.noise.next()[0]
        split = len(member.posterior.params)
        with torch.inference_mode(False), torch.enable_grad():
            leaf = self.params[0].clone().requires_grad_()
            q = member.posterior.at(leaf[:split]).normal()
            theta = q.transform(antithetic(noise, self.n_draws))
            prior = member.target.at(leaf[split:]).prior
            divergence = member.divergence.closed_form(q, prior)
        blocks = self.passes.blocks(theta.detach())
        for weights, block in zip(self.passes.weights, blocks, strict=True):
            weights.copy_(block)
        self.gradient.zero_()
        self._pull_back(step)
        gradients = torch.cat([g[0, 0].flatten(1) for g in self.passes.gradients], 1)
        with torch.inference_mode(False):
            slopes = gradients.clone(), torch.full_like(divergence, self._share)
            (own,) = torch.autograd.grad((theta, divergence), leaf, slopes)
        average(self.gradient.add_(own))
        self._divergences.append(divergence.detach().double().reshape(1))

    def values(self, own: torch.Tensor, hyper: torch.Tensor) -> torch.Tensor:
        divergences, self._divergences = torch.stack(self._divergences), []
        return self._losses(hyper) + divergences

    def keep(self, members: Sequence[int], params: torch.Tensor) -> Self:
        raise NotImplementedError(
            "A single member cannot be left out of its own steps."
        )
