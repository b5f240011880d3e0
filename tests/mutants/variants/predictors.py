"""Wrong variants of predictors."""

from tests.mutants.variant import variants_of

_v = variants_of("predictors/")

VARIANTS = [
    _v(
        "blocks-keep-old-rows",
        "_mlp_blocks.py",
        "        self.features[:-1, len(X) :] = 0\n",
        "",
        "rows of an earlier block stay in a short one",
    ),
    _v(
        "blocks-without-first-intercept",
        "_mlp_blocks.py",
        "self.features = theta.new_ones(",
        "self.features = theta.new_zeros(",
        "the first layer of a network without intercepts",
    ),
    _v(
        "blocks-not-filled",
        "base.py",
        "self.n_rows - len(X)]",
        "0]",
        "a short block is not filled up",
    ),
    _v(
        "linear-variance-without-square",
        "_moments.py",
        "own = predictor.project_chunk(chunk.square(), variance[:, None])",
        "own = predictor.project_chunk(chunk.abs(), variance[:, None])",
        "features enter the variance unsquared",
    ),
    _v(
        "linear-gram-diagonal-without-square",
        "_linear.py",
        "rows_times(h[:, rows], chunk.square())",
        "rows_times(h[:, rows], chunk)",
        "features enter the diagonal unsquared",
    ),
    _v(
        "centred-intercept-sign",
        "_centred.py",
        "moved[-1] = matrix[-1] - self.offset @ matrix[:-1]",
        "moved[-1] = matrix[-1] + self.offset @ matrix[:-1]",
        "the intercept moved the wrong way",
    ),
    _v(
        "centred-diagonal-cross-term",
        "_centred.py",
        "out[:-1] += c * (c * out[-1] - 2 * first)",
        "out[:-1] += c * (c * out[-1] - first)",
        "the cross term without its 2",
    ),
    _v(
        "mlp-prior-size",
        "_mlp.py",
        "gains[i] / math.sqrt(fan_in)",
        "gains[i] / fan_in",
        "1 / inputs for its root",
    ),
    _v(
        "mlp-local-variance-unsquared",
        "_mlp.py",
        "v = h.square() @ variance",
        "v = h.abs() @ variance",
        "|h| for h squared in local reparameterisation",
    ),
    _v(
        "mlp-local-std",
        "_mlp.py",
        "h = m + v.sqrt() * randn",
        "h = m + v * randn",
        "the variance for its root",
    ),
    _v(
        "mlp-copies-off-by-one",
        "_mlp.py",
        "math.lgamma(size + 1) + size * flip",
        "math.lgamma(size) + size * flip",
        "(H - 1)! for H! permutations",
    ),
    _v(
        "factor-variance-forgotten",
        "_moments.py",
        "variances.append(own + _squares(root) if root.shape[-1] else own)",
        "variances.append(own)",
        "the factor's share of the variance of f",
    ),
    _v(
        "factor-variance-gradient",
        "_moments.py",
        "2 * g_variance[:, None] * root",
        "g_variance[:, None] * root",
        "derivative of a square without its 2",
    ),
    _v(
        "partial-predictor-by-count",
        "_partial.py",
        "self._random = full.positions(self.layout)",
        "self._random = torch.arange(self.layout.size)",
        "random blocks taken to come first in theta",
    ),
    _v(
        "full-moments-gradient-of-one-triangle",
        "_moments.py",
        "both = 2 * g_variance if g_variance.ndim == 1 else g_variance + g_variance.mT",
        "both = g_variance",
        "half of the derivative of the variances in their root",
    ),
    _v(
        "passes-activation-slope",
        "_passes.py",
        "self._multiply(out, units)",
        "pass",
        "the derivative of the activation left out",
    ),
    _v(
        "passes-tanh-of-half",
        "_passes.py",
        "torch.sigmoid(x.mul_(2), out=out)",
        "torch.sigmoid(x, out=out)",
        "tanh of half the argument",
    ),
    _v(
        "scale-starts-at-random",
        "_mlp.py",
        "last.view(-1, self.n_outputs)[:, self.flat_outputs] = 0",
        "last.view(-1, self.n_outputs)[:, []] = 0",
        "the log of a scale that is not 0 at the start",
    ),
]
