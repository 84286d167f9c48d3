"""What a stage takes however much of it is recomputed or offloaded."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astra.hardware.cluster import Gpu
from astra.hardware.stack import Stack
from astra.hardware.topology import ranks_per_domain
from astra.model.kinds import layer_kinds
from astra.strategy.makes import copies_of
from astra.strategy.offload import offloaded_values
from astra.strategy.plans import Floats, Ints
from astra.strategy.recompute import MODULES
from astra.strategy.rules.rule import is_word
from astra.strategy.view import View
from astra.timing.collectives import all_gather_s, p2p_s
from astra.timing.facts import facts
from astra.timing.layer import PARTS, Layers
from astra.timing.replicas import Replicas, gpus_of, replicas_of


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StageBase:
    """Seconds of one stage of each run and one micro-batch. (pipeline, run, plan)

    Traffic counts as far as it shows. What goes between stages and copies is worked out when asked.
    """

    view: View
    stack: Stack
    forward_s: Floats  # compute
    backward_s: Floats
    tensor_forward_s: Floats
    tensor_backward_s: Floats
    context_forward_s: Floats
    context_backward_s: Floats
    expert_forward_s: Floats
    expert_backward_s: Floats
    head_forward_s: Floats  # part of `forward_s`: lies on the last chunk
    head_backward_s: Floats
    embedding_forward_s: Floats  # part of `forward_s`: lies on the first chunk
    embedding_backward_s: Floats
    layers_forward_s: Floats  # layers and their traffic: what full recompute does again
    module_s: dict[str, Floats]  # what selective recompute of a module does again
    offload_forward_s: Floats  # activations to the host, as far as compute does not hide them
    offload_backward_s: Floats  # and back

    @cached_property
    def replicas(self) -> Replicas:
        """Traffic between copies, and the optimizer's step."""
        return replicas_of(self.view, self.stack)

    @cached_property
    def _sent_s(self) -> tuple[Floats, Floats]:
        return _links(self.view, self.stack)

    @property
    def link_s(self) -> Floats:
        """To the next stage, one way."""
        return self._sent_s[0]

    @property
    def held_s(self) -> Floats:
        """Part of `link_s`: neither stage works meanwhile."""
        return self._sent_s[1]

    @cached_property
    def tied_s(self) -> Floats:
        """Per step: gradients of tied embeddings between the ends of the pipeline."""
        return _tied_s(self.view, self.stack)


def base_of(view: View, layers: Layers, stack: Stack) -> StageBase:
    """Layers of every kind and the ends, summed over each stage."""
    shape = view.stages.count.shape
    sums = {name: np.zeros(shape) for name in (*PARTS, *MODULES)}
    for row, kind in enumerate(layers.kinds):
        count = _kind_layers(row, view)
        for name in PARTS:
            sums[name] += count * view.stages.of(getattr(kind, name))
        for name, column in kind.module_s.items():
            sums[name] += count * view.stages.of(column)
    modules = {name: sums.pop(name) for name in MODULES}
    downward = [name for name in PARTS if name.endswith("forward_s")]
    layers_forward = np.sum([sums[name] for name in downward], axis=0)
    ends = _ends(view, layers)
    sums["forward_s"] = sums["forward_s"] + ends["head_forward_s"] + ends["embedding_forward_s"]
    sums["backward_s"] = sums["backward_s"] + ends["head_backward_s"] + ends["embedding_backward_s"]
    moved = _offload_s(view)
    return StageBase(
        view=view,
        stack=stack,
        **sums,
        **ends,
        layers_forward_s=layers_forward,
        module_s=modules,
        offload_forward_s=np.maximum(moved - sums["forward_s"], 0.0),
        offload_backward_s=np.maximum(moved - sums["backward_s"], 0.0),
    )


def _kind_layers(row: int, view: View) -> Floats:
    """Layers of a kind in one stage; multi-token prediction adds to the last one."""
    layers = view.stages.kind_layers[row].astype(np.float64)
    if view.task.model.mtp_layers and row == layer_kinds(view.task.model).of_layer[-1]:
        return layers + np.where(view.stages.head, view.plans.mtp_layers, 0)
    return layers


def _ends(view: View, layers: Layers) -> dict[str, Floats]:
    """Embedding and head where they lie; multi-token prediction runs the head once more each."""
    stages = view.stages
    heads = np.where(stages.head, 1 + view.plans.mtp_layers, 0)
    starts = np.where(stages.embedding, 1, 0)
    return {
        "head_forward_s": heads * stages.of(layers.head.forward_s),
        "head_backward_s": heads * stages.of(layers.head.backward_s),
        "embedding_forward_s": starts * stages.of(layers.embedding.forward_s),
        "embedding_backward_s": starts * stages.of(layers.embedding.backward_s),
    }


