"""Scikit-learn's kernels in torch, as functions of their log hyperparameters theta.

A rule for each kernel without parts gives covariances, (n, m), and variances, (n,);
sums, products and powers follow by recursion. White kernels are noise: they have no
covariance, and `white_noise` has their variance.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from sklearn.gaussian_process import kernels

Values = dict[str, torch.Tensor]
Covariance = Callable[[Any, Values, torch.Tensor, torch.Tensor], torch.Tensor]
Variance = Callable[[Any, Values, torch.Tensor], torch.Tensor]

# Squared distance below which a root has no derivative, and squared norm above which
# differences are taken before products: these have errors of 1e-9 there.
TINY, FAR = 1e-30, 1e6


def register_kernel(
    kernel_class: type, covariance: Covariance, variance: Variance
) -> None:
    """Let Gaussian processes use a kernel of your own.

    Parameters
    ----------
    kernel_class : type
        A subclass of `sklearn.gaussian_process.kernels.Kernel`, whose hyperparameters
        are positive, as scikit-learn's are.
    covariance : callable
        Of the kernel, its hyperparameters by name as tensors, X of shape (n, d) and Y
        of shape (m, d): covariances of shape (n, m), by torch operations.
    variance : callable
        Of the kernel, its hyperparameters and X: variances of shape (n,).

    Raises
    ------
    TypeError
        The class is not that of a kernel.

    Examples
    --------
    >>> import torch
    >>> from sklearn.gaussian_process.kernels import DotProduct
    >>> from skvi.kernels import register_kernel
    >>> class Linear(DotProduct):
    ...     def __call__(self, X, Y=None, eval_gradient=False):
    ...         return X @ (X if Y is None else Y).T
    >>> register_kernel(
    ...     Linear, lambda k, h, X, Y: X @ Y.T, lambda k, h, X: X.square().sum(1)
    ... )
    """
    if not (
        isinstance(kernel_class, type) and issubclass(kernel_class, kernels.Kernel)
    ):
        raise TypeError(
            "kernel_class must be a subclass of sklearn.gaussian_process.kernels."
            f"Kernel. Got {kernel_class!r}."
        )
    RULES[kernel_class] = covariance, variance


def covariance(
    kernel: Any, theta: torch.Tensor, X: torch.Tensor, Y: torch.Tensor
) -> torch.Tensor:
    """Covariances of f between rows, (n, m), differentiable in theta and the rows."""
    if isinstance(kernel, kernels.KernelOperator):
        first, second = _halves(kernel, theta)
        one, two = covariance(*first, X, Y), covariance(*second, X, Y)
        return one + two if isinstance(kernel, kernels.Sum) else one * two
    if isinstance(kernel, kernels.Exponentiation):
        return covariance(kernel.kernel, theta, X, Y) ** kernel.exponent
    return _rule(kernel)[0](kernel, _values(kernel, theta), X, Y)


def variance(kernel: Any, theta: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
    """Variances of f, (n,): the diagonal of `covariance`."""
    if isinstance(kernel, kernels.KernelOperator):
        first, second = _halves(kernel, theta)
        one, two = variance(*first, X), variance(*second, X)
        return one + two if isinstance(kernel, kernels.Sum) else one * two
    if isinstance(kernel, kernels.Exponentiation):
        return variance(kernel.kernel, theta, X) ** kernel.exponent
    return _rule(kernel)[1](kernel, _values(kernel, theta), X)


def white_noise(kernel: Any, theta: torch.Tensor) -> torch.Tensor:
    """Variance of the noise that white kernels add; 0 without one.

    Raises ValueError for white kernels that are not summands.
    """
    if isinstance(kernel, kernels.Sum):
        first, second = _halves(kernel, theta)
        return white_noise(*first) + white_noise(*second)
    if isinstance(kernel, kernels.WhiteKernel):
        return _values(kernel, theta)["noise_level"]
    if has_white(kernel):
        raise ValueError(
            f"A WhiteKernel must be a summand of the kernel. Got {kernel!r}: add it, "
            "as in ConstantKernel() * RBF() + WhiteKernel()."
        )
    return theta.new_zeros(())


def has_white(kernel: Any) -> bool:
    """Whether a kernel has noise among its parts."""
    parts = [getattr(kernel, name, None) for name in ("k1", "k2", "kernel")]
    parts = [part for part in parts if part is not None]
    return isinstance(kernel, kernels.WhiteKernel) or any(map(has_white, parts))


def check_kernel(kernel: Any) -> None:
    """Raise TypeError if a kernel has parts that nobody has registered."""
    for name in ("k1", "k2", "kernel"):
        if (part := getattr(kernel, name, None)) is not None:
            check_kernel(part)
    if not isinstance(kernel, kernels.KernelOperator | kernels.Exponentiation):
        _rule(kernel)


Half = tuple[Any, torch.Tensor]


def _halves(kernel: Any, theta: torch.Tensor) -> tuple[Half, Half]:
    """Both parts of a sum or a product, with their hyperparameters."""
    n = kernel.k1.n_dims
    return (kernel.k1, theta[:n]), (kernel.k2, theta[n:])


def _values(kernel: Any, theta: torch.Tensor) -> Values:
    """Hyperparameters by name: those of theta, and constants that are fixed."""
    found, at = {}, 0
    for part in kernel.hyperparameters:
        if part.fixed:
            given = getattr(kernel, part.name)
            found[part.name] = torch.as_tensor(given, dtype=theta.dtype)
            continue
        values = theta[at : at + part.n_elements].exp()
        found[part.name] = values if part.n_elements > 1 else values[0]
        at += part.n_elements
    return found


def _rule(kernel: Any) -> tuple[Covariance, Variance]:
    for name in type(kernel).__mro__:
        if name in RULES:
            return RULES[name]
    known = ", ".join(sorted(name.__name__ for name in RULES))
    raise TypeError(
        f"{kernel!r} has no form in torch. Kernels that have one are sums, products "
        f"and powers of {known}; skvi.kernels.register_kernel adds others."
    )


def squared_distances(
    X: torch.Tensor, Y: torch.Tensor, length: torch.Tensor
) -> torch.Tensor:
    """Squared distances between rows in units of the length scales, (n, m).

    By one product, unless rows are so far apart that it would round.
    """
    origin, same = X.detach().mean(0), X is Y
    X = (X - origin) / length
    Y = X if same else (Y - origin) / length
    squares = X.square().sum(1)[:, None] + Y.square().sum(1)
    if float(squares.detach().max()) > FAR:
        exact = "donot_use_mm_for_euclid_dist"
        return torch.cdist(X, Y, compute_mode=exact).square()
    found = torch.addmm(squares, X, Y.T, alpha=-2)
    if same:
        found.diagonal().zero_()
    return found.clamp(min=0)


class OfDistance(torch.autograd.Function):
    """A function of squared distances whose derivative is computed beside it.

    Derivatives of roots at 0 need no care, and nothing else is stored.
    """

    @staticmethod
    def forward(ctx: Any, squares: torch.Tensor, profile: Callable) -> torch.Tensor:
        value: torch.Tensor
        value, slope = profile(squares)
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        return gradient * ctx.saved_tensors[0], None


def _squared_exponential(squares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    value = torch.exp(-0.5 * squares)
    return value, -0.5 * value


def _exponential(squares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    root = squares.clamp(min=TINY).sqrt()
    value = torch.exp(-root)
    return value, -0.5 * value / root


def _matern_3(squares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    root = (3 * squares).sqrt()
    decay = torch.exp(-root)
    return (1 + root) * decay, -1.5 * decay


def _matern_5(squares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    root = (5 * squares).sqrt()
    decay = torch.exp(-root)
    linear = (1 + root) * decay
    return torch.addcmul(linear, squares, decay, value=5 / 3), linear.mul_(-5 / 6)


MATERN = {
    0.5: _exponential,
    1.5: _matern_3,
    2.5: _matern_5,
    math.inf: _squared_exponential,
}


def _matern(kernel: Any, h: Values, X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
    if kernel.nu not in MATERN:
        raise ValueError(
            f"nu of a Matern kernel must be 0.5, 1.5, 2.5 or inf. Got {kernel.nu!r}."
        )
    squares = squared_distances(X, Y, h["length_scale"])
    return OfDistance.apply(squares, MATERN[kernel.nu])


def _rbf(kernel: Any, h: Values, X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
    squares = squared_distances(X, Y, h["length_scale"])
    return OfDistance.apply(squares, _squared_exponential)


def _quadratic(
    kernel: Any, h: Values, X: torch.Tensor, Y: torch.Tensor
) -> torch.Tensor:
    squares = squared_distances(X, Y, h["length_scale"])
    return torch.exp(-h["alpha"] * torch.log1p(squares / (2 * h["alpha"])))


def _periodic(kernel: Any, h: Values, X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
    squares = squared_distances(X, Y, X.new_ones(()))
    phase = math.pi * squares.clamp(min=TINY).sqrt() / h["periodicity"]
    return torch.exp(-2 * (torch.sin(phase) / h["length_scale"]).square())


def _dot(kernel: Any, h: Values, X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
    return X @ Y.T + h["sigma_0"].square()


def _dot_variance(kernel: Any, h: Values, X: torch.Tensor) -> torch.Tensor:
    return X.square().sum(1) + h["sigma_0"].square()


def _constant(kernel: Any, h: Values, X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
    return h["constant_value"].expand(len(X), len(Y))


def _constants(kernel: Any, h: Values, X: torch.Tensor) -> torch.Tensor:
    return h["constant_value"].expand(len(X))


def _ones(kernel: Any, h: Values, X: torch.Tensor) -> torch.Tensor:
    return X.new_ones(len(X))


def _zeros(kernel: Any, h: Values, X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
    return X.new_zeros(len(X), len(Y))


def _zero(kernel: Any, h: Values, X: torch.Tensor) -> torch.Tensor:
    return X.new_zeros(len(X))


RULES: dict[type, tuple[Covariance, Variance]] = {
    kernels.Matern: (_matern, _ones),
    kernels.RBF: (_rbf, _ones),
    kernels.RationalQuadratic: (_quadratic, _ones),
    kernels.ExpSineSquared: (_periodic, _ones),
    kernels.DotProduct: (_dot, _dot_variance),
    kernels.ConstantKernel: (_constant, _constants),
    kernels.WhiteKernel: (_zeros, _zero),
}
