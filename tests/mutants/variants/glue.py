"""Wrong variants of the modules at the top of skvi."""

from tests.mutants.variant import variants_of

_v = variants_of("")

VARIANTS = [
    _v(
        "balanced-weights-without-classes",
        "_classes.py",
        "counts.sum() / (n_classes * counts[present])",
        "counts.sum() / counts[present]",
        "balanced weights that are n_classes times too large",
    ),
    _v(
        "balanced-weights-by-rows",
        "_classes.py",
        "counts = np.bincount(codes, sample_weight, minlength=n_classes)",
        "counts = np.bincount(codes, minlength=n_classes)",
        "class frequencies by rows, whatever their weights",
    ),
    _v(
        "class-weight-replaces-sample-weight",
        "_classes.py",
        "return weight if sample_weight is None else weight * sample_weight",
        "return weight",
        "sample weights replaced by class weights",
    ),
    _v(
        "jacobian-of-target-sign",
        "_regressors.py",
        "constant = -float(w.sum()) * math.log(scale)",
        "constant = float(w.sum()) * math.log(scale)",
        "sign of the Jacobian -n log s",
    ),
    _v(
        "jacobian-of-target-rows",
        "_regressors.py",
        "-float(w.sum()) * math.log(scale)",
        "-len(y) * math.log(scale)",
        "rows for their weights in the Jacobian",
    ),
    _v(
        "interval-tails",
        "_regressors.py",
        "tail = (1 - coverage) / 2",
        "tail = 1 - coverage",
        "the whole tail on each side",
    ),
    _v(
        "target-scale-unweighted",
        "_regressors.py",
        "float(np.sqrt(np.average(squared, weights=w)))",
        "float(np.sqrt(np.average(squared)))",
        "the deviation of the target without weights",
    ),
    _v(
        "learning-rate-share",
        "_variational.py",
        "rate = self._default_learning_rate * self.objective_.rate_share",
        "rate = self._default_learning_rate / self.objective_.rate_share",
        "objectives with noisy gradients get longer steps",
    ),
    _v(
        "plug-in-forgotten",
        "_evidence.py",
        "plug_in=target.learnt + ",
        "plug_in=() + ",
        "learnt hyperparameters are not named",
    ),
    _v(
        "evidence-never-generalised",
        "_evidence.py",
        "plain = self.loss_function_.is_log_loss and not weighted",
        "plain = self.loss_function_.is_log_loss or not weighted",
        "a generalised evidence that says it is one",
    ),
]
