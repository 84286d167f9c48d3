"""The cuts of every GPU type that can be part of a plan below a limit: rates, layouts, variants."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from astra.columns import REL_EPS, factorized
from astra.cost.evaluate import evaluate, least_memory_fraction
from astra.hardware.cluster import Cluster
from astra.search.evaluator import PlanEvaluator
from astra.strategy.complete import fp8_recipe
from astra.strategy.enumerate import Layouts
from astra.strategy.plans import COLUMNS, PLAN_AXES, Floats, Ints, Plans, concatenate
from astra.strategy.rules.registry import check
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space
from astra.strategy.stage_view import stage_view, without_layers
from astra.strategy.variants import Variants, depends_on_variant, variants_in, variants_of
from astra.timing.group_bounds import GroupBound, group_bounds, joined_bounds
from astra.timing.layer import work_s
from astra.timing.plan_bounds import fill_bound_s, variant_added_s

LAYOUTS_PER_BLOCK = 1 << 10  # whose variants are looked at together
# Columns of a plan that are a matter of each of its groups, or follow from others.
OWN_COLUMNS = (
    "ep",
    "etp",
    "microbatch_group",
    "shard_group",
    "chunking",
    "schedule",
    "sequence_parallel",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_p2p",
)
COMMON_COLUMNS = tuple(
    name for name in COLUMNS if PLAN_AXES.get(name, 1) == 1 and name not in OWN_COLUMNS
)
# Of an option: those that are not the workload's, nor known of layouts and variants alone.
OPTION_COLUMNS = tuple(
    name
    for name in COMMON_COLUMNS
    if name not in ("vpp", "offload_optimizer_fraction", "global_batch", "seq_len", "mtp_layers")
)
# Settings that an option does not fix: rules about them are asked later.
OPEN_SETTINGS = {"layers", "chunk_layers", "vpp", "schedule", "overlap_p2p", "microbatch_group"}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GroupOptions:
    """Degrees and options of one GPU type, layers not yet split. (option,)"""

    pool: int
    layouts: Layouts
    common: dict[str, Any]  # columns that all groups of a plan share
    samples: Ints  # of one micro-batch of all replicas
    gpus: Ints
    mean_s: Floats  # of a mean stage and micro-batch; infinite where rules refuse it
    layer_s: Floats  # of the lightest layer and a micro-batch, both ways
    head_s: Floats


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GroupCuts:
    """Replica groups on one GPU type. (cut,)"""

    pool: int
    plans: Plans  # of one pipeline each
    cap: Ints  # most micro-batches that fit, or are of use
    bound: GroupBound
    key: Ints  # which of the choices that all groups of a plan share

    def __len__(self) -> int:
        return len(self.cap)

    def take(self, rows: Any) -> "GroupCuts":
        """The cuts at `rows`."""
        bound, key = self.bound.take(rows), self.key[rows]
        return GroupCuts(self.pool, self.plans.take(rows), self.cap[rows], bound, key)

    @property
    def unit_samples(self) -> Ints:
        """Samples of one micro-batch of all replicas."""
        return self.plans.replicas[0] * self.plans.micro_batch

    def samples(self, limit_s: float, doublings: float, several: bool) -> Ints:
        """Samples within the limit, beside other groups or alone."""
        return self.unit_samples * self.bound.most(limit_s, doublings, self.cap, several)


def common_keys(columns: Sequence[dict[str, Any]]) -> list[Ints]:
    """Equal numbers for rows that are equal in all columns, over several tables."""
    codes = np.zeros(sum(len(table["cp"]) for table in columns), np.int64)
    for name in columns[0]:
        known, index = factorized(np.concatenate([table[name] for table in columns]))
        codes = codes * len(known) + index
        if len(known) > 1:
            codes = factorized(codes)[1]
    ends = np.cumsum([len(table["cp"]) for table in columns])[:-1]
    return np.split(codes, ends)


def samples_under_cap(rates: Floats, counts: Sequence[int], cap: Ints) -> Floats:
    """Most samples of so many GPUs in all, the best types first. (column,)

    `rates` (type, column) of one GPU; `counts` GPUs of each type; `cap` (column,).
    """
    total, left = np.zeros(rates.shape[1]), np.maximum(cap, 0).astype(np.float64)
    every = np.arange(rates.shape[1])
    for row in np.argsort(-rates, axis=0, kind="stable"):
        share = np.minimum(left, np.array(counts, np.float64)[row])
        total, left = total + share * rates[row, every], left - share
    return total


def most_by_key(key: Ints, values: Any, keys: int) -> Floats:
    """The largest value of each key, 0 where there is none. (key,)"""
    found = np.zeros(keys)
    np.maximum.at(found, key, values)
    return found


Amount = tuple[int, Ints, Ints, Ints]  # a type; key, samples and GPUs of its rows


def least_samples(parts: Sequence[Amount], batch: int, cluster: Cluster) -> list[Floats]:
    """By type, samples that a group must do so that the best of the other types do the rest, on no
    more GPUs than there may be; 1 at least. (row,)
    """
    keys = max((int(key.max(initial=0)) + 1 for _, key, _, _ in parts), default=1)
    highest = [most_by_key(key, samples, keys) for _, key, samples, _ in parts]
    rates = [most_by_key(key, samples / gpus, keys) for _, key, samples, gpus in parts]
    found = []
    for row, (_, key, _, gpus) in enumerate(parts):
        others = [at for at in range(len(parts)) if at != row]
        rest = sum((highest[at] for at in others), np.zeros(keys))[key]
        if cluster.max_gpus is not None and others:
            left = cluster.max_gpus - gpus
            counts = [cluster.pools[parts[at][0]].count for at in others]
            some = np.stack([rates[at][key] for at in others])
            rest = np.minimum(rest, samples_under_cap(some, counts, left))
        found.append(np.maximum(batch - rest, 1.0))
    return found


class CutSource:
    """Makes the cuts of each type; what is known of degrees and options serves every limit."""

    def __init__(self, space: Space, evaluator: PlanEvaluator) -> None:
        self.space, self.evaluator, self.task = space, evaluator, evaluator.task
        self.batch = space.workload.global_batch
        self.rules = [rule for rule in evaluator.rules if rule.name != "batch-adds-up"]
        self.layout_rules = [rule for rule in self.rules if not depends_on_variant(rule)]
        early = [rule for rule in self.layout_rules if OPEN_SETTINGS.isdisjoint(rule.settings)]
        pools = range(len(self.task.cluster.pools))
        self.options = [self._options(pool, early) for pool in pools]
        self.keys = common_keys([each.common for each in self.options])
        self.looked = 0  # layouts below the last limit
        self.doublings = 0.0  # of the GPUs of any plan below the last limit, at least

    def least_s(self) -> float:
        """A first bound: all types at the best pace of a mean stage. [s]"""
        keys = max((int(key.max(initial=0)) + 1 for key in self.keys), default=1)
        rates = [
            most_by_key(key, each.samples / each.mean_s, keys)
            for each, key in zip(self.options, self.keys, strict=True)
        ]
        best = float(np.sum(rates, axis=0).max(initial=0.0))
        return self.batch / best if best > 0 else np.inf

    def below(self, limit_s: float) -> list[GroupCuts]:
        """By type, the cuts that can be part of a plan below the limit."""
        amounts = []
        for each, key in zip(self.options, self.keys, strict=True):
            most = np.minimum(np.floor(limit_s / each.mean_s * (1 + REL_EPS)), self.batch)
            samples = np.minimum(most * each.samples, self.batch + each.samples).astype(np.int64)
            amounts.append((each.pool, key, samples, each.gpus))
        self.doublings = self._doublings(amounts)
        self.looked = 0
        needs = least_samples(amounts, self.batch, self.task.cluster)
        cuts = []
        for each, (_, _, samples, _), need in zip(self.options, amounts, needs, strict=True):
            cuts += self._layouts(each, need, samples >= need, limit_s)
        varied: list[GroupCuts] = []
        waiting = sorted(self._enough(cuts, limit_s), key=lambda each: len(each[0]))
        for place, (own, need) in enumerate(waiting, 1):
            parts = []
            for some in self._variants(own, need, limit_s):
                if place == len(waiting):  # what the others do is known
                    enough = self._enough([*varied, some], limit_s)
                    parts += [each for each, _ in enough if each.pool == own.pool]
                else:
                    parts.append(some)
            varied += [_joined(parts)] if parts else []
        varied.sort(key=lambda each: each.pool)
        return [own for own, _ in self._enough(varied, limit_s)]

    def _enough(self, cuts: list[GroupCuts], limit_s: float) -> list[tuple[GroupCuts, Floats]]:
        """Those that do enough samples within the limit, and what that is; numbered by what all
        groups of a plan share.
        """
        cuts = with_keys(cuts)
        amounts = [
            (each.pool, each.key, each.samples(limit_s, self.doublings, False), each.plans.gpus)
            for each in cuts
        ]
        needs = least_samples(amounts, self.batch, self.task.cluster)
        rows = [np.flatnonzero(own[2] >= need) for own, need in zip(amounts, needs, strict=True)]
        each_type = zip(cuts, needs, rows, strict=True)
        return [(each.take(own), need[own]) for each, need, own in each_type if len(own)]

    def _options(self, pool: int, rules: Sequence[Rule]) -> GroupOptions:
        """All of one type, bounded by the work of their layers."""
        own, evaluator = self._own_space(pool), self.evaluator
        layouts = Layouts(own)
        domain = self.task.cluster.pools[pool].gpu.link.domain_gpus
        common: dict[str, list[Any]] = {name: [np.zeros(0, np.int8)] for name in OPTION_COLUMNS}
        parts: list[list[Any]] = [[np.zeros(0, np.int64)] * 2 + [np.zeros(0)] * 3]
        for table in layouts.option_tables():
            evaluator.charge(len(table))
            table = _on_pool(table, pool)
            tp = table.tp[0, 0]
            allowed = ~table.overlap_tp | ((tp > 1) & (tp <= domain))
            allowed &= check(table, self.task, rules).allowed
            view = without_layers(table, self.task)
            (work,) = work_s([view], evaluator.stack, evaluator.cache)
            mean_s = np.where(allowed, work.total_s[0, 0] / table.pp[0], np.inf)
            samples = table.replicas[0] * table.micro_batch
            parts.append([samples, table.gpus, mean_s, work.layer_s[0, 0], work.head_s[0, 0]])
            for name, column in common.items():
                column.append(np.asarray(getattr(table, name)))
        columns = {name: np.concatenate(some) for name, some in common.items()}
        return GroupOptions(
            pool, layouts, columns, *(np.concatenate(some) for some in zip(*parts, strict=True))
        )

    def _own_space(self, pool: int) -> Space:
        """The space of groups on one type."""
        cluster = self.task.cluster
        one = msgspec.structs.replace(cluster, pools=(cluster.pools[pool],))
        task = msgspec.structs.replace(self.task, cluster=one)
        workload = replace(self.space.workload, task=task, part_of_batch=True)
        shared: dict[str, tuple[Any, ...]] = {"overlap_tp": (False, True), "overlap_ep": (False,)}
        if workload.precision == "fp8":
            shared["fp8_recipe"] = (fp8_recipe(cluster),)
        return Space(workload, shared | self.space.settings)

    def _doublings(self, amounts: Sequence[Amount]) -> float:
        """Binary logarithm of the fewest GPUs that can do the batch: the best of them first."""
        rates = [float((samples / gpus).max(initial=0.0)) for _, _, samples, gpus in amounts]
        left, total = float(self.batch), 0.0
        for row in np.argsort(rates)[::-1]:
            if rates[row] > 0 and left > 0:
                count = min(left / rates[row], self.task.cluster.pools[row].count)
                total, left = total + count, left - count * rates[row]
        return float(np.log2(max(total, 1.0))) * (1 - REL_EPS)

    def _layouts(
        self, options: GroupOptions, need: Floats, wanted: Any, limit_s: float
    ) -> list[GroupCuts]:
        """With every split of the layers, nothing recomputed; none or one table."""
        evaluator, parts = self.evaluator, []
        first = options.layouts
        some = np.add.reduceat(wanted, first.starts) if len(first) else np.zeros(0)
        offloaded = max(self.space.values("offload_optimizer_fraction") or (0.0,))
        for option, table in first.tables(np.flatnonzero(some), only=wanted):
            evaluator.charge(len(table))
            table = _on_pool(table, options.pool)
            count = _required(table, need[option])
            filled = fill_bound_s(
                replace(table, micro_batches=count[np.newaxis]),
                options.layer_s[option],
                options.head_s[option],
                evaluator.stack,
            )
            rows = np.flatnonzero((table.chunking < 0) & (filled * (1 - REL_EPS) < limit_s))
            rows = rows[check(table.take(rows), self.task, self.layout_rules).allowed]
            self.looked += len(rows)
            if len(rows):
                view = stage_view(table.take(rows), self.task)
                least = least_memory_fraction(view, evaluator.stack, offloaded)
                rows = rows[least <= 1 - evaluator.margin]
            if len(rows):
                table, count = table.take(rows), count[rows]
                bound = group_bounds(table, self.task, evaluator.stack, evaluator.cache)
                cap = -(-self.batch // (table.replicas[0] * table.micro_batch)) + table.pp[0]
                cuts = GroupCuts(options.pool, table, cap, bound, np.zeros(len(rows), np.int64))
                ends = bound.step_s(count, self.doublings, False) < limit_s
                parts.append(cuts.take(np.flatnonzero(ends & (count <= cap))))
        return [_joined(parts)] if any(map(len, parts)) else []

    def _variants(self, cuts: GroupCuts, need: Floats, limit_s: float) -> Iterator[GroupCuts]:
        """Each with the least recompute that fits, for every set of modules and every offload; and
        again for fewer micro-batches, of which fewer are in flight. In small tables.
        """
        most = cuts.bound.most(limit_s, self.doublings, cuts.cap, False)
        while len(cuts):
            for start in range(0, len(cuts), LAYOUTS_PER_BLOCK):
                some = np.arange(start, min(start + LAYOUTS_PER_BLOCK, len(cuts)))
                yield from self._fitting(cuts.take(some), most[some], need[some], limit_s)
            most = _fewer(cuts, most)
            rows = np.flatnonzero(most * cuts.unit_samples >= need)
            cuts, most, need = cuts.take(rows), most[rows], need[rows]

    def _fitting(
        self, cuts: GroupCuts, most: Ints, need: Floats, limit_s: float
    ) -> list[GroupCuts]:
        """Of each cut and each choice that is shared, the variant with the least bound that fits;
        none or one table.
        """
        evaluator, own = self.evaluator, self.options[cuts.pool].layouts.space
        variants = self._fast(cuts, need, limit_s)
        evaluator.charge(len(variants))
        plans = variants_of(replace(cuts.plans, micro_batches=most[np.newaxis]), own, variants)
        rows = np.flatnonzero(check(plans, self.task, self.rules).allowed)
        if not len(rows):
            return []
        found = evaluate(
            plans.take(rows), self.task, evaluator.stack, evaluator.margin, evaluator.cache
        )
        bound_s, rows = found.bound_s[found.fits], rows[found.fits]
        keys = [variants.rows, variants.modules, factorized(variants.offloaded)[1]]
        order = np.lexsort((bound_s, *(key[rows] for key in keys)))
        rows = rows[order]
        changed = np.ones(len(rows), np.bool_)
        changed[1:] = np.any([key[rows][1:] != key[rows][:-1] for key in keys], axis=0)
        rows = rows[changed]
        if not len(rows):
            return []
        plans, at = plans.take(rows), variants.rows[rows]
        bound = group_bounds(plans, self.task, evaluator.stack, evaluator.cache)
        cap = np.where(most >= _full(cuts), cuts.cap, most)[at]
        return [GroupCuts(cuts.pool, plans, cap, bound, cuts.key[at])]

    def _fast(self, cuts: GroupCuts, need: Floats, limit_s: float) -> Variants:
        """Variants that may do enough within the limit."""
        count = _required(cuts.plans, need)
        own = self.options[cuts.pool].layouts.space
        variants = variants_in(cuts.plans, own)
        plans = replace(cuts.plans, micro_batches=count[np.newaxis])
        added = variant_added_s(
            plans, variants, self.task, self.evaluator.stack, self.evaluator.cache
        )
        least = cuts.bound.step_s(count, self.doublings, False)[variants.rows] + added
        return variants.take(np.flatnonzero(least < limit_s))


def with_keys(cuts: list[GroupCuts]) -> list[GroupCuts]:
    """The cuts of all types with numbers for what they share."""
    if not cuts:
        return []
    tables = []
    for each in cuts:
        table = {name: np.asarray(getattr(each.plans, name)) for name in COMMON_COLUMNS}
        tables.append(table | {"modules": each.plans.recompute_modules[0, 0]})
    return [replace(each, key=key) for each, key in zip(cuts, common_keys(tables), strict=True)]


def _on_pool(plans: Plans, pool: int) -> Plans:
    """Plans of one type as plans of the whole cluster."""
    return replace(plans, gpu=np.where(plans.used, pool, 0))


def _joined(parts: list[GroupCuts]) -> GroupCuts:
    return GroupCuts(
        parts[0].pool,
        concatenate([part.plans for part in parts]),
        np.concatenate([part.cap for part in parts]),
        joined_bounds([part.bound for part in parts]),
        np.concatenate([part.key for part in parts]),
    )


def _required(plans: Plans, samples: Floats) -> Ints:
    """Micro-batches of one replica with which all of them do so many samples. (plan,)"""
    unit = np.where(plans.vpp > 1, plans.pp[0], 1)
    each = plans.replicas[0] * plans.micro_batch * unit
    return np.ceil(samples / each).astype(np.int64) * unit


def _full(cuts: GroupCuts) -> Ints:
    """Micro-batches from which on a group holds as many activations as it ever does."""
    return np.where(cuts.plans.vpp > 1, 2, 1) * cuts.plans.pp[0]


def _fewer(cuts: GroupCuts, most: Ints) -> Ints:
    """The next number of micro-batches below, with which fewer are in flight.

    Interleaved they come in rounds of the stages: one round, where there were more.
    """
    stages = cuts.plans.pp[0]
    one = np.where(most > stages, stages, 0)
    return np.where(cuts.plans.vpp > 1, one, np.minimum(most, stages) - 1)
