"""What a search is doing, on one line of standard error that moves while it takes longer."""

from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from astra.search.result import Progress

SILENT_S = 0.6  # most answers are there by then; with the start of the process it is a second
UPDATES_PER_S = 4.0


class ProgressLine:
    """Shows how many candidates were looked at, the best step so far, and the seconds gone by.

    A thread of rich's draws, not the search: long before the first candidate is counted, layers are
    priced, and a line that stands still tells nobody whether anything happens.
    """

    def __init__(self, stream: TextIO, first: str) -> None:
        """`first`: what is done before anything is counted."""
        from rich.live import Live

        from astra.report.console import new_console

        self.now: Progress | str = first
        self.started = monotonic()
        self.live = Live(
            get_renderable=self._line,
            console=new_console(file=stream, markup=False),
            refresh_per_second=UPDATES_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self.timer = Timer(SILENT_S, self.live.start, [True])
        self.timer.daemon = True

    def __call__(self, now: "Progress | str") -> None:
        self.now = now

    def __enter__(self) -> "ProgressLine":
        self.timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()
        self.timer.join()
        self.live.stop()

    def _line(self) -> str:
        doing = self.now if isinstance(self.now, str) else _words(self.now)
        return f"astra: {doing} ... {monotonic() - self.started:.0f} s"


def _words(progress: "Progress") -> str:
    from astra.report.priced_plan import seconds

    words = f"{progress.candidates:,} candidates"
    if progress.best_step_s is not None:
        words += f", best step {seconds(progress.best_step_s)}"
    if progress.gap_fraction is not None:
        words += f", at most {progress.gap_fraction:.1%} from the optimum"
    return words
