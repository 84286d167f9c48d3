"""The names that user rules may use: our short ones and Megatron-LM's argument names."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astra.errors import InputError
from astra.hardware.catalogue import find_gpu
from astra.strategy.plans import FLAGS, FLOATS, SLOT_COLUMNS, WORDS, Plans, Task
from astra.strategy.recompute import MODULES
from astra.strategy.rule_language import Variable, VariableColumn
from astra.strategy.rules.rule import is_word

Values = NDArray[Any]

# Megatron-LM's name for a column that means the same under another name.
MEGATRON_NAMES = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "data_parallel_size": "dp",
    "virtual_pipeline_model_parallel_size": "vpp",
    "num_virtual_stages_per_pipeline_rank": "vpp",
    "micro_batch_size": "micro_batch",
    "global_batch_size": "global_batch",
    "seq_length": "seq_len",
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group",
    "world_size": "gpus",
    "num_gpus": "gpus",
    "overlap_p2p_communication": "overlap_p2p",
    "tp_comm_overlap": "overlap_tp",
    "overlap_moe_expert_parallel_comm": "overlap_ep",
    "optimizer_offload_fraction": "offload_optimizer_fraction",
    "cpu_offloading_num_layers": "offload_layers",
    "moe_expert_capacity_factor": "capacity_factor",
    "moe_token_dispatcher_type": "dispatcher",
    "main_params_dtype": "master_dtype",
    "exp_avg_dtype": "first_moment_dtype",
    "exp_avg_sq_dtype": "second_moment_dtype",
    "cuda_graph_impl": "cuda_graph",
    "mtp_num_layers": "mtp_layers",
    "num_micro_batches": "micro_batches",
}

MEANINGS = {
    "tp": "tensor-parallel size of a segment",
    "pp": "pipeline stages",
    "dp": "data-parallel replicas of a segment",
    "cp": "context-parallel size",
    "ep": "expert-parallel size of a segment",
    "etp": "expert tensor-parallel size of a segment",
    "vpp": "virtual stages per pipeline rank",
    "gpus": "GPUs the plan runs on",
    "layers": "decoder layers of a stage",
    "stages": "stages of a run of equal stages",
    "gpu": "GPU type of a segment",
    "micro_batch": "samples of a micro-batch in a segment",
    "micro_batches": "micro-batches per replica and step",
    "global_batch": "samples per step",
    "seq_len": "tokens per sample",
    "capacity_factor": "expert capacity; None: tokens are never dropped",
}


def rule_variables(task: Task) -> dict[str, Variable]:
    """All names for the plans of one task."""
    found: dict[str, Variable] = {}
    for name in WORDS:
        if name != "recompute":
            found[name] = _word(name, WORDS[name], _plain(name))
    for name in FLAGS:
        found[name] = _variable(name, "flag", _plain(name))
    for name in _numbers():
        found[name] = _variable(name, "number", _number_reader(name))
    found |= _recompute_variables() | _sharding_variables()
    found["gpu"] = _gpu_variable(task)
    for alias, name in MEGATRON_NAMES.items():
        found[alias] = found[name]
    return found


def _numbers() -> list[str]:
    slots = [name for name in SLOT_COLUMNS if name not in ("gpu", "recompute")]
    slots = [name.removeprefix("segment_") for name in slots if name != "recompute_modules"]
    plan = ["cp", "vpp", "global_batch", "seq_len", "microbatch_group", "shard_group"]
    plan += ["offload_layers"]
    return [*slots, *plan, "mtp_layers", "replicas", "micro_batches", "pp", "gpus", *FLOATS]


def _meaning(name: str) -> str:
    return MEANINGS.get(name, name.replace("_", " "))


def _variable(name: str, kind: Any, read: Callable[[Plans], VariableColumn]) -> Variable:
    return Variable(name=name, kind=kind, read=read, meaning=_meaning(name))


def _word(name: str, words: tuple[str, ...], read: Callable[[Plans], VariableColumn]) -> Variable:
    return Variable(name=name, kind="word", read=read, meaning=_meaning(name), words=words)


def _plain(name: str) -> Callable[[Plans], VariableColumn]:
    """A column as it is; a code of -1 is None."""

    def read(plans: Plans) -> VariableColumn:
        values: Values = getattr(plans, name)
        return VariableColumn(values, values >= 0 if name in WORDS else None)

    return read


def _number_reader(name: str) -> Callable[[Plans], VariableColumn]:
    of_segment = f"segment_{name}"

    def read(plans: Plans) -> VariableColumn:
        values: Values = getattr(plans, of_segment if of_segment in SLOT_COLUMNS else name)
        if values.ndim == 3:
            return VariableColumn(values, _set(name, plans, values), plans.used)
        if values.ndim == 2:
            return VariableColumn(values, None, plans.replicas > 0)
        return VariableColumn(values, ~np.isnan(values) if name in FLOATS else None)

    return read


def _set(name: str, plans: Plans, values: Values) -> NDArray[np.bool_] | None:
    """Layers to recompute are set only with full recompute."""
    if name != "recompute_layers":
        return None
    return is_word(plans, "recompute", "full:uniform", "full:block") & (values > 0)


def _recompute_variables() -> dict[str, Variable]:
    """Megatron-LM's three settings, and one flag per module of selective recompute."""

    def granularity(plans: Plans) -> VariableColumn:
        return VariableColumn(
            np.array([-1, 0, 1, 1])[plans.recompute], plans.recompute > 0, plans.used
        )

    def method(plans: Plans) -> VariableColumn:
        return VariableColumn(
            np.array([-1, -1, 0, 1])[plans.recompute], plans.recompute > 1, plans.used
        )

    def module(bit: int) -> Callable[[Plans], VariableColumn]:
        return lambda plans: VariableColumn(
            plans.recompute_modules >> bit & 1 == 1, None, plans.used
        )

    layers = _variable("recompute_num_layers", "number", _number_reader("recompute_layers"))
    found = {
        "recompute_granularity": _word("recompute_granularity", ("selective", "full"), granularity),
        "recompute_method": _word("recompute_method", ("uniform", "block"), method),
        "recompute_num_layers": layers,
        "recompute_layers": layers,
    }
    for bit, name in enumerate(MODULES):
        found[f"recompute_{name}"] = _variable(f"recompute_{name}", "flag", module(bit))
    return found


