"""Several targets, independent of each other given f."""

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch

from skvi.likelihoods.base import Likelihood
from skvi.utils._rows import RowBuffers, RowPass


class IndependentLikelihood(Likelihood):
    """Targets with a likelihood each, independent given f.

    Log densities are sums over the targets, and each has its own learned numbers. f has
    the columns of the first target, then those of the second, and so on.

    Parameters
    ----------
    likelihoods : list of Likelihood
        One for each of the T targets.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> from skvi.likelihoods._independent import IndependentLikelihood
    >>> likelihood = IndependentLikelihood([GaussianLikelihood(2.0)] * 3)
    >>> likelihood.log_prob(torch.zeros(1, 1, 3), torch.zeros(1, 3))
    tensor([[-4.8363]])
    """

    _parameter_constraints: dict = {"likelihoods": [list]}
    has_expectations = False

    def __init__(self, likelihoods: list[Likelihood]) -> None:
        self.likelihoods = likelihoods

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """Columns of f of all targets."""
        return sum(part.n_outputs for part in self.likelihoods)

    @property
    def scale_outputs(self) -> tuple[int, ...]:  # type: ignore[override]
        """Those of all targets."""
        return self._joined("scale_outputs")

    @property
    def noise_outputs(self) -> tuple[int, ...]:  # type: ignore[override]
        """Those of all targets."""
        return self._joined("noise_outputs")

    def _joined(self, name: str) -> tuple[int, ...]:
        """Columns of all targets, in f."""
        found: list[int] = []
        start = 0
        for part in self.likelihoods:
            found += [start + column for column in getattr(part, name)]
            start += part.n_outputs
        return tuple(found)

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        """Whether every target is."""
        return all(part.is_discrete for part in self.likelihoods)

    @property
    def is_normal(self) -> bool:  # type: ignore[override]
        """Whether every target is."""
        return all(part.is_normal for part in self.likelihoods)

    @property
    def learned(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names with the number of the target."""
        parts = enumerate(self.likelihoods)
        return tuple(f"{name}[{k}]" for k, part in parts for name in part.learned)

    @property
    def _learned_limits(self) -> list[tuple[float, float] | None]:
        """Those of all targets; see `Likelihood._learned_limits`."""
        return [ends for part in self.likelihoods for ends in part._learned_limits]

    def _has_density(self, y: torch.Tensor) -> torch.Tensor:
        """Of every target, (n, T); see `Likelihood._has_density`."""
        parts = zip(self.likelihoods, y.unbind(1), strict=True)
        return torch.stack([part._has_density(t) for part, t in parts], 1)

    @property
    def floor_remedy(self) -> str:  # type: ignore[override]
        """What the first likelihood says."""
        return self.likelihoods[0].floor_remedy

    def initial_hyper(self, y: torch.Tensor) -> torch.Tensor:
        """Those of the targets; see `Likelihood.initial_hyper`."""
        parts = zip(self.likelihoods, y.unbind(1), strict=True)
        return torch.cat([part.initial_hyper(column) for part, column in parts])

    def bind(self, hyper: torch.Tensor) -> Any:
        """Return the likelihood with each target at its own numbers."""
        if not self.learned:
            return self
        own = hyper.split([len(part.learned) for part in self.likelihoods])
        bound = copy(self)
        parts: Sequence[Any] = list(zip(self.likelihoods, own, strict=True))
        bound.likelihoods = [part.bind(numbers) for part, numbers in parts]
        return bound

    def _row_pass(self, buffers: RowBuffers) -> RowPass | None:
        """Those of the targets; see `Likelihood._row_pass`."""
        columns = [part.n_outputs for part in self.likelihoods]
        numbers = [len(part.learned) for part in self.likelihoods]
        f, slope = (x.split(columns, -1) for x in buffers[:2])
        hyper, for_hyper = (x.split(numbers, -1) for x in buffers[2:])
        own = map(RowBuffers, f, slope, hyper, for_hyper)
        pairs = zip(self.likelihoods, own, strict=True)
        passes = [part._row_pass(mine) for part, mine in pairs]
        known = [one for one in passes if one is not None]
        return _IndependentPass(known, numbers) if len(known) == len(passes) else None

    @property
    def _length_scale(self) -> float:
        """The smallest one of the targets."""
        return min(part._length_scale for part in self.likelihoods)

    def _by_target(self, f: torch.Tensor) -> list[tuple[Likelihood, torch.Tensor]]:
        """Likelihoods of the targets; see `Likelihood._by_target`."""
        columns = f.split([part.n_outputs for part in self.likelihoods], -1)
        return list(zip(self.likelihoods, columns, strict=True))

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Sum over the targets, (S, n), for y of shape (n, T)."""
        parts = zip(self._by_target(f), y.unbind(1), strict=True)
        return torch.stack([part.log_prob(g, t) for (part, g), t in parts]).sum(0)

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Sum over the targets, (S, n)."""
        parts = [part.log_power_integral(g, c) for part, g in self._by_target(f)]
        return torch.stack(parts).sum(0)

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Means of the targets, (S, n, T)."""
        return torch.stack([part.mean(g) for part, g in self._by_target(f)], -1)

    def variance(self, f: torch.Tensor) -> torch.Tensor:
        """Variances of the targets, (S, n, T)."""
        return torch.stack([part.variance(g) for part, g in self._by_target(f)], -1)

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw targets, (S, n, T)."""
        parts = [part.sample(g, generator) for part, g in self._by_target(f)]
        return torch.stack(parts, -1)


class _IndependentPass(RowPass):
    """Passes of several targets over the same rows."""

    def __init__(self, passes: list[RowPass], numbers: list[int]) -> None:
        super().__init__()
        self._passes, self._numbers = passes, numbers

    def __call__(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> None:
        """Process some rows, with y of shape (M, 1, n, T)."""
        for one, column in zip(self._passes, y.unbind(-1), strict=True):
            one(column, weight, count)

    def values(self, hyper: torch.Tensor) -> torch.Tensor:
        """Sums over the targets; see `RowPass.values`."""
        own = hyper.split(self._numbers, -1)
        pairs = zip(self._passes, own, strict=True)
        return torch.stack([one.values(numbers) for one, numbers in pairs]).sum(0)
