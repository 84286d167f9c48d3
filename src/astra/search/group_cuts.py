"""The cuts of every GPU type that can be part of a plan below a limit: rates, layouts, variants."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from astra.columns import REL_EPS, factorized
from astra.cost.evaluate import evaluate, least_memory_fraction
from astra.search.evaluator import Evaluator
from astra.strategy.complete import fp8_recipe
from astra.strategy.enumerate import Layouts
from astra.strategy.plans import COLUMNS, PLAN_AXES, Floats, Ints, Plans, concatenate
from astra.strategy.rules.registry import check
from astra.strategy.space import Space
from astra.strategy.stage_view import stage_view, without_layers
from astra.strategy.variants import depends_on_variant, variant_counts, variants_of
from astra.timing.group_bounds import GroupBound, group_bounds, joined_bounds
from astra.timing.layer import work_s

LAYOUTS_PER_BLOCK = 1 << 10  # whose variants are looked at together
# Columns of a plan that are a matter of each of its groups, or follow from others.
OWN_COLUMNS = (
    *("ep", "etp", "microbatch_group", "shard_group", "chunking", "schedule", "overlap_p2p"),
    *("sequence_parallel", "overlap_grad_reduce", "overlap_param_gather"),
)
SHARED_COLUMNS = (
    *(name for name in COLUMNS if PLAN_AXES.get(name, 1) == 1 and name not in OWN_COLUMNS),
    "recompute_modules",
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GroupCuts:
    """Replica groups on one GPU type each. (cut,)"""

    plans: Plans  # of one pipeline each
    cap: Ints  # most micro-batches that fit, or are of use
    bound: GroupBound
    key: Ints  # which of the choices that all groups of a plan share

    def __len__(self) -> int:
        return len(self.cap)

    @property
    def pool(self) -> Ints:
        """The GPU type. (cut,)"""
        return self.plans.gpu[0, 0]

    def take(self, rows: Any) -> "GroupCuts":
        """The cuts at `rows`."""
        plans, bound = self.plans.take(rows), self.bound.take(rows)
        return GroupCuts(plans, self.cap[rows], bound, self.key[rows])

    def samples(self, limit_s: float) -> Ints:
        """That end before the limit. (cut,)"""
        plans = self.plans
        return plans.replicas[0] * plans.micro_batch * self.bound.most(limit_s, self.cap)

    def most_samples(self, limit_s: float, max_gpus: int | None) -> tuple[Ints, Floats]:
        """Its own samples, and the most of any plan with the cut that ends before the limit."""
        own = self.samples(limit_s)
        return own, own + others_samples(self.pool, self.key, self.plans.gpus, own, max_gpus)


def others_samples(pool: Ints, key: Ints, gpus: Any, samples: Any, max_gpus: int | None) -> Floats:
    """Most samples of groups on other types, beside each of these, that share its key. (row,)"""
    if not len(samples):
        return np.zeros(0)
    best = np.zeros((int(pool.max()) + 1, int(key.max()) + 1))
    np.maximum.at(best, (pool, key), samples)
    rest: Floats = best.sum(axis=0)[key] - best[pool, key]
    if max_gpus is not None:  # of the GPUs that are left the fastest first
        rates, counts = np.zeros_like(best), np.zeros(len(best))
        np.maximum.at(rates, (pool, key), samples / gpus)
        np.maximum.at(counts, pool, gpus)
        every, left, capped = np.arange(len(pool)), max_gpus - gpus, np.zeros(len(pool))
        others = rates[:, key]
        others[pool, every] = 0.0
        for row in np.argsort(-others, axis=0):
            share = np.minimum(left, counts[row])
            left, capped = left - share, capped + share * others[row, every]
        rest = np.minimum(rest, capped)
    return rest


class CutSource:
    """Makes the cuts; what is known of degrees and options serves every limit."""

    def __init__(self, space: Space, evaluator: Evaluator) -> None:
        self.space, self.evaluator, self.task = space, evaluator, evaluator.task
        self.batch, self.max_gpus = space.workload.global_batch, self.task.cluster.max_gpus
        self.rules = [rule for rule in evaluator.rules if rule.name != "batch-adds-up"]
        pools = range(len(self.task.cluster.pools))
        self.layouts = [Layouts(self._space_on(pool)) for pool in pools]
        parts = [np.zeros((4, 0))]
        for pool, layouts in enumerate(self.layouts):
            for table in layouts.option_tables():
                evaluator.charge(len(table))
                view = without_layers(_on_pool(table, pool), self.task)
                (work,) = work_s([view], evaluator.stack, evaluator.cache)
                mean_s, samples = (
                    work.total_s[0, 0] / table.pp[0],
                    table.replicas[0] * table.micro_batch,
                )
                parts.append(np.stack([np.full(len(table), pool), samples, table.gpus, mean_s]))
        # (option,) of all types: samples of one micro-batch, least time of a mean stage for it
        pool_of, self.samples, self.gpus, self.mean_s = np.concatenate(parts, axis=1)
        self.pool = pool_of.astype(np.int64)

    def least_s(self, pools: Sequence[int]) -> float:
        """A first bound: these types at the best pace of a mean stage. [s]"""
        pace = self.samples / self.mean_s
        total = sum(float(pace[self.pool == pool].max(initial=0.0)) for pool in pools)
        return self.batch / total if total else np.inf

    def below(self, limit_s: float, pools: Sequence[int]) -> GroupCuts | None:
        """The cuts of these types that can be part of a plan below the limit; None: no plan is."""
        count = np.minimum(np.floor(limit_s / self.mean_s * (1 + REL_EPS)), self.batch)
        samples = np.minimum(count * self.samples, self.batch + self.samples)
        samples = np.where(np.isin(self.pool, pools), samples, 0)
        one_key = np.zeros_like(self.pool)
        rest = others_samples(self.pool, one_key, self.gpus, samples, self.max_gpus)
        need = np.maximum(self.batch - rest, 1.0)
        need = np.where(samples >= need, need, np.inf)
        self.are_several = len(pools) > 1
        parts = [each for pool in pools for each in self._layouts(pool, need, limit_s)]
        cuts = self._enough(parts, limit_s)
        return self._enough(list(self._fitting(cuts, limit_s)), limit_s) if cuts else None

    def _enough(self, parts: list[GroupCuts], limit_s: float) -> GroupCuts | None:
        """Those that do the batch with the best of the other types, numbered by what is shared."""
        if not any(map(len, parts)):
            return None
        plans = concatenate([part.plans for part in parts])
        cap = np.concatenate([part.cap for part in parts])
        bound = joined_bounds([part.bound for part in parts])
        cuts = GroupCuts(plans, cap, bound, shared_keys(plans))
        own, most = cuts.most_samples(limit_s, self.max_gpus)
        rows = np.flatnonzero((own > 0) & (most >= self.batch))
        return cuts.take(rows) if len(rows) else None

    def _space_on(self, pool: int) -> Space:
        """Groups on one type."""
        cluster = self.task.cluster
        one = msgspec.structs.replace(cluster, pools=(cluster.pools[pool],))
        task = msgspec.structs.replace(self.task, cluster=one)
        workload = replace(self.space.workload, task=task, part_of_batch=True)
        shared: dict[str, tuple[Any, ...]] = {"overlap_tp": (False, True), "overlap_ep": (False,)}
        if workload.precision == "fp8":
            shared["fp8_recipe"] = (fp8_recipe(cluster),)
        return Space(workload, shared | self.space.settings)

    def _layouts(self, pool: int, need: Floats, limit_s: float) -> Iterator[GroupCuts]:
        """Every split of the layers, nothing recomputed, that may fit and do what its option needs
        to; infinite: the option is not wanted.
        """
        stack, layouts, need = self.evaluator.stack, self.layouts[pool], need[self.pool == pool]
        rules = [rule for rule in self.rules if not depends_on_variant(rule)]
        domain = self.task.cluster.pools[pool].gpu.link.domain_gpus
        offloaded = max(self.space.values("offload_optimizer_fraction") or (0.0,))
        every = np.arange(len(layouts))
        for option, table in layouts.tables(every, only=np.isfinite(need)) if len(need) else ():
            self.evaluator.charge(len(table))
            plans, tp = _on_pool(table, pool), table.tp[0, 0]
            useful = (table.chunking < 0) & (~table.overlap_tp | ((tp > 1) & (tp <= domain)))
            useful &= check(plans, self.task, rules).allowed
            plans, needed = plans.take(useful), need[option[useful]]
            if len(plans):
                least = least_memory_fraction(stage_view(plans, self.task), stack, offloaded)
                rows = np.flatnonzero(least <= 1 - self.evaluator.margin)
                most = -(-self.batch // (plans.replicas[0] * plans.micro_batch)) + plans.pp[0]
                cuts = self._cuts(plans.take(rows), most[rows])
                yield cuts.take(np.flatnonzero(cuts.samples(limit_s) >= needed[rows]))

    def _cuts(self, plans: Plans, cap: Ints) -> GroupCuts:
        stack, cache = self.evaluator.stack, self.evaluator.cache
        bound = group_bounds(plans, self.task, stack, cache, self.are_several)
        return GroupCuts(plans, cap, bound, np.zeros_like(cap))

    def _fitting(self, cuts: GroupCuts, limit_s: float) -> Iterator[GroupCuts]:
        """Each with the recompute that takes least and fits as many micro-batches as end before
        the limit, for every set of modules and every offload.
        """
        evaluator = self.evaluator
        for start in range(0, len(cuts), LAYOUTS_PER_BLOCK):
            some = cuts.take(slice(start, start + LAYOUTS_PER_BLOCK))
            most = some.bound.most(limit_s, some.cap)
            layouts = replace(some.plans, micro_batches=most[np.newaxis])
            layout = np.repeat(np.arange(len(layouts)), variant_counts(layouts, self.space))
            plans = variants_of(layouts, self.space)
            evaluator.charge(len(plans))
            rows = np.flatnonzero(check(plans, self.task, self.rules).allowed)
            if len(rows):
                margin, cache = evaluator.margin, evaluator.cache
                found = evaluate(plans.take(rows), self.task, evaluator.stack, margin, cache)
                order = np.argsort(found.bound_s, kind="stable")
                rows = rows[order[found.fits[order]]]
                own = plans.recompute_modules[0, 0], plans.offload_optimizer_fraction
                choice = np.stack([layout, *own])[:, rows]
                rows = rows[np.unique(choice, axis=1, return_index=True)[1]]
                yield self._cuts(plans.take(rows), most[layout[rows]])


def shared_keys(plans: Plans) -> Ints:
    """Equal numbers for groups that agree in all that the groups of a plan share. (plan,)"""
    keys = np.zeros(len(plans), np.int64)
    for name in SHARED_COLUMNS:
        column = getattr(plans, name)
        known, index = factorized(column[0, 0] if column.ndim > 1 else column)
        if len(known) > 1:
            keys = factorized(keys * len(known) + index)[1]
    return keys


def _on_pool(plans: Plans, pool: int) -> Plans:
    """Plans of one type as plans of the whole cluster."""
    return replace(plans, gpu=np.where(plans.used, pool, 0))
