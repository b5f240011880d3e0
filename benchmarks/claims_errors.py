"""What is printed wrong in the sources, beside what is right, by quadrature.

``claims_errors.csv`` has the texts, and the name of a function below that returns what
the printed formula gives in an example, and what is right.
"""

import math
from pathlib import Path

import numpy as np
from runs import read
from scipy.optimize import minimize

X = np.linspace(-25, 25, 10_001)
STEP = X[1] - X[0]


def normal(x, mean, std):
    return np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))


def integral(values):
    return float(values.sum() * STEP)


def slope(function, at, h=1e-4):
    return (function(at + h) - function(at - h)) / (2 * h)


def upper_bounds():
    """Distances of exact upper bounds from log p(D): p is N(0, 1), q N(0, width²)."""
    rows, p = [], normal(X, 0, 1)
    for width in (0.7, 0.9, 1.1, 1.3, 2.0, 3.4):
        log_ratio = -0.5 * X**2 + 0.5 * (X / width) ** 2 + math.log(width)
        row = {"width of q": width, "EUBO": f"{integral(p * log_ratio):.3f}"}
        # q (p / q)^n is integrable if the variance of q is above 1 - 1 / n.
        for n, name in ((2, "chi, order 2 (Rényi, -1)"), (3, "Rényi, -2")):
            finite = width**2 > 1 - 1 / n
            moment = integral(p * np.exp((n - 1) * log_ratio)) if finite else math.inf
            row[name] = f"{math.log(moment) / n:.3f}" if finite else "∞"
        rows.append(row)
    return rows


def gradient_of_renyi_bound():
    """Equation 1 in the mean of q, at order 2: along the path of a draw."""
    alpha, mean, std = 2.0, 0.5, 0.8
    q, p = normal(X, mean, std), normal(X, 0, 1)
    weights = q * (p / q) ** (1 - alpha)
    printed = integral(weights * -X) / integral(weights) / (1 - alpha)

    def bound(m):
        q = normal(X, m, std)
        return math.log(integral(q * (p / q) ** (1 - alpha))) / (1 - alpha)

    return printed, slope(bound, mean)


def gradient_of_eubo():
    """Equation 5 in the deviation, where q is the posterior and log p(D) is -10."""
    log_evidence, q = -10.0, normal(X, 0, 1)
    return integral(q * ((log_evidence + 1) * -(X**2) + 1)), 0.0


def algorithm_1():
    """In the mean, at q = N(1, 1), where p is N(0, 1): log q of a path is constant."""
    q, p = normal(X, 1, 1), normal(X, 0, 1)
    weights = p / q

    def of_path(mean):
        return np.log(normal(mean + (X - 1), mean, 1))

    path = (of_path(1 + 1e-4) - of_path(1 - 1e-4)) / 2e-4
    right = slope(lambda m: integral(p * np.log(p / normal(X, m, 1))), 1.0)
    return -integral(q * weights * path), right


def beta_divergence():
    """From N(0, 1) to N(1, 1), of order 1.5."""
    beta, g, p = 1.5, normal(X, 0, 1), normal(X, 1, 1)
    k = beta * (beta - 1)

    def log_beta(x):
        return (beta * x ** (beta - 1) - (beta - 1) * x**beta) / k

    right = integral(g**beta + (beta - 1) * p**beta - beta * g * p ** (beta - 1)) / k
    return integral(g * (log_beta(p) - log_beta(g))), right


def kl_of_normals():
    """From N(0.5, 0.5²) to N(0, 1)."""
    q, ratio = normal(X, 0.5, 0.5), 0.25
    log_ratio = 0.5 * X**2 - 0.5 * ((X - 0.5) / 0.5) ** 2 - math.log(0.5)
    return (0.25 + ratio) / 2 - math.log(ratio), integral(q * log_ratio)


def unbiased_implicit_score():
    """w given e is N(0.8 e, 0.5²), e is N(0, 1): the score at w = 1."""
    a, s, w = 0.8, 0.5, 1.0

    def joint(w, a=a):
        return normal(w, a * X, s) * normal(X, 0, 1)

    given = joint(w) / integral(joint(w))
    printed = integral(given * (w - a * X) * X / s**2)
    return printed, slope(lambda w: math.log(integral(joint(w))), w)


