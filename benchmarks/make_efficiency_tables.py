"""Makes `src/astra/data/efficiency` and `docs/efficiency.md` out of a folder of measurements.

    python -m benchmarks.make_efficiency_tables FOLDER        (needs the extra `fit`)

FOLDER holds, as published by their authors and turned into CSV:

    matmul_efficiency.csv                                  attention charts, cuBLASLt results
    opdata/ai-dynamo_aiconfigurator/<system>/gemm_*.csv.gz    products: m, n, k, milliseconds
    opdata/ai-dynamo_aiconfigurator/<system>/context_attention_*.csv.gz, moe_*.csv.gz
    opdata/MooreThreads_SimuMax/op_efficiency_flat.csv.gz     efficiencies of training kernels
    opdata/eth-easl_sailor/aceso_op_profiles/op_times_all.csv.gz
    opdata/Azure_AI-benchmarking-guide/nd_results_flat.csv    bandwidth of memory

`h200-kernels.csv.gz` in the data folder is our own measurement of an H200 and is read from there;
its attention is that of `validation/profiles/h200.json.gz`.
Rows under share-alike licences are not used. A fifth of the shapes is held back, whole (n, k)
pairs; the errors in `docs/efficiency.md` are those on the shapes held back. The tables that are
written use all of them.
"""

import csv
import gzip
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from benchmarks import boosted

from astra.files import Source, convert, read_toml
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Gpu
from astra.profile.rows import kernel_rows
from astra.profile.store import read_profile
from astra.timing.attention_rate import BACKWARD_FLOPS, HEAD_DIMS, AttentionRate, attention_s
from astra.timing.efficiency import (
    FINE,
    FOLDER,
    SOFT_PEAK,
    Attention,
    Direction,
    GemmFile,
    Kernels,
    MaskedAttention,
    MeasuredGpu,
    MemoryRoof,
    ScaledGpu,
    Transposed,
    gemm_efficiency,
    grouped_gemm_efficiency,
    memory_efficiency,
    peak_flops_per_s,
    steady_table,
)
from astra.timing.gemm import (
    Floats,
    GemmTable,
    corners,
    rising,
)

CAPPED = (
    "power-capped at 70 W: 24 TFLOP/s in products of 4,096, NVIDIA developer forum, thread 264462"
)
READ_ON = "2026-11-15"
DOCS = Path(__file__).parent.parent / "docs" / "efficiency.md"
PROFILES = Path(__file__).parent.parent / "validation" / "profiles"
PROFILE = PROFILES / "h200.json.gz"
LATER = PROFILES / "h200-later.json.gz"
RAMP_S = 2e-6
STEADY_FROM_S = 30e-6
SMOOTH = 0.3
HELD_BACK = 5  # one pair in five
# Of the smooth table's error: trees that gain less do not ship. Smaller gains are habits of the
# inference kernels: on our own timings of an H200, and on Azure's of three GPUs, they were none.
BETTER = 0.67

SHORT = np.array([64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768.0])
LONG = np.array([64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536.0])

SYSTEMS = {
    "A100-80GB-SXM": "a100_sxm",
    "H100-80GB-SXM": "h100_sxm",
    "H200-SXM": "h200_sxm",
    "B200": "b200_sxm",
    "B300": "b300_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "L40S": "l40s",
    "RTX-PRO-6000-Blackwell-SE": "rtx_pro_6000_server",
}
SIMUMAX_SYSTEMS = (
    ("A100-80GB-PCIe", "a100_pcie", 312e12),
    ("B200", "b200_bf16_ceperm", 2250e12),
)
OWN = (
    "our own timings on one H200 (700 W; torch 2.11.0+cu130, cuDNN 9.19, driver 580.159.04), "
    "random data, steady load, CUDA events, medians"
)
LAYOUTS = "torch layouts"  # products timed in their three layouts, one after the other
GH200_SPEED = 0.87  # of Hopper at its own peak and bandwidth: benchmarks/fit_layers.py
GH200 = "eth-easl/sailor @cf2c8e3 (MIT), layers of OPT-350M and OPT-30B timed alone on Alps"
SIMUMAX = "MooreThreads/SimuMax @4dcaae5 (Apache-2.0), Transformer Engine kernels"
AICONF = "ai-dynamo/aiconfigurator @095f58a (Apache-2.0)"
SAILOR = "eth-easl/sailor @cf2c8e3 (MIT), operator profiles"
AZURE = "Azure/AI-benchmarking-guide (MIT)"
CHARTS = "charts of Dao-AILab/flash-attention @025110 (BSD-3)"


@dataclass(slots=True)
class Report:
    """Errors on what was held back, line by line."""

    lines: list[tuple[str, str, str, str, int, float, float]] = field(default_factory=list)

    def add(self, gpu: str, dtype: str, what: str, base: str, ratio: Floats) -> None:
        """`ratio` is predicted over measured time."""
        if len(ratio):
            error = np.abs(ratio - 1)
            line = (gpu, dtype, what, base, len(ratio), float(error.mean()), float(error.max()))
            self.lines.append(line)
            print(f"{gpu:26} {dtype:5} {what:34} {len(ratio):6d} {line[5]:7.1%} {line[6]:7.1%}")


