"""What a fit says about itself."""

import math

import numpy as np
import pytest
import torch

from skvi.base import Layout, NormalForm
from skvi.evidence._summarize import lower_bound
from skvi.posteriors import MeanFieldNormal
from skvi.targets import Target


class Bell(Target):
    """A standard normal, without closed form of anything."""

    layout = Layout({"coef": (1,)})

    def log_joint(self, theta, rows=None):
        return -0.5 * theta.square().sum(1)


def test_error_of_a_drawn_elbo_is_that_of_the_mean():
    """log p - log q of draws from N(0, 2^2) is -1.5 chi^2_1 but for a constant.

    Wrong variant: the deviation of one draw for the error of the mean.
    """
    posterior = MeanFieldNormal().build(Bell.layout)
    posterior = posterior.near(NormalForm(torch.zeros(1), torch.full((1,), 2.0)))
    found = [
        lower_bound(Bell(), posterior, torch.Generator().manual_seed(seed), 500)
        for seed in range(100)
    ]
    values, errors = np.transpose(found)
    exact = -1.5 + math.log(2) + 0.5 * math.log(2 * math.pi)
    assert abs(values.mean() - exact) < 4 * values.std() / 10
    # The deviation of one is sqrt(4.5), and that of an estimate from 100, 7 %.
    assert errors.mean() == pytest.approx((4.5 / 500) ** 0.5, rel=0.05)
    assert values.std(ddof=1) == pytest.approx(errors.mean(), rel=0.3)
