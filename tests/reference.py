"""Independent references, in numpy and scipy only: nothing here imports skvi.

Quadrature is a dense trapezoidal sum, gradients follow the draws f = m + s z (the
package uses expected second derivatives), the optimizer is L-BFGS, the sampler is
elliptical slice sampling.
"""

import os
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.linalg import cholesky
from scipy.optimize import minimize
from scipy.special import erf, expit, log_expit
from scipy.stats import laplace, multivariate_normal, multivariate_t, norm
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.preprocessing import scale

#: Mean-field optimum, full-rank optimum, log p(D), in nats, under N(0, 1) priors.
REAL = {
    "setosa": (-7.7151, -7.2650, -7.1917),
    "virginica": (-20.8279, -20.5636, -20.5306),
    "breast_cancer": (-67.4634, -55.4651, -55.224),
    "pima": (-384.4894, -383.8867, -383.882),
}
SYNTHETIC = ("wide", "nearly_separable", "separable", "tiny", "correlated")


@lru_cache
def real_data(name):
    """X standardized by its own mean and standard deviation, and y."""
    if name == "breast_cancer":
        X, y = load_breast_cancer(return_X_y=True)
    elif name == "pima":
        path = Path(os.environ["SKVI_DATA"], "pima", "pima-indians-diabetes.data")
        table = np.loadtxt(path, delimiter=",")
        X, y = table[:, :-1], table[:, -1].astype(int)
    else:
        rows = slice(0, 100) if name == "setosa" else slice(50, 150)
        X, y = (a[rows] for a in load_iris(return_X_y=True))
    return scale(X), (y == y.max()).astype(int)


@lru_cache
def synthetic_data(name):
    """Sets that the solvers were not tuned on."""
    rng = np.random.default_rng(SYNTHETIC.index(name))
    n, d = {"wide": (20, 60), "tiny": (4, 2), "separable": (40, 3)}.get(name, (80, 6))
    X = rng.standard_normal((n, d))
    if name == "correlated":
        X = X[:, :1] + 0.02 * X
    coef = rng.standard_normal(d) * (3 if name == "correlated" else 1)
    f = X @ coef
    if name == "nearly_separable":
        y = f > 0
        y[np.argmin(np.abs(f))] ^= True  # one label wrong, next to the boundary
    elif name in ("separable", "tiny"):
        y = f > np.median(f)
    else:
        y = rng.random(n) < expit(f)
    return scale(X), y.astype(int)


def trapezoid(spread):
    """Nodes and weights for z ~ N(0, 1), exact for logistic functions of spread z."""
    half = 9.0
    n_nodes = int(np.ceil(2 * half * max(4.0, spread / 0.5))) + 1
    z = np.linspace(-half, half, n_nodes)
    w = np.exp(-0.5 * z**2)
    return z, w / w.sum()


