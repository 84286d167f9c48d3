"""One GPU type at work in one precision: seconds of single kernels, from measured efficiencies."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from astra.hardware.cluster import Gpu
from astra.hardware.stack import Stack
from astra.timing.constants import timing_constants
from astra.timing.efficiency import (
    Efficiency,
    SourceKind,
    attention_efficiency,
    gemm_efficiency,
    grouped_gemm_efficiency,
    launch_s,
    masked_attention_efficiency,
    memory_efficiency,
)
from astra.timing.gemm import misaligned

Floats = NDArray[np.float64]
Direction = Literal["forward", "dgrad", "wgrad"]


def dense_peak(gpu: Gpu, precision: str) -> float:
    """Dense peak of the units a precision uses; a GPU without them falls back. [FLOP/s]"""
    vector = gpu.fp32_flops_per_s or gpu.memory_bytes_per_s
    half = gpu.bf16_flops_per_s or gpu.fp16_flops_per_s or vector
    rates = {
        "bf16": gpu.bf16_flops_per_s or half,
        "fp16": gpu.fp16_flops_per_s or half,
        "fp8": gpu.fp8_flops_per_s or half,
        "fp4": gpu.fp4_flops_per_s or gpu.fp8_flops_per_s or half,
        "tf32": gpu.tf32_flops_per_s or vector,
        "fp32": gpu.tf32_flops_per_s or vector,
    }
    return rates[precision]


def _units(gpu: Gpu, precision: str) -> str:
    """The format that products of a precision run in: fp32 on tensor cores is tf32."""
    return "tf32" if precision == "fp32" and gpu.tf32_flops_per_s else precision


@dataclass(slots=True)
class SourceUse:
    """Where the numbers came from: seconds by source, and seconds outside of what was measured."""

    seconds: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, SourceKind] = field(default_factory=dict)  # what each source is worth
    outside_s: float = 0.0

    def add(self, efficiency: Efficiency, seconds: Floats) -> None:
        self.kinds[efficiency.source] = efficiency.kind
        self.seconds[efficiency.source] = self.seconds.get(efficiency.source, 0.0) + float(
            np.sum(seconds)
        )
        self.outside_s += float(np.sum(np.where(efficiency.outside, seconds, 0.0)))


@dataclass(frozen=True, slots=True)
class Device:
    """Seconds of kernels on one GPU type, as a stack runs them there.

    `precision` is that of the linear layers.
    """

    gpu: Gpu
    precision: str
    used: SourceUse
    stack: Stack  # with the settings of this GPU
    recipe: str | None = None  # of fp8

    @property
    def half(self) -> str:
        """What attention, head and router compute in."""
        if self.precision in ("fp16", "fp32"):
            return self.precision
        return "bf16" if self.gpu.bf16_flops_per_s else "fp16"

    @property
    def cast_bytes(self) -> float:
        """Moved to make one element of an input ready for fp8 or fp4; 0 where none is made."""
        casts = timing_constants().casts
        if self.precision == "fp8" and self.stack.layers != "fused":
            torchao = casts.compiled_tensorwise_bytes, casts.compiled_bytes
            return torchao[self.recipe != "tensorwise"]
        if self.precision == "fp8":
            return casts.fp8_tensorwise_bytes if self.recipe == "tensorwise" else casts.fp8_bytes
        return casts.fp4_bytes if self.precision == "fp4" else 0.0

    @property
    def casts_shards(self) -> bool:
        """Whether ranks that share a sequence cast their share of it, and gather it in fp8.

        torchao does with one scale a tensor (float8/float8_tensor_parallel.py).
        """
        return (self.stack.layers, self.recipe) == ("compiled", "tensorwise")

    @property
    def gathered_fraction(self) -> float:
        """Bytes of what such ranks gather, over those of what they scatter."""
        return 0.5 if self.casts_shards else 1.0

    @property
    def element_bytes(self) -> float:
        """Of an activation as it is sent."""
        return 4.0 if self.precision == "fp32" else 2.0

    def gemm_s(
        self, m: Floats, n: Floats, k: Floats, direction: Direction, precision: str | None = None
    ) -> Floats:
        """One matrix product of m x k by k x n in the forward pass, or its gradients. [s]

        T = 2 m n k / (peak x efficiency) + launch

        longer for widths n and k that tensor cores are not made for.
        """
        dtype = _units(self.gpu, precision or self.precision)
        efficiency = gemm_efficiency(self.gpu, dtype, m, n, k, direction)
        seconds = 2.0 * m * n * k / (dense_peak(self.gpu, dtype) * efficiency.values)
        self.used.add(efficiency, seconds)
        seconds = seconds * misaligned(n, k) + launch_s(self.gpu)
        return self._run(seconds, self.stack.product_factor)

    def _run(self, seconds: Floats, factor: float) -> Floats:
        return seconds * (self.stack.compute_factor * factor)

    def grouped_gemm_s(
        self, experts: Floats, tokens: Floats, n: Floats, k: Floats, direction: Direction
    ) -> Floats:
        """Products of all local experts, each with its share of the tokens. [s]"""
        share = np.maximum(tokens / experts, 1e-9)
        efficiency = grouped_gemm_efficiency(
            self.gpu, _units(self.gpu, self.precision), experts, share, n, k, direction
        )
        peak = dense_peak(self.gpu, self.precision)
        seconds = 2.0 * tokens * n * k / (peak * efficiency.values)
        self.used.add(efficiency, seconds)
        return self._run(seconds + launch_s(self.gpu), self.stack.experts_factor)

    def attention_s(
        self,
        *,
        flops: Floats,
        seq_len: Floats,
        head_dim: float,
        heads: Floats,
        batch: Floats,
        backward: bool,
    ) -> Floats:
        """Fused attention. The backward pass computes the scores again: 2.5 times the work. [s]

        cuDNN, which PyTorch takes on Hopper, pads heads between 64 and 128 to 128.
        """
        if self.stack.layers != "fused" and 64 < head_dim < 128:
            flops, head_dim = flops * (128 / head_dim), 128.0
        efficiency = attention_efficiency(
            self.gpu,
            self.half,
            seq_len,
            seq_len,
            head_dim,
            heads,
            batch,
            True,
            "backward" if backward else "forward",
        )
        work = flops * (2.5 if backward else 1.0)
        seconds = work / (dense_peak(self.gpu, self.half) * efficiency.values)
        self.used.add(efficiency, seconds)
        return self._run(seconds + launch_s(self.gpu), self.stack.attention_factor)

    def masked_attention_s(self, flops: Floats, head_dim: float, backward: bool) -> Floats:
        """Fused attention of a whole square that is given its mask. [s]

        T = F / (P e), in the backward pass with 2.5 times the work; e by the head's width.
        """
        efficiency = masked_attention_efficiency(
            self.gpu, head_dim, "backward" if backward else "forward"
        )
        work = flops * (2.5 if backward else 1.0)
        seconds = work / (dense_peak(self.gpu, self.half) * efficiency.values)
        self.used.add(efficiency, seconds)
        return self._run(seconds + launch_s(self.gpu), self.stack.attention_factor)

    def memory_s(self, moved_bytes: Floats, kernels: float = 1.0, routes: bool = False) -> Floats:
        """Elementwise kernels: bytes over the bandwidth they reach. [s]

        Bytes as they are in bf16; twice as many in fp32. What `routes` tokens to experts is as
        slow as a stack's experts are.
        """
        moved_bytes = moved_bytes * (2.0 if self.precision == "fp32" else 1.0)
        each = moved_bytes / max(kernels, 1.0)
        efficiency = memory_efficiency(self.gpu, each)
        seconds = moved_bytes / (self.gpu.memory_bytes_per_s * efficiency.values)
        self.used.add(efficiency, seconds)
        factor = self.stack.elementwise_factor * (self.stack.experts_factor if routes else 1.0)
        return self._run(seconds + kernels * launch_s(self.gpu), factor)
