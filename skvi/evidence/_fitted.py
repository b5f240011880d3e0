"""A fitted posterior as its own proposal, for whatever holds one."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import ArrayLike

from skvi._sampling._chains import Chains
from skvi._sampling._importance import StudentT, WeightedDraws, draw_weighted
from skvi.base import NormalForm
from skvi.base._component import Density, Proposal
from skvi.evidence._near_normal import Explored, ProposalFamily, Setting
from skvi.evidence._result import EvidenceBounds
from skvi.posteriors import Posterior
from skvi.targets import Target
from skvi.utils._tensors import rand
from skvi.utils._wrappers import refuse_samplers, refuse_supervised, unwrap

UNEVEN = (
    "weights of draws of the fitted posterior vary too much for bounds from them, and "
    "chains that follow gradients cannot move discrete parameters; the ELBO is a "
    "lower bound. Sum the discrete parameters out of the log density, where that is "
    "possible"
)


# Degrees of freedom of draws that see tails.
TAIL_DF = 4


class WideBeside:
    """Discrete parameters of a product posterior, beside others from a wide density.

    The latter is a Student-t of the posterior's moments.
    """

    def __init__(self, posterior: Posterior, normal: NormalForm) -> None:
        layout = posterior.layout
        self.posterior = posterior
        parts = posterior.parts.items()
        self.discrete = [
            (layout.positions(names), part)
            for names, part in parts
            if part.layout.discrete
        ]
        self.smooth = layout.positions(layout.without(*layout.discrete))
        self.wide = StudentT(normal.marginal(self.smooth), TAIL_DF)

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        """Independent draws, (S, P)."""
        theta = self.posterior.draw(n_draws, generator).theta.clone()
        if len(self.smooth):
            theta[:, self.smooth] = self.wide.sample(n_draws, generator)
        return theta

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        """Log density at points, (S,)."""
        logs = [part.log_prob(theta[:, where]) for where, part in self.discrete]
        if len(self.smooth):
            logs.append(self.wide.log_prob(theta[:, self.smooth]))
        return torch.stack(logs).sum(0)


@dataclass(frozen=True)
class _Halves:
    """Half of the draws from a posterior, half from a wider density."""

    posterior: Posterior
    wide: WideBeside

    def sample(self, n_draws: int, generator: torch.Generator) -> torch.Tensor:
        first = self.posterior.draw(n_draws, generator).theta
        second = self.wide.sample(n_draws, generator)
        is_first = rand(generator, n_draws, 1) < 0.5
        return torch.where(is_first, first, second)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        pair = self.posterior.log_prob(theta), self.wide.log_prob(theta)
        return torch.logaddexp(*pair) - math.log(2)


@dataclass(frozen=True)
class _Alone:
    """A posterior as a density."""

    posterior: Posterior

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return self.posterior.log_prob(theta)


class Fitted(ProposalFamily):
    """A posterior whose weights may be nearly constant, on both sides."""

    efficiency = 0.1  # there is no other method

    def __init__(self, posterior: Posterior, normal: NormalForm) -> None:
        self.posterior, self.normal = posterior, normal
        self.proposal = _Halves(posterior, WideBeside(posterior, normal))

    def nearly_constant(
        self, target: Target, generator: torch.Generator, n_draws: int
    ) -> Iterator[tuple[Proposal, WeightedDraws]]:
        """Itself beside a wider one, and draws."""
        yield self.proposal, draw_weighted(target, self.proposal, n_draws, generator)

    def starts(
        self, target: Target, n_chains: int, generator: torch.Generator
    ) -> torch.Tensor:
        return self.proposal.sample(n_chains, generator)

    def explore(self, setting: Setting, n_pilot: int) -> Explored:
        raise NotImplementedError("Chains need gradients.")

    def lighter(self, chains: Chains, more: Sequence[NormalForm] = ()) -> list[Density]:
        """Itself: how heavy the tails are is for the diagnostics to say."""
        return [_Alone(self.posterior)]


def evidence_bounds(
    estimator: Any,
    X: Any,
    y: ArrayLike,
    *,
    allow_supervised_transformers: bool = False,
    **options: Any,
) -> EvidenceBounds:
    """Bound the log evidence of a fitted estimator, pipeline or search.

    A `Pipeline` and a `GridSearchCV` do not delegate the estimator's method
    ``evidence_bounds``; this function finds the estimator and transforms X on the way.

    Parameters
    ----------
    estimator : estimator, Pipeline or search, fitted
    X : array-like of shape (n_samples, n_features)
        The training features, before the pipeline's transformations.
    y : array-like of shape (n_samples,)
        The training target.
    allow_supervised_transformers : bool, default=False
        Whether transformers of the pipeline may use y. Features made from y are not
        part of a model of y: the number is then not an evidence (it is high even for
        pure noise). True is for transformers that do not actually use y, or were fitted
        to other rows.
    **options : dict
        Passed to the estimator's method: ``sample_weight``, ``n_draws``,
        ``precision``, ``random_state``, ``method``.

    Returns
    -------
    EvidenceBounds

    Raises
    ------
    TypeError
        There is no inner estimator with the method ``evidence_bounds``.
    ValueError
        A transformer of the pipeline uses y, such as `SelectKBest` or `TargetEncoder`,
        possibly inside another one; or there is a sampler of imbalanced-learn, which
        changes the rows of the fit.

    Notes
    -----
    Transformers that use y are detected by scikit-learn's tags (``target_tags``,
    classifiers, regressors), by a ``fit`` whose ``y`` has no default, and, as most
    feature selectors have no tag, by their class. Third-party transformers that take
    ``y=None``, use it and have no tag are not detected; nor are functions that get y
    from elsewhere, and features that were selected by y beforehand.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import skvi
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> X, y = X[:100], y[:100]
    >>> regression = BayesianLogisticRegression(prior="normal")
    >>> model = make_pipeline(StandardScaler(), regression).fit(X, y)
    >>> bounds = skvi.evidence_bounds(model, X, y, random_state=0)
    >>> bool(abs(bounds.estimate + 9.20) < 0.02)
    True
    """
    refuse_samplers(estimator)
    if not allow_supervised_transformers:
        refuse_supervised(estimator)
    found, X = unwrap(estimator, X, "evidence_bounds", ADVICE)
    return found.evidence_bounds(X, y, **options)


ADVICE = "Pass an estimator of skvi, or a Pipeline or search that ends in one."
