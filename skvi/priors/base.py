"""What every prior must implement."""

import math
from numbers import Real
from typing import Any, cast

import torch

from skvi.base import Layout, NormalForm
from skvi.base._component import Component
from skvi.utils._tensors import CPU, Movable, log_gamma_density, log_gamma_draws
from skvi.utils._validation import Interval

__all__ = ["VAGUE_SCALE", "BuiltPrior", "GammaHyperprior", "Prior"]

# Scale of weak priors of intercepts.
VAGUE_SCALE = 10.0
# Draws of vague hyperpriors leave the range of floats: logs are clipped here.
MAX_LOG = 600.0


class GammaHyperprior(Component):
    """Hyperprior of one scale, a Gamma distribution of the precision, 1 / scale^2.

    ``Normal(scale=GammaHyperprior())`` is the prior of
    `sklearn.linear_model.BayesianRidge`. `BayesianLinearRegression` infers the
    precision; everywhere else it is integrated out, which leaves a multivariate
    Student-t with ``2 * shape`` degrees of freedom.

    Parameters
    ----------
    shape, rate : float, default=1e-6
        Parameters of the Gamma distribution, with mean ``shape / rate``. The default is
        uninformative, and costs ``-log(shape)`` = 13.8 nats of evidence: to compare
        models, use an informative hyperprior. In linear models it holds for the columns
        as they are; ``prior="hierarchical"`` is relative to the root mean square of
        their standard deviations, so that the fit does not depend on a common unit.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout
    >>> from skvi.priors import GammaHyperprior, Normal
    >>> prior = Normal(GammaHyperprior(shape=1.0, rate=1.0))
    >>> built = prior.build(Layout({"coef": (1, 2)}))
    >>> round(float(built.log_prob(torch.zeros(1, 2))), 4)  # 1 / (2 pi)
    -1.8379
    """

    _parameter_constraints: dict = {
        "shape": [Interval(Real, 0, None, closed="neither")],
        "rate": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(self, shape: float = 1e-6, rate: float = 1e-6) -> None:
        self.shape, self.rate = shape, rate

    def log_density(self, log_precision: torch.Tensor) -> torch.Tensor:
        """Log density of the log of the precision.

        Parameters
        ----------
        log_precision : Tensor of any shape

        Returns
        -------
        Tensor of the same shape
            In nats, with the Jacobian of the logarithm.
        """
        shape, rate = log_precision.new_tensor([self.shape, self.rate])
        return log_gamma_density(log_precision, shape, rate.log())

    def draw_log(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Draws of the log of the precision.

        Parameters
        ----------
        n_draws : int
        generator : torch.Generator

        Returns
        -------
        Tensor of shape (n_draws, 1)
            Clipped to the range of floats.
        """
        shape = self.shape + torch.zeros(
            n_draws, 1, dtype=torch.float64, device=generator.device
        )
        draws = log_gamma_draws(shape, generator)
        return (draws - math.log(self.rate)).clamp(-MAX_LOG, MAX_LOG)


class BuiltPrior(Movable):
    """A prior with tensors: what `Prior.build` returns.

    Examples
    --------
    >>> from skvi.base import Layout
    >>> from skvi.priors import Normal
    >>> Normal(scale=2.0).build(Layout({"coef": (1, 2)})).as_normal().scale
    tensor([2., 2.], dtype=torch.float64)
    """

    #: Names of the hyperparameters that a fit learns (type-II maximum likelihood).
    learned: tuple[str, ...] = ()
    #: Whether the density is proper, so that there is an evidence.
    is_proper = True

    def initial_hyper(self) -> torch.Tensor:
        """Unconstrained hyperparameters from which a fit starts.

        Returns
        -------
        Tensor of shape (H,)
            One number for each name in `learned`, in float64; empty by default.
        """
        return torch.zeros(0, dtype=torch.float64, device=CPU)

    def learned_scales(self) -> torch.Tensor | None:
        """Index of the hyperparameter that is the log scale factor of each coordinate.

        Returns
        -------
        Tensor of int of shape (P,) or None
            Positions in `learned`, -1 for fixed scales. None if hyperparameters are
            something else, or the prior is not normal.
        """
        normal = None if self.learned else self.as_normal()
        if normal is None:
            return None
        return torch.full((normal.size,), -1, device=CPU)

    def bind(self, hyper: torch.Tensor) -> "BuiltPrior":
        """Return the prior with these hyperparameters in place of "learn".

        Parameters
        ----------
        hyper : Tensor of shape (H,)
            Unconstrained: logs of scales.

        Returns
        -------
        BuiltPrior
            Differentiable in `hyper`; the prior itself if H is 0.
        """
        return self

    #: Parts of it, by their numbers, that integrate out the scale of a normal each.
    unknown_scales: tuple[int, ...] = ()

    #: Parts of it that are numbers of correlated pairs.
    paired: tuple[int, ...] = ()

    @property
    def n_unknown_scales(self) -> int:
        """How many scales of normals it integrates out."""
        return len(self.unknown_scales)

    def given_scale(self, scale: float, part: int | None = None) -> "BuiltPrior":
        """Return the prior where an unknown scale is known.

        Parameters
        ----------
        scale : float
        part : int, default=None
            One of `unknown_scales`; None is the only one.

        Returns
        -------
        BuiltPrior
        """
        raise NotImplementedError

    def log_density_of_scale(
        self, log_scale: torch.Tensor, part: int | None = None
    ) -> torch.Tensor:
        """Log density of the logarithm of an unknown scale.

        Parameters
        ----------
        log_scale : Tensor of any shape
        part : int, default=None
            As in `given_scale`.

        Returns
        -------
        Tensor of the same shape
            In nats.
        """
        raise NotImplementedError

    def precisions_at(self, logs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Precisions of the normals at several places of all unknown scales.

        Parameters
        ----------
        logs : Tensor of shape (K, m)
            In the order of `unknown_scales`.

        Returns
        -------
        precisions : Tensor of shape (K, P) or (K, P, P)
            Differentiable in the places.
        log_weights : Tensor of shape (K,)
            Log densities of the logs, and half the log determinants of precisions.
        """
        normal = cast(NormalForm, self.as_normal())
        if normal.is_diagonal:
            own = 1 / normal.variance
        else:
            own = torch.cholesky_inverse(torch.linalg.cholesky(normal.covariance()))
        return own.expand(len(logs), *own.shape), -normal.half_log_det.expand(len(logs))

    def declared(self, logs: torch.Tensor) -> torch.Tensor:
        """Return logs of unknown scales, as they were declared.

        Parameters
        ----------
        logs : Tensor of shape (..., m)
            Those of `given_scale`, in the order of `unknown_scales`.

        Returns
        -------
        Tensor of shape (..., m)
        """
        return logs

    #: Log density of scales that are given, less the sum of `log_density_of_scale`.
    log_ratio = 0.0

    def pair_at(self, part: int) -> tuple[Any, int, torch.Tensor]:
        """Return the prior of a correlated pair.

        Parameters
        ----------
        part : int
            One of `paired`.

        Returns
        -------
        prior : BuiltCorrelated
        part : int
            Which of its numbers that is.
        where : Tensor of int of shape (p,)
            Its parameters.
        """
        raise NotImplementedError

    def scale_weights(self, part: int | None = None) -> torch.Tensor:
        """Weights of the squared parameters in the sum that determines a scale.

        Parameters
        ----------
        part : int, default=None
            As in `given_scale`; None is all of them.

        Returns
        -------
        Tensor of shape (P,)
            Inverse variances at an unknown scale of 1; 0 for parameters that do not
            have it.
        """
        raise NotImplementedError

    def unit_of_scale(self, part: int | None = None) -> float:
        """Deviation of the coefficients where an unknown scale is 1.

        Parameters
        ----------
        part : int, default=None
            As in `given_scale`.

        Returns
        -------
        float
        """
        return float(self.scale_weights(part).max()) ** -0.5

    def named_scales(self) -> dict[str, int]:
        """Names of unknown scales, and their parts.

        Returns
        -------
        dict of str to int
        """
        return dict(zip(["coef"], self.unknown_scales, strict=False))

    def expected_precision(self, squares: torch.Tensor) -> tuple[float, float]:
        """Moments of ``1 / s^2``, s being the one unknown scale.

        Parameters
        ----------
        squares : Tensor of shape ()
            Expected sum of squares, weighted by `scale_weights`.

        Returns
        -------
        mean, variance : float
            Under the best distribution of s beside a normal q with these squares. At
            the optimum q is the posterior under a normal prior of this precision.
        """
        raise NotImplementedError

    def marginal(self, where: torch.Tensor) -> "BuiltPrior":
        """Prior of some of the parameters.

        Parameters
        ----------
        where : Tensor of int of shape (p,)
            Their positions, in ascending order.

        Returns
        -------
        BuiltPrior
        """
        raise NotImplementedError

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density at points.

        Parameters
        ----------
        theta : Tensor of shape (S, P)

        Returns
        -------
        Tensor of shape (S,)
            In nats, summed over the parameters, with all constants.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement log_prob.")

    def log_prob_gradient(self, theta: torch.Tensor) -> torch.Tensor:
        """Gradient of `log_prob` in theta.

        Parameters
        ----------
        theta : Tensor of shape (S, P)

        Returns
        -------
        Tensor of shape (S, P)
            In nats per unit of theta.
        """
        with torch.enable_grad():
            theta = theta.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.log_prob(theta).sum(), theta)
        return gradient

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Draw from the prior.

        Parameters
        ----------
        n_draws : int
            S.
        generator : torch.Generator

        Returns
        -------
        Tensor of shape (S, P)
            Independent draws.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement sample.")

    @property
    def is_log_concave(self) -> bool:
        """Whether the log density is known to be concave.

        If it is not, as with heavy tails, a posterior can have one mode at the peak of
        the prior and another at large likelihood.
        """
        return self.as_normal() is not None

    def as_normal(self) -> NormalForm | None:
        """View the prior as a normal.

        Returns
        -------
        NormalForm or None
            None if the prior is not normal.
        """
        return None

    def matching_normal(self) -> NormalForm | None:
        """Normal with a scale similar to that of the prior, from which solvers start.

        Returns
        -------
        NormalForm or None
            With the prior's mean and variances if they exist; otherwise with its scale.
            None if the prior has no such normal.
        """
        return self.as_normal()

    def tail_precision(self) -> torch.Tensor | None:
        """Quadratic decay of the log density in the tails.

        Returns
        -------
        Tensor of shape (P,) or None
            T, if ``log_prob`` is ``-theta' diag(T) theta / 2 + O(|theta|)``: 0 for
            tails heavier than normal ones. None if it is not of this form.
        """
        normal = self.as_normal()
        if normal is None or not normal.is_diagonal:
            return None
        return normal.scale.square().reciprocal()

    @property
    def has_log_prob_terms(self) -> bool:
        """Whether the parameters are independent, so that `log_prob_terms` exists."""
        return False

    def log_prob_terms(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density of every coordinate, if they are independent.

        Parameters
        ----------
        theta : Tensor of shape (S, P)

        Returns
        -------
        Tensor of shape (S, P)
            In nats; the sum over coordinates is `log_prob`.
        """
        raise NotImplementedError

    @property
    def has_expected_log_prob(self) -> bool:
        """Whether `expected_log_prob` is known without draws."""
        return False

    def expected_log_prob(self, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        """E[log pi(theta)] per coordinate for theta_j ~ N(mean_j, std_j^2).

        Parameters
        ----------
        mean, std : Tensor of shape (P,) or (..., P)

        Returns
        -------
        Tensor of the same shape
            In nats, to about 1e-11, differentiable; the sum is ``E[log_prob]``.
        """
        raise NotImplementedError


class Prior(Component):
    """Base class of prior specifications: a subclass must implement `build`.

    Examples
    --------
    >>> from skvi.priors import Normal, Prior
    >>> isinstance(Normal(), Prior)
    True
    """

    @property
    def relative_to(self) -> str | None:
        """What its scale is relative to, in linear models.

        A scale that is unknown or learned has no units of its own: it is relative to
        "all" columns, to the root mean square of their standard deviations; or, if
        there is one for each coefficient, to the unit of "each" column. So the fit does
        not depend on the units of the features. None, where `scale` is a number or
        there is none: the prior is in the units of the features, as they are given.
        """
        return None if isinstance(getattr(self, "scale", 1.0), Real) else "all"

    @property
    def intercept_scale(self) -> float | None:
        """Standard deviation of the normal prior of a network's intercepts beside it.

        An intercept is not an effect: it is neither shrunk by a sparse prior nor used
        to learn a scale. It gets `scale` if that is a number, `VAGUE_SCALE` if it is
        "learn" or unknown; None requires an `intercept_prior`.
        """
        scale = getattr(self, "scale", None)
        if scale is None:
            return None
        return float(scale) if isinstance(scale, Real) else VAGUE_SCALE

    def build(self, layout: Layout) -> BuiltPrior:
        """Build the prior over every coordinate of a layout.

        Parameters
        ----------
        layout : Layout
            The layout of theta, or of one block of it.

        Returns
        -------
        BuiltPrior
            Over ``layout.size`` parameters, in unconstrained coordinates.

        Raises
        ------
        ValueError
            A hyperparameter is out of its range.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement build.")
