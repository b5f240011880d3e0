"""Posteriors of linear models whose theta also contains positive parameters."""

import torch

from skvi.base import NormalForm
from skvi.exceptions import IncompatibleComponentsError
from skvi.posteriors import Family, Posterior, Product
from skvi.priors import GammaHyperprior

__all__ = [
    "MAX_FULL",
    "MAX_QUICK",
    "MAX_QUICK_ROWS",
    "check_gammas",
    "check_noise_hyperprior",
    "join_independent",
    "normal_of_predictor",
    "with_logarithm",
    "with_positive_blocks",
]

# Parameters up to which a covariance is factorized in every step of a fit: with a fixed
# scale a fit with one column then takes a few seconds, one with fifty classes ten.
MAX_FULL = 1000
# Where it is factorized once, or with so few rows, it takes as long up to more.
MAX_QUICK, MAX_QUICK_ROWS = 3000, 1500


def with_positive_blocks(family: Family, blocks: list[str]) -> Family:
    """One family for the predictor's blocks; every other block gets its own."""
    if isinstance(family, Product):
        return family
    return Product({",".join(blocks): family})  # `skops` stores no tuple as a key


def check_gammas(posterior: Posterior, family: Family) -> None:
    """Raise if a positive parameter has a posterior other than a separate Gamma."""
    for names, part in posterior.parts.items():
        positive = any(name in posterior.layout.positive for name in names)
        if positive and part.as_gamma() is None:
            raise IncompatibleComponentsError(
                f"Precisions with hyperpriors have Gamma posteriors, each of its "
                f"own; posterior={family!r} gives {names} another "
                "one. Leave these blocks out of Product(blocks), or use Gamma()."
            )


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


def with_logarithm(normal: NormalForm, posterior: Posterior, name: str) -> NormalForm:
    """Join a normal with one that matches the moments of the log of a parameter."""
    gamma = posterior.as_prior().part(name).as_gamma()
    if gamma is None:
        raise ValueError(f"{name} has no Gamma distribution")
    mean = torch.digamma(gamma.shape) - gamma.rate.log()
    return join_independent(
        [normal, NormalForm(mean, torch.polygamma(1, gamma.shape).sqrt())]
    )


def join_independent(forms: list[NormalForm]) -> NormalForm:
    """Normal of independent normals."""
    mean = torch.cat([form.mean for form in forms])
    if all(form.is_diagonal for form in forms):
        return NormalForm(mean, torch.cat([form.scale for form in forms]))
    dense = [torch.linalg.cholesky(form.covariance()) for form in forms]
    return NormalForm(mean, torch.block_diag(*dense))


def check_noise_hyperprior(gamma: GammaHyperprior) -> GammaHyperprior:
    """Return a hyperprior of the noise; raise ValueError if it cannot be one."""
    if not (gamma.shape > 0 and gamma.rate > 0 and gamma.is_shared):
        raise ValueError(
            "The hyperprior of the noise needs a positive shape and a positive rate, "
            f"and has one precision for all rows. Got noise_scale={gamma!r}."
        )
    return gamma
