"""One pipeline over several GPU types, 1F1B: the best found, and what none can beat."""

from collections.abc import Iterable, Sequence

import numpy as np

from astra.search.evaluator import PlanEvaluator
from astra.search.pipeline.bound import setting_bound_s
from astra.search.pipeline.constants import (
    MODULE_SETS,
    MOVED,
    MOVED_PER_SETTING,
    MOVED_STAGES,
    PRICED,
    PRICED_TABLES,
    RECOMPUTED_FIRST,
    RECOMPUTED_SETTINGS,
    RECOMPUTES_NEXT,
    SAME_RECOMPUTE,
)
from astra.search.pipeline.construct import Constructor, best_first, skeleton_limits
from astra.search.pipeline.estimate import PipelineCandidate, to_plans
from astra.search.pipeline.first_look import FirstLook, first_look
from astra.search.pipeline.improve import distinct_skeletons, improved, layers_moved
from astra.search.pipeline.listing import are_few, listed
from astra.search.pipeline.plan_columns import GlobalSetting, SegmentOption
from astra.search.pipeline.settings import recompute_settings, settings_with_options
from astra.search.pipeline.stage_lines import (
    ALL_LAYERS,
    NO_RECOMPUTE,
    StageLines,
    StagePricer,
)
from astra.search.pipeline.stage_table import MAX_GROUP_LAYERS, StageTable
from astra.strategy.recompute import Recompute
from astra.strategy.rules.registry import rules_for
from astra.strategy.space import Space

Priced = tuple[float, PipelineCandidate]  # the step as the evaluator has it


class MixedPipeline:
    """Pipelines over two types or more, each stage one chunk."""

    def __init__(self, space: Space) -> None:
        self.space = space

    def search(self, evaluator: PlanEvaluator) -> float:
        """Hands the best pipelines to the evaluator; no pipeline has a shorter step than what
        comes back, 0 where nothing is known of that, infinity where there is none. [s]
        """
        return _Search(self.space, evaluator).run()


