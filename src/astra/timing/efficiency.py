"""What share of its peak a GPU reaches, by operator and shape, out of measurements.

`data/efficiency` holds one table of matrix products per measured GPU and `kernels.toml` with
everything else. A GPU nobody measured borrows the shape response of its nearest relative, at
its own peak and bandwidth, and the answer says so. Efficiencies are fractions of the dense peak
of the number format; they contain the kernel's own start and end, not its launch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from astra.errors import InputError
from astra.files import Source, convert, read_json, read_toml
from astra.hardware.cluster import Gpu
from astra.timing.attention_rate import (
    BACKWARD_FLOPS,
    HEAD_DIMS,
    AttentionRate,
    attention_s,
    rate_at,
)
from astra.timing.gemm import (
    Bools,
    Floats,
    GemmTable,
    moved_bytes,
    rising,
    roofline_s,
    sustained_s,
)

FOLDER = Path(__file__).parent.parent / "data" / "efficiency"
FINE = ".trees.json"  # tables that know the tiles of their own chip
SOFT_PEAK = 0.8  # of peak and bandwidth: what the roofline between two GPUs is drawn with; guessed

Direction = Literal["forward", "dgrad", "wgrad"]
Pass = Literal["forward", "backward"]
SourceKind = Literal["measured", "fitted", "guessed"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Efficiency:
    """Shares of a peak, which of them lie outside what was measured, and where they come from."""

    values: Floats
    outside: Bools
    source: str  # in words
    kind: SourceKind  # what that is worth; what another GPU lends is a guess


class Attention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The four kernels of fused attention."""

    forward_causal: AttentionRate
    forward_full: AttentionRate
    backward_causal: AttentionRate
    backward_full: AttentionRate
    seq_from: float  # the shortest sequence measured
    seq_to: float
    source: Source


class MeasuredGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU with a table of its own, and how it runs under the load of training."""

    gpu: str
    architecture: str
    compute_capability: str
    flops_per_s: float  # of bf16, as the table was made
    bytes_per_s: float
    slowdown: float  # of a product under steady load, over the short bursts of the table
    slowdown_source: Source
    formats: dict[str, float]  # time of a format over the bf16 response at its own peak
    attention: Attention
    source: Source


class MaskedAttention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fused attention that is given a mask: shares of the peak at head_dim 64, 128, 256."""

    gpu: str
    forward: tuple[float, float, float]
    backward: tuple[float, float, float]
    source: Source


class ScaledGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU that borrows its tables, and how much faster than the loan it was seen to run."""

    gpu: str
    gemm: float
    attention: float
    gemm_fp32: float | None = None  # on vector units; None: as in other formats
    memory: float = 1.0  # elementwise kernels
    source: Source


class Transposed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much longer gradients take than the forward product, where tensor cores of a chip read
    the operands of a format along the depth of the product only.
    """

    architecture: str
    format: str
    dgrad: float
    wgrad: float
    source: Source


class MemoryRoof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Share of the nominal bandwidth that large elementwise kernels reach."""

    gpu: str
    compute_capability: str
    bytes_per_s: float
    share: float
    source: Source


class Kernels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything in `kernels.toml`."""

    ramp_s: float  # start and end of a product
    steady_from_s: float
    accumulate_bytes: float  # of traffic that a weight gradient summed in fp32 does not hide
    grouped_wgrad_bytes: float  # on top of it in a grouped product
    grouped_rows: float  # tokens an expert's product is padded to
    grouped_share: float  # of the bandwidth, where a grouped product is bound by its weights
    expert_s: float  # per expert of a grouped product
    memory_ramp_s: float
    launch_s: float
    launch_source: Source
    formats: dict[str, float]  # where the GPU has none of its own
    transposed: tuple[Transposed, ...]
    masked: MaskedAttention
    measured: tuple[MeasuredGpu, ...]
    scaled: tuple[ScaledGpu, ...]
    memory: tuple[MemoryRoof, ...]


class GemmFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU's table of bf16 products: thousandths of the logarithm of microseconds."""

    gpu: str
    source: Source
    short: tuple[float, ...]
    long: tuple[float, ...]
    depth: tuple[float, ...]
    log_us_e3: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loan:
    """Whose measurements a GPU uses."""

    measured: MeasuredGpu
    scaled: ScaledGpu | None
    kind: str  # measured | borrowed | guessed

    def worth(self, kind: str) -> SourceKind:
        """What figures of this kind are worth on the GPU that uses them."""
        return _worth(kind) if self.kind == "measured" else "guessed"

    def told(self, gpu: Gpu, what: str) -> str:
        lender = self.measured.gpu
        if self.kind == "measured":
            return f"measured on {lender}: {what}"
        scale = f"; speed after {self.scaled.source.where}" if self.scaled else ""
        return f"{self.kind} from {lender}, as nobody measured {gpu.name} itself: {what}{scale}"


def _worth(kind: str) -> SourceKind:
    """What a data file's kind of source is worth here: others than these two are guesses."""
    return "measured" if kind == "measured" else "fitted" if kind == "fitted" else "guessed"


# --- The five questions -------------------------------------------------------------------------


def gemm_efficiency(
    gpu: Gpu,
    dtype: str,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    direction: Direction = "forward",
) -> Efficiency:
    """Share of the peak in a linear layer of m tokens, n outputs and k inputs.

    m, n, k are those of the *forward* product in every direction; each direction is 2 m n k
    FLOPs. dgrad multiplies (m, n) by (n, k), wgrad (n, m) by (m, k) and adds to fp32 gradients.
    """
    tokens, outputs, inputs = _floats(m, n, k)
    table = _gemm_table(gpu, dtype)
    product = _product(direction, tokens, outputs, inputs)
    seconds = table.seconds(*product) * _transposed_factor(gpu, dtype, direction)
    if direction == "wgrad":
        summed_bytes = _kernels().accumulate_bytes * outputs * inputs
        seconds = seconds + summed_bytes / gpu.memory_bytes_per_s
    return Efficiency(
        values=_share(2 * tokens * outputs * inputs, peak_flops_per_s(gpu, dtype), seconds),
        outside=table.outside(*product),
        source=_gemm_source(gpu, dtype),
        kind=_gemm_kind(gpu, dtype),
    )


def attention_efficiency(
    gpu: Gpu,
    dtype: str,
    seq_q: ArrayLike,
    seq_kv: ArrayLike,
    head_dim: ArrayLike,
    heads: ArrayLike,
    batch: ArrayLike,
    causal: bool,
    direction: Pass = "forward",
) -> Efficiency:
    """Share of the peak in fused attention.

    Against 4 B H s_q s_kv d FLOPs forward and 2.5 times as many backward (the scores are made
    again), both halved with a causal mask. Heads of unlike widths for keys and values count with
    their mean. fp8 and fp4 stand for training in those formats, where attention stays in bf16.
    """
    queries, keys, width, rows, samples = _floats(seq_q, seq_kv, head_dim, heads, batch)
    loan = _loan(gpu)
    known = loan.measured.attention
    rate: AttentionRate = getattr(known, f"{direction}_{'causal' if causal else 'full'}")
    flops = 4 * samples * rows * queries * keys * width * (0.5 if causal else 1.0)
    flops = flops * (BACKWARD_FLOPS if direction == "backward" else 1.0)
    inner = _attention_format(gpu, dtype)
    speed = peak_flops_per_s(gpu, inner) * (loan.scaled.attention if loan.scaled else 1.0)
    seconds = attention_s(rate, speed, flops, queries, keys, samples * rows, width)
    odd = (width < HEAD_DIMS[0]) | (width > HEAD_DIMS[-1])
    odd |= np.minimum(queries, keys) < known.seq_from
    odd |= np.maximum(queries, keys) > known.seq_to
    return Efficiency(
        values=_share(flops, peak_flops_per_s(gpu, dtype), seconds),
        outside=np.asarray(odd),
        source=loan.told(gpu, f"attention, {known.source.kind}, {known.source.where}"),
        kind=loan.worth(known.source.kind),
    )


