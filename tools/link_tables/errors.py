"""Errors of the fit, and of fits that a system, a GPU or a group size was left out of."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tools.link_tables.across import fit_across, pricer
from tools.link_tables.inside import fit_all_inside, fit_inside
from tools.link_tables.rows import COLLECTIVES, Row, doubtful

from astra.hardware.catalogue import find_gpu
from astra.timing.collectives import Floats
from astra.timing.link_curves import InterNodeFigures, IntraNodeCurves, link_class


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Logs of predicted over measured."""

    logs: Floats

    def __str__(self) -> str:
        if self.logs.size == 0:
            return "- | -"
        size = np.abs(self.logs)
        return f"{size.mean():.3f} | {self.logs[size.argmax()]:+.2f}"


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
