"""Numbers that no measurement of a single kernel gives: `data/timing.toml`, with their sources."""

from functools import cache
from pathlib import Path

import msgspec

from astra.files import Source, convert, parse_toml

FILE = Path(__file__).parent.parent / "data" / "timing.toml"


class Shows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What still shows of traffic beside compute. [fraction]"""

    tensor: float
    expert: float
    data: float
    source: Source


class Optimizer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes of one parameter and the rates they move at."""

    bandwidth_fraction: float
    host_memory_bytes_per_s: float
    weight_bytes: float
    clip_bytes: float
    offload_bytes: float
    source: Source


class Sends(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How stages pass activations on."""

    shared: tuple[str, ...]  # stacks whose tensor-parallel ranks each send a share, then gather
    buffer_bytes: float  # up to which a message is on its way when its sender goes on
    source: Source


class Casts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class Moves(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What kernels between matrix products move for one element, and how many they are."""

    forward_bytes: float
    backward_bytes: float
    forward_kernels: float = 1.0
    backward_kernels: float = 1.0


class Between(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that runs between the matrix products of a layer, and at the loss."""

    rms_norm: Moves  # of an element of the stream
    layer_norm: Moves
    head_norm: Moves  # of queries and keys
    rope: Moves  # of queries and keys
    latent_norm: Moves  # of what it folds queries, keys and values into
    latent: Moves  # of what latent attention unfolds, and of its queries once more
    gated: Moves  # of an element of the MLP's width
    ungated: Moves
    experts_gated: Moves  # the same of routed tokens
    residual: Moves  # of an element of the stream: both additions
    joined: Moves  # of an element of the stream, for each product more than one that reads it
    split: Moves  # of an element of fused products, gate and up too, handed on in slices
    bias: Moves  # of an element that a product with a bias makes
    loss: Moves  # of a logit
    cap: Moves  # of a capped logit
    source: Source


class Written(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layers as stacks write them."""

    fused: Between
    compiled: Between
    eager: Between


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    shows: Shows
    sends: Sends
    optimizer: Optimizer
    casts: Casts
    expert_kernels: ExpertKernels
    layers: Written


@cache
def facts() -> Facts:
    return convert(parse_toml(FILE.read_text(encoding="utf-8"), FILE.name), Facts, FILE.name)
