"""Bounds on the evidence of a model of counts."""

from skvi.linear_model._blocks import with_logarithm

__all__ = ["CountEvidenceMixin"]


class CountEvidenceMixin:
    """Mixin: the evidence beside an unknown dispersion, and with exposure."""

    def _bound_evidence(self, target, generator, *options, **limits):
        if target.is_extended and self._normal is not None:
            (name,) = target.layout.positive
            limits["normal"] = with_logarithm(self._normal, self.posterior_, name)
        return super()._bound_evidence(target, generator, *options, **limits)

    def evidence_bounds(
        self,
        X,
        y,
        *,
        sample_weight=None,
        exposure=None,
        method="auto",
        n_draws=None,
        precision=None,
        max_seconds=None,
        random_state=None,
    ):
        """Bound the log evidence log p(D) of the model from below and above.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The training features.
        y : array-like of shape (n_samples,)
            The training counts.
        sample_weight : array-like of shape (n_samples,), default=None
            Needed if the fit had weights. Integer weights count repeated rows; with
            others the evidence is a generalized one.
        exposure : array-like of shape (n_samples,), default=None
            Needed if the fit had it.
        method : {"auto", "importance", "annealing"}, default="auto"
            See `BayesianLogisticRegression.evidence_bounds`.
        n_draws : int, default=None
            Draws on each side, at least 64. None chooses as many as `precision`
            needs.
        precision : float, default=None
            Target distance of each bound from log p(D), in nats. None is 0.03, limited
            to about 130,000 (correlated) draws on each side. Not together with
            `n_draws`.
        max_seconds : float, default=None
            See `BayesianLogisticRegression.evidence_bounds`.
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        EvidenceBounds
            With ``lower``, ``upper``, their standard errors, ``estimate``,
            ``reliable`` and ``reason``; ``print(bounds)`` shows the
            interval, ``print(bounds.table)`` every bound.

        Raises
        ------
        ValueError
            The data are not those of the fit, the fit had weights and none are
            given, or y was not of counts.
        """
        self._check_X(X)
        self._model.response.check_counts(y, "evidence_bounds")
        return self._check_and_bound(
            X,
            y,
            sample_weight,
            method,
            n_draws,
            precision,
            random_state,
            exposure,
            max_seconds,
        )
