"""The pipeline formula of arXiv 2502.13480 beside the simulator: the table of docs/pipeline.md.

Stages of 1 s a micro-batch unless said otherwise, a third of it forward; links each way.
"""

from collections.abc import Sequence

import numpy as np

from astra.cost.paper import paper_end_s
from astra.simulate.pipeline_columns import PipelineColumns, stage_end_s

# What, seconds of every stage, seconds of a link, micro-batches, chunks of a stage.
CASES: tuple[tuple[str, Sequence[float], float, int, int], ...] = (
    ("equal stages, no traffic", [1.0] * 8, 0.0, 32, 1),
    ("equal stages, links 2 % of a stage", [1.0] * 8, 0.02, 32, 1),
    ("equal stages, links 10 %", [1.0] * 8, 0.1, 32, 1),
    ("equal stages, links 10 %, many micro-batches", [1.0] * 8, 0.1, 256, 1),
    ("two types, the fast one half the seconds", [1.0] * 4 + [0.5] * 4, 0.0, 32, 1),
    ("two types, balanced by layers, links 2 %", [0.97] * 4 + [1.0] * 4, 0.02, 32, 1),
    ("one slow stage in the middle", [1.0] * 4 + [1.3] + [1.0] * 3, 0.0, 32, 1),
    ("one slow stage at the end", [1.0] * 7 + [1.3], 0.0, 32, 1),
    ("slow first stages, few micro-batches", [1.3] * 4 + [1.0] * 4, 0.0, 8, 1),
    ("fewer micro-batches than stages", [1.0, 0.6] * 4, 0.0, 4, 1),
    ("interleaved, 4 chunks, no traffic", [1.0] * 8, 0.0, 32, 4),
    ("interleaved, 4 chunks, few micro-batches", [1.0] * 8, 0.0, 8, 4),
)


def pipes_of(
    stages: Sequence[float], link_s: float, micro_batches: int, chunks: int
) -> PipelineColumns:
    """One pipeline as the simulator takes it."""
    each = np.broadcast_to(np.array(stages)[np.newaxis, :, np.newaxis] / chunks, (chunks, 8, 1))
    link = np.full((len(stages), 1), link_s)
    count = np.array([len(stages)])
    return PipelineColumns(
        stages=count,
        chunks=np.array([chunks]),
        micro_batches=np.array([micro_batches]),
        group=count,
        extra_warmup=np.array([0]),
        forward_s=each / 3,
        backward_s=each * 2 / 3,
        forward_link_s=link,
        backward_link_s=link,
        first_gather_s=np.zeros_like(each),
        last_reduce_s=np.zeros_like(each),
    )


def table() -> list[str]:
    """The table in Markdown."""
    lines = ["| pipeline | K | simulator | formula | error |", "|---|---|---|---|---|"]
    for what, stages, link_s, count, chunks in CASES:
        pipes = pipes_of(stages, link_s, count, chunks)
        exact = float(stage_end_s(pipes).max())
        paper = float(paper_end_s(pipes).max())
        error = round(paper / exact - 1, 6)
        lines.append(f"| {what} | {count} | {exact:.2f} s | {paper:.2f} s | {error + 0.0:+.1%} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
