"""A simulated step in the trace event format of Chrome, which Perfetto and others open."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from astra.strategy.plans import Floats
from astra.timeline.pieces import PIECES, STEP_PART, StagePieces, stage_pieces
from astra.timeline.step import StageTimeline, StepTimeline

# Eighths of a microsecond are exact in binary: no reader that turns them into whole nanoseconds
# can round two slices of a track over one another.
TICKS_PER_S = 8e6

STAGE = "stage"  # the track that has everything in a row
TRACKS = (STAGE, "compute", "tensor", "context", "expert", "pipeline", "data", "host")
TRACK_OF_PART = {
    "forward": "compute",
    "backward": "compute",
    "recompute": "compute",
    "optimizer": "compute",
    "other": "host",
}
NAMES = {
    "transfer": "input on its way",
    "receive": "receive, blocking",
    "send": "send, blocking",
    "tied": "gradients of tied embeddings",
    "data": "parameters and gradients",
    "reduce": "reduce gradients",
    "between_groups": "gradients between replica groups",
    "offloaded_optimizer": "offloaded optimizer",
    "host": "offloaded activations",
}

Event = dict[str, Any]


def track_of(piece: str) -> str:
    """The track that a piece lies on.

    >>> track_of("recompute"), track_of("reduce"), track_of("offloaded_optimizer")
    ('compute', 'data', 'host')
    """
    if piece == "offloaded_optimizer":
        return "host"
    part = STEP_PART[piece]
    return TRACK_OF_PART.get(part, part.removesuffix("_comm"))


def chrome_trace(timeline: StepTimeline) -> bytes:
    """The step as JSON: a process for each stage of each replica group, a thread for each kind."""
    lines = [msgspec.json.encode(event) for event in trace_events(timeline)]
    other = {"model": timeline.model, "plan": timeline.summary, "step_s": timeline.step_s}
    head = b'{"displayTimeUnit":"ms","otherData":%s,"traceEvents":[\n' % msgspec.json.encode(other)
    return head + b",\n".join(lines) + b"\n]}\n"


def trace_events(timeline: StepTimeline) -> Iterator[Event]:
    """Names of processes and threads, then slices and memory, stage after stage."""
    process = 0
    for row, pipeline in enumerate(timeline.pipelines):
        several = len(timeline.pipelines) > 1
        group = f"group {row} ({pipeline.replicas} replicas), " if several else ""
        for stage in pipeline.stages:
            process += 1
            name = f"{group}stage {stage.stage}: {stage.layers} layers on {stage.gpu}"
            yield _named(process, None, "process_name", name=name)
            yield _named(process, None, "process_sort_index", sort_index=process)
            label = f"one of {pipeline.replicas} replicas"
            yield _named(process, None, "process_labels", labels=label)
            yield from _stage_events(stage, process, timeline.step_s)


def _named(process: int, thread: int | None, what: str, **arguments: Any) -> Event:
    of = {"pid": process} if thread is None else {"pid": process, "tid": thread}
    return {"ph": "M", **of, "name": what, "args": arguments}


def _stage_events(stage: StageTimeline, process: int, step_s: float) -> Iterator[Event]:
    pieces = stage_pieces(stage)
    slices = [*_whole_slices(stage, pieces, step_s), *_piece_slices(stage, pieces)]
    used = {track for track, *_ in slices}
    for row, track in enumerate(TRACKS):
        if track in used:
            thread = _thread(process, track)
            yield _named(process, thread, "thread_name", name=track)
            yield _named(process, thread, "thread_sort_index", sort_index=row)
    slices.sort(key=lambda each: (TRACKS.index(each[0]), each[2]))
    for track, name, start, end, arguments in slices:
        if end > start:
            event = {"ph": "X", "pid": process, "tid": _thread(process, track), "name": name}
            event |= {"cat": track, "ts": start / 8, "dur": (end - start) / 8}
            yield event | {"args": arguments}
    at = _ticks(np.array(stage.memory_at_s))
    last = np.append(np.diff(at) > 0, True)
    for row in np.flatnonzero(last).tolist():
        size = {"allocated_bytes": round(stage.memory_bytes[row])}
        yield {"ph": "C", "pid": process, "name": "memory", "ts": int(at[row]) / 8, "args": size}


def _thread(process: int, track: str) -> int:
    """Threads of all processes have numbers of their own."""
    return process * 10 + TRACKS.index(track)


def _ticks(seconds: Floats) -> Any:
    return np.rint(seconds * TICKS_PER_S).astype(np.int64)


Slice = tuple[str, str, int, int, Event]  # track, name, start and end in ticks, arguments


def _piece_slices(stage: StageTimeline, pieces: StagePieces) -> Iterator[Slice]:
    starts, ends = _ticks(pieces.start_s).tolist(), _ticks(pieces.end_s).tolist()
    for row, (code, operation) in enumerate(
        zip(pieces.name.tolist(), pieces.operation.tolist(), strict=True)
    ):
        piece = PIECES[code]
        name = NAMES.get(piece, piece)
        if operation >= 0 and piece in ("tensor", "context", "expert"):
            name = f"{piece}, {stage.kind[operation]}"
        yield track_of(piece), name, starts[row], ends[row], _arguments(stage, operation)


def _whole_slices(stage: StageTimeline, pieces: StagePieces, step_s: float) -> Iterator[Slice]:
    """Operations, what comes behind them and the waiting between: no moment is left out."""
    behind = np.flatnonzero(pieces.operation < 0)
    start_s = np.concatenate([stage.start_s, pieces.start_s[behind]])
    end_s = np.concatenate([stage.end_s, pieces.end_s[behind]])
    names = [f"{kind} {number}" for kind, number in zip(stage.kind, stage.micro_batch, strict=True)]
    names += [NAMES.get(PIECES[code], PIECES[code]) for code in pieces.name[behind]]
    at = 0
    spans = zip(_ticks(start_s).tolist(), _ticks(end_s).tolist(), names, strict=True)
    for row, (start, end, name) in enumerate(spans):
        if start > at:
            yield STAGE, "waiting", at, start, {}
        yield STAGE, name, start, end, _arguments(stage, row if row < len(stage.kind) else -1)
        at = end
    yield STAGE, "waiting", at, int(_ticks(np.array(step_s))), {}


def _arguments(stage: StageTimeline, operation: int) -> Event:
    if operation < 0:
        return {}
    return {"micro_batch": stage.micro_batch[operation], "chunk": stage.chunk[operation]}
