"""Interleaved pipelines over several GPU types: one parallel config, chunks by speed.

A first look orders configs with their numbers of stages by about the least step they can have. For
the best of them every number of chunks and every recompute setting is estimated. The best of these
are laid out with a few chunk sizes, then in every order of types with all sizes worth a try, and
simulated on the lines of their stages. Sizes of the best are moved by a layer, and the evaluator
prices what is left as whole plans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from astra.search.evaluator import Evaluator
from astra.search.pipeline.chunk_shapes import Prospects, in_orders, prospects_of, shapes_of
from astra.search.pipeline.chunk_sizes import neighbours, sized
from astra.search.pipeline.chunked_stages import (
    ChunkedPipelines,
    ChunkedStages,
    ParallelConfig,
    joined,
)
from astra.search.pipeline.first_look import balanced_steps_s
from astra.search.pipeline.stage_lines import ALL_LAYERS, INSIDE, NO_RECOMPUTE, StagePricer
from astra.strategy.plans import Floats, Ints, Plans, code
from astra.strategy.recompute import Recompute
from astra.strategy.rules.registry import rules_for
from astra.strategy.segment_columns import (
    GlobalSetting,
    SegmentOption,
    option_columns,
    plans_from_stages,
)
from astra.strategy.segment_options import recompute_settings, settings_with_options
from astra.strategy.space import Space

Options = Mapping[GlobalSetting, Sequence[SegmentOption]]
LIGHT_MODULES = {"layernorm", "moe_act", "mla_up_proj"}  # take little to recompute
MAX_FIRST_RECOMPUTES = 6  # settings of the first look, where they were asked for
FIRST_VPP = 4  # chunks of a stage in the first look, at most
PROSPECTS = 48  # that are looked at together
MAX_PROSPECTS = 384  # in all
FIRST_SHAPES = 8  # of each prospect
MAX_SHAPES = 96  # of each prospect near the best
FEW_SHAPES = 2000  # of all prospects together, that are all tried
FEW_ORDERS = 6  # of the types of a shape, at first
MAX_SKELETONS = 32  # laid out in every order
MAX_REFINED = 64  # of those, with all chunk sizes worth a try
MAX_MOVED = 16  # of those, with chunk sizes moved by a layer
MAX_ROUNDS = 6  # of such moves
MAX_PRICED = 240  # pipelines that are priced as whole plans
SLACK = 1.05  # estimates that are so far above the best may still win
NEAR = 1.08  # and configs whose pipelines with a few chunk sizes are


@dataclass(frozen=True, slots=True)
class _Simulated:
    """Pipelines of one depth with their steps, best first."""

    stages: ChunkedStages
    pipelines: ChunkedPipelines
    step_s: Floats

    @property
    def best_s(self) -> float:
        return float(self.step_s[0]) if len(self.step_s) else np.inf


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

    def search(self, evaluator: Evaluator) -> float:
        """Hands the best pipelines to the evaluator; nothing bounds the others: 0."""
        if not len(self.vpps):
            return np.inf
        configs = self._configs(evaluator, self.options)
        found = self._simulated(evaluator, configs, np.inf)
        if self._is_short_of_memory(found):
            best_s = min((each.best_s for each in found), default=np.inf)
            every = {"cp": self.space.values("cp") or (1,)}
            wider = Space(self.workload, self.space.settings | every)
            known = dict(settings_with_options(wider, rules_for(self.task.runtime)))
            configs = self._configs(evaluator, known)
            configs = [each for each in configs if each.setting.cp > 1]
            found += self._simulated(evaluator, configs, best_s)
        self._price(evaluator, found)
        return 0.0

    def _is_short_of_memory(self, found: Sequence[_Simulated]) -> bool:
        """Whether the best pipeline recomputes much, or none fits: then context parallelism may
        help short sequences too. Models with experts have so many configs that it is not tried.
        """
        if "cp" in self.space.settings or self.task.model.moe is not None:
            return False
        best = min(found, key=lambda each: each.best_s, default=None)
        if best is None:
            return True
        recompute = self.recomputes[int(best.pipelines.recompute[0])]
        return recompute.mode.startswith("full") or not set(recompute.modules) <= LIGHT_MODULES

    def _simulated(
        self, evaluator: Evaluator, configs: Sequence[ParallelConfig], best_s: float
    ) -> list[_Simulated]:
        """The best pipelines of these configs, prospect by prospect."""
        if not configs:
            return []
        first = ChunkedStages(self.pricer, configs, self._first_recomputes())
        near = self.vpps[self.vpps <= FIRST_VPP]
        prospects = prospects_of(self.space, first, near if len(near) else self.vpps[:1])
        evaluator.charge(len(prospects))
        order = np.argsort(prospects.estimate_s, kind="stable")[:MAX_PROSPECTS]
        found: list[_Simulated] = []
        for start in range(0, len(order), PROSPECTS):
            limit_s = min(best_s, evaluator.limit_s, evaluator.best_s)
            some = prospects.take(order[start : start + PROSPECTS])
            if len(order) > PROSPECTS:
                some = some.take(some.estimate_s < limit_s * SLACK)
            if not len(some):
                break
            found += self._best_of(evaluator, configs, first, some, limit_s)
            best_s = min([best_s, *(each.best_s for each in found)])
        return found

    def _configs(self, evaluator: Evaluator, known: Options) -> list[ParallelConfig]:
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
            for setting, step_s in balanced_steps_s(self.pricer, every).items():
                if step_s < limit_s:
                    found.append(ParallelConfig(setting, tuple(every[setting])))
        return found

    def _first_recomputes(self) -> list[Recompute]:
        """For the first look: nothing, all that is light, and all layers; or what was asked for."""
        if "recompute" in self.space.settings:
            return self.recomputes[:MAX_FIRST_RECOMPUTES]
        light = [each for each in self.recomputes if each.modules]
        light = [each for each in light if set(each.modules) <= LIGHT_MODULES]
        light.sort(key=lambda each: len(each.modules))
        return [NO_RECOMPUTE, *light[-1:], ALL_LAYERS]

    def _best_of(
        self,
        evaluator: Evaluator,
        configs: Sequence[ParallelConfig],
        first: ChunkedStages,
        prospects: Prospects,
        limit_s: float,
    ) -> list[_Simulated]:
        """The best pipelines of some prospects, by the lines of their stages."""
        rows, own = np.unique(prospects.config, return_inverse=True)
        stages = ChunkedStages(
            self.pricer, [configs[row] for row in rows.tolist()], self.recomputes
        )
        own = own.reshape(-1)
        moved = (stages.first_option[own] - first.first_option[prospects.config])[:, np.newaxis]
        here = replace(prospects, config=own, options=prospects.options + moved)
        rough = self._rough(evaluator, stages, here, limit_s)
        limit_s = min([limit_s, *(each.best_s for each in rough)])
        tables = self._skeletons(rough, limit_s)
        found = [self._refined(evaluator, stages, table, limit_s) for table in tables]
        return [each for each in found if len(each.step_s)]

    def _rough(
        self, evaluator: Evaluator, stages: ChunkedStages, prospects: Prospects, limit_s: float
    ) -> list[_Simulated]:
        """The best shapes of every prospect with a few chunk sizes, and more shapes of the configs
        that come near the best.
        """
        shapes = shapes_of(stages, prospects, self.vpps)
        evaluator.charge(len(shapes.vpp))
        rank, config = shapes.ranks(), prospects.config[shapes.prospect]
        both = stages.fixed["forward_s"] + stages.fixed["backward_s"]
        layer_s = both[INSIDE, :, 1:] @ stages.mean_kinds
        config_s = np.zeros(len(stages.configs))
        found = []
        for low, high in ((0, FIRST_SHAPES), (FIRST_SHAPES, MAX_SHAPES)):
            some = (rank >= low) & (rank < high) & (config_s[config] < limit_s * NEAR)
            if len(rank) > FEW_SHAPES:
                some &= shapes.estimate_s < limit_s * SLACK
            if not low:
                config_s[:] = np.inf
            for table in in_orders(prospects, shapes.take(some), layer_s, FEW_ORDERS):
                here, _ = sized(stages, table, every=False)
                evaluator.charge(len(here))
                step_s = stages.steps_s(here)
                np.minimum.at(config_s, here.config, step_s)
                found.append(_best(stages, here, step_s))
            limit_s = min(limit_s, float(config_s.min()))
        return found

    def _skeletons(self, rough: Sequence[_Simulated], limit_s: float) -> list[ChunkedPipelines]:
        """The best pipelines with their types in every order, sizes open; a table for a depth."""
        cut_s = sorted(float(s) for each in rough for s in each.step_s[:MAX_SKELETONS])
        cut_s = [s for s in cut_s if s < limit_s * NEAR][: 4 * MAX_SKELETONS]
        chosen: dict[bytes, tuple[ChunkedPipelines, int]] = {}
        for each in rough:
            rows = np.flatnonzero(each.step_s <= (cut_s[-1] if cut_s else -np.inf))
            for row in rows.tolist():
                chosen.setdefault(_skeleton_key(each.pipelines, row), (each.pipelines, row))
        found: dict[int, list[ChunkedPipelines]] = {}
        for pipelines, row in list(chosen.values())[: 2 * MAX_SKELETONS]:
            line = pipelines.options[row]
            options, counts = np.unique(line, return_counts=True)
            lines = [
                np.repeat(options[list(order)], counts[list(order)])
                for order in permutations(range(len(options)))
            ]
            copies = pipelines.take(np.full(len(lines), row))
            found.setdefault(len(line), []).append(replace(copies, options=np.stack(lines)))
        return [joined(tables) for tables in found.values()]

    def _refined(
        self, evaluator: Evaluator, stages: ChunkedStages, table: ChunkedPipelines, limit_s: float
    ) -> _Simulated:
        """The best chunk sizes of pipelines of one depth."""
        rough, origin = sized(stages, table, every=False)
        rough_s = stages.steps_s(rough)
        order = np.argsort(rough_s, kind="stable")
        order = order[rough_s[order] < limit_s * NEAR]
        rows = list(dict.fromkeys(origin[order].tolist()))[:MAX_REFINED]
        fine, _ = sized(stages, table.take(np.array(rows, np.int64)), every=True)
        evaluator.charge(len(rough) + len(fine))
        both_s = np.concatenate([rough_s, stages.steps_s(fine)])
        found = _best(stages, joined([rough, fine]), both_s)
        for _ in range(MAX_ROUNDS):
            before_s = found.best_s
            if not before_s < limit_s * SLACK:
                break
            moved = neighbours(found.pipelines.take(slice(MAX_MOVED)), self.layers)
            known = set(found.pipelines.identities())
            new = moved.take(np.array([key not in known for key in moved.identities()], np.bool_))
            evaluator.charge(len(new))
            every_s = np.concatenate([found.step_s, stages.steps_s(new)])
            found = _best(stages, joined([found.pipelines, new]), every_s)
            if found.best_s >= before_s:
                break
        return found

    def _price(self, evaluator: Evaluator, found: Sequence[_Simulated]) -> None:
        """The best of all as whole plans."""
        every = np.concatenate([np.zeros(0), *(each.step_s for each in found)])
        if not len(every):
            return
        limit_s = np.sort(every)[:MAX_PRICED][-1]
        for each in found:
            some = np.flatnonzero(each.step_s <= limit_s)
            if len(some):
                evaluator.steps_s(self._plans(each.stages, each.pipelines.take(some)))

    def _plans(self, stages: ChunkedStages, pipelines: ChunkedPipelines) -> Plans:
        """Pipelines as a table of plans, a slot for every stage."""
        degrees = option_columns([option for _, option in stages.pairs])
        chunks, shape = pipelines.chunk_layers, pipelines.options.T.shape
        again = [stages.recomputes[row] for row in pipelines.recompute.tolist()]
        slots = {name: column[pipelines.options.T] for name, column in degrees.items()}
        slots |= {
            "stages": np.ones(shape, np.int64),
            "layers": chunks.sum(axis=1).T,
            "recompute": _wide([code("recompute", each.mode) for each in again], shape),
            "recompute_layers": _wide([each.layers for each in again], shape),
            "recompute_modules": _wide([each.module_bits for each in again], shape),
        }
        lists: dict[tuple[int, ...], int] = {}
        listed = np.full(len(pipelines), -1, np.int64)
        for row in np.flatnonzero(pipelines.short_first + pipelines.short_last).tolist():
            flat = tuple(chunks[row, : pipelines.vpp[row]].reshape(-1).tolist())
            listed[row] = lists.setdefault(flat, len(lists))
        other = {
            "vpp": pipelines.vpp,
            "microbatch_group": stages.groups(pipelines.stages, pipelines.config),
            "chunking": listed,
            "overlap_p2p": np.array(True),
            "schedule": np.array(code("schedule", "interleaved")),
        }
        settings = [config.setting for config in stages.configs]
        return plans_from_stages(
            self.workload, settings, pipelines.config, slots, other, tuple(lists)
        )


def _wide(values: Sequence[int], shape: tuple[int, ...]) -> Ints:
    return np.broadcast_to(np.array(values, np.int64), shape)


def _skeleton_key(pipelines: ChunkedPipelines, row: int) -> bytes:
    """The same for all orders of types and all chunk sizes."""
    whole = [pipelines.config[row], pipelines.recompute[row], pipelines.vpp[row]]
    return np.concatenate([whole, np.sort(pipelines.options[row])]).tobytes()


def _best(stages: ChunkedStages, pipelines: ChunkedPipelines, step_s: Floats) -> _Simulated:
    """The best of them, each once."""
    order = np.argsort(step_s, kind="stable")
    order = order[np.isfinite(step_s[order])][: 4 * MAX_PRICED]
    keys = pipelines.take(order).identities()
    first = {key: place for place, key in reversed(list(enumerate(keys)))}
    order = order[sorted(first.values())][:MAX_PRICED]
    return _Simulated(stages, pipelines.take(order), step_s[order])
