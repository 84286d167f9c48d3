"""The makes of every GPU type that may be part of a plan below a limit, bound by bound."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from astra.cost.evaluate import least_memory_fraction, memory_fraction
from astra.hardware.stack import Stack
from astra.memory.stage import memory_of
from astra.search.makes.commons import (
    Common,
    Degrees,
    commons_of,
    degrees_of,
    layouts_of,
)
from astra.search.makes.lines import BLOCK, ReplicaLines, lines_of
from astra.search.makes.options import Options, options_of
from astra.search.makes.useful import Amount, required
from astra.strategy.plans import Flags, Floats, Ints, Plans, Task, concatenate
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space
from astra.strategy.stage_view import stage_view, without_layers
from astra.timing.layer import LayerCache, work_s
from astra.timing.stage import stage_times, stage_work

SLIP = 1e-12  # relative, against rounding
LATER = ("batch-adds-up", "gpus-within-caps")  # rules that speak of all makes together


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Makes:
    """Makes of one GPU type. (make,)"""

    plans: Plans  # of one pipeline each, with one micro-batch
    common: Ints
    cap: Ints  # most micro-batches that fit
    lines: ReplicaLines

    def __len__(self) -> int:
        return len(self.common)

    def take(self, rows: Ints) -> "Makes":
        taken = self.plans.take(rows), self.common[rows], self.cap[rows]
        return Makes(*taken, self.lines.take(rows))

    @property
    def replicas(self) -> Ints:
        return self.plans.replicas[0]

    @property
    def gpus(self) -> Ints:
        return self.plans.gpus

    @property
    def pool(self) -> int:
        """The row of their type; any where there are none."""
        return int(self.plans.gpu[0, 0, 0]) if len(self) else 0

    def most(self, limit_s: float, doublings: float, several: bool = False) -> Ints:
        """Micro-batches within the limit, in a plan with other makes or without."""
        return self.lines.most(limit_s, doublings, self.cap, several)


class ReplicaStock:
    """Of a whole search. `needed`: samples of a step."""

    def __init__(
        self, space: Space, rules: Sequence[Rule], stack: Stack, margin: float, book: LayerCache
    ) -> None:
        self.space, self.stack, self.margin, self.book = space, stack, margin, book
        self.task, self.needed = space.workload.task, space.workload.global_batch
        self.rules = [rule for rule in rules if rule.name not in LATER]
        self.cuts = commons_of(space)
        self.looked = 0  # layouts of the last limit
        self.bounded = self.priced = self.out_of_memory = 0
        self.removed_by_rule: Counter[str] = Counter()
        self.degrees = [self._legal(pool) for pool in range(len(self.task.cluster.pools))]
        self._illegal = self.removed_by_rule.copy()  # degrees, whatever the limit

    @property
    def candidates(self) -> int:
        """Degrees, layouts or variants below the last limit, each where it was decided on."""
        return self.removed_by_rule.total() + self.bounded + self.priced

    def _legal(self, pool: int) -> tuple[Degrees, Floats]:
        """Degrees that the rules accept, and the seconds of a micro-batch on a mean stage."""
        degrees = degrees_of(self.space, pool, self.cuts)
        if not len(degrees):
            return degrees, np.zeros(0)
        table, _ = layouts_of(self.space, pool, self.cuts, degrees, every=False)
        early = [rule for rule in self.rules if "layers" not in rule.settings]
        rows = np.flatnonzero(~refused_by(early, table, self.task, self.removed_by_rule))
        table = table.take(rows)
        if not len(rows):
            return degrees.take(rows), np.zeros(0)
        ((work, _, _),) = work_s([without_layers(table, self.task)], self.stack, self.book)
        return degrees.take(rows), work[0, 0] / table.pp[0]

    def sizes(self, common: Ints) -> Ints:
        """Samples of a micro-batch."""
        return np.array([each.micro_batch for each in self.cuts], np.int64)[common]

    def below(self, limit_s: float) -> tuple[list[Makes], list[Common], float]:
        """By type, the makes that can be part of a plan below the limit; what they have in
        common; and how often the GPUs of such a plan have doubled at least.
        """
        self.looked = self.bounded = self.priced = self.out_of_memory = 0
        self.removed_by_rule = self._illegal.copy()
        samples = []
        for degrees, work in self.degrees:
            size = self.sizes(degrees.common)
            most = np.floor(limit_s / np.maximum(work, 1e-12)).astype(np.int64)
            most = np.minimum(most, self._highest(degrees.replicas, size))
            samples.append(most * size * degrees.replicas)
        commons = [degrees.common for degrees, _ in self.degrees]
        gpus = [
            degrees.tp * degrees.pp * degrees.replicas * self._cp(degrees.common)
            for degrees, _ in self.degrees
        ]
        doublings = self._doublings(samples, gpus)
        amounts = [
            Amount(pool, common, own, count, own)
            for pool, (common, own, count) in enumerate(zip(commons, samples, gpus, strict=True))
        ]
        kept = self._useful(amounts)
        each = [self._layouts(pool, rows) for pool, rows in enumerate(kept)]
        makes = [some for some in each if some is not None]
        kept = self._useful([self._amount(some, some.most(limit_s, doublings)) for some in makes])
        self.bounded += sum(map(len, makes)) - sum(map(len, kept))
        makes = [some.take(rows) for some, rows in zip(makes, kept, strict=True)]
        return (*self._variants(makes, limit_s, doublings), doublings)

    def _amount(self, makes: Makes, most: Ints, top: Ints | None = None) -> Amount:
        """With so many micro-batches; `top`: with which makes of this cut do most."""
        step = makes.replicas * makes.plans.micro_batch
        best = most if top is None else top
        return Amount(makes.pool, makes.common, most * step, makes.gpus, best * step)

    def _required(self, amounts: Sequence[Amount], commons: int | None = None) -> list[Floats]:
        number = len(self.cuts) if commons is None else commons
        return required(amounts, number, self.needed, self.task.cluster)

    def _useful(self, amounts: Sequence[Amount], commons: int | None = None) -> list[Ints]:
        """By type, the makes that do enough."""
        least = self._required(amounts, commons)
        return [np.flatnonzero(own.samples >= few) for own, few in zip(amounts, least, strict=True)]

    def _cp(self, common: Ints) -> Ints:
        return np.array([each.cp for each in self.cuts], np.int64)[common]

    def _highest(self, replicas: Ints, size: Ints) -> Ints:
        """No make does more than all of the batch, in whole rounds of its stages."""
        most = self.space.workload.task.model.layers
        return -(-self.needed // (size * replicas)) + most

    def _doublings(self, samples: list[Ints], gpus: list[Ints]) -> float:
        """Binary logarithm of the fewest GPUs that can do the batch: the best of them first."""
        rates, counts = [], [pool.count for pool in self.task.cluster.pools]
        for own, count in zip(samples, gpus, strict=True):
            rates.append(float((own / np.maximum(count, 1)).max(initial=0.0)))
        left, total = float(self.needed), 0.0
        for row in np.argsort(rates)[::-1]:
            if rates[row] > 0 and left > 0:
                share = min(left / rates[row], counts[row])
                total, left = total + share, left - share * rates[row]
        return float(np.log2(max(total, 1.0))) * (1 - SLIP)

    def _layouts(self, pool: int, rows: Ints) -> Makes | None:
        """With every way to share out the layers, nothing recomputed."""
        degrees = self.degrees[pool][0].take(rows)
        self.bounded += len(self.degrees[pool][0]) - len(rows)
        if not len(rows):
            return None
        plans, at = layouts_of(self.space, pool, self.cuts, degrees, every=True)
        rows = np.flatnonzero(~refused_by(self.rules, plans, self.task, self.removed_by_rule))
        self.looked += len(rows)
        rows = rows[self._roomy(plans.take(rows))]
        if not len(rows):
            return None
        plans, common = plans.take(rows), degrees.common[at[rows]]
        cap = self._highest(plans.replicas[0], plans.micro_batch)
        return Makes(plans, common, cap, lines_of(plans, self.task, self.stack, self.book))

    def _roomy(self, plans: Plans) -> Ints:
        """Rows of which some variant may fit."""
        offloaded = max(self.space.values("offload_optimizer_fraction") or (0.0,))
        least = np.zeros(len(plans))
        for start in range(0, len(plans), BLOCK):
            some = slice(start, start + BLOCK)
            view = stage_view(plans.take(some), self.task)
            least[some] = least_memory_fraction(view, self.stack, offloaded)
        rows = np.flatnonzero(least <= 1 - self.margin)
        self.priced += len(plans) - len(rows)
        self.out_of_memory += len(plans) - len(rows)
        return rows

    def _variants(
        self, makes: list[Makes], limit_s: float, doublings: float
    ) -> tuple[list[Makes], list[Common]]:
        """Each with the least recompute that fits, for every common choice of the rest."""
        commons: dict[Common, int] = {}
        tops = [each.most(limit_s, doublings) for each in makes]
        found: list[list[Makes]] = [[] for _ in makes]
        most = [top.copy() for top in tops]
        while any(map(len, makes)):
            amounts = [
                self._amount(each, own, top)
                for each, own, top in zip(makes, most, tops, strict=True)
            ]
            least = self._required(amounts)
            rows = [np.flatnonzero(a.samples >= few) for a, few in zip(amounts, least, strict=True)]
            self.bounded += sum(map(len, makes)) - sum(map(len, rows))
            makes = [each.take(own) for each, own in zip(makes, rows, strict=True)]
            tops = [top[own] for top, own in zip(tops, rows, strict=True)]
            most = [top[own] for top, own in zip(most, rows, strict=True)]
            least = [few[own] for few, own in zip(least, rows, strict=True)]
            for pool, each in enumerate(makes):
                if len(each):
                    some = self._quick(each, limit_s, least[pool])
                    found[pool].append(self._fitting(each, most[pool], some, commons))
            most = [_fewer(each, top) for each, top in zip(makes, most, strict=True)]
        whole = [each for each in map(_joined, found) if each is not None and len(each)]
        rows = self._useful(
            [self._amount(each, each.most(limit_s, doublings)) for each in whole], len(commons)
        )
        kept = [each.take(some) for each, some in zip(whole, rows, strict=True)]
        return [each for each in kept if len(each)], list(commons)

    def _fitting(
        self, makes: Makes, most: Ints, some: Options, commons: dict[Common, int]
    ) -> Makes:
        """Of each make and common choice, the variant that recomputes least and fits."""
        rows = some.rows
        plans = replace(
            makes.plans.take(rows),
            **some.columns(makes.plans.used[..., rows]),
            micro_batches=np.maximum(most, 1)[rows][np.newaxis],
        )
        fits, again = self._measured(plans)
        refused = refused_by(self.rules, plans, self.task, self.removed_by_rule)
        self.priced += int((~refused).sum())
        self.out_of_memory += int((~fits & ~refused).sum())
        fits &= ~refused
        key = rows * (int(some.choice.max(initial=0)) + 1) + some.choice
        order = np.lexsort((again, key))
        order = order[fits[order]]
        first = order[np.unique(key[order], return_index=True)[1]]
        plans, at = plans.take(first), makes.common[rows[first]]
        common = np.array(
            [
                commons.setdefault(
                    replace(self.cuts[cut], offload=offload, modules=bits), len(commons)
                )
                for cut, offload, bits in zip(
                    at.tolist(),
                    plans.offload_optimizer_fraction.tolist(),
                    plans.recompute_modules[0, 0].tolist(),
                    strict=True,
                )
            ],
            np.int64,
        )
        cap = np.where(most >= _full(makes), makes.cap, most)[rows[first]]
        lines = lines_of(plans, self.task, self.stack, self.book)
        return Makes(plans, common, cap, lines)

    def _quick(self, makes: Makes, limit_s: float, least: Floats) -> Options:
        """Variants that may do enough within the limit, by the work of their busiest stage."""
        parts = []
        whole = options_of(self.space, makes.plans)
        for start in range(0, len(makes), BLOCK):
            some = makes.plans.take(slice(start, start + BLOCK))
            here = whole.take(np.flatnonzero((whole.rows >= start) & (whole.rows < start + BLOCK)))
            view = stage_view(some, self.task)
            base, _ = stage_work(view, self.stack, self.book)
            at = here.rows - start
            again = here.again_s(view, base, at)
            stage = np.where(
                view.stages.count[0] > 0,
                (makes.lines.forward_s + makes.lines.backward_s)[: len(view.stages.count[0])][
                    :, start : start + BLOCK
                ],
                0.0,
            )
            busiest = (stage[:, at] + again).max(axis=0)
            step = (some.replicas[0] * some.micro_batch)[at]
            enough = limit_s / busiest * step * (1 + SLIP) >= least[here.rows]
            parts.append(here.take(np.flatnonzero(enough)))
        found = Options.joined(parts)
        self.bounded += len(whole.rows) - len(found.rows)
        return found

    def _measured(self, plans: Plans) -> tuple[Flags, Floats]:
        """Whether each fits, and what all its stages recompute."""
        fits, again = np.zeros(len(plans), np.bool_), np.zeros(len(plans))
        for start in range(0, len(plans), BLOCK):
            some = slice(start, start + BLOCK)
            view = stage_view(plans.take(some), self.task)
            filled = memory_fraction(view, memory_of(view, self.stack), self.stack)
            times = stage_times(view, self.stack, stage_work(view, self.stack, self.book))
            fits[some] = filled <= 1 - self.margin
            again[some] = (times.recompute_s * view.stages.count).sum(axis=(0, 1))
        return fits, again


def refused_by(rules: Sequence[Rule], plans: Plans, task: Task, counts: Counter[str]) -> Flags:
    """Which plans the rules refuse; each is counted under the first rule that does."""
    refused = np.zeros(len(plans), np.bool_)
    for rule in rules if len(plans) else ():
        new = ~rule.holds(plans, task) & ~refused
        if new.any():
            counts[rule.name] += int(new.sum())
        refused |= new
    return refused


def _full(makes: Makes) -> Ints:
    """Micro-batches from which on a make holds as much as it ever does."""
    return np.where(makes.plans.vpp > 1, 2, 1) * makes.plans.pp[0]


def _fewer(makes: Makes, most: Ints) -> Ints:
    """The next number of micro-batches below, with which a make holds less at once.

    Interleaved they come in rounds of its stages: one round, where it had more.
    """
    stages = makes.plans.pp[0]
    return np.where(
        makes.plans.vpp > 1, np.where(most > stages, stages, 0), np.minimum(most, stages) - 1
    )


def _joined(parts: list[Makes]) -> Makes | None:
    if not parts:
        return None
    deep = max(part.lines.stages.shape[0] for part in parts)

    def column(name: str) -> Any:
        some = [getattr(part.lines, name) for part in parts]
        if some[0].ndim == 2:
            some = [np.pad(each, ((0, deep - len(each)), (0, 0))) for each in some]
        return np.concatenate(some, axis=-1)

    names = [each.name for each in fields(ReplicaLines)]
    return Makes(
        concatenate([part.plans for part in parts]),
        np.concatenate([part.common for part in parts]),
        np.concatenate([part.cap for part in parts]),
        ReplicaLines(*(column(name) for name in names)),
    )
