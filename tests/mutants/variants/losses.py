"""Wrong variants of losses."""

from tests.mutants.variant import variants_of

_v = variants_of("losses/")

VARIANTS = [
    _v(
        "beta-loss-integral-factor",
        "_robust.py",
        "return torch.exp(likelihood.log_power_integral(f, self.beta)) / self.beta",
        "return torch.exp(likelihood.log_power_integral(f, self.beta))",
        "the integral without its factor 1/beta",
    ),
    _v(
        "beta-loss-curvature-factor",
        "_robust.py",
        "norm[2] / self.beta - gain[2] / c,",
        "norm[2] / self.beta - gain[2],",
        "the curvature of the gain without 1/(beta - 1)",
    ),
    _v(
        "gamma-loss-factor",
        "_robust.py",
        "return math.log(self.gamma) - math.log(self.gamma - 1)",
        "return -math.log(self.gamma - 1)",
        "the factor gamma forgotten",
    ),
    _v(
        "gamma-loss-slope-sign",
        "_robust.py",
        "factor * found[0], factor * found[1],",
        "factor * found[0], -factor * found[1],",
        "sign of the expected slope",
    ),
    _v(
        "stein-curvature-identity",
        "_callable.py",
        "weights * (z.square() - 1)",
        "weights * z.square()",
        "z^2 for z^2 - 1 in Stein's identity",
    ),
    _v(
        "stein-slope-scale",
        "_callable.py",
        "found[1] / std, found[2]",
        "found[1] / std.square(), found[2]",
        "the slope divided by the variance",
    ),
    _v(
        "penalty-sign",
        "_callable.py",
        "else values[0] + values[1]",
        "else values[0] - values[1]",
        "the penalty is subtracted",
    ),
]
