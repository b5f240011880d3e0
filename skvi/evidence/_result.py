"""The result of `evidence_bounds`."""

import math
from dataclasses import dataclass, field, replace

from scipy.special import stdtrit

from skvi.evidence._estimates import N_GROUPS
from skvi.evidence._table import (
    ALWAYS,
    OF_SAMPLES,
    OVER_LEARNED,
    BoundsTable,
    NamedBound,
)
from skvi.utils._tables import as_html, n_decimals

#: What is printed.
ENDS = ("lower", "estimate", "upper")
#: Names in `plug_in` of quantities that a prior takes from y: equal for every fit to y.
FROM_TARGET = ("y_mean", "y_scale", "f_mean", "intercept_scale")
#: Errors by which a certain lower bound may exceed the upper one by chance.
REFUTED = 4.0
# Rounding of sums over data, in nats, or relative to them.
ROUNDING = 1e-9
IMPOSSIBLE = "a lower bound on a log probability lies {:.3g} nats above 0"
_OPTIMISTIC = "optimistic as a score of the model"
_NO_PROBABILITY = (
    "the prior is in units of y, as by default; compare it only with models whose "
    "prior is so, too"
)


@dataclass(frozen=True)
class EvidenceBounds:
    """Lower and upper bound on the log evidence log p(D), in nats.

    `lower` and `upper` estimate bounds, with standard errors: the expectation of
    `lower` is below log p(D) at any number of draws, that of `upper` above it if every
    draw of the chains is an exact posterior draw. They are constructed so that the
    remaining distance to log p(D) is about twice the error.

    Parameters
    ----------
    lower, upper : float
        IW-ELBO and IW-EUBO, from all data, with all constants.
    lower_se, upper_se : float
        Asymptotic standard errors; to be used only while `reliable`.
    estimate : float
        Bridge estimate of log p(D): consistent, not a bound, can be outside the
        interval.
    gap : float
        ``upper - lower``.
    ess : float
        Effective number of the draws behind the lower bound.
    khat : float
        Larger Pareto k of the two sets of weights, as fitted (by tempering: of those
        whose variance is not finite by construction). Above about 0.7, less for few
        draws, a side is not reliable, unless its weights are nearly constant.
    reliable : bool
        Whether every diagnostic allows the statements made here. No diagnostic detects
        a mode that no chain has found. Weights that never exceed twice their mean are
        exempt from the rule for `khat`, which is then the shape of small differences.
        If that matters the standard error of the side includes 2 / n nats, for the tail
        beyond its n draws.
    reason : str
        Why it is not reliable; otherwise where the chains behind the upper bound
        started.
    method : str
    plug_in : tuple of str
        Quantities taken from y that the evidence is conditioned on: learned
        hyperparameters, such as "noise_scale"; "y_mean" and "y_scale" with
        ``normalize_y=True``, and "f_mean" of networks of counts; "intercept_scale" if
        the prior of the intercept is scaled by y. If it is empty the (plain) evidence
        is the probability (density) that the model assigns to the data: as a function
        of y it integrates to 1.
    quantity : str
        "log evidence", or "generalized log evidence" for other losses or weights.
    table : BoundsTable
        Every bound by name, with its standard error, its direction, whether it exists
        and in which sense it is a valid bound.

    Notes
    -----
    The upper bound needs posterior draws. They come from Markov chains, and it is
    valid if these have mixed. They start half near the fit and half in the prior; under
    a prior that is not log-concave every third one starts where the likelihood alone is
    large. A mode that none of them finds is missed.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.preprocessing import scale
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> X, y = scale(X[:100]), y[:100]
    >>> model = BayesianLogisticRegression(prior="normal").fit(X, y)
    >>> bounds = model.evidence_bounds(X, y, random_state=0)
    >>> bounds.reliable, bounds.gap < 0.1
    (True, True)
    """

    lower: float
    upper: float
    lower_se: float
    upper_se: float
    estimate: float
    gap: float
    ess: float
    khat: float
    reliable: bool
    reason: str
    method: str
    plug_in: tuple[str, ...] = ()
    quantity: str = "log evidence"
    table: dict[str, NamedBound] = field(default_factory=BoundsTable, repr=False)

    def __post_init__(self) -> None:
        """Convert the table if it was given as a dict."""
        object.__setattr__(self, "table", BoundsTable(self.table))

    def interval(self, n_se: float = 2.0) -> tuple[float, float]:
        """Return an interval for the log evidence.

        From `lower` and `upper` with their errors, truncated at bounds of the table
        that always hold: an ELBO in closed form can be tighter than the sampled lower
        bound, and the probability of labels or counts is at most 1.

        Parameters
        ----------
        n_se : float, default=2.0
            Standard errors added on each side; see the notes.

        Returns
        -------
        low, high : float
            In nats. If such an ELBO lies above the upper end, that end is 4 errors away
            instead, the limit of chance while `reliable`; ``inf``, or 0 for a
            probability, if the ELBO refutes that as well.

        Notes
        -----
        On average `lower` and `upper` are about two errors away from log p(D), so that
        with two more errors an end is on the wrong side by chance in far less than 2.5
        % of the cases, *if* errors are normal. They are so asymptotically, for weights
        without heavy tails (`khat`) and chains that have mixed; for finitely many draws
        this is not guaranteed. Measured in 692 runs of logistic regressions with
        normal priors on five data sets, all of them `reliable`: `lower` itself was
        above the true value in 0.6 %, `upper` itself below it in 1.0 %; the interval
        with two errors contained it in all (2026-11-22). Nearly normal posteriors of a
        thousand rows and more, whose weights are few and nearly constant: 0.2 % and 0.0
        % of 400 runs with two coefficients, and the interval contained it in all.
        """
        low = self.lower - n_se * self.lower_se if self.lower > -math.inf else -math.inf
        top = min(self._sure("upper"), default=math.inf)
        high = min(self.upper + n_se * self.upper_se, top)
        sure = max(self._sure("lower"), default=-math.inf)
        if sure <= high:
            return max(low, sure), high
        if sure - high <= ROUNDING * max(1.0, abs(sure)):
            return min(max(low, high), sure), sure
        high = min(self.upper + REFUTED * self.upper_se, top)
        return sure, high if sure <= high else top

    def _sure(self, direction: str) -> list[float]:
        """Bounds of the table that always hold."""
        rows = self.table.values()
        return [r.value for r in rows if r.direction == direction and r.holds == ALWAYS]

    def of_probability(self) -> "EvidenceBounds":
        """Return bounds on the logarithm of a probability, which is at most 0.

        Returns
        -------
        EvidenceBounds
            No value exceeds 0; an `upper` above 0 becomes 0 with error 0, which is a
            certain bound. The table has it as a row, at which `interval` is truncated.
            A truncated interval holds as often as before; the expectation of `upper`
            decreases, and is no longer above the evidence if draws on both sides of 0
            are likely.

        Examples
        --------
        >>> from skvi.evidence import EvidenceBounds
        >>> bounds = EvidenceBounds(
        ...     -0.02, 0.01, 0.01, 0.01, 0.0, 0.03, 900.0, 0.1, True, "", "importance"
        ... ).of_probability()
        >>> bounds.upper, bounds.upper_se, bounds.interval()
        (0.0, 0.0, (-0.04, 0.0))
        """
        # A lower bound above 0 by more than its errors is refuted, and so is all else.
        excess = max(self.lower - REFUTED * self.lower_se, *self._sure("lower"), -1.0)
        refuted = excess > ROUNDING
        lower = min(self.lower, 0.0)
        upper = self.upper if self.upper < 0 else 0.0
        says = "a bound, exactly: a probability is at most 1"
        certain = NamedBound(0.0, 0.0, "upper", says, holds=ALWAYS)
        return replace(
            self,
            lower=lower,
            upper=upper,
            upper_se=self.upper_se if self.upper < 0 else 0.0,
            estimate=min(self.estimate, 0.0),
            gap=upper - lower,
            reliable=self.reliable and not refuted,
            reason=IMPOSSIBLE.format(excess) if refuted else self.reason,
            table={**self.table, "probability 1": certain},
        )

    @property
    def divergence(self) -> float:
        """Upper bound of KL(q || posterior), the distance of the fit, in nats.

        `upper` minus the ELBO of q, which is that of its samples for a `RefinedNormal`,
        whose density nobody knows: it holds in expectation, as both do. NaN if the
        table has no ELBO.
        """
        names = [name for name in (OF_SAMPLES, "ELBO of q") if name in self.table]
        return self.upper - self.table[names[0]].value if names else math.nan

    def __str__(self) -> str:
        """Return lower end, estimate and upper end, and whether they are reliable.

        The ends are those of `interval`; ``print(bounds.table)`` shows every bound.
        Unreliable numbers are left out, except bounds that always hold.
        """
        pairs = zip(ENDS, self._three_numbers(), strict=True)
        lines = [f"  {name:<9}{text:>14}" for name, text in pairs]
        notes = [f"  {note}" for note in self._notes()]
        return "\n".join([self._title(), *lines, *notes])

    def _repr_html_(self) -> str:
        columns = {"": ENDS, "nats": self._three_numbers()}
        return as_html(columns, self._title(), *self._notes())

    def _title(self) -> str:
        return f"{self.quantity}, nats ({'' if self.reliable else 'NOT '}reliable)"

    def _notes(self) -> list[str]:
        """What the numbers depend on, and the reason."""
        notes = []
        learned = [name for name in self.plug_in if name not in FROM_TARGET]
        taken = [name for name in self.plug_in if name in FROM_TARGET]
        if learned:
            notes.append(f"at the learned {', '.join(learned)}: {_OPTIMISTIC}")
        if OVER_LEARNED in self.table:
            row = self.table[OVER_LEARNED]
            value = "" if math.isnan(row.value) else f" {row.value:.2f}"
            notes.append(f"{OVER_LEARNED}{value}: {row.certifies}")
        if taken:
            notes.append(f"with {', '.join(taken)} from y: {_NO_PROBABILITY}")
        if self.reliable and OF_SAMPLES in self.table:
            error = math.hypot(self.upper_se, self.table[OF_SAMPLES].standard_error)
            normal = self.upper - self.table["ELBO of q"].value
            notes.append(
                f"KL(q || posterior) is at most {self.divergence:.2g} (standard error "
                f"{error:.1g}); {normal:.2g} before the refinement"
            )
        return [*notes, self.reason]

    def stated(self) -> tuple[float, float, float]:
        """Return lower end, estimate and upper end as they are printed.

        Returns
        -------
        low, estimate, high : float
            The ends of `interval`, in nats. Where the result is not reliable the
            estimate is NaN, and the ends are bounds of the table that hold always, or
            infinite.

        Examples
        --------
        >>> from skvi.evidence import EvidenceBounds
        >>> bounds = EvidenceBounds(
        ...     -7.2, -7.1, 0.0, 0.0, -7.15, 0.1, 9.0, 0.9, False, "k", "importance"
        ... )
        >>> bounds.stated()
        (-inf, nan, inf)
        """
        if self.reliable:
            low, high = self.interval()
            return low, self.estimate, high
        low = max(self._sure("lower"), default=-math.inf)
        return low, math.nan, min(self._sure("upper"), default=math.inf)

    def _three_numbers(self) -> list[str]:
        """Lower end, estimate and upper end, with two digits of their distance."""
        low, middle, high = self.stated()
        digits = n_decimals(high - low)
        return [
            f"{value:.{digits}f}" if math.isfinite(value) else "unknown"
            for value in (low, middle, high)
        ]

    def limits(self, level: float = 0.95) -> tuple[float, float]:
        """Return one-sided confidence limits, each at a given level.

        Parameters
        ----------
        level : float, default=0.95
            Probability of ``low <= log p(D)``, and of ``log p(D) <= high``; both hold
            together with at least ``2 * level - 1``. From 0.5 to below 1.

        Returns
        -------
        low, high : float
            In nats: `interval` at the quantile of a Student-t with 63 degrees of
            freedom, for errors of 64 independent chains or blocks. Asymptotic, and
            valid only while `reliable`; the rows of the table with a probability in
            their names need no normal approximation, and are wider.

        Raises
        ------
        ValueError
            `level` is not in its range.

        Examples
        --------
        >>> from skvi.evidence import EvidenceBounds
        >>> bounds = EvidenceBounds(
        ...     -7.2, -7.1, 0.01, 0.01, -7.15, 0.1, 900.0, 0.1, True, "", "importance"
        ... )
        >>> low, high = bounds.limits(0.99)
        >>> round(low, 3), round(high, 3)
        (-7.224, -7.076)
        """
        if not 0.5 <= level < 1:
            raise ValueError(f"level={level!r} must be from 0.5 to below 1.")
        return self.interval(float(stdtrit(N_GROUPS - 1, level)))