def masked_attention_efficiency(
    gpu: Gpu, head_dim: float, direction: Pass = "forward"
) -> Efficiency:
    """Share of the peak in fused attention that is given a mask, against the whole square's FLOPs.

    Measured on one GPU; on others it is taken to be as much slower than without a mask.
    """
    known, loan = _kernels().masked, _loan(gpu)
    rates = known.forward if direction == "forward" else known.backward
    lender = next(row for row in _kernels().measured if row.gpu == known.gpu)
    full = f"{direction}_full"
    width = np.asarray([float(head_dim)])
    own, theirs = getattr(loan.measured.attention, full), getattr(lender.attention, full)
    scale = rate_at(own, width) / rate_at(theirs, width)
    share = np.interp(np.log(width), np.log(HEAD_DIMS), rates) * scale
    timed = gpu.name == known.gpu
    return Efficiency(
        values=np.minimum(share, 1.0),
        outside=(width < HEAD_DIMS[0]) | (width > HEAD_DIMS[-1]),
        source=f"{'measured' if timed else 'borrowed'}, attention with a mask on {known.gpu}: "
        f"{known.source.where}",
        kind=_worth(known.source.kind) if timed else "guessed",
    )


def grouped_gemm_efficiency(
    gpu: Gpu,
    dtype: str,
    experts_local: ArrayLike,
    tokens_per_expert: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    direction: Direction = "forward",
) -> Efficiency:
    """Share of the peak in one linear layer of all experts on a GPU, tokens spread evenly.

    Against 2 E t n k FLOPs. The products of the experts run side by side as one of E t rows,
    but every expert's weights are read, and few tokens are padded to a tile.
    """
    experts, tokens, outputs, inputs = _floats(experts_local, tokens_per_expert, n, k)
    table, known = _gemm_table(gpu, dtype), _kernels()
    if direction == "wgrad":
        product = outputs, experts * inputs, tokens
    else:
        padded = np.maximum(tokens, known.grouped_rows)
        product = _product(direction, experts * padded, outputs, inputs)
    traffic = experts * moved_bytes(tokens, outputs, inputs, *_format_bytes(dtype))
    bound_s = traffic / (known.grouped_share * gpu.memory_bytes_per_s)
    seconds = (table.seconds(*product) ** 4 + bound_s**4) ** 0.25 + known.expert_s * experts
    weights = experts * outputs * inputs
    if direction == "wgrad":
        summed = known.accumulate_bytes + known.grouped_wgrad_bytes
        seconds = seconds + summed * weights / gpu.memory_bytes_per_s
    return Efficiency(
        values=_share(2 * tokens * weights, peak_flops_per_s(gpu, dtype), seconds),
        outside=table.outside(*_product(direction, tokens, outputs, inputs)),
        source=_gemm_source(gpu, dtype).replace("products", "products, grouped by a fitted model"),
        kind=_loan(gpu).worth("fitted"),
    )


def memory_efficiency(gpu: Gpu, moved: ArrayLike) -> Efficiency:
    """Share of the nominal bandwidth in an elementwise kernel that moves so many bytes.

    V / (V / e + B r): a kernel of r seconds of start and end, and then a steady share e.
    """
    row, loan = _memory_row(gpu), _loan(gpu)
    (size,) = _floats(moved)
    share = row.share * (loan.scaled.memory if loan.scaled else 1.0)
    lent = "guessed" if loan.kind == "guessed" else "borrowed"
    kind = row.source.kind if row.gpu == gpu.name else lent
    source = f"{kind}, elementwise kernels on {row.gpu}: {row.source.where}"
    ramp_bytes = gpu.memory_bytes_per_s * _kernels().memory_ramp_s
    values = size / (size / share + ramp_bytes)
    return Efficiency(
        values=np.asarray(values),
        outside=np.asarray(size > 2**33),
        source=source,
        kind=_worth(kind),
    )


def launch_s(gpu: Gpu) -> float:
    """Seconds from one kernel to the next that queueing does not hide. [s]

    The GPU's own gap. A host too slow to fill the queue (small models, no CUDA graphs) costs
    more, and that is not the GPU's.
    """
    del gpu  # measured on one type; others are taken to be alike
    return _kernels().launch_s


# --- Number formats -----------------------------------------------------------------------------

