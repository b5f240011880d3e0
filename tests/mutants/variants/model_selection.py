"""Wrong variants of model selection."""

from tests.mutants.variant import variants_of

_v = variants_of("model_selection/")

VARIANTS = [
    _v(
        "no-correction-for-models",
        "_decision.py",
        "tail = (1 - confidence_level) / (2 * n_models * n_runs)",
        "tail = (1 - confidence_level) / (2 * n_runs)",
        "t for one comparison, whatever the number of models",
    ),
    _v(
        "one-sided-tail",
        "_decision.py",
        "tail = (1 - confidence_level) / (2 *",
        "tail = (1 - confidence_level) / (4 *",
        "half the tail on each side",
    ),
    _v(
        "ends-of-intervals-exchanged",
        "_decision.py",
        "self.low[k] - self.high[j] > self.min_difference",
        "self.high[k] - self.low[j] > self.min_difference",
        "the best case decides",
    ),
    _v(
        "min-difference-ignored",
        "_decision.py",
        "self.low[k] - self.high[j] > self.min_difference",
        "self.low[k] - self.high[j] > 0",
        "any difference excludes a model",
    ),
    _v(
        "learnt-hyperparameters-exchanged",
        "_decision.py",
        "self.learnt[k] <= self.learnt[j]",
        "self.learnt[j] <= self.learnt[k]",
        "the optimistic model may exclude the other one",
    ),
    _v(
        "probability-ends",
        "_decision.py",
        "low = [_share(low, self.high, k) for",
        "low = [_share(low, self.low, k) for",
        "the least probability from everybody's lower ends",
    ),
    _v(
        "model-prior-without-log",
        "_candidates.py",
        "return np.log(weights)",
        "return weights",
        "the prior weights without their log",
    ),
    _v(
        "half-width-of-race",
        "_race.py",
        "return (high - low) / 2",
        "return high - low",
        "the width of an interval for half of it",
    ),
    _v(
        "last-results-kept",
        "_search.py",
        'self.__dict__ = {k: v for k, v in known if not k.endswith("_")}',
        "pass",
        "after Ctrl-C the results of the last search, with other parameters",
    ),
    _v(
        "units-taken-for-learnt",
        "_race.py",
        "model.bounds and set(model.bounds.plug_in) - set(FROM_TARGET)",
        "model.bounds and model.bounds.plug_in",
        "units that are the same for all split merged candidates",
    ),
    _v(
        "location-of-no-intercept",
        "_candidates.py",
        'if scaled and not params.get("fit_intercept", True):',
        "if False:",
        "models that take other things from y are compared",
    ),
    _v(
        "probabilities-of-endless-intervals",
        "_decision.py",
        "known = len(self.low) == 1 or np.isfinite([self.low, self.high]).all()",
        "known = True",
        "a probability that rests on bounds that prove nothing",
    ),
    _v(
        "probability-rounded-inwards",
        "_verdict.py",
        "math.floor(1e3 * low[k])",
        "math.ceil(1e3 * low[k])",
        "the lower end of a probability rounded up",
    ),
    _v(
        "upper-probability-rounded-inwards",
        "_verdict.py",
        "math.ceil(1e3 * high[k])",
        "math.floor(1e3 * high[k])",
        "the upper end of a probability rounded down",
    ),
    _v(
        "odds-without-exp",
        "_verdict.py",
        "math.exp(comparison.min_difference)",
        "comparison.min_difference",
        "nats for odds",
    ),
]
