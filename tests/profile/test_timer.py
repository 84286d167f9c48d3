"""How laps are made up: copies, captured calls, medians. No torch needed."""

from collections.abc import Callable

import pytest

from astra.profile.timer import MAX_COPIES, Run, TimedCase, copies_for, time_case


class Simulated:
    """A GPU on which a call takes `call_s`, and the host `host_s` more unless it is captured."""

    cache_bytes = 50e6

    def __init__(self, call_s: float, host_s: float = 0.0) -> None:
        self.call_s, self.host_s = call_s, host_s
        self.calls, self.made, self.captured = 0, 0, 0
        self.seen: list[int] = []

    def spare_bytes(self) -> float:
        return 10e9

    def make(self) -> Run:
        self.made += 1
        name = self.made

        def call() -> None:
            self.calls += 1
            self.seen.append(name)

        return call

    def laps_s(self, lap: Run, count: int) -> list[float]:
        found = []
        for _ in range(count):
            before = self.calls
            lap()
            each = self.call_s + (0.0 if getattr(lap, "graph", False) else self.host_s)
            found.append((self.calls - before) * each)
        return found

    def capture(self, lap: Callable[[], object]) -> Run | None:
        self.captured += 1

        def replay() -> None:
            lap()

        replay.graph = True  # type: ignore[attr-defined]
        return replay


@pytest.mark.parametrize("call_s", [1e-6, 1e-4, 1e-2, 0.5])
def test_the_median_is_the_time_of_one_call(call_s: float) -> None:
    device = Simulated(call_s)
    timing = time_case(TimedCase(make=device.make), device, 1e9)
    assert timing.median_s == pytest.approx(call_s) and timing.laps >= 3
    assert timing.spread_fraction == pytest.approx(0.0, abs=1e-9)


def test_short_calls_are_captured_so_that_the_host_does_not_show() -> None:
    device = Simulated(2e-6, host_s=2e-5)
    timing = time_case(TimedCase(make=device.make), device, 1e6)
    assert timing.captured and timing.median_s == pytest.approx(2e-6)
    plain = time_case(TimedCase(make=device.make, capture=False), device, 1e6)
    assert not plain.captured and plain.median_s == pytest.approx(2.2e-5)


def test_a_short_kernel_behind_a_slow_host_is_captured_too() -> None:
    device = Simulated(2e-5, host_s=1e-3)
    timing = time_case(TimedCase(make=device.make), device, 1e9)
    assert timing.captured and timing.median_s == pytest.approx(2e-5)


def test_long_calls_are_not_captured() -> None:
    device = Simulated(3e-3)
    assert not time_case(TimedCase(make=device.make), device, 1e6).captured
    assert device.captured == 0


def test_operands_rotate_until_they_fill_the_cache_twice() -> None:
    device = Simulated(1e-5)
    timing = time_case(TimedCase(make=device.make), device, 20e6)
    assert timing.copies == device.made == 5 and timing.cold
    assert device.seen[-5:] in [[*range(n, 6), *range(1, n)] for n in range(1, 6)]


def test_copies_stay_within_bounds() -> None:
    device = Simulated(1e-5)
    case = TimedCase(make=device.make)
    assert copies_for(case, device, 1.0) == MAX_COPIES
    assert copies_for(case, device, 9e9) == 1
    assert copies_for(TimedCase(make=device.make, rotate=False), device, 1.0) == 1
    assert not time_case(case, device, 1e3).cold
