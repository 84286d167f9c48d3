"""Pipelines that a search found, as a table of plans."""

import numpy as np

from astra.search.mixed.columns import DEGREES, kind_columns, plans_table
from astra.search.mixed.labels import Round
from astra.search.mixed.loads import FIRST, INSIDE, LAST
from astra.search.mixed.tables import Tables
from astra.strategy.plans import Ints, Plans
from astra.strategy.space import Space

Made = list[Round]


def whole_plans(space: Space, tables: Tables, made: Made, depth: Ints, row: Ints) -> Plans:
    """Pipelines as a table of plans: `row` of the ends of round `depth`. A slot per stage."""
    most = int(depth.max()) + 2
    names = ("gpu", "stages", "layers", "recompute", "recompute_layers")
    slots = {name: np.zeros((most, len(row)), np.int64) for name in names}
    slots |= {name: np.ones((most, len(row)), np.int64) for name in DEGREES}
    slots["recompute_modules"] = np.full_like(slots["gpu"], tables.cell.recompute.module_bits)
    kind, size, load, parent = (np.zeros(len(row), np.int64) for _ in range(4))
    above = np.zeros(len(row), np.int64)  # layers of the stages above
    for at in range(most - 2, -2, -1):  # the round whose labels a stage is put on; -1: the last
        starts, goes_on = depth == at, depth > at
        if starts.any():
            labels, ends = made[at].labels, made[at].ends
            parent[starts], kind[starts] = ends.parent[row[starts]], ends.kind[row[starts]]
            size[starts] = labels.left[parent[starts]]
        if goes_on.any():
            labels = made[at + 1].labels
            here = parent[goes_on]
            kind[goes_on], size[goes_on] = labels.kind[here], labels.layers[here]
            parent[goes_on] = labels.parent[here]
        here = np.flatnonzero(depth >= at)
        load[here] = tables.loads.at[above[here] + size[here], size[here]]
        _place(slots, tables, here, depth[here] - at, kind[here], size[here], load[here], at)
        above[here] += size[here]
    slots["recompute_modules"] *= slots["stages"]
    tensor = slots["tp"].max(axis=0) > 1
    which = np.zeros(len(row), np.int64)
    return plans_table(space.workload, [tables.cell], which, slots, tensor)


def _place(
    slots: dict[str, Ints],
    tables: Tables,
    here: Ints,
    slot: Ints,
    kind: Ints,
    size: Ints,
    load: Ints,
    at: int,
) -> None:
    """Writes one stage of each of these plans: the one that is `at + 2` from the end."""
    flying = min(tables.cell.micro_batches, at + 2)
    for name, column in kind_columns(tables.kinds).items():
        slots[name][slot, here] = column[kind]
    slots["stages"][slot, here], slots["layers"][slot, here] = 1, size
    inside = tables.at(LAST if at < 0 else INSIDE, flying)
    first = tables.at(FIRST, flying)
    for name, lower, upper in (
        ("recompute", inside.mode, first.mode),
        ("recompute_layers", inside.layers, first.layers),
    ):
        slots[name][slot, here] = np.where(slot == 0, upper[kind, load], lower[kind, load])
