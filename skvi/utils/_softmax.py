"""Softmax functions of normal f: the nodes, and log probabilities for predictions."""

from collections.abc import Iterator

import torch

from skvi.utils._normal_points import node_groups


def softmax_nodes(
    mean: torch.Tensor, covariance: torch.Tensor, refine: int = 1
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Values of f ~ N(mean_i, covariance_i) at its nodes, for some rows at a time.

    Parameters
    ----------
    mean : Tensor of shape (n, K)
    covariance : Tensor of shape (n, K, K)
    refine : int, default=1
        Multiplies the number of nodes.

    Yields
    ------
    rows : Tensor of int of shape (m,)
    f : Tensor of shape (m, K, N)
        Up to what moves all K together; owned by the caller.
    weights : Tensor of shape (N,)
    """
    for rows, factor, nodes, weights in node_groups(covariance, refine):
        f = (factor.reshape(-1, len(nodes)) @ nodes).reshape(*factor.shape[:2], -1)
        f += mean[rows, :, None]
        yield rows, f, weights


def log_expect_softmax(mean: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    """Log of the expected softmax of f ~ N(mean_i, covariance_i).

    The rule of a row does not depend on the other rows. Probabilities sum to 1.

    Parameters
    ----------
    mean : Tensor of shape (n, K)
    covariance : Tensor of shape (n, K, K)

    Returns
    -------
    Tensor of shape (n, K)
        In nats; small values keep their relative accuracy as far as nodes reach.
    """
    out = torch.empty_like(mean)
    for rows, f, weights in softmax_nodes(mean, covariance):
        log_p = torch.log_softmax(f, 1) + weights.log()
        out[rows] = torch.logsumexp(log_p, 2)
    return torch.log_softmax(out, 1)
