"""Stages priced by the cost model, as straight lines over the layers they hold.

Seconds and bytes of a stage grow by the same with every layer of a kind. A few small plans for each
option tell of all its stages: at the first place of the pipeline, inside it, and at the last.
Traffic between replicas is nearly linear; what is chosen in the end is priced as a whole plan.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astra.cost.evaluate import ROWS_PER_BLOCK
from astra.hardware.cluster import Gpu
from astra.hardware.stack import Stack
from astra.hardware.topology import even_share
from astra.memory.stage import activation_bytes, offload_frees_bytes
from astra.model.layer_kinds import layer_kinds
from astra.model.shape import Model
from astra.strategy.plans import Floats, Ints, Plans, code
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
from astra.strategy.stage_view import stage_view
from astra.timing.layer import LayerCache
from astra.timing.stage import exposed_data_parallel_s, stage_times, stage_work
from astra.timing.stage_work import link_seconds, tied_seconds

FIRST, INSIDE, LAST = PLACES = range(3)  # places of a stage in the pipeline
NO_RECOMPUTE, ALL_LAYERS = Recompute(), Recompute("full:uniform", 1, ())
PLAIN, AGAIN = 0, -1  # rows of lines with the least recompute and with the most: one where alike
NOTHING = 0, 0, 0  # the codes of no recompute
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
EXCHANGE_FIELDS = FIXED_FIELDS[2:7]  # compute, and what replicas exchange and do with it
RECOMPUTE_FIELDS = ("recompute_s", "saved_bytes", "working_bytes")
Pair = tuple[GlobalSetting, SegmentOption]
RecomputeCodes = tuple[int, int, int]  # mode, layers, modules as they stand in a table
Case = tuple[GlobalSetting, SegmentOption, RecomputeCodes]
Key = tuple[object, ...]  # what lines depend on
Price = Callable[[Sequence[Case], Sequence[str]], Floats]  # (field, place, case, 1 + kind)


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
    def whole(self) -> Floats:
        """How many layers of each kind the model has. (kind,)"""
        return self.counts[self.at[-1, -1], 1:]

    @property
    def mean(self) -> Floats:
        """A layer of the mean kind, and nothing else of a stage. (1 + kind,)"""
        return np.append(0.0, self.whole / self.layers)


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


class Exchanges:
    """How replicas of some options exchange parameters and gradients. (option,)"""

    def __init__(self, pairs: Sequence[Pair], stack: Stack) -> None:
        sharding = np.array([setting.sharding for setting, _ in pairs])
        self.by_layer = sharding == "parameters"  # with every micro-batch; else once a step
        self.reduces = self.by_layer | (sharding == "gradients")
        self.copies = np.array([option.dp * setting.cp > 1 for setting, option in pairs])
        self.hides = self.by_layer | ((sharding != "none") & (not stack.owned_tensors))

    def shown_s(
        self, fields: Mapping[str, Floats], recompute_s: Floats | float = 0.0
    ) -> tuple[Floats, Floats]:
        """What shows of gathering and of reducing. (..., option)"""
        gather_s, slow = fields["gather_s"], fields["slowdown"]
        reduce_s = fields["reduce_s"] + np.where(self.by_layer, gather_s, 0.0)
        backward_s, forward_s = (
            fields["backward_compute_s"] + recompute_s,
            fields["forward_compute_s"],
        )
        return (
            exposed_data_parallel_s(gather_s, forward_s, self.copies & self.hides, slow),
            exposed_data_parallel_s(reduce_s, backward_s, self.copies, slow),
        )


class KnownLines:
    """Lines by what they depend on, priced when they are first asked for."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.row_of: dict[Key, int] = {}
        self.lines: Floats = np.zeros(0)  # (field, place, row, 1 + kind)

    def rows(self, keys: Sequence[Key], cases: Sequence[Case], price: Price) -> Ints:
        """The row of every key; `cases` says what to price where it is new."""
        new: list[Case] = []
        for key, case in zip(keys, cases, strict=True):
            if key not in self.row_of:
                self.row_of[key] = len(self.row_of)
                new.append(case)
        if new:
            lines = price(new, self.names)
            self.lines = np.concatenate([self.lines, lines], axis=2) if self.lines.size else lines
        return np.array([self.row_of[key] for key in keys], np.int64)


