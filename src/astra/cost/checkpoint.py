"""Bytes to resume a run from: weights in two bytes, master weights and moments as they are kept."""

from itertools import product

import numpy as np

from astra.model.parameters import parameters
from astra.model.shape import Model
from astra.strategy.plan import Plan
from astra.strategy.plans import DTYPE_BYTES, Floats, Plans, dtype_bytes
from astra.strategy.space import Space

STATE_DTYPES = ("master_dtype", "first_moment_dtype", "second_moment_dtype")


def checkpoint_bytes(plan: Plan) -> float:
    """Of one plan. [bytes]"""
    states = sum(DTYPE_BYTES[dtype] for dtype in (plan.master_dtype, *plan.moment_dtypes))
    return _trained(plan.model, plan.mtp_layers) * (2.0 + states)


def checkpoint_bytes_of(plans: Plans, space: Space) -> Floats:
    """Of plans of a space. (plan,) [bytes]"""
    states = np.sum([dtype_bytes(plans, name) for name in STATE_DTYPES], axis=0)
    return _trained(space.workload.task.model, space.workload.mtp_layers) * (2.0 + states)


def checkpoint_sizes(space: Space) -> Floats:
    """All that occur in a space, smallest first. [bytes]"""
    kept = [
        [DTYPE_BYTES[dtype] for dtype in space.settings.get(name, ("fp32",))]
        for name in STATE_DTYPES
    ]
    count = _trained(space.workload.task.model, space.workload.mtp_layers)
    return np.array(sorted({count * (2.0 + sum(sizes)) for sizes in product(*kept)}))


def _trained(model: Model, mtp_layers: int) -> int:
    """Parameters, each once."""
    held = parameters(model)
    return held.total + (held.mtp_total if mtp_layers else 0)
