"""Fits the link figures of `astra/data/links` on a folder of measured collectives.

    python benchmarks/make_link_tables.py FOLDER

FOLDER holds `collectives.csv` and, under `opdata`, the tables of vTrain, SimAI, Sailor and
aiconfigurator.
Writes `inside.toml` and `across.toml`, and `docs/links.md` with the errors, those on systems,
GPUs and group sizes that were left out of the fit among them.
"""

import argparse
import csv
import gzip
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from astra.errors import InputError
from astra.files import Source
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Gpu, Link
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
    RING_RANKS,
    Curve,
    Generation,
    InterNodeFigures,
    IntraNodeCurves,
    capability,
    has_multicast_switch,
    link_class,
    nearest,
)

ROOT = Path(__file__).resolve().parent.parent
READ_ON = "2026-11-15"
NAMES = {"alltoall": "all_to_all"}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
RANKS = (2, 4, 8)
RACK_RANKS = (*RANKS, 72)
LARGE_BYTES = 8e9  # where a source prints a bandwidth "at large sizes" only
# Networks without RDMA, or broken ones: shown, never fitted.
NOT_RDMA = (
    "AWS p4d.24xlarge (HyperPod EKS)",
    "GCP a3-highgpu-8g",
    "CoreWeave H200 without InfiniBand",
)
SIMAI = "SimAI ratios, 8 x 400 Gbps assumed"
# base and per-hop latencies of NCCL's own model, ring, LL and Simple protocols, NVLink
NCCL = "NVIDIA/nccl src/graph/tuning.cc @5067397"
NCCL_BASE_S, NCCL_HOP_S, NCCL_BULK_HOP_S = 6.6e-6, 0.6e-6, 3.4e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured collective."""

    gpu: str
    collective: str
    ranks: int
    together: int  # ranks in one node or link domain
    nic_bytes_per_s: float  # 0: the typical one
    payload_bytes: float
    seconds: float
    system: str
    algorithm: str = ""
    link: str = ""  # over which of the GPU's links; empty: its first

    @property
    def place(self) -> str:
        return "inside" if self.together >= self.ranks else "across"


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Logs of predicted over measured."""

    logs: Floats

    def __str__(self) -> str:
        if self.logs.size == 0:
            return "- | -"
        size = np.abs(self.logs)
        return f"{size.mean():.3f} | {self.logs[size.argmax()]:+.2f}"


# --- reading ---------------------------------------------------------------------------------


def read_collectives(folder: Path) -> Iterator[Row]:
    """The general table; a row with a bandwidth but no size counts as a large message."""
    with (folder / "collectives.csv").open(encoding="utf-8") as text:
        for line in csv.DictReader(text):
            collective = NAMES.get(line["collective"], line["collective"])
            if collective not in COLLECTIVES or not line["gpus"] or not line["nodes"]:
                continue
            gpu, ranks = find_gpu(line["gpu_id"])[0], int(line["gpus"])
            in_node = ranks // int(line["nodes"])
            size = float(line["message_bytes"] or LARGE_BYTES)
            wire = wire_fraction(collective, ranks) * size
            measured_us = float(line["time_us"] or 0)
            yield Row(
                gpu=gpu.name,
                collective=collective,
                ranks=ranks,
                together=min(ranks, max(in_node, gpu.link.domain_gpus if in_node > 1 else 1)),
                nic_bytes_per_s=float(line["nic_gbps_per_gpu"] or 0) * 1e9 / 8,
                payload_bytes=size,
                seconds=measured_us / 1e6 or wire / float(line["busbw_gbs"]) / 1e9,
                system=line["system"],
                algorithm=line["algorithm"],
            )


def read_rows(folder: Path) -> list[Row]:
    """All rows but those that were forced away from the algorithm that NCCL picks."""
    found = [*read_collectives(folder), *read_vtrain(folder), *read_simai(folder)]
    found += read_sailor(folder)
    return [row for row in found if not forced(row)]


def forced(row: Row) -> bool:
    adds = has_multicast_switch(find_gpu(row.gpu)[0])
    small_ring = row.place == "inside" and row.ranks > RING_RANKS and row.algorithm == "ring"
    four_nodes = row.place == "across" and row.algorithm == "NVLSTree"
    return row.collective == "all_reduce" and ((adds and small_ring) or four_nodes)


