"""A plan as a configuration of Hugging Face accelerate: FSDP2 with tensor and context parallelism.

Checked against accelerate 1.15. The model is the user's own; options of a script that uses
`transformers.TrainingArguments` are beside it.
"""

from collections.abc import Sequence
from typing import Any

from astra.export.megatron_files import environment_text
from astra.export.torchrun import Program, launch_script, nodes_of
from astra.export.yaml_text import yaml_text
from astra.strategy.plan import Plan
from astra.strategy.recompute import Recompute

PROGRAM = Program(
    run="""\
exec accelerate launch --config_file "$here/accelerate.yaml" \\
  --machine_rank "${{NODE_RANK:?the rank of this node, from 0}}" \\
  --num_machines {nodes} --num_processes {total} \\
  --main_process_ip "${{MASTER_ADDR:?the address of node 0}}" \\
  --main_process_port "${{MASTER_PORT:-29500}}" \\
  "${{TRAIN_SCRIPT:?your training script}}" "${{arguments[@]}}" "$@\"""",
    usage=(
        "The script is yours: it builds the model, and calls Accelerator.prepare or a Trainer.",
        "It gets the options of args.txt, then what follows on the command line. Example:",
        "  NODE_RANK=0 MASTER_ADDR=10.0.0.1 TRAIN_SCRIPT=run_clm.py ./launch.sh \\",
        "    --model_name_or_path MODEL --dataset_name DATA --output_dir out",
    ),
    by_torchrun=False,
)


def copies(plan: Plan) -> tuple[int, int]:
    """(replicas, ranks that shard one of them) of the data-parallel ranks, cp left out."""
    if plan.sharding == "none":
        return plan.dp, 1
    return plan.dp * plan.cp // plan.shard_group, plan.shard_group // plan.cp


def is_fsdp(plan: Plan) -> bool:
    """Whether there is anything to shard over."""
    return plan.sharding != "none" and plan.dp * plan.cp > 1


def config(plan: Plan) -> dict[str, Any]:
    """What `accelerate launch` reads."""
    world = sum(plan.gpus.values())
    nodes = sum(count for _, count, _ in nodes_of(plan))
    kind = "FSDP" if is_fsdp(plan) else "MULTI_GPU" if world > 1 else "NO"
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": "no" if plan.precision == "fp32" else plan.precision,
        "num_machines": nodes,
        "num_processes": world,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "use_cpu": False,
        "debug": False,
    }
    if is_fsdp(plan):
        found["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": plan.sharding == "parameters",
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": recomputes(plan),
            "fsdp_offload_params": plan.offload_optimizer_fraction == 1,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_cpu_ram_efficient_loading": True,
        }
        found["parallelism_config"] = _parallelism(plan)
    return found


def _parallelism(plan: Plan) -> dict[str, Any]:
    replicas, shards = copies(plan)
    prefix = "parallelism_config_"
    found: dict[str, Any] = {
        f"{prefix}dp_replicate_size": replicas,
        f"{prefix}dp_shard_size": shards,
        f"{prefix}tp_size": plan.pipelines[0].segments[0].tp,
        f"{prefix}cp_size": plan.cp,
    }
    if plan.cp > 1:
        strategy = "allgather" if plan.cp_comm_type == "allgather" else "alltoall"
        found[f"{prefix}cp_comm_strategy"] = strategy
    return found


def recomputes(plan: Plan) -> bool:
    return Recompute.parse(plan.pipelines[0].segments[0].recompute).mode != "none"


def refusals(plan: Plan) -> list[str]:
    """Parts of a plan that accelerate has no words for."""
    tp = plan.pipelines[0].segments[0].tp
    replicas, shards = copies(plan)
    found = []
    if plan.pp > 1:
        found.append(f"pipelines (pp {plan.pp})")
    if plan.ep > 1 or plan.etp > 1:
        found.append(f"expert parallelism (ep {plan.ep}, etp {plan.etp})")
    if tp > 1 and not is_fsdp(plan):
        found.append("tensor parallelism without ranks that shard (sharding, dp)")
    if is_fsdp(plan) and shards == 1 and (plan.cp == 1 or replicas > 1):
        found.append("replicas that no data-parallel rank shards (shard_group)")
    if plan.sequence_parallel:
        found.append("sequence parallelism beside tensor parallelism (sequence_parallel)")
    if plan.precision == "fp8":
        found.append("fp8 as this plan counts it (precision)")
    if Recompute.parse(plan.pipelines[0].segments[0].recompute).mode == "selective":
        found.append("recompute of single operators (recompute selective)")
    if not is_fsdp(plan) and (recomputes(plan) or plan.offload_optimizer_fraction):
        found.append("recompute or offload without sharding")
    if plan.dispatcher in ("deepep", "hybridep"):
        found.append(f"the dispatcher {plan.dispatcher}")
    return found


def unsupported(plan: Plan) -> list[str]:
    """What the configuration leaves to the training script, or says otherwise."""
    found = [
        "the model and the data are your script's: it must build "
        f"{plan.model.name} and train on sequences of {plan.seq_len:,} tokens"
    ]
    if is_fsdp(plan) and plan.precision == "bf16" and plan.grad_reduce_dtype == "fp32":
        found.append("accelerate reduces gradients in bf16; the plan counts on fp32")
    if plan.pipelines[0].segments[0].tp > 1:
        found.append('tensor parallelism is the script\'s: from_pretrained(..., tp_plan="auto")')
    return found


def arguments(plan: Plan, *, train_iters: int, learning_rate: float) -> list[tuple[str, ...]]:
    """Options of `transformers.TrainingArguments`."""
    found: list[tuple[str, ...]] = [
        ("--per_device_train_batch_size", str(plan.micro_batch)),
        ("--gradient_accumulation_steps", str(plan.pipelines[0].micro_batches)),
        ("--max_steps", str(train_iters)),
        ("--learning_rate", f"{learning_rate:g}"),
        ("--optim", "adamw_torch_fused"),
        ("--logging_steps", "1"),
    ]
    if plan.precision == "bf16":
        found.append(("--bf16", "true"))
    return found


def files(
    plan: Plan, notes: Sequence[str], *, train_iters: int, learning_rate: float
) -> dict[str, str]:
    """Name and text of every file but the plan."""
    found = arguments(plan, train_iters=train_iters, learning_rate=learning_rate)
    env = {
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(plan.pipelines[0].micro_batches),
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    return {
        "accelerate.yaml": yaml_text(config(plan)),
        "args.txt": "".join(f"{' '.join(argument)}\n" for argument in found),
        "env.txt": environment_text(env),
        "launch.sh": launch_script(plan, PROGRAM, notes),
    }
