"""Seconds of collectives and of point-to-point sends. Columns in, columns out.

`payload_bytes` is the whole array as nccl-tests prints it: what every rank holds before an
all-reduce, before a reduce-scatter, after an all-gather, and before an all-to-all.

A group of `ranks` has `ranks_per_domain` of them in each link domain and `ranks_per_node` in each
node (the same where it is not given). Three places follow: over the link (NVLink, xGMI); through
the host, where GPUs share a node but no link; across the network. Across, every GPU brings its
own NIC, so a group with g ranks in a node or domain drives g NICs there. Groups that run at the
same time, such as the data-parallel rings of all tensor-parallel ranks of a node, each use the
NICs of their own GPUs and share none. That is how Megatron places ranks, and the only case here.
Where the GPUs of a node share NICs (`node.nics`), each has its share while all of them send, and
more when few do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from astra.hardware.cluster import Gpu
from astra.timing.link_curves import (
    Curve,
    InterNodeFigures,
    IntraNodeCurves,
    all_reduce_curve,
    generation_of,
    host_curves,
    inter_node_table,
    intra_node_curves,
    link_class,
)

Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
SLOWEST_NIC_BYTES_PER_S = 6.25e9  # of the networks in `data/links/across.toml`: AWS p4de, per GPU

Column: TypeAlias = float | npt.NDArray[np.floating[Any]] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCurves:
    """All figures that price the collectives of one GPU type."""

    gpu: Gpu
    inside: IntraNodeCurves
    host: IntraNodeCurves
    across: InterNodeFigures

    @classmethod
    def of(cls, gpu: Gpu) -> "LinkCurves":
        return cls(
            gpu=gpu, inside=intra_node_curves(gpu), host=host_curves(gpu), across=inter_node_table()
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Groups:
    """Groups of ranks and what they send, as columns."""

    payload_bytes: Floats
    ranks: Floats
    nics: Floats  # ranks that sit together, in one node or one link domain
    hosted: Bools  # whether some of those reach each other only through the host

    @property
    def islands(self) -> Floats:
        """Nodes or link domains that a group touches."""
        return self.ranks / self.nics

    def ramped_bytes(self, half_bytes: float) -> Floats:
        """V + sqrt(V half): the bytes, and what small messages lose of the speed."""
        return self.payload_bytes + np.sqrt(self.payload_bytes * half_bytes)


def all_reduce_s(
    payload_bytes: Column,
    ranks: Column,
    ranks_per_domain: Column,
    gpu: Gpu,
    ranks_per_node: Column | None = None,
) -> Floats:
    """Time of an all-reduce: the best of ring, tree and in-switch sums, as NCCL picks. [s]

    Inside a domain the measured curve is of NCCL's own choice: a ring, or the NVSwitch adding up
    (NVLS, more than four ranks from Hopper on). Across: a tree, or a ring twice round.
    Never less than a reduce-scatter or an all-gather, never more than both in turn.
    """
    groups = groups_of(payload_bytes, ranks, ranks_per_domain, ranks_per_node)
    return curve_all_reduce_s(groups, LinkCurves.of(gpu))


def all_gather_s(
    payload_bytes: Column,
    ranks: Column,
    ranks_per_domain: Column,
    gpu: Gpu,
    ranks_per_node: Column | None = None,
) -> Floats:
    """Time of an all-gather; the payload is the gathered array. [s]"""
    groups = groups_of(payload_bytes, ranks, ranks_per_domain, ranks_per_node)
    return curve_pass_s("all_gather", groups, LinkCurves.of(gpu))


def reduce_scatter_s(
    payload_bytes: Column,
    ranks: Column,
    ranks_per_domain: Column,
    gpu: Gpu,
    ranks_per_node: Column | None = None,
) -> Floats:
    """Time of a reduce-scatter; the payload is the array before it is scattered. [s]"""
    groups = groups_of(payload_bytes, ranks, ranks_per_domain, ranks_per_node)
    return curve_pass_s("reduce_scatter", groups, LinkCurves.of(gpu))


def all_to_all_s(
    payload_bytes: Column,
    ranks: Column,
    ranks_per_domain: Column,
    gpu: Gpu,
    ranks_per_node: Column | None = None,
) -> Floats:
    """Time of an all-to-all; the payload is what one rank holds for all, itself included. [s]"""
    groups = groups_of(payload_bytes, ranks, ranks_per_domain, ranks_per_node)
    return curve_all_to_all_s(groups, LinkCurves.of(gpu))


def p2p_s(
    payload_bytes: Column,
    inside: bool | Bools,
    gpu: Gpu,
    other_gpu: Gpu | None = None,
    senders: Column | None = None,
) -> Floats:
    """Time to send to one peer, inside the link domain (or node) or across. [s]

    Between two GPU types the slower end rules. Of each node so many GPUs send at the same time:
    all of them, where `senders` does not say less.
    """
    payload = np.asarray(payload_bytes, dtype=np.float64)
    ends = [gpu] if other_gpu is None else [gpu, other_gpu]
    times = [curve_send_s(payload, np.asarray(inside), LinkCurves.of(end), senders) for end in ends]
    return np.maximum(times[0], times[-1])


def host_share(gpu: Gpu, ranks: int) -> float:
    """What a large all-reduce through the host reaches of PCIe's nominal speed. [fraction]"""
    return float(_at(host_curves(gpu).all_reduce, np.array([float(ranks)]), tree=True)[2][0])


