"""Kernels that we timed ourselves on one H200, one by one, beside what a step counts for them."""

import csv
import gzip
from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from astra.hardware.catalogue import find_gpu
from astra.hardware.stack import FACTOR_NAMES, find_stack
from astra.timing.device import Device, SourceUse, dense_peak
from astra.timing.efficiency import FOLDER, Direction, gemm_efficiency, memory_efficiency
from astra.timing.operators import LayerShape, _unfused_core

H200 = find_gpu("H200-SXM")[0]


@cache
def timed(operator: str, **wanted: str) -> list[dict[str, str]]:
    with gzip.open(FOLDER / "h200-kernels.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["operator"] == operator]
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def device(stack: str) -> Device:
    """An H200 in fp32, where no stack's factor counts."""
    plain = replace(
        find_stack(stack), settings=(), **{f"{name}_factor": 1.0 for name in FACTOR_NAMES}
    )
    return Device(H200, "fp32", SourceUse(), plain)


@pytest.mark.parametrize("direction", ["forward", "dgrad", "wgrad"])
def test_products_of_fp32_run_on_tensor_cores_and_gradients_longer(direction: Direction) -> None:
    """As tf32, whose operands a Hopper reads along the depth only: weight gradients suffer most."""
    rows = timed("gemm", dtype="tf32", direction=direction, kernel="torch layouts")
    m, n, k, seconds = (np.array([float(row[key]) for row in rows]) for key in
                        ("a", "b", "c", "seconds"))  # fmt: skip
    ours = device("sailor").gemm_s(m, n, k, direction)
    assert len(rows) == 130
    assert np.median(ours / seconds) == pytest.approx(1.0, abs=0.08)
    assert np.median(np.abs(ours / seconds - 1)) < 0.12


def test_no_other_format_has_slower_gradients() -> None:
    sides = np.array([4096.0]), np.array([4096.0]), np.array([4096.0])
    for dtype in ("bf16", "fp8"):
        ahead, back = (
            gemm_efficiency(H200, dtype, *sides, direction).values[0]
            for direction in ("forward", "dgrad")
        )
        assert back == pytest.approx(ahead)
    half = gemm_efficiency(find_gpu("B200")[0], "tf32", *sides, "dgrad")
    assert half.values[0] == gemm_efficiency(find_gpu("B200")[0], "tf32", *sides).values[0]
    assert dense_peak(H200, "fp32") == H200.tf32_flops_per_s


@pytest.mark.parametrize(
    ("stack", "kernel"), [("sailor", "masked softmax"), ("sailor-gpt-neo", "softmax")]
)
def test_scores_in_memory_take_what_pytorch_takes(stack: str, kernel: str) -> None:
    """Attention by products and a softmax between them, of 16 or 32 heads in all."""
    errors = []
    for row in timed("unfused", dtype="fp32", kernel=kernel):
        seq, heads, width = (float(row[key]) for key in ("a", "b", "c"))
        one = {name: np.ones(1) for name in LayerShape.__dataclass_fields__}
        keys = LayerShape(**one | {"seq_len": np.array([seq])})  # one sample
        core = _unfused_core(keys, device(stack), np.array([heads]), int(2 * width))
        ours = core.forward_s if row["direction"] == "forward" else core.backward_s
        errors.append(float(ours[0]) / float(row["seconds"]) - 1)
    assert len(errors) == 8
    assert max(map(abs, errors)) < 0.15, errors
    assert np.mean(np.abs(errors)) < 0.08, errors


@pytest.mark.parametrize(
    ("name", "lender", "kind"),
    [
        ("H100-80GB-SXM", "H100-80GB-SXM", "fitted"),
        ("GB200", "H200-SXM", "borrowed"),  # the nearest generation, then the nearest bandwidth
        ("L40S", "RTX-3090", "borrowed"),
        ("T4", "RTX-2080-Ti", "borrowed"),
        ("MI300X", "H200-SXM", "guessed"),  # no generation of this maker's: bandwidth alone
    ],
)
def test_bandwidth_is_borrowed_from_the_nearest(name: str, lender: str, kind: str) -> None:
    gpu, big = find_gpu(name)[0], np.array([1e9])
    found = memory_efficiency(gpu, big)
    assert found.source.startswith(f"{kind}, elementwise kernels on {lender}")
    near = memory_efficiency(find_gpu(lender)[0], big).values[0]
    assert found.values[0] == pytest.approx(near, rel=0.02)
