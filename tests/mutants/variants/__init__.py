"""The wrong variants that matter most, by layers of skvi."""

from tests.mutants.variants import estimators, machinery, parts

VARIANTS = [*parts.VARIANTS, *machinery.VARIANTS, *estimators.VARIANTS]
