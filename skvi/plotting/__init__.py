"""Displays in the manner of scikit-learn: loss curves and evidence bounds."""

from skvi.plotting._corner import CornerDisplay
from skvi.plotting._evidence_bounds import EvidenceBoundsDisplay
from skvi.plotting._evidence_search import EvidenceSearchDisplay
from skvi.plotting._loss_curve import LossCurveDisplay

__all__ = [
    "CornerDisplay",
    "EvidenceBoundsDisplay",
    "EvidenceSearchDisplay",
    "LossCurveDisplay",
]
