"""How long a call takes: laps of calls over rotating operands, medians and their spread.

A lap runs the call on one copy of its operands after the other, with so many copies that a call
finds none of its own in the cache; that is what a flush between calls is for, without the pause
that would let the GPU rest. Short calls are captured as a CUDA graph, so that the host does not
show. Laps follow each other without a pause: the GPU is under steady load, as in training.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles
from typing import Any, Protocol

Run = Callable[[], object]

LAP_S = 2e-3
WARM_S = 0.06
TIMED_S = 0.12
CAPTURE_BELOW_S = 2e-3  # as the host sees it: a backward pass may be a tenth of that on the GPU
CAPTURED_CALLS = 64
CAPTURED_S = 5e-3
MAX_COPIES = 32
MIN_LAPS = 5
MAX_LAPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCase:
    """Something to time. `make` gives a call with fresh operands of its own."""

    make: Callable[[], Run]
    capture: bool = True
    rotate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    median_s: float
    least_s: float
    spread_fraction: float  # distance of the quartiles over the median
    laps: int
    calls: int  # in a lap
    copies: int
    captured: bool
    cold: bool  # the operands of a call had left the cache


class Timer(Protocol):
    """Runs laps on a device and says how long each took."""

    cache_bytes: float

    def spare_bytes(self) -> float: ...

    def laps_s(self, lap: Run, count: int) -> list[float]: ...

    def capture(self, lap: Run) -> Run | None: ...


class HostTimer:
    """The CPU: a call is over when it returns."""

    cache_bytes = 0.0

    def spare_bytes(self) -> float:
        return 4e9

    def laps_s(self, lap: Run, count: int) -> list[float]:
        found = []
        for _ in range(count):
            begin = time.perf_counter()
            lap()
            found.append(time.perf_counter() - begin)
        return found

    def capture(self, lap: Run) -> Run | None:
        del lap
        return None


class GpuTimer:
    """A CUDA device, by events on the current stream."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.cache_bytes = float(getattr(properties, "L2_cache_size", 64 << 20))

    def spare_bytes(self) -> float:
        free, _ = self.torch.cuda.mem_get_info()
        held = self.torch.cuda.memory_reserved() - self.torch.cuda.memory_allocated()
        return float(free + held)

    def laps_s(self, lap: Run, count: int) -> list[float]:
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            lap()
            event.record()
        self.torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e-3 for begin, end in pairwise(events)]

    def capture(self, lap: Run) -> Run | None:
        """The lap as a graph; None where the call cannot be captured.

        torch's own context would collect garbage and empty the cache each time: too slow here.
        """
        torch = self.torch
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            graph.capture_begin()
            try:
                lap()
            finally:
                graph.capture_end()
        except RuntimeError:  # it waits for the device, or allocates outside of torch
            torch.cuda.synchronize()
            torch.randn(8, device="cuda")  # raises if the failure left torch believing it captures
            return None
        replay: Run = graph.replay
        return replay


def time_case(case: TimedCase, timer: Timer, moved_bytes: float) -> Timing:
    """Times one case; whatever it raises is the caller's to record."""
    first = case.make()
    first()
    first()
    one_s = min(timer.laps_s(first, 3))
    copies = copies_for(case, timer, moved_bytes) if one_s < 0.05 else 1
    runs = [first, *(case.make() for _ in range(copies - 1))]
    for run in runs[1:]:
        run()
    short = case.capture and one_s < CAPTURE_BELOW_S
    fewest = max(min(CAPTURED_CALLS, math.ceil(CAPTURED_S / one_s)) if short else 1, copies)
    calls = [runs[place % copies] for place in range(max(math.ceil(LAP_S / one_s), fewest))]

    def lap() -> None:
        for call in calls:
            call()

    replay = timer.capture(lap) if short else None
    timed = replay or lap
    timed()
    lap_s = max(min(timer.laps_s(timed, 2)), 1e-7)
    timer.laps_s(timed, min(max(math.ceil(WARM_S / lap_s), 1), 400))
    count = min(max(math.ceil(TIMED_S / lap_s), MIN_LAPS if lap_s < 0.2 else 3), MAX_LAPS)
    laps = [seconds / len(calls) for seconds in timer.laps_s(timed, count)]
    low, middle, high = quantiles(laps, n=4)
    return Timing(
        median_s=median(laps),
        least_s=min(laps),
        spread_fraction=(high - low) / middle,
        laps=count,
        calls=len(calls),
        copies=copies,
        captured=replay is not None,
        cold=copies * moved_bytes > timer.cache_bytes,
    )


def copies_for(case: TimedCase, timer: Timer, moved_bytes: float) -> int:
    """Copies whose operands together are twice the cache, where memory allows."""
    if not case.rotate or timer.cache_bytes == 0:
        return 1
    wanted = math.ceil(2 * timer.cache_bytes / max(moved_bytes, 1.0))
    room = int(0.5 * timer.spare_bytes() / max(moved_bytes, 1.0))
    return max(min(wanted, MAX_COPIES, room), 1)
