"""What `evidence_bounds` returns."""

from dataclasses import dataclass, field

__all__ = ["EvidenceBounds", "NamedBound"]

_OPTIMISTIC = "optimistic as a score of the model"


@dataclass(frozen=True)
class NamedBound:
    """One row of the table of bounds.

    Parameters
    ----------
    value : float
        Nats.
    standard_error : float
        Asymptotic; 0 where the value has no Monte Carlo noise.
    direction : {"lower", "upper", "estimate"}
    certifies : str
        What the number says, and under which condition.

    Examples
    --------
    >>> from skvi.evidence import NamedBound
    >>> NamedBound(-7.26, 0.0, "lower", "log p(D) is above it").direction
    'lower'
    """

    value: float
    standard_error: float
    direction: str
    certifies: str


@dataclass(frozen=True)
class EvidenceBounds:
    """Lower and upper bound on the log evidence log p(D), in nats.

    `lower` and `upper` estimate bounds, with standard errors: the expectation of
    `lower` is below log p(D) at any number of draws, that of `upper` above it if
    every draw of the chains is exactly posterior. They are built so that the
    remaining distance to log p(D) is about twice the error.

    Parameters
    ----------
    lower, upper : float
        IW-ELBO and IW-EUBO, from all data, with all constants.
    lower_se, upper_se : float
        Asymptotic standard errors; to be used only while `reliable`.
    estimate : float
        Bridge estimate of log p(D): consistent, no bound, may leave the interval.
    gap : float
        ``upper - lower``.
    ess : float
        Effective number of the draws behind the lower bound.
    khat : float
        Larger Pareto k of the two sets of weights.
    reliable : bool
        Whether every diagnostic allows the statements made here.
    reason : str
        Why not; or what the upper bound is certified against.
    method : str
    plug_in : tuple of str
        Learnt hyperparameters on which the evidence is conditioned.
    quantity : str
        "log evidence", or "generalised log evidence" for other losses or weights.
    table : dict of str to NamedBound

    Notes
    -----
    The upper bound needs posterior draws. They come from chains that start half
    near the fit and half in the prior; it is certified against what these starts
    reach, not against a mode that none of them finds.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.preprocessing import scale
    >>> from skvi.linear_model import BayesianLogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> X, y = scale(X[:100]), y[:100]
    >>> model = BayesianLogisticRegression().fit(X, y)
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
    table: dict[str, NamedBound] = field(default_factory=dict, repr=False)

    def interval(self, n_se: float = 2.0) -> tuple[float, float]:
        """Return an interval for the log evidence.

        Parameters
        ----------
        n_se : float, default=2.0
            Standard errors that are added on each side. With 2, and while
            `reliable`, each side fails with a probability well below 2.5 %.

        Returns
        -------
        low, high : float
            In nats.
        """
        return self.lower - n_se * self.lower_se, self.upper + n_se * self.upper_se

    def __str__(self) -> str:
        """Return the table of bounds as text."""
        lines = [f"{self.quantity}, nats ({'' if self.reliable else 'NOT '}reliable)"]
        for name, row in self.table.items():
            lines.append(
                f"  {name:<22} {row.value:>12.4f} +- {row.standard_error:.4f}  "
                f"{row.direction:<8} {row.certifies}"
            )
        if self.plug_in:
            lines.append(f"  at the learnt {', '.join(self.plug_in)}: {_OPTIMISTIC}")
        return "\n".join([*lines, f"  {self.reason}"])
