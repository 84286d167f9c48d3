"""A profile as efficiency tables: what goes in comes out again."""

from typing import Any

import numpy as np
import pytest
from tools.efficiency_tables.files import read_kernels
from tools.efficiency_tables.from_profile import main, plain_products, rebuilt
from tools.efficiency_tables.report import Report

from astra.errors import InputError
from astra.hardware.catalogue import find_gpu
from astra.profile.flops_and_bytes import bytes_of, flops_of
from astra.profile.measurement import Measurement
from astra.profile.rows import kernel_rows
from astra.profile.shapes import measurements_of
from astra.profile.store import Profile, entry_of
from astra.timing.efficiency import attention_efficiency, gemm_efficiency

GPU = find_gpu("H200-SXM")[0]
PEAK = GPU.bf16_flops_per_s or 0.0


def seconds_of(one: Measurement) -> float:
    """What the installed tables say a kernel takes."""
    if one.op == "attention":
        share = attention_efficiency(
            GPU, "bf16", one["seq"], one["seq"], (one["head_dim"] + one["v_head_dim"]) / 2,
            one["heads"], one["batch"], bool(one["causal"]),
            "backward" if one.words[1] == "backward" else "forward",
        ).values  # fmt: skip
        return float(flops_of(one) / (PEAK * share))
    if one.op == "gemm" and one.dtype == "bf16" and one.variant != "wgrad":
        sides = {
            "forward": (one["m"], one["n"], one["k"]),
            "dgrad": (one["m"], one["k"], one["n"]),
            "wgrad_half": (one["n"], one["k"], one["m"]),
        }[one.variant]
        return float(flops_of(one) / (PEAK * gemm_efficiency(GPU, "bf16", *sides).values))
    return 2e-6 + bytes_of(one) / (0.7 * GPU.memory_bytes_per_s)


def made_up(families: tuple[str, ...] = ("gemm", "attention", "residual", "launch")) -> Profile:
    entries: dict[str, dict[str, Any]] = {}
    for one in measurements_of(families):
        result = {"median_s": seconds_of(one), "spread_fraction": 0.01}
        entries[one.key] = entry_of(one, result)
    machine = {"device": "cuda", "gpu": "NVIDIA H200", "torch": "2", "cuda": "13"}
    return Profile(machine=machine, runs=[{"started": "2026-01-01T00:00:00"}], entries=entries)


@pytest.mark.slow
def test_tables_made_of_the_installed_times_say_the_installed_times() -> None:
    profile = made_up()
    known, table = rebuilt(Report(), GPU, profile, read_kernels())
    seen = plain_products(kernel_rows(profile))
    long = seen.seconds > 30e-6
    ratio = table.seconds(seen.m, seen.n, seen.k)[long] / seen.seconds[long]
    assert np.abs(ratio - 1).mean() < 0.02
    row = next(new for new in known.measured if new.gpu == GPU.name)
    before = next(old for old in read_kernels().measured if old.gpu == GPU.name)
    assert (row.gpu, row.slowdown) == (GPU.name, 1.0)
    for kernel in ("forward_causal", "backward_causal"):
        new, old = getattr(row.attention, kernel), getattr(before.attention, kernel)
        assert new.rates[1] == pytest.approx(old.rates[1], rel=0.02)
    assert "astra profile" in row.source.where and row.source.kind == "measured"


@pytest.mark.slow
def test_other_gpus_keep_their_rows() -> None:
    before = read_kernels()
    known, _ = rebuilt(Report(), GPU, made_up(), before)
    assert [row.gpu for row in known.measured] == [row.gpu for row in before.measured]
    others = [row for row in known.measured if row.gpu != GPU.name]
    assert others == [row for row in before.measured if row.gpu != GPU.name]
    share = next(row for row in known.memory if row.gpu == GPU.name)
    assert share.share == pytest.approx(0.7, abs=0.02)


def test_unsteady_and_failed_measurements_are_left_out() -> None:
    profile = made_up(("gemm",))
    keys = list(profile.entries)
    whole = len(kernel_rows(profile))
    profile.entries[keys[0]]["spread_fraction"] = 0.6
    profile.entries[keys[1]] = {"key": keys[1], "error": "RuntimeError: out of memory"}
    assert len(kernel_rows(profile)) == whole - 2


def test_too_few_products_make_no_table() -> None:
    profile = made_up(("gemm",))
    profile.entries = dict(list(profile.entries.items())[:20])
    with pytest.raises(InputError, match="too few for a table"):
        rebuilt(Report(), GPU, profile, read_kernels())


@pytest.mark.parametrize(("name", "said"), [("nothere.json", "no such file"), (__file__, "not a")])
def test_what_is_no_profile_is_told_in_a_line(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name]) == 2
    told = capsys.readouterr().err
    assert told.startswith("from_profile: ") and said in told and told.count("\n") == 1
