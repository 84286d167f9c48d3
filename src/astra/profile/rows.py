"""A profile as the rows that efficiency tables are made of (`data/efficiency/*-kernels.csv.gz`)."""

import csv
import gzip
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from astra.profile.flops_and_bytes import bytes_of
from astra.profile.measurement import Measurement
from astra.profile.store import Profile

COLUMNS = ("operator", "dtype", "direction", "kernel", "a", "b", "c", "d", "causal", "seconds")
MAX_SPREAD_FRACTION = (
    0.25  # of the median between the quartiles: beyond it something else was running
)

_GEMM_KERNELS = {
    "forward": ("forward", "torch"),
    "dgrad": ("dgrad", "torch"),
    "wgrad": ("wgrad", "torch fp32 accumulate"),
    "wgrad_half": ("wgrad", "torch bf16 out"),
}
# Operators that are one kernel, eager or compiled: what "elementwise" means in the tables.
_ONE_KERNEL = {
    ("residual", "copy.forward.eager"): "copy",
    ("residual", "add.forward.eager"): "add",
    ("norm", "rms_norm.forward.eager"): "rms_norm",
    ("norm", "layer_norm.forward.eager"): "layer_norm",
    ("activation", "gelu.forward.eager"): "gelu",
    ("activation", "swiglu.forward.compiled"): "swiglu compiled",
    ("residual", "add_rms_norm.forward.compiled"): "add_rms_norm compiled",
    ("rope", "rope.forward.compiled"): "rope compiled",
}


def kernel_rows(profile: Profile) -> list[dict[str, str]]:
    """What the tables need, steady measurements only.

    Products name the shape of the forward product (a, b, c = m, n, k), grouped ones experts,
    tokens each, n and k; attention the sequence, the batch, heads and the width of a head (the
    mean of keys' and values'); elementwise kernels the bytes they move.
    """
    found: list[dict[str, str]] = []
    for one, entry in profile.measured():
        if entry.get("spread_fraction", 0.0) <= MAX_SPREAD_FRACTION:
            found.extend(_rows(one, entry))
    return found


def _rows(one: Measurement, entry: dict[str, Any]) -> Iterator[dict[str, str]]:
    seconds = float(entry["median_s"])
    if one.op == "gemm":
        direction, kernel = _GEMM_KERNELS[one.variant]
        yield _row("gemm", one, direction, kernel, (one["m"], one["n"], one["k"]), seconds)
    elif one.op == "fp8" and one.words[0] != "cast":
        split = "" if one.variant == "forward" else " split"
        shape = one["m"], one["n"], one["k"]
        yield _row("gemm", one, one.variant, f"torch scaled_mm{split}", shape, seconds)
    elif one.op == "grouped":
        sides = one["experts"], one["tokens"], one["n"], one["k"]
        yield _row("grouped", one, one.variant, "torch grouped_mm", sides, seconds)
    elif one.op == "attention":
        kernel, direction = one.words
        width = (one["head_dim"] + one["v_head_dim"]) // 2
        sides = one["seq"], one["batch"], one["heads"], width
        yield _row("attention", one, direction, kernel, sides, seconds, str(one["causal"]))
    elif (one.op, one.variant) in _ONE_KERNEL and not _of_heads(one):
        kernel = _ONE_KERNEL[one.op, one.variant]
        yield _row("memory", one, "", kernel, (int(bytes_of(one)),), seconds)
    elif one.op == "launch" and one.words[0] == "add":
        kernel = "graphed tiny add" if one.words[1] == "graph" else "eager tiny add"
        yield _row("launch", one, "", kernel, (), seconds)


def _of_heads(one: Measurement) -> bool:
    """Norms of single heads: rows so short that torch's own kernels are far from the bandwidth."""
    return one.op == "norm" and one["width"] < 512


def _row(
    operator: str, one: Measurement, direction: str, kernel: str, sides: tuple[int, ...],
    seconds: float, causal: str = "",
) -> dict[str, str]:  # fmt: skip
    letters = dict(zip("abcd", (*map(str, sides), "", "", "", ""), strict=False))
    return {
        "operator": operator,
        "dtype": one.dtype,
        "direction": direction,
        "kernel": kernel,
        **letters,
        "causal": causal,
        "seconds": f"{seconds:.4e}",
    }


def write_rows(path: Path, rows: Iterable[dict[str, str]]) -> None:
    """The rows as compressed CSV, the same bytes for the same rows."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def machine_text(machine: dict[str, Any]) -> str:
    """Where the figures come from, as a source says it."""
    power = machine.get("power_limit_w")
    watts = f"{power:.0f} W; " if isinstance(power, float) else ""
    parts = [f"torch {machine.get('torch')}"]
    if isinstance(machine.get("cudnn"), int):  # 91900 is 9.19
        parts.append(f"cuDNN {machine['cudnn'] // 10000}.{machine['cudnn'] % 10000 // 100}")
    if machine.get("driver"):
        parts.append(f"driver {machine['driver']}")
    return f"`astra profile` on one {machine.get('gpu')} ({watts}{', '.join(parts)})"
