"""Why no plan fits, and the smallest changes that help."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from astra.cost.host import pool_usable_ram_bytes, ram_too_small
from astra.cost.price import price_plans
from astra.hardware.topology import allowed_counts
from astra.notes import Note, NoteCode, note
from astra.search.evaluator import Evaluator, Limits, evaluator_of
from astra.search.objective import Fastest
from astra.search.one_type import any_fits as any_plan_fits
from astra.search.one_type import search_best
from astra.search.query import Query
from astra.search.result import Funnel, NothingFits
from astra.strategy.enumerate import enumerate_layouts
from astra.strategy.plans import plan_at
from astra.strategy.space import Space

GROWTH = (2, 4, 8, 16, 32, 64)  # times as many GPUs that are tried when nothing fits
LEAST_MEMORY: dict[str, tuple[Any, ...]] = {  # settings that need the least of it
    "micro_batch": (1,),
    # groups of N layers: checkpoints of L / N and N layers at work, least at N near sqrt(L)
    "recompute": tuple(f"full:uniform:{layers}" for layers in range(1, 13)),
    "offload_optimizer_fraction": (1.0,),
    "overlap_ep": (False,),
}


def nothing_fits(query: Query, searched: Evaluator, limits: Limits | None = None) -> NothingFits:
    """The binding constraint: the space is empty, rules empty it, or memory does; or time was."""
    if limits and limits.stopped:
        return NothingFits(closest=None, reasons=(note(NoteCode.NO_PLAN_YET),))
    need, hosted = searched.least_host
    closest = searched.closest[1] if hosted is None else hosted
    if closest is None:
        return _no_candidates(query, searched.funnel)
    (plan,) = price_plans([plan_at(closest, 0, query.task)], query.margin)
    if hosted is not None:
        reason = ram_too_small(need, searched.usable_ram_bytes)
    else:
        reason = note(
            NoteCode.MEMORY_BINDS,
            stage=plan.memory.worst_stage,
            gpu=plan.memory.worst.gpu,
            needed_bytes=plan.memory.reserved_bytes,
            usable_bytes=plan.memory.usable_bytes * (1 - query.margin),
        )
    return NothingFits(closest=plan, reasons=(reason,), suggestions=_suggestions(query))


def _no_candidates(query: Query, funnel: Funnel) -> NothingFits:
    """No plan was left to price: what the rule that removes most of them speaks of may change."""
    if not funnel.candidates:
        return _contradiction(query)
    removed = sorted(funnel.removed_by_rule.items(), key=lambda item: -item[1])
    if not removed:
        return NothingFits(closest=None, reasons=(note(NoteCode.NONE_AS_ASKED),), suggestions=())
    first = next(rule for rule in query.rules if rule.name == removed[0][0])
    return NothingFits(
        closest=None,
        reasons=(note(NoteCode.RULES_BIND, reason=first.reason, removed=dict(removed[:3])),),
        suggestions=(
            note(NoteCode.TRY_OTHER_SETTING, settings=first.settings),
            note(NoteCode.TRY_FEWER_SETTINGS_OR_RULES),
        ),
    )


def _contradiction(query: Query) -> NothingFits:
    """No combination of degrees exists: the settings that leave none, each tried without."""
    space = query.space
    asked = {name: ",".join(map(str, values)) for name, values in query.settings.items()}
    tries = []
    for name, values in asked.items():
        rest = {key: allowed for key, allowed in query.settings.items() if key != name}
        if query.suggest and any(map(len, enumerate_layouts(Space(space.workload, rest)))):
            searched = list(Space(space.workload).values(name) or ())
            code = NoteCode.TRY_WITHOUT_SETTING
            tries.append(note(code, setting=name, values=values, searched=searched))
    reason = note(
        NoteCode.SETTINGS_BIND,
        settings=asked,
        global_batch=query.global_batch,
        gpus=sum(pool.count for pool in query.cluster.pools),
    )
    other = (note(NoteCode.TRY_OTHER_BATCH_OR_GPUS), note(NoteCode.TRY_FEWER_SETTINGS))
    return NothingFits(closest=None, reasons=(reason,), suggestions=tuple(tries) or other)


def _suggestions(query: Query) -> tuple[Note, ...]:
    """The smallest changes that help, found by looking for a plan that fits."""
    if not query.suggest:
        return ()
    found = [*_without_settings(query), *_more_gpus(query)]
    length = query.seq_len
    while length > 1024:
        length //= 2
        if any_fits(replace(query, seq_len=length)):
            found.append(note(NoteCode.TRY_SEQ_LEN, seq_len=length))
            break
    return tuple(found) or (note(NoteCode.TRY_LARGER_GPU),)


def _without_settings(query: Query) -> list[Note]:
    """Settings that were asked for, each left out: what is the best plan then? If no single one
    helps, all of them.
    """

    def best_without(names: list[str]) -> list[Note]:
        rest = {name: values for name, values in query.settings.items() if name not in names}
        found = search_best(replace(query, top=1, settings=rest)).plans()
        code = NoteCode.TRY_WITHOUT_SETTINGS
        return [note(code, settings=names, summary=plan.summary()) for plan in found]

    names = list(query.settings)
    helping = [each for name in names for each in best_without([name])]
    return helping if helping or len(names) < 2 else best_without(names)


def _more_gpus(query: Query) -> list[Note]:
    """The fewest GPUs that hold a plan: doubled until one fits, then halved in between."""
    pool = query.cluster.pools[0]
    growth = (times * pool.count for times in GROWTH)
    most = next((count for count in growth if any_fits(with_count(query, count))), None)
    if most is None:
        return []
    larger, fewer = msgspec.structs.replace(pool, count=most), most // GROWTH[0]
    counts = [count for count in allowed_counts(larger) if count > fewer]
    fewest = least_of(counts, lambda count: any_fits(with_count(query, count)))
    return [note(NoteCode.TRY_GPUS, count=fewest, gpu=None)]


def least_of(counts: list[int], enough: Callable[[int], bool]) -> int:
    """The first count that is enough: more is never worse; the last is taken as enough."""
    return counts[bisect_left(counts, True, hi=len(counts) - 1, key=enough)]


def with_count(query: Query, count: int) -> Query:
    """The same on so many GPUs of its first type."""
    return query.on_pools((msgspec.structs.replace(query.cluster.pools[0], count=count),))


def any_fits(query: Query) -> bool:
    """Whether a plan fits, with all that saves memory turned on unless asked otherwise."""
    saving = LEAST_MEMORY
    if np.isfinite(pool_usable_ram_bytes(query.cluster.pools)):
        saving = LEAST_MEMORY | {"offload_optimizer_fraction": (0.0, 1.0)}  # RAM may be too small
    return any_plan_fits(query.space.narrowed(saving), evaluator_of(query, Fastest(1)))
