"""Measuring into a file: continued, never half written, stopped in time. No torch needed."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.cases import each_case

from astra.errors import InputError
from astra.profile.bench_run import BenchProgress, BenchRun, DeviceLostError
from astra.profile.measurement import Measurement
from astra.profile.shapes import measurements_of
from astra.profile.store import Profile, continue_profile, read_profile, write_profile

MACHINE = {"device": "cuda", "gpu": "X1", "torch": "9", "cuda": "1"}
LIST = measurements_of(("gemm", "norm"))[:12]


class Fake:
    """A device whose every measurement takes a second, and which fails where it is told to."""

    def __init__(self, fails: dict[str, Exception | type[BaseException]] | None = None) -> None:
        self.now_s = 0.0
        self.asked: list[str] = []
        self.fails = fails or {}

    def measure(self, one: Measurement) -> dict[str, Any]:
        self.asked.append(one.key)
        self.now_s += 1.0
        if one.key in self.fails:
            raise self.fails[one.key]
        return {"median_s": 1e-3, "spread_fraction": 0.01}


def run(
    path: Path, device: Fake, seconds: float = 1e6, alive: bool = True, retry: bool = False
) -> BenchProgress:
    bench_run = BenchRun(
        path=path,
        profile=continue_profile(path, MACHINE),
        measure=device.measure,
        alive=lambda: alive,
        seconds=seconds,
        clock=lambda: device.now_s,
        retry_errors=retry,
    )
    return bench_run.run(LIST)


def test_what_is_measured_already_is_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    first, second, third = Fake(), Fake(), Fake()
    progress = run(path, first, seconds=5)
    assert (progress.measured, progress.stopped) == (5, "the time is up")
    assert run(path, second).measured == len(LIST) - 5
    assert first.asked + second.asked == [one.key for one in LIST]
    assert run(path, third).measured == 0 and third.asked == []
    profile = read_profile(path)
    assert list(profile.entries) == [one.key for one in LIST] and len(profile.runs) == 3


def test_the_time_budget_keeps_the_order_of_the_list(tmp_path: Path) -> None:
    device = Fake()
    run(tmp_path / "p.json", device, seconds=3)
    assert device.asked == [one.key for one in LIST[:3]]


def test_a_failure_is_written_down_and_the_rest_goes_on(tmp_path: Path) -> None:
    path, bad = tmp_path / "p.json", LIST[2].key
    progress = run(path, Fake({bad: RuntimeError("out of\n memory")}))
    assert (progress.measured, progress.failed) == (len(LIST) - 1, 1)
    assert read_profile(path).errors() == {bad: "RuntimeError: out of memory"}
    again = Fake()
    run(path, again)
    assert again.asked == []
    run(path, again, retry=True)
    assert again.asked == [bad] and not read_profile(path).errors()


def test_a_device_that_is_gone_ends_the_bench_run_and_is_passed_over_later(tmp_path: Path) -> None:
    path, bad = tmp_path / "p.json", LIST[4].key
    with pytest.raises(DeviceLostError, match="illegal"):
        run(path, Fake({bad: RuntimeError("illegal address")}), alive=False)
    assert len(read_profile(path).entries) == 5
    again = Fake()
    run(path, again)
    assert again.asked == [one.key for one in LIST[5:]]


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    progress = run(path, Fake({LIST[3].key: KeyboardInterrupt}))
    assert progress.stopped == "interrupted"
    assert list(read_profile(path).entries) == [one.key for one in LIST[:3]]


def test_a_process_that_does_not_keep_the_file_writes_nothing(tmp_path: Path) -> None:
    path, device = tmp_path / "p.json", Fake()
    bench_run = BenchRun(
        path=path,
        profile=Profile(machine=MACHINE),
        measure=device.measure,
        alive=lambda: True,
        seconds=9,
        clock=lambda: device.now_s,
        writes=False,
    )
    assert bench_run.run(LIST).measured == 9 and list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ the file


def test_a_profile_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    run(path, Fake())
    profile = read_profile(path)
    again = tmp_path / "q.json"
    write_profile(again, profile)
    assert again.read_text() == path.read_text()
    row = next(iter(json.loads(path.read_text())["entries"]))
    assert {"key", "op", "variant", "dtype", "shape", "flops", "bytes", "median_s"} <= set(row)


def test_a_compressed_profile_is_continued_too(tmp_path: Path) -> None:
    path, device = tmp_path / "p.json.gz", Fake()
    run(path, device, seconds=3)
    run(path, device)
    assert device.asked == [one.key for one in LIST] and path.read_bytes()[:2] == b"\x1f\x8b"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="not a profile"):
        read_profile(path)


def test_a_crash_while_writing_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.json"
    run(path, Fake(), seconds=4)
    before = path.read_text()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    profile = read_profile(path)
    profile.entries.clear()
    with pytest.raises(InputError, match=r"p\.json: cannot be written: No space left on device\.$"):
        write_profile(path, profile)
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]


@each_case(
    "text, said",
    [
        ("", "not a profile"),
        ("{", "not a profile"),
        ("[]", "no profile that this version"),
        ('{"schema": "astra-profile/99"}', "astra-profile/99"),
        ('{"schema": "astra-profile/1", "machine": {}, "runs": []}', "entries are missing"),
        ('{"schema": "astra-profile/1", "machine": {}, "runs": [], "entries": [1]}', "no key"),
        (
            '{"schema": "astra-profile/1", "machine": {}, "runs": [], "entries": '
            '[{"key": "gemm/forward/bf16/m=1"}]}',
            "neither median_s nor error",
        ),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        continue_profile(path, MACHINE)
    assert path.read_text() == text


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder that nobody may write to")
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(InputError, match=r"--out /proc/p\.json: cannot be written"):
        continue_profile(Path("/proc/p.json"), MACHINE)


@pytest.mark.parametrize("name", ["gpu", "torch", "device", "cuda"])
def test_a_profile_of_another_machine_is_not_continued(tmp_path: Path, name: str) -> None:
    path = tmp_path / "p.json"
    run(path, Fake(), seconds=2)
    with pytest.raises(InputError, match=f"{name} = .*Give a new file"):
        continue_profile(path, MACHINE | {name: "other"})
