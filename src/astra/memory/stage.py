"""All memory of one GPU of every stage, by cause; and which stage is the fullest."""

from dataclasses import dataclass

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
from astra.model.kinds import layer_kinds
from astra.model.parameters import count, layer_weights
from astra.model.shape import Model
from astra.strategy.held import padded_vocab
from astra.strategy.makes import copies_of
from astra.strategy.offload import offloaded_values
from astra.strategy.plans import Floats, Ints, Plans, Task
from astra.strategy.rules.rule import is_word
from astra.strategy.stages import Stages, is_recompute
from astra.strategy.view import View


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MemoryColumns:
    """Bytes of one GPU of the first stage of each run. (pipeline, run, plan)"""

    base: dict[str, Floats]  # of the distinct plans but for recompute and offload
    rows: NDArray[np.intp]  # for every plan, its row in `base`
    offload_fraction: Floats  # of the optimizer's states, on the host
    activations_bytes: Floats
    offloaded_bytes: Floats  # activations on the host
    logits_bytes: Floats
    working_bytes: Floats  # of the layer at work; a part of `buffers_bytes`

    def part(self, name: str) -> Floats:
        """A column of the base, for every plan."""
        return self.base[name][..., self.rows]

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
    def host_bytes(self) -> Floats:
        """What the host keeps for this GPU."""
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
        base = self.base
        steady = base["weights"] + base["gradients"] + base["optimizer"] + base["buffers"]
        found = steady[..., self.rows] + self.activations_bytes + self.logits_bytes
        found += self.working_bytes
        if self.offload_fraction.any():
            base = {name: self.part(name) for name in ("optimizer", "offload")}
            found -= offload_frees_bytes(base, self.offload_fraction)
        return found


