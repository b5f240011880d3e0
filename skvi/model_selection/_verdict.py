"""The decision of a search in one sentence."""

import math

from skvi.model_selection._decision import Comparison
from skvi.model_selection._race import Model
from skvi.plotting._search_text import describe_candidates


def describe(
    models: list[Model], comparison: Comparison, grid: list[dict], is_cut: bool = False
) -> str:
    """Say which model is best, or why that is undecided, and what failed."""
    failed = len(grid) - sum(len(model.rows) for model in models)
    verdict = _compare(models, comparison, grid)
    if is_cut:
        verdict += "; max_seconds left no time for tighter bounds"
    if not failed:
        return verdict
    were = "candidate failed and was" if failed == 1 else "candidates failed and were"
    return f"{verdict}; {failed} {were} not compared"


def _compare(models: list[Model], comparison: Comparison, grid: list[dict]) -> str:
    best, *others = comparison.contenders()
    names = describe_candidates(grid)
    name, zone = names[models[best].chosen], f"{comparison.min_difference:g} nats"
    if len(models) == 1:
        return _describe_only(name, models[0])
    if not others:
        return (
            f"decided: {name} is better than every other model by more than {zone} "
            f"(odds above {math.exp(comparison.min_difference):.2g} to 1); its "
            f"probability is {_describe_share(comparison, best)}"
        )
    if not any(model.bounds.reliable for model in models):
        return (
            f"undecided: no model has reliable bounds ({name}, which has the highest "
            f"estimate: {models[best].bounds.reason})"
        )
    reasons = "; ".join(
        f"{names[models[j].chosen]}: {_why_left(models, comparison, best, j)}"
        for j in others
    )
    return (
        f"undecided: {name} has the highest estimate, and {len(others)} other "
        f"model{'s' if len(others) > 1 else ''} cannot be excluded ({reasons})"
    )


def _describe_only(name: str, model: Model) -> str:
    if model.bounds.reliable:
        return f"decided: {name} is the only model"
    return (
        f"decided: {name} is the only model, and its bounds are not reliable, "
        f"{model.bounds.reason}"
    )


def _describe_share(comparison: Comparison, k: int) -> str:
    """Interval of a probability, rounded outwards to three decimals."""
    _, low, high = comparison.probabilities()
    return f"{math.floor(1e3 * low[k]) / 1e3:g} to {math.ceil(1e3 * high[k]) / 1e3:g}"


def _why_left(models: list[Model], comparison: Comparison, best: int, j: int) -> str:
    for k, whose in ((j, "its"), (best, "the best one's")):
        if not models[k].bounds.reliable:
            return f"{whose} bounds are not reliable, {models[k].bounds.reason}"
    if comparison.is_above(best, j):
        learned = ", ".join(sorted(comparison.learned[best] - comparison.learned[j]))
        return f"lower, but the best one is optimistic by learning {learned}"
    low = comparison.low[best] - comparison.high[j]
    high = comparison.high[best] - comparison.low[j]
    span = f"the best one is better by {low:.2g} to {high:.2g} nats"
    if comparison.is_tie(best, j):
        return f"{span}, within min_difference"
    return (
        f"{span}, which cannot be distinguished from min_difference at this precision"
    )
