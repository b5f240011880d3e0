"""Wrong variants of neural networks."""

from tests.mutants.variant import variants_of

_v = variants_of("neural_network/")

VARIANTS = [
    _v(
        "layerwise-few-numbers",
        "_layerwise.py",
        'Normal("learn" if size >= MIN_NUMBERS else 1.0)',
        'Normal("learn")',
        "a scale that follows a single number",
    ),
    _v(
        "layerwise-intercepts",
        "_layerwise.py",
        'if block.role == "intercept" and given:',
        "if False:",
        "the prior of intercepts is forgotten",
    ),
    _v(
        "narrow-prior-not-named",
        "_flatness.py",
        "found = [] if learns_scales else [\"prior='auto'\"]",
        "found = []",
        "a prior that lets nothing through is not named",
    ),
    _v(
        "network-noise-not-in-units",
        "_regression.py",
        "self._likelihood(noise_in(units, self._noise_to_fix()), response)",
        "self._likelihood(self._noise_to_fix(), response)",
        "a given noise that is not divided by the unit of y",
    ),
    _v(
        "noise-set-after-the-fit",
        "_regression.py",
        "return NoisyDraws(predictor, theta, likelihood, self._model.units)",
        'if self.noise_scale != "learn":\n'
        "            units = self._model.units\n"
        "            scale = noise_in(units, self.noise_scale)\n"
        "            likelihood = self._likelihood(scale, self._model.response)\n"
        "        return NoisyDraws(predictor, theta, likelihood, self._model.units)",
        "the noise that was set after the fit",
    ),
    _v(
        "equal-rows-as-neighbors",
        "_flatness.py",
        "_, first = np.unique(X, axis=0, return_index=True)",
        "first = np.arange(len(X))",
        "equal rows are neighbors of each other",
    ),
    _v(
        "explained-about-another-mean",
        "_flatness.py",
        "centered = y - np.average(y, weights=weight)",
        "centered = y - y.mean()",
        "the mean without weights",
    ),
    _v(
        "frequencies-unweighted",
        "_flatness.py",
        "np.bincount(codes, weight, minlength=log_proba.shape[1])",
        "np.bincount(codes, minlength=log_proba.shape[1])",
        "class frequencies without weights",
    ),
    _v(
        "share-of-the-residuals",
        "_flatness.py",
        "total = float(np.average(deviation**2, weights=weight))",
        "total = float(np.var(residual))",
        "a share of what is left, not of the target",
    ),
    _v(
        "chance-of-few-rows",
        "_flatness.py",
        "n_rows = rows_per_row * weight.sum() ** 2 / (weight @ weight)",
        "n_rows = weight.sum() ** 2 / (weight @ weight)",
        "chance explains as much of many rows as of those looked at",
    ),
    _v(
        "missed-with-the-mean",
        "_flatness.py",
        "centered = residual - np.average(residual, weights=weight)",
        "centered = residual",
        "an offset that all rows share counts as signal of neighbors",
    ),
    _v(
        "missed-by-few-errors",
        "_flatness.py",
        "MISSED_ERRORS / n_pairs**0.5",
        "MISSED_ERRORS / n_pairs",
        "a variance for the standard error of a covariance",
    ),
    _v(
        "pairs-without-weights",
        "_flatness.py",
        "pair = np.sqrt(weight * weight[nearest])",
        "pair = np.ones(len(weight))",
        "what rows of next to no weight share counts as missed",
    ),
    _v(
        "pairs-that-do-not-count",
        "_flatness.py",
        "n_pairs = float(pair.sum() ** 2 / (pair @ pair))",
        "n_pairs = float(len(pair))",
        "rows of next to no weight make chance smaller",
    ),
    _v(
        "more-missed-than-left",
        "_flatness.py",
        "missed = min(missed, 1.0 - explained)",
        "missed = float(missed)",
        "more is missed than the fit leaves",
    ),
    _v(
        "remedy-already-taken",
        "_flatness.py",
        "isinstance(divergence, KL) and divergence.weight > LOW_WEIGHT",
        "isinstance(divergence, KL)",
        "a lower weight of the prior that the fit has already",
    ),
    _v(
        "ensemble-members-at-one-start",
        "_base.py",
        "[c.near(initial_normal(generator)) for c in problem.posterior.components]",
        "[problem.posterior.components[0].near(initial_normal(generator))]\n"
        "            * len(problem.posterior.components)",
        "all members of an ensemble start at the same place",
    ),
    _v(
        "module-parameters-not-cloned",
        "_modules.py",
        "return super().get_params(deep) | own",
        "return super().get_params(deep)",
        "parameters of the module that a clone forgets",
    ),
    _v(
        "module-seed-for-good",
        "_modules.py",
        "with torch.random.fork_rng(devices=[]):",
        "if True:",
        "the global generator is not put back",
    ),
    _v(
        "layer-names-as-prefixes",
        "_modules.py",
        "for name in layout\n                if fnmatchcase(name, pattern)",
        "for name in layout\n                if name == pattern",
        "patterns that are taken for names",
    ),
    _v(
        "only-large-features",
        "_flatness.py",
        "(sizes.max() < LARGE_INPUT and sizes.max() > SMALL_INPUT)",
        "sizes.max() < LARGE_INPUT",
        "features that are too small are not named",
    ),
    _v(
        "validation-not-stratified",
        "_base.py",
        "stratify=data.y if is_classifier(self) else None",
        "stratify=None",
        "rare classes may be missing on one side of the split",
    ),
    _v(
        "first-prior-for-every-batch",
        "_stream.py",
        "self._stream.posterior if self._continues else super()._resolve_prior()",
        "super()._resolve_prior()",
        "every batch has the prior of the first one",
    ),
    _v(
        "noise-of-every-batch",
        "_stream.py",
        "if self._continues and learned:",
        "if False:",
        "a batch learns the noise from its own rows alone",
    ),
    _v(
        "bad-batch-destroys",
        "_stream.py",
        "vars(self).update(before)",
        "pass",
        "a batch that is refused leaves an estimator that is not fitted",
    ),
    _v(
        "batch-compared-with-a-constant",
        "_base.py",
        "if self._continues or not self.loss_function_.is_log_loss:",
        "if not self.loss_function_.is_log_loss:",
        "a batch without a signal is taken for a bad fit",
    ),
    _v(
        "fixed-noise-of-several-targets",
        "_regression.py",
        "        if n_learned:\n",
        "        if True:\n",
        "the scale of noise that is fixed is looked for in what was learned",
    ),
    _v(
        "template-stored-as-it-is",
        "_modules.py",
        'return state | {"module": store_module(self.module)}',
        "return state",
        "tensors of a template among what is stored",
    ),
]
