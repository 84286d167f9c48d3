"""The best pipeline over several GPU types, exactly: bound by labels, simulate what can win."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from astra.hardware.stack import Stack
from astra.memory.stage import memory_of
from astra.model.kinds import layer_kinds
from astra.search.bulk import filled_fraction
from astra.search.mixed.capacity import Capacity
from astra.search.mixed.cellar import Cellar, Limits
from astra.search.mixed.cells import Cell, Kind, cells_of, cut_of, legal_kinds
from astra.search.mixed.columns import DEGREES, kind_columns, plans_table
from astra.search.mixed.labels import Round
from astra.search.mixed.loads import FIRST, INSIDE, LAST, loads_of
from astra.search.mixed.rounds import Live, TooManyError, Trace, listing, live_states, rounds
from astra.search.mixed.small import Pricer
from astra.search.mixed.speed import layer_seconds, speed_bounds_s
from astra.search.mixed.stock import Stocks
from astra.search.mixed.tables import Tables
from astra.search.step import step_s
from astra.strategy.plans import Floats, Ints, Plans
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space
from astra.strategy.view import view_of
from astra.timing.layer import LayerBook
from astra.timing.stage import stage_base, stage_times

BEAM = 400  # labels a round of the first try
RISE = 1.06  # of the time that a first plan is looked for under
MOST_TURNS = 24  # limits that a first plan is looked for under
SCOUTED = 12  # cells that the first try looks at
ENOUGH = 32  # pipelines of one round that are simulated for a time to beat
BATCH = 512  # pipelines that are simulated together
MOST_BOUNDED = 600_000  # labels of a round with dominance
MOST_LISTED = 150_000  # and without
MOST_WORK = 20_000_000  # labels of a round times kinds of stages times types
EXACT = 100  # times as many where the proof is asked for
HALVINGS = 5  # tries to list all pipelines below some bound
WORTH = 0.99  # of the best step: a lower one is worth another pass
TOGETHER = 16  # cells whose tables are priced at once

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
        self.layer_s: dict[Cell, Floats] = {}  # by cut, least of any layer of each kind
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
            speeds = self._speeds_s(cells)
            self.stocks = Stocks(self.pricer, cells)
            self.capacity = Capacity(self.stocks)
            bounds = self._bounds_s([cell for cell, _ in cells], speeds)
            order = np.argsort(bounds, kind="stable")
            order = order[np.isfinite(bounds[order])]
            self.bounds = {cells[row][0]: float(bounds[row]) for row in order}
            self._first()
            self._all()
        return sorted(self.found.values(), key=lambda each: each.step_s)

    def _speeds_s(self, cells: list[Legal]) -> Floats:
        """No plan of a cell is faster, whatever it recomputes. (cell,)"""
        cuts = {cut_of(cell): kinds for cell, kinds in cells}
        legal = list(cuts.items())
        seconds = layer_seconds(self.space, legal, self.stack, self.book)
        self.layer_s = {
            cut: own.whole_s.min(axis=0) for cut, own in zip(cuts, seconds, strict=True)
        }
        if not self.loads.alike:
            each = [own.whole_s.mean(axis=1) for own in seconds]
            self.weights = self.loads.weights(np.mean(each, axis=0))
        bounds = speed_bounds_s(legal, seconds, layer_kinds(self.task.model).counts)
        known = dict(zip(cuts, bounds.tolist(), strict=True))
        return np.array([known[cut_of(cell)] for cell, _ in cells])

    @property
    def pricer(self) -> Pricer:
        return Pricer(self.space, self.stack, self.margin, self.book, self.loads, self.weights)

    def _bounds_s(self, cells: list[Cell], speeds: Floats) -> Floats:
        """No plan of a cell is faster, as its memory goes; inf: none beats the limit. (cell,)"""
        found = np.where(speeds < self.limit_s, speeds, np.inf)
        cuts: dict[Cell, list[int]] = {}
        for row in np.flatnonzero(np.isfinite(found)).tolist():
            cuts.setdefault(self.stocks.stock(cells[row]).cell, []).append(row)
        for rows in cuts.values():
            some = [cells[row] for row in rows]
            found[rows] = self.capacity.bounds_s(some, found[rows], self.limit_s)
        return found

    def _first(self) -> None:
        """A time to beat, by beams under a limit that rises until a plan appears."""
        if not self.bounds:
            return
        goal, rise = min(self.bounds.values()), RISE
        for _ in range(MOST_TURNS):
            goal, rise = min(goal * rise, self.limit_s), rise * RISE
            some = _various([cell for cell, bound in self.bounds.items() if bound < goal])
            for tables in self._tables(self._open(some, goal), goal):
                self._scout(tables, min(goal, self.limit_s))
            if self.found or goal >= self.limit_s:
                break
        near = {cell.samples for cell in self.found}  # other ways to recompute in the same cells
        others = [cell for cell in self.bounds if cell.samples in near and cell not in self.found]
        for cell in others[:SCOUTED]:
            for tables in self._tables(self._open([cell], self.limit_s), self.limit_s):
                self._scout(tables, self.limit_s)

    def _open(self, cells: Sequence[Cell], limit_s: float) -> dict[Cell, Ints]:
        """The cells that may hold a plan below the limit, and the kinds it may use."""
        found: dict[Cell, Ints] = {}
        for cell in cells:
            if self.bounds[cell] < limit_s:
                rows: Ints = np.flatnonzero(self._most_layers(cell, limit_s))
                rows = self.capacity.usable(cell, rows, limit_s)
                if len(rows):
                    found[cell] = rows
        return found

    def _tables(self, cells: dict[Cell, Ints], limit_s: float) -> Iterator[Tables]:
        """Of these kinds, for no more layers a stage than the limit allows."""
        wanted = []
        for cell, rows in cells.items():
            if len(rows):
                wanted.append((cell, rows, self._most_layers(cell, limit_s)[rows]))
        self.stocks.prepare(wanted)
        for cell, rows, most in wanted:
            yield self.stocks.tables(cell, rows, most)

    def _most_layers(self, cell: Cell, limit_s: float) -> Ints:
        """Layers of a stage whose work alone takes no longer than the limit. (kind,)"""
        most = np.floor(limit_s / (cell.micro_batches * self.layer_s[cut_of(cell)]))
        return np.minimum(most, self.loads.layers - 1).astype(np.int64)

    def _scout(self, tables: Tables, limit_s: float) -> None:
        made: Made = []
        for each in rounds(Cellar(tables, self.limits, limit_s), width=BEAM, most=MOST_BOUNDED):
            made.append(each)
            self.tally.labels += len(each.labels)
        self._try_best(tables, made)

    def _all(self) -> None:
        """Every cell, the most promising first, until none can be faster.

        Those that are too much at first come again at the end, when a shorter step is known.
        """
        again, cells = [], list(self.bounds)
        for start in range(0, len(cells), TOGETHER):
            some = self._open(cells[start : start + TOGETHER], self.limit_s)
            self.tally.closed += len(some)
            before = self.limit_s
            for tables in self._tables(some, self.limit_s):
                if self.limit_s < before and not self._open([tables.cell], self.limit_s):
                    continue
                if not self._solve(tables, last=False):
                    again.append(tables.cell)
        self.tally.closed = self.tally.cells - self.tally.closed
        for cell in again:
            for tables in self._tables(self._open([cell], self.limit_s), self.limit_s):
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
        stock = self.stocks.stock(tables.cell)
        places = {kind: row for row, kind in enumerate(stock.kinds)}
        rows = np.array([places[kind] for kind in tables.kinds])
        most = self._most_layers(tables.cell, self.limit_s)[rows]
        if not most.any():
            return
        fine = self.stocks.tables(tables.cell, rows, most, fine=True)
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


def _various(cells: list[Cell]) -> list[Cell]:
    """The first few of these cells, no two of which differ in recompute, sharding or cp alone."""
    first: dict[object, Cell] = {}
    for cell in cells:
        first.setdefault((cell.samples, cell.overlap_tp, cell.alike), cell)
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
