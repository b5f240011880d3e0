"""Objectives: what training optimizes, with its gradient rules.

Three kinds. An *expectation* objective is ``E_q[loss] + D(q || prior)``, minimized:
the ELBO and every generalized posterior. A *rows* objective replaces each row's
expected loss: the alpha-energy. A *weights* (importance-weighted) objective is a
function of the log weights ``lw = log p(D, theta) - log q(theta)`` of draws from q.
"""

from skvi.objectives._alpha_energy import AlphaEnergy
from skvi.objectives._elbo import ELBO
from skvi.objectives._power import EUBO, IWELBO, ChiBound, RenyiBound

__all__ = [
    "ELBO",
    "EUBO",
    "IWELBO",
    "AlphaEnergy",
    "ChiBound",
    "RenyiBound",
]
