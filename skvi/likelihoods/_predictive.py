"""The part of a likelihood that predictions of continuous targets need."""

from typing import Any

import torch


class Predictive:
    """Mixin of the methods that predictions of targets call, as far as implemented."""

    def _lacks(self, method: str, answer: str) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} has no {method}, which {answer} of targets need."
        )

    @property
    def _length_scale(self) -> float:
        """Distance in f over which the slope of the log density changes."""
        raise NotImplementedError

    def variance(self, f: torch.Tensor) -> torch.Tensor:
        """Variance of y given f.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)

        Returns
        -------
        Tensor of shape (S, n)
            In squared units of y; infinite if there is none.
        """
        raise self._lacks("variance", "standard deviations")

    def cdf(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probability of a target less than y given f.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)
        y : Tensor of shape (n,)

        Returns
        -------
        Tensor of shape (S, n)
        """
        raise self._lacks("cdf", "quantiles and intervals")

    def quantile(self, f: torch.Tensor, level: float) -> torch.Tensor:
        """Quantile of y given f.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)
        level : float
            Probability in (0, 1).

        Returns
        -------
        Tensor of shape (S, n)
            In units of y.
        """
        raise self._lacks("quantile", "quantiles and intervals")

    def quantile_range(
        self, f: torch.Tensor, level: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers between which quantiles of y given f are, equal if these are known.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)
        level : float
            Probability in (0, 1).

        Returns
        -------
        low, high : Tensor of shape (S, n)
        """
        found = self.quantile(f, level)
        return found, found

    #: Of how many terms a distribution function is a sum.
    _cdf_terms = 1

    def _resolution(self, f: torch.Tensor) -> torch.Tensor:
        """Distance in f over which predictions are nearly linear: the node spacing.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)

        Returns
        -------
        Tensor of shape (S, n)
            `_length_scale`, by default.
        """
        return torch.full_like(f[..., 0], self._length_scale)

    def _by_target(self, f: torch.Tensor) -> list[tuple[Any, torch.Tensor]]:
        """Split a likelihood of several targets into those of single ones.

        Parameters
        ----------
        f : Tensor of shape (S, n, K)

        Returns
        -------
        list of (Likelihood, Tensor)
            For each target, with its columns of f; by default y is one target.
        """
        return [(self, f)]
