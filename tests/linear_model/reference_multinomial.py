"""Independent references for several classes: numpy and scipy only, no skvi.

Expectations over independent f use the largest of f plus Gumbel noise, in one
dimension; over correlated f a dense product rule. The optimizer is L-BFGS.
"""

import numpy as np
from scipy.linalg import cholesky
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp, softmax
from scipy.stats import norm


def normal_line(n_nodes, half=7.5):
    """Trapezoidal nodes and weights for z ~ N(0, 1)."""
    z = np.linspace(-half, half, n_nodes)
    w = np.exp(-0.5 * z**2)
    return z, w / w.sum()


def gumbel_logsumexp(m, s, n_nodes=81, step=0.2):
    """E log sum exp f for independent f_k ~ N(m_k, s_k^2), (n, K), and its gradients.

    log sum exp f + Euler's constant is the mean of max_k (f_k + G_k) with standard
    Gumbel G_k, whose distribution function is a product over k: E max is the top of
    the range minus the integral of that product. Returns derivatives in m and s.
    """
    z, w = normal_line(n_nodes)
    top = (m + 8 * s).max() + 30
    t = np.arange((m - 8 * s).min() - 6, top, step)
    value, d_m, d_s = np.empty(len(m)), np.empty_like(m), np.empty_like(s)
    for i in range(len(m)):
        lo = np.searchsorted(t, (m[i] - 8 * s[i]).max() - 6)
        x = t[lo:, None, None] - m[i][:, None] - s[i][:, None] * z  # (T, K, nodes)
        tail = np.exp(-np.clip(x, -700, None))
        cdf, pdf = np.exp(-tail), tail * np.exp(-tail)
        H, h = cdf @ w, pdf @ w
        others = _products_of_others(H)
        # The product is 1 to rounding at the top of the range.
        value[i] = t[-1] + step / 2 - step * np.prod(H, 1).sum()
        d_m[i] = step * (h * others).sum(0)
        d_s[i] = step * ((pdf @ (w * z)) * others).sum(0)
    return value - np.euler_gamma, d_m, d_s


def _products_of_others(H):
    """Products over all columns but one, (T, K), also where some are zero."""
    ones = np.ones((len(H), 1))
    before = np.cumprod(np.hstack([ones, H[:, :-1]]), 1)
    after = np.cumprod(np.hstack([ones, H[:, :0:-1]]), 1)[:, ::-1]
    return before * after


def contrast_rule(V, n_nodes=33):
    """Deviations of f from its mean, (n, N, K), at nodes of a product rule."""
    K = V.shape[1]
    basis = np.linalg.svd(np.eye(K) - 1 / K)[0][:, : K - 1]
    values, vectors = np.linalg.eigh(basis.T @ V @ basis)
    root = basis @ (vectors * np.sqrt(values.clip(0))[:, None, :])
    z, w = normal_line(n_nodes)
    nodes = np.stack(np.meshgrid(*[z] * (K - 1), indexing="ij"), -1).reshape(-1, K - 1)
    weights = np.prod(np.meshgrid(*[w] * (K - 1), indexing="ij"), 0).ravel()
    keep = weights > 1e-13
    return nodes[keep] @ root.transpose(0, 2, 1), weights[keep] / weights[keep].sum()


