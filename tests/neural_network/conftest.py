"""Shared by tests of networks."""
