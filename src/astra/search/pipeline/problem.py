"""One pipeline over several GPU types, 1F1B: the best found, and what none can beat."""

from collections.abc import Sequence

import numpy as np

from astra.search.evaluator import Evaluator
from astra.search.pipeline.constants import (
    MOVED,
    PRICED,
    PRICED_TABLES,
    RECOMPUTE_SETTINGS,
    RECOMPUTED_SETTINGS,
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
from astra.search.pipeline.stage_table import StageTable
from astra.strategy.recompute import Recompute
from astra.strategy.rules.registry import rules_for
from astra.strategy.space import Space

Priced = tuple[float, PipelineCandidate]  # the step as the evaluator has it


class MixedPipeline:
    """Pipelines over two types or more, each stage one chunk."""

    def __init__(self, space: Space) -> None:
        self.space = space

    def search(self, evaluator: Evaluator) -> float:
        """Hands the best pipelines to the evaluator; no pipeline has a shorter step than what
        comes back, 0 where nothing is known of that, infinity where there is none. [s]
        """
        return _Search(self.space, evaluator).run()


class _Search:
    """What one search has in hand."""

    def __init__(self, space: Space, evaluator: Evaluator) -> None:
        self.space, self.evaluator, self.workload = space, evaluator, space.workload
        self.pricer = StagePricer(
            space.workload, evaluator.stack, evaluator.margin, evaluator.cache
        )
        self.limits = skeleton_limits(space.workload)
        self.recomputes = recompute_settings(space)
        self.settings: list[tuple[GlobalSetting, list[SegmentOption]]] = []
        self.lines: dict[GlobalSetting, StageLines] = {}
        self.found: list[PipelineCandidate] = []

    def run(self) -> float:
        rules = rules_for(self.workload.task.runtime)
        for setting, options in settings_with_options(self.space, rules):
            if len({option.pool for option in options}) >= self.limits.types:
                self.settings.append((setting, options))
        if not self.settings:
            return np.inf
        self._price_stages()
        every = [options for _, options in self.settings]
        if are_few(every, len(self.recomputes), self.limits, self.pricer.layers.layers):
            self._list_all()
        else:
            self._look_at_all()
            self._recompute_otherwise()
        self._move_layers(self._priced(self.found))
        return 0.0

    @property
    def limit_s(self) -> float:
        """What a step must beat, as far as stage tables tell."""
        best_s = min((each.step_s for each in self.found), default=np.inf)
        return min(self.evaluator.limit_s, best_s)

    def _price_stages(self) -> None:
        """Lines of all options, with nothing and with all layers recomputed."""
        start = 0
        pairs = [(setting, option) for setting, options in self.settings for option in options]
        self.evaluator.charge(len(pairs))
        whole = self.pricer.lines(pairs)
        for setting, options in self.settings:
            self.lines[setting] = whole.take(slice(start, start + len(options)))
            start += len(options)

    def _lines_with(
        self, setting: GlobalSetting, options: Sequence[SegmentOption], recompute: Recompute | None
    ) -> StageLines:
        """Of some options of a setting: with nothing and with all layers recomputed, or with a set
        of modules.
        """
        every = dict(self.settings)[setting]
        if recompute is not None and recompute.mode == "selective":
            return self.pricer.lines([(setting, option) for option in options], [recompute])
        rows = {option: row for row, option in enumerate(every)}
        return self.lines[setting].take(np.array([rows[option] for option in options], np.int64))

    def _first_recomputes(self) -> list[Recompute | None]:
        """What is tried in every setting."""
        if "recompute" in self.space.settings:
            return self.recomputes
        if self.workload.task.runtime == "megatron":
            return [NO_RECOMPUTE, ALL_LAYERS]
        return [None]

    def _look_at_all(self) -> None:
        """The settings that a first look finds most promising come first."""
        looks: list[tuple[float, int, int, FirstLook]] = []
        recomputes = self._first_recomputes()
        for row, (setting, options) in enumerate(self.settings):
            for place, recompute in enumerate(recomputes):
                look = self._look(setting, options, recompute)
                looks.append((look.step_s, row, place, look))
        for _, row, place, look in sorted(looks, key=lambda each: each[:3]):
            setting, options = self.settings[row]
            some = [options[at] for at in look.options.tolist()]
            if look.step_s < self.limit_s:
                self._construct(setting, some, recomputes[place], look.pace_s)

    def _look(
        self, setting: GlobalSetting, options: list[SegmentOption], recompute: Recompute | None
    ) -> FirstLook:
        lines = self._lines_with(setting, options, recompute)
        if recompute in (NO_RECOMPUTE, ALL_LAYERS):
            row = 0 if recompute == NO_RECOMPUTE else 1
            lines = lines.take(slice(None), slice(row, row + 1))
        return first_look(setting, options, lines, self.pricer.layers)

    def _construct(
        self,
        setting: GlobalSetting,
        options: list[SegmentOption],
        recompute: Recompute | None,
        pace_s: float,
    ) -> None:
        """The best pipelines of one setting."""
        if len({option.pool for option in options}) < self.limits.types:
            return
        self.evaluator.charge(len(options))
        lines = self._lines_with(setting, options, recompute)
        table = StageTable(self.pricer, setting, options, lines, recompute)
        constructor = Constructor(table, self.limits, self.evaluator.charge)
        if constructor.find_paces(pace_s, self.limit_s):
            self.found += improved(constructor, self.limit_s)

    def _recompute_otherwise(self) -> None:
        """The best settings with one recompute setting for all stages."""
        others = [each for each in self.recomputes if each not in self._first_recomputes()]
        best: dict[GlobalSetting, StageTable] = {}
        for each in best_first(self.found):
            best.setdefault(each.table.setting, each.table)
        for setting, table in list(best.items())[:RECOMPUTED_SETTINGS]:
            looks = [self._look(setting, table.options, recompute) for recompute in others]
            order = np.argsort([look.step_s for look in looks], kind="stable")
            for row in order[:RECOMPUTE_SETTINGS].tolist():
                if looks[row].step_s < self.limit_s:
                    self._construct(setting, table.options, others[row], looks[row].pace_s)

    def _list_all(self) -> None:
        for setting, options in self.settings:
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
        for each in distinct_skeletons([candidate for _, candidate in priced])[:MOVED]:
            walked += layers_moved(each, self.evaluator.charge)
        self._priced(walked)
