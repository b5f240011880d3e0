"""Wrong variants of changepoint detection."""

from tests.mutants.variant import variants_of

_v = variants_of("changepoint/")

VARIANTS = [
    _v(
        "changepoint-survival",
        "_filter.py",
        "return np.log(p), np.log1p(-p)",
        "return np.log(p), np.log(p)",
        "segments go on as rarely as they end",
    ),
    _v(
        "changepoint-length",
        "_filter.py",
        "ends, stays = self._hazards(self.t - start)",
        "ends, stays = self._hazards(np.maximum(self.t - start - 1, 1))",
        "the hazard of a segment that is one row shorter",
    ),
    _v(
        "changepoint-dropped-evidence",
        "_filter.py",
        "self.log_evidence += np.log1p(-lost)",
        "self.log_evidence += 0.0",
        "the evidence of dropped hypotheses goes to the others",
    ),
    _v(
        "changepoint-smoothing-hazard",
        "_records.py",
        "ends = before.probability * self.hazard.probability(s - before.start)",
        "ends = before.probability",
        "what ended before a change, without the hazard",
    ),
    _v(
        "changepoint-rank-one",
        "_conjugate.py",
        "earlier = np.cumsum(scaled, axis=-2) - scaled",
        "earlier = np.cumsum(scaled, axis=-2)",
        "the cumulative sum includes the row itself",
    ),
    _v(
        "changepoint-student-width",
        "_student.py",
        "    width = 2 * rate * (1 + spread)\n    return (\n        gammaln",
        "    width = 2 * rate * (1 + 0 * spread)\n    return (\n        gammaln",
        "predictions without the uncertainty of the coefficients",
    ),
    _v(
        "changepoint-missing",
        "_stream.py",
        "usable &= model.usable(observed[: model.order + 1], features)",
        "usable &= model.usable(observed[:1], features)",
        "rows whose past is missing count",
    ),
    _v(
        "changepoint-jacobian",
        "_stream.py",
        "self.log_jacobian -= units",
        "self.log_jacobian += units",
        "sign of the log scale in the evidence",
    ),
    _v(
        "changepoint-site-fit",
        "_beta.py",
        "shift=d_fit / tau - 2 * fit * d_spread,",
        "shift=d_fit / tau - fit * d_spread,",
        "a factor of 2 in the gradient of a site",
    ),
    _v(
        "changepoint-integral-power",
        "_beta.py",
        "np.exp(log_common) * (1 + c) ** -1.5, damped, k",
        "np.exp(log_common) * (1 + c) ** -0.5, damped, k",
        "the integral without 1 / (1 + c)",
    ),
    _v(
        "changepoint-frozen-site",
        "_robust.py",
        'counts = (oldest.index >= state["start"])[:, None] & oldest.usable',
        'counts = (oldest.index < state["start"])[:, None] & oldest.usable',
        "rows that leave the window go to the wrong hypotheses",
    ),
    _v(
        "changepoint-robust-power",
        "_judge.py",
        "np.expm1(integral) / (1 + power)",
        "np.expm1(integral)",
        "the integral's weight in the loss of a prediction",
    ),
    _v(
        "changepoint-predict-spread",
        "_judge.py",
        "variance = (weight * (variances + (means - mean) ** 2)).sum(0)",
        "variance = (weight * variances).sum(0)",
        "variance of a mixture without the differences of the means",
    ),
    _v(
        "changepoint-known-noise",
        "_normal.py",
        'return state["mean"], 1 / state["precision"] + state["noise"] ** 2',
        'return state["mean"], 1 / state["precision"] + state["noise"]',
        "noise for its variance",
    ),
    _v(
        "changepoint-poisson-rate",
        "_counts.py",
        '"rate": state["rate"] + 1}',
        '"rate": state["rate"] + 0.5}',
        "half a row per row",
    ),
    _v(
        "changepoint-bernoulli",
        "_counts.py",
        '"zeros": state["zeros"] + 1 - row.values,',
        '"zeros": state["zeros"] + 1,',
        "ones count as zeros, too",
    ),
]