@dataclass(frozen=True, slots=True)
class Products:
    """Measured matrix products: shapes of the forward product, seconds."""

    m: Floats
    n: Floats
    k: Floats
    seconds: Floats

    def take(self, rows: Any) -> "Products":
        return Products(self.m[rows], self.n[rows], self.k[rows], self.seconds[rows])

    @property
    def shape(self) -> tuple[Floats, Floats, Floats]:
        """Shorter and longer side of the result, and the depth."""
        return np.minimum(self.m, self.n), np.maximum(self.m, self.n), self.k

    @property
    def flops(self) -> Floats:
        return 2 * self.m * self.n * self.k

    @property
    def held(self) -> Any:
        """Rows of the (n, k) pairs held back: the same pairs for every GPU."""
        pairs = sorted(set(zip(self.n, self.k, strict=True)))
        np.random.default_rng(0).shuffle(pairs)
        back = {tuple(pair) for pair in pairs[: len(pairs) // HELD_BACK]}
        return np.array([pair in back for pair in zip(self.n, self.k, strict=True)])


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from csv.DictReader(file)


def products(rows: Iterable[tuple[float, float, float, float]]) -> Products:
    table = np.array(list(rows), dtype=np.float64).reshape(-1, 4)
    return Products(*table.T)


# --- Tables of matrix products ------------------------------------------------------------------


def read_products(folder: Path, system: str, dtype: str) -> Products:
    """Products of one system; where two libraries timed a shape, the mean of the logarithms.

    Odd m (one row past a tile) and sides below 64 are left out: training has none.
    """
    found: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for path in sorted((folder / "opdata/ai-dynamo_aiconfigurator" / system).glob("gemm_*")):
        for row in rows_of(path):
            shape = int(row["m"]), int(row["n"]), int(row["k"])
            if row["gemm_dtype"] == dtype and shape[0] % 2 == 0 and min(shape) >= 64:
                found[shape].append(float(row["latency"]) * 1e-3)
    return products((*shape, float(np.exp(np.mean(np.log(s))))) for shape, s in found.items())


def fit_table(seen: Products, gpu: Gpu) -> GemmTable:
    """The smoothest table through the measurements that falls along no axis.

    Least squares on what the roofline leaves over, with a penalty on bends, so that corners
    nobody measured are filled along the roofline.
    """
    axes = (SHORT[np.minimum(seen.m, seen.n).max() >= SHORT], LONG, LONG)
    return _table(axes, seen.shape, np.log(seen.seconds), np.ones(len(seen.m)), gpu, SMOOTH)


def boosted_table(seen: Products, gpu: Gpu) -> GemmTable:
    """The same on a fine grid, through the measurements and what trees answer at its corners."""
    short, long, depth = seen.shape
    asked = boosted.trees(seen.shape, np.log(seen.seconds), gpu, _prior(gpu))
    axes = (boosted.SHORT[short.max() >= boosted.SHORT], boosted.LONG, boosted.DEPTH)
    corner = np.stack(np.meshgrid(*axes, indexing="ij")).reshape(3, -1)
    known = (corner[0] <= corner[1]) & (corner[1] <= long.max()) & (corner[2] <= depth.max())
    corner = corner[:, known]
    shape = tuple(np.concatenate(pair) for pair in zip(seen.shape, corner, strict=True))
    log_s = np.concatenate([np.log(seen.seconds), asked(*corner)])
    weight = np.concatenate([np.ones(len(short)), np.full(len(corner[0]), boosted.WEIGHT)])
    return _table(axes, shape, log_s, weight, gpu, boosted.SMOOTH)


def _prior(gpu: Gpu) -> boosted.Roofline:
    return boosted.Roofline(SOFT_PEAK * _peak(gpu), SOFT_PEAK * gpu.memory_bytes_per_s, RAMP_S)


def _table(
    axes: Sequence[Floats],
    shape: Sequence[Floats],
    log_s: Floats,
    weight: Floats,
    gpu: Gpu,
    smooth: float,
) -> GemmTable:
    prior = _prior(gpu)(*np.meshgrid(*axes, indexing="ij"))
    near = corners(axes, shape)
    left = log_s - sum(part * prior.ravel()[index] for index, part in near)
    for axis, x in zip(axes, shape, strict=True):  # the table lets time grow with a side beyond it
        left = left - np.log(np.maximum(x / axis[-1], 1.0))
    root = np.sqrt(weight)
    weighed = [(index, part * root) for index, part in near]
    fitted = prior + smoothest(axes, weighed, left * root, smooth)
    above = rising(fitted)
    below = -rising(-fitted[::-1, ::-1, ::-1])[::-1, ::-1, ::-1]
    return GemmTable(short=axes[0], long=axes[1], depth=axes[2], log_s=(above + below) / 2)


def _peak(gpu: Gpu) -> float:
    assert gpu.bf16_flops_per_s is not None
    return gpu.bf16_flops_per_s


def smoothest(
    axes: Sequence[Floats], near: list[tuple[Any, Floats]], left: Floats, smooth: float
) -> Floats:
    """Minimises |A x - left|^2 + smooth |bends of x|^2 by conjugate gradients."""
    shape = tuple(len(axis) for axis in axes)
    size = int(np.prod(shape))
    bends = [_bend_matrix(np.log(axis)) for axis in axes]

    def curve(x: Floats) -> Floats:
        cube, total = x.reshape(shape), np.zeros(shape)
        for axis, bend in enumerate(bends):
            part = np.tensordot(bend, cube, axes=(1, axis))
            total += np.moveaxis(part, 0, axis)
        return total.ravel()

    def normal(x: Floats) -> Floats:
        seen = sum(weight * x[index] for index, weight in near)
        return spread(np.asarray(seen)) + smooth * curve(x) + 1e-6 * x

    def spread(y: Floats) -> Floats:
        total = np.zeros(size)
        for index, weight in near:
            total += np.bincount(index, weight * y, size)
        return total

    return conjugate_gradients(normal, spread(left)).reshape(shape)


def _bend_matrix(logs: Floats) -> Floats:
    """The quadratic form of second differences on an uneven axis."""
    steps = np.diff(logs)
    slopes = np.diff(np.eye(len(logs)), axis=0) / steps[:, None]
    bends = np.diff(slopes, axis=0) * (0.5 * np.sqrt(steps[1:] + steps[:-1]))[:, None]
    return bends.T @ bends


def conjugate_gradients(apply: Callable[[Floats], Floats], right: Floats) -> Floats:
    x = np.zeros_like(right)
    residual = right.copy()
    step, norm = residual.copy(), float(residual @ residual)
    target = 1e-12 * norm
    for _ in range(400):
        image = apply(step)
        length = norm / float(step @ image)
        x += length * step
        residual -= length * image
        new = float(residual @ residual)
        if new < target:
            break
        step, norm = residual + new / norm * step, new
    return x


def table_errors(report: Report, name: str, seen: Products, gpu: Gpu) -> GemmTable | None:
    """A table by trees, where that is better by a third at the sizes of training.

    Told by tables made without the pairs held back, on those pairs; reports both.
    """
    held = seen.held
    test = seen.take(held)
    large = (np.minimum(test.m, np.minimum(test.n, test.k)) >= 512) & (test.flops > 2e10)
    base = "raw inference kernels, pairs held back"
    off = {}
    for make, how in ((fit_table, "smooth"), (boosted_table, "trees")):
        table = make(seen.take(~held), gpu)
        ratio = table.seconds(test.m, test.n, test.k) / test.seconds
        report.add(name, "bf16", f"product, all shapes, {how}", base, ratio)
        report.add(name, "bf16", f"product, training sizes, {how}", base, ratio[large])
        off[how] = float(np.abs(ratio[large] - 1).mean())
    return boosted_table(seen, gpu) if off["trees"] < BETTER * off["smooth"] else None


# --- Steady load, directions, formats -----------------------------------------------------------


def own_rows(operator: str, **wanted: str) -> list[dict[str, str]]:
    return [
        row
        for row in rows_of(FOLDER / "h200-kernels.csv.gz")
        if row["operator"] == operator and all(row[key] == value for key, value in wanted.items())
    ]


def own_products(dtype: str, direction: str, kernel: str) -> Products:
    rows = own_rows("gemm", dtype=dtype, direction=direction, kernel=kernel)
    return products(
        (float(r["a"]), float(r["b"]), float(r["c"]), float(r["seconds"])) for r in rows
    )


def simumax(folder: Path, system: str, operator: str) -> Iterator[tuple[dict[str, str], float]]:
    """Shape and efficiency of each row of one operator."""
    path = folder / "opdata/MooreThreads_SimuMax/op_efficiency_flat.csv.gz"
    for row in rows_of(path):
        if row["system"] == system and row["op"] == operator:
            shape = dict(re.findall(r"(\w+)=(\w+)", row["shape_key"]))
            yield shape, float(row["measured_efficiency"])


def simumax_products(folder: Path, system: str, peak: float, layout: str, out: str) -> Products:
    """Products of one layout, as shapes of the product itself."""
    return products(
        (m, n, k, 2 * m * n * k / (peak * share))
        for shape, share in simumax(folder, system, "matmul")
        if shape["layout"] == layout and shape["out_dtype"] == out and shape["b"] == "1"
        for m, n, k in [(float(shape["m"]), float(shape["n"]), float(shape["k"]))]
    )


def as_products(seen: Products, direction: str) -> Products:
    """Own rows name the forward shape; this is the shape of the product that ran."""
    if direction == "dgrad":
        return Products(seen.m, seen.k, seen.n, seen.seconds)
    return Products(seen.n, seen.k, seen.m, seen.seconds) if direction == "wgrad" else seen


def slowdown(table: GemmTable, seen: Products) -> float:
    """The f of `sustained_s` that makes half of the longer kernels too slow, half too fast."""
    burst_s = table.seconds(seen.m, seen.n, seen.k)
    keep = burst_s > 2 * STEADY_FROM_S
    burst_s = burst_s[keep]
    factors = 1 + (seen.seconds[keep] / burst_s - 1) * (burst_s + STEADY_FROM_S) / burst_s
    return float(np.median(factors))


def azure_products(folder: Path, gpu: str, dtype: str) -> Products:
    return products(
        (m, n, k, 2 * m * n * k / (float(row["tflops"]) * 1e12))
        for row in rows_of(folder / "matmul_efficiency.csv")
        if row["kind"] == "gemm" and row["gpu_id"] == gpu and row["dtype"] == dtype
        if row["source"].startswith("Azure") and float(row["m"]) < 1e5
        for m, n, k in [(float(row["m"]), float(row["n"]), float(row["k"]))]
    )


def format_factor(folder: Path, row: MeasuredGpu, gpu: Gpu, table: GemmTable, dtype: str) -> float:
    """Time of a format over the bf16 response at its own peak, both in bursts.

    Upstream times include casting the input, so only wide products tell: there it is small.
    """
    upstream = {"fp8": "fp8", "fp4": "nvfp4"}[dtype]
    seen = read_products(folder, SYSTEMS[row.gpu], upstream)
    seen = seen.take((seen.n >= 10240) & (seen.k >= 2048) & (seen.m >= 2048))
    if not len(seen.m) or getattr(gpu, f"{dtype}_flops_per_s") is None:
        return 0.0
    plain = replace_struct(row, slowdown=1.0, formats={})
    ready = steady_table(gpu, dtype, plain, table, bare_kernels(), 1.0)
    return float(np.median(seen.seconds / ready.seconds(seen.m, seen.n, seen.k)))


T = TypeVar("T", bound=msgspec.Struct)


def replace_struct(row: T, **changes: Any) -> T:
    return msgspec.structs.replace(row, **changes)


# --- Attention ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passes:
    """Measured passes of attention, with FLOPs as we count them (causal at half)."""

    seq: Floats
    heads: Floats  # batch x heads
    head_dim: Floats
    flops: Floats
    seconds: Floats

    def take(self, rows: Any) -> "Passes":
        return Passes(*(getattr(self, name)[rows] for name in self.__slots__))

    def predicted_s(self, rate: AttentionRate, peak: float) -> Floats:
        return attention_s(rate, peak, self.flops, self.seq, self.seq, self.heads, self.head_dim)


def passes(rows: Iterable[tuple[float, float, float, float, bool, bool]]) -> Passes:
    """From (sequence, heads in all, head_dim, seconds, causal, backward)."""
    table = np.array(list(rows), dtype=np.float64).reshape(-1, 6)
    s, h, d, seconds, causal, back = table.T
    flops = 4 * h * s * s * d * (1 - causal / 2) * (1 + back * (BACKWARD_FLOPS - 1))
    return Passes(s, h, d, flops, seconds)


def own_passes(direction: str, causal: bool) -> Passes:
    rows = own_rows("attention", direction=direction, kernel="cudnn", causal=str(int(causal)))
    least_s = 150e-6 if direction == "backward" else 0.0  # shorter ones waited for the host
    return passes(
        (float(r["a"]), float(r["b"]) * float(r["c"]), float(r["d"]), s, causal, back)
        for r in rows
        for s, back in [(float(r["seconds"]), direction == "backward")]
        if s > least_s
    )


def masked_attention() -> MaskedAttention:
    """Attention with a mask: the median share of the peak by the head's width, whole squares."""
    peak = peak_flops_per_s(find_gpu("H200-SXM")[0], "bf16")
    shares: dict[str, list[float]] = {}
    for direction, times in (("forward", 4.0), ("backward", 4.0 * BACKWARD_FLOPS)):
        rows = own_rows("masked", direction=direction)
        for width in HEAD_DIMS:
            seen = [
                times * float(r["b"]) * float(r["c"]) * float(r["a"]) ** 2 * width
                / (peak * float(r["seconds"]))
                for r in rows
                if float(r["d"]) == width
            ]  # fmt: skip
            shares.setdefault(direction, []).append(round(float(np.median(seen)), 3))
    where = f"scaled_dot_product_attention with a boolean mask, {OWN}"
    source = Source(kind="measured", where=where, read_on=READ_ON)
    return MaskedAttention(
        gpu="H200-SXM",
        forward=(shares["forward"][0], shares["forward"][1], shares["forward"][2]),
        backward=(shares["backward"][0], shares["backward"][1], shares["backward"][2]),
        source=source,
    )


def simumax_passes(folder: Path, system: str, peak: float, direction: str) -> Passes:
    """SimuMax counts the whole square, forward 2 and backward 5 products; heads of 192 and 128."""
    back = direction == "backward"
    found = []
    for shape, share in simumax(folder, system, "sdp_bwd" if back else "sdp_fwd"):
        s, h = float(shape["seq_len"]), float(shape["batch"]) * float(shape["head_num"])
        d = (float(shape["qk_head_dim"]) + float(shape["v_head_dim"])) / 2
        square = 4 * h * s * s * d * (BACKWARD_FLOPS if back else 1)
        found.append((s, h, d, square / (peak * share), True, back))
    return passes(found)


def upstream_passes(folder: Path, system: str, head_dims: Sequence[int]) -> Passes:
    """Causal forward passes of an inference engine, which also rotates and stores keys."""
    found: dict[tuple[float, float, float], list[float]] = defaultdict(list)
    base = folder / "opdata/ai-dynamo_aiconfigurator" / system
    for row in rows_of(next(base.glob("context_attention_*"))):
        plain = row["attn_dtype"] == row["kv_cache_dtype"] == "bfloat16"
        shape = (
            float(row["isl"]),
            float(row["batch_size"]) * float(row["num_heads"]),
            float(row["head_dim"]),
        )
        if plain and shape[0] >= 1024 and shape[1] >= 8 and shape[2] in head_dims:
            found[shape].append(float(row["latency"]) * 1e-3)
    return passes((*shape, float(np.median(times)), True, False) for shape, times in found.items())


def fit_rate(
    seen: Passes, peak: float, start: AttentionRate, free: Sequence[str], stored: float = 0.0
) -> AttentionRate:
    """Pattern search on the mean squared logarithm of the error.

    `free` names what may move: rate, narrow (rate at 64), wide (rate at 256), tail, fill.
    `stored` is seconds per element of the queries that the kernels spent on something else.
    """

    def built(x: dict[str, float]) -> AttentionRate:
        rate = x["rate"]
        return AttentionRate(
            rates=(rate * x["narrow"], rate, rate * x["wide"]),
            tail_tokens=x["tail"],
            fill_rows=x["fill"],
            ramp_s=start.ramp_s,
        )

    def miss(x: dict[str, float]) -> float:
        extra_s = stored * seen.heads * seen.seq * seen.head_dim
        times = seen.predicted_s(built(x), peak) + extra_s
        return float(np.mean(np.log(times / seen.seconds) ** 2))

    at = {
        "rate": start.rates[1],
        "narrow": start.rates[0] / start.rates[1],
        "wide": start.rates[2] / start.rates[1],
        "tail": start.tail_tokens,
        "fill": start.fill_rows,
    }
    best, step = miss(at), 0.5
    while step > 1e-3:
        tries = [at | {name: at[name] * f} for name in free for f in (1 + step, 1 / (1 + step))]
        misses = [miss(one) for one in tries]
        if min(misses) < best - 1e-9:
            best = min(misses)
            at = tries[misses.index(best)]
        else:
            step /= 2
    return built(at)


def fit_with_errors(
    report: Report,
    label: tuple[str, str, str],
    seen: Passes,
    peak: float,
    start: AttentionRate,
    free: Sequence[str],
    stored: float = 0.0,
    blank: AttentionRate | None = None,
) -> AttentionRate:
    """A fit on all rows, after one without every fifth row has been tested on those.

    `blank` is where the latter starts, if `start` has seen the rows that are held back.
    """
    order = np.random.default_rng(0).permutation(len(seen.seq))
    held = np.isin(np.arange(len(order)), order[: len(order) // HELD_BACK])
    rate = fit_rate(seen.take(~held), peak, blank or start, free, stored)
    test = seen.take(held)
    extra_s = stored * test.heads * test.seq * test.head_dim
    ratio = (test.predicted_s(rate, peak) + extra_s) / test.seconds
    report.add(label[0], "bf16", label[1], label[2], ratio)
    return fit_rate(seen, peak, start, free, stored)


def chart_passes(folder: Path, gpu: str, software: tuple[str, ...], causal: bool) -> Passes:
    """Forward passes read off charts: 2048 wide, 16,384 tokens in all."""
    return passes(
        (s, b * 2048 / d, d, 2 * b * 2048 * s * s * (1 if causal else 2) / rate, causal, False)
        for row in rows_of(folder / "matmul_efficiency.csv")
        if row["kind"] == "attention" and row["gpu_id"] == gpu and row["pass"] == "fwd"
        if row["software"].startswith(software) and row["causal"] == str(int(causal))
        for s, b, d, rate in [
            (
                float(row["seq_len"]),
                float(row["batch"]),
                float(row["head_dim"]),
                float(row["tflops"]) * 1e12,
            )
        ]
    )


def narrow_heads(folder: Path) -> float:
    """Rate at head_dim 64 over 128 in FlashAttention 2 on an A100, forward and backward."""
    seen: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in rows_of(folder / "matmul_efficiency.csv"):
        if row["kind"] == "attention" and row["gpu_id"].startswith("A100") and row["causal"]:
            seen[row["causal"], row["seq_len"]][row["head_dim"]] = float(row["tflops"])
    return float(np.median([by["64"] / by["128"] for by in seen.values() if len(by) == 2]))


def h200_attention(report: Report, peak: float) -> Attention:
    """All four kernels, each fitted on our own timings of cuDNN."""
    start = AttentionRate(rates=(0.45, 0.6, 0.6), tail_tokens=350, fill_rows=16900, ramp_s=5e-6)
    fitted = {}
    for direction in ("forward", "backward"):
        for causal in (True, False):
            what = f"attention {direction}, {'causal' if causal else 'no mask'}"
            begin = replace_struct(start, ramp_s=5e-6 if direction == "forward" else 1e-5)
            fitted[f"{direction}_{'causal' if causal else 'full'}"] = fit_with_errors(
                report,
                ("H200-SXM", what, "our own timings, shapes held back"),
                own_passes(direction, causal),
                peak,
                begin,
                ("rate", "narrow", "wide", "tail", "fill"),
            )
    source = Source(kind="measured", where=f"cuDNN: {OWN}", read_on=READ_ON)
    return Attention(**fitted, seq_from=512, seq_to=32768, source=source)


def faster(rate: AttentionRate, factor: float) -> AttentionRate:
    low, middle, high = (min(share * factor, 0.9) for share in rate.rates)
    return replace_struct(rate, rates=(low, middle, high))


def like(model: Attention, forward: AttentionRate, backward: AttentionRate) -> dict[str, Any]:
    """The kernels without a mask, from those with one, in the proportions of another GPU."""

    def full(own: AttentionRate, causal: AttentionRate, plain: AttentionRate) -> AttentionRate:
        shares = [
            min(a * p / c, 0.75)
            for a, p, c in zip(own.rates, plain.rates, causal.rates, strict=True)
        ]
        return AttentionRate(
            rates=(shares[0], shares[1], shares[2]),
            tail_tokens=own.tail_tokens * plain.tail_tokens / causal.tail_tokens,
            fill_rows=own.fill_rows * plain.fill_rows / causal.fill_rows,
            ramp_s=own.ramp_s,
        )

    return {
        "forward_causal": forward,
        "backward_causal": backward,
        "forward_full": full(forward, model.forward_causal, model.forward_full),
        "backward_full": full(backward, model.backward_causal, model.backward_full),
    }


def training_attention(
    report: Report,
    folder: Path,
    name: str,
    system: str,
    ratios: tuple[float, float],
    tails: tuple[float, float],
    seqs: tuple[float, float],
    fill_rows: float,
    free: Sequence[str],
    model: Attention,
) -> Attention:
    """Forward and backward of a GPU that SimuMax timed."""
    peak = _peak(find_gpu(name)[0])
    fitted = []
    for direction, tail in zip(("forward", "backward"), tails, strict=True):
        start = AttentionRate(
            rates=(0.5 * ratios[0], 0.5, 0.5 * ratios[1]),
            tail_tokens=tail,
            fill_rows=fill_rows,
            ramp_s=5e-6 if direction == "forward" else 1e-5,
        )
        rate = fit_with_errors(
            report,
            (name, f"attention {direction}, causal", "SimuMax, shapes held back"),
            simumax_passes(folder, system, peak, direction),
            peak,
            start,
            free,
        )
        wide = max(rate.rates[2], 0.6 * rate.rates[1])  # seen at 160 only, held back at 256
        fitted.append(replace_struct(rate, rates=(*rate.rates[:2], wide)))
    source = Source(kind="fitted", where=SIMUMAX, read_on=READ_ON)
    return Attention(**like(model, *fitted), seq_from=seqs[0], seq_to=seqs[1], source=source)


def upstream_attention(
    report: Report, folder: Path, name: str, fill_rows: float, model: Attention, hopper: Attention
) -> Attention:
    """Forward fitted on an inference engine, less what it does beside attention; backward in the
    proportion of another GPU."""
    gpu = find_gpu(name)[0]
    seen = upstream_passes(folder, SYSTEMS[name], (64, 128, 256))
    start = AttentionRate(rates=(0.4, 0.45, 0.4), tail_tokens=350, fill_rows=fill_rows, ramp_s=5e-6)
    free = ("rate", "narrow", "wide", "tail", "fill")
    stored = 5 / gpu.memory_bytes_per_s  # bytes per query element: keys rotated and stored
    label = (name, "attention forward, causal", "inference engine, shapes held back")
    rate = fit_with_errors(report, label, seen, _peak(gpu), start, free, stored)
    ratio = rate.rates[1] / model.forward_causal.rates[1]
    back = faster(model.backward_causal, ratio)
    back = replace_struct(
        back,
        fill_rows=model.backward_causal.fill_rows * rate.fill_rows / model.forward_causal.fill_rows,
    )
    where = f"forward {AICONF}, TensorRT-LLM; backward in the proportion of {SIMUMAX} on A100"
    source = Source(kind="fitted", where=where, read_on=READ_ON)
    return Attention(**like(hopper, rate, back), seq_from=1024, seq_to=16384, source=source)


def sibling_attention(folder: Path, name: str, lender: str, model: Attention) -> Attention:
    """A sister GPU's kernels, sped up as an inference engine sped up from one to the other."""
    times = []
    for gpu in (name, lender):
        seen = upstream_passes(folder, SYSTEMS[gpu], (128,))
        keep = seen.take(seen.seq >= 4096)
        shapes = zip(keep.seq, keep.heads, strict=True)
        peak = _peak(find_gpu(gpu)[0])
        times.append(dict(zip(shapes, keep.seconds * peak, strict=True)))
    common = set(times[0]) & set(times[1])
    speed = float(np.median([times[1][shape] / times[0][shape] for shape in common]))
    kernels = ("forward_causal", "forward_full", "backward_causal", "backward_full")
    source = Source(
        kind="fitted",
        where=f"kernels of {lender}, {model.source.where}; speed between the two from {AICONF}",
        read_on=READ_ON,
    )
    rates = {kernel: faster(getattr(model, kernel), speed) for kernel in kernels}
    return Attention(**rates, seq_from=model.seq_from, seq_to=model.seq_to, source=source)


def h100_attention(report: Report, folder: Path, h200: Attention, peak: float) -> Attention:
    """The kernels of the H200, slowed to the charts of H100."""
    ratios = []
    for causal in (True, False):
        seen = chart_passes(folder, "H100-80GB-SXM", ("cuDNN", "FlashAttention 3"), causal)
        rate = h200.forward_causal if causal else h200.forward_full
        ratios.append(seen.predicted_s(rate, peak) / seen.seconds)
    ratio = np.concatenate(ratios)
    speed = float(np.median(ratio))
    base = f"cuDNN and FlashAttention 3 in {CHARTS}; kernels of H200 with one factor"
    report.add("H100-80GB-SXM", "fp16", "attention forward, both", base, ratio / speed)
    kernels = ("forward_causal", "forward_full", "backward_causal", "backward_full")
    where = f"cuDNN: kernels of H200 ({OWN}), speed after {CHARTS}"
    return Attention(
        **{kernel: faster(getattr(h200, kernel), speed) for kernel in kernels},
        seq_from=512,
        seq_to=16384,
        source=Source(kind="fitted", where=where, read_on=READ_ON),
    )


def all_attention(report: Report, folder: Path) -> dict[str, Attention]:
    """Attention of every GPU with a table."""
    peak = _peak(find_gpu("H200-SXM")[0])
    h200 = h200_attention(report, peak)
    h100 = h100_attention(report, folder, h200, peak)
    a100 = training_attention(
        report,
        folder,
        "A100-80GB-SXM",
        "a100_pcie",
        (narrow_heads(folder), 0.9),
        (150, 600),  # FlashAttention 2 in the charts; SimuMax has one length only
        (512, 16384),
        128 * 108,
        ("rate", "wide", "fill"),
        h200,
    )
    b200 = training_attention(
        report,
        folder,
        "B200",
        "b200_bf16_ceperm",
        (0.75, 0.85),
        (500, 500),
        (4096, 131072),
        128 * 148,
        ("rate", "wide", "tail", "fill"),
        h200,
    )
    return {
        "A100-80GB-SXM": a100,
        "H100-80GB-SXM": h100,
        "H200-SXM": h200,
        "B200": b200,
        **{
            name: sibling_attention(folder, name, "B200", b200)
            for name in ("B300", "GB200", "GB300")
        },
        "L40S": upstream_attention(report, folder, "L40S", 128 * 142, a100, h200),
        "RTX-PRO-6000-Blackwell-SE": upstream_attention(
            report, folder, "RTX-PRO-6000-Blackwell-SE", 128 * 188, a100, h200
        ),
    }


# --- Bandwidth, and GPUs that borrow ------------------------------------------------------------

SAILOR_GPUS = {
    "A100-40": "A100-40GB-SXM",
    "V100-16": "V100-16GB-SXM2",
    "RTX-3090": "RTX-3090",
    "Titan-RTX": "Titan-RTX",
    "RTX-2080": "RTX-2080-Ti",
}
SAILOR_WIDTHS = {"GPT-Neo-2.7": 2560.0, "OPT-350": 1024.0, "OPT-30": 7168.0}


def sailor_rows(
    folder: Path, gpu: str, operators: Sequence[str], dtype: str = "fp16"
) -> Iterator[dict[str, str]]:
    path = folder / "opdata/eth-easl_sailor/aceso_op_profiles/op_times_all.csv.gz"
    for row in rows_of(path):
        alone = (row["gpu"], row["dtype"], row["tp"], row["algo"]) == (gpu, dtype, "1", "0")
        if alone and row["op_name"] in operators and float(row["forward_us"]) > 200:
            yield row


def sailor_products(folder: Path, gpu: str, dtype: str = "fp16") -> Products:
    found = []
    for row in sailor_rows(folder, gpu, ("enc-attention-dense", "enc-MLP-GEMM-2"), dtype):
        width = SAILOR_WIDTHS[row["model"]]
        depth = 4 * width if "MLP" in row["op_name"] else width
        found.append((2048 * float(row["mbs"]), width, depth, float(row["forward_us"]) * 1e-6))
    return products(found)


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
        source=_source(kind, where),
    )


def azure_stream(folder: Path) -> dict[str, float]:
    """Mean of copy and add over nominal bandwidth."""
    names = {"A100_v4": "A100-80GB-SXM", "H100_v5": "H100-80GB-SXM", "H200_v5": "H200-SXM"}
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows_of(folder / "opdata/Azure_AI-benchmarking-guide/nd_results_flat.csv"):
        stream = row["section"] == "HBM Bandwidth" and row["c1"] in ("Copy", "Add")
        if stream and row["system"] in names:
            found[names[row["system"]]].append(float(row["c2"]) * 1e12)
    return {
        name: float(np.mean(rates)) / find_gpu(name)[0].memory_bytes_per_s
        for name, rates in found.items()
    }


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
    found.append(replace_struct(alps, memory=GH200_SPEED))
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


# --- Putting it together ------------------------------------------------------------------------


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


def slowdown_fp8(folder: Path, name: str, table: GemmTable) -> float:
    """Steady load over bursts, told by fp8 products at twice the peak."""
    seen = azure_products(folder, name, "fp8")
    return slowdown(table, Products(seen.m, seen.n, seen.k, 2 * seen.seconds))


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


def gemm_source(folder: Path, name: str) -> Source:
    files = sorted((folder / "opdata/ai-dynamo_aiconfigurator" / SYSTEMS[name]).glob("gemm_*"))
    libraries = [path.name.removeprefix("gemm_").removesuffix(".csv.gz") for path in files]
    said = " and ".join(
        library.replace("trtllm_", "TensorRT-LLM ").replace("vllm_", "vLLM ")
        for library in libraries
    )
    return Source(
        kind="measured",
        where=f"{said} on {name}, {AICONF}",
        read_on=READ_ON,
        note="forward products in bf16, short bursts; smoothed and made to rise",
    )


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
            flops_per_s=_peak(gpu),
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
        found.append(replace_struct(row, formats={d: f for d, f in formats.items() if f > 0}))
    return found


def own_formats(row: MeasuredGpu, table: GemmTable) -> dict[str, float]:
    """fp8, tf32 and fp32 on the H200, over the bf16 response at their own peaks."""
    gpu, found = find_gpu("H200-SXM")[0], {}
    for dtype, kernel in (("fp8", "torch scaled_mm"), ("tf32", "torch"), ("fp32", "torch")):
        seen = own_products(dtype, "forward", kernel)
        ready = steady_table(
            gpu, dtype, replace_struct(row, formats={}), table, bare_kernels(), 1.0
        )
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
        Transposed(architecture=chip, format="tf32", **found, source=_source(kind, where))
        for chip, kind, where in (("Hopper", "measured", timed), ("Ampere", "guessed", like))
    )


def _source(kind: str, where: str) -> Source:
    return Source(kind=kind, where=where, read_on=READ_ON)


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
        replace_struct(row, formats={d: round(f * cast, 3) for d, f in row.formats.items()})
        for row in measured
    ]
    known = replace_struct(
        bare_kernels(),
        accumulate_bytes=accumulate_bytes(folder, lent),
        formats=formats,
        transposed=transposed(h200, tables["H200-SXM"]),
        measured=tuple(measured),
        memory=tuple(memory_shares(folder)),
    )
    scaled = scaled_gpus(report, folder, known, tables, lent, pcie)
    return replace_struct(known, scaled=tuple(scaled))


def with_profile(report: Report, known: Kernels) -> Kernels:
    """The H200's attention as `astra profile` measured it there, longer sequences too."""
    from benchmarks.tables_from_profile import fitted_attention, source_of, with_attention

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


def check_later(report: Report) -> None:
    """The finished tables on shapes of a later sitting, which none of them was made with."""
    from benchmarks.tables_from_profile import HOST_SHOWS_S, attention_rows, plain_products

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


# --- Writing ------------------------------------------------------------------------------------


def write_table(name: str, table: GemmTable, source: Source) -> None:
    file = GemmFile(
        gpu=name.partition(".")[0],
        source=source,
        short=tuple(table.short.tolist()),
        long=tuple(table.long.tolist()),
        depth=tuple(table.depth.tolist()),
        log_us_e3=tuple(int(x) for x in np.round(1000 * (table.log_s.ravel() + np.log(1e6)))),
    )
    told = msgspec.to_builtins(file)
    told["source"] = {key: value for key, value in told["source"].items() if value}
    lines = [f'  "{key}": {json.dumps(value)}' for key, value in told.items()]
    (FOLDER / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def toml_lines(table: dict[str, Any], path: str) -> Iterator[str]:
    """A table in TOML: plain values first, then the tables inside it."""
    plain = {k: v for k, v in table.items() if not isinstance(v, dict) and not _is_tables(v)}
    for key, value in plain.items():
        if value not in (None, [], ()):
            yield f"{key} = {_toml_value(value)}"
    for key, value in table.items():
        inner = f"{path}.{key}" if path else key
        if isinstance(value, dict) and (value or key == "formats"):
            yield f"\n[{inner}]"
            yield from toml_lines(value, inner)
        if _is_tables(value):
            for one in value:
                yield f"\n[[{inner}]]"
                yield from toml_lines(one, inner)


def _is_tables(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], dict)


def _toml_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)


