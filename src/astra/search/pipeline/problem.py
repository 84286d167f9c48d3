"""One pipeline over several GPU types, 1F1B: the best found, and what none can beat."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np

from astra.search.evaluator import PlanEvaluator
from astra.search.pipeline.bound import SettingBound
from astra.search.pipeline.constants import (
    MODULE_SETS,
    MOVED,
    MOVED_PER_SETTING,
    NEAR_BEST,
    PRICED,
    PRICED_TABLES,
    RECOMPUTED_FIRST,
    RECOMPUTED_SETTINGS,
    RECOMPUTES_NEXT,
    SAME_RECOMPUTE,
)
from astra.search.pipeline.construct import Charge, Constructor, best_first, skeleton_limits
from astra.search.pipeline.estimate import PipelineCandidate, to_plans
from astra.search.pipeline.first_look import FirstLook, balanced_steps_s, first_look
from astra.search.pipeline.improve import improved, layers_moved
from astra.search.pipeline.listing import are_few, listed
from astra.search.pipeline.stage_lines import (
    ALL_LAYERS,
    NO_RECOMPUTE,
    PLACES,
    StageLines,
    StagePricer,
)
from astra.search.pipeline.stage_table import MAX_GROUP_LAYERS, StageTable
from astra.strategy.recompute import Recompute
from astra.strategy.rules.registry import rules_for
from astra.strategy.segment_columns import GlobalSetting, SegmentOption
from astra.strategy.segment_options import recompute_settings, settings_with_options
from astra.strategy.space import Space

Priced = tuple[float, PipelineCandidate]  # the step as the evaluator has it


class MixedPipeline:
    """Pipelines over two types or more, each stage one chunk."""

    def __init__(self, space: Space, pricer: StagePricer) -> None:
        self.space, self.pricer, self.workload = space, pricer, space.workload
        self.limits = skeleton_limits(space.workload)
        self.recomputes = recompute_settings(space)
        self.modules = [each for each in self.recomputes if each and each.mode == "selective"]
        self.options: dict[GlobalSetting, list[SegmentOption]] = {}
        rules = rules_for(self.workload.task.runtime)
        for setting, options in settings_with_options(space, rules):
            if len({option.pool for option in options}) >= self.limits.types:
                self.options[setting] = options

    def search(self, evaluator: PlanEvaluator, breadth: int = 1) -> float:
        """Hands the best pipelines to the evaluator; others may be faster: 0, or infinity where
        there is none. `least_s` says by how much at most. [s]

        `breadth`: times as much is looked at, at every step.
        """
        if not self.options:
            return np.inf
        _Search(self, evaluator, breadth).run()
        return 0.0

    @property
    def allowed_types(self) -> set[int]:
        """The types that the rules allow in a pipeline over several."""
        return {option.pool for options in self.options.values() for option in options}

    def types_with_room(self) -> set[int]:
        """The types of which a stage can hold one layer."""
        balanced_steps_s(self.pricer, self.options)  # prices all options at once
        types, found = self.allowed_types, set[int]()
        one = self.pricer.layers.sizes == 1
        for setting, recompute in product(self.options, self.first_recomputes()):
            options = [each for each in self.options[setting] if each.pool not in found]
            if found != types and options:
                lines = self.lines_with(setting, options, recompute)
                table = StageTable(self.pricer, setting, options, lines, recompute)
                for place in PLACES:
                    fits = np.isfinite(table.at(place, 1).stage_s[:, one]).any(axis=1)
                    found |= set(table.pool[fits].tolist())
        return found

    def lines_with(
        self, setting: GlobalSetting, options: Sequence[SegmentOption], recompute: Recompute | None
    ) -> StageLines:
        """Of some options of a setting: with nothing and with all layers recomputed, or with a set
        of modules.
        """
        pairs = [(setting, option) for option in options]
        if recompute is None or recompute.mode != "selective":
            return self.pricer.lines(pairs)
        return self.pricer.lines(pairs, [recompute])

    def least_s(self, best_s: float, charge: Charge) -> float:
        """What no pipeline of any setting can beat, `best_s` where nothing more is known. [s]"""
        groups = [each.layers if each else MAX_GROUP_LAYERS for each in self.recomputes]
        for setting, options in self.options.items():
            charge(0)
            lines = self.lines_with(setting, options, None)
            own = setting, options, lines, self.pricer.layers, max([1, *groups])
            best_s = SettingBound(*own).least_s(best_s)
        return best_s

    def first_recomputes(self) -> list[Recompute | None]:
        """What is tried in every setting."""
        if "recompute" in self.space.settings:
            return self.recomputes
        if self.workload.task.runtime == "megatron":
            return [NO_RECOMPUTE, ALL_LAYERS]
        return [None]


class _Search:
    """What one search has in hand."""

    def __init__(self, problem: MixedPipeline, evaluator: PlanEvaluator, breadth: int) -> None:
        self.problem, self.evaluator, self.breadth = problem, evaluator, breadth
        self.pricer, self.options = problem.pricer, problem.options
        self.recomputes, self.limits, self.charge = (
            problem.recomputes,
            problem.limits,
            evaluator.charge,
        )
        self.found: list[PipelineCandidate] = []

    def run(self) -> None:
        self.charge(0)
        every = list(self.options.values())
        if are_few(every, len(self.recomputes), self.limits, self.pricer.layers.layers):
            self._list_all()
        else:
            self._look_at_all()
        self._move_layers(self._priced(self.found))

    @property
    def limit_s(self) -> float:
        """What a step must beat, as far as stage tables tell."""
        best_s = min((each.step_s for each in self.found), default=np.inf)
        return min(self.evaluator.limit_s, self.evaluator.best_s, best_s)

    def _look_at_all(self) -> None:
        """The settings that a first look finds most promising come first."""
        balanced_s = balanced_steps_s(self.pricer, self.options)
        looks = [
            self._look(setting, options, recompute)
            for setting, options in self.options.items()
            for recompute in self.problem.first_recomputes()
            if balanced_s[setting] * (1 + 1 / setting.micro_batches) < self.limit_s
        ]
        self._construct_all(looks)
        self._recompute_otherwise(looks)

    def _construct_all(self, looks: Iterable[FirstLook]) -> None:
        for look in sorted(looks, key=lambda each: each.step_s):
            if look.step_s < self.limit_s:
                self._construct(look)

    def _look(
        self,
        setting: GlobalSetting,
        options: list[SegmentOption],
        recompute: Recompute | None,
    ) -> FirstLook:
        self.charge(0)
        lines = self.problem.lines_with(setting, options, recompute)
        if recompute in (NO_RECOMPUTE, ALL_LAYERS):
            lines = lines.with_recompute(0 if recompute == NO_RECOMPUTE else 1)
        own = setting, options, lines, self.pricer.layers, recompute
        return first_look(*own, self.limit_s, self.breadth)

    def _construct(self, look: FirstLook) -> None:
        """The best pipelines of one setting."""
        if len({option.pool for option in look.options}) < self.limits.types:
            return
        self.charge(0)
        own = look.setting, look.options
        lines = self.problem.lines_with(*own, look.recompute)
        table = StageTable(self.pricer, *own, lines, look.recompute)
        constructor = Constructor(table, self.limits, self.charge)
        if constructor.find_paces(look.pace_s, self.limit_s):
            self.found += improved(constructor, self.limit_s, self.breadth)

    def _recompute_otherwise(self, looks: Iterable[FirstLook]) -> None:
        """The most promising settings with one recompute setting for all stages: the best few with
        all that are worth a look, the next with those that were best there.
        """
        others = [each for each in self.recomputes if each not in self.problem.first_recomputes()]
        promising: dict[GlobalSetting, list[SegmentOption]] = {}
        for each in best_first(self.found):
            promising.setdefault(each.table.setting, each.table.options)
        for look in sorted(looks, key=lambda each: each.step_s):
            if look.step_s < self.limit_s:
                promising.setdefault(look.setting, look.options)
        every = list(promising.items())
        first, next_ = (n * self.breadth for n in (RECOMPUTED_FIRST, RECOMPUTED_SETTINGS))
        for setting, options in every[:first]:
            self._construct_all(self._worth_a_look(setting, options, others))
        best = [each.table.recompute for each in best_first(self.found)]
        best = [each for each in dict.fromkeys(best) if each in others][:RECOMPUTES_NEXT]
        for setting, options in every[first:next_]:
            self._construct_all(self._look(setting, options, each) for each in best)

    def _worth_a_look(
        self,
        setting: GlobalSetting,
        options: list[SegmentOption],
        recomputes: Sequence[Recompute | None],
    ) -> list[FirstLook]:
        """With these recompute settings; of sets of modules some that save little to much, each
        taking less time than all that save more.
        """
        self.charge(0)
        if self.problem.modules:  # priced all at once
            self.pricer.lines([(setting, option) for option in options], self.problem.modules)
        looks = [self._look(setting, options, recompute) for recompute in recomputes]
        modules = [look for look in looks if look.recompute in self.problem.modules]
        front: list[FirstLook] = []
        for look in sorted(modules, key=lambda each: (each.saved_bytes, each.recompute_s)):
            if not front or look.recompute_s < front[-1].recompute_s * (1 - SAME_RECOMPUTE):
                front.append(look)
        spread = np.linspace(0, len(front) - 1, min(len(front), MODULE_SETS * self.breadth))
        picked = [front[row] for row in np.unique(spread.round().astype(np.int64)).tolist()]
        return picked + [look for look in looks if look not in modules]

    def _list_all(self) -> None:
        for setting, options in self.options.items():
            for recompute in self.recomputes:
                lines = self.problem.lines_with(setting, options, recompute)
                table = StageTable(self.pricer, setting, options, lines, recompute)
                limit_s = self.evaluator.limit_s
                self.found += listed(table, self.limits, limit_s, self.charge)

    def _priced(self, candidates: Sequence[PipelineCandidate]) -> list[Priced]:
        """The most promising as the evaluator prices them, the fastest first; more where none of
        them is allowed.
        """
        ranked, found = best_first(candidates), list[Priced]()
        size = PRICED * self.breadth
        for start in range(0, min(len(ranked), size * PRICED_TABLES), size):
            some = ranked[start : start + size]
            steps_s = self.evaluator.steps_s(to_plans(self.problem.workload, some))
            found += [
                (float(step_s), each)
                for step_s, each in zip(steps_s, some, strict=True)
                if np.isfinite(step_s)
            ]
            if found:
                break
        return sorted(found, key=lambda pair: pair[0])

    def _move_layers(self, priced: Sequence[Priced]) -> None:
        """Layers moved between stages of the best plans, a few of each global setting."""
        best: dict[tuple[object, ...], PipelineCandidate] = {}
        count: Counter[GlobalSetting] = Counter()
        for step_s, each in priced:
            is_new = each.skeleton_key not in best and count[each.table.setting] < MOVED_PER_SETTING
            if is_new and step_s < self.limit_s * NEAR_BEST and len(best) < MOVED * self.breadth:
                best[each.skeleton_key] = each
                count[each.table.setting] += 1
        self._priced([to for each in best.values() for to in layers_moved(each, self.charge)])
