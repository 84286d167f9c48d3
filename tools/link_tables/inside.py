"""Collectives inside a node: a curve per GPU, collective and group size."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np
from msgspec.structs import replace
from tools.link_tables.rows import COLLECTIVES, READ_ON, SAILOR, Row, doubtful, over, wire_fraction

from astra.files import Source
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Gpu
from astra.timing.collectives import Floats
from astra.timing.link_curves import (
    RING_RANKS,
    Curve,
    IntraNodeCurves,
    capability,
    has_multicast_switch,
    link_class,
)

RANKS = (2, 4, 8)
RACK_RANKS = (*RANKS, 72)


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
    """T4s, of which no collective is published: what tools/fit_host_link.py prints."""
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
            "(tools/fit_host_link.py)",
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
