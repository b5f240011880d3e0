"""Regressors of other packages, as mixtures of normal distributions."""

import math
import os
from itertools import pairwise

import numpy as np
import torch
from scipy.special import log_ndtr, logsumexp
from scipy.stats import norm
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler


class Peer:
    """A regressor whose `normals`, (m, n) means and deviations, are its predictions."""

    def predict(self, X):
        return self.normals(X)[0].mean(0)

    def predict_log_density(self, X, y):
        found = norm.logpdf(y, *self.normals(X))
        return logsumexp(found, axis=0) - math.log(len(found))

    def predict_log_interval(self, X, y, step):
        """Log of the mean density of y +- step / 2, which no rounding narrows."""
        mean, std = self.normals(X)
        far = np.abs(y - mean)
        low, high = (far - step / 2) / std, (far + step / 2) / std
        tail = log_ndtr(-low)
        each = tail + np.log1p(-np.exp(np.minimum(log_ndtr(-high) - tail, -1e-300)))
        return logsumexp(each, axis=0) - math.log(len(each) * step)

    def covers(self, X, y, coverage=0.9):
        """Whether central intervals have y inside."""
        below = norm.cdf(y, *self.normals(X)).mean(0)
        return np.abs(below - 0.5) <= coverage / 2


class GaussianPeer(Peer):
    """A regressor without a density, and the residuals of five folds as its noise."""

    def __init__(self, model):
        self.model = model

    def fit(self, X, y):
        residual = y - cross_val_predict(self.model, X, y, cv=5)
        self.noise = math.sqrt(np.mean(residual**2))
        self.model.fit(X, y)
        return self

    def normals(self, X):
        mean = self.model.predict(X)[None]
        return mean, np.full_like(mean, self.noise)


class NGBoostPeer(Peer):
    """NGBoost, with its defaults: 500 trees for mean and deviation."""

    def fit(self, X, y):
        from ngboost import NGBRegressor

        self.model = NGBRegressor(verbose=False, random_state=0).fit(X, y)
        return self

    def normals(self, X):
        found = self.model.pred_dist(X)
        return found.loc[None], found.scale[None]


class GaussianProcessPeer(Peer):
    """scikit-learn's, with a length scale for each feature and noise."""

    def fit(self, X, y):
        kernel = ConstantKernel(1.0, (1e-2, 1e4)) * RBF(
            np.ones(X.shape[1]), (1e-2, 1e4)
        ) + WhiteKernel(0.1, (1e-7, 10))
        self.model = GaussianProcessRegressor(kernel, normalize_y=True).fit(X, y)
        return self

    def normals(self, X):
        mean, std = self.model.predict(X, return_std=True)
        return mean[None], std[None]


class DeepEnsemblePeer(Peer):
    """Five networks with normal heads by maximum likelihood, and Adam.

    Lakshminarayanan, Pritzel and Blundell (2017), with two layers of 50 units, smaller
    steps and weight decay. The number of epochs is that with the best log density of a
    fifth of the rows; then they are trained anew on all of them.
    """

    def __init__(self, n_members=5, max_steps=5000):
        self.n_members, self.max_steps = n_members, max_steps

    def fit(self, X, y):
        self.mean, self.scale = y.mean(), y.std()
        train, test = train_test_split(np.arange(len(y)), test_size=0.2, random_state=0)
        steps_per_epoch = math.ceil(len(train) / 100)
        best = -math.inf
        for epoch in self._train(X[train], y[train], self.max_steps // steps_per_epoch):
            score = self.predict_log_density(X[test], y[test]).mean()
            if score > best:
                best, n_epochs = score, epoch + 1
        for _ in self._train(X, y, n_epochs):
            pass
        return self

    def _train(self, X, y, n_epochs):
        torch.manual_seed(0)
        X, y = torch.tensor(X).float(), torch.tensor((y - self.mean) / self.scale)
        y, sizes = y.float(), (X.shape[1], 50, 50, 2)
        self.layers = []
        for a, b in pairwise(sizes):
            weight = torch.randn(self.n_members, a, b) * math.sqrt(2 / a)
            self.layers += [weight, torch.zeros(self.n_members, 1, b)]
        for layer in self.layers:
            layer.requires_grad_()
        adam = torch.optim.AdamW(self.layers, lr=0.005, weight_decay=1e-3)
        for epoch in range(n_epochs):
            order = torch.randperm(len(X))
            for rows in order.split(100):
                mean, log_std = self._outputs(X[rows])
                z = (y[rows] - mean) * torch.exp(-log_std)
                loss = (0.5 * z**2 + log_std).mean(1).sum()
                adam.zero_grad()
                loss.backward()
                adam.step()
            yield epoch

    def _outputs(self, X):
        h = X.expand(self.n_members, *X.shape)
        for k in range(0, len(self.layers), 2):
            h = torch.relu(h) if k else h
            h = torch.baddbmm(self.layers[k + 1], h, self.layers[k])
        return h[..., 0], h[..., 1].clamp(min=-7)

    @torch.no_grad()
    def normals(self, X):
        mean, log_std = self._outputs(torch.tensor(X).float())
        std = self.scale * torch.exp(log_std).double().numpy()
        return self.mean + self.scale * mean.double().numpy(), std


class MarkovChainPeer(Peer):
    """scikit-learn-contrib's bde: Markov chains over heteroscedastic networks."""

    def __init__(self, **parameters):
        self.parameters = {
            "hidden_layers": [16, 16],
            "epochs": 200,
            "patience": 10,
            "n_thinning": 2,
        } | parameters

    def fit(self, X, y):
        # Chains are spread over devices, as its documentation says.
        os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
        from bde import BdeRegressor
        from bde.loss import GaussianNLL

        self.mean, self.scale = y.mean(), y.std()
        self.model = BdeRegressor(loss=GaussianNLL(), seed=0, **self.parameters)
        self.model.fit(X, ((y - self.mean) / self.scale)[:, None])
        return self

    def normals(self, X):
        raw = np.asarray(self.model.predict(X, raw=True), dtype=float)
        raw = raw.reshape(-1, len(X), 2)
        std = np.logaddexp(0, raw[..., 1]) + 1e-6
        return self.mean + self.scale * raw[..., 0], self.scale * std


PEERS = {
    "gradient boosting": lambda: GaussianPeer(HistGradientBoostingRegressor()),
    "MLPRegressor": lambda: GaussianPeer(MLPRegressor()),
    "MLPRegressor, scaled y": lambda: GaussianPeer(
        TransformedTargetRegressor(
            MLPRegressor(max_iter=1000, random_state=0), transformer=StandardScaler()
        )
    ),
    "deep ensemble": DeepEnsemblePeer,
    "NGBoost": NGBoostPeer,
    "Gaussian process": GaussianProcessPeer,
    # As in its documentation, and at the seconds of "ours" on the small sets.
    "bde": lambda: MarkovChainPeer(n_members=8, warmup_steps=5000, n_samples=2000),
    "bde, short": lambda: MarkovChainPeer(
        n_members=4, warmup_steps=1000, n_samples=300
    ),
}
