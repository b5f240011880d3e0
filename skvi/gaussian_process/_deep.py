"""The fit of deep Gaussian processes: the sparse process, whose rows then move."""

import math
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral

import numpy as np
import torch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import ConstantKernel, Matern
from sklearn.utils import check_random_state

from skvi.evidence._summarize import without_bounds
from skvi.exceptions import IncompatibleComponentsError, SkviWarning
from skvi.gaussian_process._base import LENGTHS, SEARCH_ROWS, column_sizes
from skvi.gaussian_process._features import InducingFeatures
from skvi.gaussian_process._layers import (
    PACE,
    BlocksPosterior,
    LayeredFunctions,
    LayersELBO,
    LayersPredictor,
    LayersTarget,
    principal_directions,
)
from skvi.gaussian_process._search import Place, spread_points
from skvi.objectives import ELBO
from skvi.posteriors import FullRankNormal
from skvi.predictors._inducing import InducingPredictor
from skvi.priors import Normal
from skvi.solvers import Problem, SolverOptions, Stochastic
from skvi.solvers._fixed_draws import balanced_noise
from skvi.solvers._natural_gradient import NaturalGradient
from skvi.solvers._solution import Ending, Solution, State
from skvi.solvers.base import Progress
from skvi.targets import SupervisedTarget
from skvi.utils._validation import Interval, StrOptions, as_tensor

# Iterations of the search and the fit of a sparse process, as it has by default.
SPARSE_ITER = 100
# Most directions along which an inner layer moves rows.
WIDTH = 30
# Step size, and gradient steps of an iteration without minibatches.
RATE, STEPS = 0.05, 100
# Layers are first trained with few inducing points, of which there are twice as many in
# each stage, for a fraction of the steps: a kernel with too few points to follow a jump
# leaves it to the inner layers. Until all points are there, length scales of these only
# become shorter: few points determine little of a function with short ones, so that
# those of columns that matter would grow, and from a large one no slope leads back.
LEAST_POINTS, STAGE = 5, 4
# Variances of inner layers that are tried, and nats per row that they may cost.
VARIANCES, LOSS = [10.0**-k for k in range(1, 13)], 0.1
# Draws that compare layers with the sparse process, before and after; that predict.
N_START, N_JUDGED, N_PREDICT = 2, 10, 100
# Nats below which a gain is not worth the layers.
LEAST_GAIN = 1.0
UNTRAINED = (
    "the layers ended {:.0f} nats below one layer, which is kept: increase max_iter"
)
#: Ends of the sparse fit after which the layers are not trained.
CUT_SHORT = (Ending.INTERRUPTED, Ending.STOPPED)
LOWER = (
    "draws of the inducing values of several layers do not determine the function, so "
    "that there is no upper bound; n_layers=1 has one"
)


class SparseFirst(NaturalGradient):
    """The solver of the sparse process; a function goes on with its solution."""

    def __init__(self, go_on: Callable[[Problem, Solution, Progress], Solution]):
        self.go_on = go_on

    def solve(self, problem: Problem, options: SolverOptions) -> Solution:
        """Fit the sparse process, and go on; see `Solver`."""
        sparse = NaturalGradient().solve(
            problem, replace(options, max_iter=SPARSE_ITER)
        )
        return self.go_on(problem, sparse, options.progress)


def with_report(solution: Solution, report: dict) -> Solution:
    """The solution, with further diagnostics."""
    return replace(solution, diagnostics=solution.diagnostics | report)


