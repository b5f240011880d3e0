"""What every loss must implement, and the likelihood itself as a loss."""

import torch

from skvi.base._component import Component, ConditionalDensity
from skvi.expectations._rules import Expectations, row_derivatives
from skvi.utils._rows import RowBuffers, RowPass
from skvi.utils._tensors import Movable
from skvi.utils._validation import weighted_sum

__all__ = ["LogLoss", "Loss"]


class Loss(Component, Movable):
    """Base class of losses: a subclass must implement `__call__`.

    Examples
    --------
    >>> from skvi.losses import BetaLoss, Loss
    >>> isinstance(BetaLoss(beta=1.2), Loss)
    True
    """

    #: Whether exp(-loss) is the likelihood itself, so that bounds are bounds of p(D).
    is_log_loss = False

    def __call__(
        self, likelihood: ConditionalDensity, f: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """Evaluate the loss of every row.

        Parameters
        ----------
        likelihood : Likelihood
        f : Tensor of shape (S, n, K)
        y : Tensor of shape (n,)

        Returns
        -------
        Tensor of shape (S, n)
            In nats per row, not averaged.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement __call__.")

    def total(
        self,
        likelihood: ConditionalDensity,
        f: torch.Tensor,
        y: torch.Tensor,
        weight: torch.Tensor | None,
    ) -> torch.Tensor:
        """Sum the losses of all rows.

        Parameters
        ----------
        likelihood : Likelihood
        f : Tensor of shape (S, n, K)
        y : Tensor of shape (n,)
        weight : Tensor of shape (n,) or None

        Returns
        -------
        Tensor of shape (S,)
            In nats, in double precision.
        """
        return weighted_sum(self(likelihood, f, y), weight)

    def check(self, likelihood: ConditionalDensity) -> None:
        """Refuse a likelihood that this loss cannot train; nothing by default.

        Parameters
        ----------
        likelihood : Likelihood

        Raises
        ------
        IncompatibleComponentsError
            The message says what is missing and what to use instead.
        """

    def tail_curvature(self, likelihood: ConditionalDensity) -> float | None:
        """Quadratic growth of a row's loss in f.

        Parameters
        ----------
        likelihood : Likelihood

        Returns
        -------
        float or None
            c, if the loss is ``c f^2 / 2 + O(|f|)`` for large ``|f|`` of either sign;
            None if it is not known to be of this form.
        """
        return None

    def _row_pass(self, likelihood: ConditionalDensity, buffers: RowBuffers) -> RowPass:
        """Weighted sums over rows with their derivatives, step after step.

        Parameters
        ----------
        likelihood : Likelihood
            Before hyperparameters are bound.
        buffers : RowBuffers

        Returns
        -------
        RowPass
            By automatic differentiation in f and in the hyperparameters, which are few
            compared with the parameters of a network; one member after the other.
        """
        return _AutogradPass(self, likelihood, buffers)

    def expected(
        self,
        likelihood: ConditionalDensity,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Expected loss, and its derivatives, under a normal f_i.

        Parameters
        ----------
        likelihood : Likelihood
        mean : Tensor of shape (n,) or (n, K)
            Mean of f. With K columns of a softmax the loss must not change if a
            constant is added to all of them.
        std_or_cov : Tensor of shape (n,) or (n, K, K)
            Standard deviations of f, or its covariances.
        y : Tensor of shape (n,)
        refine : int, default=1
            Multiplies the number of quadrature nodes, to verify a result.

        Returns
        -------
        value, first, second : Tensor
            Tensors of shape (n,), of the shape of `mean` and of that of `std_or_cov`:
            expectation of the loss, in nats per row and without Monte Carlo noise, and
            of its first and second derivative in f (the derivative of the value in the
            mean, and twice the one in the variance).
        """

        def derivatives(f: torch.Tensor, y: torch.Tensor) -> Expectations:
            return row_derivatives(lambda g: self(likelihood, g, y), f)

        return likelihood._expectations(derivatives, mean, std_or_cov, y, refine)


class LogLoss(Loss):
    """Negative log likelihood: standard Bayesian inference.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import BernoulliLikelihood
    >>> from skvi.losses import LogLoss
    >>> LogLoss()(BernoulliLikelihood(), torch.zeros(1, 1, 1), torch.ones(1))
    tensor([[0.6931]])
    """

    is_log_loss = True

    def __call__(
        self, likelihood: ConditionalDensity, f: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """Negative log density of every row, (S, n)."""
        return -likelihood.log_prob(f, y)

    def total(
        self,
        likelihood: ConditionalDensity,
        f: torch.Tensor,
        y: torch.Tensor,
        weight: torch.Tensor | None,
    ) -> torch.Tensor:
        """By the likelihood's own sum; see `Loss.total`."""
        return -likelihood._total_log_prob(f, y, weight)

    def tail_curvature(self, likelihood: ConditionalDensity) -> float | None:
        """That of the likelihood; see `Loss.tail_curvature`."""
        return likelihood.tail_curvature

    def _row_pass(self, likelihood: ConditionalDensity, buffers: RowBuffers) -> RowPass:
        """In closed form if the likelihood has one; see `Loss._row_pass`."""
        closed = likelihood._row_pass(buffers)
        return super()._row_pass(likelihood, buffers) if closed is None else closed

    def expected(
        self,
        likelihood: ConditionalDensity,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Use the likelihood's own expectation; see `Loss.expected`."""
        return likelihood.expected_log_loss(mean, std_or_cov, y, refine)


class _AutogradPass(RowPass):
    def __init__(
        self, loss: Loss, likelihood: ConditionalDensity, buffers: RowBuffers
    ) -> None:
        super().__init__()
        self._loss, self._likelihood, self._buffers = loss, likelihood, buffers

    def _visit(
        self, y: torch.Tensor, weight: torch.Tensor, count: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        members = zip(*self._buffers, y, weight, strict=True)
        return (torch.stack([self._visit_one(*member) for member in members]),)

    def _visit_one(
        self,
        f: torch.Tensor,
        slope: torch.Tensor,
        hyper: torch.Tensor,
        for_hyper: torch.Tensor,
        y: torch.Tensor,
        weight: torch.Tensor,
    ) -> torch.Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [x.clone().requires_grad_() for x in (f, hyper)]
            likelihood = self._likelihood.bind(leaves[1])
            losses = self._loss(likelihood, leaves[0], y[0].clone())
            value = losses.sum(0) @ weight[0].to(losses.dtype)
            found = torch.autograd.grad(value, leaves, materialize_grads=True)
        slope.copy_(found[0])
        for_hyper.copy_(found[1])
        return value.detach()
