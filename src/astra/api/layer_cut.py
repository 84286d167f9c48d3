"""How a search would share out the layers of a plan whose other settings are given."""

import numpy as np

from astra.cost.evaluate import evaluate, simulate
from astra.hardware.stack import find_stack
from astra.strategy.layer_splits import layer_cuts
from astra.strategy.plan import Plan
from astra.strategy.plans import plans_of, task_of
from astra.strategy.rules.registry import check, rules_for


def with_best_cut(plan: Plan, margin: float) -> Plan:
    """The plan with the split of its layers that is fastest of those that fit; where none does,
    with the one that needs least memory. As it is where no split is allowed.
    """
    if not 1 < plan.pp <= plan.model.layers:
        return plan
    cuts, task, stack = layer_cuts(plan), task_of(plan), find_stack(plan.stack)
    table = plans_of(cuts or [plan])
    rows = np.flatnonzero(check(table, task, rules_for(plan.runtime)).allowed)
    if not cuts or not len(rows):
        return plan
    found = evaluate(table.take(rows), task, stack, margin)
    if not found.fits.any():
        return cuts[int(rows[found.memory_fraction.argmin()])]
    rows = rows[found.fits]
    return cuts[int(rows[simulate(table.take(rows), task, stack).argmin()])]
