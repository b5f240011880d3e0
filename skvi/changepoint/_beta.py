r"""The beta loss of a regression, expected under a normal inverse gamma posterior.

With c = beta - 1, a row y with regressors phi, and the posterior q of coefficients w |
sigma^2 ~ N(mean, sigma^2 V), sigma^2 ~ inverse gamma (a, b), the expected gain is

    G = E_q[ f(y | w, sigma)^c / c - int f^(1+c) / (1+c) ] = E / c - J

    E = (2 pi)^(-c/2) (1 + c s)^(-1/2) Gamma(a + c/2) / Gamma(a) b^a (b + k)^(-a - c/2)
    J = (1 + c)^(-3/2) (2 pi)^(-c/2) Gamma(a + c/2) / Gamma(a) b^(-c/2)

with s = phi^T V phi, e = y - phi^T mean and k = c e^2 / (2 (1 + c s)). As c goes to 0,
G - 1/c + 1 becomes the expected log density.

The natural parameters of the optimal q are those of the prior plus, for every row, the
gradient of G with respect to the expectation parameters of q: a *site*, as if the row
were a fraction of a row of a conjugate model. Expectation parameters of the fit u =
phi^T w are

    m1 = E[u^2 / sigma^2]   m2 = E[u / sigma^2]   m3 = E[1 / sigma^2]
    m4 = E[log sigma^2]
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, polygamma, psi

__all__ = ["Sites", "sites"]

LOG_2PI = np.log(2 * np.pi)
# The derivative at the midpoint has an error of h^2 / 24, a difference quotient one of
# 1e-16 / h.
SMALL_STEP = 3e-5


@dataclass(frozen=True)
class Sites:
    """Contributions of rows to the natural parameters of the posterior, of equal shape.

    The precision of the coefficients grows by ``precision`` phi phi^T, precision times
    mean by ``shift`` phi, b + mean^T precision mean / 2 by ``const``, and a by
    ``shape``. Under the log loss they are 1, y, y^2 / 2 and 1 / 2.
    """

    precision: np.ndarray
    shift: np.ndarray
    const: np.ndarray
    shape: np.ndarray


def _terms(
    c: float, error: np.ndarray, leverage: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Log E, J, 1 + c s, and k / c."""
    damped = 1 + c * leverage
    k = error * error / (2 * damped)
    log_common = gammaln(a + c / 2) - gammaln(a) - c / 2 * (LOG_2PI + np.log(b))
    log_gain = log_common - 0.5 * np.log(damped) - (a + c / 2) * np.log1p(c * k / b)
    return log_gain, np.exp(log_common) * (1 + c) ** -1.5, damped, k


def sites(
    c: float,
    fit: np.ndarray,
    error: np.ndarray,
    leverage: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
) -> Sites:
    """Sites of rows at the current posterior; all arrays broadcast.

    ``c`` is beta - 1, positive; fit, error and leverage are phi^T mean, y - phi^T mean
    and phi^T V phi; a and b the shape and rate of the posterior of sigma^2.
    """
    log_gain, integral, damped, k = _terms(c, error, leverage, a, b)
    gain = np.exp(log_gain)
    weight = (a + c / 2) / (b + c * k)
    d_leverage = gain / damped * (c * k * weight - 0.5)
    d_fit = gain * weight * error / damped
    d_b = gain * (a * k - b / 2) / (b * (b + c * k)) + c / 2 * integral / b
    step = _digamma_step(a, c / 2)
    d_a = gain * (step - np.log1p(c * k / b)) / c - integral * step
    # From (fit, s, a, b) to expectation parameters.
    tau = a / b
    slope = 1 / a - polygamma(1, a)
    by_m4 = d_a / slope + d_b / (tau * slope)
    by_m3 = by_m4 / tau - d_b * a / tau**2
    return Sites(
        precision=-2 * d_leverage,
        shift=d_fit / tau - 2 * fit * d_leverage,
        const=d_fit * fit / tau - d_leverage * fit * fit - by_m3,
        shape=-by_m4,
    )


def _digamma_step(a: np.ndarray, h: float) -> np.ndarray:
    """psi(a + h) - psi(a), without cancellation for small h."""
    if h < SMALL_STEP:
        return h * polygamma(1, a + h / 2)
    return psi(a + h) - psi(a)
