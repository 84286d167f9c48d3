"""Makes a GPU's efficiency tables out of what `astra profile` measured.

    python -m tools.efficiency_tables.from_profile FILE [--gpu NAME] [--write] [--rows OUT.csv.gz]

Needs the extra `fit`. Prints, for shapes held back, the errors of the tables that the profile
gives, beside those of the tables that are installed. `--write` puts the new ones in their place:
the GPU's JSON table and its rows of `kernels.toml`; other GPUs keep theirs. A rebuild by
`python -m tools.efficiency_tables` starts from the published measurements and the H200's own
profile again, so run this after it for another GPU. `--rows` also writes the kernels as CSV.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec.structs import replace
from tools.efficiency_tables.attention import Passes, fit_with_errors, passes
from tools.efficiency_tables.files import read_kernels, write_kernels, write_table
from tools.efficiency_tables.gemm_tables import fit_table
from tools.efficiency_tables.measurements import Products, as_products, products
from tools.efficiency_tables.report import Report

from astra.errors import InputError
from astra.files import Source
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Gpu
from astra.profile.rows import kernel_rows, machine_text, write_rows
from astra.profile.store import Profile, read_profile
from astra.timing.attention_rate import AttentionRate
from astra.timing.efficiency import (
    FINE,
    FOLDER,
    Attention,
    Kernels,
    MeasuredGpu,
    MemoryRoof,
    gemm_efficiency,
    memory_efficiency,
    peak_flops_per_s,
    steady_table,
)
from astra.timing.gemm import Floats, GemmTable

Rows = Sequence[dict[str, str]]
LARGE_BYTES = 2**26
HOST_SHOWS_S = 30e-6
START = AttentionRate(rates=(0.45, 0.6, 0.5), tail_tokens=350, fill_rows=16900, ramp_s=5e-6)
FREE = ("rate", "narrow", "wide", "tail", "fill")


def where_of(profile: Profile) -> str:
    return f"{machine_text(profile.machine)}, random data, steady load, medians"


def source_of(profile: Profile) -> Source:
    measured_on = max((run["started"][:10] for run in profile.runs), default=None)
    return Source(kind="measured", where=where_of(profile), read_on=measured_on)


def gemm_rows(rows: Rows, dtype: str, direction: str, kernel: str) -> Products:
    return products(
        (float(r["a"]), float(r["b"]), float(r["c"]), float(r["seconds"]))
        for r in rows
        if (r["operator"], r["dtype"], r["direction"]) == ("gemm", dtype, direction)
        if r["kernel"] == kernel
    )


def plain_products(rows: Rows) -> Products:
    """Products in bf16 that add to nothing, as shapes of the product itself; equal ones once."""
    found: dict[tuple[float, float, float], list[float]] = {}
    for direction, kernel in (
        ("forward", "torch"),
        ("dgrad", "torch"),
        ("wgrad", "torch bf16 out"),
    ):
        seen = as_products(gemm_rows(rows, "bf16", direction, kernel), direction)
        for m, n, k, seconds in zip(seen.m, seen.n, seen.k, seen.seconds, strict=True):
            found.setdefault((m, n, k), []).append(float(seconds))
    return products((*shape, float(np.median(times))) for shape, times in found.items())


def attention_rows(rows: Rows, direction: str, causal: bool) -> Passes:
    """The faster of the backends on each shape: what a framework would choose."""
    best: dict[tuple[float, float, float], float] = {}
    for r in rows:
        wanted = ("attention", "bf16", direction, str(int(causal)))
        if (r["operator"], r["dtype"], r["direction"], r["causal"]) == wanted:
            shape = float(r["a"]), float(r["b"]) * float(r["c"]), float(r["d"])
            best[shape] = min(best.get(shape, np.inf), float(r["seconds"]))
    back = direction == "backward"
    return passes((*shape, seconds, causal, back) for shape, seconds in best.items())


def product_errors(report: Report, gpu: Gpu, seen: Products) -> None:
    """The installed table, and one made without the pairs held back, on those pairs."""
    held = seen.held
    test, table = seen.take(held), fit_table(seen.take(~held), gpu)
    long = test.seconds > HOST_SHOWS_S
    ratio = table.seconds(test.m, test.n, test.k) / test.seconds
    report.add(gpu.name, "bf16", "product, new table", "pairs held back", ratio[long])
    share = gemm_efficiency(gpu, "bf16", test.m, test.n, test.k).values
    installed_s = test.flops / (peak_flops_per_s(gpu, "bf16") * share)
    ratio = installed_s / test.seconds
    report.add(gpu.name, "bf16", "product, installed table", "the same rows", ratio[long])


def fitted_attention(
    report: Report, gpu: Gpu, rows: Rows, installed: Attention | None, source: Source
) -> Attention:
    """The four kernels; the installed one stays where fewer than eight shapes were measured."""
    found, lengths = {}, []
    for direction in ("forward", "backward"):
        for causal in (True, False):
            name = f"{direction}_{'causal' if causal else 'full'}"
            seen = attention_rows(rows, direction, causal)
            start: AttentionRate = getattr(installed, name) if installed else START
            ramp_s = 5e-6 if direction == "forward" else 1e-5
            start, blank = (replace(rate, ramp_s=ramp_s) for rate in (start, START))
            if len(seen.seq) < 8:
                found[name] = start
                continue
            peak = peak_flops_per_s(gpu, "bf16")
            ratio = seen.predicted_s(start, peak) / seen.seconds
            if installed:
                label = f"attention {name}, installed"
                report.add(gpu.name, "bf16", label, "all rows", ratio)
            about = (gpu.name, f"attention {name}, new", "shapes held back")
            found[name] = fit_with_errors(report, about, seen, peak, start, FREE, blank=blank)
            lengths += [float(seen.seq.min()), float(seen.seq.max())]
    if not lengths:
        raise InputError("the profile has fewer than eight shapes of attention: too few to fit.")
    return Attention(**found, seq_from=min(lengths), seq_to=max(lengths), source=source)


def format_factors(
    gpu: Gpu, rows: Rows, row: MeasuredGpu, table: GemmTable, known: Kernels
) -> dict[str, float]:
    """Time of each number format over the bf16 response at its own peak."""
    found = dict(row.formats)
    bare = replace(known, formats={})
    for dtype, kernel in (("fp8", "torch scaled_mm"), ("tf32", "torch"), ("fp32", "torch")):
        seen = gemm_rows(rows, dtype, "forward", kernel)
        seen = seen.take(seen.seconds > 60e-6)
        if len(seen.m) >= 4:
            ready = steady_table(gpu, dtype, replace(row, formats={}), table, bare, 1.0)
            ratio = seen.seconds / ready.seconds(seen.m, seen.n, seen.k)
            found[dtype] = round(float(np.median(ratio)), 3)
    return found


def memory_share(report: Report, gpu: Gpu, rows: Rows, source: Source) -> MemoryRoof | None:
    """Share of the bandwidth that large elementwise kernels reach."""
    large = [r for r in rows if r["operator"] == "memory" and float(r["a"]) >= LARGE_BYTES]
    if not large:
        return None
    size = np.array([float(r["a"]) for r in large])
    seconds = np.array([float(r["seconds"]) for r in large])
    rates: Floats = size / seconds
    share = float(np.exp(np.mean(np.log(rates)))) / gpu.memory_bytes_per_s
    before = size / (memory_efficiency(gpu, size).values * gpu.memory_bytes_per_s) / seconds
    report.add(gpu.name, "bf16", "elementwise, installed", "64 MB and more", before)
    now = size / (share * gpu.memory_bytes_per_s) / seconds
    report.add(gpu.name, "bf16", "elementwise, new", "64 MB and more, one factor", now)
    return MemoryRoof(
        gpu=gpu.name,
        compute_capability=gpu.compute_capability or "",
        bytes_per_s=gpu.memory_bytes_per_s,
        share=round(min(share, 0.95), 3),
        source=source,
    )


def rebuilt(
    report: Report, gpu: Gpu, profile: Profile, known: Kernels
) -> tuple[Kernels, GemmTable]:
    """`kernels.toml` with this GPU's rows made anew, and its table of products."""
    rows, source = kernel_rows(profile), source_of(profile)
    seen = plain_products(rows)
    if len(seen.m) < 40:
        raise InputError(f"the profile has {len(seen.m)} products in bf16: too few for a table.")
    product_errors(report, gpu, seen)
    table = fit_table(seen, gpu)
    before = next((row for row in known.measured if row.gpu == gpu.name), None)
    attention = fitted_attention(report, gpu, rows, before.attention if before else None, source)
    row = MeasuredGpu(
        gpu=gpu.name,
        architecture=gpu.architecture or "",
        compute_capability=gpu.compute_capability or "",
        flops_per_s=peak_flops_per_s(gpu, "bf16"),
        bytes_per_s=gpu.memory_bytes_per_s,
        slowdown=1.0,  # the table itself was measured under steady load
        slowdown_source=source,
        formats=before.formats if before else {},
        attention=attention,
        source=source,
    )
    row = replace(row, formats=format_factors(gpu, rows, row, table, known))
    share = memory_share(report, gpu, rows, source)
    return replace(
        known,
        measured=_in_place(known.measured, row),
        scaled=tuple(other for other in known.scaled if other.gpu != gpu.name),
        memory=_in_place(known.memory, share) if share else known.memory,
    ), table


