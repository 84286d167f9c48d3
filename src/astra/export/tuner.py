"""FlagScale's tuner, told to measure our best plans and nothing far from them.

The tuner runs every strategy of a space on the real cluster. A space is a list of values for each
dimension and all that combines: it holds the plans it was made of, and a few between them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from astra.errors import InputError
from astra.export import flagscale
from astra.export.yaml_text import yaml_text
from astra.strategy.plan import Plan
from astra.strategy.recompute import Recompute

SECONDS = 300  # that one strategy may take, the tuner's own default
STEPS = 5  # of every strategy, the tuner's own default
HEAD = """\
# FlagScale's tuner on {count} of our plans: it runs each on the cluster and sorts them by time.
# In FlagScale's folder, on the first host, with this folder in $here:
#   python run.py --config-path "$here" --config-name tune \\
#     "experiment.runner.hostfile='$here/hostfile'" "experiment.exp_dir='$here/tuning'"
"""


def _recompute(plan: Plan) -> Recompute:
    return Recompute.parse(plan.pipelines[0].segments[0].recompute)


def _method(plan: Plan) -> str | None:
    mode = _recompute(plan).mode
    return mode.removeprefix("full:") if mode.startswith("full") else None


def _granularity(plan: Plan) -> str | None:
    mode = _recompute(plan).mode
    return None if mode == "none" else mode.partition(":")[0]


def _virtual(plan: Plan) -> int | None:
    return plan.model.layers // (plan.pp * plan.vpp) if plan.vpp > 1 else None


DIMENSIONS: dict[str, Callable[[Plan], Any]] = {
    "data_parallel_size": lambda plan: plan.dp,
    "use_distributed_optimizer": lambda plan: plan.sharding != "none",
    "tensor_model_parallel_size": lambda plan: plan.pipelines[0].segments[0].tp,
    "sequence_parallel": lambda plan: plan.sequence_parallel,
    "pipeline_model_parallel_size": lambda plan: plan.pp,
    "num_layers_per_virtual_pipeline_stage": _virtual,
    "use_recompute": lambda plan: _recompute(plan).mode != "none",
    "recompute_method": _method,
    "recompute_granularity": _granularity,
    "recompute_num_layers": lambda plan: _recompute(plan).layers or None,
    "micro_batch_size": lambda plan: plan.micro_batch,
    "context_parallel_size": lambda plan: plan.cp,
    "expert_model_parallel_size": lambda plan: plan.ep,
}


def is_tunable(plan: Plan) -> bool:
    """The tuner's space knows even stages only, of one kind, and layers recomputed whole."""
    even = len(set(plan.pipelines[0].layers)) == 1 and plan.chunk_layers is None
    return even and not flagscale.is_mixed(plan) and _recompute(plan).mode != "selective"


def space(plans: Sequence[Plan]) -> dict[str, list[Any]]:
    """For each dimension the values that the plans have, in the order of the plans."""
    found: dict[str, list[Any]] = {}
    for name, value in DIMENSIONS.items():
        values = list(dict.fromkeys(value(plan) for plan in plans))
        kept = [item for item in values if item is not None]
        if kept:  # a dimension that no plan uses is left out
            found[name] = kept
    return found


def files(plans: Sequence[Plan]) -> dict[str, str]:
    """`tune.yaml` in the folder of the best plan that the tuner can try; none, no file."""
    places = [place for place, plan in enumerate(plans, 1) if is_tunable(plan)]
    tunable = [plans[place - 1] for place in places]
    if not tunable:
        return {}
    if len({sum(plan.gpus.values()) for plan in tunable}) > 1:
        raise InputError("FlagScale's tuner compares plans of one cluster; these differ in GPUs.")
    first = flagscale.experiment(tunable[0])
    tuner = {
        "space": space(tunable),
        "control": {"max_time_per_task": SECONDS, "train_iters": STEPS, "run_best": False},
    }
    experiment = {**first["experiment"], "auto_tuner": tuner}
    made = {**first, "experiment": experiment, "action": "auto_tune"}
    return {f"rank-{places[0]:03d}/tune.yaml": HEAD.format(count=len(tunable)) + yaml_text(made)}
