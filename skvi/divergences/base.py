"""What a divergence must implement, and the derivatives that Newton steps need."""

import math
from dataclasses import dataclass

import torch

from skvi.base import NormalForm
from skvi.base._component import Component, PosteriorDensity, PriorDensity
from skvi.divergences._forms import MomentForm, OrderForm, collapse_message, draw_logs
from skvi.exceptions import IncompatibleComponentsError

__all__ = ["Divergence", "DivergenceTerms", "MomentForm", "OrderForm"]


@dataclass(frozen=True, eq=False)
class DivergenceTerms:
    """Value and derivatives of D(q || prior) for a normal q.

    Matrices are given as (P,) if they are diagonal, else as (P, P).

    Parameters
    ----------
    value : Tensor
        D in nats, ``inf`` outside the range of the order.
    gradient : Tensor of shape (P,)
        Derivative in the mean of q.
    curvature : Tensor of shape (P,) or (P, P)
        Second derivative in the mean, or a positive definite matrix in its place if it
        is not positive definite (or if it is full and all else diagonal).
    precision_gradient : Tensor of shape (P,) or (P, P)
        Twice the derivative in the covariance: the natural gradient in the
        precision of q.
    entropy_weight : float or Tensor of shape () or (P,)
        How strongly D keeps q from collapsing, relative to KL: the factor c in ``dD =
        -(c/2) d log det(cov)`` for a q much narrower than the prior, of each coordinate
        if it has shape (P,). The natural step is divided by it; where c itself depends
        on the width, its logarithmic slope is a factor.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Layout, NormalForm
    >>> from skvi.divergences import KLDivergence
    >>> from skvi.priors import Normal
    >>> prior = Normal().build(Layout({"coef": (1,)}))
    >>> unit = NormalForm(torch.zeros(1), torch.ones(1))
    >>> float(KLDivergence().terms(unit, prior).value)
    0.0
    """

    value: torch.Tensor
    gradient: torch.Tensor
    curvature: torch.Tensor
    precision_gradient: torch.Tensor
    entropy_weight: float | torch.Tensor


