"""A bench run: what is left of the list, one after the other, until the time is up."""

import gc
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from astra.profile.measurement import Measurement
from astra.profile.store import Profile, entry_of, write_profile

SAVE_EVERY_S = 3.0


class DeviceLostError(Exception):
    """The GPU does not answer any more; a new process can go on."""


@dataclass(slots=True, kw_only=True)
class BenchProgress:
    """Where a bench run stands."""

    total: int
    done: int = 0  # of the list, measured now or before
    measured: int = 0  # in this bench run
    failed: int = 0
    seconds: float = 0.0
    now: str = ""
    stopped: str | None = None  # why, when something is left


@dataclass(slots=True, kw_only=True)
class BenchRun:
    """Measures into a file. `measure` times one thing or raises."""

    path: Path
    profile: Profile
    measure: Callable[[Measurement], dict[str, Any]]
    alive: Callable[[], bool]
    seconds: float
    on_progress: Callable[[BenchProgress], None] = lambda _: None
    agree: Callable[[Any], Any] = lambda value: value  # between the processes of one bench run
    clock: Callable[[], float] = time.monotonic
    writes: bool = True  # one process of several writes
    retry_errors: bool = False
    saved_s: float = field(default=0.0, init=False)

    def left(self, wanted: Iterable[Measurement]) -> list[Measurement]:
        """What the file does not have yet. Failures stand, unless they are to be tried again."""
        have = self.profile.entries
        return [
            one
            for one in wanted
            if one.key not in have or (self.retry_errors and "error" in have[one.key])
        ]

    def run(self, wanted: list[Measurement]) -> BenchProgress:
        """Goes through the list; the file is whole and saved however this ends."""
        left = self.left(wanted)
        progress = BenchProgress(total=len(wanted), done=len(wanted) - len(left))
        begin = self.clock()
        note: dict[str, Any] = {"started": datetime.now(UTC).isoformat(timespec="seconds")}
        self.profile.runs.append(note)
        self.save()
        try:
            for one in left:
                progress.seconds = self.clock() - begin
                if self.agree(progress.seconds >= self.seconds):
                    progress.stopped = "the time is up"
                    break
                progress.now = one.key
                self.on_progress(progress)
                self._one(one, progress)
                progress.done += 1
        except KeyboardInterrupt:
            progress.stopped = "interrupted"
        finally:
            progress.seconds = self.clock() - begin
            note |= {
                "seconds": round(progress.seconds, 1),
                "measured": progress.measured,
                "failed": progress.failed,
            }
            self.save()
        self.on_progress(progress)
        return progress

    def _one(self, one: Measurement, progress: BenchProgress) -> None:
        begin = self.clock()
        try:
            result = self.measure(one)
            progress.measured += 1
        except Exception as error:  # an operator this machine cannot run is a finding, not an end
            result = {"error": _in_words(error)}
            progress.failed += 1
        result["spent_s"] = round(self.clock() - begin, 3)
        self.profile.entries.pop(one.key, None)
        self.profile.entries[one.key] = entry_of(one, result)
        if "error" in result:
            gc.collect()
            if not self.alive():
                raise DeviceLostError(f"{one.key}: {result['error']}")
        if self.clock() - self.saved_s > SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        if self.writes:
            write_profile(self.path, self.profile)
        self.saved_s = self.clock()


def _in_words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def gpu_measure(torch: Any, device: str) -> tuple[Callable[[Measurement], dict[str, Any]], Any]:
    """The function that times one measurement on a device, and one that says if it still lives."""
    from astra.profile import elementwise, gemms
    from astra.profile.bench import Bench
    from astra.profile.flops_and_bytes import bytes_of
    from astra.profile.timer import GpuTimer, HostTimer, time_case

    makers = {
        "gemm": gemms.gemm,
        "fp8": gemms.fp8,
        "grouped": gemms.grouped,
        "attention": gemms.attention,
        "norm": elementwise.norm,
        "activation": elementwise.activation,
        "rope": elementwise.rope,
        "residual": elementwise.residual,
        "embedding": elementwise.embedding,
        "loss": elementwise.loss,
        "permute": elementwise.permute,
        "adam": elementwise.adam,
        "copy": elementwise.copy,
        "launch": elementwise.launch,
    }
    on_gpu = device == "cuda"
    if on_gpu:  # a stream of our own: the default one cannot be captured
        torch.cuda.set_stream(torch.cuda.Stream())
    timer = GpuTimer(torch) if on_gpu else HostTimer()
    bench = Bench(torch, device)

    def measure(one: Measurement) -> dict[str, Any]:
        try:
            with warnings.catch_warnings():  # why a kernel was refused is in the error itself
                warnings.simplefilter("ignore")
                case = makers[one.op](bench, one)
                return asdict(time_case(case, timer, bytes_of(one)))
        finally:
            if on_gpu:
                _tidy(torch)

    def alive() -> bool:
        if on_gpu:
            try:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                torch.randn(8, device=device).sum().item()
            except RuntimeError:
                return False
        return True

    return measure, alive


def _tidy(torch: Any) -> None:
    """Gives memory back before it is short; each time would be slow."""
    free, total = torch.cuda.mem_get_info()
    if free < 0.5 * total:
        gc.collect()
        torch.cuda.empty_cache()
