"""Subsets of columns of a conjugate linear regression: evidences of many at once.

Given the log ratio u of the precisions of coefficients and noise, the eigenvalues of a
Gram matrix and the moments along its eigenvectors are all that the evidence needs. The
noise is integrated for some sums of squares, between which its integral is smooth.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from scipy.special import expit, gammaln, logsumexp, softmax

from skvi.exceptions import IncompatibleComponentsError
from skvi.targets._precisions import ConjugateForm, find_axis
from skvi.utils._tensors import CPU, Movable

# How far the nodes of u reach beyond the eigenvalues of the data; the largest and
# smallest distance between them, nodes of the noise in its standard deviation, and how
# many of these it is looked for where it is the only unknown.
REACH, LARGEST, SMALLEST, FINENESS, DEVIATIONS = 30.0, 0.6, 0.2, 2.0, 12.0
# Parts of a sum of squares, and of the largest eigenvalue, that are rounding; factors
# whose product is in the range of floats.
ROUNDING, SINGULAR, FACTORS = 1e-12, 1e-15, 8
# Distance of the logs of sums of squares at which the noise is integrated, and the
# least number of them.
APART, LEAST = 0.15, 16
# Elements of arrays that are computed at once.
CHUNK = 2**22


@dataclass(frozen=True, eq=False)
class AtSquares(ConjugateForm):
    """The form of other columns, by what they are at the ratios: see `at_ratio`."""

    half_log_det: np.ndarray
    squares: np.ndarray

    def at_ratio(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those that are given; see `ConjugateForm.at_ratio`."""
        return self.half_log_det, self.squares


@dataclass(frozen=True, eq=False)
class Decomposed:
    """Models in eigenvectors of their columns, padded to the same number of columns.

    `index` (N, k) are columns, and the number of all for none; `terms` (N, U) the log
    density of the data at every ratio, times the distance of the nodes.
    """

    index: torch.Tensor
    values: torch.Tensor  # (N, k)
    vectors: torch.Tensor  # (N, k, k)
    along: torch.Tensor  # (N, k)
    squares: np.ndarray  # (N, U)
    terms: np.ndarray