class Problem:
    """E_q[loss] + D(q || prior) of a logistic model, with its gradient.

    Parameters are theta = (coefficients, intercept); q has mean m and scale L, either
    standard deviations or a lower Cholesky factor. `beta` is None for the log loss.
    `renyi` is None for `weight` times KL, else the order (mean-field q).
    """

    def __init__(
        self, X, y, scale=1.0, laplace=False, beta=None, weight=1.0, renyi=None, w=None
    ):
        self.A = np.column_stack([X, np.ones(len(X))])
        self.sign = 2.0 * np.asarray(y) - 1
        self.scale, self.laplace, self.beta = scale, laplace, beta
        self.weight, self.renyi = weight, renyi
        self.w = np.ones(len(X)) if w is None else np.asarray(w, float)

    def loss(self, g):
        """Loss of the margin g = (2y - 1) f, and its derivative in g."""
        if self.beta is None:
            return -log_expit(g), -expit(-g)
        b, p = self.beta, expit(g)
        value = (p**b + expit(-g) ** b) / b - p ** (b - 1) / (b - 1)
        # dp/dg = p (1 - p); the two powers of the integral move in opposite ways.
        slope = p**b * expit(-g) - expit(-g) ** b * p - p ** (b - 1) * expit(-g)
        return value, slope

    def expected_loss(self, m, L):
        """Value, and derivatives in mean and standard deviation of every f."""
        mean = self.A @ m * self.sign
        std = np.sqrt(self.A**2 @ L**2 if L.ndim == 1 else ((self.A @ L) ** 2).sum(1))
        z, weights = trapezoid(std.max())
        value, slope = self.loss(mean[:, None] + std[:, None] * z)
        d_mean = slope @ weights * self.sign * self.w
        return self.w @ (value @ weights), d_mean, slope @ (weights * z) * self.w, std

    def divergence(self, m, L):
        """Value, gradient in m and in L."""
        if self.renyi is not None:
            return self._renyi(m, L)
        diag = L if L.ndim == 1 else np.diag(L)
        std = L if L.ndim == 1 else np.sqrt((L**2).sum(1))
        value = -np.log(diag).sum() - 0.5 * len(m) * (1 + np.log(2 * np.pi))
        prior, g_m, g_std = self._cross_entropy(m, std)
        g_L = g_std - 1 / diag if L.ndim == 1 else (g_std / std)[:, None] * L
        if L.ndim == 2:
            g_L = np.tril(g_L) - np.diag(1 / diag)
        return self.weight * (value + prior), self.weight * g_m, self.weight * g_L

    def _cross_entropy(self, m, s):
        """-E_q[log prior]; the intercept always has a normal prior."""
        p = self.scale
        value = 0.5 * (m**2 + s**2) / p**2 + np.log(p) + 0.5 * np.log(2 * np.pi)
        g_m, g_s = m / p**2, s / p**2
        if self.laplace:
            c, density = slice(0, -1), np.sqrt(2 / np.pi) * np.exp(-0.5 * (m / s) ** 2)
            value[c] = ((s * density + m * erf(m / s / 2**0.5)) / p + np.log(2 * p))[c]
            g_m[c], g_s[c] = erf(m / s / 2**0.5)[c] / p, density[c] / p
        return value.sum(), g_m, g_s

    def _renyi(self, m, s):
        """From log integral of q^a prior^(1-a), coordinate by coordinate."""
        a, v, p = self.renyi, s**2, self.scale**2
        mix = a * p + (1 - a) * v
        log_det = 0.5 * ((1 - a) * np.log(v) + a * np.log(p) - np.log(mix))
        value = (0.5 * m**2 / mix - log_det / (a * (1 - a))).sum()
        g_v = -0.5 * (1 - a) * (m / mix) ** 2 - 0.5 * (1 / v - 1 / mix) / a
        return value, m / mix, 2 * s * g_v

    def log_joint(self, theta):
        """log prior - sum w loss at theta (S, P)."""
        log_prior = norm.logpdf(theta, scale=self.scale)
        if self.laplace:
            log_prior[:, :-1] = laplace.logpdf(theta[:, :-1], scale=self.scale)
        return log_prior.sum(1) - self.loss(theta @ self.A.T * self.sign)[0] @ self.w

    def value(self, m, L):
        """The minimized objective at q, nothing but sums."""
        return self.expected_loss(m, L)[0] + self.divergence(m, L)[0]

    def gradient(self, m, L):
        """The objective with its gradients in m and L."""
        loss, d_mean, d_std, std = self.expected_loss(m, L)
        value, g_m, g_L = self.divergence(m, L)
        ratio = d_std / std
        if L.ndim == 1:
            g_L = g_L + L * (ratio @ self.A**2)
        else:
            g_L = g_L + np.tril(self.A.T @ (ratio[:, None] * (self.A @ L)))
        return loss + value, g_m + self.A.T @ d_mean, g_L

    def mode(self):
        """Mode under a normal prior, and a root of its inverse Hessian."""

        def negative(theta):
            g = self.A @ theta * self.sign
            value = -self.w @ log_expit(g) + 0.5 * theta @ theta / self.scale**2
            slope = -self.A.T @ (expit(-g) * self.sign * self.w)
            return value, slope + theta / self.scale**2

        theta = minimize(negative, np.zeros(self.A.shape[1]), jac=True).x
        g = self.A @ theta
        H = self.A.T @ ((self.w * expit(g) * expit(-g))[:, None] * self.A)
        H[np.diag_indices_from(H)] += 1 / self.scale**2
        return theta, np.linalg.inv(cholesky(H, lower=True)).T

    def optimum(self, full_rank, n_runs=4, max_iter=1000):
        """Smallest objective that whitened L-BFGS finds, and the q there."""
        m, R = self.mode()
        R = cholesky(R @ R.T, lower=True)
        L = R if full_rank else np.sqrt(1 / np.diag(np.linalg.inv(R @ R.T)))
        size, value = len(m), np.inf
        low = np.tril_indices(size, -1)
        for _ in range(n_runs):
            m0, L0, before = m, L, value

            def unpack(x, m0=m0, L0=L0):
                t = np.exp(x[size : 2 * size])
                if not full_rank:
                    return m0 + R @ x[:size], L0 * t, t
                T = np.diag(t)
                T[low] = x[2 * size :]
                return m0 + R @ x[:size], L0 @ T, t

            def objective(x, L0=L0, unpack=unpack):
                m, L, t = unpack(x)
                value, g_m, g_L = self.gradient(m, L)
                if not full_rank:
                    return value, np.concatenate([R.T @ g_m, g_L * L])
                g_T = L0.T @ g_L
                return value, np.concatenate([R.T @ g_m, np.diag(g_T) * t, g_T[low]])

            x0 = np.zeros(2 * size + (len(low[0]) if full_rank else 0))
            options = {"maxiter": max_iter, "maxfun": 10**5, "maxcor": 30}
            options |= {"ftol": 1e-14, "gtol": 1e-9}
            found = minimize(
                objective, x0, jac=True, method="L-BFGS-B", options=options
            )
            (m, L, _), value = unpack(found.x), found.fun
            if before - value < 1e-8:
                break
        return value, m, L

    def undamped(self, n_iter=100):
        """Value after the full natural steps that no safeguard shortens."""
        m, R = self.mode()
        L, P = R, np.eye(len(m)) / self.scale**2
        for _ in range(n_iter):
            _, g_m, _ = self.gradient(m, np.tril(L))
            mean, std = self.A @ m, np.sqrt(((self.A @ L) ** 2).sum(1))
            z, weights = trapezoid(std.max())
            f = mean[:, None] + std[:, None] * z
            h = (expit(f) * expit(-f)) @ weights * self.w
            precision = P + self.A.T @ (h[:, None] * self.A)
            m = m - np.linalg.solve(precision, g_m)
            L = cholesky(np.linalg.inv(precision), lower=True)
        return self.value(m, L)


