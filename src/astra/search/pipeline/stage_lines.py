"""Stages priced by the cost model, as straight lines over the layers they hold.

Seconds and bytes of a stage grow by the same with every layer of a kind. A few small plans for each
option tell of all its stages: at the first place of the pipeline, inside it, and at the last.
Traffic between replicas is nearly linear; what is chosen in the end is priced as a whole plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from astra.cost.evaluate import ROWS_PER_BLOCK
from astra.hardware.cluster import Gpu
from astra.hardware.stack import Stack
from astra.hardware.topology import even_share
from astra.memory.stage import activation_bytes, offload_frees_bytes
from astra.model.layer_kinds import layer_kinds
from astra.model.shape import Model
from astra.strategy.plans import Flags, Floats, Ints, Plans, code
from astra.strategy.recompute import Recompute
from astra.strategy.segment_columns import (
    DEGREES,
    RECOMPUTE_COLUMNS,
    Columns,
    GlobalSetting,
    SegmentOption,
    option_columns,
    plans_from_stages,
)
from astra.strategy.space import Workload
from astra.strategy.stage_view import StageView, stage_view
from astra.timing.layer import LayerCache
from astra.timing.stage import StageTime, stage_times, stage_work
from astra.timing.stage_work import link_seconds, tied_seconds

FIRST, INSIDE, LAST = PLACES = range(3)  # places of a stage in the pipeline
NO_RECOMPUTE, ALL_LAYERS = Recompute(), Recompute("full:uniform", 1, ())
BASIS_LAYERS = 8  # layers of the larger stage that a line goes through
FIXED_FIELDS = (
    "forward_s",  # of a micro-batch, sharded parameters at hand
    "backward_s",  # with nothing recomputed
    "forward_compute_s",  # that traffic between replicas hides behind
    "backward_compute_s",
    "gather_s",  # parameters, once a step or for every micro-batch
    "reduce_s",  # gradients, likewise
    "optimizer_s",  # once a step
    "straggler_s",  # of a micro-batch, for every doubling of the GPUs
    "free_bytes",  # left for activations
    "logits_bytes",
    "slowdown",  # of compute that hides traffic; not a line: the same for all stages
)
RECOMPUTE_FIELDS = ("recompute_s", "saved_bytes", "working_bytes")
Pair = tuple[GlobalSetting, SegmentOption]
LinkGroup = tuple[GlobalSetting, Sequence[SegmentOption]]


@dataclass(frozen=True, slots=True)
class StageLayers:
    """The distinct sets of layers that a stage can hold, by how many there are of each kind.

    Where all layers are of one kind, set n is n layers.
    """

    counts: Floats  # (set, 1 + kind): 1, and the layers of each kind
    sizes: Ints  # (set,) layers of all kinds
    at: Ints  # (layers before its end, size): the set of a stage that ends there

    @property
    def layers(self) -> int:
        return len(self.at) - 1

    @property
    def has_one_kind(self) -> bool:
        return self.counts.shape[1] == 2

    @property
    def present(self) -> Flags:
        """Which kinds are in a set. (set, kind)"""
        return self.counts[:, 1:] > 0


def stage_layers(model: Model) -> StageLayers:
    """What the stages of a model can hold."""
    kinds = layer_kinds(model)
    before = np.zeros((model.layers + 1, len(kinds.kinds)), np.int64)
    of_kind = np.array(kinds.of_layer)[:, np.newaxis] == np.arange(len(kinds.kinds))
    before[1:] = np.cumsum(of_kind, axis=0)
    end, size = np.nonzero(np.tri(model.layers + 1, dtype=np.bool_))  # size <= end
    keys = np.concatenate([size[:, np.newaxis], before[end] - before[end - size]], axis=1)
    distinct, row = np.unique(keys, axis=0, return_inverse=True)
    at = np.zeros((model.layers + 1, model.layers + 1), np.int64)
    at[end, size] = row.reshape(-1)
    counts = distinct.astype(np.float64)
    counts[:, 0] = 1.0
    return StageLayers(counts, distinct[:, 0], at)


@dataclass(frozen=True, slots=True)
class StageLines:
    """Lines over (1, layers of each kind): `field[..., place, option, :] @ counts`."""

    fixed: dict[str, Floats]  # (place, option, 1 + kind)
    recomputed: dict[str, Floats]  # (recompute, place, option, 1 + kind)
    working_bytes: Floats  # (recompute, option, kind) while a layer of the kind is worked on

    def with_recompute(self, row: int) -> "StageLines":
        """Of one recompute setting."""
        again = {name: each[row : row + 1] for name, each in self.recomputed.items()}
        return StageLines(self.fixed, again, self.working_bytes[row : row + 1])


class LineCache:
    """Lines that are known, by what they depend on: shared by all pools of one question."""

    def __init__(self) -> None:
        self.layers = LayerCache()
        self.gpus: dict[Gpu, int] = {}
        self.recomputes: dict[Recompute, int] = {}
        self.options: dict[tuple[object, ...], int] = {}  # all but how many stages there are
        self.kernels: dict[tuple[object, ...], int] = {}  # what seconds of a layer depend on
        self.fixed: dict[str, Floats] = {}  # (place, option, 1 + kind)
        self.again: dict[str, Floats] = {}  # (place, row, 1 + kind)
        self.working: Floats = np.zeros((0, 0))  # (row, kind)
        self.row_of: Ints = np.full((0, 0), -1)  # (kernels, recompute)

    def gpu(self, gpu: Gpu) -> int:
        return self.gpus.setdefault(gpu, len(self.gpus))

    def grow(self) -> None:
        """Makes place for all kernels and recompute settings there are."""
        wider = np.full((len(self.kernels), len(self.recomputes)), -1)
        wider[: self.row_of.shape[0], : self.row_of.shape[1]] = self.row_of
        self.row_of = wider

    def add(self, table: dict[str, Floats], lines: dict[str, Floats]) -> None:
        """Puts (place, row, 1 + kind) lines behind those of a table."""
        for name, each in lines.items():
            table[name] = np.concatenate([table[name], each], axis=1) if name in table else each


class StagePricer:
    """Prices stages and links of one workload."""

    def __init__(
        self,
        workload: Workload,
        stack: Stack,
        margin: float,
        known: LineCache | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`known`: of the same model, batch, stack and margin. `check` is called between pieces of
        work, and may end it.
        """
        self.check = check
        self.workload, self.stack, self.margin = workload, stack, margin
        self.known = LineCache() if known is None else known
        self.model = workload.task.model
        self.layers = stage_layers(self.model)
        pools = workload.task.cluster.pools
        self.gpus = [self.known.gpu(pool.gpu) for pool in pools]
        self.last_kind = layer_kinds(self.model).of_layer[-1]  # of MTP layers too
        self.usable_bytes = np.array([pool.gpu.usable_bytes for pool in pools])
        self.basis = [self._basis(place) for place in PLACES]
        self.shares: dict[tuple[int, int], tuple[int, int]] = {}

    def _basis(self, place: int) -> Ints:
        """(start, layers) of a few stages that span all stages at a place. (2, stage)"""
        layers = self.layers.layers
        sizes = [1, min(BASIS_LAYERS, layers), *range(2, layers + 1)]
        picked: list[tuple[int, int]] = []
        rank, most = 0, self.layers.counts.shape[1]
        for size in dict.fromkeys(sizes):
            starts = {FIRST: range(1), LAST: range(layers - size, layers - size + 1)}
            for start in starts.get(place, range(layers - size + 1)):
                rows = [self.layers.at[s + n, n] for s, n in [*picked, (start, size)]]
                now = int(np.linalg.matrix_rank(self.layers.counts[rows]))
                if now > rank:
                    picked, rank = [*picked, (start, size)], now
                if rank == most:
                    return np.array(picked).T
        return np.array(picked).T

    def lines(
        self, pairs: Sequence[Pair], recomputes: Sequence[Recompute] = (NO_RECOMPUTE, ALL_LAYERS)
    ) -> StageLines:
        """Of these options in their settings, with each of these recompute settings.

        Each is priced once: what replicas exchange for each distinct option, recompute for each
        distinct set of kernels.
        """
        known = self.known
        keys = [self._kernels_of(*pair) for pair in pairs]
        rows_of = [known.kernels.setdefault(key, len(known.kernels)) for key in keys]
        kernels = np.array(rows_of, np.int64)
        asked = [known.recomputes.setdefault(each, len(known.recomputes)) for each in recomputes]
        known.grow()
        options = self._option_rows(pairs, keys)
        missing = (known.row_of[kernels][:, asked] < 0).any(axis=1)
        if missing.any():
            new = {int(kernels[row]): pairs[row] for row in np.flatnonzero(missing).tolist()}
            self._price_recomputes(new, recomputes, asked)
        rows = known.row_of[kernels][:, asked].T  # (recompute, pair)
        again = {name: np.moveaxis(each[:, rows], 1, 0) for name, each in known.again.items()}
        fixed = {name: each[:, options] for name, each in known.fixed.items()}
        return StageLines(fixed, again, known.working[rows])

    def _option_rows(self, pairs: Sequence[Pair], kernels: list[tuple[object, ...]]) -> Ints:
        """Rows of the fixed lines, those that are new priced."""
        known, before, new = self.known, len(self.known.options), list[Pair]()
        found = []
        for (setting, option), key in zip(pairs, kernels, strict=True):
            whole = (*key, option.dp, setting.sharding, setting.offload_fraction)
            row = known.options.setdefault(whole, len(known.options))
            if row == before + len(new):
                new.append((setting, option))
            found.append(row)
        if new:
            fixed, _ = self._solved(new, [NO_RECOMPUTE], FIXED_FIELDS)
            known.add(known.fixed, {name: each[0] for name, each in fixed.items()})
        return np.array(found, np.int64)

    def _price_recomputes(
        self, new: dict[int, Pair], recomputes: Sequence[Recompute], asked: list[int]
    ) -> None:
        """Lines of recompute settings for kernels that lack any of them."""
        known, before = self.known, len(self.known.working)
        again, working = self._solved(list(new.values()), recomputes, RECOMPUTE_FIELDS)
        width = self.layers.counts.shape[1]
        flat = {n: np.moveaxis(a, 0, 1).reshape(len(PLACES), -1, width) for n, a in again.items()}
        known.add(known.again, flat)
        own = working.reshape(-1, width - 1)
        known.working = np.concatenate([known.working, own]) if before else own
        number = np.arange(before, before + len(own)).reshape(len(asked), len(new))
        known.row_of[np.ix_(list(new), asked)] = number.T

    def _solved(
        self, pairs: Sequence[Pair], recomputes: Sequence[Recompute], names: Sequence[str]
    ) -> tuple[dict[str, Floats], Floats]:
        """Lines through a few small plans of every pair, (recompute, place, pair, 1 + kind); and
        bytes while a layer is worked on, (recompute, pair, kind).
        """
        width = self.layers.counts.shape[1]
        shape = len(recomputes), len(PLACES), len(pairs), width
        lines = {name: np.zeros(shape) for name in names}
        working = np.zeros((len(recomputes), len(pairs), width - 1))
        for place in PLACES:
            start, size = self.basis[place]
            held = self.layers.counts[self.layers.at[start + size, size]]
            solve = np.linalg.pinv(held)
            found = self._priced(pairs, start, size, recomputes, place)  # (recompute, pair, stage)
            for name in names:
                lines[name][:, place] = found[name] @ solve.T
            for stage in np.flatnonzero(size == 1) if place == INSIDE else ():
                kind = held[stage, 1:].argmax()
                working[:, :, kind] = found["working_bytes"][:, :, stage]
        return lines, working

    def _kernels_of(self, setting: GlobalSetting, option: SegmentOption) -> tuple[object, ...]:
        """What the kernels of a layer depend on."""
        shares = self._shares(option.pool, option.stages[0] * option.stage_gpus)
        traffic = setting.cp, setting.cp_comm_type, setting.overlap_tp, setting.overlap_ep
        degrees = self.gpus[option.pool], option.tp, option.micro_batch, option.ep, option.etp
        return (*traffic, *degrees, *shares)

    def _shares(self, pool: int, used: int) -> tuple[int, int]:
        """GPUs of a job of so many in each link domain, and in each node."""
        if (pool, used) not in self.shares:
            gpu = self.workload.task.cluster.pools[pool].gpu
            domain, node = gpu.link.domain_gpus, gpu.node.gpus
            self.shares[pool, used] = int(even_share(used, domain)), int(even_share(used, node))
        return self.shares[pool, used]

    def _priced(
        self,
        pairs: Sequence[Pair],
        start: Ints,
        size: Ints,
        recomputes: Sequence[Recompute],
        place: int,
    ) -> dict[str, Floats]:
        """All fields of these stages of every pair. (recompute, pair, stage)"""
        shape = len(pairs), len(size), len(recomputes)
        which, stage, again = (axis.reshape(-1) for axis in np.indices(shape))
        found = {name: np.zeros(len(which)) for name in (*FIXED_FIELDS, *RECOMPUTE_FIELDS)}
        for begin in range(0, len(which), ROWS_PER_BLOCK):
            self.check()
            some = slice(begin, begin + ROWS_PER_BLOCK)
            rows = [pairs[row] for row in which[some].tolist()]
            settings = [recomputes[row] for row in again[some].tolist()]
            plans = self._small_plans(rows, start[stage[some]], size[stage[some]], settings, place)
            for name, column in self._fields(plans, place).items():
                found[name][some] = column
        return {name: np.moveaxis(c.reshape(shape), 2, 0) for name, c in found.items()}

    def _small_plans(
        self,
        pairs: Sequence[Pair],
        start: Ints,
        size: Ints,
        recomputes: Sequence[Recompute],
        place: int,
    ) -> Plans:
        """Each stage in a plan where it lies at this place, beside stages of another type.

        Further stages of its option hold nothing: they are there for the GPUs they take.
        """
        options = [option for _, option in pairs]
        degrees, count = option_columns(options), np.array([each.stages[0] for each in options])
        pool, one, none = degrees["gpu"], np.ones_like(size), np.zeros_like(size)
        other = (pool + 1) % len(self.usable_bytes)
        again = [(code("recompute", r.mode), r.layers, r.module_bits) for r in recomputes]
        own = (pool, one, size, *np.array(again, np.int64).T)
        same = (pool, count - 1, none, none, none, none)
        above = (other, one, start, none, none, none)
        below = (other, one, self.layers.layers - start - size, none, none, none)
        order = {
            FIRST: (own, same, below),
            INSIDE: (above, own, same, below),
            LAST: (above, same, own),
        }
        names = ("gpu", "stages", "layers", *RECOMPUTE_COLUMNS)
        columns = zip(*order[place], strict=True)
        slots: Columns = {n: np.stack(column) for n, column in zip(names, columns, strict=True)}
        used, its = slots["stages"] > 0, slots["gpu"] == pool
        for name in DEGREES:  # the stages beside it have one GPU for each replica
            kept = used if name in ("dp", "segment_micro_batch") else used & its
            slots[name] = np.where(kept, degrees[name], 1)
        return self._plans([setting for setting, _ in pairs], slots)

    def _plans(self, settings: Sequence[GlobalSetting], slots: Columns) -> Plans:
        rows: dict[GlobalSetting, int] = {}
        which = np.array([rows.setdefault(each, len(rows)) for each in settings], np.int64)
        other = {"sequence_parallel": np.array(True)}  # other stages may have tp
        return plans_from_stages(self.workload, list(rows), which, slots, other)

    def _times(self, plans: Plans) -> tuple[StageView, StageTime]:
        view = stage_view(plans, self.workload.task)
        return view, stage_times(view, self.stack, stage_work(view, self.stack, self.known.layers))

    def _fields(self, plans: Plans, place: int) -> dict[str, Floats]:
        """What is asked of the stage of every plan. (plan,)"""
        view, times = self._times(plans)
        stages, memory = view.stages, activation_bytes(view, self.stack)
        ends = {FIRST: stages.embedding[0], LAST: stages.head[0]}
        slot = ends[place].argmax(axis=0) if place in ends else np.ones(len(plans), np.int64)
        replicas = times.work.data_parallel
        held = sum(memory.part(name) for name in ("weights", "gradients", "buffers", "optimizer"))
        shared = {name: memory.part(name) for name in ("optimizer", "offload")}
        held = held - offload_frees_bytes(shared, plans.offload_optimizer_fraction)
        usable = self.usable_bytes[stages.of(plans.gpu)] * (1 - self.margin)
        columns = {
            "forward_s": times.plain_forward_s,
            "backward_s": times.plain_backward_s,
            "forward_compute_s": times.part("forward_s"),
            "backward_compute_s": times.part("backward_s"),
            "gather_s": replicas.gather_s[..., times.rows],
            "reduce_s": replicas.reduce_s[..., times.rows],
            "optimizer_s": times.optimizer_s(),
            "straggler_s": times.straggler_s(),
            "free_bytes": (usable - memory.part("runtime")) / (1 + self.stack.slack_fraction)
            - held,
            "logits_bytes": memory.part("logits"),
            "slowdown": replicas.slowdown[..., times.rows],
            "recompute_s": times.recompute_s,
            "saved_bytes": memory.saved_bytes,
            "working_bytes": memory.working_bytes,
        }
        shape, rows = (1, *stages.count.shape[1:]), np.arange(len(plans))
        return {
            name: np.broadcast_to(column, shape)[0, slot, rows] for name, column in columns.items()
        }

    def links_s(self, groups: Sequence[LinkGroup]) -> list[tuple[Floats, Floats]]:
        """Seconds one way from a stage of an option to the next of another, (option, next); and of
        tied embeddings, on the first stage and on the last, (2, first option, last option). Of each
        global setting with its options.
        """
        rows, cells = list[Columns](), list[tuple[Ints, Ints]]()
        for _, options in groups:
            count, degrees = len(options), option_columns(options)
            at, to = np.divmod(np.arange(count**2), count)
            pool, most = degrees["gpu"], np.array([option.most for option in options])
            there = (pool[at] != pool[to]) | (at == to)
            at, to = at[there], to[there]
            inside, one = at == to, np.ones_like(at)
            other = (pool[to] + 1) % len(self.usable_bytes)
            slots = {name: np.stack([degrees[name][at], degrees[name][to]]) for name in DEGREES}
            slots["gpu"] = np.stack([pool[at], np.where(inside, other, pool[to])])
            slots["stages"] = np.stack([np.where(inside, np.maximum(most[at], 2), 1), one])
            slots["layers"] = np.stack([one, one])
            slots |= dict.fromkeys(RECOMPUTE_COLUMNS, np.zeros_like(slots["gpu"]))
            rows.append(slots)
            cells.append((at, to))
        together = {name: np.concatenate([s[name] for s in rows], axis=1) for name in rows[0]}
        settings = [each for (each, _), (at, _) in zip(groups, cells, strict=True) for _ in at]
        link_s, tied_s = self._sent_s(settings, together)
        found, start = list[tuple[Floats, Floats]](), 0
        for (_, options), (at, to) in zip(groups, cells, strict=True):
            own, count = slice(start, start + len(at)), len(options)
            links, tied = np.zeros((count, count)), np.zeros((2, count, count))
            links[at, to], tied[:, at, to] = link_s[own], tied_s[:, own]
            found.append((links, tied))
            start += len(at)
        return found

    def _sent_s(self, settings: Sequence[GlobalSetting], slots: Columns) -> tuple[Floats, Floats]:
        """From the first stage of each plan, (plan,); and of tied embeddings, (2, plan)."""
        link_s, tied_s = np.zeros(len(settings)), np.zeros((2, len(settings)))
        for begin in range(0, len(settings), ROWS_PER_BLOCK):
            some = slice(begin, begin + ROWS_PER_BLOCK)
            part = {name: column[:, some] for name, column in slots.items()}
            view = stage_view(self._plans(settings[some], part), self.workload.task)
            link_s[some] = link_seconds(view.shared, self.stack)[0][0, 0, view.rows]
            if self.model.tied_embeddings:
                tied = tied_seconds(view.shared, self.stack)[..., view.rows][0]
                tied_s[0, some] = np.where(view.stages.embedding[0], tied, 0).sum(0)
                tied_s[1, some] = np.where(view.stages.head[0], tied, 0).sum(0)
        return link_s, tied_s
