"""Measures this machine's GPU, and under torchrun its links, into a file.

Kernels of training are timed by operator and shape, the broad grid first, until the list or the
time is over. A FILE that exists is continued. torch is needed, and a GPU; on one process kernels
are measured, under torchrun the collectives between the GPUs.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astra.profile.bench_run import BenchProgress, BenchRun

EXAMPLES = """\
examples:
  astra profile --out h200.json
  astra profile --out h200.json --minutes 9
  astra profile --out h200.json --only gemm,attention
  torchrun --nproc-per-node 8 -m astra profile --out h200.json
  astra profile --list --only grouped
  astra profile --out try.json --device cpu --minutes 0.5
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", help="the profile; one that exists is continued")
    parser.add_argument(
        "--minutes", metavar="N", default="30", help="stop after this long; default 30"
    )
    parser.add_argument("--only", metavar="NAME,...", help="families of operators: gemm,attention")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu only tries the command out"
    )
    parser.add_argument("--retry-errors", action="store_true", help="try what failed once more")
    parser.add_argument("--list", action="store_true", help="show what would be measured")


def run(options: argparse.Namespace) -> int:
    from astra.errors import InputError
    from astra.profile.shapes import chosen_families

    families = chosen_families(options.only)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if options.list:
        return _list(families, world, options.json)
    if options.out is None:
        raise InputError("profile: --out is missing: the file to write. Try --out my-gpu.json.")
    if world > 1:
        return _run_links(options, families, world)
    return _run_kernels(options, families)


def _minutes(text: str) -> float:
    from math import isfinite

    from astra.errors import InputError, shorten

    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not (isfinite(minutes) and 0 < minutes <= 100_000):
        raise InputError(f"--minutes {shorten(text)}: a number above 0 was expected. Try 30.")
    return minutes


def _list(families: tuple[str, ...], world: int, as_json: bool) -> int:
    from astra.profile.shapes import measurements_of

    found = measurements_of(families, world, int(os.environ.get("LOCAL_WORLD_SIZE", world)))
    if as_json:
        rows = [{"key": one.key, "wave": one.wave} for one in found]
        sys.stdout.write(json.dumps({"measurements": rows}, indent=1) + "\n")
    else:
        sys.stdout.writelines(f"{one.wave}  {one.key}\n" for one in found)
    return 0


def _run_kernels(options: argparse.Namespace, families: tuple[str, ...]) -> int:
    from astra.errors import InputError
    from astra.profile.bench_run import BenchRun, gpu_measure
    from astra.profile.machine import describe, load_torch, under_load
    from astra.profile.shapes import measurements_of
    from astra.profile.store import continue_profile

    minutes = _minutes(options.minutes)
    wanted = measurements_of(families, small=options.device == "cpu")
    if not wanted:
        raise InputError(
            f"--only {options.only}: links are measured between several processes. "
            "Try `torchrun --nproc-per-node 8 -m astra profile --out FILE`."
        )
    torch = load_torch(options.device)
    path = Path(options.out)
    profile = continue_profile(path, describe(torch, options.device))
    measure, alive = gpu_measure(torch, options.device)
    if options.device == "cuda":
        profile.machine["under_load"] = under_load(torch)
    bench_run = BenchRun(
        path=path,
        profile=profile,
        measure=measure,
        alive=alive,
        seconds=60 * minutes,
        retry_errors=options.retry_errors,
    )
    return _measure(bench_run, wanted, options.json)


def _measure(bench_run: "BenchRun", wanted: list[Any], as_json: bool) -> int:
    """Runs a bench_run, shows how it goes, and says how it went."""
    from astra.profile.bench_run import DeviceLostError

    with _progress_display(len(wanted)) as on_progress:
        bench_run.on_progress = on_progress
        try:
            progress = bench_run.run(wanted)
        except DeviceLostError as error:
            sys.stderr.write(
                f"astra: the GPU stopped answering at {error}. What was measured is in "
                f"{bench_run.path}; the same command goes on behind that measurement.\n"
            )
            return 1
    _report(bench_run.path, progress, as_json)
    return 130 if progress.stopped == "interrupted" else 0


