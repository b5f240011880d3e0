"""What a search says while it runs: every candidate, and the seconds that are left."""

from collections.abc import Sequence

from joblib import effective_n_jobs

from skvi.model_selection._work import Outcome

__all__ = ["SearchProgress"]


class SearchProgress:
    """Lines on the terminal, or none."""

    def __init__(
        self, names: Sequence[str], verbose: bool | int, n_jobs: int | None
    ) -> None:
        self.names, self.verbose = names, verbose
        self._n_jobs = effective_n_jobs(n_jobs)
        self._rows: Sequence[int] = []
        self._seconds: list[float] = []

    def begin(
        self, what: str, rows: Sequence[int], seconds: float | None = None
    ) -> None:
        """Announce tasks, one for each of these candidates, and a forecast."""
        self._rows, self._seconds = rows, []
        forecast = "" if seconds is None else f", up to about {self._wall(seconds)}"
        self.write(f"{len(rows)} {what}{forecast}")

    def __call__(self, outcome: Outcome) -> None:
        """Report the next task, and how long the others will take at this rate."""
        row, n_tasks = self._rows[len(self._seconds)], len(self._rows)
        self._seconds.append(outcome.seconds)
        n_done = len(self._seconds)
        text = f"{n_done} of {n_tasks}, {self.names[row]}: {outcome.seconds:.2g} s"
        if outcome.error:
            text += f", {outcome.message}"
        if n_done < n_tasks:
            mean = sum(self._seconds) / n_done
            text += f"; about {self._wall(mean * (n_tasks - n_done))} more"
        self.write(text)

    def write(self, text: str) -> None:
        """Write a line."""
        if self.verbose:
            print(f"[EvidenceSearch] {text}", flush=True)  # noqa: T201

    def _wall(self, seconds: float) -> str:
        """Seconds of all processes, as those of the clock on the wall."""
        return f"{float(f'{seconds / self._n_jobs:.2g}'):g} s"
