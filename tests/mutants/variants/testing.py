"""Wrong variants of the checks for parts of one's own."""

from tests.mutants.variant import variants_of

_v = variants_of("testing/")

VARIANTS = [
    _v(
        "check-numeric-gradient",
        "_ensure.py",
        "(function(x + step) - function(x - step)) / (2 * h)",
        "(function(x + step) - function(x - step)) / h",
        "central differences without their 2",
    ),
    _v(
        "check-closeness-ignored",
        "_ensure.py",
        "wrong = ~(gap <= atol + rtol * expected.abs())",
        "wrong = ~(gap <= 1 + atol + rtol * expected.abs())",
        "everything within 1 passes",
    ),
    _v(
        "check-variance-derivative",
        "_losses.py",
        "(integral(mean, std + h) - integral(mean, std - h)) / (2 * h * std)",
        "(integral(mean, std + h) - integral(mean, std - h)) / (2 * h)",
        "the derivative in the deviation for twice that in the variance",
    ),
    _v(
        "check-divergence-pull",
        "_divergences.py",
        "expected = 2 * numeric_gradient(by_variance, q.variance, 1e-6)",
        "expected = numeric_gradient(by_variance, q.variance, 1e-6)",
        "the gradient in the covariance without its 2",
    ),
    _v(
        "check-prior-mass-jacobian",
        "_priors.py",
        "torch.exp(one.log_prob(s * half[:, None]) + u)",
        "torch.exp(one.log_prob(s * half[:, None]))",
        "the Jacobian of the line of log theta left out",
    ),
    _v(
        "check-family-mass",
        "_posteriors.py",
        "log_t -= 0.5 * size * math.log(",
        "log_t -= size * math.log(",
        "normalizer of the Student-t without its root",
    ),
]
