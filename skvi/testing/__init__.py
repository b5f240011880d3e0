"""Checks that custom parts satisfy their contracts.

The check raises an `AssertionError` that says what is wrong, and otherwise returns
nothing: call it in a test.
"""

from skvi.testing._part import check_part

__all__ = ["check_part"]
