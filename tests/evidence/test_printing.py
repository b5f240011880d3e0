"""What `print(bounds)` says."""

from dataclasses import replace

import pytest

from skvi.evidence import EvidenceBounds
from skvi.evidence._table import elbo_row

BOUNDS = EvidenceBounds(
    lower=-55.24,
    upper=-55.21,
    lower_se=0.01,
    upper_se=0.005,
    estimate=-55.225,
    gap=0.03,
    ess=900.0,
    khat=0.1,
    reliable=True,
    reason="the chains have mixed",
    method="importance",
    table={"ELBO of q": elbo_row((-55.47, 0.0))},
)


def test_three_lines_and_a_verdict():
    """The interval's ends, with two digits of its width, and the estimate.

    Wrong variants: the bounds without their errors; the table instead.
    """
    lines = str(BOUNDS).splitlines()
    assert lines[0] == "log evidence, nats (reliable)"
    assert [line.split() for line in lines[1:4]] == [
        ["lower", "-55.260"],
        ["estimate", "-55.225"],
        ["upper", "-55.200"],
    ]
    assert lines[4].strip() == BOUNDS.reason
    low, high = BOUNDS.interval()
    assert float(lines[1].split()[1]) == pytest.approx(low, abs=1e-3)
    assert float(lines[3].split()[1]) == pytest.approx(high, abs=1e-3)
    assert "ELBO of q" in str(BOUNDS.table)


def test_unreliable_numbers_are_not_shown():
    """But for bounds that always hold. Wrong variant: they are shown."""
    text = str(replace(BOUNDS, reliable=False, reason="the chains disagree"))
    assert "NOT reliable" in text
    assert "the chains disagree" in text
    assert "-55.2" not in text
    assert text.count("unknown") == 2
    assert "-55.47" in text
    counts = replace(BOUNDS, reliable=False).of_probability()
    assert str(counts).count("unknown") == 1


def test_exact_values_have_two_decimals():
    """Wrong variant: digits of a width of 0."""
    exact = replace(BOUNDS, lower=-5.0, upper=-5.0, lower_se=0.0, upper_se=0.0)
    exact = replace(exact, estimate=-5.0, table={})
    assert str(exact).count("-5.00\n") == 3
