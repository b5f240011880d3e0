"""Between two modes: VI, divergence VI and generalized VI
=======================================================

Half of the rows come from N(a, 1), half from N(b, 1), and nobody knows which. The
posterior of the locations (a, b) has two equal modes, since their names can be
swapped; a factorized normal can follow one of them, or cover both.

*The claim* (Knoblauch, Jewson and Damoulas, *Generalized Variational Inference*,
slides, figure 4): VI and generalized VI, which changes only the divergence to the
prior, stay at a most likely value. Divergence VI, which brings q close to the posterior
by a Rényi divergence of order 0.5, changes the loss in silence, and has its mode
between the two, where the likelihood is lowest.

*The picture* shows on the left the marginals of a where the claim holds, on the right
how far the fits lie from the midpoint when the locations move apart. *It holds in
part*, as the last lines, which are computed, say: the Rényi bound covers both modes
while they are close, and chooses one, as VI does, when they are far apart. EUBO and the
chi bound, other members of divergence VI, lie between the modes at every distance. Nor
is the divergence to the prior harmless: at the smallest distance, or with a smaller
order, generalized VI asks for so much width that the midpoint is best for it too.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

from skvi.base import Layout, NormalForm
from skvi.divergences import KLDivergence, RenyiDivergence
from skvi.objectives import ELBO, EUBO, ChiBound, RenyiBound
from skvi.posteriors import MeanFieldNormal
from skvi.priors import Normal
from skvi.solvers import Problem, SolverOptions, Stochastic
from skvi.targets import Target

# %%
# A model of one's own
# --------------------
# A target must implement its log joint density, and declares its parameters and their
# prior.


class TwoLocations(Target):
    """Equal mixture of N(a, 1) and N(b, 1), with a, b ~ N(0, 25)."""

    layout = Layout({"location": (2,)})
    prior = Normal(scale=5.0).build(layout)

    def __init__(self, x):
        self.x = torch.from_numpy(x)

    def log_joint(self, theta, rows=None):
        parts = -0.5 * (self.x - theta[:, :, None]) ** 2 - np.log(2 * np.pi) / 2
        log_p = torch.logsumexp(parts, 1) - np.log(2.0)
        return log_p.sum(1) + self.prior.log_prob(theta)


rng = np.random.default_rng(0)
side, noise = np.repeat([-0.5, 0.5], 10), rng.standard_normal(20)
axis = torch.linspace(-6, 6, 481, dtype=torch.float64)
grid = torch.cartesian_prod(axis, axis)


def fit(target, objective, divergence, mean, scale):
    """Mean-field fit from one start: minimized value in nats, means, widths."""
    posterior = MeanFieldNormal().build(target.layout)
    posterior = posterior.near(NormalForm(mean, torch.full_like(mean, scale)))
    generator = torch.Generator().manual_seed(0)
    problem = Problem(target, objective, divergence, posterior, generator)
    options = SolverOptions(max_iter=5)
    solution = Stochastic(n_draws=50).solve(problem, options)
    found = solution.posterior.as_normal()
    return solution.value, found.mean, found.scale


# %%
# Fits from two starts each
# -------------------------
# One start is narrow at a mode, one wide at the midpoint: the better end counts.
# The EUBO is wide at its optimum and trained by importance weights of draws of q; from
# a narrow start these cannot see the second mode, so that it has the wide start only.
# So has the chi bound: its exact value is infinite for every q much narrower than the
# prior (the posterior has its tails); what draws can see of it is finite.
# Far apart, few draws of these two meet a mode, and they are less accurate.

methods = {
    "VI": (ELBO(), KLDivergence()),
    "DVI, Rényi 0.5": (RenyiBound(alpha=0.5), KLDivergence()),
    "DVI, EUBO": (EUBO(), KLDivergence()),
    "DVI, chi": (ChiBound(), KLDivergence()),
    "GVI, Rényi 0.5": (ELBO(), RenyiDivergence(alpha=0.5)),
    "GVI, Rényi 0.1": (ELBO(), RenyiDivergence(alpha=0.1)),
}
distances, place, kept = (2.0, 2.5, 3.0, 4.0), {name: [] for name in methods}, {}
print("0 is the midpoint, 1 a mode; width: standard deviation of a, in noise widths")
print(f"{'distance':<10}{'fit':<16}{'place':>8}{'width':>8}")
for distance in distances:
    target = TwoLocations(noise + distance * side)
    log_joint = target.log_joint_batched(grid)
    mode, weight = grid[log_joint.argmax()], torch.softmax(log_joint, 0)
    middle = mode.mean().expand(2).clone()
    marginal = weight.reshape(len(axis), -1).sum(1)
    mean = (marginal * axis).sum()
    width = (marginal * (axis - mean) ** 2).sum().sqrt()
    print(f"{distance:<10}{'exact':<16}{'':>8}{width:8.2f}")
    for name, (objective, divergence) in methods.items():
        starts = [(middle, float(width))]
        if objective.direction != "upper":
            starts.append((mode, 0.4))
        ends = [fit(target, objective, divergence, *start) for start in starts]
        _, mean, scale = min(ends, key=lambda end: end[0])
        along = float((mean[0] - mean[1]).abs() / (mode[0] - mode[1]).abs())
        place[name].append(along)
        print(f"{'':<10}{name:<16}{along:8.2f}{scale[0]:8.2f}")
        if distance == 2.5:
            first = 0 if mean[0] > mean[1] else 1  # the names can be swapped
            kept[name] = (float(mean[first]), float(scale[first]))
            kept["exact"] = marginal / (axis[1] - axis[0])

# %%
# What holds
# ----------


def where(name):
    """Distances at which a fit lies nearer to the midpoint than to a mode."""
    found = [str(d) for d, p in zip(distances, place[name], strict=True) if p < 0.5]
    return ", ".join(found) or "none"


print("\nDistances at which the fit lies nearer to the midpoint than to a mode:")
for name in methods:
    print(f"  {name:<16}{where(name)}")

# %%
# The picture
# -----------

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
left.fill_between(axis, kept.pop("exact"), color="0.85", label="exact")
styles = dict(zip(methods, ("k-", "k--", "k:", "", "C0-.", "C1-"), strict=True))
marks = dict(zip(methods, "os^ Dv", strict=True))
del styles["DVI, chi"]
for name, style in styles.items():
    mean, scale = kept[name]
    density = torch.exp(-0.5 * ((axis - mean) / scale) ** 2) / (scale * 2.5066)
    left.plot(axis, density, style, label=name)
    right.plot(distances, place[name], style, marker=marks[name], label=name)
left.set(xlim=(-4, 4), xlabel="location a (noise widths)", ylabel="density")
left.set_title("Marginals of a, for locations 2.5 noise widths apart")
left.legend(fontsize="small")
right.set_title("Where the best fit lies")
right.set_xticks(distances)
right.set_xlabel("distance of the locations (noise widths)")
right.set_yticks((0, 1), ("midpoint", "mode"))
right.legend(fontsize="small")
path = sys.argv[1] if len(sys.argv) > 1 else "gvi_mixture.png"
figure.savefig(path, dpi=120)
print(f"\nThe picture is in {path}")
