"""Communication inside a layer: tensor, context and expert parallel, and how much of it shows."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from astra.hardware.cluster import Gpu
from astra.hardware.topology import ranks_per_domain
from astra.model.kinds import LayerKind
from astra.model.shape import Model
from astra.timing.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    p2p_s,
    reduce_scatter_s,
)
from astra.timing.facts import facts
from astra.timing.links import overlap_slowdown
from astra.timing.operators import Keys, Operator

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Traffic:
    """Exposed seconds of one layer. (key,)"""

    forward_s: Floats
    backward_s: Floats


class Place(NamedTuple):
    """How a kind of group lies: ranks that share a link domain, and ranks that share a node."""

    domain: Ints
    node: Ints


def _inside(size: Floats, stride: Floats, keys: Keys) -> Place:
    ranks, step = _whole(size), _whole(stride)
    return Place(
        ranks_per_domain(ranks, step, _whole(keys.domain)),
        ranks_per_domain(ranks, step, _whole(keys.node)),
    )


def _whole(degree: Floats) -> Ints:
    return degree.astype(np.int64)


def _shown(traffic_s: Floats, behind_s: Floats, gpu: Gpu, shows: float = 0.0) -> Floats:
    """What is left of traffic that runs beside compute, and what it costs that compute.

    Hidden seconds slow the kernels beside them; the rest is exposed, a share `shows` at least.
    """
    hidden = np.minimum(traffic_s * (1 - shows), behind_s)
    return traffic_s - hidden + overlap_slowdown(gpu) * hidden


def exchanging_halves(model: Model, kind: LayerKind) -> float:
    """Attention and MLP, unless the MLP is routed experts alone: those get theirs by dispatch."""
    return 1.0 if kind.mlp == "moe" and model.moe and not model.moe.shared_ffn else 2.0


def tensor_traffic(
    model: Model,
    kind: LayerKind,
    keys: Keys,
    gpu: Gpu,
    operators: list[Operator],
    overlap: bool,
    element: float,
    waits: bool = False,
    factor: Floats | float = 1.0,
    gathered: float = 1.0,
) -> Traffic:
    """An exchange before and one after the matrix products of attention, and of the MLP.

    With sequence parallelism all-gather and reduce-scatter, else all-reduce (Korthikanti et al.
    2022, section 4.2.2). Backward, Megatron-LM hides the gather of a saved input behind dgrad
    and the reduction of its gradient behind wgrad; before 2022 it `waits` for every one. All of
    it takes `factor` times as long, what is hidden too. What is gathered has `gathered` times the
    bytes. Routed experts get theirs by dispatch.
    """
    payload = keys.tokens * model.hidden * element
    ranks, near = _whole(keys.tp), _inside(keys.tp, np.ones_like(keys.tp), keys)
    gather = factor * all_gather_s(gathered * payload, ranks, near.domain, gpu, near.node)
    scatter = factor * reduce_scatter_s(payload, ranks, near.domain, gpu, near.node)
    reduce = factor * all_reduce_s(payload, ranks, near.domain, gpu, near.node)
    halves = exchanging_halves(model, kind)
    shared = keys.sp > 1
    wgrad = sum((op.wgrad_s for op in operators if op.wgrad_s is not None), np.zeros(1)) / 2
    forward = halves * np.where(shared, gather + scatter, reduce)
    in_sync = halves * np.where(shared, gather, 0.0)
    beside = forward
    if overlap:
        products = [op for op in operators if op.wgrad_s is not None]
        ahead = sum((op.forward_s for op in products), np.zeros(1))
        back = sum((op.backward_s for op in products), np.zeros(1)) - 2 * wgrad
        forward = _shown(forward, ahead, gpu, facts().shows.tensor)
        in_sync = _shown(in_sync, back, gpu, facts().shows.tensor)
    backward = in_sync + (beside if waits else _shown(beside, 2 * wgrad, gpu))
    alone = keys.tp <= 1
    return Traffic(
        forward_s=np.where(alone, 0.0, forward), backward_s=np.where(alone, 0.0, backward)
    )


def context_traffic(
    model: Model,
    keys: Keys,
    gpu: Gpu,
    core: Operator,
    comm_type: str,
    element: float,
    factor: float = 1.0,
) -> Traffic:
    """Keys and values of the other ranks: passed around a ring behind attention, gathered, or
    exchanged for heads. All of it takes `factor` times as long, what attention hides too.
    """
    if model.mla is not None:
        width = model.heads * (model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim)
        cut = width / keys.tp
        queries = cut
    else:
        cut = model.kv_heads * model.head_dim / np.minimum(keys.tp, model.kv_heads)
        queries = model.heads * model.head_dim / keys.tp
    near = _inside(keys.cp, keys.tp, keys)
    block = 2 * keys.tokens * cut * element
    if comm_type == "p2p":
        hop = factor * p2p_s(block, np.maximum(near.domain, near.node) >= keys.cp, gpu)
        ring = (keys.cp - 1) * hop
        share = (keys.cp - 1) / keys.cp
        forward = _shown(ring, core.forward_s * share, gpu)
        backward = _shown(2 * ring, core.backward_s * share, gpu)
    elif comm_type == "allgather":
        ranks = _whole(keys.cp), near.domain, gpu, near.node
        forward = factor * all_gather_s(block * keys.cp, *ranks)
        backward = forward + factor * reduce_scatter_s(block * keys.cp, *ranks)
    else:
        exchanged = keys.tokens * (2 * queries + 2 * cut) * element
        forward = factor * all_to_all_s(exchanged, _whole(keys.cp), near.domain, gpu, near.node)
        backward = forward
    alone = keys.cp <= 1
    return Traffic(
        forward_s=np.where(alone, 0.0, forward), backward_s=np.where(alone, 0.0, backward)
    )


def expert_traffic(
    model: Model,
    keys: Keys,
    gpu: Gpu,
    operators: list[Operator],
    dispatcher: str,
    overlap: bool,
    element: float,
    factor: float = 1.0,
) -> Traffic:
    """Dispatch and combine: tokens to their experts and back, in either pass.

    Overlapped, the traffic of one micro-batch's pass runs beside the other pass of another. All of
    it takes `factor` times as long.
    """
    moe = model.moe
    assert moe is not None
    arriving = keys.tokens / keys.sp
    near = _inside(keys.ep, keys.etp, keys)
    sent = arriving * moe.top_k * keys.capacity * model.hidden * element
    if dispatcher == "allgather":
        whole = arriving * keys.ep * keys.etp * model.hidden * element
        ranks = _whole(keys.ep * keys.etp)
        close = _inside(keys.ep * keys.etp, np.ones_like(keys.ep), keys)
        once = all_gather_s(whole, ranks, close.domain, gpu, close.node) + reduce_scatter_s(
            whole, ranks, close.domain, gpu, close.node
        )
    else:
        if dispatcher in ("deepep", "hybridep"):
            places = np.where(keys.ep > near.domain, keys.ep / near.domain, keys.ep)
            sent = sent * _sent_once(places, moe.top_k)
        once = 2 * all_to_all_s(sent, _whole(keys.ep), near.domain, gpu, near.node)
        close = _inside(keys.etp, np.ones_like(keys.etp), keys)
        spread = sent * keys.etp
        once = once + all_gather_s(spread, _whole(keys.etp), close.domain, gpu, close.node)
        once = once + reduce_scatter_s(spread, _whole(keys.etp), close.domain, gpu, close.node)
    once = factor * once
    if overlap:
        both = sum((op.forward_s + op.backward_s for op in operators), np.zeros(1))
        once = _shown(once, both / 2, gpu, facts().shows.expert)
    alone = keys.ep * keys.etp <= 1
    shown = np.where(alone, 0.0, once)
    return Traffic(forward_s=shown, backward_s=shown)


def _sent_once(places: Floats, top_k: int) -> Floats:
    """A token goes once to each place that has some of its experts, however many.

    Expected distinct places among k uniform draws, over k:  d (1 - (1 - 1/d)^k) / k.
    Across link domains a place is a domain, from where the token goes on over the link; inside
    of one domain it is a rank.
    """
    return places * (1 - (1 - 1 / places) ** top_k) / top_k