def _tied_s(view: View, stack: Stack) -> Floats:
    """First and last stage exchange the gradients of an embedding they both hold. [s]"""
    plans, stages, model = view.plans, view.stages, view.task.model
    ends = (stages.embedding | stages.head) & (plans.pp[:, np.newaxis] > 1)
    found = np.zeros(stages.count.shape)
    if not model.tied_embeddings or not ends.any():
        return found
    wide = np.where(is_word(plans, "grad_reduce_dtype", "fp32"), 4.0, 2.0)
    wide = np.where(is_word(plans, "precision", "fp32"), wide, stack.tied_bytes or wide)
    payload = model.vocab * model.hidden / stages.of(plans.tp) * wide
    near = plans.gpus <= np.maximum(stages.of(view.domain), stages.of(view.node))
    senders = stages.of(plans.tp * plans.cp * copies_of(plans))
    for gpu, here in gpus_of(view):
        seconds = p2p_s(payload, near, gpu, senders=senders) * _sending(stack, gpu)
        found = np.where(here & ends, seconds, found)
    return found


def _sending(stack: Stack, gpu: Gpu) -> float:
    own = stack.on(gpu)
    return own.communication_factor * own.pipeline_factor


def _offload_s(view: View) -> Floats:
    """Offloaded activations of one micro-batch over PCIe, one way. [s]"""
    total = np.zeros(view.stages.count.shape)
    if not view.plans.offload_activations.any():
        return total
    element = np.where(is_word(view.plans, "precision", "fp32"), 4.0, 2.0)
    for row, kind in enumerate(layer_kinds(view.task.model).kinds):
        total += _kind_layers(row, view) * offloaded_values(view, kind) * element
    for gpu, here in gpus_of(view):
        rate = facts().optimizer.bandwidth_fraction * gpu.node.pcie_bytes_per_s
        total = np.where(here, total / rate, total)
    return total


def _links(view: View, stack: Stack) -> tuple[Floats, Floats]:
    """Activations to the next stage, and how much of it holds up both stages. Between two GPU
    types they cross the slower of two NICs, and where the stages are cut differently the GPU with
    the larger part sets the pace.

    The link of a run of several stages is the one inside it. Stacks that send shares of what
    every rank holds whole gather them on arrival, inside the tensor-parallel group. Where sends
    are waited for, NCCL's buffer takes a small message and lets the stages go; a larger one moves
    only while both ends are there. What is gathered holds up the receiver alone: half of it each.
    """
    plans, stages, task = view.plans, view.stages, view.task
    tp = stages.of(plans.tp)
    gathers = stack.name in facts().sends.shared
    shared = tp if gathers else np.where(plans.sequence_parallel, tp, 1)
    element = np.where(is_word(plans, "precision", "fp32"), 4.0, 2.0)
    tokens = stages.of(plans.segment_micro_batch) * plans.seq_len / plans.cp
    payload = tokens * task.model.hidden * element / shared
    own = payload
    if not stages.alike:
        payload = np.where(stages.count == 1, np.maximum(payload, _next(view, payload)), payload)
    stage_gpus = tp * plans.cp * stages.of(copies_of(plans))
    found = np.zeros(stages.count.shape)
    together = np.maximum(stages.of(view.domain), stages.of(view.node))
    near = ranks_per_domain(2, stage_gpus, together) == 2
    following = _next(view, stages.of(plans.gpu))
    for gpu, here in gpus_of(view):
        factor = _sending(stack, gpu)
        seconds = p2p_s(payload, near, gpu, senders=stage_gpus) * factor
        found = np.where(here, seconds, found)
        for row, pool in enumerate(task.cluster.pools):
            leaves = here & (stages.count == 1) & (following == row)
            if pool.gpu != gpu and leaves.any():
                seconds = p2p_s(payload, False, gpu, pool.gpu, stage_gpus) * factor
                found = np.where(leaves, seconds, found)
    several = plans.pp[:, np.newaxis] > 1
    found = np.where(several, found, 0.0)
    gathered = np.zeros(found.shape)
    if gathers:
        whole = np.where(plans.sequence_parallel, 0.0, own * tp)
        gathered = np.where(several, _gathered_s(view, whole, tp), 0.0)
    held = np.zeros(found.shape)
    if stack.holds_sends:
        held = np.where(payload > facts().sends.buffer_bytes, found, 0.0) + gathered / 2
    return found + gathered, held


def _gathered_s(view: View, payload: Floats, tp: Ints) -> Floats:
    """Shares of a tensor gathered by a tensor-parallel group. (pipeline, run, plan) [s]"""
    found = np.zeros(view.stages.count.shape)
    inside = ranks_per_domain(tp, 1, view.stages.of(view.domain))
    node = ranks_per_domain(tp, 1, view.stages.of(view.node))
    for gpu, here in gpus_of(view):
        found = np.where(here & (tp > 1), all_gather_s(payload, tp, inside, gpu, node), found)
    return found


def _next(view: View, column: NDArray[Any]) -> NDArray[Any]:
    """What the stage that comes after each run has; after the last, what the first one has."""
    count = view.stages.count
    values = np.broadcast_to(column, count.shape)
    found = np.empty(count.shape, values.dtype)
    after = values[:, 0]
    for run in reversed(range(count.shape[1])):
        found[:, run] = after
        after = np.where(count[:, run] > 0, values[:, run], after)
    return found
