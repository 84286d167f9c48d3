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


def _method(plan: Plan) -> str:
    """Asked for even where nothing is recomputed, and then without a meaning."""
    mode = _recompute(plan).mode
    return mode.removeprefix("full:") if mode.startswith("full") else "uniform"


def _virtual(plan: Plan) -> int:
    """Layers of a virtual stage; 0: none are virtual."""
    return plan.model.layers // (plan.pp * plan.vpp) if plan.vpp > 1 else 0


DIMENSIONS: dict[str, Callable[[Plan], Any]] = {
    "data_parallel_size": lambda plan: plan.dp,
    "use_distributed_optimizer": lambda plan: plan.sharding != "none",
    "tensor_model_parallel_size": lambda plan: plan.pipelines[0].segments[0].tp,
    "sequence_parallel": lambda plan: plan.sequence_parallel,
    "pipeline_model_parallel_size": lambda plan: plan.pp,
    "num_layers_per_virtual_pipeline_stage": _virtual,
    "use_recompute": lambda plan: _recompute(plan).mode != "none",
    "recompute_method": _method,
    "recompute_granularity": lambda _: "full",
    "recompute_num_layers": lambda plan: _recompute(plan).layers or 1,
    "micro_batch_size": lambda plan: plan.micro_batch,
    "context_parallel_size": lambda plan: plan.cp,
    "expert_model_parallel_size": lambda plan: plan.ep,
}


def is_tunable(plan: Plan) -> bool:
    """Whether the tuner's searcher can arrive at this plan.

    It knows even stages on hosts of one kind; virtual ones from three stages on, in number a
    divisor of the micro-batches; experts cut by tp as all else; whole layers to recompute, in
    uniform groups only of a whole stage.
    """
    stages, recompute = plan.pipelines[0].layers, _recompute(plan)
    even = len(set(stages)) == 1 and plan.chunk_layers is None
    rounds = plan.pipelines[0].micro_batches % plan.vpp == 0
    turns = plan.vpp == 1 or (plan.pp > 2 and rounds)
    experts = plan.model.moe is None or plan.etp == plan.pipelines[0].segments[0].tp
    whole = {"none": True, "selective": False, "full:block": True}
    groups = whole.get(recompute.mode, recompute.layers == stages[0])
    alike = not flagscale.is_mixed(plan) and len(flagscale.hosts_of(plan)) == 1
    return even and turns and experts and groups and alike


def space(plans: Sequence[Plan]) -> dict[str, list[Any]]:
    """For each dimension the values that the plans have, in the order of the plans.

    None is left out: what the space does not name is searched in full.
    """
    return {
        name: list(dict.fromkeys(value(plan) for plan in plans))
        for name, value in DIMENSIONS.items()
    }


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
    ((_, hosts, each),) = flagscale.hosts_of(tunable[0])  # of one kind
    runner = {**first["experiment"]["runner"], "nnodes": hosts, "nproc_per_node": each}
    experiment = {**first["experiment"], "runner": runner, "auto_tuner": tuner}
    made = {**first, "experiment": experiment, "action": "auto_tune"}
    return {f"rank-{places[0]:03d}/tune.yaml": HEAD.format(count=len(tunable)) + yaml_text(made)}