def offload_frees_bytes(base: dict[str, Floats], fraction: Floats | float) -> Floats:
    """What a GPU no longer holds with this share of the optimizer's states on the host: the
    states, less what it holds for them instead.
    """
    return base["optimizer"] * fraction - np.where(fraction > 0, base["offload"], 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ActivationBytes:
    """What a stage holds for its micro-batches, before one asks how many. (pipeline, run, plan)"""

    base: dict[str, Floats]  # of the distinct plans but for recompute and offload
    rows: NDArray[np.intp]
    saved_bytes: Floats  # per micro-batch in flight
    offloaded_bytes: Floats  # likewise, to the host
    resident_bytes: Floats  # of the gone, on the GPU at any time
    working_bytes: Floats  # of the layer at work

    def part(self, name: str) -> Floats:
        """A column of the base, for every plan."""
        return self.base[name][..., self.rows]


def activation_bytes(
    view: View, stack: Stack, shared: dict[str, Floats] | None = None
) -> ActivationBytes:
    """What every run holds; `shared` where what plans share is counted already."""
    base = shared or shared_bytes(view, stack)
    kept, gone, working, resident = _activations(view, shard_sizes(view, stack), stack)
    working += base["inside"][..., view.rows]
    return ActivationBytes(
        base=base,
        rows=view.rows,
        saved_bytes=kept,
        offloaded_bytes=gone,
        resident_bytes=resident,
        working_bytes=working,
    )


def memory_of(view: View, stack: Stack, shared: dict[str, Floats] | None = None) -> MemoryColumns:
    """Memory of every run of a table of plans.

    What plans share that differ only in recompute and offload is counted once; `shared` where
    it is already.
    """
    loads = activation_bytes(view, stack, shared)
    flying, working = loads.part("in_flight"), loads.working_bytes
    activations = loads.saved_bytes * flying
    offloaded = np.zeros(1)
    if view.plans.offload_activations.any():
        offloaded = loads.offloaded_bytes * flying
        activations += np.minimum(loads.resident_bytes, offloaded)
    logits = loads.part("logits")
    at_loss = logits > working  # the peak is at the loss or inside a layer, not both
    return MemoryColumns(
        base=loads.base,
        rows=loads.rows,
        offload_fraction=view.plans.offload_optimizer_fraction,
        activations_bytes=activations,
        offloaded_bytes=offloaded,
        logits_bytes=np.where(at_loss, logits, 0.0),
        working_bytes=np.where(at_loss | (view.stages.count == 0), 0.0, working),
    )


def shared_bytes(whole: View, stack: Stack) -> dict[str, Floats]:
    """What does not depend on recompute and offload; zero in unused runs."""
    view = whole.shared
    flying = in_flight(view.plans, view.stages)
    return _still_bytes(view, stack) | {"in_flight": np.where(view.stages.count > 0, flying, 0.0)}


def _still_bytes(view: View, stack: Stack) -> dict[str, Floats]:
    """The same but for how many micro-batches are in flight."""
    cut = shard_sizes(view, stack)
    held = states(view, stack)
    found = {
        "weights": held.weights_bytes,
        "offload": held.offload_bytes,
        "gradients": held.gradients_bytes,
        "optimizer": held.optimizer_bytes,
        "logits": _logits(view.plans, view.stages, view.task, cut, stack),
        "buffers": _buffers(view, cut, stack),
        "inside": _inside(view.plans, view.task, cut, stack),
        "runtime": runtime_bytes(view, _groups(view.plans, view.stages)),
    }
    return {name: np.where(view.stages.count > 0, part, 0.0) for name, part in found.items()}


def lower_bound_bytes(view: View, stack: Stack, offloaded: float) -> Floats:
    """What no recompute and no offload of this share of the optimizer can save.

    No activation is counted but what a layer or the loss needs while it is worked on.
    """
    base = _still_bytes(view.shared, stack)
    states = base["weights"] + base["gradients"] + base["optimizer"] * (1 - offloaded)
    least = states + base["buffers"] + np.maximum(base["logits"], base["inside"])
    return least * (1 + stack.slack_fraction) + base["runtime"]


def _activations(
    view: View, cut: ShardSizes, stack: Stack
) -> tuple[Floats, Floats, Floats, Floats]:
    """Per micro-batch of a stage: kept on the GPU and gone to the host. Of a stage: what recompute
    holds while it does a layer again, and what of the gone is on the GPU at any time.
    """
    plans, stages, model = view.plans, view.stages, view.task.model
    fraction, checkpoints = view.recomputed
    input_bytes = checkpoint_bytes(model, cut)
    checkpointed = fraction * checkpoints
    kept = np.where(stages.head, 2 * input_bytes, 0.0)  # around the final norm
    if stack.dropout:
        kept = kept + np.where(stages.embedding, cut.tokens * model.hidden / cut.sp, 0.0)
    selective = is_recompute(stages.of(plans.recompute), "selective")
    by_operator = selective & (view.task.runtime == "fsdp")
    offloads = bool(plans.offload_activations.any())
    largest, gone, back = (np.zeros(stages.count.shape) for _ in range(3))
    for row, kind in enumerate(layer_kinds(model).kinds):
        whole = layer_bytes(kind, plans, cut, view.task) * stack.activation_factor
        moved: Floats | float = 0.0
        if offloads:
            moved = np.minimum(offloaded_values(view, kind) * cut.element, whole)
        if stack.dropout:
            whole = whole + 2.0 * cut.tokens * model.hidden / cut.sp
        held = whole
        if by_operator.any():
            held = np.where(by_operator, by_operator_bytes(kind, cut, view.task), whole)
        layers = stages.kind_layers[row] + _mtp_layers(plans, stages, row, model)
        if offloads:
            gone = gone + layers * moved * (1 - fraction)
            back = np.maximum(back, np.where(layers > 0, moved, 0.0))
        kept = kept + layers * ((held - moved) * (1 - fraction) + input_bytes * checkpointed)
        largest = np.maximum(largest, np.where(layers > 0, whole, 0.0))
    uniform = is_recompute(stages.of(plans.recompute), "full:uniform")
    group = np.where(uniform, np.maximum(stages.of(plans.recompute_layers), 1), 1)
    again = np.where((fraction > 0) | by_operator, largest * group, 0.0)
    return kept, gone, again, back * memory_constants().offload.resident_layers


def _mtp_layers(plans: Plans, stages: Stages, kind: int, model: Model) -> Ints:
    """Multi-token-prediction layers are of the last kind and lie on the last stage."""
    if not model.mtp_layers or kind != layer_kinds(model).of_layer[-1]:
        return np.zeros(1, np.int64)
    return np.where(stages.head, plans.mtp_layers, 0)


def _inside(plans: Plans, task: Task, cut: ShardSizes, stack: Stack) -> Floats:
    """Alive inside one layer: gradients of the widest activation and of the residual stream, and
    the sequence gathered for the products that need it whole.

    Hugging Face's experts are one weight, whose gradient is made in bf16 before it is added up;
    without torch.compile beside those of the routed tokens as they went in and came out.
    """
    model = task.model
    width = model.ffn
    if model.moe is not None:
        width = max(width, model.moe.moe_ffn * model.moe.top_k)
    widest = (1 + model.gated_mlp) * width / cut.tp
    gathered = np.where((cut.sp > 1) | plans.overlap_tp, 2 * model.hidden, 0)
    found = cut.tokens * cut.element * (widest + 2 * model.hidden + gathered)
    if model.moe is not None and stack.layers != "fused":
        ups = (1 + model.gated_mlp) * model.moe.moe_ffn
        routed = cut.tokens * model.moe.top_k * 2 * model.hidden if cut.eager else 0.0
        found = found + cut.element * (routed + model.moe.experts * ups * model.hidden)
    return found


def _logits(plans: Plans, stages: Stages, task: Task, cut: ShardSizes, stack: Stack) -> Floats:
    """Logits and their fp32 copy, and the head's input gathered along the sequence."""
    model = task.model
    each = stack.logits_bytes + (cut.element if model.capped_logits else 0.0)
    per_token = each * padded_vocab(task, cut.tp) / cut.tp + cut.element * model.hidden
    heads = 1 + plans.mtp_layers
    return np.where(stages.head, cut.tokens * per_token * np.minimum(heads, 2), 0.0)


def _buffers(view: View, cut: ShardSizes, stack: Stack) -> Floats:
    """What communication needs: stage borders (the input that came next and the gradient on its
    way), dispatch, gathered weights, buckets; and the workspaces of matrix products.
    """
    plans, stages, model = view.plans, view.stages, view.task.model
    stream = cut.tokens * cut.element * model.hidden
    border = np.where(plans.pp[:, np.newaxis] > 1, 2 * stream / cut.sp, 0.0)
    found = border + np.where(plans.overlap_tp, 2 * stream, 0.0)
    if model.moe is not None:
        sent = routed_tokens(model.moe, plans) * stream / cut.sp
        spread = (stages.of(plans.segment_ep) > 1) | (cut.etp > 1)
        found = found + np.where(spread, 2 * sent, 0.0)
    if stack.bucket_bytes:
        found = found + np.where(is_word(plans, "sharding", "none"), 0.0, stack.bucket_bytes)
    found = found + workspace_bytes(view, stack)
    return found + _gathered_weights(plans, stages, view.task, cut)


def _gathered_weights(plans: Plans, stages: Stages, task: Task, cut: ShardSizes) -> Floats:
    """Sharded parameters: the layer at work and the next, whole, and one layer's gradients."""
    model = task.model
    sizes = [count(layer_weights(model, kind)) for kind in layer_kinds(model).kinds]
    if model.moe is not None:
        routed = [
            count(layer_weights(model, kind), cut="ep_etp") for kind in layer_kinds(model).kinds
        ]
        spread = stages.of(plans.segment_ep) * cut.etp
        layer = np.max(
            [
                (size - part) / cut.tp + part / spread
                for size, part in zip(sizes, routed, strict=True)
            ],
            axis=0,
        )
    else:
        layer = max(sizes) / cut.tp
    rows = padded_vocab(task, cut.tp) / cut.tp
    ends = np.where(
        stages.head | stages.embedding, rows * (model.embedding_dim or model.hidden), 0.0
    )
    largest = np.maximum(layer, ends)
    whole = cut.element * (largest + layer) + cut.element * largest
    return np.where(is_word(plans, "sharding", "parameters"), whole, 0.0)


def _groups(plans: Plans, stages: Stages) -> Ints:
    """One communicator of all ranks, and one for each kind of group that is larger than one."""
    found: Ints = (
        (stages.of(plans.tp) > 1).astype(np.int64)
        + (plans.cp > 1)
        + (plans.pp[:, np.newaxis] > 1)
        + (stages.of(copies_of(plans)) > 1)
        + 2 * (stages.of(plans.segment_ep) > 1)
        + 1
    )
    return found
