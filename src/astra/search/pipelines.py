"""Pipelines over several GPU types by the rules of one runtime: 1F1B, and interleaved ones."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product

import msgspec

from astra.cost.price import price_plans
from astra.cost.result import PricedPlan
from astra.cost.stage_lines import LineCache, StagePricer
from astra.notes import Note
from astra.search.evaluator import Evaluator, Limits, Stopped, evaluator_of
from astra.search.even_split import even_split_s
from astra.search.objective import Fastest
from astra.search.pipeline.interleaved import InterleavedPipeline
from astra.search.pipeline.problem import MixedPipeline
from astra.search.query import Query
from astra.strategy.mixed_space import lacking, too_small, why_not_mixed, without_types
from astra.strategy.space import Space

EXACT_BREADTH = 10  # times as much is looked at with --exact


class Pipelines:
    """The problems of one runtime, on the types that can hold a layer, and their evaluator."""

    def __init__(
        self, query: Query, limits: Limits, known: LineCache, types_interleaved: int = 1
    ) -> None:
        """`types_interleaved`: of an interleaved pipeline, at least; others have two or more."""
        self.query, self.known, self.types_interleaved = query, known, types_interleaved
        self.why_not: Note | None = why_not_mixed(query.space)  # None: they are searched
        self.left_out: dict[str, Note] = {}  # types that are not used
        self.problem: MixedPipeline | None = None  # None: there is none over two types or more
        self.evaluator = self._evaluator(query.space, limits)
        if self.why_not is None:
            with suppress(Stopped):
                self._prepare(query.space, limits)

    def _prepare(self, space: Space, limits: Limits) -> None:
        """The problem on the types that the rules allow, and that can hold a layer."""
        problem = self._problem(space, limits)
        space, ruled_out = without_types(space, problem.allowed_types, lacking)
        if ruled_out:
            problem = self._problem(space, limits)
        space, small = without_types(space, problem.types_with_room(), too_small)
        self.left_out = ruled_out | small
        self.evaluator = self._evaluator(space, limits)
        if len(space.workload.task.cluster.pools) > 1:
            self.problem = self._problem(space, limits) if small else problem

    def search(self, limit_s: float) -> list[PricedPlan]:
        """Those that are faster than the limit, the fastest first."""
        problem, evaluator = self.problem, self.evaluator
        if problem is None:
            return []
        evaluator.objective = Fastest(self.query.top, self.query.fold, limit_s)
        problems: list[InterleavedPipeline | MixedPipeline] = []
        if self._interleaves and problem.options:
            own = problem.space, problem.pricer, problem.every_option, self.types_interleaved
            problems += [InterleavedPipeline(*own)]
        if problem.space.allows("vpp", 1):
            problems += [problem]
        breadths = (1, EXACT_BREADTH) if self.query.exact else (1,)
        for breadth, each in product(breadths, problems):
            evaluator.run(partial(each.search, breadth=breadth))
        cluster = self.query.cluster
        whole = [msgspec.structs.replace(plan, cluster=cluster) for plan in evaluator.plans()]
        return [each for each in price_plans(whole, self.query.margin) if each.step_s < limit_s]

    def least_s(self, best_s: float) -> float:
        """No pipeline is faster; `best_s` where that is all that is known, 0 where nothing is: of
        interleaved ones, or after a search that was stopped. [s]
        """
        if self.problem is None:
            return best_s
        with suppress(Stopped):
            if not self._interleaves:
                return self.problem.least_s(best_s, self.evaluator.charge)
        return 0.0

    @property
    def _interleaves(self) -> bool:
        """Whether pipelines of several chunks a stage are searched: Megatron-LM alone has them."""
        asked = self.query.settings.get("vpp", (2,))
        return self.query.runtime == "megatron" and max(asked) > 1

    def even_split_s(self) -> float | None:
        """The least step of all even splits over all GPUs; None where none fits. [s]"""
        if self.problem is None:
            return None
        space, limits = self.problem.space, self.evaluator.limits
        return even_split_s(space, self._evaluator(space, limits, top=1))

    def _problem(self, space: Space, limits: Limits) -> MixedPipeline:
        own = self.query.stack, self.query.margin, self.known, limits.check
        return MixedPipeline(space, StagePricer(space.workload, *own))

    def _evaluator(self, space: Space, limits: Limits, top: int | None = None) -> Evaluator:
        query = self.query.on(space.workload.task.cluster)
        objective = Fastest(top or query.top, query.fold)
        return replace(evaluator_of(query, objective, limits), cache=self.known.layers)
