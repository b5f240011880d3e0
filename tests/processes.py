"""A fit by one process or by several; see `tests/solvers/test_members.py`."""

import sys

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import scale
from torch import distributed

from skvi.neural_network import BayesianMLPRegressor
from skvi.objectives import ELBO
from skvi.solvers import Stochastic


def fitted(posterior, gradient, batch_size, is_distributed):
    """Parameters of q after some steps; 101 rows are no multiple of anything."""
    X, y = load_diabetes(return_X_y=True)
    model = BayesianMLPRegressor(
        hidden_layer_sizes=(6,),
        prior="normal",
        divergence="kl",
        posterior=posterior,
        objective=ELBO(gradient),
        batch_size=batch_size,
        max_iter=1,
        solver=Stochastic(tol=1e-9, distributed=is_distributed),
        random_state=0,
    )
    return model.fit(scale(X[:101]), y[:101]).posterior_.params.numpy()


def all_fits(is_distributed=False):
    """One after the other, in one array."""
    rules = ("mean_field", "local"), ("full_rank", "auto")
    cases = [(*rule, size) for rule in rules for size in (11, 101)]
    return np.concatenate([fitted(*case, is_distributed) for case in cases])


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    found = all_fits(is_distributed=True)
    if distributed.get_rank() == 0:
        np.save(sys.argv[1], found)
    distributed.destroy_process_group()
