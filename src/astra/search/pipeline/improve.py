"""Pipelines made better: one segment changed, or one layer moved."""

from collections.abc import Iterator

import numpy as np

from astra.columns import REL_EPS
from astra.cost.stage_table import StageTable
from astra.search.pipeline.construct import NEAR_BEST, Charge, Constructor, Segments, best_first
from astra.search.pipeline.estimate import PipelineCandidate, estimated_steps_s

ROUNDS = 6  # of changes to one segment
CHANGED = 8  # skeletons, each round
OTHER_COUNTS = 4  # numbers of stages of a segment whose option is changed
KEPT_PER_SETTING = 16  # pipelines
PATIENCE = 8  # moves in a row that need not help
IMPROVED = 0.9999  # of the best step before: less is not worth another round


def improved(
    constructor: Constructor, limit_s: float, within_s: float, breadth: int
) -> list[PipelineCandidate]:
    """The best pipelines of a stage table: seeds, then one segment changed at a time, while that
    helps and is near the limit.
    """
    known = constructor.filled(constructor.seeds(), within_s)
    for _ in range(ROUNDS):
        ranked = sorted(known, key=lambda segments: known[segments].step_s)[: CHANGED * breadth]
        if not ranked or not np.isfinite(known[ranked[0]].step_s):
            break
        best_s = known[ranked[0]].step_s
        near_s = min(limit_s, best_s) * NEAR_BEST
        near = [segments for segments in ranked if known[segments].step_s < near_s]
        other = {other for each in near for other in changed(constructor.table, each)} - set(known)
        new = constructor.filled(sorted(other), within_s)
        known |= new
        if min((each.step_s for each in new.values()), default=np.inf) >= best_s * IMPROVED:
            break
    return best_first(known.values())[: KEPT_PER_SETTING * breadth]


def changed(table: StageTable, segments: Segments) -> Iterator[Segments]:
    """The same with one segment left out, moved, of another option with about as many GPUs, or of
    a type that was not used.
    """
    for place, (row, count) in enumerate(segments):
        above, below = segments[:place], segments[place + 1 :]
        rest = above + below
        if len(rest) > 1:
            yield rest
        for to in range(len(rest) + 1):
            if to != place:
                yield (*rest[:to], (row, count), *rest[to:])
        gpus = int(table.stage_gpus[row]) * count
        for other in np.flatnonzero(table.pool == table.pool[row]).tolist():
            option = table.options[other]
            near = sorted(option.stages, key=lambda n: abs(n - gpus / option.stage_gpus))
            for number in near[:OTHER_COUNTS]:
                yield (*above, (other, number), *below)
    used = {int(table.pool[row]) for row, _ in segments}
    for other, option in enumerate(table.options):
        if option.pool not in used:
            for place in range(len(segments) + 1):
                for number in option.stages[-2:]:
                    yield (*segments[:place], (other, number), *segments[place:])


def layers_moved(start: PipelineCandidate, charge: Charge) -> list[PipelineCandidate]:
    """The pipelines that a walk visits: each time the best move of one layer from one stage to
    another. Some moves in a row need not help, and none is visited twice.
    """
    table, option, depth = start.table, start.option, len(start.option)
    source, target = np.nonzero(~np.eye(depth, dtype=np.bool_))
    every, walked = np.arange(len(source)), list[PipelineCandidate]()
    now, best_s, seen, worse = start.layers, start.step_s, {start.layers.tobytes()}, 0
    while worse < PATIENCE:
        layers = np.repeat(now[:, np.newaxis], len(source), axis=1)
        layers[source, every] -= 1
        layers[target, every] += 1
        new = [row for row in every.tolist() if now[source[row]] > 1]
        new = [row for row in new if layers[:, row].tobytes() not in seen]
        if not new:
            break
        layers = layers[:, new]
        charge(layers.shape[1])
        steps = estimated_steps_s(table, np.repeat(option[:, np.newaxis], len(new), axis=1), layers)
        row = int(steps.argmin())
        if not np.isfinite(steps[row]):
            break
        now = layers[:, row].copy()
        seen.add(now.tobytes())
        walked.append(PipelineCandidate(float(steps[row]), table, option, now))
        worse = 0 if steps[row] < best_s * (1 - REL_EPS) else worse + 1
        best_s = min(best_s, float(steps[row]))
    return walked