_PEAKS: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16_flops_per_s",),
    "fp16": ("fp16_flops_per_s",),
    "fp8": ("fp8_flops_per_s",),
    "fp8_block": ("fp8_flops_per_s",),
    "mxfp8": ("fp8_flops_per_s",),
    "fp4": ("fp4_flops_per_s",),
    "nvfp4": ("fp4_flops_per_s",),
    "tf32": ("tf32_flops_per_s", "fp32_flops_per_s"),
    "fp32": ("fp32_flops_per_s",),
}
_FACTOR_OF = {"fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
_INPUT_BYTES = {"fp8": 1.0, "fp8_block": 1.0, "mxfp8": 1.0, "fp4": 0.5, "nvfp4": 0.5}


def peak_flops_per_s(gpu: Gpu, dtype: str) -> float:
    """The dense peak an efficiency is a fraction of."""
    if dtype not in _PEAKS:
        raise InputError(f"unknown number format {dtype!r}. Try {', '.join(_PEAKS)}.")
    for field in _PEAKS[dtype]:
        rate = getattr(gpu, field)
        if rate is not None:
            return float(rate)
    have = [name for name, fields in _PEAKS.items() if getattr(gpu, fields[0]) is not None]
    raise InputError(f"{gpu.name} has no rate for {dtype}. Try {', '.join(have)}.")


def _format_bytes(dtype: str) -> tuple[float, float]:
    """Bytes of an operand's element, and of the result's."""
    if dtype in ("fp32", "tf32"):
        return 4.0, 4.0
    return _INPUT_BYTES.get(dtype, 2.0), 2.0


def _attention_format(gpu: Gpu, dtype: str) -> str:
    """The format attention itself runs in."""
    if dtype in _INPUT_BYTES:
        return "bf16" if gpu.bf16_flops_per_s is not None else "fp16"
    return dtype


# --- Tables, and who lends them -----------------------------------------------------------------


@lru_cache(maxsize=256)
def _gemm_table(gpu: Gpu, dtype: str) -> GemmTable:
    loan = _loan(gpu)
    speed = loan.scaled.gemm if loan.scaled else 1.0
    if loan.scaled and dtype == "fp32":
        speed = loan.scaled.gemm_fp32 or speed
    same_chip = gpu.compute_capability == loan.measured.compute_capability
    lent = _lent_table(loan.measured.gpu, same_chip)
    return steady_table(gpu, dtype, loan.measured, lent, _kernels(), speed)


def steady_table(
    gpu: Gpu, dtype: str, lender: MeasuredGpu, lent: GemmTable, known: Kernels, speed: float
) -> GemmTable:
    """The times of products on this GPU in this format, ready to look up.

    The lender's times, scaled at every corner by the ratio of two rooflines (the borrower's peak,
    bandwidth and format over the lender's), slowed to steady load, kept above what the peak
    allows, and made to rise. Each of these steps keeps a faster GPU faster.
    """
    rows, columns, depth = np.meshgrid(*lent.axes, indexing="ij")
    flops = 2 * rows * columns * depth
    peak = peak_flops_per_s(gpu, dtype)
    own_s = roofline_s(
        flops,
        moved_bytes(rows, columns, depth, *_format_bytes(dtype)),
        SOFT_PEAK * peak,
        SOFT_PEAK * gpu.memory_bytes_per_s,
        known.ramp_s,
    )
    lender_s = roofline_s(
        flops,
        moved_bytes(rows, columns, depth, 2, 2),
        SOFT_PEAK * lender.flops_per_s,
        SOFT_PEAK * lender.bytes_per_s,
        known.ramp_s,
    )
    burst_s = np.exp(lent.log_s) * own_s / lender_s
    plain = _FACTOR_OF.get(dtype, dtype)
    slower = lender.formats.get(plain, known.formats.get(plain, 1.0)) / speed
    steady_s = slower * sustained_s(burst_s, lender.slowdown, known.steady_from_s)
    log_s = rising(np.log(np.maximum(steady_s, flops / peak)))
    return GemmTable(short=lent.short, long=lent.long, depth=lent.depth, log_s=log_s)


def _transposed_factor(gpu: Gpu, dtype: str, direction: Direction) -> float:
    """How much longer this direction takes than the forward product, by its operands' layouts."""
    for row in _kernels().transposed:
        if (row.architecture, row.format) == (gpu.architecture, dtype) and direction != "forward":
            return row.dgrad if direction == "dgrad" else row.wgrad
    return 1.0


def _gemm_source(gpu: Gpu, dtype: str) -> str:
    loan = _loan(gpu)
    what = f"products, {loan.measured.source.where}"
    if dtype in ("bf16", "fp16"):
        return loan.told(gpu, what)
    told = loan.told(gpu, f"{what}; the bf16 response at the {dtype} peak")
    return told.replace("measured on", "fitted on", 1) if loan.kind == "measured" else told


def _gemm_kind(gpu: Gpu, dtype: str) -> SourceKind:
    """Products are timed in 16 bits; those of other formats are fitted to them."""
    loan = _loan(gpu)
    return loan.worth(loan.measured.source.kind if dtype in ("bf16", "fp16") else "fitted")


@lru_cache(maxsize=64)
def _loan(gpu: Gpu) -> _Loan:
    """The measured GPU nearest to this one.

    Itself; else the same compute capability, the same architecture, the nearest capability, and
    among equals the nearest peak and bandwidth.
    """
    known = _kernels()
    scaled = next((row for row in known.scaled if row.gpu == gpu.name), None)
    lender = min(known.measured, key=lambda row: _strangeness(gpu, row))
    if lender.gpu == gpu.name:
        return _Loan(measured=lender, scaled=scaled, kind="measured")
    related = _capability(gpu.compute_capability) is not None or (
        gpu.architecture is not None and gpu.architecture == lender.architecture
    )
    sure = related and not (scaled and scaled.source.kind == "guessed")
    return _Loan(measured=lender, scaled=scaled, kind="borrowed" if sure else "guessed")


@lru_cache(maxsize=64)
def _memory_row(gpu: Gpu) -> MemoryRoof:
    """The GPU whose memory was timed: itself, else the nearest chip, then the nearest bandwidth."""

    def strangeness(row: MemoryRoof) -> tuple[float, ...]:
        own, theirs = _capability(gpu.compute_capability), _capability(row.compute_capability)
        generations = 0 if own is None or theirs is None else abs(int(own) - int(theirs))
        apart = abs(np.log(gpu.memory_bytes_per_s / row.bytes_per_s))
        return float(gpu.name != row.gpu), float(generations), float(apart)

    return min(_kernels().memory, key=strangeness)


def _strangeness(gpu: Gpu, row: MeasuredGpu) -> tuple[float, ...]:
    """How far a measured GPU is from this one; the first unequal term decides."""
    own, theirs = _capability(gpu.compute_capability), _capability(row.compute_capability)
    peak = gpu.bf16_flops_per_s or gpu.fp16_flops_per_s or row.flops_per_s
    apart = abs(np.log(peak / row.flops_per_s)) + abs(
        np.log(gpu.memory_bytes_per_s / row.bytes_per_s)
    )
    generations = abs(own - theirs) if own is not None and theirs is not None else 0.0
    return (
        float(gpu.name != row.gpu),
        float(gpu.compute_capability != row.compute_capability),
        float(gpu.architecture != row.architecture),
        round(generations),
        float(apart),
    )


def _capability(text: str | None) -> float | None:
    """Compute capability as a number; None for other makers' names of their chips.

    >>> _capability("8.6"), _capability("gfx942")
    (8.6, None)
    """
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


@lru_cache(maxsize=1)
def _kernels() -> Kernels:
    path = FOLDER / "kernels.toml"
    return convert(read_toml(path), Kernels, path.name)


@lru_cache(maxsize=32)
def _lent_table(name: str, same_chip: bool) -> GemmTable:
    """The smooth table of a GPU; for the same chip the finer one, where there is one."""
    fine = FOLDER / f"{name}{FINE}"
    path = fine if same_chip and fine.exists() else FOLDER / f"{name}.json"
    file = convert(read_json(path), GemmFile, path.name)
    axes = [np.array(axis) for axis in (file.short, file.long, file.depth)]
    log_us = np.array(file.log_us_e3, dtype=np.float64) / 1000
    log_s = log_us.reshape([len(axis) for axis in axes]) - np.log(1e6)
    return GemmTable(short=axes[0], long=axes[1], depth=axes[2], log_s=log_s)


# --- Small things -------------------------------------------------------------------------------


def _product(
    direction: Direction, m: Floats, n: Floats, k: Floats
) -> tuple[Floats, Floats, Floats]:
    """Sides of the result and depth of the product, out of the forward shape."""
    if direction == "forward":
        return m, n, k
    return (m, k, n) if direction == "dgrad" else (n, k, m)


def _floats(*values: ArrayLike) -> tuple[Floats, ...]:
    """The arrays in one common shape, at least 1, so that an empty slot is harmless."""
    arrays = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in values))
    return tuple(np.asarray(np.maximum(array, 1.0)) for array in arrays)


def _share(work: Floats, per_s: float, seconds: Floats) -> Floats:
    return np.asarray(np.minimum(work / (per_s * seconds), 1.0))