def nic_share(gpu: Gpu, senders: Column | None) -> Floats:
    """What one of so many senders of a node has of its NICs, over what it has if all send.

    min(g / k, g / q)   with g GPUs and q NICs in a node, k of the GPUs sending
    """
    gpus = gpu.node.gpus
    sending = np.clip(gpus if senders is None else np.asarray(senders, np.float64), 1, gpus)
    return np.minimum(gpus / sending, gpus / min(gpu.node.nics or gpus, gpus))


def curve_all_reduce_s(groups: Groups, curves: LinkCurves) -> Floats:
    """all_reduce_s with the figures given."""
    ring_s = _ring_s(groups, curves)
    scatter_s = _pass_s("reduce_scatter", groups, curves, ring_s)
    gather_s = _pass_s("all_gather", groups, curves, ring_s)
    best_s = inner_s = _inner_s("all_reduce", groups, curves)
    if curves.gpu.node.nics is None:
        tree_s = np.maximum(_tree_s(groups, curves), inner_s)
        best_s = np.where(groups.islands > 1, tree_s, inner_s)
    else:  # a ring: trees were measured on faster networks only
        best_s = np.where(groups.islands > 1, np.inf, inner_s)
    best_s = np.minimum(best_s, scatter_s + gather_s)
    return np.maximum(best_s, np.maximum(scatter_s, gather_s))


def curve_pass_s(collective: str, groups: Groups, curves: LinkCurves) -> Floats:
    """all_gather_s or reduce_scatter_s with the figures given."""
    return _pass_s(collective, groups, curves, _ring_s(groups, curves))


def _pass_s(collective: str, groups: Groups, curves: LinkCurves, ring_s: Floats) -> Floats:
    """Time of one pass. A spread group is never faster than the same one inside a domain. [s]"""
    inner_s = _inner_s(collective, groups, curves)
    return np.where(groups.islands > 1, np.maximum(ring_s, inner_s), inner_s)


def curve_all_to_all_s(groups: Groups, curves: LinkCurves) -> Floats:
    """Time of an all-to-all. [s]

        T = L + (n - g) peer + max(remote share / NIC, the whole over the link)

    One NIC per GPU; of n blocks n - g go to other nodes. The rest moves over the link meanwhile.
    """
    across, nic = curves.across, curves.gpu.node.nic_bytes_per_s
    away = (groups.ranks - groups.nics) / groups.ranks
    sent_s = groups.ramped_bytes(across.ring_half_bytes) / (nic * across.all_to_all_efficiency)
    start_s = across.base_s + (groups.ranks - groups.nics) * across.all_to_all_peer_s
    remote_s = start_s + across.ring_hop_s + away * sent_s
    inner_s = _inner_s("all_to_all", groups, curves)
    return np.where(groups.islands > 1, np.maximum(remote_s, inner_s), inner_s)


