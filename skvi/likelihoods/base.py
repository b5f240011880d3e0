"""What every likelihood must implement, and what follows from it by quadrature."""

from collections.abc import Callable
from functools import partial

import torch

from skvi.base._component import Component
from skvi.expectations._rules import Expectations, expect_derivatives, row_derivatives
from skvi.likelihoods._predictive import Predictive
from skvi.utils._rows import RowBuffers, RowPass
from skvi.utils._tensors import Movable
from skvi.utils._validation import weighted_sum

__all__ = ["Likelihood"]


class Likelihood(Component, Movable, Predictive):
    """Base class of likelihoods.

    A subclass must implement `log_prob`, `log_power_integral`, `mean` and `sample`. The
    derivatives and expectations below follow from `log_prob`; a subclass may replace
    them by closed forms.

    Examples
    --------
    >>> from skvi.likelihoods import BernoulliLikelihood, Likelihood
    >>> issubclass(BernoulliLikelihood, Likelihood)
    True
    """

    n_outputs = 1
    #: Whether y is discrete: p(y | f) is then a probability, which is at most 1.
    is_discrete = False
    #: Whether the expectations under a normal f are correct: those of this class with
    #: several columns only if the density has contrasts.
    has_expectations = True
    #: Whether only differences between several columns of f matter.
    has_contrasts = False
    #: Whether ``-log p(y | f)`` is convex in f for every y.
    is_log_concave = False
    #: Whether y is normal given f.
    is_normal = False
    #: Whether f is a location of y, in its units.
    is_location = False
    #: Columns of f that determine the scale of the noise; they start at 0.
    scale_outputs: tuple[int, ...] = ()
    #: Those of them that are logs of scales of noise.
    noise_outputs: tuple[int, ...] = ()
    #: Names of the hyperparameters that a fit learns (type-II maximum likelihood).
    learned: tuple[str, ...] = ()
    #: A positive parameter of the distribution that may have a Gamma prior and
    #: posterior: its name, and p if `bind` takes ``p * log(parameter)``; None if there
    #: is none.
    gamma_block: tuple[str, float] | None = None
    #: Shape and rate of that prior, if the likelihood requests one.
    gamma_prior: tuple[float, float] | None = None
    #: Meaning and remedy of a learned hyperparameter at its lower limit.
    floor_remedy = (
        "the model fits some rows exactly; fix noise_scale, or use fewer parameters"
    )

    @property
    def _learned_limits(self) -> list[tuple[float, float] | None]:
        """Logs of the limits of learned numbers; None of scales, which need none."""
        return [None] * len(self.learned)

    def initial_hyper(self, y: torch.Tensor) -> torch.Tensor:
        """Unconstrained hyperparameters from which a fit starts.

        Parameters
        ----------
        y : Tensor of shape (n,)

        Returns
        -------
        Tensor of shape (H,)
            One number for each name in `learned`, in float64; zeros by default.
        """
        return y.new_zeros(len(self.learned), dtype=torch.float64)

    def bind(self, hyper: torch.Tensor) -> "Likelihood":
        """Return the likelihood with these hyperparameters in place of "learn".

        Parameters
        ----------
        hyper : Tensor of shape (H,)
            Unconstrained.

        Returns
        -------
        Likelihood
            Differentiable in `hyper`; the likelihood itself where H is 0.
        """
        return self

    #: c, where ``-log p(y | f)`` is ``c f^2 / 2 + O(|f|)`` for large ``|f|`` of either
    #: sign (0 for a bounded slope); None if it is not known to be of this form.
    tail_curvature: float | None = None
    #: Nats by which `expected_log_loss` is off per row, on average, where that is known
    #: and small; None: fits compare it with a finer rule. For one column of f it is.
    row_error: float | None = None

    @property
    def _length_scale(self) -> float:
        """Distance in f over which the log density is nearly quadratic."""
        return 1.0

    def log_prob(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Log density or mass of each target.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)
        y : Tensor of shape (n,)

        Returns
        -------
        Tensor of shape (S, n)
            In nats per row, with all constants.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement log_prob.")

    def log_power_integral(self, f: torch.Tensor, c: float) -> torch.Tensor:
        """Log of the integral (for discrete y the sum) of p(y | f)^c over y.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)
        c : float
            Power, positive.

        Returns
        -------
        Tensor of shape (S, n)
            0 for c = 1. Other powers of a density have units of y to the 1 - c.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must implement log_power_integral."
        )

    def mean(self, f: torch.Tensor) -> torch.Tensor:
        """Mean of y given f.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)

        Returns
        -------
        Tensor of shape (S, n)
            In units of y; for labels 0 and 1 the probability of 1.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement mean.")

    def sample(self, f: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Draw y given f.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)
        generator : torch.Generator

        Returns
        -------
        Tensor of shape (S, n)
            One independent draw for each row and each f.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement sample.")

    def log_prob_derivatives(self, f: torch.Tensor, y: torch.Tensor) -> Expectations:
        """Log density with its first and second derivative in f.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)
        y : Tensor of shape (n,)

        Returns
        -------
        value, first, second : Tensor
            In nats per row, and per unit and squared unit of f: of shape (S, n),
            and for K > 1 (S, n), (S, n, K) and (S, n, K, K).
        """
        return row_derivatives(lambda g: self.log_prob(g, y), f)

    def _has_density(self, y: torch.Tensor) -> torch.Tensor:
        """Whether targets have a density, which depends on the unit of y.

        Parameters
        ----------
        y : Tensor of shape (n,) or (n, T)

        Returns
        -------
        Tensor
            Of the same shape: True by default, False for a value that has a
            probability.
        """
        return torch.ones_like(y, dtype=torch.bool)

    def _total_log_prob(
        self, f: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor:
        """Sum of the log densities of all rows.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)
        y : Tensor of shape (n,)
        weight : Tensor of shape (n,) or None

        Returns
        -------
        Tensor of shape (S,)
            In nats, in double precision.
        """
        return weighted_sum(self.log_prob(f, y), weight)

    def _log_prob_slope(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """First derivative of the log density in f.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)
        y : Tensor of shape (n,)

        Returns
        -------
        Tensor of shape (S, n), or (S, n, K) for K > 1
            In nats per unit of f.
        """
        return self.log_prob_derivatives(f, y)[1]

    def _row_pass(self, buffers: RowBuffers) -> RowPass | None:
        """Minus the log density and its slopes, without automatic derivatives.

        Parameters
        ----------
        buffers : RowBuffers

        Returns
        -------
        RowPass or None
            None, the default, if there is no closed form.
        """
        return None

    def expected_log_loss(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Expected -log p(y | f), and its derivatives, under a normal f_i.

        Parameters
        ----------
        mean : Tensor of shape (n,) or (n, K)
        std_or_cov : Tensor of shape (n,) or (n, K, K)
            Standard deviations of f, or its covariances.
        y : Tensor of shape (n,)
        refine : int, default=1
            Multiplies the number of quadrature nodes, to verify a result.

        Returns
        -------
        value, first, second : Tensor
            Tensors of shape (n,), of the shape of `mean` and of that of `std_or_cov`.
            The expectation, in nats per row, and that of the first and second
            derivative in f, without Monte Carlo noise. The latter two are also the
            derivative of the value in the mean, and twice the one in the variance.
        """
        given = mean, std_or_cov, y, refine
        value, first, second = self._expectations(self.log_prob_derivatives, *given)
        return -value, -first, -second

    def _expectations(
        self,
        derivatives: Callable[[torch.Tensor, torch.Tensor], Expectations],
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Expectations by nodes; several columns are those of a softmax."""
        given = mean, std_or_cov, y, self._length_scale, refine
        return expect_derivatives(derivatives, *given)

    def _expected_density_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations:
        """Expected p(y | f)^c, and its derivatives, under a normal f_i.

        Parameters
        ----------
        mean : Tensor of shape (n,) or (n, K)
        std_or_cov : Tensor of shape (n,) or (n, K, K)
            Standard deviations of f, or its covariances.
        y : Tensor of shape (n,)
        c : float
            Power, positive.
        refine : int, default=1
            Multiplies the number of quadrature nodes.

        Returns
        -------
        value, first, second : Tensor
            As in `expected_log_loss`.
        """
        return self._expected_exp(
            lambda f, t: c * self.log_prob(f, t), mean, std_or_cov, y, refine
        )

    def _expected_power_integral(
        self, mean: torch.Tensor, std_or_cov: torch.Tensor, c: float, refine: int = 1
    ) -> Expectations:
        """Expected integral of p(y | f)^c over y, and its derivatives.

        Parameters
        ----------
        mean : Tensor of shape (n,) or (n, K)
        std_or_cov : Tensor of shape (n,) or (n, K, K)
            Standard deviations of f, or its covariances.
        c : float
            Power, positive.
        refine : int, default=1
            Multiplies the number of quadrature nodes.

        Returns
        -------
        value, first, second : Tensor
            As in `expected_log_loss`.
        """
        log_power = lambda f, _: self.log_power_integral(f, c)
        y = mean.new_zeros(len(mean))
        return Likelihood._expected_exp(self, log_power, mean, std_or_cov, y, refine)

    def _expected_escort_power(
        self,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        c: float,
        refine: int = 1,
    ) -> Expectations:
        """Expected (p^c / integral of p^c)^((c - 1) / c), and its derivatives.

        The normalized power of a density is called its escort density.

        Parameters
        ----------
        mean : Tensor of shape (n,) or (n, K)
        std_or_cov : Tensor of shape (n,) or (n, K, K)
            Standard deviations of f, or its covariances.
        y : Tensor of shape (n,)
        c : float
            Power, greater than 1.
        refine : int, default=1
            Multiplies the number of quadrature nodes.

        Returns
        -------
        value, first, second : Tensor
            As in `expected_log_loss`.
        """
        log_power = partial(self._log_escort_power, c=c)
        return self._expected_exp(log_power, mean, std_or_cov, y, refine)

    def _expected_exp(
        self,
        log_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int,
    ) -> Expectations:
        """Expected ``exp(log_function(f, y))`` and its derivatives."""

        def derivatives(f: torch.Tensor, y: torch.Tensor) -> Expectations:
            return row_derivatives(lambda g: log_function(g, y).exp(), f)

        return self._expectations(derivatives, mean, std_or_cov, y, refine)

    def _log_escort_power(
        self, f: torch.Tensor, y: torch.Tensor, c: float
    ) -> torch.Tensor:
        """Log of (p^c / integral of p^c)^((c - 1) / c).

        Parameters
        ----------
        f : Tensor of shape (S, n, K)
        y : Tensor of shape (n,)
        c : float
            Power, greater than 1.

        Returns
        -------
        Tensor of shape (S, n)
        """
        log_ratio = self.log_prob(f, y) - self.log_power_integral(f, c) / c
        return (c - 1) * log_ratio
