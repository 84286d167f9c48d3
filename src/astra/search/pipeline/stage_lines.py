"""Stages priced by the cost model, as straight lines over the layers they hold.

Seconds and bytes of a stage grow by the same with every layer of a kind. A few small plans for each
option tell of all its stages: at the first place of the pipeline, inside it, and at the last.
Traffic between replicas is nearly linear; what is chosen in the end is priced as a whole plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astra.cost.evaluate import ROWS_PER_BLOCK
from astra.hardware.stack import Stack
from astra.hardware.topology import even_share
from astra.memory.stage import activation_bytes, offload_frees_bytes
from astra.model.layer_kinds import layer_kinds
from astra.model.shape import Model
from astra.search.pipeline.plan_columns import (
    DEGREES,
    RECOMPUTE_COLUMNS,
    Columns,
    GlobalSetting,
    SegmentOption,
    option_columns,
    plans_from_stages,
)
from astra.strategy.plans import Flags, Floats, Ints, Plans, code
from astra.strategy.recompute import Recompute
from astra.strategy.space import Workload
from astra.strategy.stage_view import StageView, stage_view
from astra.timing.layer import LayerCache
from astra.timing.stage import StageTime, stage_times, stage_work

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

    def take(self, options: Ints | slice, recomputes: Ints | slice = slice(None)) -> "StageLines":
        """Of some options and recompute settings."""
        again = {name: each[recomputes][:, :, options] for name, each in self.recomputed.items()}
        fixed = {name: each[:, options] for name, each in self.fixed.items()}
        return StageLines(fixed, again, self.working_bytes[recomputes][:, options])

    def with_more(self, recomputed: dict[str, Floats], working_bytes: Floats) -> "StageLines":
        """The same with further recompute settings."""
        again = {n: np.concatenate([each, recomputed[n]]) for n, each in self.recomputed.items()}
        return StageLines(self.fixed, again, np.concatenate([self.working_bytes, working_bytes]))


class StagePricer:
    """Prices stages and links of one workload."""

    def __init__(
        self, workload: Workload, stack: Stack, margin: float, cache: LayerCache | None = None
    ) -> None:
        self.workload, self.stack, self.margin = workload, stack, margin
        self.cache = LayerCache() if cache is None else cache
        self.model = workload.task.model
        self.layers = stage_layers(self.model)
        pools = workload.task.cluster.pools
        self.last_kind = layer_kinds(self.model).of_layer[-1]  # of MTP layers too
        self.usable_bytes = np.array([pool.gpu.usable_bytes for pool in pools])
        self.basis = [self._basis(place) for place in PLACES]
        self._module_lines: dict[tuple[object, ...], tuple[dict[str, Floats], Floats]] = {}

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
        """Of these options in their settings, with each of these recompute settings."""
        width = self.layers.counts.shape[1]
        shape = len(PLACES), len(pairs), width
        fixed = {name: np.zeros(shape) for name in FIXED_FIELDS}
        again = {name: np.zeros((len(recomputes), *shape)) for name in RECOMPUTE_FIELDS}
        working = np.zeros((len(recomputes), len(pairs), width - 1))
        for place in PLACES:
            start, size = self.basis[place]
            held = self.layers.counts[self.layers.at[start + size, size]]
            solve = np.linalg.pinv(held)
            found = self._priced(pairs, start, size, recomputes, place)  # (recompute, pair, stage)
            for name in RECOMPUTE_FIELDS:
                again[name][:, place] = found[name] @ solve.T
            for name in FIXED_FIELDS:
                fixed[name][place] = found[name][0] @ solve.T
            for stage in np.flatnonzero(size == 1) if place == INSIDE else ():
                kind = held[stage, 1:].argmax()
                working[:, :, kind] = found["working_bytes"][:, :, stage]
        return StageLines(fixed, again, working)

    def module_lines(
        self, pairs: Sequence[Pair], recomputes: Sequence[Recompute]
    ) -> tuple[dict[str, Floats], Floats]:
        """What `StageLines` has of recompute settings that no number of replicas changes; each
        distinct option is priced once for all global settings.
        """
        keys = [(*self._kernels_of(*pair), *recomputes) for pair in pairs]
        known = self._module_lines
        new = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in known}
        if new:
            found = self.lines(list(new.values()), recomputes)
            for row, key in enumerate(new):
                again = {name: each[:, :, row] for name, each in found.recomputed.items()}
                self._module_lines[key] = again, found.working_bytes[:, row]
        own = [known[key] for key in keys]
        again = {n: np.stack([each[n] for each, _ in own], axis=2) for n in RECOMPUTE_FIELDS}
        return again, np.stack([working for _, working in own], axis=1)

    def _kernels_of(self, setting: GlobalSetting, option: SegmentOption) -> tuple[object, ...]:
        """What the kernels of a layer depend on."""
        gpu = self.workload.task.cluster.pools[option.pool].gpu
        used = option.stages[0] * option.stage_gpus
        shares = [int(even_share(used, most)) for most in (gpu.link.domain_gpus, gpu.node.gpus)]
        traffic = setting.cp, setting.cp_comm_type, setting.overlap_tp, setting.overlap_ep
        degrees = option.pool, option.tp, option.micro_batch, option.ep, option.etp
        return (*traffic, *degrees, *shares)

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
        return view, stage_times(view, self.stack, stage_work(view, self.stack, self.cache))

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

    def links_s(
        self, setting: GlobalSetting, options: Sequence[SegmentOption]
    ) -> tuple[Floats, Floats]:
        """Seconds one way from a stage of an option to the next of another, (option, next); and of
        tied embeddings, on the first stage and on the last, (2, first option, last option).
        """
        count, degrees = len(options), option_columns(options)
        at, to = np.divmod(np.arange(count**2), count)
        pool, most = degrees["gpu"], np.array([option.most for option in options])
        there = (pool[at] != pool[to]) | (at == to)
        at, to = at[there], to[there]
        inside, one = at == to, np.ones_like(at)
        slots: Columns = {
            name: np.stack([degrees[name][at], degrees[name][to]]) for name in DEGREES
        }
        other = (pool[to] + 1) % len(self.usable_bytes)
        slots["gpu"] = np.stack([pool[at], np.where(inside, other, pool[to])])
        slots["stages"] = np.stack([np.where(inside, np.maximum(most[at], 2), 1), one])
        slots["layers"] = np.stack([one, one])
        slots |= dict.fromkeys(RECOMPUTE_COLUMNS, np.zeros_like(slots["gpu"]))
        link_s, tied_s = np.zeros((count, count)), np.zeros((2, count, count))
        for begin in range(0, len(at), ROWS_PER_BLOCK):
            some = slice(begin, begin + ROWS_PER_BLOCK)
            part = {name: column[:, some] for name, column in slots.items()}
            view, times = self._times(self._plans([setting] * len(at[some]), part))
            link_s[at[some], to[some]] = times.part("link_s")[0, 0]
            if self.model.tied_embeddings:
                tied = times.tied_s()[0]
                tied_s[0, at[some], to[some]] = np.where(view.stages.embedding[0], tied, 0).sum(0)
                tied_s[1, at[some], to[some]] = np.where(view.stages.head[0], tied, 0).sum(0)
        return link_s, tied_s
