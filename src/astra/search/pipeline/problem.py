"""One pipeline over several GPU types, 1F1B: the best found, and what none can beat."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, product

import numpy as np

from astra.cost.stage_lines import ALL_LAYERS, NO_RECOMPUTE, PLACES, StagePricer
from astra.cost.stage_table import MAX_GROUP_LAYERS, StageTable
from astra.search.evaluator import Evaluator
from astra.search.pipeline.bound import SettingBound
from astra.search.pipeline.construct import (
    NEAR_BEST,
    PACES,
    Charge,
    Constructor,
    best_first,
    skeleton_limits,
)
from astra.search.pipeline.estimate import PipelineCandidate, to_plans
from astra.search.pipeline.first_look import FirstLook, first_look, settings_in_time
from astra.search.pipeline.improve import improved, layers_moved
from astra.strategy.recompute import Recompute
from astra.strategy.rules.registry import rules_for
from astra.strategy.segment_columns import GlobalSetting, SegmentOption
from astra.strategy.segment_options import recompute_settings, settings_with_options
from astra.strategy.space import Space

RECOMPUTED_SETTINGS = 4  # global settings, the best so far, looked at with all recompute settings
RECOMPUTED = 12  # of these that are constructed, those of the least steps at first look
PRICED = 200  # plans that the evaluator prices at a time
PRICED_TABLES = 8  # of them at most, while none is allowed
MOVED = 16  # plans between whose stages layers are moved, at most
MOVED_PER_SETTING = 4  # of one global setting

Options = Mapping[GlobalSetting, list[SegmentOption]]
Priced = tuple[float, PipelineCandidate]  # the step as the evaluator has it


class MixedPipeline:
    """Pipelines over two types or more, each stage one chunk."""

    def __init__(self, space: Space, pricer: StagePricer) -> None:
        self.space, self.pricer, self.workload = space, pricer, space.workload
        self.skeleton_limits = skeleton_limits(space.workload)
        self.recomputes = recompute_settings(space)
        rules = rules_for(self.workload.task.runtime)
        self.every_option = dict(settings_with_options(space, rules))  # of one type too
        pricer.check()
        self.options = {
            setting: options
            for setting, options in self.every_option.items()
            if len({option.pool for option in options}) >= self.skeleton_limits.types
        }

    def search(self, evaluator: Evaluator, breadth: int = 1) -> None:
        """Hands the best pipelines to the evaluator; `least_s` says how much faster others may be.

        `breadth`: times as much is looked at, at every step.
        """
        if self.options:
            _Search(self, evaluator, breadth).run()

    @property
    def allowed_types(self) -> set[int]:
        """The types that the rules allow in a pipeline over several."""
        return {option.pool for options in self.options.values() for option in options}

    def types_with_room(self) -> set[int]:
        """The types of which a stage can hold one layer."""
        if self.options:  # all are priced at once
            self.pricer.lines([(setting, o) for setting, own in self.options.items() for o in own])
        found, one = set[int](), self.pricer.layers.sizes == 1
        for setting, recompute in product(self.options, self.first_recomputes()):
            options = [each for each in self.options[setting] if each.pool not in found]
            if options:
                table = StageTable(self.pricer, setting, options, recompute)
                for place in PLACES:
                    fits = np.isfinite(table.at(place, 1).stage_s[:, one]).any(axis=1)
                    found |= set(table.pool[fits].tolist())
        return found

    def least_s(self, best_s: float, charge: Charge) -> float:
        """What no pipeline of any setting can beat, `best_s` where nothing more is known. [s]"""
        groups = [each.layers if each else MAX_GROUP_LAYERS for each in self.recomputes]
        for setting, options in self.options.items():
            charge(0)
            best_s = SettingBound(self.pricer, setting, options, max(1, *groups)).least_s(best_s)
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

    def __init__(self, problem: MixedPipeline, evaluator: Evaluator, breadth: int) -> None:
        self.problem, self.evaluator, self.breadth = problem, evaluator, breadth
        self.pricer, self.charge = problem.pricer, evaluator.charge
        self.skeleton_limits = problem.skeleton_limits
        self.found: list[PipelineCandidate] = []
        self.least_found_s = np.inf  # of their steps, as the stage tables have it

    def run(self) -> None:
        """All settings; the best, or all where nothing fits yet, with one recompute setting for all
        stages; then layers moved in the best plans.
        """
        self.charge(0)
        first, options = self.problem.first_recomputes(), self.problem.options
        self._construct(self._looks(options, first))
        others = [each for each in self.problem.recomputes if each not in first]
        best: dict[GlobalSetting, list[SegmentOption]] = {}
        for each in best_first(self.found):
            best.setdefault(each.table.setting, each.table.options)
        few = dict(islice(best.items(), RECOMPUTED_SETTINGS * self.breadth))
        looks = self._looks(options if np.isinf(self.limit_s) else few, others)
        looks.sort(key=lambda look: look.step_s)
        self._construct(looks[: RECOMPUTED * self.breadth])
        self._move_layers(self._priced(self.found))

    @property
    def limit_s(self) -> float:
        """What a step must beat to be the best, as far as stage tables tell: of a list of plans the
        others are those that came near it.
        """
        return min(self.evaluator.limit_s, self.evaluator.best_s, self.least_found_s)

    def _looks(self, options: Options, recomputes: Sequence[Recompute | None]) -> list[FirstLook]:
        """At the settings that can hold the model in time."""
        limit_s, found = self.limit_s, list[FirstLook]()
        in_time = [settings_in_time(self.pricer, options, each, limit_s) for each in recomputes]
        for (setting, own), (row, each) in product(options.items(), enumerate(recomputes)):
            if setting in in_time[row]:
                self.charge(0)
                look = first_look(self.pricer, setting, own, each, limit_s, self.breadth)
                found.append(look)
        return found

    def _construct(self, looks: Iterable[FirstLook]) -> None:
        """The best pipelines of these, the most promising first."""
        for look in sorted(looks, key=lambda each: each.step_s):
            types = {option.pool for option in look.options}
            pace_s = look.pace_s * PACES
            pace_s = pace_s[look.setting.micro_batches * pace_s < self.limit_s * NEAR_BEST]
            is_slow = look.step_s >= self.limit_s or not len(pace_s)
            if is_slow or len(types) < self.skeleton_limits.types:
                continue
            self.charge(0)
            table = StageTable(self.pricer, look.setting, look.options, look.recompute)
            constructor = Constructor(table, self.skeleton_limits, self.charge, pace_s)
            within_s = min(self.evaluator.limit_s, self.evaluator.best_s) * NEAR_BEST
            best = improved(constructor, self.limit_s, within_s, self.breadth)
            self.found += best
            self.least_found_s = min([self.least_found_s, *(each.step_s for each in best[:1])])

    def _priced(self, candidates: Sequence[PipelineCandidate]) -> list[Priced]:
        """The most promising as the evaluator prices them, the fastest first; more where none of
        them is allowed.
        """
        ranked, size = best_first(candidates), PRICED * self.breadth
        for start in range(0, min(len(ranked), size * PRICED_TABLES), size):
            some = ranked[start : start + size]
            steps_s = self.evaluator.steps_s(to_plans(self.problem.workload, some)).tolist()
            priced = [pair for pair in zip(steps_s, some, strict=True) if np.isfinite(pair[0])]
            if priced:
                return sorted(priced, key=lambda pair: pair[0])
        return []

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
