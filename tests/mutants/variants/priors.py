"""Wrong variants of priors."""

from tests.mutants.variant import variants_of

_v = variants_of("priors/")

VARIANTS = [
    _v(
        "laplace-normalizer",
        "_laplace.py",
        "return -theta.abs() / self.scale - torch.log(2 * self.scale)",
        "return -theta.abs() / self.scale - torch.log(self.scale)",
        "the density without its factor 1/2",
    ),
    _v(
        "laplace-standard-deviation",
        "_laplace.py",
        "NormalForm(torch.zeros_like(self.scale), math.sqrt(2) * self.scale)",
        "NormalForm(torch.zeros_like(self.scale), self.scale)",
        "the scale for the standard deviation",
    ),
    _v(
        "laplace-folded-normal",
        "_laplace.py",
        "density = torch.exp(-0.5 * z.square()) * math.sqrt(2 / math.pi)",
        "density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)",
        "the normal density for twice it",
    ),
    _v(
        "log-uniform-constant",
        "_log_uniform.py",
        "CONSTANT = 0.5 * (math.log(math.pi) + 1 +",
        "CONSTANT = 0.5 * (math.log(math.pi) +",
        "the entropy's 1/2 left out of the constant",
    ),
    _v(
        "normal-expected-without-variance",
        "_normal.py",
        "(mean.square() + std.square()) / self.scale.square()",
        "mean.square() / self.scale.square()",
        "the second moment without the variance",
    ),
    _v(
        "normal-slope-scale",
        "_normal.py",
        "return -theta / self.scale.square()",
        "return -theta / self.scale",
        "one factor of the scale too few",
    ),
    _v(
        "student-t-beta-function",
        "_student_t.py",
        "-float(betaln(self.df / 2, 0.5))",
        "-float(betaln(self.df, 0.5))",
        "Gamma(df) for Gamma(df / 2)",
    ),
    _v(
        "student-t-slope",
        "_student_t.py",
        "return -(self.df + 1) * theta",
        "return -self.df * theta",
        "df for df + 1 in the slope",
    ),
    _v(
        "ard-degrees-of-freedom",
        "_student_t.py",
        "_BuiltStudentT(2 * float(self.shape),",
        "_BuiltStudentT(float(self.shape),",
        "df = shape for 2 shape",
    ),
    _v(
        "ard-expected-precision",
        "_student_t.py",
        "return (self.shape + 0.5) / self.rate * found",
        "return self.shape / self.rate * found",
        "the coefficient's half left out of the shape",
    ),
    _v(
        "horseshoe-width",
        "_horseshoe.py",
        "return math.sqrt(2) * self.scale",
        "return self.scale",
        "t = theta^2 / s^2 for half of it",
    ),
    _v(
        "horseshoe-draws",
        "_horseshoe.py",
        "torch.tan(0.5 * math.pi * rand",
        "torch.tan(0.25 * math.pi * rand",
        "half of the half-Cauchy distribution",
    ),
    _v(
        "hierarchical-tails",
        "_hierarchical.py",
        "torch.log1p(squares / (2 * b))",
        "torch.log1p(squares / b)",
        "the rate without its 2",
    ),
    _v(
        "hierarchical-rate-of-draws",
        "_hierarchical.py",
        ") - math.log(self.rate)",
        ") + math.log(self.rate)",
        "a scale for a rate",
    ),
    _v(
        "natural-scale-of-learnt-prior",
        "_scales.py",
        "return self.make(hyper[0].exp() * self.natural)",
        "return self.make(hyper[0].exp() * torch.ones_like(self.natural))",
        "natural sizes forgotten where the scale is learnt",
    ),
    _v(
        "blocks-concave-if-one-is",
        "_blocks.py",
        "return all(p.is_log_concave for p in self.priors)",
        "return any(p.is_log_concave for p in self.priors)",
        "one log-concave block makes the prior log-concave",
    ),
    _v(
        "every-prior-log-concave",
        "base.py",
        "return self.as_normal() is not None",
        "return True",
        "heavy tails count as log-concave",
    ),
    _v(
        "flat-reference-is-a-normal",
        "_reference.py",
        "return torch.zeros_like(theta[:, 0])",
        "return -0.5 * theta.square().sum(1)",
        "a standard normal where a target has no prior",
    ),
]
