"""Scores of predictive distributions, and scorers for scikit-learn's searches."""

from skvi.metrics._scorers import (
    IntervalCoverage,
    LogPredictiveDensity,
    NegCRPS,
    NegIntervalScore,
)
from skvi.metrics._scores import interval_score, normal_crps, sample_crps
from skvi.metrics._training_bound import TrainingBound
from skvi.metrics._two_samples import energy_distance

__all__ = [
    "IntervalCoverage",
    "LogPredictiveDensity",
    "NegCRPS",
    "NegIntervalScore",
    "TrainingBound",
    "energy_distance",
    "interval_coverage_scorer",
    "interval_score",
    "log_predictive_density_scorer",
    "neg_crps_scorer",
    "neg_interval_score_scorer",
    "normal_crps",
    "sample_crps",
    "training_bound_scorer",
]

log_predictive_density_scorer = LogPredictiveDensity()
neg_crps_scorer = NegCRPS()
neg_interval_score_scorer = NegIntervalScore()
interval_coverage_scorer = IntervalCoverage()
training_bound_scorer = TrainingBound()
