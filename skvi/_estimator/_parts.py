"""Parts of estimators: shorthands, nested names, and the classes behind them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone

from skvi.divergences import (
    AlphaDivergence,
    BetaDivergence,
    GammaDivergence,
    JeffreysDivergence,
    KLDivergence,
    RenyiDivergence,
)
from skvi.exceptions import IncompatibleComponentsError
from skvi.likelihoods import (
    BetaLikelihood,
    GammaLikelihood,
    GaussianLikelihood,
    GeneralizedGammaLikelihood,
    HeteroscedasticLikelihood,
    HurdleLikelihood,
    JohnsonSULikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    RoundedLikelihood,
    StudentTLikelihood,
    ZeroInflatedLikelihood,
)
from skvi.likelihoods._positive import InverseGaussianLikelihood, LogNormalLikelihood
from skvi.likelihoods._tweedie import TweedieLikelihood
from skvi.losses import BetaLoss, GammaLoss, LogLoss, Loss
from skvi.losses._callable import CallableLoss
from skvi.objectives import ELBO, EUBO, IWELBO, AlphaEnergy, ChiBound, RenyiBound
from skvi.posteriors import (
    Ensemble,
    FullRankNormal,
    HierarchicalVariational,
    LowRankNormal,
    MeanFieldNormal,
    MixtureOfNormals,
    MultiplicativeFlow,
    NormalizingFlow,
    Posterior,
    RefinedNormal,
    SemiImplicitMixture,
)
from skvi.priors import (
    ARD,
    GammaHyperprior,
    Horseshoe,
    Laplace,
    Normal,
    Prior,
    StudentT,
)
from skvi.priors._heavy_tailed import LogUniform
from skvi.solvers import Stochastic
from skvi.solvers._choice import SOLVERS
from skvi.utils._validation import did_you_mean

OBJECTIVES = {
    "elbo": ELBO,
    "eubo": EUBO,
    "iwelbo": IWELBO,
    "renyi": RenyiBound,
    "chi": ChiBound,
    "alpha_energy": AlphaEnergy,
}
DIVERGENCES = {
    "kl": KLDivergence,
    "renyi": RenyiDivergence,
    "alpha": AlphaDivergence,
    "beta": BetaDivergence,
    "gamma": GammaDivergence,
    "jeffreys": JeffreysDivergence,
}
LOSSES = {"log": LogLoss, "beta": BetaLoss, "gamma": GammaLoss}
POSTERIORS = {
    "mean_field": MeanFieldNormal,
    "full_rank": FullRankNormal,
    "low_rank": LowRankNormal,
    "ensemble": Ensemble,
    "mixture": MixtureOfNormals,
    "semi_implicit": SemiImplicitMixture,
    "hierarchical_variational": HierarchicalVariational,
    "multiplicative_flow": MultiplicativeFlow,
    "flow": NormalizingFlow,
    "refined": RefinedNormal,
}


def _hierarchical() -> Normal:
    """A hyperprior of its own each time, which `set_params` may change."""
    return Normal(GammaHyperprior())


PRIORS: dict[str, Callable[[], Prior]] = {
    "normal": Normal,
    "laplace": Laplace,
    "student_t": StudentT,
    "ard": ARD,
    "hierarchical": _hierarchical,
    "horseshoe": Horseshoe,
    "log_uniform": LogUniform,
}
#: Noise of a continuous target, and counts.
NOISES = {"gaussian": GaussianLikelihood, "student_t": StudentTLikelihood}
COUNTS = {
    "poisson": PoissonLikelihood,
    "negative_binomial": partial(NegativeBinomialLikelihood, "hyperprior"),
}
#: Positive numbers of mean exp(f), rates, and amounts that may be 0.
POSITIVE = {
    "gamma": partial(GammaLikelihood, "hyperprior"),
    "lognormal": partial(LogNormalLikelihood, "hyperprior"),
    "inverse_gaussian": partial(InverseGaussianLikelihood, "hyperprior"),
}
RATES = {"beta": partial(BetaLikelihood, "hyperprior")}
AMOUNTS = {"tweedie": partial(TweedieLikelihood, dispersion="hyperprior")}
#: Counts with zeros of their own, of linear models.
ZEROS = {
    "zero_inflated_poisson": ZeroInflatedLikelihood,
    "zero_inflated_negative_binomial": lambda: ZeroInflatedLikelihood(
        NegativeBinomialLikelihood("hyperprior")
    ),
    "hurdle_poisson": lambda: HurdleLikelihood(PoissonLikelihood(), 0.0),
    "hurdle_negative_binomial": lambda: HurdleLikelihood(
        NegativeBinomialLikelihood("hyperprior"), 0.0
    ),
}
#: Other numbers, for networks: noise that varies, rounded, skewed, positive, with a
#: repeated value.
OTHERS = {
    "heteroscedastic": HeteroscedasticLikelihood,
    "rounded": RoundedLikelihood,
    "johnson_su": JohnsonSULikelihood,
    "generalized_gamma": GeneralizedGammaLikelihood,
    "hurdle": HurdleLikelihood,
}

#: Constructor parameter -> shorthand -> class.
SHORTHANDS = {
    "objective": OBJECTIVES,
    "divergence": DIVERGENCES,
    "likelihood": NOISES | COUNTS | POSITIVE | RATES | AMOUNTS | OTHERS,
    "loss": LOSSES,
    "posterior": POSTERIORS,
    "prior": PRIORS,
    "intercept_prior": PRIORS,
    "solver": SOLVERS,
}


#: What a value that leaves the choice to the fit becomes where a name is nested.
CHOSEN = {
    ("divergence", "auto"): KLDivergence,
    ("loss", "auto"): BetaLoss,
    ("prior", "auto"): Normal,
    ("intercept_prior", None): Normal,
    ("solver", "auto"): Stochastic,
}


def resolve(name: str, value: Any) -> Any:
    """Clone a specification, or build that of a shorthand."""
    if isinstance(value, str):
        return SHORTHANDS[name][value]()
    if name == "loss" and not isinstance(value, Loss):
        return _loss_of(value)
    if isinstance(value, Mapping):
        return {block: _prior_of_block(part) for block, part in value.items()}
    return clone(value, safe=not isinstance(value, Posterior))


def _prior_of_block(prior: Any) -> Any:
    """Resolve one prior of a mapping, which may be a shorthand as well."""
    if not isinstance(prior, str):
        return clone(prior)
    return _called("A prior", prior, SHORTHANDS["prior"])


def _called(what: str, word: str, table: dict) -> Any:
    """The object that a word stands for; ValueError if it stands for none."""
    if word not in table:
        raise ValueError(
            f"{what} must be one of {sorted(table)} or an object. Got {word!r} instead."
            f"{did_you_mean(word, table)}"
        )
    return table[word]()


def _loss_of(function: Any) -> Loss:
    """Wrap a function in a loss."""
    if isinstance(function, type):
        raise ValueError(
            f"loss must be a string, a Loss or a function of (f, y). Got the class "
            f"{function.__name__}: give an instance, {function.__name__}()."
        )
    return CallableLoss(function)


def with_intercept(estimator: Any, prior: Any) -> Any:
    """Return one prior, or one for each block if there is an intercept."""
    name = type(estimator).__name__
    given = getattr(estimator, "intercept_prior", None)
    intercept = None if given is None else resolve("intercept_prior", given)
    has_intercept = getattr(estimator, "fit_intercept", True)
    if intercept is not None and not has_intercept:
        raise IncompatibleComponentsError(
            f"intercept_prior={given!r}",
            "an intercept",
            "fit_intercept=True, or intercept_prior=None",
        )
    if not hasattr(estimator, "normalize_y") and _is_standardized(prior):
        raise IncompatibleComponentsError(
            "A posterior with a standardized target, given as prior,",
            f"another regression with one, which {name} is not",
            f"the posterior_ of a {name}",
        )
    if isinstance(prior, Posterior) and intercept is not None:
        raise IncompatibleComponentsError(
            "A posterior that is given as prior",
            "no other prior for its intercept",
            "intercept_prior=None",
        )
    if isinstance(prior, Posterior) or not has_intercept:
        return prior
    blocks = prior if isinstance(prior, dict) else {"coef": prior}
    if intercept is not None and "intercept" in blocks:
        raise IncompatibleComponentsError(
            "The intercept",
            "one prior; prior and intercept_prior both give one",
            "intercept_prior=None, or a prior without the entry 'intercept'",
        )
    if intercept is None and "intercept" not in blocks:
        intercept = estimator._intercept_beside(prior)
    return blocks if intercept is None else {**blocks, "intercept": intercept}


def beside_coefficients(prior: Any) -> Prior | None:
    """Prior of the intercept where none is given; None if a mapping has no entry.

    Never a sparse prior: a normal of the same scale.
    """
    if isinstance(prior, dict):
        return None
    if prior.intercept_scale is None:
        raise IncompatibleComponentsError(
            f"prior={prior!r}",
            "a scale that the intercept can share",
            "a dict of priors for 'coef' and 'intercept'",
        )
    return Normal(scale=prior.intercept_scale)


def _is_standardized(prior: Any) -> bool:
    """Whether a prior is the posterior of a fit to a standardized target."""
    units = prior.units if isinstance(prior, Posterior) else None
    if units is None:
        return False
    return bool(np.any(units.y_mean != 0) or np.any(units.y_scale != 1))


def expand_parameters(estimator: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Parameters for `BaseEstimator.set_params`, with objects where names are nested.

    ``divergence__alpha`` makes "renyi" its object, ``prior__scale`` makes "auto" a
    `Normal`, see `CHOSEN`; ``prior__coef__scale`` copies a mapping.
    """
    for name, table in SHORTHANDS.items():
        nested = [key for key in params if key.startswith(f"{name}__")]
        value = params.get(name, getattr(estimator, name, None))
        if not nested:
            continue
        if isinstance(value, dict):
            changes = {key.removeprefix(f"{name}__"): params[key] for key in nested}
            rest = {key: v for key, v in params.items() if key not in nested}
            params = {**rest, name: _change_blocks(value, changes, name)}
        elif value is None or isinstance(value, str):
            params = {**params, name: _from_shorthand(estimator, name, value, table)}
    return params


def _from_shorthand(estimator: Any, name: str, value: str, table: dict) -> Any:
    if (name, value) in CHOSEN:
        return CHOSEN[name, value]()
    what = f"The {name!r} parameter of {type(estimator).__name__}"
    return _called(what, value, table)


def _change_blocks(blocks: dict, changes: dict[str, Any], name: str) -> dict:
    """Copy a mapping of priors, with entries replaced or their parameters set."""
    changed = dict(blocks)
    # Entries first, so that their parameters are set on the new ones.
    for key in sorted(changes, key=lambda key: "__" in key):
        block, _, parameter = key.partition("__")
        if block not in changed:
            raise ValueError(
                f"Invalid parameter {name}__{key}: the mapping {name} has the blocks "
                f"{sorted(blocks)}. Use one of them, as in {name}__coef__scale."
            )
        if not parameter:
            changed[block] = changes[key]
            continue
        part = _prior_of_block(changed[block])
        changed[block] = part.set_params(**{parameter: changes[key]})
    return changed
