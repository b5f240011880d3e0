"""Tables that are computed once serve every mode of torch."""

import torch

from skvi.expectations._logistic import expect_softplus, logistic_scales
from skvi.expectations._rules import normal_rule


def test_tables_made_in_inference_mode_can_be_part_of_graphs():
    """Wrong variant: they are what the mode of the first call made them."""
    calls = [lambda: normal_rule(0.123), lambda: normal_rule(1.234, 3)]
    for call in [*calls, lambda: logistic_scales(7)]:
        with torch.inference_mode():
            first = call()
        assert not any(tensor.is_inference() for tensor in first)
        assert call()[0] is first[0]


def test_gradients_through_quadrature_after_inference():
    mean = torch.tensor([0.3, -2.0], dtype=torch.float64)
    std = torch.tensor([0.456, 0.1], dtype=torch.float64)
    with torch.inference_mode():
        expected = expect_softplus(mean, std)[1]
    mean.requires_grad_()
    expect_softplus(mean, std)[0].sum().backward()
    torch.testing.assert_close(mean.grad, expected.clone(), rtol=1e-9, atol=0)