class Multinomial:
    """E_q[loss] + KL(q || prior) of a softmax model, with its gradient.

    theta has the coefficients of all classes, (K, d), then the intercepts, (K,). q is
    factorized (L of shape (P,), by the Gumbel form) or full (lower Cholesky factor, by
    the product rule; three or four classes).
    """

    def __init__(self, X, y, scale=1.0, w=None, n_nodes=33, line=(81, 0.2)):
        self.A = np.column_stack([X, np.ones(len(X))])
        self.y, self.K = np.asarray(y), int(np.max(y)) + 1
        self.onehot = np.eye(self.K)[self.y]
        self.scale, self.n_nodes, self.line = scale, n_nodes, line
        self.w = np.ones(len(X)) if w is None else np.asarray(w, float)
        d = X.shape[1]
        index = np.arange(self.K * d).reshape(self.K, d)
        ends = self.K * d + np.arange(self.K)
        #: Row k: the positions in theta that column k of f uses.
        self.index = np.column_stack([index, ends])
        self.size = self.K * (d + 1)

    def columns(self, theta):
        """(..., P) -> f of shape (..., n, K)."""
        return np.moveaxis(theta[..., self.index] @ self.A.T, -2, -1)

    def log_joint(self, theta):
        """Log prior plus weighted log likelihood at theta (S, P)."""
        f = self.columns(theta)
        own = np.take_along_axis(f, self.y[None, :, None], 2)[..., 0]
        return norm.logpdf(theta, scale=self.scale).sum(1) + (
            (own - logsumexp(f, 2)) @ self.w
        )

    def expected_loss(self, m, L):
        """Value, and gradients in m and L."""
        g_m, f = np.zeros_like(m), self.columns(m)
        if L.ndim == 1:
            s = np.sqrt(self.A**2 @ (L[self.index] ** 2).T)
            value, d_f, d_s = gumbel_logsumexp(f, s, *self.line)
            d_f, ratio = (
                (d_f - self.onehot) * self.w[:, None],
                d_s / s * self.w[:, None],
            )
            g_L = np.zeros_like(L)
            g_L[self.index] = ratio.T @ self.A**2
            g_L *= L
        else:
            rows = np.einsum("nj,kjp->nkp", self.A, L[self.index])
            dev, weights = contrast_rule(rows @ rows.transpose(0, 2, 1), self.n_nodes)
            at = f[:, None] + dev
            p, value = softmax(at, 2), logsumexp(at, 2) @ weights
            mean_p = weights @ p
            H = (p * weights[:, None]).transpose(0, 2, 1) @ p
            H = np.eye(self.K) * mean_p[:, None] - H
            d_f = (mean_p - self.onehot) * self.w[:, None]
            # Half the Hessian is the gradient in the covariance of f (Price).
            g_rows = (H * self.w[:, None, None]) @ rows
            g_L = np.zeros_like(L)
            g_L[self.index] = np.einsum("nj,nkp->kjp", self.A, g_rows)
            g_L = np.tril(g_L)
        g_m[self.index] = d_f.T @ self.A
        return self.w @ (value - (f * self.onehot).sum(1)), g_m, g_L

    def gradient(self, m, L):
        """The objective with its gradients in m and L."""
        value, g_m, g_L = self.expected_loss(m, L)
        diag, p2 = (L if L.ndim == 1 else np.diag(L)), self.scale**2
        kl = 0.5 * ((m**2).sum() + (L**2).sum()) / p2 - 0.5 * len(m)
        kl += len(m) * np.log(self.scale) - np.log(diag).sum()
        inverse = 1 / diag if L.ndim == 1 else np.diag(1 / diag)
        return value + kl, g_m + m / p2, g_L + L / p2 - inverse

    def mode(self):
        """Mode, and the lower factor of the inverse Hessian there."""

        def negative(theta):
            p = softmax(self.columns(theta), 1)
            slope = np.empty_like(theta)
            slope[self.index] = ((p - self.onehot) * self.w[:, None]).T @ self.A
            value = -self.log_joint(theta[None])[0]
            return value, slope + theta / self.scale**2

        theta = minimize(negative, np.zeros(self.size), jac=True).x
        p = softmax(self.columns(theta), 1)
        H = np.eye(self.size) / self.scale**2
        for k in range(self.K):
            for j in range(self.K):
                h = self.w * p[:, k] * ((k == j) - p[:, j])
                block = self.A.T @ (h[:, None] * self.A)
                H[np.ix_(self.index[k], self.index[j])] += block
        return theta, cholesky(np.linalg.inv(H), lower=True)

    def optimum(self, full_rank, n_runs=3, max_iter=400):
        """Smallest objective that whitened L-BFGS finds, and the q there."""
        m, R = self.mode()
        L = R if full_rank else 1 / np.sqrt(np.diag(np.linalg.inv(R @ R.T)))
        size, value, low = self.size, np.inf, np.tril_indices(self.size, -1)
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
            options = {"maxiter": max_iter, "maxcor": 30, "ftol": 1e-13, "gtol": 1e-6}
            found = minimize(
                objective, x0, jac=True, method="L-BFGS-B", options=options
            )
            (m, L, _), value = unpack(found.x), found.fun
            if before - value < 1e-5:
                break
        return value, m, L


def importance_evidence(problem, m, L, n_draws, seed, df=20):
    """log evidence and its error, from a Student-t around a full-rank normal."""
    rng = np.random.default_rng(seed)
    mean, root = m, L
    for size in (20_000, 20_000, n_draws):
        eps = rng.standard_normal((size, len(m)))
        r = np.sqrt(df / rng.chisquare(df, size))[:, None]
        theta = mean + (eps * r) @ root.T
        lw = np.concatenate(
            [problem.log_joint(t) for t in np.array_split(theta, 1 + size // 2000)]
        )
        lw -= _log_t(eps * r, df) - np.log(np.diag(root)).sum()
        w = np.exp(lw - lw.max())
        mean = w @ theta / w.sum()
        root = cholesky(np.cov(theta.T, aweights=w), lower=True)
    return np.log(w.mean()) + lw.max(), w.std() / w.mean() / np.sqrt(n_draws)


def _log_t(eps, df):
    """Log density of the standard multivariate Student-t."""
    size = eps.shape[1]
    constant = gammaln((df + size) / 2) - gammaln(df / 2)
    constant -= 0.5 * size * np.log(df * np.pi)
    return constant - 0.5 * (df + size) * np.log1p((eps**2).sum(1) / df)
