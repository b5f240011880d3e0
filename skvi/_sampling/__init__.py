"""Draws from a posterior, and diagnostics of weights, chains and tails."""
