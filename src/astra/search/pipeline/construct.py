"""Pipelines of one stage table: segments in a row, layers filled in by pace.

A skeleton is a list of segments, each so many stages of one option, one segment for each type that
is used. A pace is the most seconds that any stage may take with one micro-batch. The least pace at
which a skeleton holds the model says how many layers go where.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from astra.search.pipeline.constants import (
    FILL_RATIOS,
    FILLED,
    MAX_SEEDS,
    MAX_STAGES,
    NEAR_BEST,
    PACE_BLOCKS,
    PACE_RATIO,
    PACES,
    WIDE_PACES,
    WIDE_RATIO,
)
from astra.search.pipeline.estimate import PipelineCandidate, estimated_steps_s, place_of
from astra.search.pipeline.stage_table import FIRST, INSIDE, LAST, StageTable
from astra.strategy.plans import Flags, Floats, Ints
from astra.strategy.segment_columns import SegmentOption
from astra.strategy.space import Workload

Segments = tuple[tuple[int, int], ...]  # (row of the option, stages), the first on top
Charge = Callable[[int], None]  # told how many pipelines were estimated


@dataclass(frozen=True, slots=True)
class SkeletonLimits:
    """What a skeleton may have."""

    stages: int
    gpus: int | None  # None: all there are
    types: int  # at least

    def allow(self, segments: Segments, stage_gpus: Ints) -> bool:
        stages = sum(count for _, count in segments)
        gpus = sum(int(stage_gpus[row]) * count for row, count in segments)
        enough = len(segments) >= self.types and 1 < stages <= self.stages
        return enough and (self.gpus is None or gpus <= self.gpus)


def skeleton_limits(workload: Workload) -> SkeletonLimits:
    """By the layers of the model, the cap on GPUs, and whether all types are wanted."""
    cluster = workload.task.cluster
    types = len(cluster.pools) if workload.use_all else 2
    return SkeletonLimits(min(workload.task.model.layers, MAX_STAGES), cluster.max_gpus, types)


class Constructor:
    """Makes pipelines of the options of one stage table."""

    def __init__(self, table: StageTable, limits: SkeletonLimits, charge: Charge) -> None:
        self.table, self.limits, self.charge = table, limits, charge
        self.layers, self.types = table.layers.layers, np.unique(table.pool)
        self.pace_s: Floats = np.zeros(0)
        self.holds: NDArray[np.int16] = np.zeros((0, 0, 0, 0), np.int16)
        self.held: Ints = np.zeros(0, np.int64)

    # Paces, and how many layers a stage holds at each.

    def find_paces(self, least_s: float, limit_s: float) -> bool:
        """Sets the paces around the least at which all types together hold the model; whether a
        step below the limit has any.
        """
        count, table = self.table.setting.micro_batches, self.table
        deep = min(self.limits.stages, int(sum(self._most_of(each) for each in self.types)))
        fine = PACE_RATIO ** np.arange(PACES)
        steps: Floats = np.append(fine, fine[-1] * WIDE_RATIO ** np.arange(1, WIDE_PACES + 1))
        for block in range(PACE_BLOCKS):
            pace_s = least_s * PACE_RATIO ** (block * (PACES - 2)) * steps
            pace_s = pace_s[(count + 1) * pace_s < limit_s * NEAR_BEST]
            if not len(pace_s):
                return False
            self.pace_s = pace_s
            self.holds = self._holds(deep)
            held = np.cumsum(self.holds[..., -1], axis=0, dtype=np.int64)  # (stages, pace, option)
            held = held[np.minimum(table.most, deep) - 1, :, np.arange(len(table.most))]
            most = [held[table.pool == each].max(axis=0) for each in self.types]
            total = np.sum(most, axis=0)
            self.charge(0)
            if (total >= self.layers).any():
                at = min(int((total >= self.layers).argmax()) + 3, len(pace_s) - 1)
                self.held = held[:, at]  # layers of all stages of an option, a little above
                return True
        return False

    def _most_of(self, pool: int) -> int:
        return int(self.table.most[self.table.pool == pool].max())

    def _holds(self, deep: int) -> NDArray[np.int16]:
        """Most layers of a stage: (stages below, pace, option, layers before its end)"""
        found: list[NDArray[np.int16]] = []
        for below in range(deep):
            same = below > 1 and self.table.in_flight(below) == self.table.in_flight(below - 1)
            found.append(found[-1] if same else self._stage_holds(below))
        return np.stack(found)

    def _stage_holds(self, below: int) -> NDArray[np.int16]:
        table, paces = self.table, len(self.pace_s)
        choice = table.at(LAST if below == 0 else INSIDE, table.in_flight(below))
        ends = np.arange(self.layers + 1)
        # (option, set): the first pace at which it fits
        level = np.searchsorted(self.pace_s, choice.stage_s.reshape(-1)).reshape(
            choice.stage_s.shape
        )
        options = np.arange(len(level))
        if table.layers.has_one_kind:
            first = options[:, np.newaxis] * (paces + 1) + level[:, 1:]
            number = np.bincount(first.reshape(-1), minlength=len(level) * (paces + 1))
            held = np.cumsum(number.reshape(len(level), -1), axis=1)[:, :paces].T
            return np.minimum(held[..., np.newaxis], ends).astype(np.int16)
        fitting = table.layers.sizes[(level < paces).any(axis=0)]
        size = np.arange(1, int(fitting.max(initial=0)) + 1)
        there = size <= ends[:, np.newaxis]
        sets = table.layers.at[ends[:, np.newaxis], np.minimum(size, ends[:, np.newaxis])]
        first = np.where(there, level[:, sets], paces)  # (option, end, size)
        place = options[:, np.newaxis] * len(ends) + ends
        index = place[..., np.newaxis] * (paces + 1) + first
        number = np.bincount(index.reshape(-1), minlength=place.size * (paces + 1))
        held = np.cumsum(number.reshape(*place.shape, -1), axis=2)[..., :paces]
        return np.moveaxis(held, 2, 0).astype(np.int16)

    # Skeletons to begin with.

    def seeds(self) -> list[Segments]:
        """Every order of every two or more types; for each fineness the best option of each type
        near it, with all its stages, or fewer where they are too many. Where types are few, every
        fineness of one with every fineness of the others.
        """
        found = dict[Segments, None]()
        near = {
            int(each): [self._near(int(each), int(stages)) for stages in np.unique(self.table.most)]
            for each in self.types
        }
        for number in range(max(2, self.limits.types), len(near) + 1):
            orders = list(permutations(near, number))
            for order in orders:
                own = [list(dict.fromkeys(near[each])) for each in order]
                is_small = len(orders) * prod(len(rows) for rows in own) <= MAX_SEEDS
                every = product(*own) if is_small else zip(*(near[e] for e in order), strict=True)
                for rows in every:
                    for ranks in (range(number), range(number)[::-1]):
                        segments = self._trimmed(list(rows), ranks)
                        if segments is not None:
                            found[segments] = None
        return list(found)

    def _near(self, pool: int, fineness: int) -> int:
        """The option of a type with about as many stages that holds most."""
        rows = np.flatnonzero(self.table.pool == pool)
        apart = np.abs(np.log2(self.table.most[rows] / fineness))
        return int(rows[np.lexsort((-self.held[rows], apart))[0]])

    def _trimmed(self, rows: list[int], ranks: Iterable[int]) -> Segments | None:
        """As many stages of each option as there may be, the first ranks first."""
        options = [self.table.options[row] for row in rows]
        least = sum(option.stages[0] for option in options)
        least_gpus = sum(option.stages[0] * option.stage_gpus for option in options)
        stages, gpus = self.limits.stages - least, np.inf
        if self.limits.gpus is not None:
            gpus = self.limits.gpus - least_gpus
        if stages < 0 or gpus < 0:
            return None
        counts = [0] * len(rows)
        for rank in ranks:
            option = options[rank]
            own, own_gpus = stages + option.stages[0], option.stages[0] * option.stage_gpus + gpus
            fit = [n for n in option.stages if n <= own and n * option.stage_gpus <= own_gpus]
            counts[rank] = fit[-1]
            stages, gpus = own - fit[-1], own_gpus - fit[-1] * option.stage_gpus
        return tuple(zip(rows, counts, strict=True))

    # Layers on the stages of skeletons.

    def filled(self, skeletons: Iterable[Segments]) -> dict[Segments, PipelineCandidate]:
        """The best pipeline of each skeleton that holds the model, simulated."""
        by_depth: dict[int, list[Segments]] = {}
        found: dict[Segments, PipelineCandidate] = {}
        for segments in skeletons:
            if self.limits.allow(segments, self.table.stage_gpus):
                by_depth.setdefault(sum(count for _, count in segments), []).append(segments)
        for some in by_depth.values():
            option = np.array([[row for row, n in each for _ in range(n)] for each in some]).T
            pace_s, holds = self._least_paces(option)
            rows = np.flatnonzero(holds)
            rows = rows[np.argsort(pace_s[rows], kind="stable")[:FILLED]]
            if not len(rows):
                continue
            option, pace_s = option[:, rows], pace_s[rows]
            ways = list(product((True, False), FILL_RATIOS))
            layers = [self._fill(option, pace_s * ratio, down) for down, ratio in ways]
            whole, size = np.tile(option, len(ways)), np.hstack(layers)
            self.charge(whole.shape[1])
            steps = estimated_steps_s(self.table, whole, size)
            for row in np.argsort(-steps, kind="stable").tolist():  # the best of each comes last
                own = float(steps[row]), self.table, whole[:, row], size[:, row]
                found[some[rows[row % len(rows)]]] = PipelineCandidate(*own)
        return found

    def _least_paces(self, option: Ints) -> tuple[Floats, Flags]:
        """The least pace at which each pipeline holds the model, and whether any does."""
        depth, count = option.shape
        table, level = self.table, np.arange(len(self.pace_s))
        left = np.full((count, len(level)), self.layers)
        for below in range(depth - 1):
            own = option[depth - 1 - below][:, np.newaxis]
            left = np.maximum(left - self.holds[below, level, own, left], 1)
        choice = table.at(FIRST, table.in_flight(depth - 1))
        held = table.layers.at[left, left]
        fits = choice.stage_s[option[0][:, np.newaxis], held] <= self.pace_s
        return self.pace_s[fits.argmax(axis=1)], fits.any(axis=1)

    def _fill(self, option: Ints, pace_s: Floats, down: bool) -> Ints:
        """As many layers as a stage holds at a pace, from the first stage down or the last up."""
        depth, count = option.shape
        layers, done = np.zeros((depth, count), np.int64), np.zeros(count, np.int64)
        number = np.arange(1, self.layers + 1)[:, np.newaxis]
        order = range(depth) if down else reversed(range(depth))
        for nth, stage in enumerate(order):
            rest = depth - 1 - nth
            if not rest:
                layers[stage] = self.layers - done
                break
            below = depth - 1 - stage
            choice = self.table.at(place_of(stage, depth), self.table.in_flight(below))
            end = done + number if down else np.broadcast_to(self.layers - done, (1, count))
            there = number <= self.layers - done - rest
            held = self.table.layers.at[np.minimum(end, self.layers), np.minimum(number, end)]
            fits = there & (choice.stage_s[option[stage], held] <= pace_s)
            layers[stage] = np.maximum(fits.sum(axis=0), 1)
            done += layers[stage]
        return layers


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


def every_split(layers: int, stages: int) -> Ints:
    """All ways to share out layers, one at least to each stage. (stage, way)"""
    ways: list[list[int]] = [[]]
    for stage in range(stages - 1):
        rest = stages - 1 - stage
        ways = [[*way, own] for way in ways for own in range(1, layers - sum(way) - rest + 1)]
    return np.array([[*way, layers - sum(way)] for way in ways], np.int64).T


def best_first(candidates: Iterable[PipelineCandidate]) -> list[PipelineCandidate]:
    """Those with a step, each pipeline once, the fastest first."""
    kept: dict[tuple[object, ...], PipelineCandidate] = {}
    for each in sorted(candidates, key=lambda each: each.step_s):
        if np.isfinite(each.step_s):
            kept.setdefault(each.key, each)
    return list(kept.values())