def curve_send_s(
    payload_bytes: Floats, inside: Bools, curves: LinkCurves, senders: Column | None = None
) -> Floats:
    """Time to send V bytes to one peer. [s]

    Inside: an all-to-all of two ranks with 2 V, which is a send and a receive of V. Across:
    one hop and the payload over one NIC, as on a ring:  T = L + hop_net + M.
    """
    one = np.ones_like(payload_bytes)
    pair = Groups(payload_bytes=2 * payload_bytes, ranks=2 * one, nics=2 * one, hosted=one < 1)
    inside_s = _inner_s("all_to_all", pair, curves)
    across = curves.across
    alone = Groups(payload_bytes=payload_bytes, ranks=2 * one, nics=one, hosted=one < 1)
    share = generation_of(curves.gpu, across).ring_link_efficiency
    nic = nic_share(curves.gpu, senders)
    moved_s = _moved_s(alone, curves, across.ring_efficiency, across.ring_half_bytes, share, nic)
    across_s = across.base_s + across.ring_hop_s + moved_s
    return np.where(inside, inside_s, np.maximum(across_s, inside_s))


def groups_of(
    payload_bytes: Column,
    ranks: Column,
    ranks_per_domain: Column,
    ranks_per_node: Column | None,
) -> Groups:
    """Broadcast columns; a node or a domain holds no more ranks than the group has."""
    node = ranks_per_domain if ranks_per_node is None else ranks_per_node
    columns = (np.asarray(c, dtype=np.float64) for c in (payload_bytes, ranks, ranks_per_domain))
    payload, count, domain = np.broadcast_arrays(*columns)
    together = np.minimum(np.maximum(domain, node), count)
    payload, count, domain = (np.broadcast_to(c, together.shape) for c in (payload, count, domain))
    return Groups(
        payload_bytes=payload,
        ranks=count,
        nics=together,
        hosted=np.minimum(domain, count) < together,
    )


def _inner_s(collective: str, groups: Groups, curves: LinkCurves) -> Floats:
    """Time with all ranks in one domain, or in one node where they share no link. [s]"""
    gpu = curves.gpu
    curve = getattr(curves.inside, collective)
    if collective == "all_reduce":
        curve = all_reduce_curve(gpu, curves.inside)
    linked_s = _curve_s(curve, collective, groups, _link_rate(gpu))
    if not groups.hosted.any() or link_class(gpu) == "pcie":
        return linked_s
    host_rate = _flat(gpu.node.pcie_bytes_per_s)
    host_s = _curve_s(getattr(curves.host, collective), collective, groups, host_rate)
    return np.where(groups.hosted, np.maximum(linked_s, host_s), linked_s)


def _link_rate(gpu: Gpu) -> Callable[[Floats], Floats]:
    """Speed of the links that n ranks can use: a mesh needs all peers to fill all links."""
    link = gpu.link
    return lambda ranks: np.minimum(
        link.bytes_per_s, np.maximum(ranks - 1, 1) * link.peer_bytes_per_s
    )


def _flat(bytes_per_s: float) -> Callable[[Floats], Floats]:
    return lambda ranks: np.full_like(ranks, bytes_per_s)


def _curve_s(
    curve: Curve, collective: str, groups: Groups, rate: Callable[[Floats], Floats]
) -> Floats:
    """Time along a measured curve. [s]

        T = L(n) + k (n - 1) / n (V + sqrt(V half(n))) / (B(n) e(n)),  k = 2 for all-reduce, else 1

    Ring volumes as in Patarasuk & Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
    """
    passes = 2 if collective == "all_reduce" else 1

    def terms(n: Floats) -> tuple[Floats, ...]:
        latency, root_half, efficiency = _at(curve, n, tree=passes == 2)
        slope = passes * (n - 1) / n / (rate(n) * efficiency)
        return np.where(n > 1, latency, 0.0), slope * root_half, slope

    return _quadratic(groups, terms)


def _quadratic(groups: Groups, terms: Callable[[Floats], tuple[Floats, ...]]) -> Floats:
    """a(n) + b(n) sqrt(V) + c(n) V, with a, b, c worked out once per group size."""
    ranks, payload = groups.ranks, groups.payload_bytes
    most = int(ranks.max(initial=1))
    if most > max(64, ranks.size):
        fixed, root, linear = terms(ranks)
    else:
        table = terms(np.arange(1, most + 1, dtype=np.float64))
        row = ranks.astype(np.intp) - 1
        fixed, root, linear = (column[row] for column in table)
    return fixed + root * np.sqrt(payload) + linear * payload


