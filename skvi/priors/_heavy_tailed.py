"""Heavy-tailed priors: Laplace, Student-t, horseshoe, log-uniform."""

import math
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import betaln, digamma

from skvi.base import Layout
from skvi.exceptions import IncompatibleComponentsError
from skvi.expectations._log_square import (
    HORSESHOE,
    ONE,
    ZERO,
    expected_inverse,
    expected_log,
    log_scaled_e1,
    log_scaled_e1_slope,
)
from skvi.priors._blocks import POSITIVE, SCALE, BuiltIndependent, scaled
from skvi.priors.base import VAGUE_SCALE, BuiltPrior, Prior
from skvi.utils._tensors import rand, randn


class Laplace(Prior):
    """Independent Laplace (double exponential) density on every coefficient.

    Parameters
    ----------
    scale : float or "learn", default=1.0
        The density is ``exp(-abs(theta) / scale) / (2 * scale)``, with standard
        deviation ``sqrt(2) * scale``; in units of the block's natural size. "learn"
        as in `Normal`.

    Examples
    --------
    >>> from skvi.priors import Laplace
    >>> Laplace(scale=0.5)
    Laplace(scale=0.5)
    """

    _parameter_constraints: dict = {"scale": SCALE}

    def __init__(self, scale: float | str = 1.0) -> None:
        self.scale = scale

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior over every coordinate of a layout."""
        self.validate()
        return scaled(layout, self.scale, _BuiltLaplace)


class _BuiltLaplace(BuiltIndependent):
    is_log_concave = True
    width = math.sqrt(2)

    def _log_density(self, u: torch.Tensor) -> torch.Tensor:
        return -u.abs() - math.log(2)

    def _slope(self, u: torch.Tensor) -> torch.Tensor:
        return -u.sign()

    def _expected(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        # Mean of the folded normal: E|u|.
        z = mean / std
        density = torch.exp(-0.5 * z.square()) * math.sqrt(2 / math.pi)
        return -std * density - mean * torch.erf(z / math.sqrt(2)) - math.log(2)

    def _draw(self, generator: torch.Generator, *shape: int) -> torch.Tensor:
        u = rand(generator, *shape) - 0.5
        return -u.sign() * torch.log1p(-2 * u.abs())


class Horseshoe(Prior):
    r"""Normal with a half-Cauchy scale for each coefficient: sparse, heavy-tailed.

    ``theta_j ~ N(0, (scale * lambda_j)^2)`` with ``lambda_j`` half-Cauchy. The local
    scales are integrated out:

    .. math:: \pi(\theta) = \frac{e^t E_1(t)}{s \sqrt{2 \pi^3}},
              \qquad t = \frac{\theta^2}{2 s^2}

    It has an infinite peak at 0, which shrinks small coefficients strongly, and Cauchy
    tails, which leave large ones almost unshrunk.

    Parameters
    ----------
    scale : float or "learn", default=1.0
        The global scale s, in units of the block's natural size (`Block.scale`).
        Small values favor few nonzero coefficients. "learn" as in `Normal`.

    Notes
    -----
    ``exp(t) E1(t)`` is a Stieltjes function, so that its logarithm is a mixture of
    ``-log(t + x)`` over x with the density ``exp(x) / (x (pi^2 + Ei(x)^2))``;
    ``E[log prior]`` under a normal posterior is therefore a one-dimensional
    integral, computed to about 1e-11 nats without draws. The density is not
    log-concave: an ELBO can have more than one optimum.

    References
    ----------
    Carvalho, Polson and Scott (2010), *The horseshoe estimator for sparse signals*,
    theorem 1 and its appendix.

    Examples
    --------
    >>> from skvi.priors import Horseshoe
    >>> Horseshoe(scale=0.1)
    Horseshoe(scale=0.1)
    """

    _parameter_constraints: dict = {"scale": SCALE}

    def __init__(self, scale: float | str = 1.0) -> None:
        self.scale = scale

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior over every coordinate of a layout."""
        self.validate()
        return scaled(layout, self.scale, _BuiltHorseshoe)