def doubtful(row: Row) -> bool:
    """Rows that are shown but never fitted: no RDMA, or the one bad box of eight of a GPU."""
    return row.system in NOT_RDMA or (row.gpu in ("L40S", "RTX-3090") and row.ranks == 8)


def wire_fraction(collective: str, ranks: int) -> float:
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


def read_vtrain(folder: Path) -> Iterator[Row]:
    """All-reduce in one node, 2 to 8 GPUs; every power of two of 1,024 sizes."""
    gpus = {"a100": "A100-80GB-SXM", "v100": "V100-32GB-SXM2"}
    for path in sorted((folder / "opdata" / "VIA-Research_vTrain").glob("nccl_allreduce_*.csv")):
        short, ranks = path.name.split("_")[2], int(path.name.split("GPU")[1][0])
        with path.open(encoding="utf-8") as text:
            for cells in list(csv.reader(text))[1:]:
                size = int(cells[0])
                if size & (size - 1) == 0:
                    yield Row(
                        gpu=gpus[short],
                        collective="all_reduce",
                        ranks=ranks,
                        together=ranks,
                        nic_bytes_per_s=0,
                        payload_bytes=size,
                        seconds=float(cells[3]) / 1e9,
                        system="vTrain",
                    )


SAILOR = "nodes of eth-easl/sailor @cf2c8e3 (MIT)"
SAILOR_GPUS = {
    "GH-96": "GH200-96GB",
    "RTX-2080": "RTX-2080-Ti",
    "RTX-3090": "RTX-3090",
    "Titan-RTX": "Titan-RTX",
    "V100-16": "V100-16GB-SXM2",
}


def read_sailor(folder: Path) -> Iterator[Row]:
    """All-reduces as PyTorch sees them. Of the boards without NVLink only RTX 3090s have bridges
    (a pair of them gets 44 GB/s, of the others 4), and those end where a group is larger.
    """
    home = folder / "opdata" / "eth-easl_sailor" / "aceso_op_profiles"
    with gzip.open(home / "collectives_all.csv.gz", "rt", encoding="utf-8") as text:
        for line in csv.DictReader(text):
            name, ranks = SAILOR_GPUS.get(line["gpu"]), int(line["gpus"])
            size, seconds = float(line["data_size(MB)"]), float(line["time(ms)"]) / 1e3
            if line["collective"] != "all_reduce" or not name or not size or seconds > 10:
                continue  # what did not run has a time of days
            hosted = name in ("RTX-2080-Ti", "Titan-RTX") or (name == "RTX-3090" and ranks > 2)
            if name == "RTX-3090" and hosted and size > 100:
                continue  # from here on four are twice as fast: a step that no curve follows
            yield Row(
                gpu=name,
                collective="all_reduce",
                ranks=ranks,
                together=ranks,
                nic_bytes_per_s=0,
                payload_bytes=size * 2**20,
                seconds=seconds,
                system=SAILOR,
                link="pcie" if hosted else "",
            )


def over(gpu: Gpu, link: str) -> Gpu:
    """The GPU as it is over a link, through the host for one."""
    if not link or link == link_class(gpu):
        return gpu
    rate = gpu.node.pcie_bytes_per_s
    host = Link(kind="PCIe", bytes_per_s=rate, peer_bytes_per_s=rate, domain_gpus=1)
    return replace(gpu, link=host)


def read_simai(folder: Path) -> Iterator[Row]:
    """Bus bandwidth over nominal NIC speed by size and nodes; the system is not named."""
    files = {"nic_ratio.csv": "all_gather", "ata_ratio.csv": "all_to_all"}
    for name, collective in files.items():
        with (folder / "opdata" / "aliyun_SimAI" / name).open(encoding="utf-8") as text:
            for line in csv.DictReader(text):
                for title, ratio in line.items():
                    if "Node-" not in title or not ratio:
                        continue
                    ranks = int(title.split("-")[1].split("GPU")[0])
                    one_nic = collective == "all_to_all"
                    if one_nic and ranks == 16:
                        continue  # the ratio of two nodes is not of the NIC's speed
                    wire = wire_fraction(collective, ranks) * float(line["Size"])
                    yield Row(
                        gpu="H100-80GB-SXM",
                        collective=collective,
                        ranks=ranks,
                        together=8,
                        nic_bytes_per_s=50e9,
                        payload_bytes=float(line["Size"]),
                        seconds=wire / (float(ratio) * 50e9 * (1 if one_nic else 8)),
                        system=SIMAI,
                    )


