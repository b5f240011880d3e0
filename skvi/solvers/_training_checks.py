"""What may be wrong with a state of a stochastic fit."""

import torch

from skvi.solvers.base import Problem

__all__ = ["non_finite_message", "weight_efficiency"]


@torch.no_grad()
def weight_efficiency(problem: Problem) -> float:
    """Fraction of effective draws of a minimized bound; 1 if there is no bias."""
    objective = problem.objective
    if objective.kind != "weights" or objective.direction != "upper":
        return 1.0
    draw = problem.posterior.draw(1000, problem.source_of_draws)
    theta, log_q = draw.theta, draw.log_q
    log_weights = problem.target.log_joint_batched(theta) - log_q
    weights = objective.training_weights(log_weights)
    return float(1 / weights.square().sum()) / len(theta)


def non_finite_message(problem: Problem) -> str:
    """Name the parts that are not finite, and a remedy."""
    posterior = problem.posterior
    with torch.no_grad():
        draw = posterior.draw(1, problem.source_of_draws)
        theta, log_q = draw.theta, draw.log_q
        parts = {
            "log q": log_q,
            "log prior": problem.target.reference.log_prob(theta),
            "log joint": problem.target.log_joint(theta),
        }
    bad = [name for name, value in parts.items() if not torch.isfinite(value).all()]
    return (
        f"{' and '.join(bad) or 'the gradient'} went non-finite; the last finite "
        "state was kept. Lower the learning_rate of the solver, as learning_rate=0.005 "
        "does, or standardize the features"
    )