class Subsets:
    """Evidences of all subsets of the columns of a form, with posteriors of some."""

    def __init__(self, form: ConjugateForm) -> None:
        self.form = form = form.to(CPU)
        data = form.data
        moment = data.vectors @ (data.values * data.solution)
        # The last column, of zeros, fills lists of columns.
        self.gram = torch.nn.functional.pad(data.full_gram(), (0, 1, 0, 1))
        self.moment = torch.nn.functional.pad(moment, (0, 1))
        self.total = data.residual + float(data.values @ data.solution.square())
        self.total = max(self.total, 1e-300)
        self.least = max(data.residual, ROUNDING * self.total)
        self.u, self.step = self._ratios()
        self.ratios = torch.from_numpy(np.exp(self.u))
        # All columns at the smallest ratio.
        kept = self.ratios[0] / (data.values + self.ratios[0])
        least = data.residual + float(data.values * data.solution.square() @ kept)
        self.least = max(least, 1e-300)
        if self.is_table:
            self._tabulate()

    @property
    def is_table(self) -> bool:
        """Whether both precisions are unknown."""
        form = self.form
        return form.noise.hyperprior is not None and form.coef.hyperprior is not None

    def _ratios(self) -> tuple[np.ndarray, float]:
        """Nodes of the log ratio, and their distance; one if it is known."""
        form, n_columns = self.form, len(self.moment) - 1
        t, s = (float(part.value.log()) for part in (form.noise, form.coef))
        if form.noise.hyperprior is None and form.coef.hyperprior is None:
            return np.array([s - t]), 1.0
        known = form.data.values.log()
        known = known if len(known) else form.noise.value.new_zeros(1)
        low, high = float(known.min()) - REACH, float(known.max()) + REACH
        step = max(math.sqrt(2 / max(n_columns, 1)), SMALLEST)
        if form.coef.hyperprior is None:  # of the noise alone
            step, squares = math.sqrt(2 / form.data.n), [self.least, self.total]
            near = self._at(np.zeros(1), np.array(squares)).noise_at_ratio(np.zeros(2))
            margin = DEVIATIONS * step + 2 * REACH / form.data.n
            low, high = s - near[1] - margin, s - near[0] + margin
        step = min(step, LARGEST)
        return np.arange(low, high + step, step), step

    def _known(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log precisions of noise and coefficients, one of which is known."""
        t, s = (float(p.value.log()) for p in (self.form.noise, self.form.coef))
        if self.form.coef.hyperprior is None and self.form.noise.hyperprior is not None:
            return s - u, np.full_like(u, s)
        return np.full_like(u, t), t + u

    def _at(self, half: np.ndarray, squares: np.ndarray) -> AtSquares:
        known = {part.name: getattr(self.form, part.name) for part in fields(self.form)}
        return AtSquares(**known, half_log_det=half, squares=squares)

    def _tabulate(self) -> None:
        """Integrate the noise at every ratio, for some sums of squares."""
        data, u = self.form.data, self.u
        ends = math.log(self.least), math.log(self.total)
        n_squares = LEAST + int((ends[1] - ends[0]) / APART)
        self.origin, self.width = ends[0], (ends[1] - ends[0]) / (n_squares - 1) or 1.0
        squares = np.exp(ends[0] + self.width * np.arange(n_squares))[:, None]
        at = self._at(np.zeros(1), squares)
        one, middle = self._at(np.zeros(1), np.array([self.total])), u[len(u) // 2]
        place, where = one.noise_at_ratio(np.array([middle])), np.array([middle])
        axis = find_axis(
            lambda v: one.log_density(place + v, place + v + where, where),
            np.arange(-80.0, 5.0),
        )
        self.v, fine = axis.nodes(FINENESS), axis.step / FINENESS
        t = at.noise_at_ratio(u) + self.v[:, None, None]
        terms = at.log_density(t, t + u, u)
        total = logsumexp(terms, 0)
        w = np.exp(terms - total)
        means = [(w * part).sum(0) for part in self.moments_at(t)]
        # In units of the sum of squares the noise hardly varies.
        means[0] /= squares
        table = total + math.log(fine * self.step) + 0.5 * data.n * np.log(squares)
        self.terms, self.moments = table[..., None], np.stack(means, -1)

    def moments_at(self, t: np.ndarray) -> list[np.ndarray]:
        """Variance of the noise; of the intercept, relative to the mean of y, too.

        Its mean and mean square.
        """
        variance = np.exp(-t)
        if self.form.intercept is None:
            return [variance, np.zeros_like(t), np.zeros_like(t)]
        n, prior, mean = self.form.data.n, self.form.intercept, self.form.data.mean
        total = np.exp(t) * n + prior
        middle = -prior * mean / total
        return [variance, middle, middle**2 + 1 / total]

    def _looked_up(self, table: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Entries of a table at sums of squares (N, U), by cubic interpolation."""
        x = (np.log(squares) - self.origin) / self.width
        first = np.clip(np.floor(x).astype(int) - 1, 0, len(table) - 4)
        f, column = x - first, np.arange(len(self.u))
        a, b, c = f - 1, f - 2, f - 3
        weights = -a * b * c / 6, f * b * c / 2, -f * a * c / 2, f * a * b / 6
        parts = [w[..., None] * table[first + k, column] for k, w in enumerate(weights)]
        return sum(parts[1:], parts[0])

    def _log_terms(self, half: np.ndarray, squares: np.ndarray) -> np.ndarray:
        if self.is_table:
            value = self._looked_up(self.terms, squares)[..., 0] - half
            return value - 0.5 * self.form.data.n * np.log(squares)
        t, s = self._known(self.u)
        return self._at(half, squares).log_density(t, s, self.u) + math.log(self.step)

    def means(self, squares: np.ndarray) -> list[np.ndarray]:
        """Those of `moments_at`, (N, U) each, at every ratio."""
        if not self.is_table:
            parts = self.moments_at(self._known(self.u)[0])
            return [np.broadcast_to(part, squares.shape) for part in parts]
        noise, *others = np.moveaxis(self._looked_up(self.moments, squares), -1, 0)
        return [noise * squares, *others]

    def draw_noise(
        self, squares: np.ndarray, node: np.ndarray, rng: np.random.RandomState
    ) -> np.ndarray:
        """Log precisions of the noise, (M,), at some nodes, stratified."""
        u = self.u[node]
        if not self.is_table:
            return self._known(u)[0]
        at = self._at(np.zeros(1), squares)
        t = at.noise_at_ratio(u) + self.v[:, None]
        terms = at.log_density(t, t + u, u)
        shares = np.exp(terms - logsumexp(terms, 0)).cumsum(0)
        levels = (rng.permutation(len(u)) + rng.uniform(size=len(u))) / len(u)
        chosen = (shares < levels).sum(0).clip(max=len(self.v) - 1)
        return t[chosen, np.arange(len(u))]

    def decompose(self, masks: np.ndarray) -> Decomposed:
        """Eigenvectors, and the evidence at every ratio, of models (N, d)."""
        size, sizes = max(int(masks.sum(1).max(initial=0)), 1), masks.sum(1)
        order = np.argsort(~masks, 1, kind="stable")[:, :size]
        filled = np.arange(size) < sizes[:, None]
        order = np.pad(order, [(0, 0), (0, size - order.shape[1])])
        index = torch.from_numpy(np.where(filled, order, masks.shape[1]))
        gram = self.gram[index[:, :, None], index[:, None, :]]
        values, vectors = torch.linalg.eigh(gram)
        # Directions without data have exactly none.
        is_known = values > SINGULAR * size * values.amax(1, keepdim=True)
        along = (vectors.mT @ self.moment[index][..., None])[..., 0]
        values, along = (torch.where(is_known, x, 0.0) for x in (values, along))
        squares = self._squares(values, along)
        terms = self._log_terms(self._half_log_det(values), squares)
        return Decomposed(index, values, vectors, along, squares, terms)

    def _half_log_det(self, values: torch.Tensor) -> np.ndarray:
        """Of ``1 + values / ratio``, (N, U): a logarithm for every few factors."""
        found = values.new_zeros(len(values), len(self.ratios))
        for some in values.split(FACTORS, 1):
            found += (1 + some[..., None] / self.ratios).prod(1).log()
        return 0.5 * found.numpy()

    def _squares(self, values: torch.Tensor, along: torch.Tensor) -> np.ndarray:
        """Least sums of squares and of ratio times coefficients, (N, U)."""
        explained = torch.where(values > 0, along.square() / values, 0.0)
        rest = self.total - explained.sum(1)
        rest = torch.where(rest > ROUNDING * self.total, rest, 0.0)
        kept = self.ratios / (values[..., None] + self.ratios)
        squares = rest[:, None] + (explained[:, None] @ kept)[:, 0]
        return squares.clamp(min=self.least).numpy()

    def chunks(self, masks: np.ndarray) -> list[np.ndarray]:
        """Positions of models that are computed at once: those of similar sizes."""
        sizes = masks.sum(1)
        order = np.argsort(sizes, kind="stable")
        most = max(int(sizes.max(initial=0)), 1) * max(len(self.u), 1)
        return np.array_split(order, math.ceil(len(order) * most / CHUNK))

    def log_evidence(self, masks: np.ndarray) -> np.ndarray:
        """Log evidences of models, (N,), in nats."""
        found = np.empty(len(masks))
        for rows in self.chunks(masks):
            found[rows] = logsumexp(self.decompose(masks[rows]).terms, 1)
        return found


def find_form(model: Any, X: np.ndarray, y: np.ndarray, weight: Any) -> ConjugateForm:
    """The form of a regression whose coefficients share one precision, or an error."""
    target, form = None, None
    if hasattr(model, "steps"):
        raise IncompatibleComponentsError(
            "SubsetSearch",
            "a regression, and got a Pipeline",
            "SubsetSearch as the "
            "last step of the Pipeline: its columns are those that arrive there",
        )
    if hasattr(model, "_make_target"):
        target, _ = model._make_target(X, y, weight)
        form = target.conjugate_form()
    bad = form is None or len(form.coef.value) > 1 or form.noise.is_learned
    bad = bad or model.divergence_.kl_weight != 1 or model.column_groups_
    if bad or model._relative_to() == "all":
        raise IncompatibleComponentsError(
            f"SubsetSearch({model!r})",
            "normal noise, log loss, divergence='kl' and normal coefficients of one "
            "scale, in units of each column or of none, without column_groups",
            "BayesianLinearRegression(), with prior=Normal(1.0) or noise_scale=1.0 for "
            "given scales; EvidenceSearch for other models",
        )
    return form


def log_prior_of_sizes(model_prior: str | float, n_columns: int) -> np.ndarray:
    """Log prior probability of one subset of every size, (n_columns + 1,)."""
    k = np.arange(n_columns + 1)
    if model_prior == "beta_binomial":
        choose = gammaln(n_columns + 1) - gammaln(k + 1) - gammaln(n_columns - k + 1)
        return -choose - math.log(n_columns + 1)
    share = float(model_prior)
    return k * math.log(share) + (n_columns - k) * math.log1p(-share)


def thin(
    weights: np.ndarray, size: int, rng: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of about `size` weights, and theirs: the same in expectation.

    Large ones stay as they are; of others a systematic sample has equal weights
    (Fearnhead and Clifford, 2003).
    """
    rows = np.flatnonzero(weights)
    if len(rows) <= size:
        return rows, weights[rows]
    ordered = np.sort(weights)[::-1]
    equal = ordered[::-1].cumsum()[::-1][:size] / (size - np.arange(size))
    unit = equal[np.argmax(ordered[:size] < equal)]
    places = np.minimum(weights / unit, 1.0).cumsum() + rng.uniform()
    rows = np.flatnonzero(np.diff(np.floor(places), prepend=0.0) > 0)
    return rows, np.maximum(weights[rows], unit)


# Chains that are run side by side, the part of their sweeps that is left out, and the
# number of columns in which those that do not begin without any begin.
N_CHAINS, BURN_IN, BEGINNING = 64, 0.25, 10


OfModels = Callable[[np.ndarray], np.ndarray]


def remembered(function: OfModels) -> OfModels:
    """A function of models, (N, d), that is computed once for each."""
    known: dict[bytes, float] = {}

    def value_of(masks: np.ndarray) -> np.ndarray:
        keys = [mask.tobytes() for mask in masks]
        new = {key: i for i, key in enumerate(keys) if key not in known}
        if new:
            found = function(masks[[*new.values()]])
            known.update(zip(new, found.tolist(), strict=True))
        return np.array([known[key] for key in keys])

    return value_of


def walk(
    log_posterior: OfModels,
    n_columns: int,
    n_sweeps: int,
    rng: np.random.RandomState,
) -> tuple[np.ndarray, np.ndarray]:
    """Inclusion by chain, (C, d), and the models after each sweep, (N, d).

    Chains add or remove every column in turn, and exchange pairs of columns. What is
    averaged is the probability of a column given the others (Rao and Blackwell).
    """
    value_of, chains = remembered(log_posterior), np.arange(N_CHAINS)
    inclusion = np.zeros((N_CHAINS, n_columns))
    most = (chains % 2) * min(0.5, BEGINNING / n_columns)
    masks = rng.uniform(size=(N_CHAINS, n_columns)) < most[:, None]
    value, visited, first = value_of(masks), [], int(BURN_IN * n_sweeps)

    def move(proposal: np.ndarray) -> np.ndarray:
        nonlocal masks, value
        new, old = value_of(proposal), value
        accepted = np.log(rng.uniform(size=N_CHAINS)) < new - old
        masks = np.where(accepted[:, None], proposal, masks)
        value = np.where(accepted, new, old)
        return new - old

    for sweep in range(n_sweeps):
        order = np.argsort(rng.uniform(size=masks.shape), 1)
        for step, column in enumerate(order.T):
            given = masks
            flipped = given.copy()
            flipped[chains, column] ^= True
            gain = move(flipped)
            if sweep >= first:
                sign = np.where(given[chains, column], -1, 1)
                inclusion[chains, column] += expit(sign * gain)
            if step % 2:
                continue
            given = masks
            swapped, places = given.copy(), rng.uniform(0.5, 1, size=given.shape)
            both = given.any(1) & ~given.all(1)
            for part in (given, ~given):
                swapped[chains, (places * part).argmax(1)] ^= both
            move(swapped)
        if sweep >= first:
            visited.append(masks)
    return inclusion / (n_sweeps - first), np.concatenate(visited)


@dataclass(frozen=True, eq=False)
class Components(Movable):
    """Normals of the coefficients given a model and the precisions, M of them.

    `index` (M, k) as in `Decomposed`; `roots` @ `roots`' times `noise` are covariances.
    """

    index: torch.Tensor
    means: torch.Tensor  # (M, k)
    roots: torch.Tensor  # (M, k, k)
    intercept: torch.Tensor  # (M,)
    intercept_variance: torch.Tensor  # (M,)
    noise: torch.Tensor  # (M,), variances
    log_weights: torch.Tensor  # (M,)


@dataclass(frozen=True, eq=False)
class Averaged:
    """Moments of coefficients and intercept, (d + 1,), over models, and components."""

    mean: np.ndarray
    covariance: np.ndarray
    noise: float
    components: Components


# Most normals of predictive distributions.
N_COMPONENTS = 4096


def average(
    subsets: Subsets, masks: np.ndarray, weights: np.ndarray, rng: np.random.RandomState
) -> Averaged:
    """Average over models (N, d) with weights (N,), and over their precisions."""
    d = masks.shape[1]
    second, noise, middle, square = torch.zeros_like(subsets.gram), 0.0, 0.0, 0.0
    mean, cross = torch.zeros_like(second[0]), torch.zeros_like(second[0])
    cells = np.empty((len(masks), len(subsets.u)))
    for rows in subsets.chunks(masks):
        found = subsets.decompose(masks[rows])
        shares = softmax(found.terms, 1) * weights[rows, None]
        cells[rows] = shares
        parts = [shares * part for part in subsets.means(found.squares)]
        noise, middle, square = (
            total + float(part.sum())
            for total, part in zip((noise, middle, square), parts, strict=True)
        )
        w, of_noise, of_middle = map(torch.from_numpy, (shares, *parts[:2]))
        shrunk = 1 / (found.values[..., None] + subsets.ratios)
        coef = found.along[..., None] * shrunk
        inner = (coef * w[:, None]) @ coef.mT
        inner = inner + torch.diag_embed((shrunk * of_noise[:, None]).sum(-1))
        inner = found.vectors @ inner @ found.vectors.mT
        index = found.index[:, :, None], found.index[:, None, :]
        second.index_put_(tuple(torch.broadcast_tensors(*index)), inner, True)
        for total, own in ((mean, w), (cross, of_middle)):
            moment = found.vectors @ (coef * own[:, None]).sum(-1, keepdim=True)
            total.index_put_((found.index,), moment[..., 0], True)
    mean[d], cross[d] = middle, square
    second[d], second[:, d] = cross, cross
    covariance = (second - torch.outer(mean, mean)).numpy()
    mean[d] += subsets.form.data.mean
    chosen, w = thin(cells.ravel() / cells.sum(), N_COMPONENTS, rng)
    if subsets.is_table:  # the noise is drawn, so likely ones have many draws of it
        copies = np.ceil(w * N_COMPONENTS).astype(int)
        chosen, w = chosen.repeat(copies), (w / copies).repeat(copies)
    components = _components(subsets, masks, *np.divmod(chosen, cells.shape[1]), w, rng)
    return Averaged(mean.numpy(), covariance, noise, components)


def _components(
    subsets: Subsets,
    masks: np.ndarray,
    rows: np.ndarray,
    node: np.ndarray,
    weights: np.ndarray,
    rng: np.random.RandomState,
) -> Components:
    found = subsets.decompose(masks[rows])
    t = subsets.draw_noise(found.squares[np.arange(len(node)), node], node, rng)
    noise, middle, square = map(torch.from_numpy, subsets.moments_at(t))
    shrunk = 1 / (found.values + subsets.ratios[torch.from_numpy(node), None])
    means = (found.vectors @ (found.along * shrunk)[..., None])[..., 0]
    roots = found.vectors * shrunk.sqrt()[:, None]
    log_w = torch.from_numpy(np.log(weights / weights.sum()))
    spread, middle = square - middle**2, middle + subsets.form.data.mean
    return Components(found.index, means, roots, middle, spread, noise, log_w)
