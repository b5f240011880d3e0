"""Black-box alpha: a power mean of the likelihood, row by row."""

from numbers import Real
from typing import Any

import torch

from skvi.objectives.base import Objective
from skvi.targets._least_squares import with_free_energy
from skvi.utils._validation import Interval, StrOptions


class AlphaEnergy(Objective):
    r"""Alpha-energy (black-box alpha): a row-wise generalization of the ELBO.

    .. math:: E_\alpha(q) = -\frac{1}{\alpha} \sum_i \log E_q\left[\exp\left(
              -\alpha \ell_i(\theta) + \frac{\alpha}{n}
              \log\frac{\pi(\theta)}{q(\theta)}\right)\right]

    minimized, with the n rows' losses, for the log loss ``-log p(y_i | theta)``. For
    many rows it is

    .. math:: E_\alpha(q) \approx \mathrm{KL}(q \| \pi) - \frac{1}{\alpha} \sum_i
              \log E_q\left[e^{-\alpha \ell_i(\theta)}\right],

    from which it differs by O(alpha / n). Both tend to minus the ELBO as alpha -> 0:
    variational inference is at alpha = 0 *here*, at alpha = 1 of `RenyiBound`, and at
    alpha = 1 of the divergences ``RenyiDivergence`` and ``AlphaDivergence``. A larger
    alpha only requires that *some* parameters under q explain each row, and gives wider
    posteriors; at alpha = 1 the large-n form contains the log predictive density of
    every training row.

    Parameters
    ----------
    alpha : float, default=0.5
        Positive. 0 is refused: it is `ELBO`.
    form : {"large_n", "exact"}, default="large_n"
        "large_n" is the second formula: for a linear model and a normal q it is
        computed and optimized without noise, for a network with locally sampled
        activations, and every factor except the likelihood is in closed form. "exact"
        is the first, always from draws.
    gradient : {"auto", "reparam"}, default="auto"
        "auto" needs no draws for a linear model, if the divergence between q and the
        prior has a closed form. "reparam" trains on draws of theta in any case.

    Attributes
    ----------
    direction : "estimate"
        Minus the energy is at least the ELBO of the same q, and close to log p(D) for
        a good q, but it is neither a lower nor an upper bound. So ``objective_value_``
        of an estimator is *minus* the energy, comparable with ``lower_bound_``, which
        is the ELBO, a bound.

    Notes
    -----
    For a row of weight w the term counts w times, and n is the sum of the weights, so
    that weights are repetitions. A minibatch is scaled by n over its rows outside the
    logarithm; the 1 / n inside stays that of all rows. Minibatches cause no bias;
    S draws do: the log of a mean of draws is below the log of its expectation, so
    that the energy is estimated too high, by O(alpha / S), with the ELBO at S = 1.
    This holds for the draws of a network, not for linear models with "auto".

    Another loss than the log loss gives the same power mean of ``exp(-loss)``.

    References
    ----------
    Hernández-Lobato et al. (2016), *Black-box alpha-divergence minimization*, eq. 12.
    Li and Gal (2017), *Dropout inference in Bayesian neural networks with
    alpha-divergences*, eq. 4, for the large-n form.

    Examples
    --------
    >>> from skvi.objectives import AlphaEnergy
    >>> AlphaEnergy(alpha=1.0)
    AlphaEnergy(alpha=1.0)
    >>> AlphaEnergy().kind, AlphaEnergy().direction
    ('rows', 'estimate')
    """

    _parameter_constraints: dict = {
        "alpha": [Interval(Real, 0, None, closed="neither")],
        "form": [StrOptions({"large_n", "exact"})],
        "gradient": [StrOptions({"auto", "reparam"})],
    }
    kind, direction = "rows", "estimate"

    min_draws = 2

    def __init__(
        self, alpha: float = 0.5, form: str = "large_n", gradient: str = "auto"
    ) -> None:
        self.alpha = alpha
        self.form = form
        self.gradient = gradient

    @property
    def needs_draws(self) -> bool:
        """Whether theta must be drawn, whatever the target and q can do."""
        return self.form == "exact" or self.gradient != "auto"

    def exists(self, target: Any, posterior: Any) -> bool | None:
        """Whether the energy is finite: for alpha up to n, by Jensen.

        Parameters
        ----------
        target : Target
        posterior : Posterior

        Returns
        -------
        bool or None
            None for the exact form above n, where it depends on q.
        """
        if self.form == "large_n" or self.alpha <= target.rows.total_weight:
            return True
        return None

    def training_target(self, target: Any) -> Any:
        """Free energies for expected losses; see `Objective.training_target`."""
        return with_free_energy(target, self.alpha)

    def surrogate(
        self,
        target: Any,
        posterior: Any,
        divergence: Any,
        rows: torch.Tensor | None,
        n_draws: int,
        generator: torch.Generator,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Energy; see `Objective.surrogate`."""
        free = self.training_target(target)
        is_normal = posterior.as_normal() is not None
        if (
            self.needs_draws
            or not is_normal
            or not divergence.has_closed_form(target.prior)
        ):
            value = self._from_draws(
                target, posterior, divergence, rows, n_draws, generator
            )
        else:
            if target.has_design and not len(target.hyper):
                value = free.expected_loss(posterior, rows)
            else:
                losses = target.sampled_losses(posterior, rows, n_draws, generator)
                value = target.total_loss(free.loss.reduce(losses), rows)
            value = value + divergence.closed_form(posterior.normal(), target.prior)
        return value, value.detach()

    def _from_draws(
        self,
        target: Any,
        posterior: Any,
        divergence: Any,
        rows: torch.Tensor | None,
        n_draws: int,
        generator: torch.Generator,
    ) -> torch.Tensor:
        draw = posterior.draw(n_draws, generator)
        theta, log_q = draw.theta, draw.log_q
        log_prior = target.prior.log_prob(theta)
        losses, free = target.pointwise(theta, rows), self.training_target(target).loss
        if self.form == "exact":
            log_ratio = (log_prior - log_q) / target.rows.total_weight
            return target.total_loss(free.reduce(losses, log_ratio), rows)
        value = target.total_loss(free.reduce(losses), rows)
        return value + divergence.monte_carlo(log_q, log_prior)
