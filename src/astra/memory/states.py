"""Weights, gradients and optimizer states of one GPU of each stage. [bytes]

Each parameter is divided by what really cuts it, each state by what really shards it
(Megatron-LM: fp32 main gradients, fp32 master weights, two Adam moments).
"""

from dataclasses import dataclass

import numpy as np

from astra.hardware.stack import Stack
from astra.strategy.makes import copies_of, shard_share
from astra.strategy.plans import Floats, Plans, Task, dtype_bytes
from astra.strategy.rules.rule import is_word
from astra.strategy.view import View

# NVFP4: half a byte and an fp8 scale for every 16 values, in either orientation, beside bf16.
FP4_BYTES = 0.5 + 1 / 16
FP4_WEIGHT_BYTES = 2.0 + 2 * FP4_BYTES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class States:
    """Bytes of one GPU of each stage. (pipeline, slot, plan)"""

    weights_bytes: Floats
    offload_bytes: Floats  # more of them where an optimizer on the host cannot write fp8
    gradients_bytes: Floats
    optimizer_bytes: Floats  # on the GPU or on the host


def states(view: View, stack: Stack) -> States:
    """Bytes of weights, gradients and optimizer of one GPU of each stage.

    With P parameters on the GPU, R copies and a shard group of G:
        none        weights 2 P, gradients g P, optimizer (4 + 8) P
        optimizer   optimizer / G
        gradients   gradients too / G
        parameters  weights too / G (what is gathered for a layer is a buffer)
    """
    plans, stages, task, held = view.plans, view.stages, view.task, view.held
    share, copies = shard_share(plans), stages.of(copies_of(plans)) * plans.cp
    dense_group = np.maximum(copies * share, 1.0)
    expert_copies = stages.of(plans.tp) * copies
    expert_copies = expert_copies / (stages.of(plans.segment_ep) * stages.of(plans.segment_etp))
    expert_group = np.maximum(expert_copies * share, 1.0)
    level = plans.sharding

    def sharded(amount: Floats, group: Floats, from_level: int) -> Floats:
        return np.where(level >= from_level, amount / group, amount)

    def both(bytes_each: Floats, from_level: int) -> Floats:
        dense = sharded(held.dense * bytes_each, dense_group, from_level)
        return dense + sharded(held.experts * bytes_each, expert_group, from_level)

    def weights(offloaded: bool) -> Floats:
        each = _weight_bytes(plans, offloaded)
        if task.runtime != "fsdp":
            return both(each, 3)
        # fp32 shards are weight and master in one; bf16 is gathered
        whole = np.where(level >= 3, 0.0, both(each, 4))
        return both(np.full(len(plans), 4.0), 2) + np.where(level >= 2, whole, 0.0)

    plain = weights(False)
    own = np.where(level >= 1, stack.gradient_shard_bytes, 0.0)
    return States(
        weights_bytes=plain,
        offload_bytes=weights(True) - plain,
        gradients_bytes=both(_gradient_bytes(plans, task) + stack.gradient_bytes, 2),
        optimizer_bytes=both(_optimizer_bytes(plans, task) + own, 1),
    )


def _weight_bytes(plans: Plans, offloaded: bool) -> Floats:
    """bf16 or fp16 weights. fp8 keeps an fp8 copy and its transpose, and where the optimizer can
    write fp8 weights itself (`--fp8-param-gather`), nothing else.
    """
    full = is_word(plans, "precision", "fp32")
    delayed = is_word(plans, "fp8_recipe", "delayed")
    direct = ~is_word(plans, "sharding", "none")
    if offloaded:
        direct &= delayed
    eight = is_word(plans, "precision", "fp8")
    four = is_word(plans, "precision", "fp4")
    return np.select([full, eight & direct, eight, four], [4.0, 2.0, 4.0, FP4_WEIGHT_BYTES], 2.0)


def _gradient_bytes(plans: Plans, task: Task) -> Floats:
    """The buffer that micro-batches add into has the dtype that is reduced; FSDP2's is fp32."""
    if task.runtime == "fsdp":
        return np.full(len(plans), 4.0)
    return dtype_bytes(plans, "grad_reduce_dtype")


def _optimizer_bytes(plans: Plans, task: Task) -> Floats:
    """Master weights and Adam's two moments; where the weights are fp32 they are the master."""
    master = dtype_bytes(plans, "master_dtype")
    wide = is_word(plans, "precision", "fp32") | (task.runtime == "fsdp")
    master = np.where(wide, 0.0, master)
    moments = dtype_bytes(plans, "first_moment_dtype") + dtype_bytes(plans, "second_moment_dtype")
    return master + moments
