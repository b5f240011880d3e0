"""Draws of a prior whose coefficients share a precision with a hyperprior."""

import pytest

from skvi.base import Layout
from skvi.priors import GammaHyperprior
from skvi.targets._precisions import BuiltHierarchy


@pytest.mark.parametrize("is_shared", [True, False])
def test_coefficients_have_the_drawn_precision(is_shared, generator, z_score):
    """Var(coef | precision) = 1 / precision. Wrong variants: exp(-t) for exp(-t / 2),
    a width that is the variance; precisions of other draws; a scale for a rate.
    """
    size = 1 if is_shared else 2
    shapes = {"coef": (1, 2), "coef_precision": (size,)}
    layout = Layout(shapes, {"coef_precision": "exp"})
    gamma = GammaHyperprior(6.0, 2.0, is_shared)
    prior = BuiltHierarchy(layout, None, {"coef_precision": gamma})
    draws = layout.unpack(prior.sample(20_000, generator))
    coef, precision = draws["coef"][:, 0], draws["coef_precision"]
    assert z_score(precision * coef.square(), 1.0) < 5
    assert z_score(coef.square(), 2.0 / (6.0 - 1)) < 5
    assert z_score(precision, 6.0 / 2.0) < 5
