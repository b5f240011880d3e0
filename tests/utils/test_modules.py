"""Torch modules as plain objects: what is stored is what is built again."""

import numpy as np
import torch
from torch import nn

from skvi.utils._modules import StoredModule, StoredTensor, store_module


class Tied(nn.Module):
    """One weight in two places, a buffer, and a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(3, 3), nn.Linear(3, 3)
        self.out.weight = self.into.weight
        self.out.bias.requires_grad_(False)
        self.norm = nn.BatchNorm1d(3).eval()
        self.heads = nn.ModuleList([nn.Linear(3, 1)])
        self.shift = [torch.ones(3, dtype=torch.bfloat16)]

    def forward(self, x):
        x = torch.relu(self.norm(self.into(x)) + self.shift[0].to(x.dtype))
        return self.heads[0](self.out(x))


def leaves(value):
    """Everything that is stored, at every depth."""
    if isinstance(value, StoredModule):
        yield from leaves(value.state)
    elif isinstance(value, dict | list | tuple):
        items = value.values() if isinstance(value, dict) else value
        for item in items:
            yield from leaves(item)
    elif isinstance(value, StoredTensor):
        yield value.array
    else:
        yield value


def test_modules_without_tensors_are_the_same_modules():
    """Wrong variant: a weight of two places that is stored twice, and untied."""
    torch.manual_seed(0)
    X = torch.randn(4, 5, 3)
    for module, rows in ((Tied(), X[0]), (nn.LSTM(3, 2), X)):
        stored = store_module(module)
        kinds = {type(leaf) for leaf in leaves(stored)}
        assert not any(issubclass(kind, torch.Tensor | nn.Module) for kind in kinds)
        again = stored.build()
        one, other = (m.state_dict() for m in (module, again))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
        results = [m(rows) for m in (module, again)]
        if isinstance(module, nn.LSTM):
            results = [result[0] for result in results]
        assert torch.equal(*results)
        names = [dict(m.named_parameters()) for m in (module, again)]
        free = [{k: p.requires_grad for k, p in n.items()} for n in names]
        assert free[0] == free[1]  # a tied weight has one name only


def test_modules_on_meta_stay_there():
    """Their numbers do not exist. Wrong variant: zeros."""
    stored = store_module(nn.Linear(2, 1).to("meta"))
    assert stored.state["_parameters"]["weight"].array is None
    assert stored.build().weight.is_meta
    weight = store_module(nn.Linear(2, 1)).state["_parameters"]["weight"]
    assert isinstance(weight.array, np.ndarray)
