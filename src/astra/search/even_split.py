"""The plan of someone who does not look: every GPU, one tp, equal layers on every stage."""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from astra.search.evaluator import Evaluator, Stopped
from astra.strategy.complete import split_layers
from astra.strategy.plans import Plans
from astra.strategy.segment_columns import (
    GlobalSetting,
    SegmentOption,
    option_columns,
    plans_from_stages,
    stage_slots,
)
from astra.strategy.segment_options import settings_with_options
from astra.strategy.space import Space
from astra.strategy.variants import variants_of

SIMULATED = 100  # even splits of the least bounds


def even_split_s(space: Space, evaluator: Evaluator) -> float | None:
    """The least step of all even splits over all GPUs; None where none fits. [s]

    Types in order of their names, all layers recomputed or none.
    """
    pinned = {"mesh_dp": (False,), "cp": (1,), "etp": (1,), "sharding": ("optimizer",)}
    asked = space.settings
    if any(set(asked.get(name, own)).isdisjoint(own) for name, own in pinned.items()):
        return None
    nothing = {"offload_optimizer_fraction": (0.0,)}
    whole = replace(space.workload, use_all=True)
    alike = Space(whole, {**asked, **pinned, **nothing})
    task = space.workload.task
    rows: list[tuple[GlobalSetting, list[SegmentOption]]] = []
    for setting, options in settings_with_options(alike, evaluator.rules):
        for tp in {option.tp for option in options}:
            own = [option for option in options if option.tp == tp]  # one of each type, or none
            own.sort(key=lambda option: task.cluster.pools[option.pool].gpu.name)
            stages = sum(option.most for option in own)
            if len(own) == len(task.cluster.pools) and stages <= task.model.layers:
                rows.append((setting, own))
    if not rows:
        return None
    variants = {**nothing, **asked, "recompute": ("none", "full:uniform:1")}
    plans = variants_of(_layouts(space, rows), Space(whole, variants))
    with suppress(Stopped):
        evaluator.steps_s(plans.take(evaluator.promising(plans, SIMULATED)))
    return evaluator.best_s if np.isfinite(evaluator.best_s) else None


def _layouts(space: Space, rows: list[tuple[GlobalSetting, list[SegmentOption]]]) -> Plans:
    """Equal layers on all stages of these options, nothing recomputed."""
    stages = []
    for _, options in rows:
        own = option_columns([option for option in options for _ in range(option.most)])
        layers = split_layers(space.workload.task.model.layers, len(own["gpu"]))
        stages.append({**own, "layers": np.array(layers)})
    settings = [setting for setting, _ in rows]
    return plans_from_stages(space.workload, settings, np.arange(len(rows)), stage_slots(stages))