def read_other_releases(folder: Path) -> Iterator[Row]:
    """Sweeps of aiconfigurator with older NCCL releases: to check with, never fitted."""
    fitted = {"2.29.2"}
    gpus = {
        "b200_sxm": "B200",
        "b300_sxm": "B300",
        "gb200": "GB200",
        "gb300": "GB300",
        "h100_sxm": "H100-80GB-SXM",
        "h200_sxm": "H200-SXM",
    }
    for short, gpu in gpus.items():
        home = folder / "opdata" / "ai-dynamo_aiconfigurator" / short
        for path in sorted(home.glob("nccl_*.csv*")):
            release = path.name.removeprefix("nccl_").split(".csv")[0]
            if release in fitted:
                continue
            raw = path.read_bytes()
            text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
            for line in csv.DictReader(io.StringIO(text)):
                if line["nccl_dtype"] == "half":
                    ranks = int(line["num_gpus"])
                    yield Row(
                        gpu=gpu,
                        collective=NAMES.get(line["op_name"], line["op_name"]),
                        ranks=ranks,
                        together=ranks,
                        nic_bytes_per_s=0,
                        payload_bytes=2 * float(line["message_size"]),
                        seconds=float(line["latency"]) / 1e3,
                        system=f"NCCL {release}",
                    )


# --- fitting inside --------------------------------------------------------------------------


def fit_terms(rows: list[Row], fraction: float, rate: float, prior: Floats, most: float) -> Floats:
    """Latency, half size and efficiency (`most` at most) that fit one cell best.

    Levenberg-Marquardt on the logs of all three, on logs of seconds, with Huber weights and a
    loose prior that rules only where rows are few.
    """
    size = np.array([row.payload_bytes for row in rows])
    seconds = np.array([row.seconds for row in rows])
    weight = system_weights(rows) / 0.05**2
    doubt = 1 / np.array([0.7, 1.5, 0.4]) ** 2
    x = np.log(prior)

    def residual_and_slope(x: Floats) -> tuple[Floats, Floats]:
        latency, half, efficiency = np.exp(x)
        wire = fraction / (rate * efficiency)
        bulk, root = wire * size, wire * np.sqrt(size * half)
        total = latency + bulk + root
        slope = np.stack([np.full_like(size, latency), root / 2, -bulk - root], axis=1)
        return np.log(total / seconds), slope / total[:, None]

    def loss(x: Floats) -> float:
        r = np.abs(residual_and_slope(x)[0])
        huber = np.where(r < 0.1, r * r, 0.2 * r - 0.01)
        return float((weight * huber).sum() + (doubt * (x - np.log(prior)) ** 2).sum())

    damping, best = 1e-2, loss(x)
    for _ in range(150):
        r, slope = residual_and_slope(x)
        w = weight * np.minimum(1, 0.1 / np.maximum(np.abs(r), 1e-9))
        matrix = slope.T @ (slope * w[:, None]) + np.diag(doubt)
        gradient = slope.T @ (w * r) + doubt * (x - np.log(prior))
        step = np.linalg.solve(matrix + damping * np.diag(np.diag(matrix)), gradient)
        tried = x - np.clip(step, -1, 1)
        tried[2] = min(tried[2], math.log(most))
        if loss(tried) < best:
            x, best, damping = tried, loss(tried), damping / 3
        else:
            damping *= 4
        if damping > 1e9:
            break
    return np.exp(x)


def system_weights(rows: list[Row]) -> Floats:
    """A system weighs the root of its rows, so that a sweep does not rule, nor a lone figure."""
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        counts[row.system] += 1
    weights = np.array([counts[row.system] ** -0.5 for row in rows])
    return weights * len(rows) / weights.sum()