def gap_of_reverse_model():
    """The same q, and r(e | w) = N(0.3 w, 0.8²): both orders of the divergence."""
    a, s = 0.8, 0.5
    grid = np.linspace(-7, 7, 351)
    w, e = np.meshgrid(grid, grid, indexing="ij")
    joint = normal(w, a * e, s) * normal(e, 0, 1)
    marginal = normal(grid, 0, math.hypot(a, s))[:, None]
    given, r = joint / marginal, normal(e, 0.3 * w, 0.8)
    area = (grid[1] - grid[0]) ** 2
    log_ratio = np.log(joint / r) - np.log(marginal)
    return float((marginal * r * np.log(r / given)).sum() * area), float(
        (joint * log_ratio).sum() * area
    )


def variances_of_auxiliaries():
    """Five of them, each with 0.7 of what is left; the sum has to be that of w, 1."""
    left = 1.0
    for _ in range(5):
        left -= 0.7 * left
    return 1 - left, 1.0


def bound_of_cauchy_auxiliaries():
    """One weight, N(w; 1, 1) times a Cauchy prior: ELBO_init and ELBO_aux, - log p(D).

    The first of two auxiliary variables has 0.7 of the scale. Every fit is exact.
    """
    x, weight = np.polynomial.hermite_e.hermegauss(60)
    weight = weight / weight.sum()

    def cauchy(w, scale):
        return scale / (math.pi * (scale**2 + w**2))

    def minus_bound(q, at, scale):
        w = q[0] + math.exp(q[1]) * x
        parts = -0.5 * (w - 1) ** 2 + np.log(cauchy(w - at, scale))
        return -weight @ parts - q[1] - 0.5 * math.log(2 * math.pi * math.e)

    def fit(at, scale):
        starts = [1.0, 0.0], [0.5, -0.5], [at, -1.0]
        found = [minimize(minus_bound, s, (at, scale), "Nelder-Mead") for s in starts]
        return min(found, key=lambda best: best.fun)

    start = fit(0.0, 1.0)
    w = start.x[0] + math.exp(start.x[1]) * x
    tail = np.pi * ((np.arange(51) + 0.5) / 51 - 0.5)
    a = 0.5 + np.tan(tail)  # with the same share of a Cauchy distribution each
    ratio = (cauchy(w - a[:, None], 0.3) / cauchy(w, 1.0)) @ weight  # q(a) / p(a)
    share = ratio * cauchy(a, 0.7) / cauchy(a - 0.5, 1.0) / len(a)
    after = np.array([-fit(at, 0.3).fun for at in a]) - np.log(ratio)
    log_evidence = math.log(integral(np.exp(-0.5 * (X - 1) ** 2) * cauchy(X, 1.0)))
    return -start.fun - log_evidence, share @ after - log_evidence


def gradient_of_log_q():
    """In the deviation of q = N(0, 2²), along the path of a draw."""

    def of_path(std, f):
        return integral(normal(X, 0, 1) * f(normal(std * X, 0, std)))

    return slope(lambda s: of_path(s, lambda q: q), 2.0), slope(
        lambda s: of_path(s, lambda q: np.log(np.maximum(q, 1e-300))), 2.0
    )


def control_variate():
    """Five draws of q = N(0, 1), p = N(1, 1): the expected gradient in the mean."""
    z = np.random.default_rng(0).normal(size=(200_000, 5))
    h, f = z, z * (z - 0.5)
    centered = h - h.mean(1, keepdims=True)
    a = (centered * f).sum(1) / (centered * centered).sum(1)
    return float((f.mean(1) - a * h.mean(1)).mean()), 1.0


def precision_of_weights():
    """What the prior adds to the precision of w, where E[alpha] is 4."""
    return 1.0, 4.0


def checks():
    """Rows of the table of errors: a check that is named gets its two numbers."""
    rows = read(Path(__file__).with_suffix(".csv"))
    for row in rows:
        check = globals().get(row["check"])
        if check:
            wrong, truth = check()
            text = f"{wrong:.3f}, right is {truth:.3f}"
            row["check"] = text.replace("-0.000", "0.000")
    return rows
