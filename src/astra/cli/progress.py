"""What a search is doing, on one line of standard error that moves while it takes longer."""

from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from astra.search.result import Progress

SILENT_S = 0.8  # most answers are there by then
UPDATE_INTERVAL_S = 0.25
CLEAR_LINE = "\r\x1b[K"


class ProgressLine:
    """Shows how many candidates were looked at, the best step so far, and the seconds gone by.

    A thread writes, not the search: long before the first candidate is counted, layers are priced,
    and a line that stands still tells nobody whether anything happens.
    """

    def __init__(self, stream: TextIO, first: str) -> None:
        """`first`: what is done before anything is counted."""
        self.stream, self.first = stream, first
        self.progress: Progress | None = None
        self.shown = False
        self.over, self.started = Event(), monotonic()
        self.thread = Thread(target=self._show, daemon=True)

    def __call__(self, progress: "Progress") -> None:
        self.progress = progress

    def __enter__(self) -> "ProgressLine":
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.over.set()
        self.thread.join()
        if self.shown:
            self.stream.write(CLEAR_LINE)
            self.stream.flush()

    def _show(self) -> None:
        wait_s = SILENT_S
        while not self.over.wait(wait_s):
            seconds_gone = monotonic() - self.started
            doing = _words(self.progress) if self.progress else self.first
            self.shown, wait_s = True, UPDATE_INTERVAL_S
            self.stream.write(f"{CLEAR_LINE}astra: {doing} ... {seconds_gone:.0f} s\r")
            self.stream.flush()


def _words(progress: "Progress") -> str:
    from astra.report.priced_plan import seconds

    words = f"{progress.candidates:,} candidates"
    if progress.best_step_s is not None:
        words += f", best step {seconds(progress.best_step_s)}"
    if progress.gap_fraction is not None:
        words += f", at most {progress.gap_fraction:.1%} from the optimum"
    return words
