"""Uniform plans over several GPU types, searched as on one type that is no better than any."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, permutations

import msgspec
import numpy as np

from astra.cost.price import price_plans
from astra.cost.result import PricedPlan
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.slowest import flops_per_s, slowest_gpu
from astra.hardware.topology import allowed_counts
from astra.search.evaluator import Evaluator, Limits, Stopped, evaluator_of
from astra.search.objective import Fastest
from astra.search.one_type import OneType
from astra.search.query import Query
from astra.strategy.plan import Plan
from astra.strategy.plans import plans_of
from astra.strategy.space import Space
from astra.strategy.uniform import over_types

FAMILIES = 8  # best kinds of plans on the slowest type that are priced on the types themselves
EVERY_SET = 3  # types, up to which each set of them is looked at
SPARE = 1.1  # times the best so far: plans on the types themselves may be that much faster


class UniformSearch:
    """The best plans of one cut, recompute setting and number of micro-batches on several types.

    Each set of types is searched as one type with the least of each figure, so all ranks are as
    slow as the slowest: what is found is then laid over the types and priced as it is. It may be
    somewhat faster then, as stages on faster types fill and drain the pipeline sooner.
    """

    def __init__(
        self,
        query: Query,
        singles: Mapping[str, Evaluator],
        limits: Limits,
        limit_s: float = np.inf,
        every_type: bool = False,
    ) -> None:
        """`singles`: the best on types alone, as far as they are known; `every_type`: no plans on
        some of the types only.
        """
        self.query, self.limit_s = query, limit_s
        self.every_type = every_type or query.use_all
        self.known = {name: each for name, each in singles.items() if np.isfinite(each.best_s)}
        self.evaluator = evaluator_of(query, Fastest(query.top, query.fold), limits)
        self.funnels = [self.evaluator.funnel]

    def search(self) -> list[PricedPlan]:
        """The fastest first: the most promising set first; later ones must come near the best."""
        pools = self.query.cluster.pools
        for chosen in _sets(pools, self.query.precision):
            if len(chosen) == len(pools) or not self.every_type:
                with suppress(Stopped):
                    self._search(chosen)
        return price_plans(self.evaluator.plans(), self.query.margin)

    def _search(self, pools: tuple[Pool, ...]) -> None:
        """Of one set of types."""
        query, limits = self.query.on(self._as_one(pools)), self.evaluator.limits
        space, types = query.space, tuple(pool.gpu for pool in pools)
        workload = replace(space.workload, gpu_counts=_counts(pools), gpu_types=types)
        objective = Fastest(FAMILIES, True, SPARE * min(self.evaluator.best_s, self.limit_s))
        evaluator = evaluator_of(query, objective, limits)
        self.funnels.append(evaluator.funnel)
        best_s = limits.best_s
        evaluator.run(OneType(Space(workload, space.settings)).search)
        limits.best_s = best_s  # no plan on these types has been priced yet
        for plan in evaluator.plans():
            orders = self._in_orders(plan, pools)
            if orders:
                self.evaluator.steps_s(plans_of(orders))

    def _as_one(self, pools: tuple[Pool, ...]) -> Cluster:
        count = sum(pool.count for pool in pools)
        gpu = slowest_gpu([pool.gpu for pool in pools], self._slowest(pools))
        return msgspec.structs.replace(self.query.cluster, pools=(Pool(gpu=gpu, count=count),))

    def _slowest(self, pools: Sequence[Pool]) -> Gpu:
        """The type that takes most GPU-seconds for a step alone, or by its rate."""
        gpus, precision = [pool.gpu for pool in pools], self.query.precision
        if all(gpu.name in self.known for gpu in gpus):
            return max(gpus, key=lambda gpu: _gpu_seconds(self.known[gpu.name]))
        return min(gpus, key=lambda gpu: (flops_per_s(gpu, precision), gpu.name))

    def _in_orders(self, plan: Plan, pools: tuple[Pool, ...]) -> list[Plan]:
        """The plan on these types, in each order of ranks; none where they cannot share it."""
        (pipeline,) = plan.pipelines
        if self.query.use_all:
            counts = {pool.gpu.name: pool.count for pool in pools}
        else:
            counts = _shared_out(pools, sum(plan.gpus.values()))
        stage_gpus = pipeline.segments[0].tp * plan.cp
        if len(counts) < 2 or any(count % stage_gpus for count in counts.values()):
            return []
        whole = msgspec.structs.replace(plan, cluster=self.query.cluster)
        return [over_types(whole, order) for order in _orders(counts, pools)]


def _gpu_seconds(searched: Evaluator) -> float:
    *_, plan = searched.objective.incumbents[0]
    return float(searched.best_s * plan.gpus[0])


def _sets(pools: Sequence[Pool], precision: str) -> list[tuple[Pool, ...]]:
    """Sets of two types or more, those first that do most at the pace of their slowest; of many
    types only the fastest two, three, four and so on.
    """
    able = [pool for pool in pools if flops_per_s(pool.gpu, precision)]
    able.sort(key=lambda pool: (-flops_per_s(pool.gpu, precision), pool.gpu.name))
    sizes = range(2, len(able) + 1)
    if len(able) <= EVERY_SET:
        found = [some for size in sizes for some in combinations(able, size)]
    else:
        found = [tuple(able[:size]) for size in sizes]

    def work(some: tuple[Pool, ...]) -> float:
        return sum(pool.count for pool in some) * flops_per_s(some[-1].gpu, precision)

    return sorted(found, key=work, reverse=True)


def _counts(pools: Sequence[Pool]) -> tuple[int, ...]:
    """GPUs that may be taken: all of the faster types, and of the last as they are rented."""
    found, all_before = [], 0
    for pool in pools:
        rented = allowed_counts(pool)
        found += [all_before + count for count in rented]
        all_before += rented[-1]
    return tuple(found)


def _shared_out(pools: Sequence[Pool], gpus: int) -> dict[str, int]:
    """So many GPUs of these types as they are rented, all of the first ones first."""
    found, left = {}, gpus
    for pool in pools:
        fitting = [n for n in allowed_counts(pool) if n <= left]
        if fitting:
            found[pool.gpu.name] = fitting[-1]
            left -= fitting[-1]
    return found if not left else {}


def _orders(counts: dict[str, int], pools: Sequence[Pool]) -> list[list[tuple[str, int]]]:
    """Orders of types along the ranks: the first stages hold most activations, the last the loss.

    Of many types only from the roomiest to the smallest, and the other way round.
    """
    usable_bytes = {pool.gpu.name: pool.gpu.usable_bytes for pool in pools}
    roomy = sorted(counts, key=lambda name: -usable_bytes[name])
    if len(counts) <= EVERY_SET:
        orders = [list(order) for order in permutations(roomy)]
    else:
        orders = [roomy, roomy[::-1]]
    return [[(name, counts[name]) for name in order] for order in orders]
