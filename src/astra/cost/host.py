"""What a node's RAM must hold: states of the optimizer and activations that plans offload."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from astra.cost.result import PricedPlan
from astra.hardware.cluster import Pool
from astra.hardware.pools import RESERVED_RAM_FRACTION, is_user_described, usable_ram_bytes
from astra.hardware.stack import Stack
from astra.memory.stage import memory_of
from astra.money.catalogue import instances
from astra.notes import Note, NoteCode, has, note
from astra.strategy.plans import Flags, Floats, Ints, Plans, Task
from astra.strategy.rules.rule import Rule
from astra.strategy.stage_view import stage_view


def offload_bytes_per_node(host_bytes: Floats, gpus: Ints | int, node_gpus: int) -> Floats:
    """Of the fullest node: as many GPUs as it has, each with what the fullest stage keeps. [bytes]

    `host_bytes`: of one GPU. (pipeline, slot, plan)
    """
    fullest: Floats = np.max(host_bytes, axis=(0, 1)) * np.minimum(node_gpus, gpus)
    return fullest


def is_offloading(plans: Plans) -> Flags:
    """Which plans keep something in the RAM of their nodes. (plan,)"""
    activations = (plans.offload_activations != 0) | (plans.offload_layers > 0)
    found: Flags = (plans.offload_optimizer_fraction > 0) | activations
    return found


def host_bytes_per_node(plans: Plans, task: Task, stack: Stack) -> Floats:
    """What every plan keeps in the RAM of a node. (plan,) [bytes]"""
    found = np.zeros(len(plans))
    rows = np.flatnonzero(is_offloading(plans))
    if len(rows):
        some = plans.take(rows)
        held = memory_of(stage_view(some, task), stack).host_bytes
        node = max(pool.gpu.node.gpus for pool in task.cluster.pools)
        found[rows] = offload_bytes_per_node(held, some.gpus, node)
    return found


def pool_usable_ram_bytes(pools: Sequence[Pool]) -> float:
    """What plans may keep in the RAM of a node; of several kinds the smallest that is known."""
    return min(usable_ram_bytes(pool.gpu.node.ram_bytes) for pool in pools)


@cache
def least_usable_ram_bytes(gpu: str, node_gpus: int) -> float:
    """Of the smallest node for rent with so many of these GPUs; 0 where none is known."""
    alike = (m for m in instances().values() if (m.gpu, m.gpus) == (gpu, node_gpus))
    return min((m.usable_ram_bytes for m in alike if m.ram_bytes), default=0.0)


def is_ram_unknown(pool: Pool, need: float) -> bool:
    """Whether nobody knows that the RAM of such nodes holds so much.

    Nodes as the catalogue has them hold what the smallest one for rent does.
    """
    gpu = pool.gpu
    if gpu.node.ram_bytes is not None or not need:
        return False
    return is_user_described(pool) or need > least_usable_ram_bytes(gpu.name, gpu.node.gpus)


def ram_too_small(needed_bytes: float, usable_bytes: float) -> Note:
    """That a node does not hold what is offloaded."""
    return note(
        NoteCode.RAM_TOO_SMALL,
        needed_bytes=needed_bytes,
        usable_bytes=usable_bytes,
        usable_fraction=1 - RESERVED_RAM_FRACTION,
    )


def ram_notes(plans: Sequence[PricedPlan]) -> tuple[Note, ...]:
    """Once for all plans of an answer: some offload, and nobody knows into how much RAM."""
    some = [plan for plan in plans if has(plan.notes, NoteCode.RAM_UNKNOWN)]
    if not some:
        return ()
    most = max(plan.host_memory_bytes for plan in some)
    ranks = [plan.rank for plan in some]
    return (note(NoteCode.RAM_UNKNOWN_OF_PLANS, ranks=ranks, needed_bytes=most),)


def host_rule(usable_bytes: float, stack: Stack) -> Rule:
    """No plan keeps more than this on a node's host."""

    def holds(plans: Plans, task: Task) -> Flags:
        found: Flags = host_bytes_per_node(plans, task, stack) <= usable_bytes
        return found

    return Rule(
        name="host_memory",
        layer="ours",
        reason="what is offloaded has to fit into the RAM of its node",
        settings=("offload_optimizer_fraction", "offload_activations", "offload_layers"),
        where="the RAM of the instance",
        holds=holds,
    )