class LayersMixin:
    """Mixin: fits the sparse process, and then layers that start there."""

    optimizer, inducing = "fmin_l_bfgs_b", "kmeans"
    tol, device, _search_iter, _search_rows = 1e-5, "auto", SPARSE_ITER, None

    _layer_constraints: dict = {
        "n_layers": [Interval(Integral, 1, None, closed="left")],
        "layer_width": [
            Interval(Integral, 1, None, closed="left"),
            StrOptions({"auto"}),
        ],
        "n_inducing": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
    }

    def _share(self, output, before, y):
        """Nothing: several targets have layers of their own."""

    @property
    def to_arviz(self):
        """Not available: draws of inducing values do not determine the function."""
        raise AttributeError(f"{type(self).__name__} has no to_arviz.")

    def _resolve_divergence(self, X, y, sample_weight):
        found = super()._resolve_divergence(X, y, sample_weight)
        if self.n_layers > 1 and found.kl_weight is None:
            raise IncompatibleComponentsError(
                f"divergence={found!r}",
                "one layer: the divergence of several is the sum of those of all",
                "divergence='kl', with any weight, or n_layers=1",
            )
        return found

    def _choose_solver(self, problem):
        sparse = super()._choose_solver(problem)
        return sparse if self.n_layers == 1 else SparseFirst(self._deepen)

    def _solver_options(self, target):
        n_iter = SPARSE_ITER
        if self.n_layers > 1:
            counts = [self._stage_steps] * len(self._coarser) + [self.max_iter]
            n_iter += sum(self._count_iterations(target.n_rows, c)[0] for c in counts)
        return replace(super()._solver_options(target), max_iter=n_iter)

    @property
    def _stage_steps(self):
        """Gradient steps with fewer inducing points."""
        return math.ceil(self.max_iter / STAGE)

    def _count_iterations(self, n_rows, max_iter):
        """Iterations, and steps of each, in all at least `max_iter` steps."""
        n_steps = math.ceil(n_rows / self.batch_size)
        if n_steps == 1:
            n_steps = max(min(STEPS, max_iter), 2)
        return math.ceil(max_iter / n_steps), n_steps

    def _find(self, search, theta):
        found, self._coarser = super()._find(search, theta), []
        m = len(search.objective.rows.X if found.Z is None else found.Z)
        while self.n_layers > 1 and m >= 2 * LEAST_POINTS:
            m //= 2
            self._coarser.insert(0, m)
        if self._coarser and not found.interrupted:
            random_state = check_random_state(self.random_state)
            search = search.of_some(SEARCH_ROWS, random_state)
            parts = search.sizes, random_state.randint(2**31 - 1)
            few = Place(theta, spread_points(search.objective.rows, m, *parts))
            self._few = search.improve(few, SPARSE_ITER, moves=True)
            found = replace(found, interrupted=self._few.interrupted)
        return found

    def _deepen(self, problem, sparse, progress):
        """The solution of the layers, or that of the sparse process if it is better."""
        report = {"n_layers": 1, "sparse_objective_value": -sparse.value}
        if self._place.interrupted or sparse.ending in CUT_SHORT:
            return with_report(sparse, report)
        try:
            deep, start = self._train_in_stages(problem, sparse, progress)
            gains = self._draws(problem, deep.state, N_JUDGED) + sparse.value
        except KeyboardInterrupt:
            return with_report(sparse.cut_short(), report)
        gain, error = float(gains.mean()), float(gains.std()) / N_JUDGED**0.5
        report |= start | {"gain": gain, "gain_se": error}
        if gain > max(2 * error, LEAST_GAIN):
            return with_report(deep, report | {"n_layers": self.n_layers})
        self._warn(UNTRAINED.format(-gain) if gain < -LEAST_GAIN else "", SkviWarning)
        return with_report(sparse.cut_short() if deep.interrupted else sparse, report)

    def _draws(self, problem, state, n_draws):
        """Estimates of the objective of layers, (S,)."""
        parts = self.divergence_, state.posterior, n_draws, problem.generator
        return state.target.objective_draws(*parts)

    def _train_in_stages(self, problem, sparse, progress):
        """Layers with more and more inducing points, and diagnostics of the start.

        The last stage starts where the bound is higher: as the sparse process, or as
        the layers before, to which points are added that do not change them. Those
        of the sparse process begin with the ones of greatest variance.
        """
        features, state = self._model.features, None
        for m in self._coarser:
            if state is None:
                state = self._start_of_few(problem)
            else:
                state = self._grow(state, features.Z[:m])
            found = self._train(problem, state, self._stage_steps, progress)
            if found.interrupted:
                return found, {}
            state = found.state
        start, report = self._start(problem, sparse, features, self._place.theta)
        report["starts_coarse"] = False
        if state is not None:
            state = self._grow(state, features.Z)
            gain = float((self._draws(problem, state, N_JUDGED) + sparse.value).mean())
            report["starts_coarse"] = gain > 0
            start = state if gain > 0 else start
        return self._train(problem, start, self.max_iter, progress), report

    def _start_of_few(self, problem):
        """State at the sparse process with fewest points."""
        target, model, place = problem.target, self._model, self._few
        kernel, point = model.features.kernel, torch.from_numpy(place.theta)
        few = InducingFeatures.of(kernel, point[: kernel.n_dims], place.Z)
        predictor = InducingPredictor(len(few.Z), model.predictor.n_outputs)
        prior = Normal().build(predictor.layout)
        likelihood = clone(model.likelihood).bind(point[kernel.n_dims :].clone())
        X, *data = target.inputs.take(slice(None))
        data = few(X), *data, target.constant
        parts = predictor, likelihood, model.loss, prior, *data
        q = FullRankNormal().build(predictor.layout)
        other = Problem(SupervisedTarget(*parts), ELBO(), self.divergence_, q, None)
        sparse = NaturalGradient().solve(other, SolverOptions(SPARSE_ITER, self.tol))
        return self._start(problem, sparse, few, place.theta)[0]

    def _grow(self, state, Z):
        """Layers with as many inducing points as Z, which do not change them."""
        target = state.target
        learned, layers = target._points()[0], target.frozen().predictor_spec
        inner, Z = self._inner_kernel(layers.sizes, len(Z)), Z[layers.n_inducing :]
        predictor, q = layers.with_points(state.posterior, Z, inner)
        data = target.X, target.y, target.rows.weight, target.constant
        target = LayersTarget(predictor, target.likelihood_spec, target.loss, *data)
        hyper = torch.cat([learned.detach(), predictor.initial_point()])
        return State(q, target.at(hyper))

    def _inner_kernel(self, sizes, n_inducing):
        """That of inner layers with so many inducing points, at its start."""
        (low, high), lengths = LENGTHS, sizes.numpy() * math.sqrt(len(sizes))
        if n_inducing < len(self._model.features.Z):
            high = 1.0
        bounds = np.outer(lengths, [low, high])
        return ConstantKernel(1.0) * Matern(lengths, bounds, nu=2.5)

    def _start(self, problem, sparse, features, theta):
        """State of layers at a sparse process; and diagnostics."""
        model, target = self._model, problem.target
        k = model.predictor.n_outputs
        sizes, directions = self._directions(target)
        n_inner, m = self.n_layers - 1, len(features.Z)
        last = features.kernel.clone_with_theta(features.theta.numpy())
        kernels = [self._inner_kernel(sizes, m)] * n_inner + [last]
        points = [features.Z] * len(kernels)
        predictor = LayersPredictor(kernels, points, sizes, directions, k)
        likelihood = clone(model.likelihood)
        data = *target.inputs.take(slice(None)), target.constant
        layers = LayersTarget(predictor, likelihood, model.loss, *data)
        learned = as_tensor(theta[features.kernel.n_dims :]).double()
        hyper = torch.cat([learned, predictor.initial_point()])
        normal = sparse.state.posterior.normal()
        roots = torch.linalg.qr(normal.scale.reshape(k, m, k * m).mT)[1].mT
        roots = roots * roots.diagonal(dim1=1, dim2=2).sign()[:, None]
        posterior = BlocksPosterior(predictor.layout, sum(predictor.widths))
        posterior = posterior.with_last(normal.mean.reshape(k, m), roots)
        variances = [layers.point_layout[f"kernel_{i}_0"].start for i in range(n_inner)]
        for variance in VARIANCES:
            hyper[variances] = math.log(variance) / PACE
            state = State(posterior, layers.at(hyper.clone()))
            gain = float(self._draws(problem, state, N_START).mean()) + sparse.value
            if gain > -LOSS * layers.rows.total_weight:
                break
        return state, {"inner_variance": variance, "start_gain": gain}

    def _directions(self, target):
        X, weight = target.inputs.X, target.inputs.weight
        sizes = column_sizes(X, weight)
        width = WIDTH if self.layer_width == "auto" else self.layer_width
        return sizes, principal_directions(X, sizes, weight, min(width, X.shape[1]))

    def _train(self, problem, state, max_iter, progress):
        start = replace(problem.at(state), objective=LayersELBO())
        n_iter, n_steps = self._count_iterations(start.target.n_rows, max_iter)
        options = SolverOptions(
            max_iter=n_iter,
            tol=0.0,
            steps_per_iter=n_steps,
            has_fixed_length=True,
            progress=progress,
        )
        solver = Stochastic(batch_size=self.batch_size, learning_rate=RATE, n_draws=1)
        return solver.solve(start, options)

    def _posterior_attributes(self, state):
        target = state.target
        if not isinstance(target, LayersTarget):
            return super()._posterior_attributes(state) | {"_layers": None}
        frozen = target.frozen()
        predictor, sparse = frozen.predictor_spec, self._model
        kernels, points = [], []
        for kernel, theta, Z in predictor.layers():
            kernels.append(kernel.clone_with_theta(theta.numpy()))
            points.append(Z.numpy().copy())
        posterior = state.posterior.at(state.posterior.params.detach().clone())
        model = replace(sparse, likelihood=frozen.likelihood_spec)
        width = (self.n_layers - 1) * len(predictor.directions)
        noise = balanced_noise(
            torch.Generator().manual_seed(0), N_PREDICT, width, is_diagonal=True
        ).reshape(N_PREDICT, self.n_layers - 1, 1, -1)
        functions = LayeredFunctions.at(model, predictor, posterior, noise)
        return {
            "posterior_": posterior,
            "_hyper": np.zeros(0),
            "_layers": predictor,
            "_model": model,
            "_coefficients": functions,
            "kernel_": kernels[-1],
            "inner_kernels_": kernels[:-1],
            "inducing_points_": points[-1],
        }

    def _in_units(self, theta):
        if self._layers is None:
            return super()._in_units(theta)
        values = theta.reshape(len(theta), -1, self._layers.n_inducing)
        return {"inducing_values": values.numpy().copy()}

    def _bound_evidence(self, target, generator, **options):
        if self._layers is None:
            return super()._bound_evidence(target, generator, **options)
        data = *target.inputs.take(slice(None)), target.constant
        layers = LayersTarget(self._layers, target.likelihood, target.loss, *data)
        given = layers, self.posterior_, generator, options["quantity"]
        return without_bounds(*given, LOWER)
