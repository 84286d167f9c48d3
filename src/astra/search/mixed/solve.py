"""The best pipeline over several GPU types, exactly: bound by labels, simulate what can win."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from astra.cost.evaluate import simulate_fitting
from astra.hardware.stack import Stack
from astra.model.layer_kinds import layer_kinds
from astra.search.mixed.assemble import Made, whole_plans
from astra.search.mixed.capacity import Capacity
from astra.search.mixed.cellar import Cellar, CellarLimits
from astra.search.mixed.cells import (
    PER_STAGE,
    Cell,
    Kind,
    cut_of,
    cuts_in,
    families_of,
    legal_kinds,
    modes_of,
)
from astra.search.mixed.labels import Round
from astra.search.mixed.loads import FIRST, INSIDE, loads_of
from astra.search.mixed.rounds import Live, TooManyError, Trace, listing, live_states, rounds
from astra.search.mixed.small import Pricer
from astra.search.mixed.speed import LayerSeconds, layer_seconds, speed_bounds_s
from astra.search.mixed.stock import Stocks
from astra.search.mixed.tables import Tables
from astra.search.mixed.tally import PipelineFound, Tally
from astra.search.result import Progress
from astra.strategy.plans import Floats, Ints, Plans
from astra.strategy.rules.rule import Rule
from astra.strategy.space import Space
from astra.timing.layer import LayerCache

BEAM = 400  # labels a round of the first try
RISE = 1.06  # of the time that a first plan is looked for under
MOST_TURNS = 24  # limits that a first plan is looked for under
SCOUTED = 12  # cells that the first try looks at
NEAR = 3  # of them, that are looked at again
WIDE = 4  # times as many labels, then
ENOUGH = 32  # pipelines of one round that are simulated for a time to beat
PLENTY = 1024  # where there are too many to list
BATCH = 512  # pipelines that are simulated together
MOST_BOUNDED = 600_000  # labels of a round with dominance
MOST_LISTED = 150_000  # and without
MOST_WORK = 20_000_000  # labels of a round times kinds of stages times types
LAST = 4  # times as many of a round, the last time
EXACT = 100  # times as many where the proof is asked for
MOST_TOTAL = 3_000_000_000  # the same of all rounds of a search
LOWER = (0.0, 0.002, 0.006, 0.018, 0.054, 0.16)  # shares below the best where that is too much
WORTH = 0.99  # of the best step: a lower one is worth another pass, or another look at what is open
TOGETHER = 16  # cells whose tables are priced at once
KINDS = 512  # or as many as have so many kinds

Legal = tuple[Cell, list[Kind]]


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
        self.workload, self.task = space.workload, space.workload.task
        self.book, self.tally = LayerCache(), Tally()
        self.limit_s = limit_s  # a step that is known already
        self.exact = exact
        self.progress: Progress | None = None
        self.most_bounded = MOST_BOUNDED * (EXACT if exact else 1)
        self.most_work = MOST_WORK * (EXACT if exact else 1)
        self.most_total = MOST_TOTAL * (EXACT if exact else 1)
        self.most_listed = MOST_LISTED * (EXACT if exact else 1)
        self.legal: list[Legal] | None = None  # families of cells; not known yet
        self.modes = modes_of(space)  # what the cells of each recompute
        self.found: dict[Cell, PipelineFound] = {}
        self.layer_s: dict[Cell, Floats] = {}  # by cut, least of any layer of each kind
        self.seconds: dict[Cell, LayerSeconds] = {}  # by cut
        model = self.task.model
        self.loads = loads_of(model)
        self.weights = self.loads.weights(None)
        self.limits = CellarLimits(
            cluster=self.task.cluster,
            layers=model.layers,
            tied=model.tied_embeddings or self.workload.mtp_layers > 0,
            use_all=self.workload.use_all,
        )

    def begin(self, built_in: Sequence[Rule]) -> bool:
        """Finds and bounds the cells that rules allow; whether there are any."""
        if self.legal is None:
            self.allow(built_in)
            self.price()
        if self.legal:
            self.capacity = Capacity(self.stocks)
            self.bounds = self._bounds_s()
        return bool(self.legal)

    def allow(self, built_in: Sequence[Rule]) -> set[int]:
        """Finds the cells that rules allow; the types that they allow a stage on."""
        self.legal = legal_kinds(self.space, families_of(self.space), built_in)
        self.tally.cells = len(self.legal) * len(self.modes)
        return {kind.pool for _, kinds in self.legal for kind in kinds}

    def price(self) -> None:
        """How fast each family of cells is at best, and its stages; no limit is asked."""
        if self.legal:
            self.speeds = self._speeds_s(self.legal)
            self.stocks = Stocks(self.pricer, self.legal, self.modes)

    def able(self) -> set[int]:
        """The types that can hold one layer."""
        families = [item for item in self.legal or () if not item[0].overlap_tp]
        free = self.space.workload.task.runtime != "megatron" and PER_STAGE in self.modes
        modes = [PER_STAGE] if free and "recompute" not in self.space.settings else self.modes
        found: set[int] = set()
        one = slice(1, self.loads.upto(1))
        for (family, kinds), mode in product(families, modes):
            if len(found) == len(self.task.cluster.pools):
                break
            cell = family.doing(mode)
            rows = np.array([row for row, kind in enumerate(kinds) if kind.pool not in found])
            if len(rows):
                table = self.stocks.tables(cell, rows, np.ones(len(rows), np.int64), bare=True)
                fits = [np.isfinite(table.at(at, 1).forward_s[:, one]) for at in (FIRST, INSIDE)]
                some = np.flatnonzero((fits[0] | fits[1]).any(axis=1))
                found |= {kinds[rows[row]].pool for row in some.tolist()}
        return found

    def _speeds_s(self, cells: list[Legal]) -> Floats:
        """No plan of a family is faster, whatever it recomputes. (family,)"""
        each = cuts_in([cell for cell, _ in cells])
        cuts = {cut: kinds for cut, (_, kinds) in zip(each, cells, strict=True)}
        legal = list(cuts.items())
        seconds = layer_seconds(self.space, legal, self.stack, self.book)
        self.seconds = dict(zip(cuts, seconds, strict=True))
        self.layer_s = {
            cut: own.whole_s.min(axis=0) for cut, own in zip(cuts, seconds, strict=True)
        }
        if not self.loads.alike:
            means = [own.whole_s.mean(axis=1) for own in seconds]
            self.weights = self.loads.weights(np.mean(means, axis=0))
        bounds = speed_bounds_s(legal, seconds, layer_kinds(self.task.model).counts)
        known = dict(zip(cuts, bounds.tolist(), strict=True))
        return np.array([known[cut] for cut in each])

    @property
    def pricer(self) -> Pricer:
        return Pricer(self.space, self.stack, self.margin, self.book, self.loads, self.weights)

    def _bounds_s(self) -> dict[Cell, float]:
        """Cells that may beat the limit, as their memory goes, and what no plan of each is faster
        than, the most promising first. [s]
        """
        families = [family for family, _ in self.legal or ()]
        rows = np.flatnonzero(self.speeds < self.limit_s)
        can = self.capacity.open_somehow([families[row] for row in rows.tolist()], self.limit_s)
        rows = rows[can]
        cells = [families[row].doing(mode) for row in rows.tolist() for mode in self.modes]
        low = np.repeat(self.speeds[rows], len(self.modes))
        bounds = self.capacity.bounds_s(cells, low, self.limit_s)
        order = np.argsort(bounds, kind="stable")
        return {cells[row]: float(bounds[row]) for row in order[np.isfinite(bounds[order])]}

    def look_first(self) -> None:
        """A time to beat, by beams under a limit that rises until a plan appears; then in further
        cells, and wider ones in those that came close or differ from them in recompute alone.
        """
        if not self.bounds:
            return
        goal, rise = min(self.bounds.values()), RISE
        for _ in range(MOST_TURNS):
            goal, rise = min(goal * rise, self.limit_s), rise * RISE
            self._scout_all(_various(self.bounds, goal), goal, BEAM)
            if self.found or goal >= self.limit_s:
                break
        known = set(self.found)
        some = [cell for cell in _various(self.bounds, self.limit_s) if cell not in known]
        self._scout_all(some, self.limit_s, BEAM)
        best = sorted(self.found, key=lambda cell: self.found[cell].step_s)
        near = {_name(cell) for cell in best[:NEAR]}
        some = [cell for cell in self.bounds if _name(cell) in near]
        self._scout_all(some[:SCOUTED], self.limit_s, WIDE * BEAM)

    def _scout_all(self, cells: Sequence[Cell], limit_s: float, width: int) -> None:
        for batch in self._batches(cells):
            for tables in self._tables(self._open(batch, limit_s), limit_s):
                self._scout(tables, min(limit_s, self.limit_s), width)

    def _batches(self, cells: Sequence[Cell]) -> Iterator[Sequence[Cell]]:
        """Some at a time: a few, or more of those that have few kinds."""
        sizes = np.cumsum([len(self.stocks.stock(cell).kinds) for cell in cells])
        start = 0
        while start < len(cells):
            done = sizes[start - 1] if start else 0
            stop = max(int(np.searchsorted(sizes, done + KINDS)), start + TOGETHER)
            yield cells[start:stop]
            start = stop

    def _open(self, cells: Sequence[Cell], limit_s: float) -> dict[Cell, Ints]:
        """The cells that may hold a plan below the limit, and the kinds it may use."""
        some = [cell for cell in cells if self.bounds[cell] < limit_s]
        kinds: list[Ints] = [np.flatnonzero(self._most_layers(cell, limit_s)) for cell in some]
        kinds = self.capacity.usable(some, kinds, limit_s)
        return {cell: rows for cell, rows in zip(some, kinds, strict=True) if len(rows)}

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

    def _scout(self, tables: Tables, limit_s: float, width: int) -> None:
        cellar = Cellar(tables, self.limits, limit_s)
        some = rounds(cellar, width=width, most=MOST_BOUNDED)
        self._try_best(tables, list(self._counted(tables, some)))

    def look_at_all(self) -> None:
        """Every cell, the most promising first, until none can be faster.

        Those that are too much at first come again at the end, when a shorter step is known.
        """
        again, cells = [], [cell for cell, bound in self.bounds.items() if bound < self.limit_s]
        open_ = self.capacity.open(cells, self.limit_s).tolist()
        cells = [cell for cell, can in zip(cells, open_, strict=True) if can]
        for batch in self._batches(cells):
            # A shorter step from those that take little is worth much in those that take long.
            found = self._open(batch, self.limit_s)
            some = dict(sorted(found.items(), key=lambda item: len(item[1])))
            self.tally.closed += len(some)
            before, left = self.limit_s, list(some)
            for tables in self._tables(some, self.limit_s):
                if self.limit_s < before * WORTH:
                    before, left = self.limit_s, list(self._open(left, self.limit_s))
                if tables.cell not in left:
                    continue
                if self._spent() or not self._solve(tables, self.limit_s, last=False):
                    again.append(tables.cell)
        self.tally.closed = self.tally.cells - self.tally.closed
        self._prove(again)

    def _prove(self, cells: list[Cell]) -> None:
        """Of cells that were too much, all below a limit as high as can be, one for all of them."""
        low, goals = 0, [np.inf]
        for cell in cells:
            while True:
                goal = self.limit_s * (1 - LOWER[low])
                tables = next(self._tables(self._open([cell], goal), goal), None)
                if tables is None or (not self._spent() and self._solve(tables, goal, last=True)):
                    goals.append(goal)
                    break
                if low + 1 == len(LOWER) or self._spent():
                    goals.append(self.bounds[cell])
                    break
                low += 1
            if self.limit_s <= min(goals):  # what was proven is enough for the step found since
                low = 0
        if min(goals) < self.limit_s:
            self.tally.open_s = min(self.tally.open_s, *goals)

    def _spent(self) -> bool:
        """Whether all that a search may do is done."""
        return self.tally.work > self.most_total

    def _counted(self, tables: Tables, some: Iterator[Round]) -> Iterator[Round]:
        ways = len(tables.kinds) * len(self.task.cluster.pools)
        for each in some:
            self.tally.labels += len(each.labels)
            self.tally.work += len(each.labels) * ways
            self.tell()
            yield each

    def tell(self) -> None:
        """How many candidates have been looked at, to whoever watches."""
        if self.progress:
            self.progress(self.tally.labels + self.tally.listed)

    def _solve(self, tables: Tables, goal: float, last: bool) -> bool:
        """One cell: bounds with dominance, then all that is below the goal, simulated.

        False where that is too much.
        """
        ways = len(tables.kinds) * len(self.task.cluster.pools)
        most = min(self.most_bounded, self.most_work * (LAST if last else 1) // ways)
        while True:
            before = goal
            cellar, made = Cellar(tables, self.limits, goal), []
            traces: list[Trace] = []
            try:
                for each in self._counted(tables, rounds(cellar, traces=traces, most=most)):
                    made.append(each)
            except TooManyError:
                self._scout(tables, goal, BEAM)
                return False
            if not any(len(each.ends.parent) for each in made):
                return True
            self._try_best(tables, made)
            goal = min(goal, self.limit_s)
            if goal > before * WORTH:
                break
        for finer in (False, True) if last else (False,):
            live = live_states(cellar, made, traces, goal)
            if self._listed(self._fine(tables, goal) if finer else tables, live, goal):
                return True
            self._try_best(tables, made, PLENTY)
            goal = min(goal, self.limit_s)
        return False

    def _fine(self, tables: Tables, limit_s: float) -> Tables:
        """The same with what every stage does behind its last backward."""
        places = {kind: row for row, kind in enumerate(self.stocks.stock(tables.cell).kinds)}
        rows = np.array([places[kind] for kind in tables.kinds])
        most = self._most_layers(tables.cell, limit_s)[rows]
        return self.stocks.tables(tables.cell, rows, most, fine=True)

    def _listed(self, tables: Tables, live: list[Live], limit_s: float) -> bool:
        """Whether all pipelines with a bound below this could be simulated."""
        every: Made = []
        cellar = Cellar(tables, self.limits, limit_s)
        try:
            for each in self._counted(tables, listing(cellar, live, self.most_listed)):
                every.append(each)
        except TooManyError:
            return False
        self._simulate_all(tables, every)
        return True

    def _try_best(self, tables: Tables, made: Made, number: int = ENOUGH) -> None:
        """The most promising pipelines of a pass, for a time to beat."""
        bounds = np.concatenate([each.ends.bound_s for each in made] or [np.zeros(0)])
        if not len(bounds):
            return
        limit = np.sort(bounds)[:number][-1]
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
            plans = whole_plans(self.space, tables, made, depth[some], row[some])
            self._simulate(tables.cell, plans)

    def _simulate(self, cell: Cell, plans: Plans) -> None:
        for rule in self.rules:
            held = rule.holds(plans, self.task)
            if not held.all():
                self.tally.remove(rule.name, int((~held).sum()))
                plans = plans.take(np.flatnonzero(held))
        if not len(plans):
            return
        steps, fits = simulate_fitting(plans, self.task, self.stack, self.margin, self.book)
        self.tally.simulated += len(plans)
        self.tally.out_of_memory += int((~fits).sum())
        best = int(steps.argmin())
        self.keep(cell, float(steps[best]), plans, best)

    def keep(self, cell: Cell, seconds: float, plans: Plans, row: int) -> None:
        """A plan of a cell and its step, where it is the best of the cell."""
        known_s = self.found[cell].step_s if cell in self.found else np.inf
        if seconds < known_s:
            self.found[cell] = PipelineFound(seconds, cell, plans.take([row]))
            self.limit_s = min(self.limit_s, seconds)


def _name(cell: Cell) -> tuple[object, ...]:
    """What cells have in common that differ in recompute, sharding or cp alone."""
    return cell.samples, cell.overlap_tp, cell.alike


def _various(bounds: dict[Cell, float], limit_s: float) -> list[Cell]:
    """The first few cells below the limit, each of another name."""
    first: dict[tuple[object, ...], Cell] = {}
    for cell, bound in bounds.items():
        if bound < limit_s:
            first.setdefault(_name(cell), cell)
    return list(first.values())[:SCOUTED]
