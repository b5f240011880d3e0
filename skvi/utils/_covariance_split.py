"""Ways to split the covariance of f into independent parts and the rest.

Only differences of f matter: covariances are equivalent if they give every difference
of two f the same variance.
"""

import math

import torch

from skvi.utils._normal_points import contrasts, reduce_covariance


def pairwise_split(
    mean: torch.Tensor, covariance: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Equivalent covariances whose off-diagonal parts have little influence.

    The class with the largest mean gets no covariance with the others, so that a
    diagonal alone has the right variance for its difference to each of them. Its
    variance, which is arbitrary, is the mean of the covariances of these differences,
    weighted by how probable both classes are.

    Parameters
    ----------
    mean : Tensor of shape (n, K)
    covariance : Tensor of shape (n, K, K)

    Returns
    -------
    diagonal : Tensor of shape (n, K)
        Not negative.
    rest : Tensor of shape (n, K, K)
        A remainder of any definiteness, with a diagonal of zeros.
    """
    n = len(mean)
    each = covariance.diagonal(dim1=1, dim2=2)
    between = each[:, :, None] + each[:, None] - 2 * covariance
    rows, pivot = torch.arange(n, device=mean.device), mean.argmax(1)
    variance = between[rows, pivot].clamp(min=0)
    joint = 0.5 * (variance[:, :, None] + variance[:, None] - between)
    odds = (mean - mean.amax(1, keepdim=True)) / (1 + math.pi / 8 * variance).sqrt()
    weight = torch.sigmoid(odds) + 1e-9
    weight[rows, pivot] = 0
    weight = weight[:, :, None] * weight[:, None]
    if mean.shape[1] > 2:
        weight.diagonal(dim1=1, dim2=2).zero_()
    own = (weight * joint).sum((1, 2)) / weight.sum((1, 2))
    own = torch.minimum(own.clamp(min=0), 0.5 * variance.amax(1))
    diagonal = torch.maximum(variance - own[:, None], 0.05 * variance)
    diagonal[rows, pivot] = own
    rest = 0.5 * (diagonal[:, :, None] + diagonal[:, None] - between)
    rest.diagonal(dim1=1, dim2=2).zero_()
    return diagonal, rest


def definite_split(covariance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split the covariance of the contrasts of f into a diagonal and a rest.

    Parameters
    ----------
    covariance : Tensor of shape (n, K, K)

    Returns
    -------
    diagonal : Tensor of shape (n, K)
    root : Tensor of shape (n, K, D)
        ``diag(diagonal) + root root'`` has the contrasts' covariance. D is 0 for
        covariances that are diagonal, else K - 1.
    """
    diagonal = covariance.diagonal(dim1=1, dim2=2)
    if not bool((covariance - torch.diag_embed(diagonal)).any()):
        return diagonal, covariance[:, :, :0]
    k = covariance.shape[1]
    basis, reduced = contrasts(k, covariance.device), reduce_covariance(covariance)
    identity = torch.eye(k - 1, dtype=covariance.dtype, device=covariance.device)
    smallest = torch.linalg.eigvalsh(reduced)[:, 0].clamp(min=0)
    tiny = 1e-12 * reduced.diagonal(dim1=1, dim2=2).mean(1) + 1e-200
    own = (0.5 * smallest)[:, None].repeat(1, k)
    rest = reduced - (0.5 * smallest - tiny)[:, None, None] * identity
    inverse = torch.linalg.inv(rest)
    # Take from every class in turn half of the possible variance, then nearly all.
    for share in (0.5, 0.5, 0.8):
        for j in range(k):
            side = inverse @ basis[j]
            most = 1 / (side @ basis[j])
            own[:, j] += share * most
            factor = (share / (1 - share) * most)[:, None, None]
            inverse = inverse + factor * side[:, :, None] * side[:, None, :]
    own = own.clamp(min=0)
    values, vectors = torch.linalg.eigh(
        reduced - reduce_covariance(torch.diag_embed(own))
    )
    root = basis @ (vectors * values.clamp(min=0).sqrt()[:, None])
    # The direction of largest variance first, where quasi-random points are best.
    return own, root.flip(2)
