"""Wrong variants of the ground: normals and layouts."""

from tests.mutants.variant import variants_of

_v = variants_of("base/")

VARIANTS = [
    _v(
        "normal-transform-transposed",
        "_normal_form.py",
        "        return rows @ matrix.T",
        "        return rows @ matrix",
        "the transpose of the Cholesky factor",
    ),
    _v(
        "normal-variance-of-columns",
        "_normal_form.py",
        "return squared.sum(-1) if self._has_matrix else squared",
        "return squared.sum(-2) if self._has_matrix else squared",
        "sums over columns of the Cholesky factor",
    ),
    _v(
        "normal-entropy-constant",
        "_normal_form.py",
        "0.5 * self.size * (1 + LOG_2PI)",
        "0.5 * self.size * LOG_2PI",
        "the entropy without its 1/2 a dimension",
    ),
    _v(
        "normal-normalizer-without-half",
        "_normal_form.py",
        "return self.half_log_det + 0.5 * self.size * LOG_2PI",
        "return self.half_log_det + self.size * LOG_2PI",
        "2 pi without its square root",
    ),
    _v(
        "normal-draws-of-unit-width",
        "_normal_form.py",
        "return self.transform(eps)",
        "return self.mean + eps[:, : self.size]",
        "noise that is shifted, and not scaled",
    ),
    _v(
        "woodbury-sign",
        "_normal_form.py",
        "return z.square().sum(-1) - inner.square().sum(-1)",
        "return z.square().sum(-1) + inner.square().sum(-1)",
        "sign of Woodbury's correction",
    ),
    _v(
        "capacity-without-cross-terms",
        "_normal_form.py",
        "torch.linalg.cholesky(identity + unit.mT @ unit)",
        "torch.linalg.cholesky(identity + torch.diag((unit.mT @ unit).diagonal()))",
        "the capacity matrix taken as diagonal",
    ),
    _v(
        "jacobian-sign",
        "_layout.py",
        "total = total + logs.sum(1)",
        "total = total - logs.sum(1)",
        "the reciprocal of the Jacobian",
    ),
    _v(
        "softplus-jacobian",
        "_bijections.py",
        "return torch.nn.functional.logsigmoid(x)",
        "return torch.nn.functional.logsigmoid(-x)",
        "the derivative of the softplus at minus its argument",
    ),
    _v(
        "positions-sorted",
        "_layout.py",
        "*(every[self[name].slice] for name in names)]",
        "*(every[self[name].slice] for name in sorted(names))]",
        "positions of blocks in another order than asked for",
    ),
    _v(
        "fingerprint-without-features",
        "_rows.py",
        "parts = [*_stored(X), *(v",
        "parts = [*(v",
        "checksums of targets and weights alone",
    ),
    _v(
        "chunks-by-results-alone",
        "_rows.py",
        "per_row = max(width, self.width * CACHE_ELEMENTS // CHUNK_ELEMENTS)",
        "per_row = width",
        "wide features widened in chunks of as many rows as narrow ones",
    ),
    _v(
        "log-det-over-all-normals",
        "_normal_form.py",
        "value = diagonal.log().sum(-1)",
        "value = diagonal.log().sum()",
        "determinants of normals with leading axes in one sum",
    ),
]
