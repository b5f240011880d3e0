"""Coefficients beside their one unknown scale, in coordinates nearly independent."""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from scipy.special import ndtri_exp

from skvi.base import Layout
from skvi.priors import FlatReference
from skvi.posteriors import Posterior
from skvi.solvers import implied_scale
from skvi.solvers._mode import SINGULAR, add, find_mode, scale_of
from skvi.targets import SupervisedTarget, Target
from skvi.utils._log_space import LOG_2PI

__all__ = ["ScalePath", "find_scale_path", "has_scale_path"]

# Normals along the path are so far apart in the posterior deviation of the log scale,
# and in the log scale at most; they end where its density is e^-40 of the largest.
STEP, LONGEST, FALL, MAX_NODES, TRIAL = 0.6, 0.7, 40.0, 80, 0.1
# Above so many parameters their covariances along the path take too much memory.
MAX_PARAMS = 300
# Points between two normals in the table of log scales.
FINER = 16
# Numbers of covariances that are gathered for all draws at once.
GATHERED = 2**20


class ScalePath(Target):
    """Log joint density of a log scale and coefficients, in coordinates of a path.

    The path has a normal near the posterior for every log scale u. With ``z`` of shape
    (1 + P,), ``u = quantile(z[0])`` and ``theta = mean(u) + root(u) @ z[1:]``, so
    that z is about standard normal, however theta depends on its scale. The integral
    over z is that over theta under the prior without a scale: the evidence.

    Parameters
    ----------
    target : SupervisedTarget
        Without hyperparameters, under a prior with one unknown scale.
    path : Path
    """

    prior = None

    def __init__(self, target: SupervisedTarget, path: "Path") -> None:
        self.data, self.prior_of_both = target.with_prior(FlatReference()), target.prior
        self.path = path
        self.layout = Layout({"log_scale": (1,), "coordinates": (target.layout.size,)})

    def theta(self, z: torch.Tensor) -> torch.Tensor:
        """Parameters of the target at coordinates of shape (..., 1 + P)."""
        flat = z.reshape(-1, z.shape[-1])
        return self._place(flat)[1].reshape(*z.shape[:-1], -1)

    def log_joint(
        self, z: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log density of z, (S,), with that of the scale and all Jacobians."""
        log_scale, theta, volume = self._place(z)
        prior = self.prior_of_both.log_prob_with_scale(theta, log_scale)
        return self.data.log_joint(theta, rows) + prior + volume

    def log_joint_and_gradient(
        self, z: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Target.log_joint_and_gradient`."""
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            log_scale, theta, volume = self._place(z)
            value, slope = self.data.log_joint_and_gradient(theta.detach())
            rest = self.prior_of_both.log_prob_with_scale(theta, log_scale) + volume
            (gradient,) = torch.autograd.grad((theta * slope).sum() + rest.sum(), z)
        return value + rest.detach(), gradient

    def _place(
        self, z: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log scales, (S,), parameters, (S, P), and the log volume of a unit of z."""
        path = self.path
        k = torch.searchsorted(path.normal, z[:, 0].detach())
        k = k.clamp(1, len(path.normal) - 1)
        before = path.normal[k - 1], path.log_scales[k - 1]
        slope = (path.log_scales[k] - before[1]) / (path.normal[k] - before[0])
        log_scale = before[1] + slope * (z[:, 0] - before[0])
        last = len(path.nodes) - 1
        at = ((log_scale - path.nodes[0]) / path.step).clamp(0, last)
        left = at.detach().floor().clamp(max=last - 1).to(torch.int64)
        share = (at - left)[:, None]
        diagonal = torch.lerp(path.diagonals[left], path.diagonals[left + 1], share)
        size = max(1, GATHERED // z[:, 1:].shape[1] ** 2)
        parts = zip(
            left.split(size), share.split(size), z[:, 1:].split(size), strict=True
        )
        theta = torch.cat([self._along(*part) for part in parts])
        return log_scale, theta, diagonal.log().sum(1) + slope.log()

    def _along(
        self, left: torch.Tensor, share: torch.Tensor, noise: torch.Tensor
    ) -> torch.Tensor:
        path = self.path
        mean = torch.lerp(path.means[left], path.means[left + 1], share)
        root = torch.lerp(path.roots[left], path.roots[left + 1], share[:, :, None])
        return mean + (root @ noise[:, :, None])[:, :, 0]


class Path(NamedTuple):
    """Normals at log scales, M of them; and the table of a standard normal's."""

    nodes: torch.Tensor
    means: torch.Tensor
    roots: torch.Tensor
    diagonals: torch.Tensor
    step: float
    normal: torch.Tensor
    log_scales: torch.Tensor


class _Node(NamedTuple):
    mean: torch.Tensor
    root: torch.Tensor
    log_mass: float


def has_scale_path(target: Target, posterior: Posterior) -> bool:
    """Whether there is one unknown scale, and a path is found without draws.

    Parameters
    ----------
    target : Target
    posterior : Posterior

    Returns
    -------
    bool
    """
    is_small = target.layout.size <= MAX_PARAMS
    return is_small and target.has_design and target.reference.n_unknown_scales == 1


def find_scale_path(target: Target, posterior: Posterior) -> ScalePath:
    """Find normals along the scales that the posterior has.

    Parameters
    ----------
    target : SupervisedTarget
    posterior : Posterior
        Of a target that `has_scale_path`; it says where the scale is about.

    Returns
    -------
    ScalePath
    """
    normal = posterior.components[0].as_normal()
    log_scale = 0.0
    if normal is not None:
        log_scale = math.log(implied_scale(target.prior, normal)[0])
    target = target.with_design()
    about = [_node_at(target, log_scale + d, None) for d in (-TRIAL, 0.0, TRIAL)]
    bend = 2 * about[1].log_mass - about[0].log_mass - about[2].log_mass
    width = TRIAL * max(bend, 1e-9) ** -0.5
    step = min(STEP * width, LONGEST)
    nodes, found = [log_scale], [about[1]]
    for sign in (-1, 1):
        for _ in range(MAX_NODES):
            end = -1 if sign > 0 else 0
            node = _node_at(target, nodes[end] + sign * step, found[end].mean)
            place = len(nodes) if sign > 0 else 0
            nodes.insert(place, nodes[end] + sign * step)
            found.insert(place, node)
            if node.log_mass < max(n.log_mass for n in found) - FALL:
                break
    at = torch.tensor(nodes, dtype=torch.float64)
    table = _normal_of(at.numpy(), np.array([n.log_mass for n in found]))
    roots = torch.stack([n.root for n in found])
    means = torch.stack([n.mean for n in found])
    diagonals = roots.diagonal(dim1=1, dim2=2)
    return ScalePath(target, Path(at, means, roots, diagonals, step, *table))


def _normal_of(
    at: np.ndarray, log_mass: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard normal values, and the log scales with the same share below them."""
    fine = np.linspace(at[0], at[-1], FINER * (len(at) - 1) + 1)
    log_density = CubicSpline(at, log_mass)(fine)
    below = np.logaddexp.accumulate(log_density)
    above = np.logaddexp.accumulate(log_density[::-1])[::-1]
    total = below[-1]
    # Half of its own mass is below a point.
    half = log_density - math.log(2)
    low = ndtri_exp(np.minimum(logsubexp(below, half) - total, -1e-300))
    high = -ndtri_exp(np.minimum(logsubexp(above, half) - total, -1e-300))
    normal = np.where(below < above, low, high)
    return torch.from_numpy(normal), torch.from_numpy(fine)


def logsubexp(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a + np.log1p(-np.exp(b - a))


def _node_at(
    target: SupervisedTarget, log_scale: float, start: torch.Tensor | None
) -> _Node:
    """Laplace's approximation at a scale, and the log of the mass that it has."""
    normal = target.prior.given_scale(math.exp(log_scale)).as_normal()
    mean, curvature = find_mode(target, normal, start=start)
    gram = target.predictor.gram(target.X, curvature)
    root = scale_of(add(gram, 1 / normal.variance))
    if root is None:
        raise ValueError(SINGULAR)
    near = target.with_prior(FlatReference())
    at = torch.tensor([log_scale], dtype=torch.float64)
    value = near.log_joint(mean[None])
    value = value + target.prior.log_prob_with_scale(mean[None], at)
    volume = root.diagonal().log().sum() + 0.5 * len(mean) * LOG_2PI
    return _Node(mean, root, float(value + volume))