def _report(path: Path, progress: "BenchProgress", as_json: bool) -> None:
    left = progress.total - progress.done
    if as_json:
        answer = {
            "file": str(path),
            "measured": progress.measured,
            "failed": progress.failed,
            "left": left,
            "seconds": round(progress.seconds, 1),
            "stopped": progress.stopped,
        }
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
        return
    rest = f"{left:,} are left ({progress.stopped}); the same command continues." if left else ""
    sys.stdout.write(
        f"{path}: {progress.measured:,} measured, {progress.failed:,} failed in "
        f"{progress.seconds:,.0f} s. {rest}".rstrip()
        + "\n"
    )


def _progress_display(total: int) -> "AbstractContextManager[Callable[[BenchProgress], None]]":
    """A bar where somebody looks and rich is there, else a line now and then."""
    try:
        from astra.report.console import new_console

        console = new_console(stderr=True)
    except ImportError:
        return nullcontext(_progress_lines())
    return _ProgressBar(console, total) if console.is_terminal else nullcontext(_progress_lines())


def _progress_lines() -> "Callable[[BenchProgress], None]":
    last_line_s = -1e9

    def on_progress(progress: "BenchProgress") -> None:
        nonlocal last_line_s
        if progress.seconds - last_line_s >= 15:
            last_line_s = progress.seconds
            sys.stderr.write(
                f"astra: {progress.seconds:6.0f} s  {progress.done:,} of {progress.total:,}, "
                f"{progress.failed:,} failed  {progress.now}\n"
            )

    return on_progress


class _ProgressBar(AbstractContextManager["Callable[[BenchProgress], None]"]):
    """rich's bar on standard error."""

    def __init__(self, console: Any, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Rich

        self.rich = Rich(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
        )
        self.task = self.rich.add_task("", total=total)

    def __enter__(self) -> "Callable[[BenchProgress], None]":
        self.rich.start()
        return lambda progress: self.rich.update(
            self.task, completed=progress.done, description=progress.now
        )

    def __exit__(self, *_: object) -> None:
        self.rich.stop()


def _run_links(options: argparse.Namespace, families: tuple[str, ...], world: int) -> int:
    """One of several processes. The first keeps the file and speaks; all measure the same."""
    from astra.errors import InputError
    from astra.profile.bench_run import BenchRun
    from astra.profile.link_bench import LinkBench
    from astra.profile.machine import describe, load_torch
    from astra.profile.shapes import measurements_of
    from astra.profile.store import Profile, continue_profile

    minutes = _minutes(options.minutes)
    if "collective" not in families:
        raise InputError(
            f"--only {options.only}: several processes measure links, one alone the kernels. "
            "Try the command without torchrun."
        )
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    torch = load_torch(options.device)
    links = LinkBench(torch, options.device, int(os.environ.get("LOCAL_RANK", "0")))
    try:
        first, refused = links.rank == 0, None
        profile = Profile(machine=describe(torch, options.device))
        if first:
            try:
                profile = continue_profile(Path(options.out), profile.machine)
            except InputError as error:  # the others must hear of it, or they wait for ever
                refused = str(error)
        refused, entries = links.agree((refused, profile.entries))
        if refused is not None and not first:
            return 2
        if refused is not None:
            raise InputError(refused)
        profile.entries = entries
        bench_run = BenchRun(
            path=Path(options.out),
            profile=profile,
            measure=links.measure,
            alive=lambda: True,
            agree=links.agree,
            seconds=60 * minutes,
            writes=first,
            retry_errors=options.retry_errors,
        )
        wanted = measurements_of(families, world, per_node, small=options.device == "cpu")
        if first:
            return _measure(bench_run, wanted, options.json)
        bench_run.run(wanted)
        return 0
    finally:
        links.close()