def _sharding_variables() -> dict[str, Variable]:
    """Switches that Megatron-LM has for what a plan says in one word."""

    def flag(column: str, *words: str) -> Callable[[Plans], VariableColumn]:
        return lambda plans: VariableColumn(is_word(plans, column, *words))

    offload = _variable(
        "optimizer_cpu_offload", "flag", lambda p: VariableColumn(p.offload_optimizer_fraction > 0)
    )
    flags = {
        "use_distributed_optimizer": flag("sharding", "optimizer", "gradients", "parameters"),
        "use_megatron_fsdp": flag("sharding", "gradients", "parameters"),
        "use_flash_attn": flag("attention", "flash"),
        "bf16": flag("precision", "bf16", "fp8", "fp4"),
        "fp16": flag("precision", "fp16"),
        "fp8": flag("precision", "fp8"),
    }
    found = {name: _variable(name, "flag", read) for name, read in flags.items()}
    return found | {"optimizer_cpu_offload": offload}


def _gpu_variable(task: Task) -> Variable:
    names = tuple(pool.gpu.name for pool in task.cluster.pools)

    def canonical(text: str) -> str | None:
        try:
            return find_gpu(text)[0].name
        except InputError:
            return None

    return Variable(
        name="gpu",
        kind="word",
        words=names,
        meaning=_meaning("gpu"),
        alias=canonical,
        read=lambda plans: VariableColumn(plans.gpu, None, plans.used),
    )
