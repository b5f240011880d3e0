"""Reverse and forward KL: what a factorized normal loses
======================================================

The ELBO minimizes the *reverse* divergence KL(q || p), the EUBO the *forward* one,
KL(p || q). With independent normals q they keep different things:

- of a correlated normal p, reverse has its *conditional* standard deviations,
  ``1 / sqrt(inv(C)[i, i])``, which are too small: q avoids to be where p is not.
  Forward has the *marginal* ones, ``sqrt(C[i, i])``, and q covers more than p;
- of two modes, reverse keeps one, and the fit warns; forward lies over both.

*The picture* shows the density in gray, and one and two standard deviations of both.
"""

import sys
import warnings

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch.distributions import MultivariateNormal

from skvi.inference import VariationalInference

# %%
# Two densities
correlated = MultivariateNormal(
    torch.zeros(2).double(), torch.tensor([[1.0, 0.9], [0.9, 1.0]]).double()
)
modes = [
    MultivariateNormal(torch.full((2,), at).double(), 0.25 * torch.eye(2).double())
    for at in (-0.75, 0.75)
]


def one_ridge(p):
    return correlated.log_prob(p["x"])


def two_modes(p):
    first, second = (mode.log_prob(p["x"]) for mode in modes)
    return torch.logaddexp(first, second) - torch.log(torch.tensor(2.0))


# %%
# Both fits of both densities
EXACT = {  # conditional and marginal deviations
    "one ridge": (0.19**0.5, 1.0),
    "two modes": (0.5, (0.25 + 0.75**2) ** 0.5),
}
MODELS = {"one ridge": one_ridge, "two modes": two_modes}
DIRECTIONS = {"elbo": ("reverse", "tab:red"), "eubo": ("forward", "tab:blue")}
fits = {}
print(f"{'density':10s} {'KL':8s} {'mean':>6s} {'std':>6s} {'bound':>7s}")
for name, log_density in MODELS.items():
    for objective, (direction, _) in DIRECTIONS.items():
        vi = VariationalInference(
            log_density,
            {"x": (2,)},
            posterior="mean_field",
            objective=objective,
            random_state=0,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # reverse is not close, and says so
            fits[name, objective] = vi.fit()
        mean, std = vi.mean_["x"][0], vi.std_["x"][0]
        said = "converged" if vi.converged_ else "warned"
        print(
            f"{name:10s} {direction:8s} {mean:6.2f} {std:6.2f} "
            f"{vi.lower_bound_:7.2f} {said}"
        )
    conditional, marginal = EXACT[name]
    print(
        f"{'':10s} {'exact':8s} {'':6s} {marginal:6.2f}, given x[1] {conditional:.2f}"
    )

# %%
# The picture
figure, axes = plt.subplots(1, 2, figsize=(9, 4.5), layout="constrained", sharey=True)
grid = torch.linspace(-3, 3, 121, dtype=torch.float64)
points = torch.cartesian_prod(grid, grid)
angle = torch.linspace(0, 2 * torch.pi, 100, dtype=torch.float64)
circle = torch.stack([angle.cos(), angle.sin()])
for ax, (name, log_density) in zip(axes, MODELS.items(), strict=True):
    density = log_density({"x": points}).exp().reshape(121, 121).T
    ax.contourf(grid, grid, density, levels=8, cmap="Greys", alpha=0.8)
    for objective, (direction, color) in DIRECTIONS.items():
        vi = fits[name, objective]
        mean, std = (torch.from_numpy(v["x"])[:, None] for v in (vi.mean_, vi.std_))
        for radius in (1, 2):
            label = f"{direction} KL ({objective})" if radius == 1 else None
            ax.plot(*(mean + radius * std * circle), color=color, label=label)
    ax.set(title=name, xlabel="x[0]", aspect="equal", xlim=(-3, 3), ylim=(-3, 3))
axes[0].set_ylabel("x[1]")
axes[0].legend(loc="upper left", frameon=False)

if __name__ == "__main__":
    figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "reverse_and_forward_kl.png")
