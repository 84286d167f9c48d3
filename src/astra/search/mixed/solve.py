"""The best pipeline over several GPU types, exactly: bound by labels, simulate what can win."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from astra.hardware.stack import Stack
from astra.memory.stage import memory_of
from astra.model.kinds import layer_kinds
from astra.search.bulk import filled_fraction
from astra.search.mixed.cellar import Cellar, Limits
from astra.search.mixed.cells import Cell, Kind, cells_of, cut_of, legal_kinds
from astra.search.mixed.columns import DEGREES, kind_columns, plans_table
from astra.search.mixed.labels import Round
from astra.search.mixed.loads import FIRST, INSIDE, LAST, loads_of
from astra.search.mixed.pricing import Pricer, stage_tables
from astra.search.mixed.rounds import Live, TooManyError, Trace, listing, live_states, rounds
from astra.search.mixed.speed import layer_seconds, speed_bounds_s
from astra.search.mixed.tables import Tables
from astra.search.step import step_s
from astra.strategy.plans import Floats, Ints, Plans
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space
from astra.strategy.view import view_of
from astra.timing.layer import LayerBook
from astra.timing.stage import stage_base, stage_times

BEAM = 400  # labels a round of the first try
RISE = 1.15  # of the time that a first plan is looked for under
MOST_TURNS = 24  # limits that a first plan is looked for under
TIGHT = 4  # of them, before it is asked which cells can hold the model
SCOUTED = 12  # cells that the first try looks at
ENOUGH = 32  # pipelines of one round that are simulated for a time to beat
BATCH = 512  # pipelines that are simulated together
MOST_BOUNDED = 600_000  # labels of a round with dominance
MOST_LISTED = 150_000  # and without
MOST_WORK = 20_000_000  # labels of a round times kinds of stages times types
EXACT = 100  # times as many where the proof is asked for
HALVINGS = 5  # tries to list all pipelines below some bound
WORTH = 0.99  # of the best step: a lower one is worth another pass
TOGETHER = 64  # cells whose tables are priced at once

Made = list[Round]
Legal = tuple[Cell, list[Kind]]


@dataclass(slots=True)
class Tally:
    """Where the candidates went."""

    cells: int = 0
    closed: int = 0  # cells that a bound on their speed closes
    labels: int = 0
    listed: int = 0  # whole pipelines whose bound is below the best
    simulated: int = 0
    out_of_memory: int = 0
    removed_by_rule: dict[str, int] = field(default_factory=dict)
    open_s: float = np.inf  # least bound of what was left open


@dataclass(frozen=True, slots=True)
class Found:
    """One simulated plan."""

    step_s: float
    cell: Cell
    plans: Plans  # a table of one


class MixedFinder:
    """One search over cells; keeps the best plan of each cell it met."""

    def __init__(
        self,
        space: Space,
        rules: Sequence[Rule],
        stack: Stack,
        margin: float,
        limit_s: float,
        exact: bool = False,
    ) -> None:
        self.space, self.rules, self.stack, self.margin = space, rules, stack, margin
        self.question, self.task = space.question, space.question.task
        self.book, self.tally = LayerBook(), Tally()
        self.limit_s = limit_s  # a step that is known already
        self.most_bounded = MOST_BOUNDED * (EXACT if exact else 1)
        self.most_work = MOST_WORK * (EXACT if exact else 1)
        self.most_listed = MOST_LISTED * (EXACT if exact else 1)
        self.found: dict[Cell, Found] = {}
        self.layer_s: dict[Cell, dict[Kind, float]] = {}  # least of any layer
        self.kept: dict[Cell, Tables] = {}  # of the first try
        model = self.task.model
        self.loads = loads_of(model)
        self.weights = self.loads.weights(None)
        self.limits = Limits(
            cluster=self.task.cluster,
            layers=model.layers,
            tied=model.tied_embeddings or self.question.mtp_layers > 0,
            use_all=self.question.use_all,
        )

    def run(self, built_in: Sequence[Rule], only: list[Cell] | None = None) -> list[Found]:
        """The best plans found, the very best of the space first (but for `tally.open_s`).

        `only`: some of the cells of the space.
        """
        cells = legal_kinds(self.space, only or cells_of(self.space), built_in)
        self.tally.cells = len(cells)
        if cells:
            seconds = layer_seconds(self.space, cells, self.stack, self.book)
            self.layer_s = {
                cell: dict(zip(kinds, own.whole_s.min(axis=0).tolist(), strict=True))
                for (cell, kinds), own in zip(cells, seconds, strict=True)
            }
            if not self.loads.alike:
                each = [own.whole_s.mean(axis=1) for own in seconds]
                self.weights = self.loads.weights(np.mean(each, axis=0))
            counts = layer_kinds(self.task.model).counts
            speeds = speed_bounds_s(cells, seconds, counts)
            order = np.argsort(speeds, kind="stable")
            cells, speeds = [cells[row] for row in order], speeds[order]
            self._all(*self._first(cells, speeds))
        return sorted(self.found.values(), key=lambda each: each.step_s)

    @property
    def pricer(self) -> Pricer:
        return Pricer(self.space, self.stack, self.margin, self.book, self.loads, self.weights)

    def _first(self, cells: list[Legal], speeds: Floats) -> tuple[list[Legal], Floats]:
        """A time to beat, by beams under a limit that rises until a plan appears.

        Where none does for long, cells that cannot hold the model at all are left out.
        """
        goal, rise = float(speeds[0]) * RISE, RISE
        for turn in range(MOST_TURNS):
            goal = min(goal, self.limit_s)
            if turn == TIGHT:
                rows = self._roomy(cells)
                cells, speeds = [cells[row] for row in rows], speeds[rows]
            some = _various(cells, np.flatnonzero(speeds < goal))
            self.kept = {}
            for tables in self._tables([cells[row] for row in some], goal):
                self._scout(tables, min(goal, self.limit_s))
                self.kept[tables.cell] = tables
            if self.limit_s > goal:  # they hold no stages for so long a step
                self.kept = {}
            if self.found or goal >= self.limit_s or not len(cells):
                break
            goal, rise = goal * rise, rise * RISE
        return cells, speeds

    def _roomy(self, cells: list[Legal]) -> Ints:
        """Those whose stages, one micro-batch in flight, could hold all layers. (row,)"""
        found, layers = [], self.loads.layers
        places = (INSIDE,) if self.loads.alike else (FIRST, INSIDE)  # the ends hold no more
        for row, (cell, kinds) in enumerate(cells):
            item = (cell, kinds, np.full(len(kinds), layers - 1))
            (table,) = stage_tables(self.pricer, [item], places=places)
            fits = [np.isfinite(table.at(place, 1).forward_s) for place in places]
            held = np.where(np.any(fits, axis=0), self.loads.sizes[: fits[0].shape[1]], 0)
            size = held.max(axis=1)
            size = np.where(size >= layers - 2, layers, size)  # none inside holds more than that
            holds = np.array([kind.most for kind in kinds]) * size
            pool = np.array([kind.pool for kind in kinds])
            total = sum(holds[pool == each].max(initial=0) for each in np.unique(pool))
            if total >= layers:
                found.append(row)
        return np.array(found, np.int64)

    def _tables(self, cells: list[Legal], limit_s: float) -> Iterator[Tables]:
        """Tables for no more layers a stage than the limit allows, of some cells at a time."""
        for start in range(0, len(cells), TOGETHER):
            some: list[Legal] = []
            most: dict[Cell, Ints] = {}  # cells that differ in recompute are priced together
            for cell, kinds in cells[start : start + TOGETHER]:
                if cell in self.kept:
                    yield self.kept.pop(cell)
                    continue
                some.append((cell, kinds))
                own, cut = self._most_layers(cell, kinds, min(limit_s, self.limit_s)), cut_of(cell)
                most[cut] = np.maximum(most.get(cut, 0), own)
            items = []
            for cell, kinds in some:
                rows = np.flatnonzero(most[cut_of(cell)])
                if len(rows):
                    items.append((cell, [kinds[r] for r in rows], most[cut_of(cell)][rows]))
            if items:
                yield from stage_tables(self.pricer, items)

    def _most_layers(self, cell: Cell, kinds: list[Kind], limit_s: float) -> Ints:
        """Layers of a stage whose work alone takes no longer than the limit. (kind,)"""
        seconds = np.array([self.layer_s[cell][kind] for kind in kinds])
        most = np.floor(limit_s / (cell.micro_batches * seconds))
        return np.minimum(most, self.loads.layers - 1).astype(np.int64)

    def _scout(self, tables: Tables, limit_s: float) -> None:
        made: Made = []
        for each in rounds(Cellar(tables, self.limits, limit_s), width=BEAM, most=MOST_BOUNDED):
            made.append(each)
            self.tally.labels += len(each.labels)
        self._try_best(tables, made)

    def _all(self, cells: list[Legal], speeds: Floats) -> None:
        """Every cell, the most promising first, until none can be faster.

        Those that are too much at first come again at the end, when a shorter step is known.
        """
        again: list[Legal] = []
        for start in range(0, len(cells), TOGETHER):
            some = [
                cells[row]
                for row in range(start, min(start + TOGETHER, len(cells)))
                if speeds[row] < self.limit_s
            ]
            if not some:
                break
            self.tally.closed += len(some)
            for tables in self._tables(some, self.limit_s):
                if not self._solve(tables, last=False):
                    again.append((tables.cell, tables.kinds))
        self.tally.closed = self.tally.cells - self.tally.closed
        for cell in again:
            for tables in self._tables([cell], self.limit_s):
                self._solve(tables, last=True)

    def _solve(self, tables: Tables, last: bool) -> bool:
        """One cell: bounds with dominance, then all that is below the best, simulated.

        False where that is too much; the last time it is then told what was left open.
        """
        ways = len(tables.kinds) * len(self.task.cluster.pools)
        most = min(self.most_bounded, self.most_work // ways)
        while True:
            before = self.limit_s
            cellar, made = Cellar(tables, self.limits, self.limit_s), []
            traces: list[Trace] = []
            dropped: list[float] = []
            told = dropped if last else None
            try:
                for each in rounds(cellar, traces=traces, dropped=told, most=most):
                    made.append(each)
                    self.tally.labels += len(each.labels)
            except TooManyError:
                self._scout(tables, self.limit_s)
                return False
            if dropped:
                bounds = (each.ends.bound_s.min(initial=np.inf) for each in made)
                self._try_best(tables, made)
                self._left_open(float(min(*dropped, *bounds)))
                return False
            if not any(len(each.ends.parent) for each in made):
                return True
            self._try_best(tables, made)
            if self.limit_s > before * WORTH:
                break
        live = live_states(cellar, made, traces, self.limit_s)
        if self._listed(tables, live, self.limit_s):
            return True
        if last:
            self._list(tables, cellar, made, traces)
        return False

    def _left_open(self, bound_s: float) -> None:
        self.tally.open_s = min(self.tally.open_s, bound_s)

    def _list(self, tables: Tables, cellar: Cellar, made: Made, traces: list[Trace]) -> None:
        """Every pipeline below the best with finer tables; where they are too many, all below a
        bound that is as high as can be.
        """
        most = self._most_layers(tables.cell, tables.kinds, self.limit_s)
        if not most.any():
            return
        item = (tables.cell, tables.kinds, most)
        (fine,) = stage_tables(self.pricer, [item], fine=True)
        low = min(float(each.ends.bound_s.min(initial=np.inf)) for each in made)
        high = goal = self.limit_s
        for _ in range(HALVINGS):
            if self._listed(fine, live_states(cellar, made, traces, goal), goal):
                low = goal
            else:
                high = goal
            if low >= self.limit_s:
                return
            goal = min((low + high) / 2, self.limit_s)
        self._left_open(low)

    def _listed(self, tables: Tables, live: list[Live], limit_s: float) -> bool:
        """Whether all pipelines with a bound below this could be simulated."""
        every: Made = []
        cellar = Cellar(tables, self.limits, limit_s)
        try:
            for each in listing(cellar, live, self.most_listed):
                every.append(each)
                self.tally.labels += len(each.labels)
        except TooManyError:
            return False
        self._simulate_all(tables, every)
        return True

    def _try_best(self, tables: Tables, made: Made) -> None:
        """The most promising pipelines of a pass, for a time to beat."""
        bounds = np.concatenate([each.ends.bound_s for each in made] or [np.zeros(0)])
        if not len(bounds):
            return
        limit = np.sort(bounds)[:ENOUGH][-1]
        some = [
            replace(each, ends=each.ends.take(np.flatnonzero(each.ends.bound_s <= limit)))
            for each in made
        ]
        self._simulate_all(tables, some)

    def _simulate_all(self, tables: Tables, made: Made) -> None:
        """By bound, until none beats the best."""
        sizes = [len(each.ends.parent) for each in made]
        depth = np.repeat(np.arange(len(made)), sizes)
        row = np.concatenate([np.arange(size) for size in sizes])
        bound = np.concatenate([each.ends.bound_s for each in made])
        self.tally.listed += len(bound)
        order = np.argsort(bound, kind="stable")
        for start in range(0, len(order), BATCH):
            some = order[start : start + BATCH]
            some = some[bound[some] < self.limit_s]
            if not len(some):
                return
            plans = concatenated(self.space, tables, made, depth[some], row[some])
            self._simulate(tables.cell, plans)

    def _simulate(self, cell: Cell, plans: Plans) -> None:
        for rule in self.rules:
            held = rule.holds(plans, self.task)
            if not held.all():
                lost = int((~held).sum())
                known = self.tally.removed_by_rule
                known[rule.name] = known.get(rule.name, 0) + lost
                plans = plans.take(np.flatnonzero(held))
        if not len(plans):
            return
        view = view_of(plans, self.task, every_stage=True)
        filled = filled_fraction(view, memory_of(view, self.stack), self.stack)
        times = stage_times(view, self.stack, stage_base(view, self.stack, self.book))
        steps = step_s(plans, view.stages, times)
        self.tally.simulated += len(plans)
        self.tally.out_of_memory += int((filled > 1 - self.margin).sum())
        steps = np.where(filled <= 1 - self.margin, steps, np.inf)
        best = int(steps.argmin())
        known_s = self.found[cell].step_s if cell in self.found else np.inf
        if steps[best] < known_s:
            self.found[cell] = Found(float(steps[best]), cell, plans.take([best]))
            self.limit_s = min(self.limit_s, float(steps[best]))


def _various(cells: list[Legal], rows: Ints) -> list[int]:
    """The first few of these cells, no two of which differ in recompute, sharding or cp alone."""
    first: dict[object, int] = {}
    for row in rows.tolist():
        cell = cells[row][0]
        first.setdefault((cell.samples, cell.overlap_tp, cell.alike), row)
    return list(first.values())[:SCOUTED]


def concatenated(space: Space, tables: Tables, made: Made, depth: Ints, row: Ints) -> Plans:
    """Pipelines as a table of plans: `row` of the ends of round `depth`. A slot per stage."""
    most = int(depth.max()) + 2
    names = ("gpu", "stages", "layers", "recompute", "recompute_layers")
    slots = {name: np.zeros((most, len(row)), np.int64) for name in names}
    slots |= {name: np.ones((most, len(row)), np.int64) for name in DEGREES}
    slots["recompute_modules"] = np.full_like(slots["gpu"], tables.cell.recompute.module_bits)
    kind, size, load, parent = (np.zeros(len(row), np.int64) for _ in range(4))
    above = np.zeros(len(row), np.int64)  # layers of the stages above
    for at in range(most - 2, -2, -1):  # the round whose labels a stage is put on; -1: the last
        starts, goes_on = depth == at, depth > at
        if starts.any():
            labels, ends = made[at].labels, made[at].ends
            parent[starts], kind[starts] = ends.parent[row[starts]], ends.kind[row[starts]]
            size[starts] = labels.left[parent[starts]]
        if goes_on.any():
            labels = made[at + 1].labels
            here = parent[goes_on]
            kind[goes_on], size[goes_on] = labels.kind[here], labels.layers[here]
            parent[goes_on] = labels.parent[here]
        here = np.flatnonzero(depth >= at)
        load[here] = tables.loads.at[above[here] + size[here], size[here]]
        _place(slots, tables, here, depth[here] - at, kind[here], size[here], load[here], at)
        above[here] += size[here]
    slots["recompute_modules"] *= slots["stages"]
    tensor = slots["tp"].max(axis=0) > 1
    which = np.zeros(len(row), np.int64)
    return plans_table(space.question, [tables.cell], which, slots, tensor)


def _place(
    slots: dict[str, Ints],
    tables: Tables,
    here: Ints,
    slot: Ints,
    kind: Ints,
    size: Ints,
    load: Ints,
    at: int,
) -> None:
    """Writes one stage of each of these plans: the one that is `at + 2` from the end."""
    flying = min(tables.cell.micro_batches, at + 2)
    for name, column in kind_columns(tables.kinds).items():
        slots[name][slot, here] = column[kind]
    slots["stages"][slot, here], slots["layers"][slot, here] = 1, size
    inside = tables.at(LAST if at < 0 else INSIDE, flying)
    first = tables.at(FIRST, flying)
    for name, lower, upper in (
        ("recompute", inside.mode, first.mode),
        ("recompute_layers", inside.layers, first.layers),
    ):
        slots[name][slot, here] = np.where(slot == 0, upper[kind, load], lower[kind, load])