def _at(curve: Curve, ranks: Floats, *, tree: bool) -> tuple[Floats, Floats, Floats]:
    """Latency, root of the half size and efficiency for any group size.

    Straight lines between measured sizes (over log n for the last two). Beyond the largest the
    latency goes on by its last slope, per rank on a ring, per doubling on a tree.
    """
    known = np.asarray(curve.ranks, dtype=np.float64)
    latency = np.asarray(curve.latency_s)
    steps = np.diff(latency) / np.diff(known) if known.size > 1 else np.zeros(1)
    past = np.maximum(ranks / known[-1], 1)
    further = known[-1] * (np.log(past) if tree else past - 1)
    log_ranks, log_known = np.log2(ranks), np.log2(known)
    return (
        np.interp(ranks, known, latency) + max(0.0, steps[-1]) * further,
        np.interp(log_ranks, log_known, np.sqrt(curve.half_bytes)),
        np.interp(log_ranks, log_known, np.asarray(curve.efficiency)),
    )


def _ring_s(groups: Groups, curves: LinkCurves) -> Floats:
    """Time of one pass round a ring over d nodes with g ranks, hence g NICs, in each. [s]

        T = L + (n - 1) / n ((n - d) hop + d hop_net + M / f)

    M moves the payload (`_moved_s`). The better of NCCL's two protocols: short hops at a
    fraction f of the speed, or f = 1.
    """
    across, islands = curves.across, groups.islands
    share = generation_of(curves.gpu, across).ring_link_efficiency
    moved_s = _moved_s(groups, curves, across.ring_efficiency, across.ring_half_bytes, share)
    inner = groups.ranks - islands
    quick_s = inner * across.link_hop_s + islands * across.ring_hop_s
    bulk_s = inner * across.link_hop_bulk_s + islands * across.ring_hop_bulk_s
    quick_s = quick_s + moved_s / across.low_latency_fraction
    return across.base_s + (1 - 1 / groups.ranks) * np.minimum(quick_s, bulk_s + moved_s)


def _tree_s(groups: Groups, curves: LinkCurves) -> Floats:
    """Time of an all-reduce up and down a double binary tree of d nodes with g ranks each. [s]

        T = L + 2 (log2(g) hop + log2(d) hop_net) + c M / f

    c = 1 for two nodes, which only swap halves, else 2: in one tree a node is a leaf, in the
    other it has two children (Sanders et al. 2009, doi:10.1016/j.parco.2009.09.001).
    """
    across, islands = curves.across, groups.islands
    share = generation_of(curves.gpu, across).tree_link_efficiency
    moved_s = _moved_s(groups, curves, across.tree_efficiency, across.tree_half_bytes, share)
    moved_s = np.clip(islands - 1, 1, 2) * moved_s
    depth, net_s = np.log2(groups.nics), np.log2(islands) * across.tree_hop_s
    quick_s = 2 * (depth * across.link_hop_s + net_s) + moved_s / across.low_latency_fraction
    bulk_s = 2 * (depth * across.link_hop_bulk_s + net_s) + moved_s
    return across.base_s + np.minimum(quick_s, bulk_s)


def _moved_s(
    groups: Groups,
    curves: LinkCurves,
    efficiency: float,
    half_bytes: float,
    link_share: float,
    nic_share: Column = 1.0,
) -> Floats:
    """Time to move the payload over the g NICs of a node. [s]

        M = V / min(g NIC e, link e') + sqrt(V half / g) / (NIC e)

    `half_bytes` is per NIC, and less of a NIC slower than all that were measured: what a message
    loses while its speed rises is a time, not a size. The link bounds the speed where a node has
    more NICs than it fills.
    """
    nominal = curves.gpu.node.nic_bytes_per_s * nic_share
    half = half_bytes * np.minimum(nominal / SLOWEST_NIC_BYTES_PER_S, 1.0)
    one_nic = nominal * efficiency
    rate = np.minimum(groups.nics * one_nic, curves.gpu.link.bytes_per_s * link_share)
    return (
        groups.payload_bytes / rate + np.sqrt(groups.payload_bytes * half / groups.nics) / one_nic
    )