def fit_curve(gpu: Gpu, collective: str, rows: list[Row], ranks: tuple[int, ...]) -> Curve | None:
    """One curve over the group sizes that were measured."""
    found: list[tuple[int, Floats]] = []
    pcie = link_class(gpu) == "pcie"
    for n in ranks:
        cell = [row for row in rows if row.ranks == n]
        if not cell:
            continue
        rate = min(gpu.link.bytes_per_s, max(n - 1, 1) * gpu.link.peer_bytes_per_s)
        start_s = (4 + (2 if collective == "all_reduce" else 1) * n) * 1e-6
        prior = np.array([start_s, 0.2e6 if pcie else 5e6, 0.45 if pcie else 0.75])
        fraction = wire_fraction(collective, n)
        if n > max(RANKS):  # a rack: only large messages were measured
            prior = found[-1][1]
        adds = collective == "all_reduce" and has_multicast_switch(gpu) and n > RING_RANKS
        most = 2.0 if adds else 0.95  # a switch that adds spares up to half of a ring's bytes
        found.append((n, fit_terms(cell, fraction, rate, prior, most)))
    if not found:
        return None
    terms = np.array([values for _, values in found]).T
    latency = np.maximum.accumulate(terms[0])  # more ranks never start sooner
    return Curve(
        ranks=tuple(n for n, _ in found),
        latency_s=tuple(tidy(latency, 3)),
        half_bytes=tuple(tidy(terms[1], 3)),
        efficiency=tuple(tidy(terms[2], 3)),
    )


def tidy(values: Iterable[float], digits: int) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def fit_inside(
    name: str, rows: list[Row], ranks: tuple[int, ...] = RANKS, link: str = ""
) -> IntraNodeCurves | None:
    """All curves of one GPU over one link; what was not measured follows from its all-reduce."""
    gpu = over(find_gpu(name)[0], link)
    if ranks == RANKS:
        ranks = RACK_RANKS if name != VOLTA else tuple(range(2, 9))
    mine = [row for row in rows if row.gpu == name and row.place == "inside"]
    mine = [row for row in mine if not doubtful(row) and row.link == link]
    curves = {
        c: fit_curve(gpu, c, [row for row in mine if row.collective == c], ranks)
        for c in COLLECTIVES
    }
    reduce = curves["all_reduce"]
    if reduce is None:
        return None
    half = replace(reduce, latency_s=tuple(tidy((t / 2 for t in reduce.latency_s), 3)))
    derived = [c for c, curve in curves.items() if curve is None]
    systems = sorted({row.system for row in mine})
    return IntraNodeCurves(
        gpu=name,
        link=link_class(gpu),
        capability=capability(gpu),
        lends=name != "L40S" and SAILOR not in systems,
        all_reduce=reduce,
        all_gather=curves["all_gather"] or half,
        reduce_scatter=curves["reduce_scatter"] or half,
        all_to_all=curves["all_to_all"] or half,
        switch_adds=has_multicast_switch(gpu),
        source=Source(
            kind="fitted",
            where=f"collectives timed on {', '.join(systems)}",
            read_on=READ_ON,
            certainty="low" if derived or name == "L40S" else "high",
            note=f"not measured, set to the all-reduce curve: {', '.join(derived)}"
            if derived
            else None,
        ),
    )


def fit_all_inside(rows: list[Row]) -> tuple[IntraNodeCurves, ...]:
    """One table per GPU and link, two group sizes at least; NVL72's curve of 8 is B200's."""
    names = sorted({(row.gpu, row.link) for row in rows if row.place == "inside"})
    found = (fit_inside(name, rows, link=link) for name, link in names)
    fits = [fit for fit in found if fit is not None]
    tables = [fit for fit in fits if len(fit.all_reduce.ranks) > 1 or fit.gpu in BRIDGED]
    tables = [fit for fit in tables if fit.gpu not in BORROW]
    return join_nvl72(tables)


def seen_in_steps() -> IntraNodeCurves:
    """T4s, of which no collective is published: what benchmarks/fit_host_link.py prints."""
    gpu, ranks = find_gpu("T4")[0], (2, 4)
    once, twice = (
        Curve(
            ranks=ranks,
            latency_s=tuple(tidy((passes * n * 3e-6 for n in ranks), 3)),
            half_bytes=(T4_HALF_BYTES, T4_HALF_BYTES),
            efficiency=T4_EFFICIENCY,
        )
        for passes in (0.5, 1.0)
    )
    return IntraNodeCurves(
        gpu=gpu.name,
        link="pcie",
        capability=capability(gpu),
        lends=False,
        all_reduce=twice,
        all_gather=once,
        reduce_scatter=once,
        all_to_all=once,
        source=Source(
            kind="fitted",
            where="steps of 32 runs on four AWS g4dn.12xlarge, DachengLi1/AMP "
            "(benchmarks/fit_host_link.py)",
            read_on=READ_ON,
            certainty="low",
            note="one shape for all collectives; latency guessed",
        ),
    )


