"""Ctrl-C and SIGTERM while something is searched: the first asks for the best so far."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether the user has asked to stop; asked again, the program ends at once."""

    def __init__(self) -> None:
        self.is_made = False

    def __call__(self) -> bool:
        return self.is_made

    def make(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.is_made:
            raise KeyboardInterrupt
        self.is_made = True


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Hears both signals while the block runs."""
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, request.make)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
