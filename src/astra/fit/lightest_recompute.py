"""What a run must have recomputed where its row does not say: it ran, so it fit."""

import numpy as np
from msgspec.structs import replace

from astra.cost.evaluate import memory_fraction
from astra.fit.csv_row import CsvRow
from astra.hardware.stack import find_stack
from astra.memory.stage import memory_of
from astra.strategy.plan import Plan
from astra.strategy.plans import plans_of, task_of
from astra.strategy.stage_view import stage_view

FULL_RECOMPUTE = "full:uniform:1"
# Of the usable memory: a run that ran kept nothing free, and predicted needs scatter by 8 %.
MAX_MEMORY_FRACTION = 1.03


def is_recompute_open(csv_row: CsvRow) -> bool:
    """Whether a row leaves open how much was recomputed.

    fms-fsdp's `selective` checkpoints a share of the blocks, and its tables do not say which.
    """
    said = csv_row.lower_text("recompute")
    return not said or (
        "fms-fsdp" in csv_row.lower_text("framework") and said.startswith("selective")
    )


def lightest_that_fits(plan: Plan, most: float = MAX_MEMORY_FRACTION) -> tuple[Plan, str | None]:
    """The plan with the least recompute that may have fit, and what had to be assumed. `most`: of
    the usable memory.

    As it is where it fits already, or where nothing makes it fit; checkpoints of PyTorch, which
    are on or off, must have been on there.
    """
    wanted = [plan, *(_recomputing(plan, each) for each in _from_light_to_heavy(plan))]
    view = stage_view(plans_of(wanted), task_of(plan))
    stack = find_stack(plan.stack)
    fitting = memory_fraction(view, memory_of(view, stack), stack) <= most
    if fitting[0] or not (fitting.any() or plan.runtime == "fsdp"):
        return plan, None
    if not fitting.any():
        return wanted[-1], f"recompute: {FULL_RECOMPUTE}, although even so the run seems not to fit"
    found = wanted[int(np.argmax(fitting))]
    setting = found.pipelines[0].segments[0].recompute
    return found, f"recompute: {setting}, the least with which the run fits"


def _recomputing(plan: Plan, setting: str) -> Plan:
    (pipeline,) = plan.pipelines
    segments = tuple(replace(segment, recompute=setting) for segment in pipeline.segments)
    return replace(plan, pipelines=(replace(pipeline, segments=segments),))


def _from_light_to_heavy(plan: Plan) -> list[str]:
    """Modules that cost little first, then layer after layer, then all of them."""
    if plan.runtime == "megatron":
        modules = ["layernorm", "moe_act"] if plan.model.moe is not None else ["layernorm"]
        modules += ["mla_up_proj"] if plan.model.mla is not None else []
        modules += ["mlp"]
        found = [f"selective:{'+'.join(modules[: n + 1])}" for n in range(len(modules))]
    else:
        found = ["selective"]
    chunk = max(plan.pipelines[0].layers) // plan.vpp
    return [*found, *(f"full:block:{n}" for n in range(1, chunk)), FULL_RECOMPUTE]
