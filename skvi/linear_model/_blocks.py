"""Posteriors of linear models whose theta also contains positive parameters."""

import torch

from skvi.base import NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors import Family, Posterior
from skvi.posteriors._over_scales import MixtureOverScales
from skvi.solvers._exact import MixtureOverPrecisions

__all__ = [
    "MAX_FULL",
    "MAX_QUICK",
    "MAX_QUICK_ROWS",
    "check_joint",
    "join_independent",
    "mean_log_number",
    "normal_of_predictor",
]

# Parameters up to which a covariance is factorized in every step of a fit: with a fixed
# scale a fit with one column then takes a few seconds, one with fifty classes ten.
MAX_FULL = 1000
# Where it is factorized once, or with so few rows, it takes as long up to more.
MAX_QUICK, MAX_QUICK_ROWS = 3000, 1500
# Draws behind the mean of a number in a posterior that is no mixture over it.
N_DRAWS = 1000


def check_joint(posterior: Posterior, family: Family) -> None:
    """Raise if a number of the likelihood is independent of the coefficients."""
    if posterior.layout.positive and len(posterior.parts) > 1:
        name = posterior.layout.positive[0]
        raise IncompatibleComponentsError(
            f"posterior={family!r} has a {name} that is independent of the "
            "coefficients. Use 'full_rank' or 'mean_field', which are normal at every "
            f"{name}."
        )


def mean_log_number(posterior: Posterior) -> float:
    """Posterior mean of the log of the number of a likelihood, which comes last."""
    if isinstance(posterior, MixtureOverScales):
        return float(posterior.log_weights.exp() @ posterior.places()[:, -1])
    if isinstance(posterior, MixtureOverPrecisions):  # whose normal is large
        return posterior.mean_of(lambda t: t, "noise")
    normal = posterior.as_prior().as_normal()
    if normal is not None:
        return float(normal.mean[-1])
    draws = posterior.draw(N_DRAWS, torch.Generator().manual_seed(0))
    return float(draws.theta[:, -1].mean())


def normal_of_predictor(posterior: Posterior) -> NormalForm | None:
    """Normal of the coefficients and the intercept; None if it is not normal."""
    names = [name for name in posterior.layout if name not in posterior.layout.positive]
    if len(posterior.parts) == 1 and len(names) < len(posterior.layout):
        return None  # dependent on positive parameters
    parts = [posterior.part(name) for name in names]
    if len(names) == 1 or parts[0].layout.keys() == set(names):
        return parts[0].as_normal()
    forms = [form for part in parts if (form := part.as_normal()) is not None]
    return join_independent(forms) if len(forms) == len(parts) else None


def join_independent(forms: list[NormalForm]) -> NormalForm:
    """Normal of independent normals."""
    mean = torch.cat([form.mean for form in forms])
    if all(form.is_diagonal for form in forms):
        return NormalForm(mean, torch.cat([form.scale for form in forms]))
    dense = [torch.linalg.cholesky(form.covariance()) for form in forms]
    return NormalForm(mean, torch.block_diag(*dense))
