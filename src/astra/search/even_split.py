"""The plan of someone who does not look: every GPU, one tp, equal layers on every stage."""

from dataclasses import replace

import numpy as np

from astra.hardware.topology import allowed_counts
from astra.search.evaluator import Evaluator
from astra.strategy.complete import split_layers
from astra.strategy.plans import Plans, code
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

TPS = (1, 2, 4, 8)


def even_split_s(space: Space, evaluator: Evaluator) -> float | None:
    """The least step of all even splits over all GPUs; None where none fits. [s]

    Types in order of their names, all layers recomputed or none.
    """
    pinned = {"mesh_dp": (False,), "cp": (1,), "etp": (1,), "sharding": ("optimizer",)}
    asked = space.settings
    if any(set(asked.get(name, own)).isdisjoint(own) for name, own in pinned.items()):
        return None
    tps = tuple(tp for tp in TPS if space.allows("tp", tp))
    alike = Space(replace(space.workload, use_all=True), {**asked, **pinned, "tp": tps})
    pools = space.workload.task.cluster.pools
    rows: list[tuple[GlobalSetting, list[SegmentOption]]] = []
    for setting, options in settings_with_options(alike, evaluator.rules):
        for tp in tps:
            own = [option for option in options if option.tp == tp]
            own.sort(key=lambda option: pools[option.pool].gpu.name)
            if _is_whole(own, space):
                rows.append((setting, own))
    if not rows:
        return None
    evaluator.run(lambda each: each.search_table(_plans(space, rows)))
    return evaluator.best_s if np.isfinite(evaluator.best_s) else None


def _is_whole(options: list[SegmentOption], space: Space) -> bool:
    """Whether these take all GPUs of every type."""
    pools = space.workload.task.cluster.pools
    if {option.pool for option in options} != set(range(len(pools))) or len(options) > len(pools):
        return False
    stages = sum(option.most for option in options)
    enough = all(
        option.most * option.stage_gpus == allowed_counts(pools[option.pool])[-1]
        for option in options
    )
    return enough and stages <= space.workload.task.model.layers


def _plans(space: Space, rows: list[tuple[GlobalSetting, list[SegmentOption]]]) -> Plans:
    """Each with no layer recomputed, and with all; a slot for every stage."""
    lines = [[o for o in options for _ in range(o.most)] for _, options in rows]
    shape = max(len(line) for line in lines), 2 * len(rows)
    names = ("gpu", "stages", "layers", *RECOMPUTE_COLUMNS)
    slots: Columns = {name: np.zeros(shape, np.int64) for name in names}
    slots |= {name: np.ones(shape, np.int64) for name in DEGREES}
    for row, line in enumerate(lines):
        here, both = slice(0, len(line)), slice(2 * row, 2 * row + 2)
        for name, column in option_columns(line).items():
            slots[name][here, both] = column[:, np.newaxis]
        layers = split_layers(space.workload.task.model.layers, len(line))
        slots["stages"][here, both], slots["layers"][here, both] = 1, np.array([layers] * 2).T
        slots["recompute"][here, 2 * row + 1] = code("recompute", "full:uniform")
        slots["recompute_layers"][here, 2 * row + 1] = 1
    which = np.repeat(np.arange(len(rows)), 2)
    return plans_from_stages(space.workload, [setting for setting, _ in rows], which, slots)
