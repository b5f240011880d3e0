"""Layers of Gaussian processes, and the expected losses of rows that pass them.

Doubly stochastic: a row is drawn from the marginal normal of each inner layer, and the
last layer has the moments of f (Salimbeni and Deisenroth, 2017).
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch

from skvi.base import Draw, Layout, NormalForm
from skvi.base._rows import Rows
from skvi.divergences import Divergence, KLDivergence
from skvi.gaussian_process._bounds import features_at
from skvi.kernels._kernels import covariance
from skvi.linear_model._coefficients import NormalCoefficients, Pair
from skvi.objectives import ELBO
from skvi.posteriors import Posterior
from skvi.predictors.base import Predictor
from skvi.priors import Normal
from skvi.targets import SupervisedTarget
from skvi.targets._least_squares import ExpectedLoss, hyper_path
from skvi.utils._interrupts import limit_threads
from skvi.utils._tensors import CPU, randn
from skvi.utils._validation import CACHE_ELEMENTS, as_tensor, row_chunks, weighted_sum

# Variance that is added to a draw of f, relative to the largest: rounding.
ROUNDING = 1e-10
# Pace of the log variance of inner layers, which starts orders of magnitude too low.
PACE = 5.0
# Draws of functions for the covariance between rows.
N_FUNCTIONS = 1000

#: Means (B, M) and roots of covariances (B, M, M) of a layer with B outputs.
Values = tuple[torch.Tensor, torch.Tensor]


class LayersPredictor(Predictor):
    """L layers; all but the last one move the rows.

    A layer has one kernel and M inducing points, and whitened values for each of its
    outputs. An inner layer adds its outputs to the features, along `directions`, (w,
    d), in units of the `sizes` of the columns. Kernels and points are point parameters;
    they start at the theta of `kernels`, within its bounds, and at `points`, (M, d) for
    each layer. The variance of an inner layer is the first number of its kernel.
    """

    def __init__(
        self,
        kernels: Sequence[Any],
        points: Sequence[torch.Tensor],
        sizes: torch.Tensor,
        directions: torch.Tensor,
        n_outputs: int,
    ) -> None:
        self.kernels, self.sizes, self.directions = kernels, sizes, directions
        self.n_outputs, self.n_inducing = n_outputs, len(points[0])
        inner = len(kernels) - 1
        self.widths = [len(directions)] * inner + [n_outputs]
        self.layout = Layout(
            {
                f"layer_{i}_{k}": (self.n_inducing,)
                for i, width in enumerate(self.widths)
                for k in range(width)
            }
        )
        blocks: dict[str, tuple[int, ...]] = {}
        limits, starts, units = {}, [], []
        for i, (kernel, Z) in enumerate(zip(kernels, points, strict=True)):
            starts += [torch.as_tensor(kernel.theta).double(), Z.flatten()]
            units += [torch.ones_like(starts[-2]), sizes.repeat(len(Z))]
            if i < inner:
                units[-2][0] = PACE
            for j, unit in enumerate(units[-2].tolist()):
                limits[f"kernel_{i}_{j}"] = tuple(kernel.bounds[j] / unit)
                blocks[f"kernel_{i}_{j}"] = (1,)
            blocks[f"points_{i}"] = tuple(Z.shape)
        self.point_layout = Layout(blocks, limits=limits)
        self._sizes = [len(start) for start in starts]
        #: What a step of a point parameter is multiplied by.
        self.units = torch.cat(units)
        self._point = torch.cat(starts) / self.units

    @property
    def row_width(self) -> int:
        """Features of each output."""
        return self.n_inducing * (1 + max(self.widths))

    def initial_point(self) -> torch.Tensor:
        """Kernels and inducing points; see `Predictor.initial_point`."""
        return self._point[: self.point_layout.size]

    def bind(self, point: torch.Tensor) -> Self:
        """Layers at these kernels and points; see `Predictor.bind`."""
        if not len(point):
            return self
        other = copy(self)
        other._point, other.point_layout = point, Layout({})
        return other

    def layers(self) -> Iterator[tuple[Any, torch.Tensor, torch.Tensor]]:
        """Kernel, its theta, and inducing points, layer by layer."""
        parts = iter((self._point * self.units).split(self._sizes))
        for kernel in self.kernels:
            yield kernel, next(parts), next(parts).reshape(self.n_inducing, -1)

    @torch.no_grad()
    def with_points(
        self, posterior: "BlocksPosterior", Z: torch.Tensor, inner: Any
    ) -> tuple["LayersPredictor", "BlocksPosterior"]:
        """The same f in distribution, with further inducing points at their prior.

        Each layer has them where those before it move Z, (M', d), in the mean.
        `inner` is the kernel of inner layers, with other bounds.
        """
        kernels, points, H = [], [], Z
        given = [inner] * (len(self.kernels) - 1) + [self.kernels[-1]]
        layers = zip(given, self.layers(), self.values(posterior), strict=True)
        for i, (kernel, (_, theta, old), (mean, _)) in enumerate(layers):
            kernels.append(kernel.clone_with_theta(theta.numpy()))
            points.append(torch.cat([old, H]))
            if i < len(self.widths) - 1:
                H = self._move(H, features_at(kernel, theta, old, H)[:, :-1] @ mean.T)
        parts = self.sizes, self.directions, self.n_outputs
        predictor = LayersPredictor(kernels, points, *parts)
        blocks, m = posterior.blocks(), len(Z)
        mean = torch.nn.functional.pad(blocks.mean, (0, m))
        root = torch.nn.functional.pad(blocks.scale, (0, m, 0, m))
        root.diagonal(dim1=1, dim2=2)[:, self.n_inducing :] = 1.0
        q = BlocksPosterior(predictor.layout, len(mean))
        return predictor, q.with_last(mean, root)

    def values(self, posterior: "BlocksPosterior") -> list[Values]:
        """Normals of the inducing values, layer by layer."""
        both = posterior.blocks()
        parts = both.mean.split(self.widths), both.scale.split(self.widths)
        return list(zip(*parts, strict=True))

    def moments(
        self, values: Sequence[Values], X: torch.Tensor, noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of f given the noise of the inner layers, (S, n, K).

        `noise` is (S, L - 1, n, w), or (S, L - 1, 1, w), the same for all rows.
        """
        H = X
        for i, (layer, (mean, root)) in enumerate(
            zip(self.layers(), values, strict=True)
        ):
            shape = *H.shape[:-1], len(mean)
            features = features_at(*layer, H.reshape(-1, H.shape[-1]))
            phi, rest = features[:, :-1], features[:, -1:]
            f = (phi @ mean.T).reshape(shape)
            variance = (SquaredLengths.apply(phi, root) + rest).reshape(shape)
            if i < len(self.widths) - 1:
                H = self._move(H, f + variance.sqrt() * noise[:, i])
        return f, variance

    def _move(self, H: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return H + (step @ self.directions) * self.sizes

    def forward(self, theta: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        """Means of all layers given the inducing values; see `Predictor.forward`."""
        return self.sample(theta, X, None)

    def sample(
        self, theta: torch.Tensor, X: torch.Tensor, generator: torch.Generator | None
    ) -> torch.Tensor:
        """Draw f at all rows jointly given inducing values, (S, P): (S, n, K).

        Without a generator each layer is at its mean.
        """
        return torch.stack([self._sample(v, X.double(), generator) for v in theta])

    def _sample(self, v: torch.Tensor, X: torch.Tensor, generator: Any) -> torch.Tensor:
        H, sizes = X, [self.n_inducing * width for width in self.widths]
        for i, (layer, own) in enumerate(
            zip(self.layers(), v.split(sizes), strict=True)
        ):
            phi = features_at(*layer, H)[:, :-1]
            f = phi @ own.reshape(self.widths[i], -1).T
            if generator is not None:
                root = _root_of_rest(covariance(*layer[:2], H, H), phi)
                f = f + root @ randn(generator, *f.shape)
            if i < len(self.widths) - 1:
                H = self._move(H, f)
        return f


def _root_of_rest(K: torch.Tensor, phi: torch.Tensor) -> torch.Tensor:
    """Root of the covariance of what the inducing values do not determine, (n, n)."""
    size = ROUNDING * float(K.diagonal().max())
    rest = K - phi @ phi.T + size * torch.eye(len(K), dtype=K.dtype, device=K.device)
    root, failed = torch.linalg.cholesky_ex(rest)
    return rest.diagonal().clamp(min=0).sqrt().diag() if failed else root


class BlocksPosterior(Posterior):
    """Independent normals, of full covariance, of B blocks of M parameters.

    A product of `FullRankNormal`, with one operation for all blocks. Variational
    parameters: means, log diagonals and the rest of the Cholesky factors, whose rows
    are in units of the diagonal.
    """

    def __init__(self, layout: Layout, n_blocks: int) -> None:
        self.layout, self.n_blocks = layout, n_blocks
        m = layout.size // n_blocks
        self.params = torch.zeros(
            layout.size * (2 + m), dtype=torch.float64, device=CPU
        )

    def blocks(self) -> NormalForm:
        """The normals: means (B, M), roots of covariances (B, M, M)."""
        shape = self.n_blocks, self.layout.size // self.n_blocks
        n = self.layout.size
        mean, log_diagonal, rest = self.params.split([n, n, n * shape[1]])
        eye = torch.eye(shape[1], dtype=rest.dtype, device=rest.device)
        unit = rest.reshape(*shape, -1).tril(-1) + eye
        scale = log_diagonal.reshape(*shape, 1).exp() * unit
        return NormalForm(mean.reshape(shape), scale)

    def with_last(self, mean: torch.Tensor, scale: torch.Tensor) -> Self:
        """The same, with other normals in the last blocks, (k, M) and (k, M, M)."""
        given, k = self.blocks(), len(mean)
        mean = torch.cat([given.mean[:-k], mean])
        scale = torch.cat([given.scale[:-k], scale])
        diagonal = scale.diagonal(dim1=1, dim2=2)
        parts = mean, diagonal.log(), scale / diagonal[..., None]
        return self.at(torch.cat([part.flatten() for part in parts]))

    def draw(self, n_draws: int, generator: torch.Generator) -> Draw:
        """Draw all blocks; see `Posterior.draw`."""
        blocks = self.blocks()
        eps = randn(generator, n_draws, *blocks.mean.shape)
        log_q = blocks.log_prob_whitened(eps).sum(1)
        return Draw(blocks.transform(eps).flatten(1), log_q, self.side)

    def log_prob(
        self, theta: torch.Tensor, params: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Log density; see `Posterior.log_prob`."""
        blocks = (self if params is None else self.at(params)).blocks()
        return blocks.log_prob(theta.reshape(-1, *blocks.mean.shape)).sum(1)


class LayersTarget(SupervisedTarget):
    """Losses of rows that pass the layers; theta has the whitened inducing values."""

    has_density = False

    def __init__(self, predictor: LayersPredictor, *parts: Any) -> None:
        likelihood, loss, *data = parts
        prior = Normal().build(predictor.layout)
        super().__init__(predictor, likelihood, loss, prior, *data)
        self._prior = Normal().build(Layout({"values": (predictor.n_inducing,)}))

    def expected_loss(
        self,
        posterior: Any,
        rows: torch.Tensor | None = None,
        n_draws: int = 1,
        generator: Any = None,
    ) -> torch.Tensor:
        """From draws of the inner layers; see `SupervisedTarget.expected_loss`."""
        losses = self._row_losses(posterior, self.rows.take(rows), n_draws, generator)
        return self._total(losses, rows).mean() - self.constant

    def _row_losses(
        self, posterior: Any, part: Rows, n_draws: int, generator: Any
    ) -> torch.Tensor:
        """Expected losses given each draw of the inner layers, (S, n)."""
        predictor, likelihood = self.predictor, self.likelihood
        *inner, k = predictor.widths
        noise = randn(generator, n_draws, len(inner), len(part), inner[0])
        values = predictor.values(posterior)
        mean, variance = predictor.moments(values, part.X, noise)
        mean, variance = mean.flatten(0, 1), variance.flatten(0, 1)
        if k == 1:
            mean, variance = mean[:, 0], variance[:, 0]
        else:
            variance = torch.diag_embed(variance)
        at = mean, variance, self.loss, likelihood, part.y.repeat(n_draws)
        losses = ExpectedLoss.apply(*at)
        if self.hyper.requires_grad and self.likelihood_spec.learned:
            losses = losses + hyper_path(*at)
        return losses.reshape(n_draws, -1)

    def divergence(self, divergence: Divergence, posterior: Any) -> torch.Tensor:
        """Sum of the divergences of all outputs of all layers from their priors."""
        return divergence.closed_form(posterior.blocks(), self._prior).sum()

    @torch.no_grad()
    def objective_draws(
        self, divergence: Divergence, posterior: Any, n_draws: int, generator: Any
    ) -> torch.Tensor:
        """Independent estimates of the objective, which is maximized, (S,)."""
        total = self.constant - self.divergence(divergence, posterior)
        for part in self._parts(n_draws):
            losses = self._row_losses(posterior, part, n_draws, generator)
            total = total - weighted_sum(losses, part.weight)
        return total

    def elbo_draws(
        self, posterior: Any, n_draws: int, generator: Any
    ) -> torch.Tensor | None:
        """Estimates of the ELBO; see `Target.elbo_draws`."""
        return self.objective_draws(KLDivergence(), posterior, n_draws, generator)


class LayersELBO(ELBO):
    """The ELBO of layers: expected losses, and a divergence for each output."""

    def surrogate(
        self,
        target: Any,
        posterior: Any,
        divergence: Any,
        rows: torch.Tensor | None,
        n_draws: int,
        generator: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Negative ELBO; see `Objective.surrogate`."""
        loss = target.expected_loss(posterior, rows, n_draws, generator)
        value = loss + target.divergence(divergence, posterior)
        return value, value.detach()


@dataclass(frozen=True, eq=False)
class LayeredFunctions(NormalCoefficients):
    """f, a mixture of normals: one for each draw of the noise of inner layers.

    The noise, (S, L - 1, 1, w), is the same for all rows, so that the prediction for a
    row does not depend on others.
    """

    predictor: LayersPredictor = field(kw_only=True)
    posterior: Posterior = field(kw_only=True)
    noise: torch.Tensor = field(kw_only=True)

    @classmethod
    def at(
        cls,
        model: Any,
        predictor: LayersPredictor,
        posterior: Posterior,
        noise: torch.Tensor,
    ) -> Self:
        """Those of a mixture with as many equal weights as the noise has draws."""
        log_w = noise.new_full((len(noise),), -float(np.log(len(noise))))
        parts = {"predictor": predictor, "posterior": posterior, "noise": noise}
        return cls(model, (), log_w, **parts)

    def functions_at_nodes(self, X: Any, n_jobs: int | None) -> Pair:
        """Moments by draw and row, (S, n), or (S, n, K) and (S, n, K, K)."""
        rows, parts = as_tensor(X).double(), []
        width = len(self.noise) * self.predictor.row_width
        with torch.no_grad(), limit_threads(len(rows) * width, n_jobs):
            values = self.predictor.values(self.posterior)
            for chunk in row_chunks(len(rows), width, 16 * CACHE_ELEMENTS):
                parts.append(self.predictor.moments(values, rows[chunk], self.noise))
        mean, variance = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        if mean.shape[2] == 1:
            return mean[..., 0], variance[..., 0]
        return mean, torch.diag_embed(variance)

    def function_covariance(self, X: Any, n_jobs: int | None) -> np.ndarray:
        """Covariance of draws of f between the rows of X, (n, n)."""
        generator, rows = torch.Generator().manual_seed(0), as_tensor(X).double()
        with torch.no_grad(), limit_threads(N_FUNCTIONS * len(rows) ** 2, n_jobs):
            theta = self.posterior.draw(N_FUNCTIONS, generator).theta
            f = self.predictor.sample(theta, rows, generator)[..., 0]
        return np.atleast_2d(np.cov(f.T.numpy()))


class SquaredLengths(torch.autograd.Function):
    """Squared lengths of ``root' phi`` of features (n, M) and roots (B, M, M): (n, B).

    One product forward, two backward. Training spends most of its time here, in single
    precision, which suffices for sums of squares.
    """

    @staticmethod
    def forward(ctx: Any, phi: torch.Tensor, roots: torch.Tensor) -> torch.Tensor:
        dtype = torch.float32 if any(ctx.needs_input_grad) else roots.dtype
        phi, R = phi.to(dtype), roots.to(dtype).transpose(0, 1).flatten(1)
        P = phi @ R
        ctx.save_for_backward(phi, R, P)
        return P.reshape(len(phi), *roots.shape[:2]).square().sum(2).double()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        phi, R, P = ctx.saved_tensors
        G = P.reshape(*gradient.shape, -1) * (2 * gradient[..., None].float())
        flat = G.flatten(1)
        for_roots = (phi.T @ flat).reshape(len(R), *G.shape[1:]).transpose(0, 1)
        return (flat @ R.T).double(), for_roots.double()


def principal_directions(
    X: torch.Tensor, sizes: torch.Tensor, weight: torch.Tensor | None, width: int
) -> torch.Tensor:
    """Orthonormal directions of largest variance in units of the columns, (w, d)."""
    d = X.shape[1]
    if width >= d:
        return torch.eye(d, dtype=X.dtype, device=X.device)
    away = (X - X.mean(0)) / sizes
    gram = away.T @ (away if weight is None else weight[:, None] * away)
    return torch.linalg.eigh(gram)[1][:, -width:].T.flip(0)
