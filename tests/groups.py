"""Elements of the group of a network."""

import torch


def random_copy(symmetry, theta, generator):
    """Apply one random element to all draws: other parameters, the same functions."""
    found = theta.clone()
    for layer in symmetry.units:
        moved = found[:, layer[torch.randperm(len(layer), generator=generator)]]
        if symmetry.flips:
            signs = torch.rand(len(layer), 1, generator=generator) - 0.5
            moved = moved * signs.sign().to(theta.dtype)
        found[:, layer] = moved
    return found