def with_attention(name: str, found: Attention, old: Kernels) -> Kernels:
    """The kernels with this attention on a GPU."""
    rows = [replace(row, attention=found) if row.gpu == name else row for row in old.measured]
    return replace(old, measured=tuple(rows))


T = TypeVar("T", MeasuredGpu, MemoryRoof)


def _in_place(rows: tuple[T, ...], new: T) -> tuple[T, ...]:
    """The rows with the new one where the GPU's old one was, or at the end."""
    kept: list[T] = [new if row.gpu == new.gpu else row for row in rows]
    if new not in kept:
        kept.append(new)
    return tuple(kept)


def main(words: Sequence[str] | None = None) -> int:
    """Bad input is told in a line, with code 2."""
    try:
        run(words)
    except InputError as error:
        print(f"from_profile: {error}", file=sys.stderr)
        return 2
    return 0


def run(words: Sequence[str] | None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--gpu", help="its name in the catalogue; default: the profile's own")
    parser.add_argument("--write", action="store_true", help="replace the installed tables")
    parser.add_argument(
        "--attention", action="store_true", help="with --write: only attention's part of them"
    )
    parser.add_argument("--rows", type=Path, metavar="OUT.csv.gz", help="the kernels as CSV")
    options = parser.parse_args(words)
    profile = read_profile(options.file)
    if profile.machine.get("device") == "cpu":
        raise InputError(f"{options.file}: was measured on a CPU; no GPU's table comes out of it.")
    gpu = find_gpu(options.gpu or profile.machine["gpu"])[0]
    known, table = rebuilt(Report(), gpu, profile, read_kernels())
    if options.rows:
        write_rows(options.rows, kernel_rows(profile))
    if options.write and options.attention:
        (found,) = (row.attention for row in known.measured if row.gpu == gpu.name)
        write_kernels(with_attention(gpu.name, found, read_kernels()))
        print("written: kernels.toml")
    elif options.write:
        row = next(row for row in known.measured if row.gpu == gpu.name)
        write_table(f"{gpu.name}.json", table, row.source)
        (FOLDER / f"{gpu.name}{FINE}").unlink(missing_ok=True)  # it was another machine's
        write_kernels(known)
        print(f"written: {FOLDER / gpu.name}.json and kernels.toml")


if __name__ == "__main__":
    sys.exit(main())
