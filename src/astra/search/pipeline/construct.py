"""Pipelines of one stage table: segments in a row, layers filled in by pace.

A skeleton is a list of segments, each so many stages of one option, one segment for each type that
is used. A pace is the most seconds that any stage may take with one micro-batch. The least pace at
which a skeleton holds the model says how many layers go where.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations, product
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from astra.cost.stage_table import StageTable
from astra.search.pipeline.estimate import PipelineCandidate, estimated_steps_s
from astra.search.pipeline.first_look import best_of_types
from astra.strategy.layer_splits import every_split
from astra.strategy.plans import Floats, Ints
from astra.strategy.segment_columns import SegmentOption
from astra.strategy.space import Workload

# Paces over the least at which mean layers say that there is a pipeline.
FINE_PACES = 1.02 ** np.arange(24)
PACES = np.append(FINE_PACES, FINE_PACES[-1] * 1.15 ** np.arange(1, 17))
MAX_STAGES = 64
MAX_SEEDS = 1000  # of as many types, with finenesses of their own
EVERY_SKELETON = 200  # skeletons, all of which are tried where there are no more
EVERY_SPLIT = 200  # ways to share out the layers, likewise
FILLED = 32  # skeletons of one depth, those of the least paces
NEAR_BEST = 1.1  # times the best step known, within which a pipeline is worth changing

Segments = tuple[tuple[int, int], ...]  # (row of the option, stages), the first on top
Charge = Callable[[int], None]  # told how many pipelines were estimated


@dataclass(frozen=True, slots=True)
class SkeletonLimits:
    """What a skeleton may have."""

    stages: int
    gpus: int | None  # None: all there are
    types: int  # at least

    def allow(self, segments: Sequence[tuple[int, int]], stage_gpus: Ints) -> bool:
        stages = sum(count for _, count in segments)
        if len(segments) < self.types or not 1 < stages <= self.stages:
            return False
        return self.gpus is None or sum(stage_gpus[row] * n for row, n in segments) <= self.gpus


def skeleton_limits(workload: Workload) -> SkeletonLimits:
    """By the layers of the model, the cap on GPUs, and whether all types are wanted."""
    cluster = workload.task.cluster
    types = len(cluster.pools) if workload.use_all else 2
    return SkeletonLimits(min(workload.task.model.layers, MAX_STAGES), cluster.max_gpus, types)


class Constructor:
    """Makes pipelines of the options of one stage table."""

    def __init__(
        self, table: StageTable, limits: SkeletonLimits, charge: Charge, pace_s: Floats
    ) -> None:
        self.table, self.limits, self.charge, self.pace_s = table, limits, charge, pace_s
        self.layers = table.layers.layers
        deep = min(limits.stages, int(best_of_types(table.most, table.pool).sum()))
        self.holds = self._holds(deep)
        held = np.cumsum(self.holds[..., -1], axis=0, dtype=np.int64)  # (stages, pace, option)
        held = held[np.minimum(table.most, deep) - 1, :, np.arange(len(table.most))].T
        enough = best_of_types(held, table.pool).sum(axis=-1) >= self.layers
        at = int(enough.argmax()) + 3 if enough.any() else len(pace_s)
        self.held = held[min(at, len(pace_s) - 1)]  # by all stages of an option, a little above

    def _holds(self, deep: int) -> NDArray[np.int16]:
        """Most layers of a stage: (stages below, pace, option, layers before its end)"""
        found: list[NDArray[np.int16]] = []
        for below in range(deep):
            same = below > 1 and below >= self.table.setting.micro_batches
            found.append(found[-1] if same else self._stage_holds(below))
            self.charge(0)
        return np.stack(found)

    def _stage_holds(self, below: int) -> NDArray[np.int16]:
        layers, paces = self.table.layers, len(self.pace_s)
        stage_s = self.table.of_stage(1, below + 2).stage_s
        level = np.searchsorted(self.pace_s, stage_s.ravel()).reshape(stage_s.shape)
        ends, size = np.arange(self.layers + 1), np.arange(1, self.layers + 1)
        some = ends[-1:, np.newaxis] if layers.has_one_kind else ends[:, np.newaxis]
        sets = layers.at[some, np.minimum(size, some)]
        first = np.where(size <= some, level[:, sets], paces)  # pace of (option, end, size)
        row = np.arange(first.shape[0] * first.shape[1]).reshape(*first.shape[:2], 1)
        number = np.bincount((row * (paces + 1) + first).ravel(), minlength=row.size * (paces + 1))
        held = np.cumsum(number.reshape(*first.shape[:2], -1), axis=2)[..., :paces]
        return np.minimum(np.moveaxis(held, 2, 0), ends).astype(np.int16)

    def seeds(self) -> list[Segments]:
        """All skeletons where they are few. Else every order of every two or more types; for each
        fineness the best option of each type near it, with all its stages, or fewer where they are
        too many. Where types are few, every fineness of one with every fineness of the others.
        """
        table, found = self.table, dict[Segments, None]()
        every = list(islice(every_skeleton(table.options, self.limits), EVERY_SKELETON + 1))
        if len(every) <= EVERY_SKELETON:
            return every
        finenesses = np.unique(table.most).tolist()
        near = {
            pool: [self._near(pool, stages) for stages in finenesses]
            for pool in np.unique(table.pool).tolist()
        }
        for number in range(max(2, self.limits.types), len(near) + 1):
            orders = list(permutations(near, number))
            for order in orders:
                own = [list(dict.fromkeys(near[pool])) for pool in order]
                is_small = len(orders) * prod(len(rows) for rows in own) <= MAX_SEEDS
                alike = zip(*(near[pool] for pool in order), strict=True)
                for rows in product(*own) if is_small else alike:
                    for ranks in (range(number), range(number)[::-1]):
                        found[self._trimmed(rows, ranks)] = None
        return list(found)

    def _near(self, pool: int, fineness: int) -> int:
        """The option of a type with about as many stages that holds most."""
        rows = np.flatnonzero(self.table.pool == pool)
        apart = np.abs(np.log2(self.table.most[rows] / fineness))
        return int(rows[np.lexsort((-self.held[rows], apart))[0]])

    def _trimmed(self, rows: Sequence[int], ranks: Iterable[int]) -> Segments:
        """All stages of each option; where they are too many, fewer of the first ranks."""
        segments = [(row, self.table.options[row].most) for row in rows]
        for rank in ranks:
            row = rows[rank]
            for count in self.table.options[row].stages[::-1]:
                segments[rank] = row, count
                if self.limits.allow(segments, self.table.stage_gpus):
                    return tuple(segments)
        return tuple(segments)

    def filled(
        self, skeletons: Iterable[Segments], within_s: float
    ) -> dict[Segments, PipelineCandidate]:
        """The best pipeline of each skeleton that holds the model, simulated where it may win."""
        by_depth: dict[int, list[Segments]] = {}
        found: dict[Segments, PipelineCandidate] = {}
        for segments in skeletons:
            if self.limits.allow(segments, self.table.stage_gpus):
                by_depth.setdefault(sum(count for _, count in segments), []).append(segments)
        for depth, some in by_depth.items():
            option = np.array([[row for row, n in each for _ in range(n)] for each in some]).T
            if comb(self.layers - 1, depth - 1) <= EVERY_SPLIT:
                split, rows = every_split(self.layers, depth), np.arange(len(some))
                layers = np.repeat(split, len(some), axis=1)
            else:
                rows, layers = self._by_pace(option)
            if not len(rows):
                continue
            whole = np.tile(option[:, rows], layers.shape[1] // len(rows))
            self.charge(whole.shape[1])
            steps = estimated_steps_s(self.table, whole, layers, within_s)
            for row in np.argsort(-steps, kind="stable").tolist():  # the best of each comes last
                own = float(steps[row]), self.table, whole[:, row], layers[:, row]
                found[some[rows[row % len(rows)]]] = PipelineCandidate(*own)
        return found

    def _by_pace(self, option: Ints) -> tuple[Ints, Ints]:
        """The skeletons that hold the model at the least paces; and layers of their stages at that
        pace, (stage, way x skeleton). `option`: (stage, skeleton)

        As many layers as a stage holds, from the last stage up; also with the same layers of each
        segment in order, the most on top. From a stage on there
        are no more micro-batches under way than stages. At a pace B they come back to it in time if
        these n stages and the links between them, both ways, take n B at most; `slack_s` is what is
        left of that.
        """
        depth, level = len(option), np.arange(len(self.pace_s))
        layers = np.zeros((*option.shape, len(level)), np.int64)  # (stage, skeleton, pace)
        left, slack_s = np.full(layers.shape[1:], self.layers), np.zeros(layers.shape[1:])
        for stage in range(depth - 1, -1, -1):
            below, own = depth - 1 - stage, option[stage][:, np.newaxis]
            if 0 < below < self.table.setting.micro_batches:
                slack_s -= 2 * self.table.links_s[0][own, option[stage + 1][:, np.newaxis]]
            within_s = self.pace_s + np.minimum(slack_s, 0.0)
            if stage:
                level = np.maximum(np.searchsorted(self.pace_s, within_s, "right") - 1, 0)
                held = self.holds[below, level, own, left]
                layers[stage] = np.clip(held, 1, left - stage)  # one at least for each above
            else:
                layers[0] = left
            sets = self.table.layers.at[left, layers[stage]]
            stage_s = self.table.of_stage(stage, depth).stage_s[own, sets]
            slack_s = slack_s + self.pace_s - stage_s
            left = left - layers[stage]
        fits = stage_s <= within_s
        least, rows = fits.argmax(axis=1), np.flatnonzero(fits.any(axis=1))
        rows = rows[np.argsort(least[rows], kind="stable")[:FILLED]]
        found = layers[:, rows, least[rows]]
        segment = np.cumsum(option[:, rows] != np.roll(option[:, rows], 1, axis=0), axis=0)
        offset = segment * (self.layers + 1)
        fewer_below = offset - np.sort(offset - found, axis=0)
        return rows, np.hstack([found, fewer_below])


def every_skeleton(options: Sequence[SegmentOption], limits: SkeletonLimits) -> Iterator[Segments]:
    """All of them: every order of types, every option, every number of stages."""
    by_type: dict[int, list[int]] = {}
    for row, option in enumerate(options):
        by_type.setdefault(option.pool, []).append(row)
    stage_gpus = np.array([option.stage_gpus for option in options])
    for number in range(max(2, limits.types), len(by_type) + 1):
        for order in permutations(by_type.values(), number):
            for rows in product(*order):
                for counts in product(*(options[row].stages for row in rows)):
                    segments = tuple(zip(rows, counts, strict=True))
                    if limits.allow(segments, stage_gpus):
                        yield segments


def best_first(candidates: Iterable[PipelineCandidate]) -> list[PipelineCandidate]:
    """Those with a step, each pipeline once, the fastest first."""
    kept: dict[tuple[object, ...], PipelineCandidate] = {}
    for each in sorted(candidates, key=lambda each: each.step_s):
        if np.isfinite(each.step_s):
            kept.setdefault(each.key, each)
    return list(kept.values())