HEADER = """\
# How kernels run on GPUs: everything but the tables of matrix products beside this file.
# Made by benchmarks/make_efficiency_tables.py from published measurements and our own of an H200
# (h200-kernels.csv.gz); docs/efficiency.md has the errors on shapes that were held back.

"""


def read_kernels() -> Kernels:
    """What is installed."""
    path = FOLDER / "kernels.toml"
    return convert(read_toml(path), Kernels, path.name)


def write_kernels(known: Kernels) -> None:
    lines = toml_lines(msgspec.to_builtins(known), "")
    (FOLDER / "kernels.toml").write_text(HEADER + "\n".join(lines) + "\n")


# --- Checks of the finished files ---------------------------------------------------------------


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


def forward_shape(seen: Products, direction: str) -> Products:
    """The reverse of `as_products`."""
    if direction == "dgrad":
        return Products(seen.m, seen.k, seen.n, seen.seconds)
    return Products(seen.k, seen.m, seen.n, seen.seconds) if direction == "wgrad" else seen


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


PAGE = """\
# Measured efficiencies

Made by `benchmarks/make_efficiency_tables.py`; do not edit. Numbers are errors of predicted kernel
time, |predicted / measured - 1|, on the rows named under *checked on*. "Held back" means a fifth of
the shapes (for products whole (n, k) pairs) that the fit did not see; "one factor" means that the
shape response came from elsewhere and a single number was fitted on the rows shown, so that their
mean is flattered a little. Kernels under 30 us (grouped 60, attention backward 150) of our own and
of SimuMax are left out: the host shows in them.

| GPU | format | operator | checked on | rows | mean | worst |
| --- | --- | --- | --- | ---: | ---: | ---: |
"""


