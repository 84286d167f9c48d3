"""Which settings of a plan a search for the same question never tries, and why. On one GPU type."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

import msgspec
import numpy as np

from astra.notes import Note, NoteCode, note
from astra.strategy.enumerate import (
    DERIVED_SETTINGS,
    enumerate_layouts,
    recompute_settings,
    usual_settings,
)
from astra.strategy.plan import Plan
from astra.strategy.plans import code, plan_at, task_of
from astra.strategy.recompute import Recompute
from astra.strategy.space import DIMENSION_BY_NAME, Space, Workload

# What has no meaning on these plans, so that any value of it is the one that is searched.
IDLE_WITHOUT_COPIES = ("sharding", "overlap_grad_reduce", "overlap_param_gather", "shard_group")
IDLE_WITHOUT_TENSOR = ("sequence_parallel", "overlap_tp")
IDLE_WITHOUT_STAGES = ("overlap_p2p",)
IDLE_WITHOUT_CHUNKS = ("microbatch_group",)
IDLE_WITHOUT_CONTEXT = ("cp_comm_type",)
IDLE_WITHOUT_EXPERTS = ("ep", "etp", "overlap_ep", "dispatcher", "capacity_factor")
FUSED_CORE = "flash attention leaves core_attn nothing to drop"


def own_space(plan: Plan) -> Space:
    """All that is searched for the question that a plan answers."""
    task, length = task_of(plan), plan.seq_len
    return Space(Workload(task, plan.global_batch, length, plan.mtp_layers, plan.precision))


def outside_space(plan: Plan, space: Space | None = None) -> tuple[Note, ...]:
    """Notes on what of a plan a space (else that of its own question) does not hold.

    Nothing of plans over several GPU types: those are not enumerated.
    """
    if len(plan.cluster.pools) > 1 or len(plan.pipelines[0].segments) > 1:
        return ()
    return tuple(_notes(plan, settings_outside(plan, space or own_space(plan))))


def settings_outside(plan: Plan, space: Space) -> dict[str, Any]:
    """The settings of a plan of one GPU type that its space does not hold."""
    own = {name: value for name, value in _settings(plan).items() if name not in _idle(plan)}
    usual = {name: (value,) for name, value in usual_settings(space.workload).items()}
    found = {}
    for name, value in own.items():
        values = space.values(name) or usual.get(name)
        if values is not None and _plain(value) not in map(_plain, values):
            found[name] = value
    if "etp" in own and not space.settings.get("etp") and plan.etp not in (1, plan.tp):
        found["etp"] = plan.etp
    return found | _of_layouts(plan, own, space) | _recompute(plan, space)


def _settings(plan: Plan) -> dict[str, Any]:
    """The dimensions of a plan whose values do not depend on its layers, as `--set` calls them."""
    own = msgspec.structs.asdict(plan)
    own["first_moment_dtype"], own["second_moment_dtype"] = plan.moment_dtypes
    own |= {"tp": plan.tp, "pp": plan.pp, "dp": plan.dp}
    if plan.precision != "fp8":
        del own["fp8_recipe"]
    return {name: own[name] for name in DIMENSION_BY_NAME if name in own}


def _idle(plan: Plan) -> set[str]:
    idle = {
        IDLE_WITHOUT_COPIES: plan.dp * plan.cp == 1,
        IDLE_WITHOUT_TENSOR: plan.tp == 1,
        IDLE_WITHOUT_STAGES: plan.pp == 1,
        IDLE_WITHOUT_CHUNKS: plan.vpp == 1,
        IDLE_WITHOUT_CONTEXT: plan.cp == 1,
        IDLE_WITHOUT_EXPERTS: plan.model.moe is None,
    }
    return {name for names, is_idle in idle.items() if is_idle for name in names}


def _plain(value: Any) -> Any:
    """No capacity is NaN in tables and None in plans."""
    return None if value != value else value


def _of_layouts(plan: Plan, own: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """What the layouts with its degrees have otherwise: how layers are split, and what follows."""
    degrees = {
        name: (np.nan if name == "capacity_factor" and value is None else value,)
        for name, value in own.items()
        if name not in DERIVED_SETTINGS and DIMENSION_BY_NAME[name].how != "follows"
    }
    narrow = Space(space.workload, space.settings | degrees)
    rented = list(_layouts(narrow, plan))
    if not rented:
        counts = sum(plan.gpus.values()), plan.cluster.pools[0].count
        any_count = replace(space.workload, use_all=False, gpu_counts=counts)
        is_rented = not list(_layouts(replace(narrow, workload=any_count), plan))
        return {"layers": _split(plan)} if is_rented else {"dp": plan.dp}
    same = [each for each in rented if each.pipelines[0].layers == plan.pipelines[0].layers]
    same = [each for each in same if _chunks(each) == _chunks(plan)]
    if not same:
        return {"layers": _split(plan)}
    names = [name for name in DERIVED_SETTINGS if name in own and name not in space.settings]
    differences = [
        {name: own[name] for name in names if own[name] != getattr(each, name)} for each in same
    ]
    return min(differences, key=len)


def _layouts(space: Space, plan: Plan) -> Iterator[Plan]:
    for table in enumerate_layouts(space):
        yield from (plan_at(table, row, task_of(plan)) for row in range(len(table)))


def _chunks(plan: Plan) -> tuple[int, ...]:
    return tuple(layers for stage in range(plan.pp) for layers in plan.chunks(stage))


def _split(plan: Plan) -> str:
    """Layers of the stages, 8, 8, 8, 6 as `3 x 8, 6`; of the chunks, where those are listed."""
    each = plan.chunk_layers or plan.pipelines[0].layers
    runs = [(len(list(run)), layers) for layers, run in groupby(each)]
    said = ", ".join(f"{count} x {layers}" if count > 1 else f"{layers}" for count, layers in runs)
    return f"{said} (vpp {plan.vpp})" if plan.vpp > 1 else said


def _recompute(plan: Plan, space: Space) -> dict[str, Any]:
    """Recompute of all layers has two names."""
    text = plan.pipelines[0].segments[0].recompute
    wanted, largest = Recompute.parse(text), max(_chunks(plan))
    alike = replace(space, settings=space.settings | {"attention": (plan.attention,)}, memo={})
    rows = recompute_settings(alike, largest).tolist()
    named = [code("recompute", wanted.mode), wanted.layers, wanted.module_bits]
    known = named in rows or (wanted.mode == "full:block" and wanted.layers >= largest)
    return {} if known else {"recompute": text}


def _notes(plan: Plan, found: Mapping[str, Any]) -> Iterator[Note]:
    """One each of what is searched; one of all that follows, and of all that is only asked for."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in found.items():
        how = "follows" if name in DERIVED_SETTINGS else DIMENSION_BY_NAME[name].how
        groups.setdefault(name if how == "searched" else how, {})[name] = value
    for key, settings in groups.items():
        options = [_option(name, value, plan) for name, value in settings.items()]
        yield note(
            NoteCode.OUTSIDE_SPACE,
            how=key if key in ("follows", "asked") else "searched",
            settings={name: _text(value) for name, value in settings.items()},
            why={name: _why(name, plan) for name in settings},
            option=" ".join(options) if all(options) else None,
        )


def _why(name: str, plan: Plan) -> str:
    """What is searched instead."""
    modules = Recompute.parse(plan.pipelines[0].segments[0].recompute).modules
    fused = plan.attention == "flash" and plan.runtime != "deepspeed"
    if name == "recompute" and "core_attn" in modules and fused:
        return FUSED_CORE
    return DIMENSION_BY_NAME[name].why


def _option(name: str, value: Any, plan: Plan) -> str:
    """What would include a value; empty where nothing does."""
    if name == "dp":
        there = sum(pool.count for pool in plan.cluster.pools)
        return "--use-all" if sum(plan.gpus.values()) == there else ""
    return "" if name == "layers" else f"--set {name}={_text(value)}"


def _text(value: Any) -> str:
    """A value as `--set` reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "+".join(value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
