"""Rank-normalized R-hat by ArviZ; ``--write`` computes it again, where that is there.

Run as ``python -m tests.references.make_rhat --write`` in the root folder.
"""

import json
import sys
from pathlib import Path

import numpy as np

PATH = Path(__file__).with_name("rhat.json")


def chains():
    """Sets of chains by name, each of shape (n_chains, n_iterations)."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(8, 301))
    slow = np.zeros((4, 200))
    for i in range(1, 200):
        slow[:, i] = 0.95 * slow[:, i - 1] + rng.normal(size=4)
    heavy = rng.standard_cauchy(size=(6, 120))
    shifted, wider = heavy.copy(), noise[:, :150].copy()
    shifted[0] += 1.5
    wider[:2] *= 3
    drifting = noise[:4, :100] + np.linspace(0, 1.5, 100)
    return {
        "independent, odd length": noise,
        "slow": slow,
        "Cauchy": heavy,
        "Cauchy, one shifted": shifted,
        "two of them wider": wider,
        "drifting": drifting,
        "with ties": np.round(2 * slow) / 2,
        "short": noise[:5, :8],
    }


def load():
    """Stored values."""
    return json.loads(PATH.read_text(encoding="utf-8"))


if __name__ == "__main__" and "--write" in sys.argv:
    import arviz

    found = {
        "arviz": arviz.__version__,
        "rhat": {name: float(arviz.rhat(x)) for name, x in chains().items()},
    }
    PATH.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
