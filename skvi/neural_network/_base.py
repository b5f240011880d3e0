"""Base class of Bayesian neural networks."""

import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.model_selection import train_test_split

from skvi._estimator._base import BaseVariational
from skvi._estimator._continual import check_next_prior
from skvi._estimator._parts import SHORTHANDS
from skvi._predictive._quantiles import ROW_BLOCK, Draws, SampledFunction
from skvi.divergences import KLDivergence
from skvi.exceptions import IncompatibleComponentsError
from skvi.neural_network._choice import choose
from skvi.neural_network._mlp import mixed, says
from skvi.neural_network._reports import (
    SparsityMixin,
    worse_message,
)
from skvi.neural_network._training import (
    check_stream,
    check_training,
    checkpoint_file,
    first_state,
    posterior_to_continue,
    solver_for,
)
from skvi.objectives import ELBO
from skvi.posteriors import Ensemble, Family, MeanFieldNormal
from skvi.priors import Normal
from skvi.priors._blocks import build_prior
from skvi.solvers import Solver, SolverOptions, Stochastic
from skvi.targets._rows import mean_log_density
from skvi.utils._rows import SOME_ROWS, spaced_rows
from skvi.utils._tensors import device_or_cpu, make_generator
from skvi.utils._validation import Interval, StrOptions, as_tensor

# Fraction of a first fit in which the divergence has a tenth of its weight: it would
# switch units off permanently before the data have shaped them.
WARM_UP = 0.2
# Gradient steps in an epoch of small data, and the largest minibatch.
STEPS_PER_EPOCH, MIN_BATCH, MAX_BATCH = 16, 64, 512
# Number of rows up to which each step uses all.
FEW_ROWS = 200
# Draws of a gradient step.
N_DRAWS = 4
# Cost of a gradient, in evaluations.
GRADIENT_COST = 2

COPIES = (
    "hidden units can be permuted, so that the posterior has exp({:.1f}) equivalent "
    "modes: the bounds hold for those that draws and chains reach; method='tempering' "
    "reaches all of them"
)
# Number of draws, of those that predictions average over, that score the state after an
# epoch.
MAX_SCORE_DRAWS = 20


