"""What was measured of links: curves inside a node, figures across nodes, slowdown by overlap.

Nothing nominal is used bare: each speed of a `Gpu` is scaled by a fraction fitted on measured
collectives. A GPU that nobody measured borrows from its nearest relative; `link_source` says so.
The files in `data/links` are written by `python -m tools.link_tables`.
"""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from astra.files import Source, convert, read_toml
from astra.hardware.cluster import Gpu
from astra.hardware.link_kind import link_class_of

FOLDER = Path(__file__).parent.parent / "data" / "links"
RING_RANKS = 4  # up to so many ranks NCCL runs a ring even where the switch could add up
_UNKNOWN_CAPABILITY = 9.0  # of accelerators of other makers: as Hopper, their contemporary


class Curve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One collective inside a node, by group size. All columns have one entry per `ranks`.

        seconds(V) = latency + wire(V) / (bandwidth x efficiency x V / (V + sqrt(V half)))

    so at V = half_bytes a message gets half of the speed that endless ones get.
    """

    ranks: tuple[int, ...]
    latency_s: tuple[float, ...]
    half_bytes: tuple[float, ...]
    efficiency: tuple[float, ...]  # of the nominal speed, at endless size


class IntraNodeCurves(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The curves of one measured GPU, over its link or, for PCIe cards, through the host."""

    gpu: str
    link: str  # nvlink | mesh | pcie
    capability: float
    lends: bool = True  # whether unmeasured GPUs may borrow it
    all_reduce: Curve
    all_gather: Curve
    reduce_scatter: Curve
    all_to_all: Curve
    switch_adds: bool = False  # all-reduces of more than RING_RANKS are summed in the switch
    source: Source


class Generation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of its link a GPU generation keeps busy while a collective crosses nodes."""

    capability: float
    ring_link_efficiency: float
    tree_link_efficiency: float
    source: Source


class InterNodeFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """RDMA networks between nodes. Efficiencies are of the nominal NIC speed."""

    base_s: float
    link_hop_s: float  # one step inside a node, low-latency protocol
    link_hop_bulk_s: float  # the same, bulk protocol
    ring_hop_s: float  # one step over the network, low-latency protocol
    ring_hop_bulk_s: float  # the same, bulk protocol
    tree_hop_s: float
    low_latency_fraction: float  # of the speed, what the low-latency protocol reaches
    ring_half_bytes: float
    tree_half_bytes: float
    ring_efficiency: float
    tree_efficiency: float
    all_to_all_efficiency: float
    all_to_all_peer_s: float  # each further peer
    generations: tuple[Generation, ...]
    source: Source


class Slowdown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much longer compute takes while a collective runs beside it."""

    gpus: tuple[str, ...]  # names; empty: all others
    fraction: float
    source: Source


class LinkSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where the link figures of one GPU come from, in words."""

    inside: str
    host: str
    across: str
    overlap: str
    borrowed: bool  # whether the figures inside are another GPU's
    across_borrowed: bool  # whether those between nodes are another generation's


def link_class(gpu: Gpu) -> str:
    """nvlink (switch or bridge), mesh (point to point among all) or pcie (through the host)."""
    return link_class_of(gpu.link.kind) or "pcie"


def has_multicast_switch(gpu: Gpu) -> bool:
    """Whether the switch adds up for the GPUs (NVLS): NVSwitch from Hopper on."""
    return "nvswitch" in gpu.link.kind.lower() and capability(gpu) >= 9.0


def capability(gpu: Gpu) -> float:
    """CUDA compute capability as a number; other makers count as Hopper's contemporaries."""
    try:
        return float(gpu.compute_capability or "")
    except ValueError:
        return _UNKNOWN_CAPABILITY


def intra_node_curves(gpu: Gpu) -> IntraNodeCurves:
    """Curves over the GPU's own link: its own, or those of the nearest measured relative."""
    return _lent(gpu, link_class(gpu))


def all_reduce_curve(gpu: Gpu, table: IntraNodeCurves) -> Curve:
    """The all-reduce curve that holds for this GPU: without a switch that adds, only the ring's.

    In the switch a rank sends and receives the payload once, not 2 (n - 1) / n times: counted
    as a ring, its efficiency passes 1 (Hopper, 8 ranks: 1.1).
    """
    curve = table.all_reduce
    if not table.switch_adds or has_multicast_switch(gpu):
        return curve
    keep = sum(ranks <= RING_RANKS for ranks in curve.ranks)
    return Curve(
        ranks=curve.ranks[:keep],
        latency_s=curve.latency_s[:keep],
        half_bytes=curve.half_bytes[:keep],
        efficiency=curve.efficiency[:keep],
    )


