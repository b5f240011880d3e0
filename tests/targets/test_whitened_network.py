"""Networks in whitened coordinates: their own passes against automatic derivatives."""

import pytest
import torch

from skvi.base import NormalForm
from skvi.likelihoods import BernoulliLikelihood, GaussianLikelihood, StudentTLikelihood
from skvi.likelihoods._categorical import CategoricalLikelihood
from skvi.losses import LogLoss
from skvi.predictors import MLPPredictor
from skvi.priors import Normal
from skvi.targets import SupervisedTarget
from skvi.targets._supervised import WhitenedNetwork

LIKELIHOODS = {
    "gaussian": (GaussianLikelihood(0.4), 1),
    "student_t": (StudentTLikelihood(df=4.0, noise_scale=0.5), 1),
    "bernoulli": (BernoulliLikelihood(), 1),
    "categorical": (CategoricalLikelihood(3), 3),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_values_and_slopes(name, weighted, generator, monkeypatch):
    """Several blocks of draws, the last of them not full.

    Wrong variants: slopes without the weights of rows; the gradient in theta and not in
    the position; the prior left out.
    """
    monkeypatch.setattr("skvi.targets._supervised.CACHE_ELEMENTS", 100)
    likelihood, n_outputs = LIKELIHOODS[name]
    predictor = MLPPredictor(2, n_outputs, (3, 2), "tanh")
    X = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    y = torch.randint(n_outputs + (n_outputs == 1), (9,), generator=generator)
    weight = torch.rand(9, generator=generator, dtype=torch.float64)
    prior = Normal(1.3).build(predictor.layout)
    target = SupervisedTarget(
        predictor,
        likelihood,
        LogLoss(),
        prior,
        X,
        y.double(),
        weight if weighted else None,
        constant=0.7,
    ).frozen()
    size = predictor.layout.size
    scale = 0.5 + torch.rand(size, generator=generator, dtype=torch.float64)
    normal = NormalForm(torch.zeros(size, dtype=torch.float64), scale)
    position = torch.randn(8, size, generator=generator, dtype=torch.float64)
    whitened = target.whitened(normal)
    assert isinstance(whitened, WhitenedNetwork)
    value, slope = whitened.value_and_slope(position)
    theta = normal.transform(position)
    expected, gradient = target.log_joint_and_gradient(theta)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(slope, gradient * scale)
    torch.testing.assert_close(whitened.slope(position), slope)
