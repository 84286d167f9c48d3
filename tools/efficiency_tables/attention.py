"""Attention: the rates of every GPU with a table, fitted on whatever timed its kernels."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from tools.efficiency_tables.gemm_tables import bf16_peak
from tools.efficiency_tables.measurements import (
    AICONF,
    CHARTS,
    HELD_BACK,
    OWN,
    READ_ON,
    SIMUMAX,
    SYSTEMS,
    own_rows,
    rows_of,
    simumax,
)
from tools.efficiency_tables.report import Report

from astra.files import Source
from astra.hardware.catalogue import find_gpu
from astra.timing.attention_rate import BACKWARD_FLOPS, HEAD_DIMS, AttentionRate, attention_s
from astra.timing.efficiency import Attention, MaskedAttention, peak_flops_per_s
from astra.timing.gemm import Floats


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
            begin = replace(start, ramp_s=5e-6 if direction == "forward" else 1e-5)
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
    return replace(rate, rates=(low, middle, high))


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
    peak = bf16_peak(find_gpu(name)[0])
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
        fitted.append(replace(rate, rates=(*rate.rates[:2], wide)))
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
    rate = fit_with_errors(report, label, seen, bf16_peak(gpu), start, free, stored)
    ratio = rate.rates[1] / model.forward_causal.rates[1]
    back = faster(model.backward_causal, ratio)
    back = replace(
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
        peak = bf16_peak(find_gpu(gpu)[0])
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
    peak = bf16_peak(find_gpu("H200-SXM")[0])
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