T4_EFFICIENCY = (0.361, 0.457)  # of two and of four
T4_HALF_BYTES = 1.53e6
VOLTA = "V100-32GB-SXM2"  # its mesh has a speed of its own for every group size
BRIDGED = ("RTX-3090",)  # a curve for the pair, and one for all others
BORROW = ("RTX-5090", "A100-80GB-PCIe", "H800")  # a figure or two: to check with


def join_nvl72(tables: list[IntraNodeCurves]) -> tuple[IntraNodeCurves, ...]:
    """GB200 and GB300 were swept with 4 GPUs; the switch's curve comes from B200 and 72 GPUs."""
    by_name = {table.gpu: table for table in tables}
    eight, rack = by_name.get("B200"), by_name.get("GB200")
    if eight is None or rack is None:
        return tuple(tables)
    note = "all-reduce of 8 ranks from B200, of 72 from CoreWeave GB200 NVL72"
    at_eight = part(eight.all_reduce, lambda n: n == 8)
    whole_rack = part(rack.all_reduce, lambda n: n == 72)
    return tuple(
        replace(
            table,
            all_reduce=joined(part(table.all_reduce, lambda n: n <= 4), at_eight, whole_rack),
            source=replace(table.source, note=note),
        )
        if table.gpu in ("GB200", "GB300")
        else table
        for table in tables
    )


def part(curve: Curve, ranks: Callable[[int], bool]) -> Curve:
    """The entries of some group sizes."""
    keep = [i for i, n in enumerate(curve.ranks) if ranks(n)]
    return Curve(**{name: tuple(getattr(curve, name)[i] for i in keep) for name in CURVE_FIELDS})


def joined(*curves: Curve) -> Curve:
    """Entries one after the other; a start never sooner than with fewer ranks."""
    columns = {n: sum((getattr(c, n) for c in curves), ()) for n in CURVE_FIELDS}
    columns["latency_s"] = tuple(np.maximum.accumulate(columns["latency_s"]).tolist())
    return Curve(**columns)


CURVE_FIELDS = ("ranks", "latency_s", "half_bytes", "efficiency")


# --- fitting across --------------------------------------------------------------------------

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


# --- errors ----------------------------------------------------------------------------------

Cell = tuple[str, str, str]  # GPU, collective, place


def cells(rows: list[Row]) -> dict[Cell, list[Row]]:
    found: dict[Cell, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.gpu, row.collective, row.place].append(row)
    return dict(sorted(found.items(), key=lambda item: (item[0][2], item[0])))


def errors(
    rows: list[Row], tables: tuple[IntraNodeCurves, ...], across: InterNodeFigures
) -> Errors:
    if not rows:
        return Errors(logs=np.empty(0))
    return Errors(logs=pricer(rows)(tables, across))


def without_systems(
    rows: list[Row], cell: list[Row], tables: tuple[IntraNodeCurves, ...], across: InterNodeFigures
) -> Errors:
    """Each system of a cell predicted from the others; nothing where there is but one."""
    systems = sorted({row.system for row in cell})
    if len(systems) < 2:
        return Errors(logs=np.empty(0))
    logs = []
    for system in systems:
        rest = [row for row in rows if row.system != system]
        left = [row for row in cell if row.system == system]
        if left[0].place == "inside":
            logs.append(errors(left, fit_all_inside(rest), across).logs)
        else:
            logs.append(errors(left, tables, fit_across(rest, tables, 15)).logs)
    return Errors(logs=np.concatenate(logs))


def without_gpu(
    cell: list[Row], tables: tuple[IntraNodeCurves, ...], across: InterNodeFigures
) -> Errors:
    """The GPU's table taken away, its nearest relative asked instead."""
    name, link = cell[0].gpu, link_class(find_gpu(cell[0].gpu)[0])
    others = tuple(table for table in tables if table.gpu != name)
    measured = len(others) < len(tables)
    if not measured or not any(table.link == link and table.lends for table in others):
        return Errors(logs=np.empty(0))
    return errors(cell, others, across)


