"""All memory of one GPU of every stage, by cause; and which stage is the fullest."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astra.hardware.stack import Stack
from astra.memory.activations import (
    ShardSizes,
    by_operator_bytes,
    checkpoint_bytes,
    layer_bytes,
    routed_tokens,
    shard_sizes,
)
from astra.memory.constants import memory_constants, runtime_bytes, workspace_bytes
from astra.memory.in_flight import in_flight
from astra.memory.states import states
from astra.model.layer_kinds import layer_kinds
from astra.model.parameters import count, layer_weights
from astra.model.shape import Model
from astra.strategy.offload import offloaded_layers, offloaded_values
from astra.strategy.parameters_per_gpu import padded_vocab
from astra.strategy.plans import Floats, Ints, Plans, Task
from astra.strategy.replica_groups import replicas_of_segment
from astra.strategy.rules.rule import is_word
from astra.strategy.stage_view import StageView
from astra.strategy.stages import Stages, is_recompute


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MemoryColumns:
    """Bytes of one GPU of the first stage of each slot. (pipeline, slot, plan)"""

    shared: dict[str, Floats]  # of the distinct plans but for recompute and offload
    rows: NDArray[np.intp]  # for every plan, its row in `shared`
    offload_fraction: Floats  # of the optimizer's states, on the host
    activations_bytes: Floats
    offloaded_bytes: Floats  # activations on the host
    logits_bytes: Floats
    working_bytes: Floats  # of the layer at work; a part of `buffers_bytes`

    def part(self, name: str) -> Floats:
        """A column of `shared`, for every plan."""
        return self.shared[name][..., self.rows]

    @property
    def weights_bytes(self) -> Floats:
        found = self.part("weights")
        if self.offload_fraction.any():
            found = found + np.where(self.offload_fraction > 0, self.part("offload"), 0.0)
        return found

    @property
    def gradients_bytes(self) -> Floats:
        return self.part("gradients")

    @property
    def optimizer_bytes(self) -> Floats:
        return self.part("optimizer") * (1 - self.offload_fraction)

    @property
    def offloaded_states_bytes(self) -> Floats:
        return self.part("optimizer") * self.offload_fraction

    @property
    def offloaded_per_micro_batch_bytes(self) -> Floats:
        if not self.offloaded_bytes.any():
            return self.offloaded_bytes
        return self.offloaded_bytes / np.maximum(self.part("in_flight"), 1.0)

    @property
    def host_bytes(self) -> Floats:
        """What the host holds for this GPU."""
        return self.offloaded_states_bytes + self.offloaded_bytes

    @property
    def buffers_bytes(self) -> Floats:
        return self.part("buffers") + self.working_bytes

    @property
    def runtime_bytes(self) -> Floats:
        return self.part("runtime")

    @property
    def allocated_bytes(self) -> Floats:
        """What torch calls allocated, at the peak: all but the runtime's own."""
        shared = self.shared
        steady = shared["weights"] + shared["gradients"] + shared["optimizer"] + shared["buffers"]
        found = steady[..., self.rows] + self.activations_bytes + self.logits_bytes
        found += self.working_bytes
        if self.offload_fraction.any():
            shared = {name: self.part(name) for name in ("optimizer", "offload")}
            found -= offload_frees_bytes(shared, self.offload_fraction)
        return found


