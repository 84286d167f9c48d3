"""Interleaved pipelines over several GPU types: one parallel config, chunks by speed.

A first look orders skeletons, configs with a number of stages of each type, by about the least step
they can have. For the best of them every number of chunks and every recompute setting is estimated.
The best of these are laid out with their types in some orders and priced as whole plans; then with
chunks a layer larger or smaller on one stage or two. So on with the next skeletons, until their
estimates pass the best step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from astra.search.evaluator import Evaluator
from astra.search.pipeline.chunk_estimates import (
    ChunkEstimates,
    ChunkShapes,
    ParallelConfig,
    stage_counts,
)
from astra.search.pipeline.chunked_pipelines import (
    ChunkedPipelines,
    by_stages,
    joined,
    neighbours,
    sized,
)
from astra.search.pipeline.constants import (
    CHUNK_ROUNDS,
    CHUNKED_KEPT,
    CHUNKED_SIMULATED,
    FEW_SIZED,
    FIRST_SKELETONS,
    FIRST_VPPS,
    MAX_SKELETONS,
    MOVED_CHUNKS,
    NEAR_ESTIMATE,
    SHAPES_PER_SKELETON,
    SKELETONS,
)
from astra.search.pipeline.first_look import balanced_steps_s
from astra.search.pipeline.stage_lines import ALL_LAYERS, NO_RECOMPUTE, StagePricer
from astra.strategy.plans import Floats
from astra.strategy.recompute import Recompute
from astra.strategy.rules.registry import rules_for
from astra.strategy.segment_columns import GlobalSetting, SegmentOption
from astra.strategy.segment_options import recompute_settings, settings_with_options
from astra.strategy.space import Space

Options = Mapping[GlobalSetting, Sequence[SegmentOption]]
LIGHT_MODULES = {"layernorm", "moe_act", "mla_up_proj"}  # take little to recompute


class InterleavedPipeline:
    """Pipelines over several types that Megatron-LM interleaves."""

    def __init__(self, space: Space, pricer: StagePricer, options: Options) -> None:
        """`options`: of every global setting with one chunk for each stage."""
        self.space, self.workload, self.task = space, space.workload, space.workload.task
        self.pricer, self.options = pricer, options
        self.layers = self.task.model.layers
        asked = sorted(space.settings.get("vpp", range(2, self.layers // 2 + 1)))
        self.vpps = np.array([vpp for vpp in asked if 2 <= vpp <= self.layers // 2], np.int64)
        self.recomputes = [each or NO_RECOMPUTE for each in recompute_settings(space)]

    def search(self, evaluator: Evaluator) -> float:
        """Hands the best pipelines to the evaluator; nothing bounds the others: 0."""
        if not len(self.vpps):
            return np.inf
        best = self._search(evaluator, self._configs(evaluator, self.options))
        if self._is_short_of_memory(best):
            every = {"cp": self.space.values("cp") or (1,)}
            wider = Space(self.workload, self.space.settings | every)
            known = settings_with_options(wider, rules_for(self.task.runtime))
            split = {setting: options for setting, options in known if setting.cp > 1}
            self._search(evaluator, self._configs(evaluator, split))
        return 0.0

    def _is_short_of_memory(self, best: Recompute | None) -> bool:
        """Whether the best pipeline recomputes much, or none fits: then context parallelism may
        help short sequences too. Models with experts have so many configs that it is not tried.
        """
        if "cp" in self.space.settings or self.task.model.moe is not None:
            return False
        return best is None or not (best == NO_RECOMPUTE or _is_light(best))

    def _configs(self, evaluator: Evaluator, known: Options) -> list[ParallelConfig]:
        """With the traffic of experts in the open, and hidden; those that can beat the limit."""
        every: dict[GlobalSetting, Sequence[SegmentOption]] = {}
        for hides in self.space.values("overlap_ep") or (False,):
            for setting, options in known.items():
                types = {each.pool for each in options}
                overlapping = known.get(replace(setting, overlap_tp=True), ())
                is_beaten = not setting.overlap_tp and types == {each.pool for each in overlapping}
                can_hide = (setting.shared.ep or 1) > 1
                if len(types) > 1 and not is_beaten and (can_hide or not hides):
                    every[replace(setting, overlap_ep=hides)] = options
        balanced_s = balanced_steps_s(self.pricer, every) if every else {}
        limit_s = min(evaluator.limit_s, evaluator.best_s)
        return [
            (setting, options)
            for setting, options in every.items()
            if balanced_s[setting] < limit_s
        ]

    def _search(self, evaluator: Evaluator, configs: Sequence[ParallelConfig]) -> Recompute | None:
        """Hands the best of these configs to the evaluator; what the very best recomputes."""
        if not configs:
            return None
        first = ChunkEstimates(self.pricer, configs, self._first_recomputes())
        skeletons, estimate_s = self._skeletons(first)
        best_s, recompute = np.inf, None
        for start in range(0, len(skeletons), SKELETONS):
            limit_s = min(evaluator.limit_s, evaluator.best_s) * NEAR_ESTIMATE
            near = start + np.flatnonzero(~(estimate_s[start : start + SKELETONS] > limit_s))
            if not len(near):
                break
            evaluator.charge(len(near))
            estimates, some = first.closer(skeletons.take(near), self.recomputes)
            found = self._laid_out(evaluator, estimates, some, limit_s)
            if len(found) and found.step_s[0] < best_s:
                best_s, recompute = found.step_s[0], self.recomputes[int(found.recompute[0])]
        return recompute

    def _first_recomputes(self) -> list[Recompute]:
        """For the first look: nothing, all that is light, and all layers; or what was asked for."""
        if "recompute" in self.space.settings:
            return self.recomputes
        light = sorted(filter(_is_light, self.recomputes), key=lambda each: len(each.modules))
        return [NO_RECOMPUTE, *light[-1:], ALL_LAYERS]

    def _skeletons(self, estimates: ChunkEstimates) -> tuple[ChunkShapes, Floats]:
        """The most promising ones, best first, and their estimates."""
        found = stage_counts(self.space, estimates, int(self.vpps[0]))
        found = found.take(np.argsort(estimates.balanced_s(found), kind="stable")[:FIRST_SKELETONS])
        recomputes, vpps = len(estimates.recomputes), self.vpps[:FIRST_VPPS]
        every, row = found.with_every(recomputes, vpps, self.layers)
        estimate_s = np.full(len(found), np.inf)
        np.minimum.at(estimate_s, row, estimates.estimated_s(every))
        order = np.argsort(estimate_s, kind="stable")[:MAX_SKELETONS]
        return found.take(order), estimate_s[order]

    def _laid_out(
        self,
        evaluator: Evaluator,
        estimates: ChunkEstimates,
        skeletons: ChunkShapes,
        limit_s: float,
    ) -> ChunkedPipelines:
        """The best pipelines of some skeletons, best first."""
        every, row = skeletons.with_every(len(self.recomputes), self.vpps, self.layers)
        estimate_s = estimates.estimated_s(every)
        order = np.lexsort((estimate_s, row))
        rank = np.arange(len(order)) - np.searchsorted(row[order], row[order])  # of its skeleton
        near = (rank < SHAPES_PER_SKELETON) & ~(estimate_s[order] > limit_s)
        table = sized(by_stages(every.take(order[near]), estimates), estimates)
        if len(table) < FEW_SIZED:
            table = joined([table, neighbours(table, self.layers)])
        found = _best([self._priced(evaluator, estimates, table)])
        for _ in range(CHUNK_ROUNDS):
            before_s = found.step_s.min(initial=np.inf)
            if not before_s < limit_s:
                break
            moved = neighbours(found.take(slice(MOVED_CHUNKS)), self.layers)
            known = set(found.identities())
            new = np.array([key not in known for key in moved.identities()], np.bool_)
            found = _best([found, self._priced(evaluator, estimates, moved.take(new))])
            if found.step_s[0] >= before_s:
                break
        return found

    def _priced(
        self, evaluator: Evaluator, estimates: ChunkEstimates, pipelines: ChunkedPipelines
    ) -> ChunkedPipelines:
        """Those that are allowed and whose bounds are least, with their steps."""
        if not len(pipelines):
            return pipelines
        evaluator.charge(len(pipelines))
        plans = pipelines.plans(self.workload, estimates)
        rows = evaluator.promising(plans, CHUNKED_SIMULATED)
        if not len(rows):
            return pipelines.take(rows)
        return replace(pipelines.take(rows), step_s=evaluator.steps_s(plans.take(rows)))


def _best(some: Sequence[ChunkedPipelines]) -> ChunkedPipelines:
    """The best of them, each once."""
    every = joined(some)
    every = every.take(np.argsort(every.step_s, kind="stable"))
    first = {key: row for row, key in reversed(list(enumerate(every.identities())))}
    return every.take(np.array(sorted(first.values())[:CHUNKED_KEPT], np.int64))


def _is_light(recompute: Recompute) -> bool:
    return bool(recompute.modules) and set(recompute.modules) <= LIGHT_MODULES
