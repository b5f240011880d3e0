r"""What the ELBO of a normal can still gain, from gradients at its draws.

With theta = m + L eps, the gradient of log joint - log q in eps is b + M eps if the
density is normal. In eps its posterior then has the mean b and the covariance I + M, up
to higher orders, and q is short of it by

.. math:: KL(q \| p) = \tfrac12 |b|^2 + \tfrac14 |M|^2 .

At the posterior b and M are 0 without noise. A factorized q can change b and the
diagonal of M only. For other densities they are regressions on eps, whose expected
squares due to the residuals are subtracted: residuals of cubes are larger where eps is,
and those of M and of its transpose are alike.
"""

from typing import Any

import torch

from skvi.utils._random import randn

__all__ = ["gain_of_normal"]

# Draws for each coefficient of a regression, and the largest number of parameters.
DRAWS_PER_PARAM, MAX_PARAMS = 20, 200


def gain_of_normal(target: Any, posterior: Any, generator: torch.Generator) -> float:
    """Nats that a Newton step in mean and covariance would gain; 0 if unknown."""
    n_params = target.layout.size
    normal = posterior.as_normal()
    if normal is None or normal.factor is not None or n_params > MAX_PARAMS:
        return 0.0
    n_draws = DRAWS_PER_PARAM * (n_params + 1)
    eps = randn(generator, n_draws, n_params, dtype=normal.mean.dtype)
    with torch.enable_grad():
        leaf = eps.clone().requires_grad_()
        (slope,) = torch.autograd.grad(
            target.log_joint(normal.transform(leaf)).sum(), leaf
        )
    slope = slope + eps  # that of -log q
    design = torch.cat([torch.ones_like(eps[:, :1]), eps], 1)
    coef = torch.linalg.lstsq(design, slope).solution
    residual = slope - design @ coef
    b, M = coef[0], coef[1:]
    in_mean, of_mean = b.square().sum(), residual.square().sum(1)
    if normal.is_diagonal:
        in_shape, of_shape = (
            M.diagonal().square().sum(),
            (eps * residual).square().sum(1),
        )
    else:
        in_shape = (0.5 * (M + M.T)).square().sum()
        of_shape = 0.5 * eps.square().sum(1) * of_mean
        of_shape = of_shape + 0.5 * (eps * residual).sum(1).square()
    noise = (0.5 * of_mean + 0.25 * of_shape).sum() / (n_draws - n_params - 1) / n_draws
    return float(0.5 * in_mean + 0.25 * in_shape - noise)
