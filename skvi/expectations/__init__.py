"""Expectations of losses under a normal f: nodes, mixtures, Gumbel maxima, tables."""