def group_size_lines(rows: list[Row], across: InterNodeFigures) -> Iterator[str]:
    """Group sizes left out: 4 between 2 and 8, and 8 beyond 2 and 4."""
    hosts = [fit for fit in [fit_inside("RTX-PRO-6000-Blackwell-SE", rows)] if fit]
    for n, known in ((4, (2, 8)), (8, (2, 4))):
        for c in COLLECTIVES:
            logs = []
            for name in sorted({row.gpu for row in rows}):
                fit = fit_inside(name, rows, known)
                left = [r for r in rows if (r.gpu, r.collective, r.ranks) == (name, c, n)]
                left = [r for r in left if r.place == "inside"]
                if fit and left and fit.all_reduce.ranks == known:
                    logs.append(errors(left, (fit, *hosts), across).logs)
            yield f"| {c} | {n} | {known[0]}, {known[1]} | {Errors(logs=np.concatenate(logs))} |"


# --- writing ---------------------------------------------------------------------------------


def toml_lines(table: dict[str, object], prefix: str) -> Iterator[str]:
    """A table of plain values and sub-tables; None is left out."""
    for key, value in table.items():
        if value is not None and not isinstance(value, dict):
            yield f"{key} = {toml_value(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield f"[{prefix}{key}]"
            yield from toml_lines(value, f"{prefix}{key}.")


def toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace('"', "'") + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return repr(value)


def plain(struct: msgspec.Struct) -> dict[str, object]:
    raw: dict[str, object] = msgspec.to_builtins(struct)
    source = raw.get("source")
    if isinstance(source, dict):
        raw["source"] = {k: v for k, v in source.items() if v not in (None, [], ())}
    return raw


def write_tables(
    tables: tuple[IntraNodeCurves, ...], across: InterNodeFigures, folder: Path
) -> None:
    made = "Written by benchmarks/make_link_tables.py; do not edit.\n"
    lines = [f"# Collectives inside a node, by GPU and group size. {made}"]
    for table in tables:
        lines += ["[[row]]", *toml_lines(plain(table), "row."), ""]
    (folder / "inside.toml").write_text("\n".join(lines), encoding="utf-8")
    raw = plain(across)
    raw.pop("generations")
    lines = [f"# Collectives and sends across nodes, over RDMA. {made}", *toml_lines(raw, "")]
    for row in across.generations:
        lines += ["", "[[generations]]", *toml_lines(plain(row), "generations.")]
    (folder / "across.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def document(
    rows: list[Row], older: list[Row], tables: tuple[IntraNodeCurves, ...], across: InterNodeFigures
) -> str:
    """docs/links.md: what is predicted, how well, and what is weak."""
    fitted = [row for row in rows if not doubtful(row)]
    lines = [INTRODUCTION, HEAD]
    for (gpu, collective, place), cell in cells(fitted).items():
        large = [row for row in cell if row.payload_bytes >= 16 << 20]
        held = without_systems(rows, cell, tables, across)
        borrowed = (
            without_gpu(cell, tables, across) if place == "inside" else errors([], (), across)
        )
        mark = " (borrows)" if gpu not in {table.gpu for table in tables} else ""
        lines.append(
            f"| {gpu}{mark} | {collective} | {place} | {len(cell)} "
            f"| {errors(cell, tables, across)} | {errors(large, tables, across)} "
            f"| {held} | {borrowed} |"
        )
    lines += ["", "## Systems left out, one at a time", "", SYSTEM_HEAD]
    lines += system_lines(rows, tables)
    lines += ["", "## Group sizes left out, inside a node", "", SIZE_HEAD]
    lines += group_size_lines(fitted, across)
    lines += ["", "## Older NCCL releases, never fitted", "", OLDER_HEAD]
    for (gpu, collective, _), cell in cells(older).items():
        lines.append(f"| {gpu} | {collective} | {len(cell)} | {errors(cell, tables, across)} |")
    lines += ["", "## Doubtful rows, never fitted", "", DOUBTFUL_HEAD]
    for (gpu, collective, place), cell in cells([r for r in rows if doubtful(r)]).items():
        names = ", ".join(sorted({row.system for row in cell}))
        found = errors(cell, tables, across)
        lines.append(f"| {gpu} | {collective} | {place} | {names} | {len(cell)} | {found} |")
    return "\n".join([*lines, "", WEAK])


