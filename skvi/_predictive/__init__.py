"""Predictive distributions: draws, mixtures, their quantiles, and pipelines."""
