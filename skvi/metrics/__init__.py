"""Scores of predictive distributions, and scorers for scikit-learn's searches."""

from skvi.metrics._scorers import (
    IntervalCoverage,
    LogPredictiveDensity,
    NegCRPS,
    NegIntervalScore,
)
from skvi.metrics._scores import interval_score, normal_crps, sample_crps

__all__ = [
    "interval_coverage_scorer",
    "interval_score",
    "log_predictive_density_scorer",
    "neg_crps_scorer",
    "neg_interval_score_scorer",
    "normal_crps",
    "sample_crps",
]

log_predictive_density_scorer = LogPredictiveDensity()
neg_crps_scorer = NegCRPS()
neg_interval_score_scorer = NegIntervalScore()
interval_coverage_scorer = IntervalCoverage()
