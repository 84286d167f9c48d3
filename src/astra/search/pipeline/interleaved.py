"""Interleaved pipelines over several GPU types: one parallel config, chunks by speed.

A first look orders skeletons, configs with a number of stages of each type, by about the least step
they can have. For the best of them every number of chunks and every recompute setting is estimated.
The best of these are laid out with their types in some orders and priced as whole plans; then with
chunks a layer larger or smaller on one stage or two. So on with the next skeletons, until their
estimates pass the best step.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from astra.cost.stage_lines import ALL_LAYERS, NO_RECOMPUTE, StagePricer
from astra.search.evaluator import Evaluator
from astra.search.pipeline.chunk_estimates import (
    ChunkedPipelines,
    ChunkEstimates,
    ParallelConfig,
    stage_counts,
)
from astra.search.pipeline.chunked_pipelines import (
    by_stages,
    joined,
    neighbours,
    sized,
    to_plans,
    unseen,
)
from astra.search.pipeline.first_look import balanced_steps_s
from astra.strategy.plans import Floats
from astra.strategy.recompute import Recompute
from astra.strategy.rules.registry import rules_for
from astra.strategy.segment_columns import GlobalSetting, SegmentOption
from astra.strategy.segment_options import recompute_settings, settings_with_options
from astra.strategy.space import Space

Options = Mapping[GlobalSetting, Sequence[SegmentOption]]

FIRST_SKELETONS = 6000  # that are estimated
MAX_SKELETONS = 384  # that are laid out
SKELETONS = 48  # of them, together
NEAR_BEST = 1.1  # times the best step of some skeletons, within which one is worth changing
NEAR_ESTIMATE = 1.05  # times the best step known, within which an estimate or its neighbour may win
SHAPES_PER_SKELETON = 32  # numbers of chunks with a recompute setting, the most promising
SIZED = 3000  # shapes of some skeletons, each in one order, that get chunk sizes
STEPS_PER_LOOK = 400  # plans that are simulated between two looks for the stop
SIMULATED = 32  # pipelines of one skeleton and vpp, those of the least bounds
MOVED_CHUNKS = 48  # skeletons with a vpp, the best pipeline of each, whose chunks are moved
CHUNK_ROUNDS = 6  # of such changes
LIGHT_MODULES = {"layernorm", "moe_act", "mla_up_proj"}  # take little to recompute


class InterleavedPipeline:
    """Pipelines over several types that Megatron-LM interleaves."""

    def __init__(self, space: Space, pricer: StagePricer, options: Options, types: int = 2) -> None:
        """`options`: of every global setting with one chunk for each stage; `types`: at least. With
        one, chunks are tried that the search on one type does not have.
        """
        self.types = types
        self.space, self.workload, self.task = space, space.workload, space.workload.task
        self.pricer, self.options = pricer, options
        self.layers = self.task.model.layers
        asked = sorted(space.settings.get("vpp", range(2, self.layers // 2 + 1)))
        self.vpps = np.array([vpp for vpp in asked if 2 <= vpp <= self.layers // 2], np.int64)
        self.recomputes = [each or NO_RECOMPUTE for each in recompute_settings(space)]

    def search(self, evaluator: Evaluator, breadth: int = 1) -> None:
        """Hands the best pipelines to the evaluator; nothing bounds the others.

        `breadth`: times as much is laid out and simulated.
        """
        if not len(self.vpps):
            return
        search = _InterleavedSearch(self, evaluator, breadth)
        search.run(self._configs(evaluator, self.options))
        if self._is_short_of_memory(search.recompute):
            every = {"cp": self.space.values("cp") or (1,)}
            wider = Space(self.workload, self.space.settings | every)
            known = settings_with_options(wider, rules_for(self.task.runtime))
            split = {setting: options for setting, options in known if setting.cp > 1}
            search.run(self._configs(evaluator, split))

    def _is_short_of_memory(self, best: Recompute | None) -> bool:
        """Whether the best pipeline recomputes much, or none fits: then context parallelism may
        help short sequences too. Models with experts have so many configs that it is not tried.
        """
        if "cp" in self.space.settings or self.task.model.moe is not None:
            return False
        return best is None or not _is_light(best)

    def _configs(self, evaluator: Evaluator, known: Options) -> list[ParallelConfig]:
        """With the traffic of experts in the open, and hidden; those that can beat the limit."""
        every: dict[GlobalSetting, Sequence[SegmentOption]] = {}
        for hides in self.space.values("overlap_ep") or (False,):
            for setting, options in known.items():
                types = {each.pool for each in options}
                overlapping = known.get(replace(setting, overlap_tp=True), ())
                is_beaten = not setting.overlap_tp and types == {each.pool for each in overlapping}
                can_hide = (setting.shared.ep or 1) > 1
                if len(types) >= self.types and not is_beaten and (can_hide or not hides):
                    every[replace(setting, overlap_ep=hides)] = options
        balanced_s = balanced_steps_s(self.pricer, every) if every else {}
        limit_s = min(evaluator.limit_s, evaluator.best_s)
        return [pair for pair in every.items() if balanced_s[pair[0]] < limit_s]

    def first_recomputes(self) -> list[Recompute]:
        """For the first look: nothing, all that is light, and all layers; or what was asked for."""
        if "recompute" in self.space.settings:
            return self.recomputes
        light = max(filter(_is_light, self.recomputes), key=lambda each: len(each.modules))
        return list(dict.fromkeys((NO_RECOMPUTE, light, ALL_LAYERS)))


class _InterleavedSearch:
    """What one search has in hand."""

    def __init__(self, problem: InterleavedPipeline, evaluator: Evaluator, breadth: int) -> None:
        self.problem, self.evaluator, self.breadth = problem, evaluator, breadth
        self.layers, self.vpps, self.recomputes = problem.layers, problem.vpps, problem.recomputes
        self.best_s = np.inf
        self.recompute: Recompute | None = None  # of the best

    def run(self, configs: Sequence[ParallelConfig]) -> None:
        """Hands the best of these configs to the evaluator."""
        if not configs:
            return
        evaluator, problem = self.evaluator, self.problem
        first = ChunkEstimates(problem.pricer, configs, problem.first_recomputes())
        skeletons, estimate_s = self._skeletons(first)
        for start in range(0, len(skeletons), SKELETONS):
            limit_s = min(evaluator.limit_s, evaluator.best_s) * NEAR_ESTIMATE
            near = start + np.flatnonzero(~(estimate_s[start : start + SKELETONS] > limit_s))
            if not len(near):
                break
            evaluator.charge(len(near))
            estimates, some = first.of_configs_in(skeletons.take(near), self.recomputes)
            self._lay_out(estimates, some, limit_s)

    def _skeletons(self, estimates: ChunkEstimates) -> tuple[ChunkedPipelines, Floats]:
        """The most promising ones, best first, and their estimates."""
        found = stage_counts(self.problem.space, estimates, int(self.vpps[0]), self.problem.types)
        found = found.take(np.argsort(estimates.balanced_s(found), kind="stable")[:FIRST_SKELETONS])
        every, row = found.with_every(len(estimates.recomputes), self.vpps[:1], self.layers)
        estimate_s = np.full(len(found), np.inf)
        np.minimum.at(estimate_s, row, estimates.estimated_s(every))
        order = np.argsort(estimate_s, kind="stable")[: MAX_SKELETONS * self.breadth]
        return found.take(order), estimate_s[order]

    def _lay_out(
        self, estimates: ChunkEstimates, skeletons: ChunkedPipelines, limit_s: float
    ) -> None:
        """The best pipelines of some skeletons, then their neighbours, while these are better."""
        every, row = skeletons.with_every(len(self.recomputes), self.vpps, self.layers)
        estimate_s = estimates.estimated_s(every)
        order = np.lexsort((estimate_s, row))
        rank = np.arange(len(order)) - np.searchsorted(row[order], row[order])  # of its skeleton
        near = (rank < SHAPES_PER_SKELETON * self.breadth) & ~(estimate_s[order] > limit_s)
        laid_out = by_stages(every.take(order[near]), estimates)
        table = sized(laid_out, estimates, SIZED * self.breadth)
        seen: set[bytes] = set()
        found, step_s = self._priced(estimates, unseen(table, seen))
        for _ in range(CHUNK_ROUNDS):
            best_s = float(step_s.min(initial=np.inf))
            if best_s >= limit_s:
                break
            limit_s = best_s
            best = np.argsort(step_s, kind="stable")
            best = best[step_s[best] < best_s * NEAR_BEST]
            first = _first_of_each(found.take(best).skeleton_keys(), 1)
            best = best[first[: MOVED_CHUNKS * self.breadth]]
            moved = unseen(neighbours(found.take(best), self.layers), seen)
            more, more_s = self._priced(estimates, moved)
            found, step_s = joined([found, more]), np.append(step_s, more_s)

    def _priced(
        self, estimates: ChunkEstimates, pipelines: ChunkedPipelines
    ) -> tuple[ChunkedPipelines, Floats]:
        """Those that are allowed and whose bounds are least and near the best, with their steps."""
        if not len(pipelines):
            return pipelines, np.zeros(0)
        self.evaluator.charge(len(pipelines))
        plans = to_plans(self.problem.workload, estimates, pipelines)
        below_s = min(self.evaluator.limit_s, self.evaluator.best_s) * NEAR_ESTIMATE
        rows = self.evaluator.promising(plans, len(plans), below_s)
        rows = rows[_first_of_each(pipelines.take(rows).skeleton_keys(), SIMULATED * self.breadth)]
        if not len(rows):
            return pipelines.take(rows), np.zeros(0)
        blocks = [rows[at : at + STEPS_PER_LOOK] for at in range(0, len(rows), STEPS_PER_LOOK)]
        step_s = np.concatenate([self.evaluator.steps_s(plans.take(block)) for block in blocks])
        if step_s.min() < self.best_s:
            best = rows[step_s.argmin()]
            self.best_s = float(step_s.min())
            self.recompute = estimates.recomputes[int(pipelines.recompute[best])]
        return pipelines.take(rows), step_s


def _first_of_each(keys: list[bytes], most: int) -> list[int]:
    """Places of the first so many of each key."""
    count, found = Counter[bytes](), []
    for place, key in enumerate(keys):
        if count[key] < most:
            found.append(place)
            count[key] += 1
    return found


def _is_light(recompute: Recompute) -> bool:
    return not recompute.mode.startswith("full") and set(recompute.modules) <= LIGHT_MODULES