def offload_frees_bytes(shared: dict[str, Floats], fraction: Floats | float) -> Floats:
    """What a GPU no longer holds with this share of the optimizer's states on the host: the
    states, less what it holds for them instead.
    """
    return shared["optimizer"] * fraction - np.where(fraction > 0, shared["offload"], 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ActivationBytes:
    """Activations of a stage per micro-batch in flight. (pipeline, slot, plan)"""

    shared: dict[str, Floats]  # of the distinct plans but for recompute and offload
    rows: NDArray[np.intp]
    saved_bytes: Floats  # per micro-batch in flight
    offloaded_bytes: Floats  # likewise, to the host
    resident_bytes: Floats  # of the offloaded, on the GPU at any time
    working_bytes: Floats  # of the layer at work

    def part(self, name: str) -> Floats:
        """A column of `shared`, for every plan."""
        return self.shared[name][..., self.rows]

    def held_bytes(self, micro_batches: Floats, place: Any = ...) -> tuple[Floats, Floats]:
        """Of so many in flight: on the GPU, and on the host; of all slots, or of one."""
        held = self.saved_bytes[place] * micro_batches
        if not self.offloaded_bytes.any():
            return held, np.zeros(1)
        offloaded = self.offloaded_bytes[place] * micro_batches
        return held + np.minimum(self.resident_bytes[place], offloaded), offloaded


def activation_bytes(
    view: StageView, stack: Stack, shared: dict[str, Floats] | None = None
) -> ActivationBytes:
    """What every slot holds; `shared` where what plans share is counted already."""
    shared = shared or shared_bytes(view, stack)
    saved, offloaded, working, resident = _activations(view, shard_sizes(view, stack), stack)
    working += shared["inside"][..., view.rows]
    return ActivationBytes(
        shared=shared,
        rows=view.rows,
        saved_bytes=saved,
        offloaded_bytes=offloaded,
        resident_bytes=resident,
        working_bytes=working,
    )


def memory_of(
    view: StageView, stack: Stack, shared: dict[str, Floats] | None = None
) -> MemoryColumns:
    """Memory of every slot of a table of plans.

    What plans share that differ only in recompute and offload is counted once; `shared` where
    it is already.
    """
    per_micro_batch = activation_bytes(view, stack, shared)
    working = per_micro_batch.working_bytes
    activations, offloaded = per_micro_batch.held_bytes(per_micro_batch.part("in_flight"))
    logits = per_micro_batch.part("logits")
    at_loss = logits > working  # the peak is at the loss or inside a layer, not both
    return MemoryColumns(
        shared=per_micro_batch.shared,
        rows=per_micro_batch.rows,
        offload_fraction=view.plans.offload_optimizer_fraction,
        activations_bytes=activations,
        offloaded_bytes=offloaded,
        logits_bytes=np.where(at_loss, logits, 0.0),
        working_bytes=np.where(at_loss | (view.stages.count == 0), 0.0, working),
    )


def shared_bytes(whole: StageView, stack: Stack) -> dict[str, Floats]:
    """What does not depend on recompute and offload; zero in unused slots."""
    view = whole.shared
    micro_batches = in_flight(view.plans, view.stages)
    return _fixed_bytes(view, stack) | {
        "in_flight": np.where(view.stages.count > 0, micro_batches, 0.0)
    }


def _fixed_bytes(view: StageView, stack: Stack) -> dict[str, Floats]:
    """The same but for how many micro-batches are in flight."""
    shards = shard_sizes(view, stack)
    held = states(view, stack)
    found = {
        "weights": held.weights_bytes,
        "offload": held.offload_bytes,
        "gradients": held.gradients_bytes,
        "optimizer": held.optimizer_bytes,
        "logits": _logits(view.plans, view.stages, view.task, shards, stack),
        "buffers": _buffers(view, shards, stack),
        "inside": _inside(view.plans, view.task, shards, stack),
        "runtime": runtime_bytes(view, _groups(view.plans, view.stages)),
    }
    return {name: np.where(view.stages.count > 0, part, 0.0) for name, part in found.items()}


def lower_bound_bytes(view: StageView, stack: Stack, offloaded: float) -> Floats:
    """What no recompute and no offload of this share of the optimizer can save.

    No activation is counted but what a layer or the loss needs while it is worked on.
    """
    shared = _fixed_bytes(view.shared, stack)
    states = shared["weights"] + shared["gradients"] + shared["optimizer"] * (1 - offloaded)
    least = states + shared["buffers"] + np.maximum(shared["logits"], shared["inside"])
    return least * (1 + stack.slack_fraction) + shared["runtime"]


def _activations(
    view: StageView, shards: ShardSizes, stack: Stack
) -> tuple[Floats, Floats, Floats, Floats]:
    """Per micro-batch of a stage: saved on the GPU and offloaded to the host. Of a stage: what
    recompute holds while it repeats a layer, and what of the offloaded is on the GPU at any time.
    """
    plans, stages, model = view.plans, view.stages, view.task.model
    fraction, checkpoints = view.recomputed
    input_bytes = checkpoint_bytes(model, shards)
    checkpointed = fraction * checkpoints
    saved = np.where(stages.head, 2 * input_bytes, 0.0)  # around the final norm
    if stack.dropout:
        saved = saved + np.where(stages.embedding, shards.tokens * model.hidden / shards.sp, 0.0)
    selective = is_recompute(stages.of(plans.recompute), "selective")
    by_operator = selective & (view.task.runtime == "fsdp")
    offloads, whole_layers = plans.offload_activations.any(), plans.offload_layers.any()
    largest, offloaded, back = (np.zeros(stages.count.shape) for _ in range(3))
    for row, kind in enumerate(layer_kinds(model).kinds):
        whole = layer_bytes(kind, plans, shards, view.task) * stack.activation_factor
        moved: Floats | float = 0.0
        if offloads:
            moved = np.minimum(offloaded_values(view, kind) * shards.element, whole)
        if stack.dropout:
            whole = whole + 2.0 * shards.tokens * model.hidden / shards.sp
        saved_layer = whole
        if by_operator.any():
            saved_layer = np.where(by_operator, by_operator_bytes(kind, shards, view.task), whole)
        layers = stages.kind_layers[row] + _mtp_layers(plans, stages, row, model)
        if offloads:
            offloaded = offloaded + layers * moved * (1 - fraction)
            back = np.maximum(back, np.where(layers > 0, moved, 0.0))
        saved = saved + layers * (
            (saved_layer - moved) * (1 - fraction) + input_bytes * checkpointed
        )
        if whole_layers:  # nothing of them stays: the copy is done before as many others begin
            leaving = np.minimum(offloaded_layers(plans, model, row), layers) * saved_layer
            saved, offloaded = saved - leaving, offloaded + leaving
        largest = np.maximum(largest, np.where(layers > 0, whole, 0.0))
    uniform = is_recompute(stages.of(plans.recompute), "full:uniform")
    group = np.where(uniform, np.maximum(stages.of(plans.recompute_layers), 1), 1)
    recomputed = np.where((fraction > 0) | by_operator, largest * group, 0.0)
    return saved, offloaded, recomputed, back * memory_constants().offload.resident_layers


def _mtp_layers(plans: Plans, stages: Stages, kind: int, model: Model) -> Ints:
    """Multi-token-prediction layers are of the last kind and lie on the last stage."""
    if not model.mtp_layers or kind != layer_kinds(model).of_layer[-1]:
        return np.zeros(1, np.int64)
    return np.where(stages.head, plans.mtp_layers, 0)


def _inside(plans: Plans, task: Task, shards: ShardSizes, stack: Stack) -> Floats:
    """Alive inside one layer: gradients of the widest activation and of the residual stream, and
    the sequence gathered for the products that need it whole.

    Hugging Face's experts are one weight, whose gradient is made in bf16 before it is added up;
    without torch.compile beside those of the routed tokens as they went in and came out.
    """
    model = task.model
    width = model.ffn
    if model.moe is not None:
        width = max(width, model.moe.moe_ffn * model.moe.top_k)
    widest = (1 + model.gated_mlp) * width / shards.tp
    gathered = np.where((shards.sp > 1) | plans.overlap_tp, 2 * model.hidden, 0)
    found = shards.tokens * shards.element * (widest + 2 * model.hidden + gathered)
    if model.moe is not None and stack.layers != "fused":
        ups = (1 + model.gated_mlp) * model.moe.moe_ffn
        routed = shards.tokens * model.moe.top_k * 2 * model.hidden if shards.eager else 0.0
        found = found + shards.element * (routed + model.moe.experts * ups * model.hidden)
    return found


def _logits(plans: Plans, stages: Stages, task: Task, shards: ShardSizes, stack: Stack) -> Floats:
    """Logits and their fp32 copy, and the head's input gathered along the sequence."""
    model = task.model
    each = stack.logits_bytes + (shards.element if model.capped_logits else 0.0)
    per_token = each * padded_vocab(task, shards.tp) / shards.tp + shards.element * model.hidden
    heads = 1 + plans.mtp_layers
    return np.where(stages.head, shards.tokens * per_token * np.minimum(heads, 2), 0.0)


def _buffers(view: StageView, shards: ShardSizes, stack: Stack) -> Floats:
    """What communication needs: stage borders (the input that came next and the gradient on its
    way), dispatch, gathered weights, buckets; and the workspaces of matrix products.
    """
    plans, stages, model = view.plans, view.stages, view.task.model
    stream = shards.tokens * shards.element * model.hidden
    border = np.where(plans.pp[:, np.newaxis] > 1, 2 * stream / shards.sp, 0.0)
    found = border + np.where(plans.overlap_tp, 2 * stream, 0.0)
    if model.moe is not None:
        sent = routed_tokens(model.moe, plans) * stream / shards.sp
        spread = (stages.of(plans.segment_ep) > 1) | (shards.etp > 1)
        found = found + np.where(spread, 2 * sent, 0.0)
    if stack.bucket_bytes:
        found = found + np.where(is_word(plans, "sharding", "none"), 0.0, stack.bucket_bytes)
    found = found + workspace_bytes(view, stack)
    return found + _gathered_weights(plans, stages, view.task, shards)


def _gathered_weights(plans: Plans, stages: Stages, task: Task, shards: ShardSizes) -> Floats:
    """Sharded parameters: the layer at work and the next, whole, and one layer's gradients."""
    model = task.model
    sizes = [count(layer_weights(model, kind)) for kind in layer_kinds(model).kinds]
    if model.moe is not None:
        routed = [
            count(layer_weights(model, kind), sharded_by="ep_etp")
            for kind in layer_kinds(model).kinds
        ]
        spread = stages.of(plans.segment_ep) * shards.etp
        layer = np.max(
            [
                (size - part) / shards.tp + part / spread
                for size, part in zip(sizes, routed, strict=True)
            ],
            axis=0,
        )
    else:
        layer = max(sizes) / shards.tp
    rows = padded_vocab(task, shards.tp) / shards.tp
    ends = np.where(
        stages.head | stages.embedding, rows * (model.embedding_dim or model.hidden), 0.0
    )
    largest = np.maximum(layer, ends)
    whole = shards.element * (largest + layer) + shards.element * largest
    return np.where(is_word(plans, "sharding", "parameters"), whole, 0.0)


def _groups(plans: Plans, stages: Stages) -> Ints:
    """One communicator of all ranks, and one for each kind of group that is larger than one."""
    found: Ints = (
        (stages.of(plans.tp) > 1).astype(np.int64)
        + (plans.cp > 1)
        + (plans.pp[:, np.newaxis] > 1)
        + (stages.of(replicas_of_segment(plans)) > 1)
        + 2 * (stages.of(plans.segment_ep) > 1)
        + 1
    )
    return found