class _BuiltHorseshoe(BuiltIndependent):
    constant = -0.5 * math.log(2 * math.pi**3)

    def _log_density(self, u: torch.Tensor) -> torch.Tensor:
        return self.constant + log_scaled_e1(0.5 * u.square())

    def _slope(self, u: torch.Tensor) -> torch.Tensor:
        return log_scaled_e1_slope(0.5 * u.square()) * u

    def _expected(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        root = math.sqrt(2)
        return self.constant - expected_log(mean / root, std / root, HORSESHOE)

    def _draw(self, generator: torch.Generator, *shape: int) -> torch.Tensor:
        local = torch.tan(0.5 * math.pi * rand(generator, *shape))
        return local * randn(generator, *shape)


# Draws are at most exp(350) scales from 0, so that their squares are finite.
LARGEST_LOG = 700.0


class StudentT(Prior):
    """Independent Student-t density on every coefficient: heavy tails.

    Most coefficients are of the size of `scale`, and a few may be much larger: data
    that support them are hardly shrunk.

    Parameters
    ----------
    df : float, default=4.0
        Degrees of freedom: tails decay as ``abs(theta)^-(df + 1)``. 1 is the Cauchy
        density; large values give the normal one. The variance is finite above 2.
    scale : float or "learn", default=1.0
        In units of the block's natural size (`Block.scale`); the standard deviation
        is ``scale * sqrt(df / (df - 2))``. "learn" as in `Normal`.

    Notes
    -----
    ``E[log prior]`` under a normal posterior is a one-dimensional integral, computed to
    about 1e-11 nats without draws. The density is not log-concave: if the data are
    weakly informative, an ELBO can have more than one optimum.

    References
    ----------
    Gelman, Jakulin, Pittau and Su (2008), *A weakly informative default prior
    distribution for logistic and other regression models*.

    Examples
    --------
    >>> from skvi.priors import StudentT
    >>> StudentT(df=3.0)
    StudentT(df=3.0)
    """

    _parameter_constraints: dict = {"df": POSITIVE, "scale": SCALE}

    def __init__(self, df: float = 4.0, scale: float | str = 1.0) -> None:
        self.df, self.scale = df, scale

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior over every coordinate of a layout."""
        self.validate()
        return scaled(layout, self.scale, partial(_BuiltStudentT, float(self.df)))


class ARD(Prior):
    r"""Automatic relevance determination: a Gamma prior on each precision.

    ``theta_j ~ N(0, 1 / precision_j)`` with ``precision_j ~ Gamma(shape, rate)``.
    The precisions are integrated out, which leaves a Student-t density with
    ``2 * shape`` degrees of freedom and scale ``sqrt(rate / shape)`` on every
    coefficient; `expected_precision` recovers them after a fit.

    Parameters
    ----------
    shape, rate : float, default=1e-6
        Parameters of the Gamma density; small values are nearly scale-free, as in
        `sklearn.linear_model.ARDRegression`. Coefficients are in units of the block's
        natural size (`Block.scale`). In linear models they are those of the columns as
        they are; ``prior="ard"`` is relative to each column, so that units do not
        matter.

    Notes
    -----
    Vague values cost evidence: with 1e-6 about 13.8 nats for every coefficient, so that
    evidences of models with different numbers of features should be compared under an
    informative prior. Intercepts get N(0, 10^2).

    References
    ----------
    MacKay (1994), *Bayesian nonlinear modeling for the prediction competition*;
    Tipping (2001), *Sparse Bayesian learning and the relevance vector machine*,
    equation 32 for the marginal density.

    Examples
    --------
    >>> from skvi.priors import ARD
    >>> bool(ARD().expected_precision(3.0, 0.1) < 0.2)
    True
    """

    _parameter_constraints: dict = {"shape": POSITIVE, "rate": POSITIVE}
    relative_to = None
    intercept_scale = VAGUE_SCALE

    def __init__(self, shape: float = 1e-6, rate: float = 1e-6) -> None:
        self.shape, self.rate = shape, rate

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the marginal prior over every coordinate of a layout."""
        self.validate()
        scale = math.sqrt(self.rate / self.shape)
        return _BuiltStudentT(2 * float(self.shape), scale * layout.natural_scales())

    def expected_precision(self, mean: ArrayLike, std: ArrayLike) -> np.ndarray:
        """Posterior mean of each precision, given a normal posterior of theta.

        Parameters
        ----------
        mean, std : array-like of shape (P,) or any other
            Posterior means and standard deviations in units of `Block.scale`: for
            linear models ``coef_`` and ``coef_std_``, with ``prior="ard"`` times the
            units of the columns, ``posterior_.units.x_scale``.

        Returns
        -------
        ndarray of the same shape
            ``E_q[(shape + 1/2) / (rate + theta^2 / 2)]``, to about 1e-11 relative.
            Large where a coefficient is irrelevant.
        """
        self.validate()
        mean, std = np.broadcast_arrays(np.asarray(mean), np.asarray(std))
        unit = math.sqrt(2 * self.rate)
        parts = [a.astype(np.float64).ravel() / unit for a in (mean, std)]
        found = expected_inverse(*map(torch.from_numpy, parts)).numpy()
        return (self.shape + 0.5) / self.rate * found.reshape(mean.shape)


class _BuiltStudentT(BuiltIndependent):
    def __init__(self, df: float, scale: torch.Tensor) -> None:
        super().__init__(scale)
        self.df = df
        # gamma((df + 1) / 2) / gamma(df / 2), without cancellation for large df.
        self.constant = -float(betaln(df / 2, 0.5)) - 0.5 * math.log(df)
        # Just above two degrees of freedom the variance is not a measure of the width.
        self.width = math.sqrt(df / (df - 2)) if df > 2.2 else 1.0

    def _log_density(self, u: torch.Tensor) -> torch.Tensor:
        return self.constant - 0.5 * (self.df + 1) * torch.log1p(u.square() / self.df)

    def _slope(self, u: torch.Tensor) -> torch.Tensor:
        return -(self.df + 1) * u / (self.df + u.square())

    def _expected(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        root = math.sqrt(self.df)
        kernel = expected_log(mean / root, std / root, ONE)
        return self.constant - 0.5 * (self.df + 1) * kernel

    def _draw(self, generator: torch.Generator, *shape: int) -> torch.Tensor:
        # Bailey (1994): the polar method, for every df.
        log_radius = -2 / self.df * torch.log1p(-rand(generator, *shape))
        squared = self.df * torch.expm1(log_radius.clamp(max=LARGEST_LOG))
        angle = 2 * math.pi * rand(generator, *shape)
        return squared.sqrt() * torch.cos(angle)


# The KL from a normal around 0 is then 0.
CONSTANT = 0.5 * (math.log(math.pi) + 1 - float(digamma(0.5)))

# The density is infinite at 0: below this size it counts as constant.
SMALLEST = 1e-300


class LogUniform(Prior):
    r"""Density proportional to ``1 / abs(theta)``: scale-free sparsity.

    The logarithm of the size of a coefficient is uniform, so that no size is preferred,
    and coefficients that the data do not support shrink to 0.

    Notes
    -----
    It is improper: there is no evidence, no exact posterior, and it cannot be sampled;
    `evidence_bounds` and objectives that compare q with the exact posterior refuse it.
    The divergence to it is defined up to a constant, which is chosen so that ``KL(q ||
    prior)`` is 0, its minimum, for a normal q around 0; it depends on the ratio of mean
    and standard deviation alone. `lower_bound_` is an ELBO up to that constant, and not
    a bound on a log evidence. The posterior standard deviations of coefficients that
    shrink to 0 do so as well: there is an infimum, which the fit approaches within
    `tol`, in up to some 200 steps: ``max_iter=400``. Intercepts get N(0, 10^2).

    References
    ----------
    Kingma, Salimans and Welling (2015), *Variational dropout and the local
    reparameterization trick*; Molchanov, Ashukha and Vetrov (2017), *Variational
    dropout sparsifies deep neural networks*, equation 14 (here exact, there a fit).

    Examples
    --------
    >>> from skvi.priors._heavy_tailed import LogUniform
    >>> LogUniform()
    LogUniform()
    """

    relative_to = "each"
    intercept_scale = VAGUE_SCALE

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior over every coordinate of a layout."""
        self.validate()
        return _BuiltLogUniform(layout.natural_scales())


class _BuiltLogUniform(BuiltIndependent):
    is_proper = False

    def _log_density(self, u: torch.Tensor) -> torch.Tensor:
        return -u.abs().clamp(min=SMALLEST).log() - CONSTANT

    def _slope(self, u: torch.Tensor) -> torch.Tensor:
        return torch.where(u.abs() > SMALLEST, -1 / u, 0.0)

    def _expected(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            size = torch.hypot(mean.double(), std.double())
        unit = expected_log(mean / size, std / size, ZERO)
        return -0.5 * unit - size.log() - CONSTANT

    def _draw(self, generator: torch.Generator, *shape: int) -> torch.Tensor:
        raise IncompatibleComponentsError(
            "A draw from the prior",
            "a proper one, which LogUniform is not",
            "Horseshoe() or StudentT(df=1.0), which are sparse and proper",
        )