def sample_chains(problem, n_chains, n_warmup, n_iter, seed, widen=1.3):
    """Elliptical slice sampling of the posterior, (n_chains, n_iter, P).

    All chains move together, on ellipses of a normal around the mode; every move is
    exact whatever that normal is, so that there is nothing to tune. Half of the
    chains start in the prior, or, where the problem has no scale of it, in a normal
    three times as wide.
    """
    rng = np.random.default_rng(seed)
    mode, root = problem.mode()
    size, root = len(mode), widen * root

    def log_ratio(eps):
        """Joint density over that of the normal, at theta = mode + root eps."""
        return problem.log_joint(mode + eps @ root.T) + 0.5 * (eps**2).sum(1)

    eps = rng.standard_normal((n_chains, size))
    if problem.scale is None:
        eps[::2] *= 3.0
    else:
        prior = problem.scale * rng.standard_normal((n_chains // 2, size))
        eps[::2] = np.linalg.solve(root, (prior - mode).T).T
    current, kept = log_ratio(eps), []
    for i in range(n_warmup + n_iter):
        nu = rng.standard_normal(eps.shape)
        level = current + np.log(rng.random(n_chains))
        angle = 2 * np.pi * rng.random(n_chains)
        low, high, todo = angle - 2 * np.pi, angle.copy(), np.arange(n_chains)
        new, value = eps.copy(), current.copy()
        while len(todo):
            a = angle[todo, None]
            trial = np.cos(a) * eps[todo] + np.sin(a) * nu[todo]
            found = log_ratio(trial)
            good = found > level[todo]
            new[todo[good]], value[todo[good]] = trial[good], found[good]
            todo = todo[~good]
            below = angle[todo] < 0
            low[todo[below]] = angle[todo[below]]
            high[todo[~below]] = angle[todo[~below]]
            angle[todo] = rng.uniform(low[todo], high[todo])
        eps, current = new, value
        if i >= n_warmup:
            kept.append(mode + eps @ root.T)
    return np.stack(kept, 1)


def chain_mean(values):
    """Mean over draws (n_chains, n_iter, ...) and its error from the chain means."""
    means = values.mean(1)
    return means.mean(0), means.std(0, ddof=1) / np.sqrt(len(means))


def importance_evidence(problem, n_draws, seed, df=20):
    """log evidence and its error, from a Student-t fitted to the posterior.

    It starts from the moments of short chains; two rounds of weighted moments mend
    what these leave.
    """
    pilot = sample_chains(problem, 100, 100, 100, seed).reshape(10_000, -1)
    rng = np.random.default_rng(seed)
    mean, covariance = pilot.mean(0), np.cov(pilot.T)
    for size in (20_000, 20_000, n_draws):
        theta, lw = _student_t_draws(problem, mean, covariance, size, rng, df)
        w = np.exp(lw - lw.max())
        mean = w @ theta / w.sum()
        covariance = np.cov(theta.T, aweights=w)
    error = w.std() / w.mean() / np.sqrt(n_draws)
    return np.log(w.mean()) + lw.max(), error


def _student_t_draws(problem, mean, covariance, n_draws, rng, df):
    root = cholesky(covariance * (df - 2) / df * 1.05, lower=True)
    factor = np.sqrt(df / rng.chisquare(df, n_draws))
    eps = rng.standard_normal((n_draws, len(root))) * factor[:, None]
    log_q = multivariate_t(df=df, shape=np.eye(len(root))).logpdf(eps)
    theta = mean + eps @ root.T
    parts = np.array_split(theta, 1 + n_draws // 10_000)
    lw = np.concatenate([problem.log_joint(t) for t in parts]) - log_q
    return theta, lw + np.log(np.diag(root)).sum()


def conjugate_evidence(A, y, prior_scale, noise_scale):
    """log p(y) of y = A theta + noise: y is normal."""
    covariance = prior_scale**2 * A @ A.T + noise_scale**2 * np.eye(len(y))
    return multivariate_normal.logpdf(y, np.zeros(len(y)), covariance)