def write_page(report: Report) -> None:
    lines = [
        f"| {gpu} | {dtype} | {what} | {base} | {rows:,} | {mean:.1%} | {worst:.0%} |"
        for gpu, dtype, what, base, rows, mean, worst in report.lines
    ]
    DOCS.parent.mkdir(exist_ok=True)
    DOCS.write_text(PAGE + "\n".join(lines) + "\n" + NOTES)


NOTES = """
## What the numbers rest on

- Products: TensorRT-LLM and vLLM timed 6,000 to 25,000 bf16 shapes on each of nine GPUs. The two
  libraries differ by 2 to 12 % on the same shape, 20 % on the largest of L40S, and the tables are
  fitted on their mean. Grid and smoothing were chosen while looking at these errors. Those are
  short bursts; training is slower (clocks fall under steady load with random data), by a factor
  that `kernels.toml` names for each GPU with its source.
- "Smooth" is a table of 1,000 corners through the measurements, "trees" one of 15,000 that
  gradient-boosted trees on the roofline's residual fill in (`benchmarks/boosted.py`). Trees ship
  where they lower the error at training sizes by a third: A100 and RTX PRO 6000, for GPUs of the
  same chip. With them, training kernels on an A100 (SimuMax) are off by 3.0, 2.5 and 3.9 % instead
  of 4.3, 3.5 and 4.9 %. Elsewhere the gain is one of inference kernels: trees for the H200 left our
  own timings where they were (5.7, 3.9 and 6.2 % instead of 5.8, 3.7 and 5.8 %), and lent to
  other chips (V100, RTX 3090) the A100's trees are worse than its smooth table by 2 to 4 points.
- The other directions run like the forward product, but for tf32, whose operands Hopper's tensor
  cores read along the depth only; a weight gradient summed in fp32 adds traffic.
- fp8, fp4, tf32 and fp32 take the bf16 response at their own peak. Casts are not in it.
- Attention follows a formula of four numbers per pass, fitted on training kernels where there are
  any (H200: our own; A100 and B200: SimuMax; H100: charts), else on an inference engine. Without
  a mask only the H200 was timed; the others follow in its proportions.
- Expert layers of inference engines use kernels of another kind (one fused kernel, Triton on the
  A100); they are shown for scale and nothing was fitted on them.
- Other GPUs borrow the response of their nearest relative at their own peak and bandwidth; the
  `source` of every answer says from whom, and `[[scaled]]` in `kernels.toml` lists speeds that were
  fitted or guessed for them.
"""


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder, report = Path(sys.argv[1]), Report()
    lent, tables = {}, {}
    for name, system in SYSTEMS.items():
        gpu, seen = find_gpu(name)[0], read_products(folder, system, "bfloat16")
        lent[name], fine = fit_table(seen, gpu), table_errors(report, name, seen, gpu)
        tables[name] = lent[name] if fine is None else fine
        write_table(f"{name}.json", lent[name], gemm_source(folder, name))
        (FOLDER / f"{name}{FINE}").unlink(missing_ok=True)
        if fine is not None:
            write_table(f"{name}{FINE}", fine, gemm_source(folder, name))
    known = with_profile(report, make_kernels(report, folder, tables, lent))
    write_kernels(known)
    check_directions(report, folder)
    check_formats(report, folder)
    check_grouped(report, folder, known.accumulate_bytes)
    check_moe(report, folder)
    check_memory(report)
    check_later(report)
    write_page(report)


if __name__ == "__main__":
    main()
