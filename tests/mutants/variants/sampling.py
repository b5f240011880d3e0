"""Wrong variants of sampling."""

from tests.mutants.variant import variants_of

_v = variants_of("sampling/")

VARIANTS = [
    _v(
        "leapfrog-last-kick",
        "_state.py",
        "        self._kick(momentum, position, slope, 0.5 * step)\n        end",
        "        end",
        "no second half kick: neither reversible nor accurate",
    ),
    _v(
        "momentum-energy-left-out",
        "_state.py",
        "start = start + 0.5 * momentum.square().sum(1)",
        "start = start + 0.0 * momentum.square().sum(1)",
        "the momentum's energy at the start of a trajectory",
    ),
    _v(
        "annealed-energy-exchanged",
        "_state.py",
        "squares = 0.5 * (1 - self.beta) * position",
        "squares = 0.5 * self.beta * position",
        "beta for 1 - beta in the energy",
    ),
    _v(
        "log-weights-of-whitened-normal",
        "_state.py",
        "return self.value - self.peak + 0.5 * self.position",
        "return self.value - self.peak - 0.5 * self.position",
        "sign of the normal's squared distance in the weights",
    ),
    _v(
        "pareto-prior-weight",
        "_diagnostics.py",
        "return (n * shape + 10 * 0.5) / (n + 10)",
        "return shape",
        "the prior worth ten weights forgotten",
    ),
    _v(
        "pareto-cutoff-not-subtracted",
        "_diagnostics.py",
        "x = torch.exp(top[1:]) - cutoff",
        "x = torch.exp(top[1:])",
        "the cut-off left in the tail",
    ),
    _v(
        "rhat-without-root",
        "_diagnostics.py",
        "worst = ratio.sqrt().max()",
        "worst = ratio.max()",
        "the ratio of variances without its root",
    ),
    _v(
        "rhat-mean-over-quantities",
        "_diagnostics.py",
        "split = torch.cat([values[:, :half], values[:, -half:]])",
        "split = values[:, -half:]",
        "whole chains instead of halves",
    ),
    _v(
        "ess-of-chains",
        "_diagnostics.py",
        "ess = n_chains * total / between",
        "ess = n_chains * total.sqrt() / between.sqrt()",
        "a ratio of deviations for one of variances",
    ),
    _v(
        "student-t-determinant",
        "_importance.py",
        "return constant - self.normal.half_log_det - kernel",
        "return constant - kernel",
        "the determinant left out of the proposal's density",
    ),
    _v(
        "student-t-chi-square",
        "_importance.py",
        "rand(generator, n_draws, self.df // 2)",
        "rand(generator, n_draws, self.df)",
        "twice the degrees of freedom in the draws",
    ),
    _v(
        "weights-without-proposal",
        "_importance.py",
        "target.log_joint_batched(theta) - proposal.log_prob(theta)",
        "target.log_joint_batched(theta) - proposal.normal.log_prob(theta)",
        "the density of the normal for that of the Student-t",
    ),
    _v(
        "annealing-weight-after-move",
        "_annealing.py",
        "inner = t if sign > 0 else t - 1",
        "inner = t - 1 if sign > 0 else t",
        "a move at the density before, not at the one just reached",
    ),
]
