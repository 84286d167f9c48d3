"""Interleaved pipelines over several GPU types: every one whose bound is below the best step.

Cut after cut, the most promising first, all pipelines with a bound below the best step known are
listed, priced as plans, and simulated where a closer bound does not rule them out. Where there
are too many, those below a lower limit are, and the cut comes again at the end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astra.cost.evaluate import memory_fraction
from astra.cost.step import step_s
from astra.memory.stage import memory_of
from astra.search.mixed.cells import Cell, Kind, cuts_in
from astra.search.mixed.chunked import Lister, Pairs, TooManyPipelinesError
from astra.search.mixed.chunked_plans import Listed, chunked_plans
from astra.search.mixed.chunks import Chunker, Cuts
from astra.search.mixed.roomy import WholeStages, open_rows
from astra.search.mixed.shapes import Shapes, TooManyShapesError, holding, ordered, shapes_of
from astra.search.mixed.solve import MixedFinder
from astra.search.mixed.speed import LayerSeconds, layer_seconds
from astra.search.mixed.turning import Cut, Turning, ends_hold
from astra.strategy.plans import Flags, Floats, Ints, Plans
from astra.strategy.recompute import Recompute
from astra.strategy.stage_view import StageView, stage_view
from astra.timing.plan_bounds import tight_stage_bound_s
from astra.timing.stage import stage_times, stage_work

LOWER = (0.0, 0.005, 0.01, 0.02, 0.04, 0.07, 0.12, 0.2, 0.35, 0.6)  # shares below the best step
RISE = 1.25  # of a limit under which a first plan is looked for
TURNS = 24  # such limits; then there is none
FAR = (0.85, 1.0)  # of it: limits that all cuts are looked at under
SCOUTS = (0.8, 0.9)  # of the best step known: limits that are looked under first
SCOUTED = 64  # cuts that are looked at there
FEW_LISTED = 2_000  # pipelines of each
FEW = 256  # pipelines that are priced together at first
BATCH = 1024  # and in the end
WAITING = 1024  # pipelines that are not left waiting any longer: a table costs more than its rows
TABLES = 32  # nor these many cuts
MOST = 30_000  # pipelines of a cut that are listed at once
LAST = 8  # times as many, the last time
EXACT = 100  # times as many where the proof is asked for

Legal = tuple[Cell, list[Kind]]


@dataclass(frozen=True, slots=True)
class _Group:
    """Cells that differ in recompute and offload alone."""

    cut: Cell
    kinds: list[Kind]
    families: list[Cell]  # recompute left open
    modes: list[Recompute]


@dataclass(frozen=True, slots=True)
class _Table:
    """All that is known of a cut: its chunks, and the pipelines it can have."""

    cuts: Cuts
    shapes: Shapes
    gpus: int  # of a stage
    rest: int  # where chunks but the first of a stage begin
    open: Flags  # (row,) of the chunks: those that may be below the limit


def interleave(finder: MixedFinder) -> None:
    """All interleaved pipelines below the best step known, or what was left open is told."""
    search = interleaving(finder)
    if search is not None:
        search.run()


def interleaving(finder: MixedFinder) -> "Interleaving | None":
    """A search over the cuts of another one; None where nothing can be interleaved."""
    space, layers = finder.space, finder.task.model.layers
    asked = space.settings.get("vpp", range(2, layers // 2 + 1))
    vpps = np.array([vpp for vpp in asked if 2 <= vpp <= layers // 2], np.int64)
    plain = _by_cut(finder.legal or [], finder.modes)
    groups, seconds = list[_Group](), dict(finder.seconds)
    for hides in space.values("overlap_ep") or ():
        groups += _hiding(plain) if hides else plain
    hidden = [(group.cut, group.kinds) for group in groups if group.cut.overlap_ep]
    if hidden:
        found = layer_seconds(space, hidden, finder.stack, finder.book)
        seconds |= {cut: own for (cut, _), own in zip(hidden, found, strict=True)}
    if not groups or not len(vpps):
        return None
    return Interleaving(finder, groups, seconds, vpps)


def _by_cut(families: Sequence[Legal], modes: list[Recompute]) -> list[_Group]:
    found: dict[Cell, _Group] = {}
    for cut, (family, kinds) in zip(cuts_in([f for f, _ in families]), families, strict=True):
        if cut not in found:
            found[cut] = _Group(cut, kinds, [], modes)
        found[cut].families.append(family)
    return list(found.values())


def _hiding(groups: Sequence[_Group]) -> list[_Group]:
    """Those whose experts' traffic Megatron-LM can hide, doing so."""
    found = []
    for group in groups:
        some = [mode for mode in group.modes if _can_hide(mode)]
        if (group.cut.alike.ep or 1) > 1 and some:
            cut = replace(group.cut, overlap_ep=True)
            found.append(_Group(cut, group.kinds, group.families, some))
    return found


