"""Wrong variants of the ground: normals and layouts."""

from tests.mutants.variant import variants_of

_v = variants_of("base/")

VARIANTS = [
    _v(
        "normal-transform-transposed",
        "_normal_form.py",
        "return self.mean + eps @ self.scale.T",
        "return self.mean + eps @ self.scale",
        "the transpose of the Cholesky factor",
    ),
    _v(
        "normal-variance-of-columns",
        "_normal_form.py",
        "return squared if self.is_diagonal else squared.sum(1)",
        "return squared if self.is_diagonal else squared.sum(0)",
        "sums over columns of the Cholesky factor",
    ),
    _v(
        "normal-entropy-constant",
        "_normal_form.py",
        "0.5 * len(self.mean) * (1 + LOG_2PI)",
        "0.5 * len(self.mean) * LOG_2PI",
        "the entropy without its 1/2 a dimension",
    ),
    _v(
        "normal-normalizer-without-half",
        "_normal_form.py",
        "return self.half_log_det + 0.5 * len(self.mean) * LOG_2PI",
        "return self.half_log_det + len(self.mean) * LOG_2PI",
        "2 pi without its square root",
    ),
    _v(
        "normal-draws-of-unit-width",
        "_normal_form.py",
        "return self.transform(eps)",
        "return self.mean + eps[:, : len(self.mean)]",
        "noise that is shifted, and not scaled",
    ),
    _v(
        "woodbury-sign",
        "_normal_form.py",
        "return z.square().sum(1) - lower.square().sum(0)",
        "return z.square().sum(1) + lower.square().sum(0)",
        "sign of Woodbury's correction",
    ),
    _v(
        "capacity-without-cross-terms",
        "_normal_form.py",
        "torch.linalg.cholesky(identity + unit.T @ unit)",
        "torch.linalg.cholesky(identity + torch.diag((unit.T @ unit).diagonal()))",
        "the capacity matrix taken as diagonal",
    ),
    _v(
        "jacobian-sign",
        "_layout.py",
        "total = total + theta[:, block.slice].sum(1)",
        "total = total - theta[:, block.slice].sum(1)",
        "the reciprocal of the Jacobian",
    ),
]
