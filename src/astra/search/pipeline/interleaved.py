"""Interleaved pipelines over several GPU types: one parallel config, chunks by speed.

A first look orders configs with their numbers of stages by about the least step they can have. For
the best of them every number of chunks and every recompute setting is estimated. The best of these
are laid out with their types in some orders, chunks by speed, and priced as whole plans; then with
chunks a layer larger or smaller on one stage or two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astra.cost.evaluate import evaluate, simulate
from astra.search.evaluator import PlanEvaluator
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
    CHUNKED_PRICED,
    CHUNKED_SIMULATED,
    FIRST_SKELETONS,
    FIRST_VPP,
    MAX_SKELETONS,
    MOVED_CHUNKS,
    NEAR_ESTIMATE,
    SHAPES_PER_SKELETON,
    SKELETONS,
)
from astra.search.pipeline.first_look import balanced_steps_s
from astra.search.pipeline.plan_columns import GlobalSetting, SegmentOption
from astra.search.pipeline.settings import recompute_settings, settings_with_options
from astra.search.pipeline.stage_lines import ALL_LAYERS, INSIDE, NO_RECOMPUTE, StagePricer
from astra.strategy.plans import Floats, Ints
from astra.strategy.recompute import Recompute
from astra.strategy.rules.registry import rules_for
from astra.strategy.space import Space

Options = Mapping[GlobalSetting, Sequence[SegmentOption]]
LIGHT_MODULES = {"layernorm", "moe_act", "mla_up_proj"}  # take little to recompute


@dataclass(frozen=True, slots=True)
class _Found:
    """Pipelines with their steps, best first."""

    pipelines: ChunkedPipelines
    step_s: Floats

    @property
    def best_s(self) -> float:
        return float(self.step_s.min(initial=np.inf))


class InterleavedPipeline:
    """Pipelines over several types that Megatron-LM interleaves."""

    def __init__(self, space: Space, pricer: StagePricer, options: Options) -> None:
        """`options`: of every global setting with one chunk for each stage."""
        self.space, self.workload, self.task = space, space.workload, space.workload.task
        self.pricer, self.options = pricer, options
        self.layers = self.task.model.layers
        asked = space.settings.get("vpp", range(2, self.layers // 2 + 1))
        self.vpps = np.array([vpp for vpp in asked if 2 <= vpp <= self.layers // 2], np.int64)
        self.recomputes = [each or NO_RECOMPUTE for each in recompute_settings(space)]

    def search(self, evaluator: PlanEvaluator) -> float:
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

    def _configs(self, evaluator: PlanEvaluator, known: Options) -> list[ParallelConfig]:
        """With the traffic of experts in the open, and hidden; those that can beat the limit."""
        found: list[ParallelConfig] = []
        limit_s = min(evaluator.limit_s, evaluator.best_s)
        for hides in self.space.values("overlap_ep") or (False,):
            every = {
                replace(setting, overlap_ep=hides): options
                for setting, options in known.items()
                if ((setting.shared.ep or 1) > 1 or not hides)
                and len({each.pool for each in options}) > 1
            }
            pools = {setting: {each.pool for each in own} for setting, own in every.items()}
            every = {
                setting: own
                for setting, own in every.items()
                if setting.overlap_tp
                or pools.get(replace(setting, overlap_tp=True)) != pools[setting]
            }
            if not every:
                continue
            for setting, step_s in balanced_steps_s(self.pricer, every).items():
                if step_s < limit_s:
                    found.append(ParallelConfig(setting, tuple(every[setting])))
        return found

    def _first_recomputes(self) -> list[Recompute]:
        """For the first look: nothing, all that is light, and all layers; or what was asked for."""
        if "recompute" in self.space.settings:
            return self.recomputes
        light = sorted(filter(_is_light, self.recomputes), key=lambda each: len(each.modules))
        return [NO_RECOMPUTE, *light[-1:], ALL_LAYERS]

    def _search(
        self, evaluator: PlanEvaluator, configs: Sequence[ParallelConfig]
    ) -> Recompute | None:
        """Hands the best of these configs to the evaluator; what the best recomputes."""
        if not configs:
            return None
        first = ChunkEstimates(self.pricer, configs, self._first_recomputes())
        skeletons, estimate_s = self._skeletons(first)
        best: tuple[float, Recompute | None] = np.inf, None
        for start in range(0, len(skeletons), SKELETONS):
            limit_s = min(evaluator.limit_s, evaluator.best_s) * NEAR_ESTIMATE
            near = start + np.flatnonzero(~(estimate_s[start : start + SKELETONS] > limit_s))
            if not len(near):
                break
            some = skeletons.take(near)
            rows, own = np.unique(some.config, return_inverse=True)
            estimates = ChunkEstimates(self.pricer, [configs[row] for row in rows], self.recomputes)
            own = own.reshape(-1)
            moved = estimates.first_option[own] - first.first_option[some.config]
            some = replace(some, config=own, options=some.options + moved[:, np.newaxis])
            best = min(best, self._search_skeletons(evaluator, estimates, some), key=lambda p: p[0])
        return best[1]

    def _search_skeletons(self, evaluator, estimates, skeletons) -> tuple[float, Recompute | None]:
        evaluator.charge(len(skeletons))
        limit_s = min(evaluator.limit_s, evaluator.best_s) * NEAR_ESTIMATE
        shapes = self._shapes(skeletons, estimates, limit_s)
        lines = by_stages(shapes, estimates.layer_s[INSIDE], int(shapes.depth.max(initial=2)))
        best = self._best([self._priced(evaluator, estimates, sized(lines, estimates))])
        best = self._moved(evaluator, estimates, best)
        if not len(best.pipelines):
            return np.inf, None
        kept = best.pipelines.take(best.step_s < evaluator.limit_s)
        if len(kept):
            evaluator.steps_s(kept.plans(self.workload, estimates))
        return best.best_s, self.recomputes[int(best.pipelines.recompute[0])]

    def _skeletons(self, estimates: ChunkEstimates) -> tuple[ChunkShapes, Floats]:
        """Configs with numbers of stages, the most promising first."""
        found = stage_counts(self.space, estimates, int(self.vpps.min()))
        found = found.take(np.argsort(estimates.balanced_s(found), kind="stable")[:FIRST_SKELETONS])
        few = self.vpps[self.vpps <= FIRST_VPP] if self.vpps[0] <= FIRST_VPP else self.vpps[:1]
        every, row = self._with_every(found, len(estimates.recomputes), few)
        estimate_s = np.full(len(found), np.inf)
        np.minimum.at(estimate_s, row, estimates.estimated_s(every))
        order = np.argsort(estimate_s, kind="stable")[:MAX_SKELETONS]
        return found.take(order), estimate_s[order]

    def _with_every(
        self, skeletons: ChunkShapes, recomputes: int, vpps: Ints
    ) -> tuple[ChunkShapes, Ints]:
        """Each with every recompute setting and vpp; and the row that it is of."""
        axes = np.indices((len(skeletons), recomputes, len(vpps)))
        row, recompute, vpp = (axis.reshape(-1) for axis in axes)
        good = skeletons.depth[row] * vpps[vpp] <= self.layers
        row, recompute, vpp = row[good], recompute[good], vpps[vpp[good]]
        return replace(skeletons.take(row), recompute=recompute, vpp=vpp), row

    def _shapes(self, skeletons: ChunkShapes, estimates: ChunkEstimates, limit_s: float) -> ChunkShapes:
        """The most promising of each skeleton."""
        every, row = self._with_every(skeletons, len(self.recomputes), self.vpps)
        estimate_s = estimates.estimated_s(every)
        order = np.lexsort((estimate_s, row))
        first = np.searchsorted(row[order], row[order])
        near = np.arange(len(order)) - first < SHAPES_PER_SKELETON
        near &= ~(estimate_s[order] > limit_s)
        return every.take(order[near])

    def _priced(
        self, evaluator: PlanEvaluator, estimates: ChunkEstimates, pipelines: ChunkedPipelines
    ) -> _Found:
        """The most promising as whole plans."""
        if not len(pipelines):
            return _Found(pipelines, np.zeros(0))
        evaluator.charge(len(pipelines))
        plans = pipelines.plans(self.workload, estimates)
        own = evaluator.task, evaluator.stack
        found = evaluate(plans, *own, evaluator.margin, evaluator.cache)
        order = np.argsort(np.where(found.fits, found.bound_s, np.inf), kind="stable")
        order = order[found.fits[order]][:CHUNKED_SIMULATED]
        if not len(order):
            return _Found(pipelines.take(order), np.zeros(0))
        step_s = simulate(plans.take(order), *own, evaluator.cache)
        return _Found(pipelines.take(order), step_s)

    def _best(self, found: Sequence[_Found]) -> _Found:
        """The best of them, each once."""
        pipelines = joined([each.pipelines for each in found])
        step_s = np.concatenate([each.step_s for each in found])
        order = np.argsort(step_s, kind="stable")
        keys = pipelines.take(order).identities()
        first = {key: place for place, key in reversed(list(enumerate(keys)))}
        order = order[sorted(first.values())][:CHUNKED_PRICED]
        return _Found(pipelines.take(order), step_s[order])

    def _moved(
        self, evaluator: PlanEvaluator, estimates: ChunkEstimates, best: _Found
    ) -> _Found:
        """With chunks of other sizes, while that helps."""
        limit_s = min(evaluator.limit_s, evaluator.best_s) * NEAR_ESTIMATE
        for _ in range(CHUNK_ROUNDS):
            before_s = best.best_s
            if not before_s < limit_s:
                break
            keys = [own.tobytes() for own in best.pipelines.shape_keys()]
            first = {key: row for row, key in reversed(list(enumerate(keys)))}
            some = np.array(sorted(first.values())[:MOVED_CHUNKS], np.int64)
            moved = neighbours(best.pipelines.take(some), self.layers)
            known = set(best.pipelines.identities())
            new = moved.take(np.array([key not in known for key in moved.identities()], np.bool_))
            best = self._best([best, self._priced(evaluator, estimates, new)])
            if best.best_s >= before_s:
                break
        return best


def _is_light(recompute: Recompute) -> bool:
    return bool(recompute.modules) and set(recompute.modules) <= LIGHT_MODULES
