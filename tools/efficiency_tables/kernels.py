"""Everything in `kernels.toml`: steady load, number formats, directions, and what they rest on."""

from pathlib import Path

import numpy as np
from msgspec.structs import replace
from tools.efficiency_tables.attention import all_attention, masked_attention
from tools.efficiency_tables.borrowed import memory_shares, scaled_gpus
from tools.efficiency_tables.from_profile import fitted_attention, source_of, with_attention
from tools.efficiency_tables.gemm_tables import (
    RAMP_S,
    STEADY_FROM_S,
    bf16_peak,
    slowdown,
    slowdown_fp8,
)
from tools.efficiency_tables.measurements import (
    AZURE,
    LAYOUTS,
    OWN,
    PROFILE,
    READ_ON,
    SIMUMAX,
    SIMUMAX_SYSTEMS,
    SYSTEMS,
    as_products,
    azure_products,
    fitted_source,
    gemm_source,
    own_products,
    own_rows,
    products,
    read_products,
    simumax_products,
)
from tools.efficiency_tables.report import Report

from astra.files import Source
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Gpu
from astra.profile.rows import kernel_rows
from astra.profile.store import read_profile
from astra.timing.efficiency import Kernels, MeasuredGpu, Transposed, steady_table
from astra.timing.gemm import GemmTable


def format_factor(folder: Path, row: MeasuredGpu, gpu: Gpu, table: GemmTable, dtype: str) -> float:
    """Time of a format over the bf16 response at its own peak, both in bursts.

    Upstream times include casting the input, so only wide products tell: there it is small.
    """
    upstream = {"fp8": "fp8", "fp4": "nvfp4"}[dtype]
    seen = read_products(folder, SYSTEMS[row.gpu], upstream)
    seen = seen.take((seen.n >= 10240) & (seen.k >= 2048) & (seen.m >= 2048))
    if not len(seen.m) or getattr(gpu, f"{dtype}_flops_per_s") is None:
        return 0.0
    plain = replace(row, slowdown=1.0, formats={})
    ready = steady_table(gpu, dtype, plain, table, bare_kernels(), 1.0)
    return float(np.median(seen.seconds / ready.seconds(seen.m, seen.n, seen.k)))


def bare_kernels() -> Kernels:
    """The constants, without any GPU.

    Grouped products: tile, bandwidth and the traffic of weight gradients read off our H200
    timings; the time per expert lies between those (one kernel for all experts, 0) and
    Transformer Engine's on B200 (one kernel each, 3 to 5 us).
    """
    launch = float(own_rows("launch", kernel="graphed tiny add")[0]["seconds"])
    return Kernels(
        ramp_s=RAMP_S,
        steady_from_s=STEADY_FROM_S,
        accumulate_bytes=3.6,
        grouped_wgrad_bytes=1.4,
        grouped_rows=128,
        grouped_share=0.72,
        expert_s=1e-6,
        memory_ramp_s=2e-6,
        launch_s=round(launch, 9),
        launch_source=Source(kind="measured", where=f"kernels of a CUDA graph, {OWN}"),
        masked=masked_attention(),
        formats={},
        transposed=(),
        measured=(),
        scaled=(),
        memory=(),
    )


def accumulate_bytes(folder: Path, tables: dict[str, GemmTable]) -> float:
    """Traffic per fp32 gradient that summing into it does not hide.

    Weight gradients over input gradients on the same GPU, H200 (own), A100 and B200 (SimuMax).
    """
    pairs = [
        (
            "H200-SXM",
            as_products(own_products("bf16", "dgrad", "torch"), "dgrad"),
            as_products(own_products("bf16", "wgrad", "torch fp32 accumulate"), "wgrad"),
        )
    ]
    for name, system, peak in SIMUMAX_SYSTEMS:
        plain = simumax_products(folder, system, peak, "NN", "bf16")
        pairs.append((name, plain, simumax_products(folder, system, peak, "NT", "fp32")))
    tries = np.arange(0.0, 8.1, 0.1)
    misses = np.zeros(len(tries))
    for name, plain, summed in pairs:
        table = tables[name.replace("PCIe", "SXM")]
        slow = np.median(plain.seconds / table.seconds(plain.m, plain.n, plain.k))
        least_s = slow * table.seconds(summed.m, summed.n, summed.k)
        per_byte = summed.m * summed.n / find_gpu(name)[0].memory_bytes_per_s
        ratio = (least_s + tries[:, None] * per_byte) / summed.seconds
        misses += np.abs(np.log(ratio)).mean(axis=1)
    return float(round(tries[int(np.argmin(misses))], 1))


