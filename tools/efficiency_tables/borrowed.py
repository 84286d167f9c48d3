"""Bandwidth of memory, and GPUs that borrow another's response."""

from itertools import product
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from tools.efficiency_tables.measurements import (
    AZURE,
    OWN,
    READ_ON,
    SAILOR,
    SAILOR_GPUS,
    SAILOR_WIDTHS,
    SIMUMAX,
    azure_stream,
    fitted_source,
    own_rows,
    sailor_products,
    sailor_rows,
)
from tools.efficiency_tables.report import Report

from astra.files import Source
from astra.hardware.catalogue import find_gpu
from astra.timing.efficiency import Kernels, MemoryRoof, ScaledGpu, steady_table
from astra.timing.gemm import GemmTable

CAPPED = (
    "power-capped at 70 W: 24 TFLOP/s in products of 4,096, NVIDIA developer forum, thread 264462"
)
GH200_SPEED = 0.87  # of Hopper at its own peak and bandwidth: tools/fit_layers.py
GH200 = "eth-easl/sailor @cf2c8e3 (MIT), layers of OPT-350M and OPT-30B timed alone on Alps"


def memory_shares(folder: Path) -> list[MemoryRoof]:
    """Large elementwise kernels over nominal bandwidth."""
    own = [
        float(r["a"]) / float(r["seconds"]) for r in own_rows("memory") if float(r["a"]) >= 2**26
    ]
    share = float(np.exp(np.mean(np.log(own)))) / find_gpu("H200-SXM")[0].memory_bytes_per_s
    found = [_memory("H200-SXM", share, "measured", OWN)]
    stream = azure_stream(folder)
    for name in ("A100-80GB-SXM", "H100-80GB-SXM"):
        found.append(
            _memory(
                name,
                share * stream[name] / stream["H200-SXM"],
                "fitted",
                f"{AZURE} stream results, brought to training kernels by the H200's",
            )
        )
    for gpu, name in SAILOR_GPUS.items():
        rates = [
            4
            * 2048
            * float(r["mbs"])
            * 4
            * SAILOR_WIDTHS[r["model"]]
            / float(r["forward_us"])
            * 1e6
            for r in sailor_rows(folder, gpu, ("enc-MLP-gelu",))
        ]
        nominal = find_gpu(name)[0].memory_bytes_per_s
        found.append(_memory(name, float(np.median(rates)) / nominal, "measured", SAILOR))
    return found


def _memory(name: str, share: float, kind: str, where: str) -> MemoryRoof:
    gpu = find_gpu(name)[0]
    return MemoryRoof(
        gpu=name,
        compute_capability=gpu.compute_capability or "",
        bytes_per_s=gpu.memory_bytes_per_s,
        share=round(min(share, 0.92), 3),
        source=fitted_source(kind, where),
    )


def scaled_gpus(
    report: Report,
    folder: Path,
    known: Kernels,
    tables: dict[str, GemmTable],
    lent: dict[str, GemmTable],
    pcie: float,
) -> list[ScaledGpu]:
    """GPUs that borrow, with their speed over the loan: fitted where anything was measured."""
    a100 = next(row for row in known.measured if row.gpu == "A100-80GB-SXM")
    found = [
        _scaled(name, 1 / pcie, 1.0, "fitted", f"{SIMUMAX} on A100 PCIe")
        for name in ("A100-80GB-PCIe", "A100-40GB-PCIe")
    ]
    speeds: dict[str, dict[str, float]] = {"fp16": {}, "fp32": {}}
    for (sailor, name), dtype in product(SAILOR_GPUS.items(), speeds):
        gpu, seen = find_gpu(name)[0], sailor_products(folder, sailor, dtype)
        own = gpu.compute_capability == a100.compute_capability
        table = (tables if own else lent)[a100.gpu]
        if own and dtype == "fp32":
            continue  # in tf32
        table = steady_table(gpu, dtype, a100, table, known, 1.0)
        ratio = table.seconds(seen.m, seen.n, seen.k) / seen.seconds
        speed = float(np.median(ratio)) if not name.startswith("A100") else 1.0
        speeds[dtype][name] = speed
        report.add(
            name,
            dtype,
            "product, forward",
            f"{SAILOR}; borrowed from A100" + ("" if speed == 1.0 else ", one factor"),
            ratio / speed,
        )
    half, full = speeds["fp16"], speeds["fp32"]
    slow_attention = 0.6  # no kernels of today's kind before Ampere
    for name in ("V100-16GB-SXM2", "V100-32GB-SXM2", "Titan-RTX", "RTX-2080-Ti"):
        known_as = name if name in half else "V100-16GB-SXM2"
        speed, wide = half[known_as], full[known_as]
        found.append(_scaled(name, speed, slow_attention * speed, "fitted", SAILOR, wide))
    speed = half["RTX-3090"]
    found.append(_scaled("RTX-3090", speed, speed, "fitted", SAILOR, full["RTX-3090"]))
    found.append(_scaled("T4", 0.5, 0.5, "measured", CAPPED))
    alps = _scaled("GH200-96GB", GH200_SPEED, GH200_SPEED, "fitted", GH200)
    found.append(replace(alps, memory=GH200_SPEED))
    return found + guessed_gpus(half["RTX-3090"])


def guessed_gpus(half_rate: float) -> list[ScaledGpu]:
    """Guesses: what the power limit or a halved tensor rate does to a peak on paper."""
    guesses = [
        (("H100-96GB-HBM2e",), 0.8, "a guess: 500 W where the full part has 700 W"),
        (("L4",), 0.75, "a guess: 72 W cannot feed its tensor units"),
        (("A10",), 0.75, "a guess: 150 W cannot feed its tensor units"),
        (("A10G",), half_rate, "a guess: as the RTX 3090, whose rate is halved too"),
        (("RTX-4090", "L40"), 1.4, "a guess: half the tensor rate of L40S at its power"),
        (("RTX-5090",), 1.2, "a guess: half the tensor rate of its lender"),
        (
            ("MI250X", "MI300X", "MI325X", "MI355X"),
            0.65,
            "a guess: public comparisons of MI300X and H100 in bf16 training, as remembered",
        ),
    ]
    return [_scaled(name, s, s, "guessed", why) for names, s, why in guesses for name in names]


def _scaled(
    gpu: str, gemm: float, attention: float, kind: str, where: str, wide: float | None = None
) -> ScaledGpu:
    return ScaledGpu(
        gpu=gpu,
        gemm=round(gemm, 3),
        attention=round(attention, 3),
        gemm_fp32=None if wide is None else round(wide, 3),
        source=Source(kind=kind, where=where, read_on=READ_ON),
    )