def _can_hide(mode: Recompute) -> bool:
    return not mode.mode.startswith("full") and "moe" not in mode.modules


class Interleaving:
    """Over cuts that can all be interleaved."""

    def __init__(
        self,
        finder: MixedFinder,
        groups: Sequence[_Group],
        seconds: dict[Cell, LayerSeconds],
        vpps: Ints,
    ) -> None:
        self.finder, self.groups, self.vpps = finder, groups, vpps
        self.layers, self.step_s = finder.task.model.layers, finder.stack.step_s
        self.chunker = Chunker(finder.stocks, finder.capacity, seconds, finder.stack)
        cuts = [
            Cut(
                each.cut.micro_batches,
                each.kinds,
                self.chunker.layers_s(each.cut),
                self.chunker.most_layers(each.families),
            )
            for each in groups
        ]
        self.turning = Turning(cuts, self.chunker.counts, vpps)
        self.last: tuple[int, float, list[_Table]] = (-1, 0.0, [])  # of one cut: they are large
        self.asked = (-1, 0.0), np.zeros(len(vpps), np.bool_)  # the same of its chunks
        self.most = MOST * (EXACT if finder.exact else 1)

    def run(self) -> None:
        """All that is below the best step known, or what was left open is told."""
        low = self.turning.work_s() * (1 - 1e-9)
        if np.isinf(self.finder.limit_s):
            self._first(low)
        limit = self.finder.limit_s
        if low >= limit:
            return
        high = limit if np.isfinite(limit) else low * RISE**TURNS
        least = self.turning.least_s(low, high)
        if np.isinf(limit):
            least = np.where(np.isinf(least), high, least)
        order = [int(row) for row in np.argsort(least, kind="stable") if np.isfinite(least[row])]
        self._scout(order)
        self._all(order, least)

    def _scout(self, order: list[int]) -> None:
        """A shorter time to beat, from cuts of various degrees under lower limits."""
        various: dict[object, int] = {}
        for row in order:
            cut = self.groups[row].cut
            various.setdefault((cut.samples, cut.alike, cut.overlap_ep), row)
        goals = [self.finder.limit_s * share for share in SCOUTS]
        for row in list(various.values())[:SCOUTED]:
            for goal in goals:
                some = self.listed(row, min(goal, self.finder.limit_s), FEW_LISTED)
                self._try(some or [])

    def _first(self, low: float) -> None:
        """A time to beat, under a limit that rises until a plan appears."""
        goal = low
        for _ in range(TURNS):
            before, goal = goal, goal * RISE
            for row in np.flatnonzero(self.turning.open(goal).any(axis=1)).tolist():
                some = self.listed(row, min(goal, self.finder.limit_s), self.most)
                self._try(some or [], before)
            if np.isfinite(self.finder.limit_s):
                return

    def _vpps(self, row: int, limit_s: float) -> Ints:
        """Numbers of chunks that may make a plan of a cut below the limit."""
        if self.asked[0] != (row, limit_s):
            self.asked = (row, limit_s), self.turning.open(limit_s, np.array([row]))[0]
        return self.vpps[self.asked[1]]

    def _tables(self, row: int, limit_s: float) -> list[_Table]:
        """One for every share of the optimizer that is offloaded; of what may be below the limit,
        if not below a higher one that was asked for before.
        """
        if row == self.last[0] and limit_s <= self.last[1]:
            return self.last[2]
        group, found = self.groups[row], list[_Table]()
        cut, kinds = group.cut, group.kinds
        vpps = self._vpps(row, limit_s)
        gpus = kinds[0].tp * kinds[0].dp * cut.cp, self.finder.task.cluster.max_gpus
        shapes: Shapes | None = None
        for family in group.families:
            some = [family.doing(mode) for mode in group.modes]
            can = self._open(some, cut, kinds, vpps, limit_s)
            if not can.any():
                continue
            cells, chunks = np.flatnonzero(can.any(axis=1)), np.flatnonzero(can.any(axis=0))
            cuts = self.chunker.cuts([some[at] for at in cells.tolist()], cut, vpps[chunks])
            if shapes is None:
                longest, whole = self.layers // int(vpps.min()), self.finder.workload.use_all
                shapes = shapes_of(kinds, cut.micro_batches, longest, gpus, whole)
            open_ = can[np.ix_(cells, chunks)].ravel()
            for early in (False, True) if cuts.lead > 2 else (False,):
                own = shapes.take((shapes.stages < cuts.lead) == early)
                found.append(_Table(cuts, own, gpus[0], cuts.any if early else cuts.lead, open_))
        self.last = row, limit_s, found
        return found

    def _open(
        self, cells: list[Cell], cut: Cell, kinds: list[Kind], vpps: Ints, limit_s: float
    ) -> Flags:
        """Which cells and numbers of chunks may be below the limit. (cell, vpp)"""
        whole = WholeStages(
            kinds=kinds,
            micro_batches=cut.micro_batches,
            stage_gpus=kinds[0].tp * kinds[0].dp * cut.cp,
            layers=self.layers,
            lead=self.chunker.lead if self.chunker.alike else 0,
            hides=cut.overlap_ep,
        )
        return open_rows(self.chunker.costs(cells, cut), whole, vpps, limit_s - self.step_s)

    def _all(self, order: list[int], least: Floats) -> None:
        """Every cut, first only what is far below the best step known: where there is such a plan,
        all others take less to rule out. Those that were too much come again with more to spend.
        """
        start, again = self.finder.limit_s, list[int]()
        for share in FAR if np.isfinite(start) else (1.0,):
            goal = share * start
            again = self._below(goal, order, least)
            if self.finder.limit_s < goal:
                break
        for row in again:
            self._prove(row, float(least[row]))

    def _below(self, goal_s: float, order: list[int], least: Floats) -> list[int]:
        """All that is below the goal and the best step known; the cuts that were too much."""
        again: list[int] = []
        waiting: list[Listed] = []
        for row in order:
            limit = min(goal_s, self.finder.limit_s)
            if least[row] >= limit:
                break
            found = self.listed(row, limit, self.most)
            if found is None:
                again.append(row)
                found = self._fewer(row, limit)
            waiting += found
            if len(waiting) >= TABLES or sum(len(each.lines) for each in waiting) >= WAITING:
                self._try(waiting)
                waiting = []
        self._try(waiting)
        return again

    def _fewer(self, row: int, limit_s: float) -> list[Listed]:
        """What can be listed below a lower limit."""
        for share in LOWER[1:]:
            some = self.listed(row, limit_s * (1 - share), self.most)
            if some is not None:
                return some
        return []

    def _prove(self, row: int, least_s: float) -> None:
        """All of a cut below a limit as high as can be."""
        tally, proven = self.finder.tally, least_s
        for share in reversed(LOWER):
            goal = self.finder.limit_s * (1 - share)
            if goal <= proven:
                continue
            some = self.listed(row, goal, self.most * LAST)
            if some is None:
                break
            self._try(some)
            proven = goal
        if proven < self.finder.limit_s:
            tally.open_s = min(tally.open_s, proven)

    def listed(self, row: int, limit_s: float, most: int) -> list[Listed] | None:
        """All pipelines of a cut with a bound below the limit; None: they are too many."""
        vpps = self._vpps(row, limit_s)
        if not len(vpps):
            return []
        try:
            tables = self._tables(row, limit_s)
            return [each for table in tables for each in self._of(table, vpps, limit_s, most)]
        except (TooManyPipelinesError, TooManyShapesError):
            return None

    def _of(self, table: _Table, vpps: Ints, limit_s: float, most: int) -> list[Listed]:
        cuts, shapes = table.cuts, table.shapes
        rows = np.flatnonzero(np.isin(cuts.vpp, vpps) & table.open)
        vpp = cuts.vpp[rows]
        limit = limit_s - self.step_s
        found = [(rows[:0], rows[:0])]
        for stages in sorted(set(shapes.stages.tolist())):
            some = np.flatnonzero(shapes.stages == stages)
            short = np.flatnonzero(stages * vpp <= self.layers)
            own = self._holding(table, rows[short], some, limit)
            found.append((rows[short][own[0]], some[own[1]]))
        row, shape = (np.concatenate(each) for each in zip(*found, strict=True))
        if not len(row):
            return []
        orders, row, order = ordered(shapes, row, shape)
        lister = Lister(cuts, shapes, orders, self.layers, self.step_s)
        pairs: Pairs = lister.pairs(row, order, table.gpus, limit_s)
        if not len(pairs.row):
            return []
        lister.cuts = cuts = self.chunker.with_traffic(cuts)
        lines = lister.every(pairs, limit_s, most)
        tally = self.finder.tally
        tally.labels += len(pairs.row)
        tally.listed += len(lines)
        self.finder.tell()
        return [Listed(cuts, orders, pairs, lines)] if len(lines) else []

    def _holding(self, table: _Table, rows: Ints, shapes: Ints, limit: float) -> tuple[Ints, Ints]:
        """Which of these rows and shapes, all of as many stages, can hold the model."""
        cuts, some = table.cuts, table.shapes.take(shapes)
        if not len(rows):
            return rows, rows
        vpp = cuts.vpp[rows]
        holds = self._holds(table, rows, some, table.rest, limit, room=True)
        longest = cuts.most_layers(rows, limit)
        more = sum(each.max(axis=1) for each in ends_hold(holds, longest, vpp[:, np.newaxis]))
        if cuts.lead:  # the first stages begin with layers of other kinds
            early = self._holds(table, rows, some, cuts.any, limit, room=True) - holds
            more = more + cuts.lead * vpp * early.max(axis=1)
        if not cuts.alike or some.stages[0] <= cuts.lead:  # the last chunk may keep less
            longer = self._holds(table, rows, some, cuts.any, limit, room=False) - holds
            more = more + vpp * longer.max(axis=1)
        return holding(some, holds, (self.layers - more) / vpp, cuts.lead)

    def _holds(
        self, table: _Table, rows: Ints, shapes: Shapes, first: int, limit: float, *, room: bool
    ) -> Floats:
        """Layers of a chunk that a stage has time for. (row, kind)

        `room`: and room, with as many chunks in flight as on the last stage.
        """
        cuts = table.cuts
        vpp = cuts.vpp[rows][:, np.newaxis, np.newaxis]
        size = np.arange(cuts.chunk_s.shape[-1])
        work = (vpp - 1) * cuts.chunk_s[table.rest, rows] + cuts.chunk_s[first, rows]
        wait = (vpp - 1) * cuts.wait_s[table.rest, rows] + cuts.wait_s[first, rows]
        own = cuts.micro_batches * work + np.log2(shapes.stages[0] * table.gpus) * wait
        fits = (own <= limit) & (vpp * size <= self.layers)
        ahead = (vpp - 1) * int(shapes.group[0]) + 1 + cuts.hides
        if room:
            flying = cuts.inside.flying[-1 if first == cuts.any else 0, rows]
            fits &= flying >= np.minimum(cuts.micro_batches * vpp, ahead)
        return np.where(fits, size, 0).max(axis=2).astype(np.float64)

    def _try(self, found: Iterable[Listed], low_s: float = 0.0) -> None:
        """By bound, until none beats the best."""
        tables = list(found)
        if not tables:
            return
        bound = np.concatenate([each.lines.bound_s for each in tables])
        table = np.repeat(np.arange(len(tables)), [len(each.lines) for each in tables])
        line = np.concatenate([np.arange(len(each.lines)) for each in tables])
        order = np.argsort(bound, kind="stable")
        order = order[bound[order] >= low_s]
        start, size = 0, FEW
        while start < len(order):
            some = order[start : start + size]
            start, size = start + size, min(2 * size, BATCH)
            some = some[bound[some] < self.finder.limit_s]
            if not len(some):
                return
            some = some[np.argsort(table[some], kind="stable")]
            parts = [(tables[t], line[some[table[some] == t]]) for t in np.unique(table[some])]
            self._price(*chunked_plans(self.finder.space, parts))

    def _price(self, cells: list[Cell], plans: Plans) -> None:
        """Simulates those that the rules allow, that fit and that may be the best."""
        finder = self.finder
        rows = np.arange(len(plans))
        for rule in finder.rules:
            held = rule.holds(plans.take(rows), finder.task)
            if not held.all():
                finder.tally.remove(rule.name, int((~held).sum()))
                rows = rows[held]
        if not len(rows):
            return
        view = stage_view(plans.take(rows), finder.task, every_stage=True)
        base = stage_work(view, finder.stack, finder.book)
        bound = tight_stage_bound_s(view, stage_times(view, finder.stack, base))
        keep = np.flatnonzero(bound < finder.limit_s)
        some = _part(view, keep)
        filled = memory_fraction(some, memory_of(some, finder.stack), finder.stack)
        fits = filled <= 1 - finder.margin
        finder.tally.out_of_memory += int((~fits).sum())
        keep = keep[fits]
        if not len(keep):
            return
        some = _part(view, keep)
        steps = step_s(some.plans, some.stages, stage_times(some, finder.stack, base))
        finder.tally.simulated += len(keep)
        for at in np.argsort(steps, kind="stable").tolist():
            finder.keep(cells[rows[keep[at]]], float(steps[at]), some.plans, at)


def _part(view: StageView, rows: Ints) -> StageView:
    """The view of some of its plans, which share what all of them do."""
    return replace(
        view,
        plans=view.plans.take(rows),
        stages=view.stages.take(rows),
        distinct=view.shared,
        rows=view.rows[rows],
    )