def slowdowns(folder: Path, tables: dict[str, GemmTable]) -> dict[str, tuple[float, Source]]:
    """Steady load over bursts, per GPU."""
    own = products(
        row
        for direction in ("forward", "dgrad")
        for seen in [as_products(own_products("bf16", direction, "torch"), direction)]
        for row in zip(seen.m, seen.n, seen.k, seen.seconds, strict=True)
    )
    h200 = slowdown(tables["H200-SXM"], own)
    b200 = slowdown(
        tables["B200"], simumax_products(folder, "b200_bf16_ceperm", 2250e12, "TN", "bf16")
    )
    a100 = slowdown(tables["A100-80GB-SXM"], azure_products(folder, "A100-80GB-SXM", "fp16"))
    gb200 = slowdown_fp8(folder, "GB200", tables["GB200"])
    print(f"slowdowns: H200 {h200:.3f}, A100 {a100:.3f}, B200 {b200:.3f}, GB200 {gb200:.3f}")

    def row(value: float, kind: str, where: str) -> tuple[float, Source]:
        return round(max(value, 1.0), 3), Source(kind=kind, where=where, read_on=READ_ON)

    mild = row(1.05, "guessed", "its short bursts run into the power limit already")
    middle = row(
        float(np.sqrt(h200 * b200)),
        "fitted",
        f"half way (in logarithms) between the H200 and {SIMUMAX} on one B200 ({b200:.2f})",
    )
    return {
        "A100-80GB-SXM": row(a100, "fitted", f"cuBLASLt, {AZURE}"),
        "H200-SXM": row(h200, "measured", OWN),
        "H100-80GB-SXM": row(h200, "guessed", "as the H200"),
        "B200": middle,
        "GB200": row(gb200, "fitted", f"cuBLASLt in fp8, {AZURE}"),
        **dict.fromkeys(("B300", "GB300"), row(gb200, "guessed", "as the GB200")),
        **dict.fromkeys(("L40S", "RTX-PRO-6000-Blackwell-SE"), mild),
    }


def measured_gpus(report: Report, folder: Path, tables: dict[str, GemmTable]) -> list[MeasuredGpu]:
    slow = slowdowns(folder, tables)
    attention = all_attention(report, folder)
    found = []
    for name, table in tables.items():
        gpu = find_gpu(name)[0]
        row = MeasuredGpu(
            gpu=name,
            architecture=gpu.architecture or "",
            compute_capability=gpu.compute_capability or "",
            flops_per_s=bf16_peak(gpu),
            bytes_per_s=gpu.memory_bytes_per_s,
            slowdown=slow[name][0],
            slowdown_source=slow[name][1],
            formats={},
            attention=attention[name],
            source=gemm_source(folder, name),
        )
        formats = {
            dtype: round(format_factor(folder, row, gpu, table, dtype), 3)
            for dtype in ("fp8", "fp4")
        }
        print(name, "formats", formats)
        found.append(replace(row, formats={d: f for d, f in formats.items() if f > 0}))
    return found


