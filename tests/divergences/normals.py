"""What the tests of divergences share: normals in other places and shapes."""

import torch

from skvi.base import NormalForm


class Prior:
    """A normal in the place of a built prior."""

    def __init__(self, normal):
        self.normal = normal

    def as_normal(self):
        return self.normal


def as_full(normal):
    return NormalForm(normal.mean, torch.linalg.cholesky(normal.covariance()))