class _Search:
    """What one search has in hand."""

    def __init__(self, space: Space, evaluator: PlanEvaluator) -> None:
        self.space, self.evaluator, self.workload = space, evaluator, space.workload
        self.pricer = StagePricer(
            space.workload, evaluator.stack, evaluator.margin, evaluator.cache
        )
        self.limits = skeleton_limits(space.workload)
        self.recomputes = recompute_settings(space)
        self.modules = [each for each in self.recomputes if each and each.mode == "selective"]
        self.options: dict[GlobalSetting, list[SegmentOption]] = {}
        self.lines: dict[GlobalSetting, StageLines] = {}
        self.found: list[PipelineCandidate] = []

    def run(self) -> float:
        rules = rules_for(self.workload.task.runtime)
        for setting, options in settings_with_options(self.space, rules):
            if len({option.pool for option in options}) >= self.limits.types:
                self.options[setting] = options
        if not self.options:
            return np.inf
        self._price_stages()
        every = list(self.options.values())
        if are_few(every, len(self.recomputes), self.limits, self.pricer.layers.layers):
            self._list_all()
        else:
            self._look_at_all()
        self._move_layers(self._priced(self.found))
        return self._bound_s()

    def _bound_s(self) -> float:
        """What no pipeline of any setting can beat, beyond the limit or not. [s]"""
        best_s = self.evaluator.limit_s
        if not np.isfinite(best_s):
            return 0.0
        single = [each for each in self.modules if len(each.modules) == 1]
        asked = [each.layers for each in self.recomputes if each and each.mode == "full:uniform"]
        least_s, group = best_s, max([MAX_GROUP_LAYERS, *asked])
        for setting, options in self.options.items():
            self.evaluator.charge(len(options))
            lines = self.lines[setting]
            if single:
                pairs = [(setting, option) for option in options]
                lines = lines.with_more(*self.pricer.module_lines(pairs, single))
            own = setting, options, lines, self.pricer.layers
            least_s = min(least_s, setting_bound_s(*own, least_s, group))
        return least_s

    @property
    def limit_s(self) -> float:
        """What a step must beat, as far as stage tables tell."""
        best_s = min((each.step_s for each in self.found), default=np.inf)
        return min(self.evaluator.limit_s, best_s)

    def _price_stages(self) -> None:
        """Lines of all options, with nothing and with all layers recomputed."""
        start = 0
        pairs = [
            (setting, option) for setting, options in self.options.items() for option in options
        ]
        self.evaluator.charge(len(pairs))
        whole = self.pricer.lines(pairs)
        for setting, options in self.options.items():
            self.lines[setting] = whole.take(slice(start, start + len(options)))
            start += len(options)

    def _lines_with(
        self, setting: GlobalSetting, options: Sequence[SegmentOption], recompute: Recompute | None
    ) -> StageLines:
        """Of some options of a setting: with nothing and with all layers recomputed, or with a set
        of modules.
        """
        rows = {option: row for row, option in enumerate(self.options[setting])}
        lines = self.lines[setting].take(np.array([rows[option] for option in options], np.int64))
        if recompute is None or recompute.mode != "selective":
            return lines
        pairs = [(setting, option) for option in options]
        again, working = self.pricer.module_lines(pairs, self.modules)
        row = self.modules.index(recompute)
        again = {name: each[row : row + 1] for name, each in again.items()}
        return StageLines(lines.fixed, again, working[row : row + 1])

    def _first_recomputes(self) -> list[Recompute | None]:
        """What is tried in every setting."""
        if "recompute" in self.space.settings:
            return self.recomputes
        if self.workload.task.runtime == "megatron":
            return [NO_RECOMPUTE, ALL_LAYERS]
        return [None]

    def _look_at_all(self) -> None:
        """The settings that a first look finds most promising come first."""
        looks = [
            self._look(setting, options, recompute)
            for setting, options in self.options.items()
            for recompute in self._first_recomputes()
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
        lines = self._lines_with(setting, options, recompute)
        if recompute in (NO_RECOMPUTE, ALL_LAYERS):
            row = 0 if recompute == NO_RECOMPUTE else 1
            lines = lines.take(slice(None), slice(row, row + 1))
        return first_look(setting, options, lines, self.pricer.layers, recompute)

    def _construct(self, look: FirstLook) -> None:
        """The best pipelines of one setting."""
        if len({option.pool for option in look.options}) < self.limits.types:
            return
        self.evaluator.charge(len(look.options))
        own = look.setting, look.options
        lines = self._lines_with(*own, look.recompute)
        table = StageTable(self.pricer, *own, lines, look.recompute)
        constructor = Constructor(table, self.limits, self.evaluator.charge)
        if constructor.find_paces(look.pace_s, self.limit_s):
            self.found += improved(constructor, self.limit_s)

    def _recompute_otherwise(self, looks: Iterable[FirstLook]) -> None:
        """The most promising settings with one recompute setting for all stages: the best few with
        all that are worth a look, the next with those that were best there.
        """
        others = [each for each in self.recomputes if each not in self._first_recomputes()]
        promising: dict[GlobalSetting, list[SegmentOption]] = {}
        for each in best_first(self.found):
            promising.setdefault(each.table.setting, each.table.options)
        for look in sorted(looks, key=lambda each: each.step_s):
            if look.step_s < self.limit_s:
                promising.setdefault(look.setting, look.options)
        every = list(promising.items())
        for setting, options in every[:RECOMPUTED_FIRST]:
            self._construct_all(self._worth_a_look(setting, options, others))
        best = [each.table.recompute for each in best_first(self.found)]
        best = [each for each in dict.fromkeys(best) if each in others][:RECOMPUTES_NEXT]
        for setting, options in every[RECOMPUTED_FIRST:RECOMPUTED_SETTINGS]:
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
        self.evaluator.charge(len(options) * len(recomputes))
        looks = [self._look(setting, options, recompute) for recompute in recomputes]
        modules = [look for look in looks if look.recompute in self.modules]
        front: list[FirstLook] = []
        for look in sorted(modules, key=lambda each: (each.saved_bytes, each.recompute_s)):
            if not front or look.recompute_s < front[-1].recompute_s * (1 - SAME_RECOMPUTE):
                front.append(look)
        spread = np.linspace(0, len(front) - 1, min(len(front), MODULE_SETS))
        picked = [front[row] for row in np.unique(spread.round().astype(np.int64)).tolist()]
        return picked + [look for look in looks if look not in modules]

    def _list_all(self) -> None:
        for setting, options in self.options.items():
            for recompute in self.recomputes:
                lines = self._lines_with(setting, options, recompute)
                table = StageTable(self.pricer, setting, options, lines, recompute)
                limit_s = self.evaluator.limit_s
                self.found += listed(table, self.limits, limit_s, self.evaluator.charge)

    def _priced(self, candidates: Sequence[PipelineCandidate]) -> list[Priced]:
        """The most promising as the evaluator prices them, the fastest first; more where none of
        them is allowed.
        """
        ranked, found = best_first(candidates), list[Priced]()
        for start in range(0, min(len(ranked), PRICED * PRICED_TABLES), PRICED):
            some = ranked[start : start + PRICED]
            steps_s = self.evaluator.steps_s(to_plans(self.workload, some))
            found += [
                (float(step_s), each)
                for step_s, each in zip(steps_s, some, strict=True)
                if np.isfinite(step_s)
            ]
            if found:
                break
        return sorted(found, key=lambda pair: pair[0])

    def _move_layers(self, priced: Sequence[Priced]) -> None:
        """Layers moved between stages of the best plans."""
        walked: list[PipelineCandidate] = []
        ranked = distinct_skeletons([candidate for _, candidate in priced], MOVED_PER_SETTING)
        stages = np.cumsum([len(each.option) for each in ranked])
        for row, each in enumerate(ranked):
            if row < MOVED or stages[row] <= MOVED_STAGES:
                walked += layers_moved(each, self.evaluator.charge)
        self._priced(walked)
