"""User-defined losses, and penalties that are added to a loss."""

import math
from collections.abc import Callable

import torch

from skvi.base._component import ConditionalDensity
from skvi.exceptions import IncompatibleComponentsError
from skvi.expectations._rules import Expectations
from skvi.losses.base import LogLoss, Loss
from skvi.utils._tables import table
from skvi.utils._validation import row_chunks

# Half the range of the nodes, and their spacings: halved until the result is stable, as
# it is at once for smooth functions; the last is for kinks.
REACH, STEPS = 8.0, (0.25, 0.125, 0.0625, 0.00625)
STABLE = 1e-9
# Standard deviation over which derivatives at a single point are smoothed.
SMOOTHING = 0.05


class CallableLoss(Loss):
    """A loss written as a function: the posterior is a Gibbs posterior.

    ``loss=function`` in an estimator is short for ``loss=CallableLoss(function)``.

    Parameters
    ----------
    function : callable
        ``function(f, y) -> losses``: f of shape (S, n), for several columns
        (S, n, K), y of shape (n,); result of shape (S, n), in nats per row. Written
        in torch, elementwise over draws and rows. It need not be smooth, but
        autograd must pass through it where gradients from draws are used.

    Notes
    -----
    The posterior is ``prior * exp(-sum of losses)``: the scale of the loss matters: it
    sets the information in one row (10 * loss gives 10 times the information). f is the
    output of the linear model or network: the mean for regressors (with
    ``normalize_y=True`` both f and y are standardized), the log rate for counts, the
    log odds of class 1 for two classes. y are the targets as floats, for classifiers
    the indices in ``classes_``: 0.0, 1.0, ... A hinge loss is ``lambda f, y:
    torch.relu(1 - (2 * y - 1) * f)``.

    Predictions still use the estimator's likelihood at f: a Gibbs posterior has no
    noise model of its own, so that a scale to be learned is refused.

    Under a normal f the expectation is integrated with up to 2561 nodes in each row,
    and its derivatives follow from Stein's identities, ``E[loss z] / s`` and
    ``E[loss (z^2 - 1)] / s^2``, which need no derivative of the function. Errors: 1e-9
    for smooth functions, 5e-6 times the change of slope times s for kinks, and
    0.002 times the jump for steps. At s = 0 the derivatives are those of the function
    smoothed over 0.05. Several columns cannot be integrated in this way.

    References
    ----------
    Alquier, Ridgway and Chopin (2016), *On the properties of variational
    approximations of Gibbs posteriors*.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import GaussianLikelihood
    >>> from skvi.losses._callable import CallableLoss
    >>> absolute = CallableLoss(lambda f, y: (f - y).abs())
    >>> absolute(GaussianLikelihood(), torch.zeros(1, 2, 1), torch.tensor([1.0, -3.0]))
    tensor([[1., 3.]])
    """

    _parameter_constraints: dict = {"function": [callable]}

    def __init__(self, function: Callable) -> None:
        self.function = function

    def __call__(
        self, likelihood: ConditionalDensity | None, f: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """Loss of every row, (S, n); the likelihood is not used."""
        values = self.function(f[..., 0] if f.shape[-1] == 1 else f, y)
        shape = getattr(values, "shape", None)
        if shape != f.shape[:-1]:
            raise ValueError(
                "A loss function must return one number for each draw and row, of "
                f"shape {tuple(f.shape[:-1])}; got {type(values).__name__} of shape "
                f"{None if shape is None else tuple(shape)}. f has shape (S, n), or "
                "(S, n, K) for several columns, and y (n,)."
            )
        return values

    def check(self, likelihood: ConditionalDensity) -> None:
        """Refuse hyperparameters without effect on this loss; see `Loss.check`."""
        if likelihood.learned:
            name = likelihood.learned[0]
            raise IncompatibleComponentsError(
                f"{name}='learn'",
                f"a loss that depends on {name}; got loss={self!r}",
                f"a number as {name}, or loss='log'",
            )
        if likelihood.scale_outputs:
            raise IncompatibleComponentsError(
                f"likelihood={likelihood!r}",
                "a loss that depends on the scale of the noise, which it takes from f; "
                f"got loss={self!r}",
                "constant noise, or loss='log'",
            )

    def expected(
        self,
        likelihood: ConditionalDensity,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Integrate in one dimension, kinks included; see `Loss.expected`."""
        if mean.ndim == 2:
            raise IncompatibleComponentsError(
                f"loss={self!r}",
                f"one column of f to be integrated over; got {mean.shape[1]}",
                "two classes, a network (which trains on draws), or loss='beta'",
            )
        smooth = torch.where(std_or_cov > 0, std_or_cov, SMOOTHING)
        out = mean.new_empty(3, len(mean), dtype=torch.float64)
        width = refine * math.ceil(2 * REACH / STEPS[-1])
        for rows in row_chunks(len(mean), width):
            out[:, rows] = self._integrate(mean[rows], smooth[rows], y[rows], refine)
        at_point = self(likelihood, mean[None, :, None], y)[0].to(out.dtype)
        value = torch.where(std_or_cov > 0, out[0], at_point)
        if not bool(torch.isfinite(value).all()):
            raise ValueError(
                f"loss={self!r} is not finite for some f. Losses must be finite for "
                "every f: bound them, or use only the terms that are finite."
            )
        return value, out[1], out[2]

    def _integrate(
        self, mean: torch.Tensor, std: torch.Tensor, y: torch.Tensor, refine: int
    ) -> torch.Tensor:
        center = self(None, mean[None, :, None], y)[0]
        before: torch.Tensor | None = None
        for step in STEPS:
            z, weights = _rule(step / refine, mean.device)
            f = torch.addcmul(mean, z[:, None], std)
            # The value at the center is subtracted: Stein's identities divide by s.
            loss = self(None, f[..., None], y) - center
            sums = torch.stack([weights, weights * z, weights * (z.square() - 1)])
            found = sums @ loss.to(sums.dtype)
            # A kink leaves an error in proportion to the standard deviation.
            limit = STABLE * std.clamp(max=1.0)
            if before is not None and bool(((found - before).abs() < limit).all()):
                break
            before = found
        return torch.stack([found[0] + center, found[1] / std, found[2] / std.square()])


@table(maxsize=16)
def _rule(step: float, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    half = math.ceil(REACH / step)
    z = torch.arange(-half, half + 1, dtype=torch.float64, device=device) * step
    weights = torch.exp(-0.5 * z.square())
    return z, weights / weights.sum()


class RegularizedLoss(Loss):
    r"""A loss plus a penalty: regularized Bayesian inference.

    .. math:: \ell(\theta, x_i, y_i) + \phi(\theta, x_i)

    Parameters
    ----------
    loss : Loss, default=None
        None is `LogLoss`.
    penalty : callable, default=None
        phi, ``penalty(f, y) -> (S, n)``, with the arguments of `CallableLoss`: the
        posterior gives less mass to parameters whose predictions f_i are penalized.
        None is no penalty.

    Notes
    -----
    phi depends on theta through the output f_i of the model at x_i: for a linear model
    f_i is the linear predictor. A penalty on theta alone is a prior, and should be
    given as one. With its expectation, ``E_q[phi]``, the objective is that of P(loss +
    phi, D, Q): it can be combined with any divergence and family, and losses can be
    nested. Sample weights multiply both terms. Expectations are as accurate as those of
    the two parts, and evidences are generalized ones.

    References
    ----------
    Knoblauch, Jewson and Damoulas, *Generalized Variational Inference*, table of
    special cases; Zhu, Chen and Xing (2014), *Bayesian inference with posterior
    regularization*.

    Examples
    --------
    >>> import torch
    >>> from skvi.likelihoods import BernoulliLikelihood
    >>> from skvi.losses import RegularizedLoss
    >>> loss = RegularizedLoss(penalty=lambda f, y: 0.1 * f.square())
    >>> loss(BernoulliLikelihood(), torch.full((1, 1, 1), 2.0), torch.ones(1))
    tensor([[0.5269]])
    """

    _parameter_constraints: dict = {"loss": [Loss, None], "penalty": [callable, None]}

    def __init__(
        self, loss: Loss | None = None, penalty: Callable | None = None
    ) -> None:
        self.loss = loss
        self.penalty = penalty

    @property
    def _parts(self) -> list[Loss]:
        first = LogLoss() if self.loss is None else self.loss
        return [first] if self.penalty is None else [first, CallableLoss(self.penalty)]

    def validate(self) -> None:
        """Check the parameters, those of the loss included."""
        super().validate()
        for part in self._parts:
            part.validate()

    def check(self, likelihood: ConditionalDensity) -> None:
        """Ask the loss; see `Loss.check`."""
        self._parts[0].check(likelihood)

    def __call__(
        self, likelihood: ConditionalDensity, f: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """Loss plus penalty of every row, (S, n)."""
        values = [part(likelihood, f, y) for part in self._parts]
        return values[0] if len(values) == 1 else values[0] + values[1]

    def expected(
        self,
        likelihood: ConditionalDensity,
        mean: torch.Tensor,
        std_or_cov: torch.Tensor,
        y: torch.Tensor,
        refine: int = 1,
    ) -> Expectations:
        """Sum of both expectations; see `Loss.expected`."""
        found = [
            part.expected(likelihood, mean, std_or_cov, y, refine)
            for part in self._parts
        ]
        if len(found) == 1:
            return found[0]
        (a, b, c), (d, e, f) = found
        return a + d, b + e, c + f