class LineCache:
    """Lines that are known: shared by all pools of one question."""

    def __init__(self) -> None:
        self.layers = LayerCache()
        self.gpus: dict[Gpu, int] = {}
        self.fixed = KnownLines(FIXED_FIELDS)  # of an option, but for how many stages there are
        self.recomputed = KnownLines(RECOMPUTE_FIELDS)  # of a set of kernels, and what they repeat


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
        gpus = self.known.gpus
        self.gpus = [gpus.setdefault(pool.gpu, len(gpus)) for pool in pools]
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
        self.check()
        codes = [(code("recompute", r.mode), r.layers, r.module_bits) for r in recomputes]
        kernels = [self._kernels_of(*pair) for pair in pairs]
        options: list[Key] = [
            (key, option.dp, setting.sharding, setting.offload_fraction)
            for key, (setting, option) in zip(kernels, pairs, strict=True)
        ]
        fixed, again = self.known.fixed, self.known.recomputed
        self.check()
        own = fixed.rows(options, [(*pair, NOTHING) for pair in pairs], self._priced_lines)
        keys = [(key, each) for each in codes for key in kernels]
        cases = [(*pair, each) for each in codes for pair in pairs]
        rows = again.rows(keys, cases, self._priced_lines).reshape(len(codes), len(pairs))
        repeated = np.moveaxis(again.lines[:, :, rows], 2, 1)  # (field, recompute, place, ...)
        recomputed = dict(zip(again.names, repeated, strict=True))
        working = recomputed.pop("working_bytes")[:, INSIDE, :, 1:]
        return StageLines(
            dict(zip(fixed.names, fixed.lines[:, :, own], strict=True)), recomputed, working
        )

    def mean_exchange_s(self, pairs: Sequence[Pair], lines: StageLines) -> Floats:
        """Of a mean layer, for every micro-batch: what shows of exchanges, and its part of what is
        done at the end of a step. (place, option)
        """
        fields = {name: lines.fixed[name] @ self.layers.mean for name in EXCHANGE_FIELDS}
        fields["slowdown"], exchanges = (
            lines.fixed["slowdown"][..., 0],
            Exchanges(pairs, self.stack),
        )
        gather_s, reduce_s = exchanges.shown_s(fields)
        count = np.array([setting.micro_batches for setting, _ in pairs])
        often_s = exchanges.by_layer * gather_s + exchanges.reduces * reduce_s
        return often_s + (~exchanges.reduces * reduce_s + fields["optimizer_s"]) / count

    def _priced_lines(self, cases: Sequence[Case], names: Sequence[str]) -> Floats:
        """Lines through a few small plans of every case, (field, place, case, 1 + kind); bytes
        while a layer is worked on are no line, but those of one layer of each kind.
        """
        lines = np.zeros((len(names), len(PLACES), len(cases), self.layers.counts.shape[1]))
        for place in PLACES:
            start, size = self.basis[place]
            held = self.layers.counts[self.layers.at[start + size, size]]
            found = self._priced_stages(cases, names, place)
            lines[:, place] = found @ np.linalg.pinv(held).T
            if place == INSIDE and "working_bytes" in names:
                field = names.index("working_bytes")
                for stage in np.flatnonzero(size == 1):
                    kind = held[stage, 1:].argmax()
                    lines[field, place, :, 1 + kind] = found[field, :, stage]
        return lines

    def _kernels_of(self, setting: GlobalSetting, option: SegmentOption) -> Key:
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

    def _priced_stages(self, cases: Sequence[Case], names: Sequence[str], place: int) -> Floats:
        """Every case with each stage of the basis. (field, case, stage)"""
        start, size = self.basis[place]
        case, stage = np.divmod(np.arange(len(cases) * len(size)), len(size))
        found = np.zeros((len(names), len(case)))
        for begin in range(0, len(case), ROWS_PER_BLOCK):
            self.check()
            some = slice(begin, begin + ROWS_PER_BLOCK)
            rows, own = [cases[row] for row in case[some].tolist()], stage[some]
            fields = self._fields(self._small_plans(rows, start[own], size[own], place), place)
            found[:, some] = [fields[name] for name in names]
        return found.reshape(len(names), len(cases), len(size))

    def _small_plans(self, cases: Sequence[Case], start: Ints, size: Ints, place: int) -> Plans:
        """Each stage in a plan where it lies at this place, beside stages of another type.

        Further stages of its option hold nothing: they are there for the GPUs they take.
        """
        settings, options, codes = zip(*cases, strict=True)
        degrees, count = option_columns(options), np.array([each.stages[0] for each in options])
        pool, one, none = degrees["gpu"], np.ones_like(size), np.zeros_like(size)
        other = (pool + 1) % len(self.usable_bytes)
        own = (pool, one, size, *np.array(codes, np.int64).T)
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
        return self._plans(settings, slots)

    def _plans(self, settings: Sequence[GlobalSetting], slots: Columns) -> Plans:
        rows: dict[GlobalSetting, int] = {}
        which = np.array([rows.setdefault(each, len(rows)) for each in settings], np.int64)
        other = {"sequence_parallel": np.array(True)}  # other stages may have tp
        return plans_from_stages(self.workload, list(rows), which, slots, other)

    def _fields(self, plans: Plans, place: int) -> dict[str, Floats]:
        """What is asked of the stage of every plan. (plan,)"""
        view = stage_view(plans, self.workload.task)
        times = stage_times(view, self.stack, stage_work(view, self.stack, self.known.layers))
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

    def links_s(
        self, setting: GlobalSetting, options: Sequence[SegmentOption]
    ) -> tuple[Floats, Floats]:
        """Seconds one way from a stage of an option to the next of another, (option, next); and of
        tied embeddings, on the first stage and on the last, (2, first option, last option).
        """
        degrees, most = option_columns(options), np.array([option.most for option in options])
        pool = degrees["gpu"]
        at, to = np.nonzero((pool[:, np.newaxis] != pool) | np.eye(len(pool), dtype=np.bool_))
        inside, one = at == to, np.ones_like(at)
        other = (pool[to] + 1) % len(self.usable_bytes)
        slots: Columns = {
            name: np.stack([degrees[name][at], degrees[name][to]]) for name in DEGREES
        }
        slots["gpu"] = np.stack([pool[at], np.where(inside, other, pool[to])])
        slots["stages"] = np.stack([np.where(inside, np.maximum(most[at], 2), 1), one])
        slots["layers"] = np.stack([one, one])
        slots |= dict.fromkeys(RECOMPUTE_COLUMNS, np.zeros_like(slots["gpu"]))
        view = stage_view(self._plans([setting] * len(at), slots), self.workload.task)
        links_s, tied_s = np.zeros((len(pool), len(pool))), np.zeros((2, len(pool), len(pool)))
        links_s[at, to] = link_seconds(view.shared, self.stack)[0][0, 0, view.rows]
        if self.model.tied_embeddings:
            tied = tied_seconds(view.shared, self.stack)[..., view.rows][0]
            tied_s[0, at, to] = np.where(view.stages.embedding[0], tied, 0).sum(0)
            tied_s[1, at, to] = np.where(view.stages.head[0], tied, 0).sum(0)
        return links_s, tied_s