def system_lines(rows: list[Row], tables: tuple[IntraNodeCurves, ...]) -> Iterator[str]:
    """Networks: each system predicted by a fit without it."""
    networks = [row for row in rows if row.place == "across" and not doubtful(row)]
    for system in sorted({row.system for row in networks}):
        left = [row for row in networks if row.system == system]
        rest = [row for row in rows if row.system != system]
        refit = fit_across(rest, tables, 15)
        for c, n in sorted({(row.collective, row.ranks) for row in left}):
            part = [row for row in left if (row.collective, row.ranks) == (c, n)]
            large = [row for row in part if row.payload_bytes >= 64 << 20]
            yield (
                f"| {system} | {part[0].gpu} | {c} | {n} | {len(part)} "
                f"| {errors(part, tables, refit)} | {errors(large, tables, refit)} |"
            )


INTRODUCTION = """# Links: what is predicted, and how well

Written by `benchmarks/make_link_tables.py`. Errors are natural logs of predicted over measured
seconds: 0.10 is about 10 %. "Mean" is the mean of their absolute values, "worst" the signed one
farthest from zero. All message sizes count the same, from 8 bytes to 16 GiB, so the means are
ruled by small messages, where systems differ most.

* **fit**: the shipped figures on the rows they were fitted on.
* **fit, large**: the same from 16 MiB on, where a training step spends its time.
* **system out**: each system predicted from a fit without it; only where there are several.
* **GPU out**: the GPU's own table taken away, so that it borrows from its nearest relative.

## By GPU, collective and place
"""
HEAD = """\
| GPU | collective | place | rows | fit | worst | fit, large | worst \
| system out | worst | GPU out | worst |
|---|---|---|---|---|---|---|---|---|---|---|---|"""
SYSTEM_HEAD = """| system | GPU | collective | ranks | rows | mean | worst | from 64 MiB | worst |
|---|---|---|---|---|---|---|---|---|"""
SIZE_HEAD = """| collective | ranks predicted | ranks fitted | mean | worst |
|---|---|---|---|---|"""
DOUBTFUL_HEAD = """| GPU | collective | place | systems | rows | mean | worst |
|---|---|---|---|---|---|---|"""
OLDER_HEAD = """| GPU | collective | rows | mean | worst |
|---|---|---|---|---|"""
WEAK = """## What is weak

* The form of the model, the bounds of its fit, the weights of systems and the rows called doubtful
  were chosen with all rows in sight, so the "out" columns are kinder than a new system will be.
* Across nodes four figures end on a bound of the fit: 0.95 of the NIC for ring and tree, 0.25 of
  the speed for the low-latency protocol, one hop time for both protocols of the ring. Where SimAI's
  system is left out, all-to-all rests on a single figure.
* Latency between nodes: measured two-node all-reduces of a few bytes take 70 us on one cloud and
  160 us on another. One figure serves all, so small messages across nodes can be off by two.
* An all-reduce is held to be no faster than a reduce-scatter. NCCL's tree beats its own ring on
  very many nodes: 512 MiB on 1,984 GPUs took 3.1 ms, a third of what is predicted.
* NCCL from 2.23 on has a tree for all-gather and reduce-scatter with one GPU per node (PAT); it
  is not modelled, so such groups of many nodes look slower than they can be.
* Networks without RDMA (TCP) reach a fifth or less of their nominal speed. Give such a cluster the
  NIC speed that was measured on it.
* Across nodes there is one sweep of all-gather, none of reduce-scatter and two sources of
  all-to-all, one of which does not name its system. Growth with nodes rests on that source.
* The switch from the low-latency to the bulk protocol shows as a step at 1 to 16 MiB that a smooth
  curve misses: the worst errors inside a node are there.
* PCIe boxes differ by board: how many GPUs share a switch is not known to the planner. GPUs that
  borrow such curves get no faster pairs from them (T4s in clouds and GeForce cards have none).
* AMD: two rows. Volta: all-reduce only. Gaudi: nothing, it borrows AMD's.
* Where a system or a size is left out and only a lone figure remains, a loose prior rules; that is
  what the large errors of H200 all-gather "system out" are.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the folder of measured tables")
    parser.add_argument("--data", type=Path, default=ROOT / "src" / "astra" / "data" / "links")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "links.md")
    given = parser.parse_args()
    if not (given.folder / "collectives.csv").exists():
        raise InputError(f"{given.folder}: there is no collectives.csv in it.")
    rows = read_rows(given.folder)
    tables = (*fit_all_inside(rows), seen_in_steps())
    across = fit_across(rows, tables)
    write_tables(tables, across, given.data)
    text = document(rows, list(read_other_releases(given.folder)), tables, across)
    given.docs.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
