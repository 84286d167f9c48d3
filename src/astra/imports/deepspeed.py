"""A plan out of DeepSpeed's JSON, with DeepSpeed's own defaults."""

from collections.abc import Mapping
from typing import Any

from astra.errors import InputError, shorten

ZERO = ("none", "optimizer", "gradients", "parameters")
READ = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    *("zero_optimization", "bf16", "fp16", "tensor_parallel", "sequence_parallel_size"),
    *("activation_checkpointing", "data_types", "communication_data_type", "pipeline"),
    "expert_parallel",
)
IGNORED = (
    *("optimizer", "scheduler", "gradient_clipping", "steps_per_print", "wall_clock_breakdown"),
    *("zero_allow_untested_optimizer", "prescale_gradients", "dump_state", "tensorboard", "wandb"),
    *("csv_monitor", "flops_profiler", "comms_logger", "checkpoint", "aio", "amp"),
    *("zero_force_ds_cpu_optimizer", "memory_breakdown", "gradient_predivide_factor"),
)


def looks_like(document: Any) -> bool:
    """Whether this is DeepSpeed's JSON."""
    return isinstance(document, dict) and any(name in document for name in READ)


def plan_settings_of(document: Mapping[str, Any], world: int, where: str) -> dict[str, Any]:
    """Every setting of the plan but the sequence length, which the JSON does not know."""
    tensor = document.get("tensor_parallel") or {}
    tp = _whole(tensor.get("autotp_size", 1), "tensor_parallel.autotp_size", where)
    cp = _whole(document.get("sequence_parallel_size", 1), "sequence_parallel_size", where)
    pipeline = document.get("pipeline") or {}
    pp = _whole(pipeline.get("stages", 1), "pipeline.stages", where)
    if world % (tp * cp * pp):
        raise InputError(
            f"{where}: {world} GPUs do not divide into tensor {tp} x sequence {cp} x pipeline {pp} "
            "parallel ranks."
        )
    dp = world // (tp * cp * pp)
    experts = document.get("expert_parallel") or {}
    again = pp > 1 and bool(pipeline.get("activation_checkpoint_interval"))
    micro_batch, batch = _batches(document, dp, where)
    zero = document.get("zero_optimization") or {}
    stage = _whole(zero.get("stage", 0), "zero_optimization.stage", where, least=0)
    if stage >= len(ZERO):
        raise InputError(f"{where}: zero_optimization.stage = {stage}: there are 0 to 3.")
    groups = (zero.get("mics_shard_size"), zero.get("zero_hpz_partition_size"))
    group = next((size for size in groups if type(size) is int and size > 1), dp * cp)
    overlaps = bool(zero.get("overlap_comm", stage == 3))
    return {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "dp": dp,
        "ep": _whole(experts.get("autoep_size", 1), "expert_parallel.autoep_size", where),
        "etp": experts.get("expert_tensor_parallel_size"),
        "dispatcher": experts.get("comm_backend"),
        "vpp": 1,
        "cp_comm_type": "a2a",
        "micro_batch": micro_batch,
        "global_batch": batch,
        "sharding": ZERO[stage],
        "shard_group": group if stage else 1,
        "sequence_parallel": False,
        "recompute": "full:uniform:1" if again else "none",
        "attention": "flash",
        "precision": _precision(document),
        "grad_reduce_dtype": document.get("communication_data_type"),
        "main_grads_dtype": (document.get("data_types") or {}).get("grad_accum_dtype"),
        "overlap_grad_reduce": overlaps,
        "overlap_param_gather": overlaps and stage == 3,
        "overlap_tp": False,
        "offload_optimizer_fraction": _offloaded(zero, where),
    }


def unread_settings(document: Mapping[str, Any]) -> list[str]:
    """What was neither read nor known to change nothing."""
    found = [name for name in document if name not in READ and name not in IGNORED]
    zero = document.get("zero_optimization") or {}
    unread = ("offload_param", "zero_quantized_weights", "zero_quantized_gradients")
    return found + [f"zero_optimization.{name}" for name in unread if zero.get(name)]


def _batches(document: Mapping[str, Any], dp: int, where: str) -> tuple[int, int]:
    """Micro-batch and global batch: two of three numbers say the third."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    said = {name: document[name] for name in names if document.get(name) not in (None, "auto")}
    counts = {name: _whole(value, name, where) for name, value in said.items()}
    batch, micro, steps = (counts.get(name) for name in names)
    if micro is None and batch is not None:
        micro = batch // (dp * (steps or 1))
    if micro is None:
        raise InputError(
            f"{where}: train_micro_batch_size_per_gpu is missing or `auto`; write the number "
            "that your trainer fills in."
        )
    whole = batch or micro * dp * (steps or 1)
    if whole != micro * dp * (steps or whole // max(micro * dp, 1)) or micro < 1:
        raise InputError(
            f"{where}: train_batch_size {batch} is not micro-batch {micro} x accumulation {steps} "
            f"x {dp} data-parallel ranks. Is --world-size right?"
        )
    return micro, whole


def _precision(document: Mapping[str, Any]) -> str:
    for name in ("bf16", "fp16"):
        if (document.get(name) or {}).get("enabled") in (True, "auto"):
            return name
    return "fp32"


def _offloaded(zero: Mapping[str, Any], where: str) -> float:
    offload = zero.get("offload_optimizer") or {}
    if offload.get("device", "none") in ("none", None):
        return 0.0
    ratio = offload.get("ratio", 1.0)
    if type(ratio) not in (int, float) or not 0 <= ratio <= 1:
        raise InputError(f"{where}: offload_optimizer.ratio = {shorten(ratio)} is no fraction.")
    return float(ratio)


def _whole(value: Any, name: str, where: str, least: int = 1) -> int:
    if type(value) is not int or value < least:
        raise InputError(f"{where}: {name} = {shorten(value)} is no whole number from {least} on.")
    return value
