"""Independent coordinates of one density, with scales that are fixed or learned."""

from collections.abc import Callable
from copy import copy
from itertools import chain
from numbers import Real

import torch

from skvi.base import Layout, NormalForm
from skvi.priors.base import BuiltPrior
from skvi.utils._device import CPU
from skvi.utils._validation import Interval, StrOptions

__all__ = ["LEARN_ROWS", "POSITIVE", "SCALE", "BuiltIndependent", "scaled"]

POSITIVE = [Interval(Real, 0, None, closed="neither")]
#: Constraint of every parameter `scale`.
SCALE = [*POSITIVE, StrOptions({"learn"})]
#: Value of `scale` with which every row of a block has a learned scale of its own.
LEARN_ROWS = "learn_rows"

Make = Callable[[torch.Tensor], BuiltPrior]


def scaled(layout: Layout, scale: float | str, make: Make) -> BuiltPrior:
    """Build a prior from its scale, a number or learned, in units of the natural sizes.

    `make` maps scales of shape (P,) to a `BuiltPrior`.
    """
    natural = layout.natural_scales()
    if isinstance(scale, str):
        sizes = _row_sizes(layout) if scale == LEARN_ROWS else [layout.size]
        return _LearnedScale(make, natural, sizes)
    return make(float(scale) * natural)


def _row_sizes(layout: Layout) -> list[int]:
    """Number of coordinates of each row of every block."""
    shapes = [(block.shape or (1,), block.size) for block in layout.values()]
    return list(chain(*([size // shape[0]] * shape[0] for shape, size in shapes)))


class BuiltIndependent(BuiltPrior):
    """Coordinates ``scale * u``; a subclass has the density of u, and what follows."""

    has_expected_log_prob = True
    has_log_prob_terms = True
    #: Standard deviation of u, if it exists; otherwise a measure of its width.
    width = 1.0

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def _log_density(self, u: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _slope(self, u: torch.Tensor) -> torch.Tensor:
        """Derivative of the log density."""
        raise NotImplementedError

    def _expected(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        """Expected log density for a normal u."""
        raise NotImplementedError

    def _draw(self, generator: torch.Generator, *shape: int) -> torch.Tensor:
        raise NotImplementedError

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return self.log_prob_terms(theta).sum(1)

    def log_prob_terms(self, theta: torch.Tensor) -> torch.Tensor:
        return self._log_density(theta / self.scale) - self.scale.log()

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        return self._slope(theta / self.scale) / self.scale

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        return self._expected(mean / self.scale, std / self.scale) - self.scale.log()

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        return self.scale * self._draw(generator, n_draws, len(self.scale))

    def matching_normal(self) -> NormalForm:
        return NormalForm(torch.zeros_like(self.scale), self.width * self.scale)

    def tail_precision(self) -> torch.Tensor:
        return torch.zeros_like(self.scale)

    def marginal(self, where: torch.Tensor) -> BuiltPrior:
        part = copy(self)
        part.scale = self.scale[where]
        return part


class _LearnedScale(BuiltPrior):
    """A prior whose scale, or one per group, is to be chosen by a fit.

    `sizes` are the numbers of successive coordinates that share a scale; `natural`, of
    shape (P,), are their units.
    """

    def __init__(self, make: Make, natural: torch.Tensor, sizes: list[int]) -> None:
        self.make, self.natural, self.n_scales = make, natural, len(sizes)
        numbers = torch.arange(len(sizes), device=CPU)
        self.index = numbers.repeat_interleave(torch.tensor(sizes, device=CPU))

    @property
    def learned(self) -> tuple[str, ...]:  # type: ignore[override]
        """One name, or one for each row."""
        if self.n_scales == 1:
            return ("prior_scale",)
        return tuple(f"prior_scale[{k}]" for k in range(self.n_scales))

    def initial_hyper(self) -> torch.Tensor:
        """Scales 1."""
        return torch.zeros(self.n_scales, dtype=torch.float64, device=CPU)

    def learned_scales(self) -> torch.Tensor | None:
        if self.make(self.natural).as_normal() is None:
            return None
        return self.index.to(CPU)

    @property
    def is_log_concave(self) -> bool:
        return self.make(self.natural).is_log_concave

    def bind(self, hyper: torch.Tensor) -> BuiltPrior:
        factors = hyper.exp().to(self.natural.device)
        return self.make(factors[self.index] * self.natural)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        raise ValueError(UNBOUND)

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        raise ValueError(UNBOUND)


UNBOUND = (
    "A prior with scale='learn' has no density before a fit sets the scale; give a "
    "number, or use `bind`."
)
