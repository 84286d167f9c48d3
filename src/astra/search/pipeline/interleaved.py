"""Interleaved pipelines over several GPU types: one parallel config, chunks by speed.

A first look orders configs with their numbers of stages by the least step they can have. For the
best of them, every number of chunks and every recompute setting is estimated; the best of these are
laid out in every order of types, with several chunk sizes, and simulated on the lines of their
stages. Sizes of the best are moved by a layer; the evaluator prices what is left as whole plans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import permutations, product

import numpy as np

from astra.search.evaluator import Evaluator
from astra.search.pipeline.chunk_sizes import neighbours, sized
from astra.search.pipeline.chunked_stages import (
    ChunkedPipelines,
    ChunkedStages,
    ParallelConfig,
    StagePaces,
    joined,
)
from astra.search.pipeline.plan_columns import SegmentOption, option_columns, plans_from_stages
from astra.search.pipeline.settings import recompute_settings, settings_with_options
from astra.search.pipeline.stage_lines import ALL_LAYERS, INSIDE, LAST, NO_RECOMPUTE, StagePricer
from astra.strategy.microbatch_group import least_microbatch_group
from astra.strategy.plans import Flags, Floats, Ints, Plans, code
from astra.strategy.recompute import Recompute
from astra.strategy.space import Space

PROSPECTS = 48  # configs with numbers of stages that are looked at together
MAX_PROSPECTS = 480  # in all
SHAPES = 96  # of them: with vpp and recompute, laid out together in every order
MAX_SHAPES = 960  # in all
MAX_REFINED = 32  # of those: all chunk sizes worth a try
MAX_MOVED = 16  # of those: chunk sizes moved by a layer
MAX_ROUNDS = 6  # of such moves
MAX_PRICED = 240  # pipelines that are priced as whole plans
COUNTS = 2  # most stages of a type that are tried: all, and one fewer
SMALL_COUNTS = 4  # numbers of stages of a type that are all tried
SLACK = 1.01  # prospects whose bound is so far above the best may still win
SHAPE_SLACK = 1.05  # and shapes whose estimate is
HALVINGS = 24


@dataclass(frozen=True, slots=True)
class _Prospects:
    """Configs with a number of stages of every type. (prospect,)"""

    config: Ints
    options: Ints  # (prospect, type) of all options; 0 where there are no stages
    counts: Ints  # (prospect, type) stages
    bound_s: Floats  # about the least step

    def __len__(self) -> int:
        return len(self.config)

    def take(self, rows: Ints | Flags) -> "_Prospects":
        return _Prospects(*(getattr(self, each.name)[rows] for each in fields(self)))


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Prospects with a number of chunks and a recompute setting. (shape,)"""

    prospect: Ints
    recompute: Ints
    vpp: Ints
    estimate_s: Floats

    def take(self, rows: Ints) -> "_Shapes":
        return _Shapes(*(getattr(self, each.name)[rows] for each in fields(self)))


@dataclass(slots=True)
class _Estimated:
    """Pipelines of one depth with their estimated steps, best first."""

    stages: ChunkedStages
    pipelines: ChunkedPipelines
    step_s: Floats


