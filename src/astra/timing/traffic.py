"""Communication inside a layer: tensor, context and expert parallel, and how much is exposed."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from astra.hardware.cluster import Gpu
from astra.model.layer_kinds import LayerKind
from astra.model.shape import Model
from astra.timing.constants import timing_constants
from astra.timing.ledger import Collective, RankGroup
from astra.timing.link_curves import overlap_slowdown
from astra.timing.operators import LayerShape, Operator

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Traffic:
    """Exposed seconds of one layer. (shape,)"""

    forward_s: Floats
    backward_s: Floats


def _group(name: str, ranks: Floats, stride: Floats, shape: LayerShape) -> RankGroup:
    return RankGroup.of(
        name, *(c.astype(np.int64) for c in (ranks, stride, shape.domain, shape.node))
    )


def _exposed_s(
    traffic_s: Floats, compute_s: Floats, gpu: Gpu, exposed_fraction: float = 0.0
) -> Floats:
    """Traffic that compute does not hide, and what it costs the compute that hides the rest.

    Hidden seconds slow the kernels beside them; `exposed_fraction` of the traffic is never hidden.
    """
    hidden = np.minimum(traffic_s * (1 - exposed_fraction), compute_s)
    return traffic_s - hidden + overlap_slowdown(gpu) * hidden


def exchanging_halves(model: Model, kind: LayerKind) -> float:
    """Attention and MLP, unless the MLP is routed experts alone: those get theirs by dispatch."""
    return 1.0 if kind.mlp == "moe" and model.moe and not model.moe.shared_ffn else 2.0


def tensor_collectives(
    model: Model, kind: LayerKind, shape: LayerShape, element: float, gathered: float = 1.0
) -> list[Collective]:
    """One before and one after the matrix products of attention, and of the MLP.

    With sequence parallelism all-gather and reduce-scatter, else all-reduce (Korthikanti et al.
    2022, section 4.2.2); backward, saved inputs are gathered once more. What is gathered has
    `gathered` times the bytes. Routed experts get theirs by dispatch.
    """
    group, what = _group("tp", shape.tp, np.ones_like(shape.tp), shape), "activations of a layer"
    payload = shape.tokens * model.hidden * element
    halves = exchanging_halves(model, kind)
    shared = np.where(shape.sp > 1, halves, 0.0)
    return [
        Collective(group, "all-gather", what, gathered * payload, shared, 2 * shared),
        Collective(group, "reduce-scatter", what, payload, shared, shared),
        Collective(group, "all-reduce", what, payload, halves - shared, halves - shared),
    ]


def tensor_traffic(
    model: Model,
    kind: LayerKind,
    shape: LayerShape,
    gpu: Gpu,
    operators: list[Operator],
    overlap: bool,
    element: float,
    waits: bool = False,
    factor: Floats | float = 1.0,
    gathered: float = 1.0,
) -> Traffic:
    """Seconds of tensor-parallel traffic of one layer that compute does not hide.

    Backward, Megatron-LM hides the gather of a saved input behind dgrad and the reduction of its
    gradient behind wgrad; before 2022 it `waits` for every one. All of it takes `factor` times as
    long, what is hidden too.
    """
    forward_s, blocking_s = np.zeros(1), np.zeros(1)
    for collective in tensor_collectives(model, kind, shape, element, gathered):
        seconds = factor * collective.one_s(gpu)
        forward_s = forward_s + collective.forward * seconds
        blocking_s = blocking_s + (collective.backward - collective.forward) * seconds
    products = [op for op in operators if op.wgrad_s is not None]
    wgrad_s = sum((op.wgrad_s for op in products if op.wgrad_s is not None), np.zeros(1))
    beside_wgrad_s = forward_s  # backward as many as forward
    if overlap:
        forward_compute_s = sum((op.forward_s for op in products), np.zeros(1))
        backward_compute_s = sum((op.backward_s for op in products), np.zeros(1)) - wgrad_s
        never = timing_constants().shows.tensor
        forward_s = _exposed_s(forward_s, forward_compute_s, gpu, never)
        blocking_s = _exposed_s(blocking_s, backward_compute_s, gpu, never)
    reduction_s = beside_wgrad_s if waits else _exposed_s(beside_wgrad_s, wgrad_s, gpu)
    return Traffic(forward_s=forward_s, backward_s=blocking_s + reduction_s)


def context_collectives(
    model: Model, shape: LayerShape, comm_type: str, element: float
) -> list[Collective]:
    """Keys and values of the others: passed around a ring, gathered, or exchanged for heads."""
    if model.mla is not None:
        width = model.heads * (model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim)
        cut = width / shape.tp
        queries = cut
    else:
        cut = model.kv_heads * model.head_dim / np.minimum(shape.tp, model.kv_heads)
        queries = model.heads * model.head_dim / shape.tp
    group, what = _group("cp", shape.cp, shape.tp, shape), "keys and values"
    block = 2 * shape.tokens * cut * element

    if comm_type == "p2p":
        return [Collective(group, "send", what, block, shape.cp - 1, 2 * (shape.cp - 1))]
    if comm_type == "allgather":
        whole, gradients = block * shape.cp, f"gradients of {what}"
        return [
            Collective(group, "all-gather", what, whole, 1.0, 1.0),
            Collective(group, "reduce-scatter", gradients, whole, 0.0, 1.0),
        ]
    moved = shape.tokens * (2 * queries + 2 * cut) * element
    return [Collective(group, "all-to-all", "heads", moved, 1.0, 1.0)]


def context_traffic(
    model: Model,
    shape: LayerShape,
    gpu: Gpu,
    core: Operator,
    comm_type: str,
    element: float,
    factor: float = 1.0,
) -> Traffic:
    """A ring runs behind attention. All of it takes `factor` times as long, what is hidden too."""
    forward, backward = np.zeros(1), np.zeros(1)
    for collective in context_collectives(model, shape, comm_type, element):
        seconds = factor * collective.one_s(gpu)
        forward = forward + collective.forward * seconds
        backward = backward + collective.backward * seconds
    if comm_type == "p2p":
        share = (shape.cp - 1) / shape.cp
        forward = _exposed_s(forward, core.forward_s * share, gpu)
        backward = _exposed_s(backward, core.backward_s * share, gpu)
    return Traffic(forward_s=forward, backward_s=backward)


def expert_collectives(
    model: Model, shape: LayerShape, dispatcher: str, element: float
) -> list[Collective]:
    """Dispatch and combine: tokens to their experts and back, in either pass."""
    moe = model.moe
    assert moe is not None
    one = shape.tokens / shape.sp * model.hidden * element  # of each token that arrives
    near = np.ones_like(shape.ep)
    if dispatcher == "allgather":
        whole, moved = _group("ep", shape.ep * shape.etp, near, shape), one * shape.ep * shape.etp
        return [
            Collective(whole, operation, "tokens", moved, 1.0, 1.0)
            for operation in ("all-gather", "reduce-scatter")
        ]
    outer, inner = _group("ep", shape.ep, shape.etp, shape), _group("etp", shape.etp, near, shape)
    sent = one * moe.top_k * shape.capacity
    if dispatcher in ("deepep", "hybridep"):
        places = np.where(shape.ep > outer.domain, shape.ep / outer.domain, shape.ep)
        sent = sent * _sent_once(places, moe.top_k)
    return [
        Collective(outer, "all-to-all", "tokens", sent, 2.0, 2.0),
        Collective(inner, "all-gather", "tokens", sent * shape.etp, 1.0, 1.0),
        Collective(inner, "reduce-scatter", "tokens", sent * shape.etp, 1.0, 1.0),
    ]


def expert_traffic(
    model: Model,
    shape: LayerShape,
    gpu: Gpu,
    operators: list[Operator],
    dispatcher: str,
    overlap: bool,
    element: float,
    factor: float = 1.0,
) -> Traffic:
    """Overlapped, the traffic of one micro-batch's pass runs beside the other pass of another. All
    of it takes `factor` times as long.
    """
    collectives = expert_collectives(model, shape, dispatcher, element)
    once = factor * sum((each.forward * each.one_s(gpu) for each in collectives), np.zeros(1))
    if overlap:
        both = sum((op.forward_s + op.backward_s for op in operators), np.zeros(1))
        once = _exposed_s(once, both / 2, gpu, timing_constants().shows.expert)
    return Traffic(forward_s=once, backward_s=once)


def _sent_once(places: Floats, top_k: int) -> Floats:
    """A token goes once to each place that has some of its experts, however many.

    Expected distinct places among k uniform draws, over k:  d (1 - (1 - 1/d)^k) / k.
    Across link domains a place is a domain, from where the token goes on over the link; inside
    of one domain it is a rank.
    """
    return places * (1 - (1 - 1 / places) ** top_k) / top_k
