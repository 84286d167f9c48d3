"""Collectives across nodes: one set of figures for all RDMA networks."""

import math
from collections import defaultdict
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace
from tools.link_tables.inside import system_weights, tidy
from tools.link_tables.rows import READ_ON, SAILOR, Row, doubtful, over

from astra.files import Source
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Gpu
from astra.timing.collectives import (
    Floats,
    Groups,
    LinkCurves,
    curve_all_reduce_s,
    curve_all_to_all_s,
    curve_pass_s,
    groups_of,
)
from astra.timing.link_curves import (
    Generation,
    InterNodeFigures,
    IntraNodeCurves,
    link_class,
    nearest,
)

# base and per-hop latencies of NCCL's own model, ring, LL and Simple protocols, NVLink
NCCL = "NVIDIA/nccl src/graph/tuning.cc @5067397"
NCCL_BASE_S, NCCL_HOP_S, NCCL_BULK_HOP_S = 6.6e-6, 0.6e-6, 3.4e-6
FITTED = (
    "ring_hop_s",
    "ring_hop_bulk_s",
    "tree_hop_s",
    "low_latency_fraction",
    "ring_half_bytes",
    "tree_half_bytes",
    "ring_efficiency",
    "tree_efficiency",
    "all_to_all_efficiency",
    "all_to_all_peer_s",
)
START = (8e-6, 14e-6, 25e-6, 0.4, 0.25e6, 5e6, 0.9, 0.9, 0.85, 1e-6)
TREE_START = {8.0: 0.35, 9.0: 0.57, 10.0: 0.46}
MOST_HOP_S = 40e-6  # half of what two nodes of AWS p5 need for a few bytes
RING_START = 0.48  # of Blackwell; the rings of earlier ones are bound by NICs or by their curve


def across_from(x: Floats) -> InterNodeFigures:
    """The figures from the logs of their values."""
    values = tidy(np.exp(x), 3)
    generations = tuple(
        Generation(
            capability=cc,
            ring_link_efficiency=values[-1] if cc >= 10 else 0.95,
            tree_link_efficiency=value,
            source=Source(kind="fitted", where=GENERATION_SOURCES[cc], read_on=READ_ON),
        )
        for cc, value in zip(TREE_START, values[len(FITTED) : -1], strict=True)
    )
    return InterNodeFigures(
        base_s=NCCL_BASE_S,
        link_hop_s=NCCL_HOP_S,
        link_hop_bulk_s=NCCL_BULK_HOP_S,
        generations=generations,
        source=Source(
            kind="fitted",
            where="all-reduce on AWS, CoreWeave, Nebius, Together; all-gather on GCP a3-ultra; "
            "growth with nodes by SimAI's ratios",
            read_on=READ_ON,
            certainty="medium",
            note=f"base and link hops: {NCCL}; RDMA networks only",
        ),
        **dict(zip(FITTED, values[: len(FITTED)], strict=True)),
    )


GENERATION_SOURCES = {
    8.0: "DGX A100 and AWS p4de, two nodes",
    9.0: "H100 and H200, two nodes of five clouds",
    10.0: "B200 on AWS and CoreWeave, GB200 NVL72 racks on CoreWeave",
}


def fit_across(
    rows: list[Row], tables: tuple[IntraNodeCurves, ...], sweeps: int = 40
) -> InterNodeFigures:
    """Pattern search on the logs of the figures."""
    mine = [row for row in rows if row.place == "across" and not doubtful(row)]
    weight = system_weights(mine)
    x = np.log(np.array([*START, *TREE_START.values(), RING_START]))
    price = pricer(mine)

    def loss(x: Floats) -> float:
        across = across_from(x)
        if not sane(across):
            return math.inf
        r = np.abs(price(tables, across))
        return float((weight * np.where(r < 0.1, 5 * r * r, r - 0.05)).sum())

    best, steps = loss(x), np.full(x.size, 0.4)
    for _ in range(sweeps):
        for i in range(x.size):
            tries = [x + sign * steps[i] * np.eye(x.size)[i] for sign in (1, -1)]
            losses = [loss(tried) for tried in tries]
            better = int(np.argmin(losses))
            if losses[better] < best - 1e-9:
                x, best, steps[i] = tries[better], losses[better], steps[i] * 1.5
            else:
                steps[i] /= 2
    return across_from(x)


def sane(across: InterNodeFigures) -> bool:
    """Nothing beyond the nominal speed; a hop over the network is never the shorter one."""
    shares = (
        across.ring_efficiency,
        across.tree_efficiency,
        across.all_to_all_efficiency,
        across.low_latency_fraction,
        *(row.tree_link_efficiency for row in across.generations),
        *(row.ring_link_efficiency for row in across.generations),
    )
    hops = (across.ring_hop_s, across.ring_hop_bulk_s, across.tree_hop_s)
    ordered = across.ring_hop_bulk_s >= across.ring_hop_s
    bounded = max(hops) <= MOST_HOP_S and across.low_latency_fraction >= 0.25
    return max(shares) <= 0.95 and min(hops) >= NCCL_BULK_HOP_S and ordered and bounded


def pricer(rows: list[Row]) -> Callable[[tuple[IntraNodeCurves, ...], InterNodeFigures], Floats]:
    """Logs of predicted over measured seconds, rows of one GPU, NIC and collective at a time."""
    batches: dict[tuple[str, str, float, str], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        batches[row.gpu, row.link, row.nic_bytes_per_s, row.collective].append(index)
    work: list[tuple[list[int], Gpu, str, Groups]] = []
    for (name, link, nic, collective), indices in batches.items():
        gpu = over(find_gpu(name)[0], link)
        if nic:
            gpu = replace(gpu, node=replace(gpu.node, nic_bytes_per_s=nic))
        chosen = [rows[i] for i in indices]
        linked = [min(r.together, max(gpu.link.domain_gpus, 1)) for r in chosen]
        if not link and chosen[0].system == SAILOR:  # nodes of four GH200, the usual one has one
            linked = [r.together for r in chosen]
        groups = groups_of(
            np.array([r.payload_bytes for r in chosen]),
            np.array([r.ranks for r in chosen]),
            np.array(linked),
            np.array([r.together for r in chosen]),
        )
        work.append((indices, gpu, collective, groups))
    measured = np.array([row.seconds for row in rows])

    def logs(tables: tuple[IntraNodeCurves, ...], across: InterNodeFigures) -> Floats:
        predicted = np.empty(len(rows))
        for indices, gpu, collective, groups in work:
            links = LinkCurves(
                gpu=gpu,
                inside=nearest(gpu, link_class(gpu), tables),
                host=nearest(gpu, "pcie", tables),
                across=across,
            )
            predicted[indices] = priced(collective, groups, links)
        return np.log(predicted / measured)

    return logs


def priced(collective: str, groups: Groups, links: LinkCurves) -> Floats:
    if collective == "all_reduce":
        return curve_all_reduce_s(groups, links)
    if collective == "all_to_all":
        return curve_all_to_all_s(groups, links)
    return curve_pass_s(collective, groups, links)
