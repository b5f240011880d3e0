"""A funnel and a banana: what each posterior family makes of them
================================================================

The scale of a hierarchical model and its effects form a *funnel*: where the scale is
small, so are the effects. A parameter that enters squared gives a *banana*. No normal
has either shape. The densities are normalized, so that the log evidence is 0: the ELBO
says how far a posterior is from them, and the last column whether its fit was called
converged.

*The picture* shows draws of the best normal and of a flow over exact ones.
"""

import sys
import warnings

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch.distributions import Normal

from skvi.inference import VariationalInference
from skvi.plotting import CornerDisplay

# %%
# The energy distance, 0 where both are draws of one distribution; units do not matter


def energy_distance(draws, reference):
    x, y = (
        np.column_stack([np.asarray(part[name]) for name in reference])
        for part in (draws, reference)
    )
    x, y = x / y.std(0), y / y.std(0)
    own = (cdist(z, z).sum() / (len(z) * (len(z) - 1)) for z in (x, y))
    return 2 * cdist(x, y).mean() - sum(own)


# %%
# Two densities, and exact draws of them


def funnel(p):
    log_scale = p["log_scale"]
    effects = Normal(0.0, log_scale.exp()[:, None]).log_prob(p["effect"]).sum(1)
    return Normal(0.0, 1.0).log_prob(log_scale) + effects


def banana(p):
    curve = Normal(p["x"].square(), 0.5).log_prob(p["y"])
    return Normal(0.0, 1.0).log_prob(p["x"]) + curve


generator = torch.Generator().manual_seed(0)
a, b = torch.randn(2, 4000, generator=generator, dtype=torch.float64)
more = torch.randn(4000, generator=generator, dtype=torch.float64)
MODELS = {
    "funnel": (
        funnel,
        {"log_scale": (), "effect": (2,)},
        {"log_scale": a, "effect": torch.stack([b, more], 1) * a.exp()[:, None]},
    ),
    "curve": (banana, {"x": (), "y": ()}, {"x": a, "y": a.square() + 0.5 * b}),
}

# %%
# All families, by their names
FAMILIES = ["mean_field", "full_rank", "mixture", "flow"]
fits = {}
print(f"{'':8s} {'family':12s} {'ELBO':>7s} {'distance':>9s}")
for model, (log_density, shapes, exact) in MODELS.items():
    for family in FAMILIES:
        vi = VariationalInference(
            log_density,
            shapes,
            posterior=family,
            max_iter=10,  # sweeps of 100 gradient steps, for mixtures and flows
            tol=1e-3,
            random_state=0,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those that are off say so
            fits[model, family] = vi.fit()
        draws = vi.sample_posterior(4000, random_state=1)
        distance = energy_distance(draws, exact)
        said = "converged" if vi.converged_ else "warned"
        print(f"{model:8s} {family:12s} {vi.lower_bound_:7.2f} {distance:9.3f} {said}")

# %%
# Draws of two of them, over exact ones
figure = plt.figure(figsize=(10, 5), layout="constrained")
panels = figure.subfigures(1, 2)
for panel, family in zip(panels, ("full_rank", "flow"), strict=True):
    CornerDisplay.from_estimator(
        fits["curve", family], reference=MODELS["curve"][2], figure=panel
    )
    panel.suptitle(f'posterior="{family}"', x=0.3, ha="center")

if __name__ == "__main__":
    figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "posterior_families.png")