def own_formats(row: MeasuredGpu, table: GemmTable) -> dict[str, float]:
    """fp8, tf32 and fp32 on the H200, over the bf16 response at their own peaks."""
    gpu, found = find_gpu("H200-SXM")[0], {}
    for dtype, kernel in (("fp8", "torch scaled_mm"), ("tf32", "torch"), ("fp32", "torch")):
        seen = own_products(dtype, "forward", kernel)
        ready = steady_table(gpu, dtype, replace(row, formats={}), table, bare_kernels(), 1.0)
        ratio = seen.seconds / ready.seconds(seen.m, seen.n, seen.k)
        found[dtype] = round(float(np.median(ratio[seen.seconds > 60e-6])), 3)
    print("own formats", found)
    return found


def transposed(row: MeasuredGpu, table: GemmTable) -> tuple[Transposed, ...]:
    """Gradients in tf32 over the forward product of the same layer, beyond what their shapes say.

    Timed on the H200. On Ampere nobody did, but passes of whole layers are told by the same.
    """
    gpu, found = find_gpu("H200-SXM")[0], {}
    ready = steady_table(gpu, "tf32", row, table, bare_kernels(), 1.0)
    ahead = own_products("tf32", "forward", LAYOUTS)
    base = ahead.seconds / ready.seconds(ahead.m, ahead.n, ahead.k)
    for direction in ("dgrad", "wgrad"):
        seen = as_products(own_products("tf32", direction, LAYOUTS), direction)
        ratio = seen.seconds / ready.seconds(seen.m, seen.n, seen.k) / base
        found[direction] = round(float(np.median(ratio)), 3)
    print("transposed, tf32", found)
    timed = (
        f"medians of {len(base)} shapes over their forward products, our own timings on one H200, "
        "one product after the other, caches flushed, CUDA events"
    )
    like = "as on Hopper; with it the backward passes of Sailor's layer profiles come out on A100"
    return tuple(
        Transposed(architecture=chip, format="tf32", **found, source=fitted_source(kind, where))
        for chip, kind, where in (("Hopper", "measured", timed), ("Ampere", "guessed", like))
    )


def make_kernels(
    report: Report, folder: Path, tables: dict[str, GemmTable], lent: dict[str, GemmTable]
) -> Kernels:
    """Everything in `kernels.toml`."""
    sxm = tables["A100-80GB-SXM"]
    pcie_rows = simumax_products(folder, "a100_pcie", 312e12, "TN", "bf16")
    a100_slow = slowdown(sxm, azure_products(folder, "A100-80GB-SXM", "fp16"))
    pcie = slowdown(sxm, pcie_rows) / max(a100_slow, 1.0)
    measured = measured_gpus(report, folder, tables)
    h200 = next(row for row in measured if row.gpu == "H200-SXM")
    formats = own_formats(h200, tables["H200-SXM"])
    cast = formats["fp8"] / h200.formats["fp8"]  # upstream casts its input, training products not
    measured = [
        replace(row, formats={d: round(f * cast, 3) for d, f in row.formats.items()})
        for row in measured
    ]
    known = replace(
        bare_kernels(),
        accumulate_bytes=accumulate_bytes(folder, lent),
        formats=formats,
        transposed=transposed(h200, tables["H200-SXM"]),
        measured=tuple(measured),
        memory=tuple(memory_shares(folder)),
    )
    scaled = scaled_gpus(report, folder, known, tables, lent, pcie)
    return replace(known, scaled=tuple(scaled))


def with_profile(report: Report, known: Kernels) -> Kernels:
    """The H200's attention as `astra profile` measured it there, longer sequences too."""
    profile, gpu = read_profile(PROFILE), find_gpu("H200-SXM")[0]
    before = next(row.attention for row in known.measured if row.gpu == gpu.name)
    rows = kernel_rows(profile)
    own = Report()
    found = fitted_attention(own, gpu, rows, before, source_of(profile))
    for name, dtype, what, base, count, mean, worst in own.lines:
        if what.endswith(", new"):
            about = what.removesuffix(", new").replace("_", ", ")
            where = f"`astra profile`, {base}"
            report.lines.append((name, dtype, about, where, count, mean, worst))
    return with_attention(gpu.name, found, known)
