"""Wrong variants of objectives."""

from tests.mutants.variant import variants_of

_v = variants_of("objectives/")

VARIANTS = [
    _v(
        "eubo-path-sign",
        "_eubo.py",
        "return -weights",
        "return weights",
        "the doubly reparameterised gradient with the wrong sign",
    ),
    _v(
        "power-path-weights-sum-over-draws",
        "_power.py",
        "return -(alpha * weights + (1 - alpha) * weights.square())",
        "return -(alpha * weights + (1 - alpha) * weights)",
        "w for w squared, which no number of draws makes right",
    ),
    _v(
        "power-score-factor",
        "_power.py",
        "return self._order / (1 - self._order)",
        "return self._order",
        "1 - n for (1 - n) / n in the score form",
    ),
    _v(
        "power-weights-of-order-one",
        "_power.py",
        "return normalise(log_weights, 1 - self._order)",
        "return normalise(log_weights)",
        "softmax of lw for every order",
    ),
    _v(
        "chi-order-sign",
        "_power.py",
        "return 1 - float(self.order)",
        "return float(self.order) - 1",
        "the order of chi with the other sign",
    ),
    _v(
        "iwelbo-groups-joined",
        "_power.py",
        "return max(1, n_draws // self.n_importance), self.n_importance",
        "return 1, max(1, n_draws // self.n_importance) * self.n_importance",
        "one group of all draws instead of groups of K",
    ),
    _v(
        "doubly-reparam-not-detached",
        "_weights.py",
        "log_q = posterior.log_q(draw, posterior.params.detach())",
        "log_q = posterior.log_q(draw)",
        "parameters of log q are not detached",
    ),
    _v(
        "score-draws-not-detached",
        "_weights.py",
        "            draw = draw.detach()\n",
        "            draw = draw\n",
        "algorithm 1 read literally: log q differentiated along the path",
    ),
    _v(
        "upper-bound-minimised-in-hyper",
        "_weights.py",
        "surrogate = surrogate - weighted_sum(weights, for_hyper.reshape(shape))",
        "surrogate = surrogate + weighted_sum(weights, for_hyper.reshape(shape))",
        "learnt hyperparameters descend",
    ),
    _v(
        "power-mean-count",
        "_weights.py",
        "(torch.logsumexp(power * log_weights, -1) - math.log(count)) / power",
        "torch.logsumexp(power * log_weights, -1) / power - math.log(count)",
        "the number of draws without the power",
    ),
    _v(
        "stl-not-detached",
        "_elbo.py",
        "log_q = posterior.log_q(draw, posterior.params.detach())",
        "log_q = posterior.log_q(draw)",
        "sticking the landing without its detached parameters",
    ),
    _v(
        "elbo-prior-twice",
        "_elbo.py",
        "loss = (log_prior - target.log_joint(theta, rows)).mean()",
        "loss = -target.log_joint(theta, rows).mean()",
        "the prior counts in the loss and in the divergence",
    ),
    _v(
        "control-variate-not-left-out",
        "_score.py",
        "product, square = product.sum(0) - product, square.sum(0) - square",
        "product, square = product.sum(0) + 0 * product, square.sum(0) + 0 * square",
        "a draw's own term in its coefficient: bias of O(1/S)",
    ),
    _v(
        "score-reward-without-weight",
        "_score.py",
        "return reward + weight * (log_prior",
        "return reward + (log_prior",
        "the weight of KL left out of the reward",
    ),
    _v(
        "alpha-energy-without-inverse-n",
        "_alpha_energy.py",
        "log_ratio = (log_prior - log_q) / target.total_weight",
        "log_ratio = log_prior - log_q",
        "the 1/n inside is forgotten",
    ),
    _v(
        "existence-powers-exchanged",
        "_existence.py",
        "matrix.diagonal().add_(1 - power)",
        "matrix.diagonal().add_(power - 1)",
        "sign of the posterior's power",
    ),
    _v(
        "weights-score-sign",
        "_weights.py",
        "surrogate = surrogate - weighted_sum(weights, for_hyper",
        "surrogate = surrogate + weighted_sum(weights, for_hyper",
        "scales are learnt downhill",
    ),
]