def host_curves(gpu: Gpu) -> IntraNodeCurves:
    """Curves through the host, for GPUs of one node that share no link."""
    return _lent(gpu, "pcie")


def _lent(gpu: Gpu, link: str) -> IntraNodeCurves:
    table = nearest(gpu, link, intra_node_tables())
    return _without_pairs(table) if link == "pcie" and table.gpu != gpu.name else table


@cache
def _without_pairs(table: IntraNodeCurves) -> IntraNodeCurves:
    """As lent to others: a pair is no faster than the next larger group.

    On the boards that were measured two GPUs share a switch and reach each other directly. T4s
    in clouds and GeForce cards cannot: what two exchange goes through the host's memory too.
    """
    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    return replace(table, **{name: _from_the_second(getattr(table, name)) for name in names})


def _from_the_second(curve: Curve) -> Curve:
    if curve.ranks[0] > 2 or len(curve.ranks) == 1:
        return curve
    return Curve(
        ranks=curve.ranks[1:],
        latency_s=curve.latency_s[1:],
        half_bytes=curve.half_bytes[1:],
        efficiency=curve.efficiency[1:],
    )


def nearest(gpu: Gpu, link: str, tables: tuple[IntraNodeCurves, ...]) -> IntraNodeCurves:
    """The GPU's own table, else the one of its link class nearest in generation."""
    alike = [table for table in tables if table.link == link]
    for table in alike:
        if table.gpu == gpu.name:
            return table
    lenders = [table for table in alike if table.lends]
    return min(lenders, key=lambda table: abs(table.capability - capability(gpu)))


def generation_of(gpu: Gpu, across: InterNodeFigures) -> Generation:
    """The figures of the nearest generation that was measured across nodes."""
    return min(across.generations, key=lambda row: abs(row.capability - capability(gpu)))


def overlap_slowdown(gpu: Gpu) -> float:
    """How much longer compute takes while a collective runs beside it. [fraction]

    0.13 means: what takes 1 s alone takes 1.13 s. Communication kernels hold multiprocessors
    and memory bandwidth; see `data/links/overlap.toml` for the figures and their origin.
    """
    return _slowdown(gpu).fraction


def _slowdown(gpu: Gpu) -> Slowdown:
    rows = slowdowns()
    named = [row for row in rows if gpu.name in row.gpus]
    return named[0] if named else next(row for row in rows if not row.gpus)


def link_source(gpu: Gpu) -> LinkSource:
    """Where the link figures of this GPU come from; the report shows it."""
    inside, host = intra_node_curves(gpu), host_curves(gpu)
    borrowed = inside.gpu != gpu.name
    return LinkSource(
        inside=_told(inside, borrowed),
        host=_told(host, host.gpu != gpu.name),
        across=_told_across(gpu),
        overlap=_slowdown(gpu).source.where,
        borrowed=borrowed,
        across_borrowed=not _timed_across(gpu),
    )


def _timed_across(gpu: Gpu) -> bool:
    """Whether collectives between nodes were timed on GPUs of its generation."""
    return gpu.compute_capability == f"{generation_of(gpu, inter_node_table()).capability}"


def _told_across(gpu: Gpu) -> str:
    table = inter_node_table()
    own = generation_of(gpu, table)
    where = f"{own.source.kind}: {own.source.where}; {table.source.where}"
    lender = f"compute capability {own.capability}"
    return where if _timed_across(gpu) else f"borrowed from {lender} ({where})"


def _told(table: IntraNodeCurves, borrowed: bool) -> str:
    where = f"{table.source.kind}: {table.source.where}"
    return f"borrowed from {table.gpu} ({where})" if borrowed else where


@cache
def intra_node_tables() -> tuple[IntraNodeCurves, ...]:
    return _rows("inside.toml", tuple[IntraNodeCurves, ...])


@cache
def inter_node_table() -> InterNodeFigures:
    return convert(read_toml(FOLDER / "across.toml"), InterNodeFigures, "across.toml")


@cache
def slowdowns() -> tuple[Slowdown, ...]:
    return _rows("overlap.toml", tuple[Slowdown, ...])


def _rows(name: str, into: Any) -> Any:
    return convert(read_toml(FOLDER / name)["row"], into, name)