class InterleavedPipeline:
    """Pipelines over several types that Megatron-LM interleaves."""

    name = "interleaved"

    def __init__(self, space: Space) -> None:
        self.space, self.workload = space, space.workload
        self.task = space.workload.task
        self.layers = self.task.model.layers
        asked = space.settings.get("vpp", range(2, self.layers // 2 + 1))
        self.vpps = np.array([vpp for vpp in asked if 2 <= vpp <= self.layers // 2], np.int64)

    def search(self, evaluator: Evaluator) -> float:
        """Hands the best pipelines to the evaluator; no bound is known for the others: 0."""
        self.pricer = StagePricer(
            self.workload, evaluator.stack, evaluator.margin, evaluator.cache
        )
        configs = self._configs(evaluator) if len(self.vpps) else []
        if not configs:
            return np.inf
        first = ChunkedStages(self.pricer, configs, [NO_RECOMPUTE, ALL_LAYERS])
        prospects = self._prospects(first, configs)
        evaluator.charge(len(prospects))
        order = np.argsort(prospects.bound_s, kind="stable")[:MAX_PROSPECTS]
        found: list[_Estimated] = []
        best_s = np.inf
        for start in range(0, len(order), PROSPECTS):
            some = prospects.take(order[start : start + PROSPECTS])
            limit_s = min(best_s * SLACK, evaluator.limit_s)
            some = some.take(some.bound_s < limit_s)
            if not len(some):
                break
            found += self._estimated(evaluator, configs, first, some, limit_s)
            best_s = min([best_s, *(float(each.step_s[0]) for each in found)])
        self._price(evaluator, found)
        return 0.0

    def _configs(self, evaluator: Evaluator) -> list[ParallelConfig]:
        """With the traffic of experts in the open and hidden."""
        found: list[ParallelConfig] = []
        known = settings_with_options(self.space, evaluator.rules)
        for hides in self.space.values("overlap_ep") or (False,):
            for setting, options in known:
                hidden = (setting.shared.ep or 1) > 1
                if len({each.pool for each in options}) > 1 and (hidden or not hides):
                    changed = replace(setting, overlap_ep=hides)
                    found.append(ParallelConfig(changed, tuple(options)))
        return found

    def _prospects(self, first: ChunkedStages, configs: Sequence[ParallelConfig]) -> _Prospects:
        """Every config with numbers of stages of two types or more, and about its least step:

            T >= (K + (p - 1) / v) L / sum over stages of 1 / t

        with t the seconds of a layer with nothing recomputed, and v the most chunks.
        """
        pools = len(self.task.cluster.pools)
        overlapping = {
            replace(each.setting, overlap_tp=True): {option.pool for option in each.options}
            for each in configs
            if each.setting.overlap_tp
        }
        tables = []
        known: dict[object, tuple[Ints, Ints]] = {}
        for row, config in enumerate(configs):
            key = tuple((option.pool, option.stages) for option in config.options)
            if key not in known:
                known[key] = self._stage_counts(config.options, pools)
            local, counts = known[key]
            good = self._allowed(config, counts)
            if not config.setting.overlap_tp:
                same = overlapping.get(replace(config.setting, overlap_tp=True), set())
                others = [pool for pool in range(pools) if pool not in same]
                if same:
                    good &= counts[:, others].any(axis=1)
            local, counts = local[good], counts[good]
            options = np.where(counts > 0, first.first_option[row] + local, 0)
            tables.append((np.full(len(counts), row), options, counts))
        config_row, options, counts = (np.concatenate(each) for each in zip(*tables, strict=True))
        bound_s = self._bound_s(first, config_row, options, counts)
        found = _Prospects(config_row, options, counts, bound_s)
        return found.take(np.isfinite(bound_s))

    def _stage_counts(self, options: Sequence[SegmentOption], pools: int) -> tuple[Ints, Ints]:
        """Options and numbers of stages of every type. (row, type)"""
        scarce = self.task.cluster.max_gpus is not None
        choices: list[list[tuple[int, int]]] = []
        for pool in range(pools):
            own = [] if self.workload.use_all else [(0, 0)]
            for row, option in enumerate(options):
                if option.pool == pool:
                    many = len(option.stages) > SMALL_COUNTS
                    counts = option.stages[-COUNTS:] if many else option.stages
                    if many and scarce:
                        counts = (*option.stages[:: -(len(option.stages) // 8 or 1)],)
                    own += [(row, count) for count in counts]
            choices.append(own)
        table = np.array(list(product(*choices)), np.int64).reshape(-1, pools, 2)
        return table[..., 0], table[..., 1]

    def _allowed(self, config: ParallelConfig, counts: Ints) -> Flags:
        stages = counts.sum(axis=1)
        good = ((counts > 0).sum(axis=1) > 1) & (stages * int(self.vpps.min()) <= self.layers)
        most = self.task.cluster.max_gpus
        if most is not None:
            good &= stages * config.options[0].stage_gpus <= most
        grouped = [
            least_microbatch_group(depth, config.setting.micro_batches) is not None
            and self.space.allows("pp", depth)
            for depth in range(2, int(stages.max(initial=1)) + 1)
        ]
        return good & np.array([False, False, *grouped])[stages]

    def _bound_s(
        self, first: ChunkedStages, config: Ints, options: Ints, counts: Ints
    ) -> Floats:
        """About the least step of prospects; infinite where their memory is too small."""
        none = np.zeros_like(options)
        stages, used = counts.sum(axis=1), counts > 0
        one, inside = np.ones(len(config), np.int64), np.full_like(none, INSIDE)
        layer_s = first.paces(config, one * 0, one, options, inside, stages).layer_s
        rate = np.where(used, counts / layer_s, 0.0).sum(axis=1)
        most_chunks = np.maximum(self.layers // np.maximum(stages, 1), 1)
        turns = first.micro_batches[config] + (stages - 1) / most_chunks
        two = np.full(len(config), 2)
        held = first.in_flight(config, two, stages, none)
        size = first.max_sizes(two * 0 + 1, two, options, inside, held)
        fits = np.where(used, counts * (2 * size + 1), 0).sum(axis=1) + 2 * size.max(axis=1)
        return np.where(fits >= self.layers, turns * self.layers / rate, np.inf)

    def _estimated(
        self,
        evaluator: Evaluator,
        configs: Sequence[ParallelConfig],
        first: ChunkedStages,
        prospects: _Prospects,
        limit_s: float,
    ) -> list[_Estimated]:
        """The best pipelines of some prospects, by the lines of their stages."""
        rows, own = np.unique(prospects.config, return_inverse=True)
        recomputes = [each or NO_RECOMPUTE for each in recompute_settings(self.space)]
        stages = ChunkedStages(self.pricer, [configs[row] for row in rows.tolist()], recomputes)
        moved = stages.first_option[own] - first.first_option[prospects.config]
        options = np.where(prospects.counts > 0, prospects.options + moved[:, np.newaxis], 0)
        prospects = replace(prospects, config=own.reshape(-1), options=options)
        shapes = self._shapes(stages, prospects)
        evaluator.charge(len(shapes.vpp))
        order = np.argsort(shapes.estimate_s, kind="stable")
        found: list[_Estimated] = []
        for start in range(0, min(len(order), MAX_SHAPES), SHAPES):
            best = order[start : start + SHAPES]
            best = best[shapes.estimate_s[best] < limit_s * SHAPE_SLACK]
            if not len(best):
                break
            for table in self._ordered(prospects, shapes.take(best)):
                found += self._laid_out(evaluator, stages, table)
            limit_s = min([limit_s, *(float(each.step_s[0]) for each in found)])
        return found

    def _shapes(self, stages: ChunkedStages, prospects: _Prospects) -> _Shapes:
        """Every number of chunks and recompute setting, with an estimate of the step:

            T = (K - 1) B + S / v

        B the least pace at which whole chunks hold the model, S the seconds of all its layers.
        """
        shape = (len(prospects), len(stages.recomputes), len(self.vpps))
        prospect, recompute, chunks = (axis.reshape(-1) for axis in np.indices(shape))
        vpp = self.vpps[chunks]
        depth = prospects.counts.sum(axis=1)
        cannot_hide = np.array([_shows_experts(each) for each in stages.recomputes])
        good = depth[prospect] * vpp <= self.layers
        good &= ~((stages.hides[prospects.config[prospect]] > 0) & cannot_hide[recompute])
        prospect, recompute, vpp = prospect[good], recompute[good], vpp[good]
        config, options = prospects.config[prospect], prospects.options[prospect]
        counts = prospects.counts[prospect]
        groups = np.array(
            [
                least_microbatch_group(int(p), int(stages.micro_batches[c])) or 0
                for p, c in zip(depth, prospects.config, strict=True)
            ]
        )
        inside, none = np.full_like(options, INSIDE), np.zeros_like(options)
        group, deep = groups[prospect], depth[prospect]
        held = stages.in_flight(config, vpp, group, none)
        most = stages.max_sizes(recompute, vpp, options, inside, held)
        held = stages.in_flight(config, vpp, group, _stages_below(most, counts))
        most = stages.max_sizes(recompute, vpp, options, inside, held)
        paces = stages.paces(config, recompute, vpp, options, inside, deep)
        last = stages.paces(config, recompute, vpp, options, inside * 0 + LAST, deep)
        head_s = np.where(counts > 0, (last.ends_s - paces.ends_s) / paces.layer_s, np.inf)
        needed = self.layers + head_s.min(axis=1)
        pace_s, layers = _type_pace_s(paces, counts, most, vpp, needed)
        work_s = (layers * paces.layer_s).sum(axis=1)
        work_s *= self.layers / np.maximum(layers.sum(axis=1), 1)
        estimate_s = (stages.micro_batches[config] - 1) * pace_s + work_s / vpp
        return _Shapes(prospect, recompute, vpp, estimate_s)

    def _ordered(self, prospects: _Prospects, shapes: _Shapes) -> Iterator[ChunkedPipelines]:
        """The shapes with their types in every order, a table for every depth."""
        tables: dict[int, list[tuple[int, Ints]]] = {}
        for row, prospect in enumerate(shapes.prospect.tolist()):
            counts, options = prospects.counts[prospect], prospects.options[prospect]
            for order in permutations(np.flatnonzero(counts).tolist()):
                line = np.repeat(options[list(order)], counts[list(order)])
                tables.setdefault(len(line), []).append((row, line))
        for lines in tables.values():
            rows = np.array([row for row, _ in lines])
            options = np.stack([line for _, line in lines])
            zeros = np.zeros(len(rows), np.int64)
            yield ChunkedPipelines(
                config=prospects.config[shapes.prospect[rows]],
                recompute=shapes.recompute[rows],
                vpp=shapes.vpp[rows],
                options=options,
                sizes=np.zeros_like(options),
                short_first=zeros,
                short_last=zeros,
            )

    def _laid_out(
        self, evaluator: Evaluator, stages: ChunkedStages, table: ChunkedPipelines
    ) -> list[_Estimated]:
        """The best chunk sizes of pipelines of one depth."""
        rough, origin = sized(stages, table, every=False)
        evaluator.charge(len(rough))
        rough_s = stages.steps_s(rough)
        order = np.argsort(rough_s, kind="stable")
        fitting = order[np.isfinite(rough_s[order])]
        rows = list(dict.fromkeys(origin[fitting].tolist()))
        others = [row for row in range(len(table)) if row not in set(rows)]
        some = np.array([*rows, *others][:MAX_REFINED])
        fine, _ = sized(stages, table.take(some), every=True)
        evaluator.charge(len(fine))
        both = joined([rough.take(fitting), fine])
        found = _best(stages, both, np.concatenate([rough_s[fitting], stages.steps_s(fine)]))
        for _ in range(MAX_ROUNDS if len(found.step_s) else 0):
            moved = neighbours(found.pipelines.take(slice(MAX_MOVED)), self.layers)
            known = set(found.pipelines.keys())
            new = moved.take(np.array([key not in known for key in moved.keys()], np.bool_))
            evaluator.charge(len(new))
            before = float(found.step_s[0])
            every_s = np.concatenate([found.step_s, stages.steps_s(new)])
            found = _best(stages, joined([found.pipelines, new]), every_s)
            if float(found.step_s[0]) >= before:
                break
        return [found] if len(found.step_s) else []

    def _price(self, evaluator: Evaluator, found: Sequence[_Estimated]) -> None:
        """The best of all as whole plans."""
        every = np.concatenate([each.step_s for each in found]) if found else np.zeros(0)
        if not len(every):
            return
        limit_s = np.sort(every)[: MAX_PRICED][-1]
        for each in found:
            some = np.flatnonzero(each.step_s <= limit_s)[:MAX_PRICED]
            if len(some):
                evaluator.steps_s(self._plans(each.stages, each.pipelines.take(some)))

    def _plans(self, stages: ChunkedStages, pipelines: ChunkedPipelines) -> Plans:
        """Pipelines as a table of plans, a slot for every stage."""
        degrees = option_columns([option for _, option in stages.pairs])
        chunks = pipelines.chunk_layers
        again = [stages.recomputes[row] for row in pipelines.recompute.tolist()]
        shape = pipelines.options.T.shape
        slots = {name: column[pipelines.options.T] for name, column in degrees.items()}
        slots |= {
            "stages": np.ones(shape, np.int64),
            "layers": chunks.sum(axis=1).T,
            "recompute": _wide([code("recompute", each.mode) for each in again], shape),
            "recompute_layers": _wide([each.layers for each in again], shape),
            "recompute_modules": _wide([each.module_bits for each in again], shape),
        }
        lists: dict[tuple[int, ...], int] = {}
        listed = np.full(len(pipelines), -1, np.int64)
        for row in np.flatnonzero(pipelines.short_first + pipelines.short_last).tolist():
            flat = tuple(chunks[row, : pipelines.vpp[row]].reshape(-1).tolist())
            listed[row] = lists.setdefault(flat, len(lists))
        other = {
            "vpp": pipelines.vpp,
            "microbatch_group": stages.groups(pipelines.stages, pipelines.config),
            "chunking": listed,
            "overlap_p2p": np.array(True),
            "schedule": np.array(code("schedule", "interleaved")),
        }
        settings = [config.setting for config in stages.configs]
        return plans_from_stages(
            self.workload, settings, pipelines.config, slots, other, tuple(lists)
        )


def _wide(values: Sequence[int], shape: tuple[int, ...]) -> Ints:
    return np.broadcast_to(np.array(values, np.int64), shape)


def _shows_experts(recompute: Recompute) -> bool:
    """Whether Megatron-LM cannot hide the traffic of experts beside this recompute."""
    return recompute.mode.startswith("full") or "moe" in recompute.modules


def _best(stages: ChunkedStages, pipelines: ChunkedPipelines, step_s: Floats) -> _Estimated:
    """The best of them, each once."""
    order = np.argsort(step_s, kind="stable")
    order = order[np.isfinite(step_s[order])][: 4 * MAX_PRICED]
    keys = pipelines.take(order).keys()
    first = {key: place for place, key in reversed(list(enumerate(keys)))}
    order = order[sorted(first.values())][:MAX_PRICED]
    return _Estimated(stages, pipelines.take(order), step_s[order])


def _stages_below(room: Ints, counts: Ints) -> Ints:
    """Stages below the middle one of every type, if those with most room come first."""
    order = np.argsort(-room, axis=1, kind="stable")
    along = np.take_along_axis(counts, order, axis=1)
    below = along.sum(axis=1, keepdims=True) - np.cumsum(along, axis=1)
    found = np.zeros_like(counts)
    np.put_along_axis(found, order, below + np.maximum(along - 1, 0) // 2, axis=1)
    return found


def _type_pace_s(
    paces: StagePaces, counts: Ints, most: Ints, vpp: Ints, layers: Floats
) -> tuple[Floats, Ints]:
    """The least pace at which stages hold the model in whole chunks, one of them in part; and the
    layers on each type. (shape,), (shape, type)
    """
    v = vpp[:, np.newaxis]

    def held(pace_s: Floats) -> tuple[Ints, Ints]:
        can = np.minimum(paces.layers_at(pace_s), most * v)
        whole = can // v * v
        part = np.where(counts > 0, can - whole, 0).max(axis=1)
        return counts * whole, part

    low, high = np.zeros(len(vpp)), paces.stage_s(layers[:, np.newaxis] + 1).max(axis=1)
    total, part = held(high)
    never = total.sum(axis=1) + part < layers
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        total, part = held(middle)
        holds = total.sum(axis=1) + part >= layers
        low, high = np.where(holds, low, middle), np.where(holds, middle, high)
    return np.where(never, np.inf, high), held(high)[0]
