"""The plan of someone who does not look: every GPU, one tp, equal layers on every stage."""

from dataclasses import replace

import numpy as np

from astra.search.evaluator import Evaluator
from astra.strategy.complete import split_layers
from astra.strategy.plans import Plans
from astra.strategy.segment_columns import (
    DEGREES,
    RECOMPUTE_COLUMNS,
    Columns,
    GlobalSetting,
    SegmentOption,
    option_columns,
    plans_from_stages,
)
from astra.strategy.segment_options import settings_with_options
from astra.strategy.space import Space
from astra.strategy.variants import variants_of


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
    evaluator.run(lambda each: each.search_table(plans))
    return evaluator.best_s if np.isfinite(evaluator.best_s) else None


def _layouts(space: Space, rows: list[tuple[GlobalSetting, list[SegmentOption]]]) -> Plans:
    """Equal layers on all stages of these options, nothing recomputed; a slot for every stage."""
    lines = [[o for o in options for _ in range(o.most)] for _, options in rows]
    shape = max(len(line) for line in lines), len(rows)
    names = ("gpu", "stages", "layers", *RECOMPUTE_COLUMNS)
    slots: Columns = {name: np.zeros(shape, np.int64) for name in names}
    slots |= {name: np.ones(shape, np.int64) for name in DEGREES}
    for row, line in enumerate(lines):
        own = option_columns(line) | {"stages": np.ones(len(line), np.int64)}
        own["layers"] = np.array(split_layers(space.workload.task.model.layers, len(line)))
        for name, column in own.items():
            slots[name][: len(line), row] = column
    settings = [setting for setting, _ in rows]
    return plans_from_stages(space.workload, settings, np.arange(len(rows)), slots)
