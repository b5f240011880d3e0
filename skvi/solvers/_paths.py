"""Starts of fits to a density: normals along paths to modes, as in Pathfinder."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from skvi.base import NormalForm
from skvi.solvers._fixed_draws import FixedDrawsPoint, balanced_noise
from skvi.solvers._mode import LBFGS
from skvi.targets import Target
from skvi.utils._tensors import rand, randn

# Random starts, uniform in this range of every coordinate, as those of Stan are.
N_STARTS, RANGE = 6, 2.0
# Points far from the best normal: their number, distances in deviations, the share of
# the fall of a normal that they lack, further starts, and whitenings of their paths.
N_FAR, NEAREST, FARTHEST, LACK, MORE_STARTS, FAR_ROUNDS = 256, 5.0, 1000.0, 0.05, 3, 2
# Deviations of a normal within which a mode is its own.
OWN = 4.0
# Nats below the best ELBO of modes that count, and the most of them that are searched.
LOW, MAX_MODES = 5.0, 24
# Steps between two whitenings, and whitenings of one path.
STEPS, ROUNDS = 60, 8
# Nats that a step promises at a mode, draws that compare normals, and the smallest
# curvature, relative to the largest, that is not rounding of differences.
TOL, N_DRAWS, FLAT = 1e-6, 128, 1e-9
# Step of central differences, in coordinates in which the curvature is near 1.
STEP = 1e-3
# Parameters up to which the whole curvature is found; beyond, its diagonal from probes.
MAX_DENSE, N_PROBES = 300, 64


@dataclass(frozen=True, eq=False)
class Start:
    """A normal, and minus its ELBO in nats."""

    normal: NormalForm
    value: float


def find_starts(
    target: Target,
    generator: torch.Generator,
    report: Callable[[str], None],
    found: list[Start],
    first: torch.Tensor | None = None,
) -> None:
    """Add the best normal by ELBO along each path to a mode; the best path comes first.

    Zhang, Carpenter, Gelman and Vehtari (2022), *Pathfinder*, with curvature by
    differences of gradients. Other paths begin far from the best normal, where the
    density is above it: modes beyond the range of the first; and at images of modes,
    such as those with other labels. The first path begins at `first`, if given.
    ValueError if none has a finite ELBO; after Ctrl-C those so far are in `found`.
    """
    for start in _search(target, generator, first, found):
        found.append(start)
        report(f"start {len(found)}: ELBO {-start.value:.4f} nats")
    if not found:
        raise ValueError(
            "no normal distribution has a finite ELBO under log_density, near any of "
            f"{N_STARTS} points with unconstrained coordinates within {RANGE:g} of "
            f"{'0' if first is None else 'start'}. Its integral may be infinite: give "
            "every parameter a proper prior, check the supports (scales are "
            "'positive') and the units. Or pass start, a point where it is finite."
        )
    found.sort(key=lambda start: start.value)


def _search(
    target: Target,
    generator: torch.Generator,
    first: torch.Tensor | None,
    found: Sequence[Start],
) -> Iterator[Start]:
    """Ends of paths: from random points, from far ones, and from images of modes."""
    size = target.layout.size
    is_diagonal = size > MAX_DENSE
    n_draws = N_DRAWS if is_diagonal else max(N_DRAWS, 2 * size)
    eps = balanced_noise(generator, n_draws, size, is_diagonal)
    paths = _Paths(target, generator, eps, is_diagonal)
    for number in range(N_STARTS):
        x = RANGE * (2 * rand(generator, size) - 1)
        if first is not None:
            x = first + x if number else first
        if (start := paths.best(x, torch.ones_like(x))) is not None:
            yield start
    if not found:
        return
    center = min(found, key=lambda start: start.value).normal
    for x in _suspects(target, center, generator):
        known = [start.normal for start in found]
        start = paths.best(x, center.scale, FAR_ROUNDS, known)
        if start is not None:
            yield start
    yield from _images(paths, found)


def _images(paths: "_Paths", starts: Sequence[Start]) -> Iterator[Start]:
    """Starts at images of the modes, and of those, where the density is as large."""
    modes: list[NormalForm] = []
    waiting, n_left = sorted(starts, key=lambda start: start.value), MAX_MODES
    lowest = waiting[0].value + LOW
    while waiting and n_left:
        start = waiting.pop(0)
        center = start.normal.mean
        if start.value > lowest or _is_near(center, modes):
            continue
        modes.append(start.normal)
        images = paths.target.images(center)
        top, *values = paths.target.log_joint_batched(torch.cat([center[None], images]))
        for x, value in zip(images, values, strict=True):
            known = [*modes, *(other.normal for other in waiting)]
            if not n_left or not value > top - LOW or _is_near(x, known):
                continue
            image = paths.best(x, start.normal.scale, FAR_ROUNDS, known)
            if image is not None:
                waiting.append(image)
                n_left -= 1
                yield image


def _suspects(
    target: Target, normal: NormalForm, generator: torch.Generator
) -> list[torch.Tensor]:
    """Points that may belong to other modes than that of a normal, likely ones first.

    They are in all directions and at distances over all magnitudes, where the density
    falls less than the normal does; those first where it rises away from it.
    """
    eps = randn(generator, N_FAR, normal.n_noise)
    log_range = math.log(FARTHEST / NEAREST)
    r = NEAREST * (log_range * rand(generator, N_FAR)).exp()
    theta = normal.transform(r[:, None] * eps / eps.norm(dim=1, keepdim=True))
    at_center, _ = target.log_joint_and_gradient(normal.mean[None])
    value, slope = target.log_joint_and_gradient(theta)
    fall = (at_center - value).nan_to_num(math.inf, math.inf)
    rises = ((theta - normal.mean) * slope).sum(1) > 0
    is_above = fall < (1 - LACK) * 0.5 * r.square()
    order = sorted(
        is_above.nonzero()[:, 0].tolist(), key=lambda i: (not rises[i], fall[i])
    )
    return [theta[i] for i in order[:MORE_STARTS]]


@dataclass(frozen=True, eq=False)
class _Paths:
    """Paths of a target, and the draws, (S, P), that compare their normals."""

    target: Target
    generator: torch.Generator
    eps: torch.Tensor
    is_diagonal: bool

    def best(
        self,
        x: torch.Tensor,
        root: torch.Tensor,
        n_rounds: int = ROUNDS,
        known: Sequence[NormalForm] = (),
    ) -> Start | None:
        """Best normal of a path; None if none is finite, or its mode is a known one.

        Normals are at points between x and a mode, whitened by the last of a round.
        Also amid a path: at the end of a funnel the density rises without a mode, and
        a round without a better normal is the last.
        """
        if not bool(self.target.log_joint(x[None]).isfinite()):
            return None
        best: FixedDrawsPoint | None = None
        for _ in range(n_rounds):
            trail, is_mode = _descend(self.target, x, root, known)
            if _is_near(trail[-1], known):
                return None
            before = best
            for x in trail:
                normal, next_root = self._normal(x, root)
                if normal is not None:
                    point = FixedDrawsPoint(self.target, normal, self.eps)
                    best = min(best or point, point, key=lambda p: p.value)
            root = next_root
            is_past = before is best and best is not None and math.isfinite(best.value)
            if is_mode or is_past:
                break
        if best is None or not math.isfinite(best.value):
            return None
        return Start(best.normal, best.value)

    def _normal(
        self, x: torch.Tensor, root: torch.Tensor
    ) -> tuple[NormalForm | None, torch.Tensor]:
        """Normal of the curvature at a point, if it is finite, and its root."""
        if self.is_diagonal:
            root = _diagonal_root(self.target, x, root, self.generator)
            return NormalForm(x, root), root
        root = _dense_root(self.target, x, root)
        scale, info = torch.linalg.cholesky_ex(root @ root.T)
        return None if int(info) else NormalForm(x, scale), root


def _times(root: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return root * u if root.ndim == 1 else root @ u


def _is_near(x: torch.Tensor, normals: Sequence[NormalForm]) -> bool:
    """Whether a point is at the center of one of them."""
    return any(float(n.squared_distance((x - n.mean)[None])) < OWN**2 for n in normals)


def _descend(
    target: Target,
    x: torch.Tensor,
    root: torch.Tensor,
    known: Sequence[NormalForm],
) -> tuple[list[torch.Tensor], bool]:
    """Points after 1, 2, 4, ... steps of L-BFGS and the last; whether it is a mode.

    They are in whitened coordinates, and end where they come to a known mode.
    """

    def evaluate(u: torch.Tensor) -> tuple[float, torch.Tensor]:
        value, slope = target.log_joint_and_gradient((x + _times(root, u))[None])
        if not bool(value.isfinite()) or not bool(slope.isfinite().all()):
            return math.inf, torch.zeros_like(u)
        return -float(value), -_times(root.T if root.ndim == 2 else root, slope[0])

    state, trail = LBFGS(evaluate, torch.zeros_like(x)), []
    for number in range(1, STEPS + 1):
        is_last = not state.step() or state.decrement < TOL
        point = x + _times(root, state.x)
        is_last = is_last or _is_near(point, known)
        if is_last or number == STEPS or number & (number - 1) == 0:
            trail.append(point)
        if is_last:
            break
    return trail, is_last


def _dense_root(target: Target, x: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
    """Root of the inverse of the absolute curvature, (P, P)."""
    root = torch.diag(root) if root.ndim == 1 else root
    step = STEP * root.T
    slopes = target.log_joint_gradient(torch.cat([x + step, x - step])) @ root
    ahead, behind = slopes.nan_to_num(0.0, 0.0, 0.0).chunk(2)
    hessian = (behind - ahead) / (2 * STEP)
    values, vectors = torch.linalg.eigh((hessian + hessian.T) / 2)
    return root @ (vectors / _size(values).sqrt())


def _diagonal_root(
    target: Target, x: torch.Tensor, root: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Root of the inverse of the absolute diagonal of the curvature, (P,), estimated.

    By products with random signs: Bekas, Kokiopoulou and Saad (2007).
    """
    signs = (rand(generator, N_PROBES, len(x)) < 0.5).double() * 2 - 1
    step = STEP * signs * root
    slopes = target.log_joint_gradient(torch.cat([x + step, x - step])) * root
    ahead, behind = slopes.nan_to_num(0.0, 0.0, 0.0).chunk(2)
    return root / _size((signs * (behind - ahead)).mean(0) / (2 * STEP)).sqrt()


def _size(values: torch.Tensor) -> torch.Tensor:
    """Absolute curvatures, those that are rounding raised."""
    size = values.abs()
    return size.clamp(min=float(size.max().clamp(min=1e-300)) * FLAT)
