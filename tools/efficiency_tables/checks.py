"""The finished tables against measurements, those that nothing was fitted on among them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tools.efficiency_tables.files import read_kernels
from tools.efficiency_tables.from_profile import HOST_SHOWS_S, attention_rows, plain_products
from tools.efficiency_tables.measurements import (
    AZURE,
    LATER,
    SIMUMAX_SYSTEMS,
    SYSTEMS,
    Products,
    azure_products,
    forward_shape,
    own_products,
    own_rows,
    rows_of,
    simumax,
    simumax_products,
)
from tools.efficiency_tables.report import Report

from astra.hardware.catalogue import find_gpu
from astra.profile.rows import kernel_rows
from astra.profile.store import read_profile
from astra.timing.attention_rate import AttentionRate
from astra.timing.efficiency import (
    Direction,
    gemm_efficiency,
    grouped_gemm_efficiency,
    memory_efficiency,
    peak_flops_per_s,
)
from astra.timing.gemm import Floats


def check_later(report: Report) -> None:
    """The finished tables on shapes of a later sitting, which none of them was made with."""
    gpu, rows = find_gpu("H200-SXM")[0], kernel_rows(read_profile(LATER))
    peak, base = peak_flops_per_s(gpu, "bf16"), "`astra profile`, shapes of a later sitting"
    seen = plain_products(rows)
    seen = seen.take(seen.seconds > HOST_SHOWS_S)
    share = gemm_efficiency(gpu, "bf16", seen.m, seen.n, seen.k).values
    report.add(gpu.name, "bf16", "product", base, seen.flops / (peak * share) / seen.seconds)
    known = next(row.attention for row in read_kernels().measured if row.gpu == gpu.name)
    for direction in ("forward", "backward"):
        tried = attention_rows(rows, direction, True)
        rate: AttentionRate = getattr(known, f"{direction}_causal")
        ratio = tried.predicted_s(rate, peak) / tried.seconds
        report.add(gpu.name, "bf16", f"attention {direction}, causal", base, ratio)


def check_products(
    report: Report,
    name: str,
    dtype: str,
    direction: Direction,
    what: str,
    base: str,
    seen: Products,
) -> None:
    """`seen` names the forward shape. Kernels under 30 us are left out: the host shows."""
    gpu = find_gpu(name)[0]
    share = gemm_efficiency(gpu, dtype, seen.m, seen.n, seen.k, direction).values
    seconds = seen.flops / (peak_flops_per_s(gpu, dtype) * share)
    report.add(name, dtype, what, base, (seconds / seen.seconds)[seen.seconds > 30e-6])


def check_directions(report: Report, folder: Path) -> None:
    kernels: list[tuple[Direction, str]] = [
        ("forward", "torch"),
        ("dgrad", "torch"),
        ("wgrad", "torch fp32 accumulate"),
    ]
    for direction, kernel in kernels:
        seen = own_products("bf16", direction, kernel)
        base = "our own timings, one factor for all directions, one for summing"
        check_products(report, "H200-SXM", "bf16", direction, f"product, {direction}", base, seen)
    layouts: list[tuple[Direction, str, str]] = [
        ("forward", "TN", "bf16"),
        ("dgrad", "NN", "bf16"),
        ("wgrad", "NT", "fp32"),
    ]
    for name, system, peak in SIMUMAX_SYSTEMS:
        for direction, layout, out in layouts:
            seen = simumax_products(folder, system, peak, layout, out)
            seen = forward_shape(seen, direction)
            what = f"product, {direction}"
            fitted = "one factor" if name.startswith("A100") else "half of one factor"
            check_products(report, name, "bf16", direction, what, f"SimuMax, {fitted}", seen)


def check_formats(report: Report, folder: Path) -> None:
    seen = own_products("fp8", "forward", "torch scaled_mm")
    base = "our own timings, one factor"
    check_products(report, "H200-SXM", "fp8", "forward", "product, forward", base, seen)
    for name, dtype in (
        ("A100-80GB-SXM", "fp16"),
        ("H100-80GB-SXM", "fp8"),
        ("H200-SXM", "fp8"),
        ("GB200", "fp8"),
    ):
        seen = azure_products(folder, name, dtype)
        what = "product, forward, cuBLASLt"
        fitted = "one factor" if name in ("A100-80GB-SXM", "GB200") else "nothing fitted on these"
        check_products(report, name, dtype, "forward", what, f"{AZURE}, {fitted}", seen)


def check_grouped(report: Report, folder: Path, summing: float) -> None:
    directions: list[tuple[Direction, str]] = [
        ("forward", "fwd"),
        ("dgrad", "bwd_grad_act"),
        ("wgrad", "bwd_grad_w"),
    ]
    for direction, stage in directions:
        own = [
            tuple(float(r[key]) for key in ("a", "b", "c", "d", "seconds"))
            for r in own_rows("grouped", direction=direction)
            if float(r["seconds"]) > 60e-6
        ]
        _check_group(
            report,
            "H200-SXM",
            direction,
            "our own timings (torch, one kernel), constants read off these",
            own,
            summing,
        )
        for name, system, peak in SIMUMAX_SYSTEMS:
            rows = [
                (e, t, n, k, 2 * e * t * n * k / (peak * share))
                for shape, share in simumax(folder, system, "group_matmul")
                if shape["stage"] == stage and shape["main_grad_dtype"] == "fp32"
                for e, t, n, k in [tuple(float(shape[key]) for key in ("ng", "M", "N", "K"))]
            ]
            _check_group(report, name, direction, "SimuMax (one kernel per expert)", rows, summing)


def _check_group(
    report: Report,
    name: str,
    direction: Direction,
    base: str,
    rows: Sequence[Sequence[float]],
    summing: float,
) -> None:
    e, t, n, k, seconds = np.array(rows).T
    gpu = find_gpu(name)[0]
    share = grouped_gemm_efficiency(gpu, "bf16", e, t, n, k, direction).values
    ours = 2 * e * t * n * k / (peak_flops_per_s(gpu, "bf16") * share)
    if direction == "wgrad" and base.startswith("our own"):  # those were written in bf16, not added
        ours = ours - summing * e * n * k / gpu.memory_bytes_per_s
    report.add(name, "bf16", f"grouped product, {direction}", base, ours / seconds)


def check_moe(report: Report, folder: Path) -> None:
    """Whole expert layers of inference engines: two grouped products and what lies between."""
    for name, system in SYSTEMS.items():
        base = folder / "opdata/ai-dynamo_aiconfigurator" / system
        found = []
        for row in rows_of(next(base.glob("moe_*"))):
            tokens, topk, experts = (
                float(row[key]) for key in ("num_tokens", "topk", "num_experts")
            )
            width = float(row["inter_size"]) / float(row["moe_tp_size"])
            each, seconds = tokens * topk / experts, float(row["latency"]) * 1e-3
            gated = row["moe_dtype"] == "bfloat16" and "nongated" not in row["kernel_source"]
            if gated and width >= 256 and each >= 64 and seconds > 200e-6:
                local = experts / float(row["moe_ep_size"])
                found.append((local, each, float(row["hidden_size"]), width, seconds))
        _check_expert_layer(report, name, np.array(found).T)


def _check_expert_layer(report: Report, name: str, columns: Floats) -> None:
    local, each, hidden, width, seconds = columns
    gpu = find_gpu(name)[0]
    ours = np.zeros(len(seconds))
    for n, k in ((2 * width, hidden), (hidden, width)):
        share = grouped_gemm_efficiency(gpu, "bf16", local, each, n, k).values
        ours += 2 * local * each * n * k / (peak_flops_per_s(gpu, "bf16") * share)
    moved = local * each * (8 * hidden + 6 * width)  # gathered, scattered, activated
    ours += moved / (memory_efficiency(gpu, moved).values * gpu.memory_bytes_per_s)
    base = "inference engines, nothing fitted on these"
    report.add(name, "bf16", "expert layer, forward", base, ours / seconds)


def check_memory(report: Report) -> None:
    rows = own_rows("memory")
    size = np.array([float(r["a"]) for r in rows])
    seconds = np.array([float(r["seconds"]) for r in rows])
    gpu = find_gpu("H200-SXM")[0]
    share = memory_efficiency(gpu, size).values
    ratio = size / (share * gpu.memory_bytes_per_s) / seconds
    report.add(
        "H200-SXM",
        "bf16",
        "elementwise, 64 MB and more",
        "our own timings of five kernels, one factor",
        ratio[size >= 2**26],
    )
    report.add("H200-SXM", "bf16", "elementwise, smaller", "our own timings", ratio[size < 2**26])
