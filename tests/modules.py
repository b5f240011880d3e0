"""Torch modules for tests, where they can be pickled."""

from torch import nn


def relu_network(n_features, n_outputs):
    """One hidden layer of relu units, for rows of any shape."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(n_features, 20),
        nn.ReLU(),
        nn.Linear(20, n_outputs),
    )
