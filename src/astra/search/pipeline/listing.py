"""All pipelines of a small pool, looked at one by one."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import comb

import numpy as np

from astra.cost.evaluate import ROWS_PER_BLOCK
from astra.search.pipeline.constants import LISTED, LISTED_SKELETONS, PRICED
from astra.search.pipeline.construct import (
    Charge,
    Segments,
    SkeletonLimits,
    best_first,
    every_skeleton,
    every_split,
)
from astra.search.pipeline.estimate import PipelineCandidate, pipeline_stages
from astra.search.pipeline.stage_table import StageTable
from astra.strategy.segment_columns import SegmentOption

NEARLY_EXACT = 1.005  # what a stage table may be off by, beyond which a plan is not of use


def are_few(
    options: Sequence[Sequence[SegmentOption]],
    recomputes: int,
    limits: SkeletonLimits,
    layers: int,
) -> bool:
    """Whether all pipelines of settings with these options can be listed."""
    pipelines = skeletons = 0
    for own in options:
        for segments in every_skeleton(own, limits):
            pipelines += comb(layers - 1, _depth(segments) - 1) * recomputes
            skeletons += 1
            if pipelines > LISTED or skeletons > LISTED_SKELETONS:
                return False
    return True


def _depth(segments: Segments) -> int:
    return sum(count for _, count in segments)


def listed(
    table: StageTable, limits: SkeletonLimits, limit_s: float, charge: Charge
) -> list[PipelineCandidate]:
    """The fastest pipelines of a stage table, of all there are."""
    found: list[PipelineCandidate] = []
    skeletons = sorted(every_skeleton(table.options, limits), key=_depth)
    for depth, some in groupby(skeletons, key=_depth):
        split = every_split(table.layers.layers, depth)
        options = [[row for row, count in each for _ in range(count)] for each in some]
        for rows in _blocks(options, max(ROWS_PER_BLOCK // split.shape[1], 1)):
            option = np.repeat(np.array(rows).T, split.shape[1], axis=1)
            layers = np.tile(split, len(rows))
            charge(option.shape[1])
            stages = pipeline_stages(table, option, layers)
            worst_s = found[PRICED - 1].step_s if len(found) >= PRICED else np.inf
            wanted_s = min(limit_s * NEARLY_EXACT, worst_s)
            good = np.flatnonzero(stages.bound_s < wanted_s)
            steps = stages.simulated_s(good)
            for place in np.argsort(steps, kind="stable")[:PRICED].tolist():
                row = int(good[place])
                own = float(steps[place]), table, option[:, row].copy(), layers[:, row].copy()
                found.append(PipelineCandidate(*own))
            found = best_first(found)[:PRICED]
    return found


def _blocks(rows: list[list[int]], size: int) -> Iterator[list[list[int]]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
