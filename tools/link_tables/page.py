"""The page of errors."""

from tools.link_tables.errors import (
    cells,
    errors,
    group_size_lines,
    system_lines,
    without_gpu,
    without_systems,
)
from tools.link_tables.rows import Row, doubtful

from astra.timing.link_curves import InterNodeFigures, IntraNodeCurves


def document(
    rows: list[Row], older: list[Row], tables: tuple[IntraNodeCurves, ...], across: InterNodeFigures
) -> str:
    """docs/reports/links.md: what is predicted, how well, and what is weak."""
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


INTRODUCTION = """# Links: what is predicted, and how well

Written by `python -m tools.link_tables`. Errors are natural logs of predicted over measured
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
