"""Evidence bounds of networks."""

from dataclasses import replace
from numbers import Real

from sklearn.utils.validation import check_is_fitted

from skvi._evidence import EvidenceMixin
from skvi.utils._validation import Interval, validate_arguments

__all__ = ["NetworkEvidenceMixin"]

COPIES = (
    "hidden units can be permuted, so that the posterior has exp({:.1f}) equivalent "
    "modes: the bounds hold for those that draws and chains reach; method='tempering' "
    "reaches all of them"
)


class NetworkEvidenceMixin(EvidenceMixin):
    """Mixin of networks: `evidence_bounds` that come from the prior by tempering."""

    _evidence_draws = 1024
    _evidence_methods = EvidenceMixin._evidence_methods | {"tempering"}

    def evidence_bounds(
        self,
        X,
        y,
        *,
        sample_weight=None,
        method="auto",
        n_draws=None,
        precision=None,
        max_seconds=None,
        random_state=None,
    ):
        """Bound the log evidence log p(D) of the model from below and above.

        The evidence is the probability (density) that the model (likelihood, prior,
        features) assigned to these data before it saw them: the number by which
        Bayesian models are compared. It does not depend on objective, divergence or
        posterior family, nor on which of many equivalent modes (hidden units can be
        permuted) the fit has found.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The training features.
        y : array-like of shape (n_samples,)
            The training target.
        sample_weight : array-like of shape (n_samples,), default=None
            Required if the fit had weights; the evidence is then a generalized one.
            Class weights are added by the estimator.
        method : {"auto", "tempering", "importance", "annealing"}, default="auto"
            "tempering": chains at all temperatures between prior and posterior, which
            are exchanged. "importance", "annealing": from a normal near the fit, as for
            linear models; with hidden units they are rarely reliable. "auto": tempering
            with hidden units, otherwise the others.
        n_draws : int, default=None
            Draws on each side, at least 64. None chooses as many as `precision` needs.
        precision : float, default=None
            Target distance of each bound from log p(D), in nats. None is 0.25 with
            tempering, limited to 3,000 sweeps of 16 systems of chains. Not together
            with `n_draws`.
        max_seconds : float, default=None
            Approximate time limit. Bounds are then wider, more often not reliable, and
            depend on how fast the machine is. None has no limit.
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        EvidenceBounds
            With ``lower``, ``upper``, their standard errors, ``estimate``,
            ``reliable`` and ``reason``; ``print(bounds)`` shows the
            interval, ``print(bounds.table)`` every bound. With
            tempering `khat` is that of weights between neighboring temperatures whose
            variance is not finite by construction (-inf if there are none), and `ess`
            that of the log joint density in the chains.

        Raises
        ------
        ValueError
            The data are not those of the fit, or the fit had weights and none are
            given.
        KeyboardInterrupt
            On Ctrl-C; the estimator is not changed.

        Notes
        -----
        Values are in nats, summed over the data, with all constants. Quantities taken
        from y are conditioned on, and listed in ``plug_in``: the learned noise and
        scales of the prior, and location and scale of y with ``normalize_y=True``. Two
        fits that learn different ones have different evidences: fix `noise_scale` and
        `prior` to compare them.

        With tempering both bounds are valid if the chains have mixed. Mixing is
        assessed by fitted values and by the log joint density, which are equal for
        equivalent networks, and by how often replicas came from the prior to the
        posterior; half of the chains start from annealed draws of the prior. The row
        "particles" of the table needs no such condition: it is below log p(D) in
        expectation, whatever is found. ``reliable`` is true if chains, starts and
        bounds agree, and nothing refutes them.
        """
        check_is_fitted(self)
        validate_arguments(
            type(self).__name__,
            {"max_seconds": max_seconds},
            {"max_seconds": [None, Interval(Real, 0, None, closed="neither")]},
        )
        has_symmetry = self._model.predictor.symmetry is not None
        tempers = method == "tempering" or (method == "auto" and has_symmetry)
        bounds = self._check_and_bound(
            X,
            y,
            sample_weight,
            method,
            n_draws,
            precision,
            random_state,
            max_seconds=max_seconds,
        )
        if tempers or not has_symmetry:
            return bounds
        copies = COPIES.format(self._model.predictor.symmetry.log_order)
        return replace(bounds, reason=f"{bounds.reason}; {copies}")