class BayesianNetwork(SparsityMixin, BaseVariational):
    """Base class: a network, a posterior over its weights, predictions by draws.

    A mixin for the target implements `_response`, `_assemble`, `_mean` and
    `_compare_with_constant`; one for the network implements `_network` and `_remedies`.
    """

    _parameter_constraints: dict = {
        **BaseVariational._parameter_constraints,
        "divergence": [
            StrOptions({"auto", *SHORTHANDS["divergence"]}),
            *BaseVariational._parameter_constraints["divergence"][1:],
        ],
        "prior": [
            StrOptions({"auto", *SHORTHANDS["prior"]}),
            *BaseVariational._parameter_constraints["prior"][1:],
        ],
        "posterior": [StrOptions(set(SHORTHANDS["posterior"])), Family],
        "solver": [StrOptions({"auto", "stochastic"}), Solver],
        "batch_size": Stochastic._parameter_constraints["batch_size"],
        "early_stopping": ["boolean"],
        "validation_fraction": [None, Interval(Real, 0, 1, closed="neither")],
        "n_predict_draws": [Interval(Integral, 2, None, closed="left")],
    }
    #: What held-out rows chose, during the fit; its shares afterwards.
    _choice, _shares = None, None
    #: Whether this is a candidate of that choice, and of which simple kind.
    _is_candidate, _is_simple = False, None
    #: Kinds of simpler models among the candidates.
    _simple_kinds = ()
    _steps_per_iter = STEPS_PER_EPOCH

    def _work(self, target):
        """Multiply-adds of one gradient step."""
        n_rows, solver = target.n_rows, self._given_solver(target.n_rows)
        work = n_rows * target.layout.size
        if not isinstance(solver, Stochastic):
            return work
        return work * solver.rows_per_step(n_rows) / n_rows * solver.draws_per_step

    def _device_work(self, target):
        """Any number of epochs justifies a copy of the data."""
        return math.inf

    def _with_features(self, units, data):
        """Units with those of the features, which modules take as they are."""
        return units

    def _build_prior(self, layout):
        """Prior of all parameters, without that of intercepts if there are none."""
        prior, roles = self.prior_, {block.role for block in layout.values()}
        is_own = isinstance(self.prior, Mapping)
        if isinstance(prior, Mapping) and not (is_own or roles - {"weight"}):
            prior = {"coef": prior["coef"]}
        return build_prior(prior, layout)

    def _check_stream(self):
        check_stream(self)

    def _posterior_to_continue(self):
        return posterior_to_continue(self)

    def _check_posterior(self, posterior):
        super()._check_posterior(posterior)
        if not posterior.has_full_path:
            raise IncompatibleComponentsError(
                f"posterior={self.posterior!r}",
                "modes that differ by few nats: those of networks leave all the weight "
                "to one of them",
                "posterior='ensemble', a mixture of equal weights",
            )
        if self._stream is not None:
            check_next_prior(posterior.as_normal(), self.posterior)

    def _resolve(self, name):
        if name == "divergence" and self._is_auto(name):
            return self._usual_divergence()
        if name == "posterior" and self._is_auto(name):
            return Ensemble(n_members=4) if self._is_generalized else MeanFieldNormal()
        if name == "prior" and self._is_auto(name):
            return Normal()
        return super()._resolve(name)

    def _is_auto(self, name):
        """Whether a parameter is "auto"; objects compare by themselves."""
        given = getattr(self, name)
        return isinstance(given, str) and given == "auto"

    def _usual_divergence(self):
        """What "auto" stands for; evidences and streams ask for a weight of 1."""
        return KLDivergence(weight="auto") if self._is_generalized else KLDivergence()

    @property
    def _is_generalized(self):
        """Whether the divergence may have another weight: in a fit of the ELBO.

        A posterior that is the next prior must not be, and a mixture cannot be one.
        """
        is_elbo = self._resolve("objective").kind == "expectation"
        return self._stream is None and is_elbo and self._resolve("loss").is_log_loss

    @property
    def _is_tempered(self):
        """Whether predictions count, and not the ELBO: it has another divergence."""
        if self._is_candidate:
            return True
        found = self._resolve("divergence")
        is_whole = isinstance(found, KLDivergence) and found.weight == 1
        return self._is_generalized and not is_whole

    def _resolve_divergence(self, X, y, sample_weight):
        """With a weight from held-out rows, if it is "auto"."""
        check_training(self, len(X))
        found, self._choice = super()._resolve_divergence(X, y, sample_weight), None
        if not isinstance(found, KLDivergence) or found.weight != "auto":
            return found
        self._choice = choose(self, X, y, sample_weight)
        return KLDivergence(self._choice.weight)

    def _resolve_prior(self):
        """The posterior of the last batch, if the fit continues."""
        return self._stream.posterior if self._continues else super()._resolve_prior()

    def _given_solver(self, n_rows):
        return solver_for(self, n_rows)

    def _batch_size(self, n_rows):
        """All rows for importance-weighted objectives, which minibatches would bias."""
        if self.objective_.kind == "weights" or n_rows <= FEW_ROWS:
            return "auto"
        return min(max(n_rows // STEPS_PER_EPOCH, MIN_BATCH), MAX_BATCH)

    def _draws_per_step(self, n_rows, has_batches):
        """Draws of a gradient step that suit the data."""
        return N_DRAWS

    def _hold_out(self, data):
        """Take out `validation_fraction` of the rows, and of every class."""
        if self.validation_fraction is None:
            self._held_out = None
            return data
        _, self._held_out = train_test_split(
            np.arange(len(data.y)),
            test_size=self.validation_fraction,
            random_state=self.random_state,
            stratify=data.y if is_classifier(self) else None,
        )
        return data.hold_out(self._held_out)

    def _trained_rows(self, data):
        return data if self._held_out is None else data.hold_out(self._held_out)

    def _solver_options(self, target):
        options = SolverOptions(
            max_iter=self._max_iter(target.n_rows),
            tol=1e-3,
            steps_per_iter=self._steps_per_iter,
            early_stopping=self.early_stopping,
            warm_up=WARM_UP,
            long_steps=not self._is_tempered,
            dtype=torch.float32,  # noise of draws exceeds rounding, and it takes half
        )
        if zeros := self._zeros:
            options = replace(options, fixed=target.predictor.zeros_of(zeros))
        return (
            options if target.held_out is None else replace(options, score=self._score)
        )

    def _max_iter(self, n_rows):
        """Largest number of iterations for so many rows."""
        return self.max_iter

    def _score(self, state):
        """Mean log predictive density of the held-out rows."""
        posterior, target = state
        generator = make_generator(self._draw_seed, target.hyper.device)
        held_out = target.held_out.at(target.hyper)
        with torch.no_grad():
            n_draws = min(self.n_predict_draws, MAX_SCORE_DRAWS)
            return mean_log_density(held_out, posterior, n_draws, generator)

    def _checkpoint_file(self, target, problem, before):
        return checkpoint_file(self, target, problem, before)

    def _prepare(self, problem, solver):
        return first_state(self, problem)

    def _first_phase(self, problem):
        """Draws of a random network miss the posterior: start at the ELBO's."""
        if self.objective_.kind != "weights":
            return None
        start = replace(problem, objective=ELBO(), divergence=KLDivergence())
        return start, replace(self._solver_options(problem.target), score=None)

    def _posterior_dtype(self, target):
        return target.X.dtype

    def _posterior_attributes(self, state):
        found = super()._posterior_attributes(state)
        posterior, generator = found["posterior_"], make_generator(self._draw_seed)
        n_draws = min(self.n_predict_draws, posterior.n_stored or self.n_predict_draws)
        with torch.no_grad():
            theta = posterior.draw(n_draws, generator).theta
        found["_theta"], posterior.units = theta.numpy(), self._model.units
        # Only differs for a fit with held-out rows.
        found |= {"validation_scores_": None, "best_validation_score_": None}
        shares = None if self._choice is None else dict(self._choice.shares)
        return found | {"_kept": None, "_choice": None, "_shares": shares}

    @property
    def _zeros(self):
        """Kind of a simple model that is fitted instead of the network, or None."""
        return self._choice.zeros if self._choice else self._is_simple

    def _checked(self, problem, solution):
        """Mixed with what predicts held-out rows as well."""
        if solution.interrupted or self._choice is None:
            return solution
        found = mixed(self, solution)
        if found is solution or problem.target.held_out is None:
            return found
        return replace(found, score=self._score(found.state))

    def _judge_fit(self, target):
        """Compare the fit of some training rows with a constant; log loss only."""
        if self._continues or not self.loss_function_.is_log_loss:
            # A single batch need not show what the network has learned.
            return {}, "", ""
        rows = spaced_rows(target.n_rows, self._judged_rows(target))
        X = self._model.given_features(target.X[rows].cpu().numpy())
        y = target.y[rows].double().cpu().numpy()
        weight = np.ones(len(y))
        if target.rows.weight is not None:
            weight = target.rows.weight[rows].double().cpu().numpy()
            weight = weight / weight.max()  # squares of large ones overflow
        share = target.n_rows / len(rows)
        numbers, message = self._compare_with_constant(X, y, weight, share)
        worse = worse_message(numbers["explained"], self._error_of_rows)
        if self._shares is None:
            return numbers, worse, message
        best = max(self._shares, key=lambda name: self._shares[name])
        message = message if best == "network" else says(best, self._shares)
        return numbers | {"shares": self._shares}, worse, message

    def _remedy(self, causes=(), others=()):
        """What to change about a fit that misses a signal.

        If causes were found these are all; otherwise the others are what may be one.
        """
        if causes:
            return " or ".join(causes)
        early = ["early_stopping=False"] if self.early_stopping else []
        return " or ".join([*early, *others, self._remedies()])

    def _judged_rows(self, target):
        """Rows that predictions are compared on: a tenth of the work of the fit."""
        n_passes = self.diagnostics_["n_draws"] or 0
        affordable = GRADIENT_COST * n_passes * target.n_rows // self.n_predict_draws
        return int(np.clip(affordable // 10, ROW_BLOCK, SOME_ROWS))

    def _evidence(self, X, y, rows, random_state, options):
        """As for every estimator; says of which modes it is."""
        bounds = super()._evidence(X, y, rows, random_state, options)
        symmetry = self._model.predictor.symmetry
        if symmetry is None or options["method"] in ("auto", "tempering"):
            return bounds
        copies = COPIES.format(symmetry.log_order)
        return replace(bounds, reason=f"{bounds.reason}; {copies}")

    def _drawn(self, theta=None):
        """Networks that predictions average over; `theta` replaces that of the fit."""
        theta = as_tensor(self._theta) if theta is None else theta
        predictor, _ = self._model.bound(self._hyper)
        draws = Draws(predictor, theta, read=self._model.design)
        return draws.to(device_or_cpu(self.device))

    def sample_function(
        self, random_state: int | np.random.RandomState | None = None
    ) -> Callable[[Any], np.ndarray]:
        """Draw one network from the posterior: the same weights for every X.

        Parameters
        ----------
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        callable
            X of shape (n_samples, n_features) -> what `predict` (for classifiers
            `predict_proba`) would return if this network were the only one. Noise is
            not added, and all calls evaluate the same function, so that the draw can be
            plotted, optimized, or evaluated anywhere.
        """
        # A later fit must not change the function.
        return SampledFunction(copy(self), self._draw(1, random_state))
