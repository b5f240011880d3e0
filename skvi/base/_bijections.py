"""Bijections from the real line to the values that a parameter can take."""

from dataclasses import dataclass

import torch

__all__ = ["BIJECTIONS", "Bijection", "Exp", "Identity", "Softplus"]


@dataclass(frozen=True)
class Bijection:
    """Smooth elementwise bijection from real coordinates to a parameter.

    A subclass must implement both methods. Instances of the same class with the
    same fields are equal.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Exp
    >>> bijection, x = Exp(), torch.tensor([0.0, 2.0])
    >>> bijection.forward(x)
    tensor([1.0000, 7.3891])
    >>> bijection.log_abs_det_jacobian(x)
    tensor([0., 2.])
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map coordinates to the parameter.

        Parameters
        ----------
        x : Tensor
            Any real numbers.

        Returns
        -------
        Tensor of the same shape
        """
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: torch.Tensor) -> torch.Tensor:
        """Log of the absolute derivative of `forward`.

        Parameters
        ----------
        x : Tensor

        Returns
        -------
        Tensor of the same shape
            In nats, elementwise.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Identity(Bijection):
    """The parameter itself is real; the shorthand is "identity".

    Examples
    --------
    >>> from skvi.base._bijections import Identity
    >>> Identity().forward(3.0)
    3.0
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x."""
        return x

    def log_abs_det_jacobian(self, x: torch.Tensor) -> torch.Tensor:
        """Return zeros."""
        return torch.zeros_like(x)


@dataclass(frozen=True)
class Exp(Bijection):
    """The parameter is positive, and its logarithm is real; "exp" for short.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Exp
    >>> Exp().forward(torch.zeros(1))
    tensor([1.])
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the exponential."""
        return x.exp()

    def log_abs_det_jacobian(self, x: torch.Tensor) -> torch.Tensor:
        """Return x."""
        return x


@dataclass(frozen=True)
class Softplus(Bijection):
    """The parameter is positive, ``log(1 + exp(x))``; "softplus" for short.

    Unlike the exponential it grows no faster than its coordinate.

    Examples
    --------
    >>> import torch
    >>> from skvi.base import Softplus
    >>> Softplus().forward(torch.tensor([-1.0, 0.0, 100.0]))
    tensor([  0.3133,   0.6931, 100.0000])
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``log(1 + exp(x))``."""
        return -torch.nn.functional.logsigmoid(-x)

    def log_abs_det_jacobian(self, x: torch.Tensor) -> torch.Tensor:
        """Return the log of the logistic function."""
        return torch.nn.functional.logsigmoid(x)


#: Shorthands.
BIJECTIONS: dict[str, Bijection] = {
    "identity": Identity(),
    "exp": Exp(),
    "softplus": Softplus(),
}