class Divergence(Component):
    """Base class of divergences.

    A subclass must implement `monte_carlo`, and, if there is one, a closed form in
    `closed_form` and its derivatives in `terms`.

    Examples
    --------
    >>> import torch
    >>> from skvi.divergences import KLDivergence, Divergence
    >>> isinstance(KLDivergence(), Divergence)
    True
    >>> log_q, log_prior = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 2.0])
    >>> float(KLDivergence().monte_carlo(log_q, log_prior))
    0.5
    """

    #: w, if the divergence is ``w * KL(q || prior)``; otherwise None.
    kl_weight: float | None = None

    @property
    def is_weak(self) -> bool:
        """Whether it grows only like the logarithm of the width of q, or of its mean.

        A posterior can then be wider than its prior, the sooner the more parameters.
        """
        return False

    @property
    def max_variance_ratio(self) -> float:
        """Ratio of the variances of q and a normal prior from which D is infinite.

        ``inf`` if D is finite for all normals, or if nothing is known. With dependent
        coordinates the largest eigenvalue of ``cov(prior)^-1 cov(q)`` counts. It is
        where ``a / cov(q) + b / cov(prior)`` stops being positive definite, for the
        integral of ``q^a prior^b`` in D; see `log_power_integral`.

        Examples
        --------
        >>> from skvi.divergences import KLDivergence, RenyiDivergence
        >>> KLDivergence().max_variance_ratio, RenyiDivergence(1.5).max_variance_ratio
        (inf, 3.0)
        """
        return math.inf

    def has_closed_form(self, prior: PriorDensity) -> bool:
        """Whether D between a normal q and this prior has a closed form.

        Parameters
        ----------
        prior : BuiltPrior

        Returns
        -------
        bool
            False: only `monte_carlo` can be used.
        """
        return False

    def has_nodes(self, q: NormalForm, prior: PriorDensity) -> bool:
        """Whether, without a closed form, D is integrated by fixed nodes.

        `closed_form` and `terms` then return this estimate. It has no noise, so that
        linear models are fitted without draws; networks are trained with draws.

        Parameters
        ----------
        q : NormalForm
        prior : BuiltPrior

        Returns
        -------
        bool
            False, unless overridden.
        """
        return False

    def closed_form(self, q: NormalForm, prior: PriorDensity) -> torch.Tensor:
        """D(q || prior) for a normal q, differentiable in q.

        Parameters
        ----------
        q : NormalForm
        prior : BuiltPrior

        Returns
        -------
        Tensor
            A scalar in nats, exact but for `has_nodes`; ``inf`` if the divergence is
            infinite. KL takes normals with leading axes, and gives one value for each.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement closed_form.")

    def monte_carlo(self, log_q: torch.Tensor, log_prior: torch.Tensor) -> torch.Tensor:
        """Estimate D from S draws of q.

        Parameters
        ----------
        log_q, log_prior : Tensor of shape (S,)
            Log densities at draws of q.

        Returns
        -------
        Tensor
            A scalar in nats, differentiable. Consistent as S grows; unbiased for
            KL, in general biased for the others.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement monte_carlo.")

    def score_factor(
        self, log_q: torch.Tensor, log_prior: torch.Tensor
    ) -> torch.Tensor | None:
        """Factor of the score in the gradient of a divergence that is a mean over q.

        Parameters
        ----------
        log_q, log_prior : Tensor of shape (S,)
            Log densities at draws of q.

        Returns
        -------
        Tensor of shape (S,) or None
            ``g + dg / d log q`` if D is ``E_q[g(log q, log prior)]``, whose gradient
            without bias is the mean of this times that of log q. None, unless
            overridden: functions of means, such as logarithms, have a bias.
        """
        return None

    def moment_form(self, prior: PriorDensity) -> MomentForm | None:
        """Constants of D(q || prior) for a factorized normal q.

        Parameters
        ----------
        prior : BuiltPrior

        Returns
        -------
        MomentForm or None
            None if D is not of this form, as for all but KL.
        """
        return None

    def order_form(self, prior: PriorDensity) -> OrderForm | None:
        """Constants of D(q || prior) for a factorized normal q, by Rényi divergences.

        Parameters
        ----------
        prior : BuiltPrior

        Returns
        -------
        OrderForm or None
            None if D is not of this form.
        """
        return None

    def terms(
        self,
        q: NormalForm,
        prior: PriorDensity,
        q_precision: torch.Tensor | None = None,
    ) -> DivergenceTerms:
        """Value and derivatives of the closed form.

        Parameters
        ----------
        q : NormalForm
        prior : BuiltPrior
        q_precision : Tensor of shape (P,) or (P, P), default=None
            Inverse covariance of q; computed if None.

        Returns
        -------
        DivergenceTerms
            In nats, exact but for `has_nodes`; meant for use without autograd.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement terms.")

    def estimate(
        self,
        posterior: PosteriorDensity,
        prior: PriorDensity,
        log_q: torch.Tensor,
        log_prior: torch.Tensor,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """Estimate D in a fit, in which draws of the prior can be used as well.

        Parameters
        ----------
        posterior : Posterior
        prior : BuiltPrior
        log_q, log_prior : Tensor of shape (S,)
            Log densities at draws of q.
        generator : torch.Generator

        Returns
        -------
        Tensor
            A scalar in nats, differentiable; `monte_carlo`, unless overridden.
        """
        return self.monte_carlo(log_q, log_prior)

    def collapse(
        self,
        posterior: PosteriorDensity,
        prior: PriorDensity,
        generator: torch.Generator,
    ) -> str:
        """Describe the failure of a fit with this divergence, and a remedy.

        A bounded divergence need not keep a posterior from becoming a point mass.

        Parameters
        ----------
        posterior : Posterior
            The fitted one.
        prior : BuiltPrior
        generator : torch.Generator
            For draws if there is no closed form.

        Returns
        -------
        str
            Empty if nothing is wrong. By default, and not for multiples of KL, that of
            the gradient of `monte_carlo` that is left at the fit.
        """
        if self.kl_weight is not None:
            return ""
        log_q, log_prior = draw_logs(posterior, prior, generator)
        with torch.enable_grad():
            leaf = log_q.requires_grad_()
            (slope,) = torch.autograd.grad(self.monte_carlo(leaf, log_prior), leaf)
        why = f"as far as draws show, and joint over all {posterior.layout.size}"
        return collapse_message(self, slope.sum(), f"{why} parameters")

    def check_prior(self, prior: PriorDensity) -> None:
        """Raise if D to this prior is undefined, or infinite for every q.

        Parameters
        ----------
        prior : BuiltPrior

        Raises
        ------
        IncompatibleComponentsError
            The message says what to use instead.
        """
        if not prior.is_proper:
            raise IncompatibleComponentsError(
                repr(self),
                "a proper prior, on whose constant it depends",
                "divergence='kl' or 'renyi', or a proper prior such as 'normal'",
            )

    def check_regularizer(self) -> None:
        """Raise if no data-informed posterior has a finite divergence.

        Raises
        ------
        ValueError
            A parameter is out of its range, or cannot be used in a fit.
        """
        self.validate()
