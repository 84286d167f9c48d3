"""The installed tables against what `astra profile` measured on an H200, kernel by kernel."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tools.efficiency_tables.attention import Passes, h200_attention, masked_attention
from tools.efficiency_tables.checks import check_later
from tools.efficiency_tables.files import read_kernels
from tools.efficiency_tables.from_profile import (
    attention_rows,
    fitted_attention,
    gemm_rows,
    plain_products,
    product_errors,
    source_of,
)
from tools.efficiency_tables.gemm_tables import fit_table
from tools.efficiency_tables.kernels import with_profile
from tools.efficiency_tables.measurements import LATER
from tools.efficiency_tables.report import Report

from astra.hardware.catalogue import find_gpu
from astra.profile.rows import kernel_rows
from astra.profile.store import read_profile
from astra.timing.efficiency import Direction, attention_efficiency, gemm_efficiency

FILE = Path(__file__).parents[2] / "validation" / "profiles" / "h200.json.gz"
PROFILE = read_profile(FILE)
ROWS = kernel_rows(PROFILE)
GPU = find_gpu(PROFILE.machine["gpu"])[0]
PEAK = GPU.bf16_flops_per_s or 0.0
HOST_SHOWS_S = 30e-6


def test_the_profile_is_of_one_h200_and_almost_nothing_failed() -> None:
    assert (GPU.name, PROFILE.machine["device"]) == ("H200-SXM", "cuda")
    assert len(PROFILE.measured()) > 1_800 and len(PROFILE.errors()) <= 2


def test_no_kernel_beats_the_hardware() -> None:
    """Neither the dense peak of its format nor the bandwidth, once it has left the cache."""
    peaks = {"bf16": PEAK, "fp16": PEAK, "fp8": GPU.fp8_flops_per_s, "tf32": GPU.tf32_flops_per_s}
    for one, row in PROFILE.measured():
        peak = peaks.get(one.dtype) or PEAK
        assert row["flops"] / row["median_s"] < peak, one.key
        if row["cold"] and row["bytes"] > 2**27:
            assert row["bytes"] / row["median_s"] < GPU.memory_bytes_per_s, one.key


def test_installed_products_are_those_measured_in_all_directions() -> None:
    kernels: list[tuple[Direction, str]] = [
        ("forward", "torch"),
        ("dgrad", "torch"),
        ("wgrad", "torch fp32 accumulate"),
    ]
    for direction, kernel in kernels:
        seen = gemm_rows(ROWS, "bf16", direction, kernel)
        seen = seen.take(seen.seconds > HOST_SHOWS_S)
        share = gemm_efficiency(GPU, "bf16", seen.m, seen.n, seen.k, direction).values
        ratio = seen.flops / (PEAK * share) / seen.seconds
        assert len(ratio) > 200
        assert abs(np.median(ratio) - 1) < 0.02 and np.abs(ratio - 1).mean() < 0.07, direction


def test_installed_attention_is_within_a_seventh_of_that_measured() -> None:
    for back in (False, True):
        seen: Passes = attention_rows(ROWS, "backward" if back else "forward", True)
        way = "backward" if back else "forward"
        share = attention_efficiency(
            GPU, "bf16", seen.seq, seen.seq, seen.head_dim, seen.heads, 1, True,
            "backward" if back else "forward",
        ).values  # fmt: skip
        ratio = seen.flops / (PEAK * share) / seen.seconds
        assert len(ratio) > 50 and np.abs(ratio - 1).mean() < 1 / 7, way


def test_a_table_of_the_profile_foretells_the_products_held_back() -> None:
    report = Report()
    product_errors(report, GPU, plain_products(ROWS))
    (new, installed) = (line[5] for line in report.lines)
    assert new < 0.04 < installed < 0.07
    seen = plain_products(ROWS)
    table = fit_table(seen, GPU)
    assert np.all(np.diff(table.log_s, axis=0) >= -1e-9)


@pytest.mark.slow
def test_the_installed_attention_is_what_a_rebuild_makes() -> None:
    """Of our timings first, then of the profile: all that `kernels.toml` has of the H200's."""
    known = read_kernels()
    rows = [
        replace(row, attention=h200_attention(Report(), PEAK)) if row.gpu == GPU.name else row
        for row in known.measured
    ]
    again = with_profile(Report(), replace(known, measured=tuple(rows)))
    for one, other in zip(again.measured, known.measured, strict=True):
        for name in ("forward_causal", "forward_full", "backward_causal", "backward_full"):
            made, installed = getattr(one.attention, name), getattr(other.attention, name)
            assert np.allclose(made.rates, installed.rates, rtol=1e-4)
            assert np.isclose(made.tail_tokens, installed.tail_tokens, rtol=1e-3)
    assert masked_attention() == known.masked


def test_the_tables_hold_on_shapes_of_a_later_bench_run() -> None:
    """The rest of wave 2, timed on other GPUs of the kind when all tables were made."""
    assert len(read_profile(LATER).measured()) == 1_286
    report = Report()
    check_later(report)
    product, forward, backward = (line[5] for line in report.lines)
    assert product < 0.07 and forward < 0.08 and backward < 0.12


@pytest.mark.slow
def test_both_pages_have_the_errors_that_the_command_prints() -> None:
    """On shapes held back the fit starts blank, so the page and the command cannot differ."""
    known = next(row.attention for row in read_kernels().measured if row.gpu == GPU.name)
    report = Report()
    fitted_attention(report, GPU, ROWS, known, source_of(PROFILE))
    docs = Path(__file__).parents[2] / "docs"
    pages = [(docs / name).read_text() for name in ("reports/efficiency.md", "profile.md")]
    for direction in ("forward", "backward"):
        what = f"attention {direction}_causal"
        found = {line[2]: line[-2] for line in report.lines}
        new, old = f"{found[f'{what}, new']:.1%}", f"{found[f'{what}, installed']:.1%}"
        about = f"attention {direction}, causal"
        assert f"| {about} | `astra profile`, shapes held back | 12 | {new} |" in pages[0]
        assert f"| {about} | 64 / 12 | {old} | {new} |" in pages[1]
