"""Numbers that no measurement of a single kernel gives: `data/timing.toml`, with their sources."""

from functools import cache
from pathlib import Path

import msgspec

from astra.files import Source, convert, parse_toml

FILE = Path(__file__).parent.parent / "data" / "timing.toml"


class ExposedFractions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Traffic that stays exposed where compute may hide it. [fraction]"""

    tensor: float
    expert: float
    data: float
    source: Source


class OptimizerConstants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes of one parameter and the rates they move at."""

    bandwidth_fraction: float
    host_memory_bytes_per_s: float
    weight_bytes: float
    clip_bytes: float
    offload_bytes: float
    source: Source


class SendConstants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How stages pass activations on."""

    shared: tuple[str, ...]  # stacks whose tensor-parallel ranks each send a share, then gather
    buffer_bytes: float  # up to which a message is on its way when its sender goes on
    source: Source


class CastConstants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes moved for each element of an input that is cast to fp8 or fp4."""

    fp8_bytes: float
    fp8_tensorwise_bytes: float
    fp4_bytes: float
    compiled_bytes: float
    compiled_tensorwise_bytes: float
    padded_bytes: float
    source: Source


class ExpertKernels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kernels started for each expert on its own, forward and backward, by number format."""

    half: tuple[float, float]
    tensorwise: tuple[float, float]
    delayed: tuple[float, float]
    blockwise: tuple[float, float]
    mxfp8: tuple[float, float]
    fp4: tuple[float, float]
    source: Source

    def of(self, precision: str, recipe: str | None) -> tuple[float, float]:
        if precision == "fp8":
            found: tuple[float, float] = getattr(self, recipe or "delayed")
            return found
        return self.fp4 if precision == "fp4" else self.half


class MovedBytes(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What kernels between matrix products move for one element, and how many they are."""

    forward_bytes: float
    backward_bytes: float
    forward_kernels: float = 1.0
    backward_kernels: float = 1.0


class ElementwiseKernels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that runs between the matrix products of a layer, and at the loss."""

    rms_norm: MovedBytes  # of an element of the stream
    layer_norm: MovedBytes
    head_norm: MovedBytes  # of queries and keys
    rope: MovedBytes  # of queries and keys
    latent_norm: MovedBytes  # of what it folds queries, keys and values into
    latent: MovedBytes  # of what latent attention unfolds, and of its queries once more
    gated: MovedBytes  # of an element of the MLP's width
    ungated: MovedBytes
    experts_gated: MovedBytes  # the same of routed tokens
    residual: MovedBytes  # of an element of the stream: both additions
    joined: MovedBytes  # of an element of the stream, for each product more than one that reads it
    split: MovedBytes  # of an element of fused products, gate and up too, handed on in slices
    bias: MovedBytes  # of an element that a product with a bias makes
    loss: MovedBytes  # of a logit
    cap: MovedBytes  # of a capped logit
    source: Source


class KernelsByStack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layers as stacks write them."""

    fused: ElementwiseKernels
    compiled: ElementwiseKernels
    eager: ElementwiseKernels


class TimingConstants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    shows: ExposedFractions
    sends: SendConstants
    optimizer: OptimizerConstants
    casts: CastConstants
    expert_kernels: ExpertKernels
    layers: KernelsByStack


@cache
def timing_constants() -> TimingConstants:
    return convert(
        parse_toml(FILE.read_text(encoding="utf-8"), FILE.name), TimingConstants, FILE.name
    )
