"""Passes over rows for noise of any shape, with one scale or one for each row."""

import math
from typing import Protocol

import torch

from skvi.utils._row_pass import RowBuffers, RowPass

__all__ = ["NoisePass", "StandardNoise"]


class StandardNoise(Protocol):
    """Noise of scale 1, as passes need it."""

    noise_scale: float | str

    @property
    def learned(self) -> tuple[str, ...]: ...

    def standard_log_prob(self, z: torch.Tensor) -> torch.Tensor: ...

    def standard_slope(self, z: torch.Tensor) -> torch.Tensor: ...


class NoisePass(RowPass):
    """Minus the log density of location-scale noise, with its slopes.

    Buffers have one column of f, the location, or two: then the second is the log of
    the scale relative to `noise_scale`, bounded as ``reach * tanh(f / reach)``.
    """

    def __init__(
        self, noise: StandardNoise, buffers: RowBuffers, reach: float | None = None
    ) -> None:
        super().__init__()
        self._noise, self._reach = noise, reach
        self._f, self._slope = buffers.f, buffers.slope
        self._level, self._for_level = buffers.hyper, buffers.for_hyper
        if not noise.learned:
            fixed = math.log(float(noise.noise_scale))
            self._level = self._f.new_full((len(self._f), 1), fixed)
            self._for_level = torch.empty_like(self._level)

    def _visit(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        log_scale = self._level[:, :1, None]
        if self._reach is not None:
            share = torch.tanh(self._f[..., 1] / self._reach)
            log_scale = log_scale + self._reach * share
        inverse = torch.exp(-log_scale)
        z = (y - self._f[..., 0]) * inverse
        slope = self._noise.standard_slope(z)
        self._slope[..., 0] = -slope * inverse * weight
        by_log_scale = (1 - z * slope) * weight
        if self._reach is not None:
            self._slope[..., 1] = by_log_scale * (1 - share.square())
        self._for_level[:, 0] = by_log_scale.sum((1, 2))
        losses = log_scale - self._noise.standard_log_prob(z)
        return ((losses * weight).sum((1, 2)),)
