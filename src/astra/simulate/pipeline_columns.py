"""Many pipelines at once: the times of `events`, a column per plan."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from astra.simulate import interleaved_columns, one_f_one_b_columns

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

CELLS_IN_CACHE = 1 << 15  # numbers of one (stage, plan) table that stay in cache


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PipelineColumns:
    """Seconds of many pipelines. The plan axis is last.

    Pipelines with fewer stages than rows stand at the end of the stage axis; the rows in front
    of them are ignored. Link i leads from stage i to stage i + 1 and back, the last one from the
    last stage to the next chunk on the first. One chunk means 1F1B, more mean interleaved.
    """

    stages: Ints  # (plan,)
    chunks: Ints  # (plan,)
    micro_batches: Ints  # (plan,)
    group: Ints  # (plan,), micro-batches in a row on one chunk; any number with one chunk
    extra_warmup: Ints  # (plan,), warm-up forwards on top of the usual ones
    forward_s: Floats  # (chunk, stage, plan)
    backward_s: Floats  # (chunk, stage, plan)
    forward_link_s: Floats  # (stage, plan)
    backward_link_s: Floats  # (stage, plan)
    first_gather_s: (
        Floats  # (chunk, stage, plan), parameters: on top of the first micro-batch's forward
    )
    last_reduce_s: (
        Floats  # (chunk, stage, plan), gradients: on top of the last micro-batch's backward
    )

    def take(self, rows: Rows) -> "PipelineColumns":
        """The pipelines of these rows."""
        return PipelineColumns(**{f.name: getattr(self, f.name)[..., rows] for f in fields(self)})

    def joined(self, others: "PipelineColumns") -> "PipelineColumns":
        """These and others of as many chunks and stages."""
        pairs = {f.name: (getattr(self, f.name), getattr(others, f.name)) for f in fields(self)}
        return PipelineColumns(
            **{name: np.concatenate(pair, axis=-1) for name, pair in pairs.items()}
        )


def step_s(pipelines: PipelineColumns, *, skip: bool = True) -> Floats:
    """(plan,) When the last stage to finish has finished. [s]"""
    step: Floats = stage_end_s(pipelines, skip=skip).max(axis=0)
    return step


def stage_end_s(pipelines: PipelineColumns, *, skip: bool = True) -> Floats:
    """(stage, plan) When each stage has done its last operation; 0 in unused rows. [s]

    With `skip`, a run that repeats itself jumps to its end. The interleaved order must be one
    that Megatron-LM accepts: groups of at least p micro-batches, the last one too.
    """
    end_s = np.zeros(pipelines.forward_s.shape[1:])
    for rows in _same_order(pipelines):
        block = pipelines.take(rows)
        if block.chunks[0] == 1:
            end_s[:, rows] = _one_f_one_b(block, skip)
        else:
            end_s[-int(block.stages[0]) :, rows] = _interleaved(block, skip)
    return end_s


def _same_order(pipelines: PipelineColumns) -> Iterator[Rows]:
    """Rows whose pipelines run in the same order, as many as stay in cache.

    1F1B pipelines of different depth run together: stages of no length in front change nothing.
    """
    single = pipelines.chunks == 1
    depth = np.where(
        single, 1 << np.ceil(np.log2(pipelines.stages)).astype(np.int64), pipelines.stages
    )
    group = np.where(single, 0, pipelines.group)
    extra = np.where(single, 0, pipelines.extra_warmup)
    key = np.stack([pipelines.chunks, depth, group, extra, pipelines.micro_batches])
    _, kind = np.unique(key, axis=1, return_inverse=True)
    kind = kind.reshape(-1)  # NumPy 2.0 keeps the axis
    order = np.argsort(kind, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(kind[order])) + 1):
        width = max(1, CELLS_IN_CACHE // int(depth[rows[0]]))
        yield from (rows[at : at + width] for at in range(0, len(rows), width))


def _one_f_one_b(pipelines: PipelineColumns, skip: bool) -> Floats:
    """(stage, plan) Ends of 1F1B pipelines with equal micro-batches."""
    rows, depth = pipelines.forward_s.shape[1], int(pipelines.stages.max())
    used = np.arange(rows)[:, None] >= rows - pipelines.stages
    inner = used & (np.arange(rows) < rows - 1)[:, None]  # links that join two stages

    def deep(column: Floats) -> Floats:
        return np.where(used, column, 0.0)[-depth:]

    columns = one_f_one_b_columns.OneF1BColumns(
        forward_s=deep(pipelines.forward_s[0]),
        backward_s=deep(pipelines.backward_s[0]),
        from_above_s=np.roll(np.where(inner, pipelines.forward_link_s, 0.0), 1, axis=0)[-depth:],
        from_below_s=np.where(inner, pipelines.backward_link_s, 0.0)[-depth:],
        first_gather_s=deep(pipelines.first_gather_s[0]),
        last_reduce_s=deep(pipelines.last_reduce_s[0]),
    )
    end_s = np.zeros(pipelines.forward_s.shape[1:])
    end_s[-depth:] = one_f_one_b_columns.stage_end_s(columns, int(pipelines.micro_batches[0]), skip)
    return np.where(used, end_s, 0.0)


def _interleaved(pipelines: PipelineColumns, skip: bool) -> Floats:
    """(stage, plan) Ends of interleaved pipelines with equal p, v, m and g."""
    depth, chunks = int(pipelines.stages[0]), int(pipelines.chunks[0])
    columns = interleaved_columns.InterleavedColumns(
        forward_s=pipelines.forward_s[:chunks, -depth:],
        backward_s=pipelines.backward_s[:chunks, -depth:],
        forward_link_s=pipelines.forward_link_s[-depth:],
        backward_link_s=pipelines.backward_link_s[-depth:],
        first_gather_s=pipelines.first_gather_s[:chunks, -depth:],
        last_reduce_s=pipelines.last_reduce_s[:chunks, -depth:],
    )
    return interleaved_columns.stage_end_s(
        columns,
        int(pipelines.micro_batches[0]),
        int(pipelines.group[0]),
        int(pipelines.extra_warmup[0]),
        skip,
    )
