"""A plan as DeepSpeed's configuration. Checked against DeepSpeed 0.19.8.

The model is the user's own: DeepSpeed reads the cut and the batch from the JSON, the network and
the data from the script that calls `deepspeed.initialize`.
"""

import json
from collections.abc import Sequence
from typing import Any

from astra.export.megatron_files import environment_text
from astra.export.torchrun import Program, launch_script
from astra.strategy.plan import Plan
from astra.strategy.recompute import Recompute

STAGES = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}  # of ZeRO
PROGRAM = Program(
    run='"${TRAIN_SCRIPT:?your training script}" \\\n'
    '  --deepspeed --deepspeed_config "$here/ds_config.json" "$@"',
    usage=(
        "The script is yours: it builds the model and calls deepspeed.initialize. What follows on",
        "the command line is handed to it. Example:",
        "  NODE_RANK=0 MASTER_ADDR=10.0.0.1 TRAIN_SCRIPT=train.py ./launch.sh --data corpus",
    ),
    reads_arguments=False,
)


def config(plan: Plan, *, learning_rate: float) -> dict[str, Any]:
    """What DeepSpeed reads."""
    pipeline = plan.pipelines[0]
    tp = pipeline.segments[0].tp
    found: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": pipeline.micro_batches,
        "steps_per_print": 1,
        "zero_optimization": _zero(plan),
        "communication_data_type": plan.grad_reduce_dtype,
        "data_types": {"grad_accum_dtype": plan.main_grads_dtype},
        "optimizer": {"type": "AdamW", "params": {"lr": learning_rate}},
    }
    if tp == 1:  # with tensor parallelism it would count every rank as a copy and refuse
        found = {"train_batch_size": plan.global_batch, **found}
    if plan.precision in ("bf16", "fp16"):
        found[plan.precision] = {"enabled": True}
    if tp > 1:
        found["tensor_parallel"] = {"autotp_size": tp}
    if plan.cp > 1:
        found["sequence_parallel_size"] = plan.cp
    if plan.ep > 1 or plan.etp > 1:
        found["expert_parallel"] = _experts(plan)
    if plan.pp > 1:
        every = 1 if recomputes(plan) else 0
        found["pipeline"] = {"stages": plan.pp, "activation_checkpoint_interval": every}
    return found


def _zero(plan: Plan) -> dict[str, Any]:
    stage = STAGES[plan.sharding]
    found: dict[str, Any] = {"stage": stage}
    if stage == 3:  # the others hide the reduction only where they are told to
        found["overlap_comm"] = plan.overlap_grad_reduce or plan.overlap_param_gather
    elif stage:
        found["overlap_comm"] = plan.overlap_grad_reduce
    if plan.offload_optimizer_fraction > 0:
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if plan.offload_optimizer_fraction < 1:
            found["offload_optimizer"]["ratio"] = plan.offload_optimizer_fraction
    if stage and plan.shard_group < plan.dp * plan.cp:
        found["mics_shard_size"] = plan.shard_group  # the refusal is then DeepSpeed's own
    return found


def _experts(plan: Plan) -> dict[str, Any]:
    found: dict[str, Any] = {"enabled": True, "autoep_size": plan.ep}
    if plan.etp > 1:
        found["expert_tensor_parallel_size"] = plan.etp
    if plan.dispatcher == "deepep":
        tokens = plan.micro_batch * plan.seq_len // plan.cp
        found |= {"comm_backend": "deepep", "comm_max_tokens_per_rank": tokens}
    return found


def recomputes(plan: Plan) -> bool:
    """Whether layers are recomputed; the rules allow all of them or none."""
    return Recompute.parse(plan.pipelines[0].segments[0].recompute).mode != "none"


def refusals(plan: Plan) -> list[str]:
    """Parts of a plan that DeepSpeed has no words for."""
    found = []
    if plan.dispatcher == "allgather":
        found.append("the dispatcher allgather")
    if plan.capacity_factor is not None:
        found.append("a capacity of the experts (capacity_factor)")
    return found


def unsupported(plan: Plan) -> list[str]:
    """What the configuration leaves to the training script."""
    found = [
        "the model and the data are your script's: it must build "
        f"{plan.model.name} and train on sequences of {plan.seq_len:,} tokens"
    ]
    if recomputes(plan) and plan.pp == 1:
        found.append(
            "activation checkpointing is switched on in the script: "
            "model.gradient_checkpointing_enable()"
        )
    if plan.cp > 1:
        found.append(
            f"sequence parallelism of {plan.cp} needs UlyssesSPAttentionHF.register_with_"
            "transformers in the script"
        )
    if plan.pp > 1:
        found.append(
            f"the script builds PipelineModule(num_stages={plan.pp}, partition_method="
            "'type:YourLayer')"
        )
    return found


def files(
    plan: Plan, notes: Sequence[str], *, train_iters: int, learning_rate: float
) -> dict[str, str]:
    """Name and text of every file but the plan."""
    del train_iters  # the script's own
    made = config(plan, learning_rate=learning_rate)
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    return {
        "ds_config.json": json.dumps(made, indent=2) + "\n",
        "env.txt": environment_text(env),
        "launch.sh": launch_script(plan, PROGRAM, notes),
    }
