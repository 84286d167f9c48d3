"""Memory that no tensor of the model explains: `data/memory.toml`, each number with its source."""

from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from astra.files import Source, convert, parse_toml
from astra.hardware.cluster import Gpu
from astra.hardware.stack import Stack
from astra.strategy.plans import Floats, Ints, Task
from astra.strategy.stage_view import StageView

FILE = Path(__file__).parent.parent / "data" / "memory.toml"


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: Source


class Cublas(_Part, frozen=True, kw_only=True):
    threads: int
    bytes: float
    hopper_bytes: float
    deterministic_bytes: float


class TransformerEngine(_Part, frozen=True, kw_only=True):
    bytes: float
    hopper_bytes: float
    grouped_streams: int


class Context(_Part, frozen=True, kw_only=True):
    bytes: float
    group_bytes: float


class Eager(_Part, frozen=True, kw_only=True):
    normed_bytes: float
    gated_bytes: float


class Offload(_Part, frozen=True, kw_only=True):
    resident_layers: int


class Routing(_Part, frozen=True, kw_only=True):
    imbalance: float


class Spread(_Part, frozen=True, kw_only=True):
    scale: float


class MemoryConstants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    cublas: Cublas
    transformer_engine: TransformerEngine
    context: Context
    hopper_context: Context
    eager: Eager
    offload: Offload
    routing: Routing
    spread: Spread


@cache
def memory_constants() -> MemoryConstants:
    return convert(
        parse_toml(FILE.read_text(encoding="utf-8"), "memory.toml"), MemoryConstants, "memory.toml"
    )


def capability(gpu: Gpu) -> float:
    """Compute capability; cards of other makers, and those that do not say, count as the latest."""
    text = gpu.compute_capability or ""
    try:
        return float(text)
    except ValueError:
        return 9.0


def workspace_bytes(view: StageView, stack: Stack) -> Floats:
    """What matrix products ask the allocator for beside their operands. (pipeline, slot, plan)"""
    each = [_workspace(pool.gpu, view.task, stack) for pool in view.task.cluster.pools]
    return np.array(each)[view.stages.of(view.plans.gpu)]


def runtime_bytes(view: StageView, groups: Ints) -> Floats:
    """CUDA's context and so many communicators. (pipeline, slot, plan)"""
    pools = view.task.cluster.pools
    late = [capability(pool.gpu) >= 9 for pool in pools]
    found = [
        memory_constants().hopper_context if each else memory_constants().context for each in late
    ]
    at = view.stages.of(view.plans.gpu)
    context = np.array([each.bytes for each in found])[at]
    return context + np.array([each.group_bytes for each in found])[at] * groups


def _workspace(gpu: Gpu, task: Task, stack: Stack) -> float:
    cublas, engine = memory_constants().cublas, memory_constants().transformer_engine
    major = int(capability(gpu))
    each = cublas.hopper_bytes if major >= 9 else cublas.bytes
    if stack.deterministic:
        each = cublas.deterministic_bytes
    total = cublas.threads * each
    if not stack.transformer_engine:
        return total
    own = engine.hopper_bytes if major >= 9 else engine.bytes
    grouped = engine.grouped_streams if task.model.moe is not None else 0
    return total + own * (1 + grouped)


def copies_output(gpu: Gpu, task: Task, stack: Stack) -> bool:
    """Whether attention's output is saved twice: as flash-attention 2 wrote it, batch first, and
    sequence first as the projection reads it.

    Transformer Engine takes cuDNN's attention from Hopper on, unless it must be deterministic,
    which cuDNN's is on Hopper alone; elsewhere flash-attention 2, which has no latent attention.
    """
    if not stack.transformer_engine or task.model.mla is not None:
        return False
    major = int(capability(gpu))
    return major < 9 or (stack.deterministic and major > 9)
