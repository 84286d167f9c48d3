"""A plan as Megatron-Bridge's settings, translated from Megatron-LM's options.

The names are those of Bridge's own translator between the two (scripts/translate_mlm_to_bridge.py);
what it does not list is a field of Megatron core's classes, under its own name. Checked against
Bridge 0.6.2: its `ConfigContainer` ends up with what Megatron-LM's own code makes of the options.
"""

from collections.abc import Iterable, Sequence
from pprint import pformat
from typing import Any

from astra.export import megatron
from astra.export.megatron_files import environment_text
from astra.export.torchrun import Program, launch_script, one_line
from astra.export.unsupported import unsupported as megatron_unsupported
from astra.strategy.plan import Plan

Settings = dict[str, Any]
# Options whose place in Bridge has another name.
RENAMED = {
    "vocab-size": "tokenizer.vocab_size",
    "num-experts": "model.num_moe_experts",
    "num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
    "softmax-type": "model.softmax_type",
    "micro-batch-size": "train.micro_batch_size",
    "global-batch-size": "train.global_batch_size",
    "train-iters": "train.train_iters",
    "lr": "optimizer.lr",
    "optimizer": "optimizer.optimizer",
    "main-grads-dtype": "optimizer.main_grads_dtype",
    "main-params-dtype": "optimizer.main_params_dtype",
    "exp-avg-dtype": "optimizer.exp_avg_dtype",
    "exp-avg-sq-dtype": "optimizer.exp_avg_sq_dtype",
    "optimizer-offload-fraction": "optimizer.optimizer_offload_fraction",
    "data-parallel-sharding-strategy": "ddp.data_parallel_sharding_strategy",
    "num-distributed-optimizer-instances": "ddp.num_distributed_optimizer_instances",
    "megatron-fsdp-main-params-dtype": "ddp.megatron_fsdp_main_params_dtype",
    "megatron-fsdp-main-grads-dtype": "ddp.megatron_fsdp_main_grads_dtype",
    "megatron-fsdp-grad-comm-dtype": "ddp.megatron_fsdp_grad_comm_dtype",
    "ckpt-format": "checkpoint.ckpt_format",
    "fp8-format": "mixed_precision.fp8",
    "fp8-recipe": "mixed_precision.fp8_recipe",
    "fp4-format": "mixed_precision.fp4",
    "microbatch-group-size-per-virtual-pipeline-stage": (
        "model.microbatch_group_size_per_vp_stage"
    ),
}
# Options without a value: where they go, and what they say there.
SWITCHES: dict[str, tuple[tuple[str, Any], ...]] = {
    "swiglu": (("model.gated_linear_unit", True), ("model.activation_func", "silu")),
    "squared-relu": (("model.activation_func", "squared_relu"),),
    "disable-bias-linear": (("model.add_bias_linear", False),),
    "untie-embeddings-and-output-weights": (("model.share_embeddings_and_output_weights", False),),
    "group-query-attention": (),  # said by the number of groups
    "use-distributed-optimizer": (
        ("ddp.use_distributed_optimizer", True),
        ("optimizer.use_distributed_optimizer", True),
    ),
    "overlap-grad-reduce": (("ddp.overlap_grad_reduce", True),),
    "overlap-param-gather": (("ddp.overlap_param_gather", True),),
    "use-megatron-fsdp": (("ddp.use_megatron_fsdp", True), ("dist.use_megatron_fsdp", True)),
    "accumulate-allreduce-grads-in-fp32": (),  # as Bridge's mixed precision does
    "grad-reduce-in-bf16": (("mixed_precision.grad_reduce_in_fp32", False),),
    "no-check-for-nan-in-loss-and-grad": (
        ("ddp.check_for_nan_in_grad", False),
        ("rerun_state_machine.check_for_nan_in_loss", False),
    ),
    "bf16": (("mixed_precision", "bf16_mixed"),),
    "fp16": (("mixed_precision", "fp16_mixed"),),
    "fp8-param-gather": (("mixed_precision.fp8_param_gather", True),),
    "reuse-grad-buf-for-mxfp8-param-ag": (("ddp.reuse_grad_buf_for_mxfp8_param_ag", True),),
    "use-precision-aware-optimizer": (("optimizer.use_precision_aware_optimizer", True),),
    "optimizer-cpu-offload": (("optimizer.optimizer_cpu_offload", True),),
    "overlap-cpu-optimizer-d2h-h2d": (("optimizer.overlap_cpu_optimizer_d2h_h2d", True),),
    "no-overlap-p2p-communication": (("model.overlap_p2p_comm", False),),
    "use-tp-pp-dp-mapping": (("dist.use_tp_pp_dp_mapping", True),),
}
# Bridge knows no other implementation, and learned positions as long as the sequence.
LEFT_OUT = ("transformer-impl", "max-position-embeddings")
# What Megatron-LM does unless told otherwise, and Bridge only where it is told.
MEGATRON_DEFAULTS: Settings = {
    "ddp.use_distributed_optimizer": False,
    "optimizer.use_distributed_optimizer": False,
    "model.bias_activation_fusion": True,
    "model.bias_dropout_fusion": True,
    "model.persist_layer_norm": True,
    "optimizer.min_lr": 0.0,
    "scheduler.lr_warmup_iters": 0,
}
# Set by the recipe alone, as are states in fp8: an override would leave a text or another type.
IN_PYTHON = (
    "ddp.megatron_fsdp_main_grads_dtype",
    "ddp.megatron_fsdp_grad_comm_dtype",
    "model.attention_backend",
)
OF_MLA: Settings = {
    "model.gradient_accumulation_fusion": True,
    "model.deallocate_pipeline_outputs": True,
    "model.attention_softmax_in_fp32": False,
    "model.masked_softmax_fusion": True,
    "model.rotary_scaling_factor": 1.0,
}
IN_FP16: Settings = {
    "ddp.check_for_nan_in_grad": False,  # its scale looks for them
    "mixed_precision.grad_reduce_in_fp32": True,
}
IN_FP32: Settings = {"optimizer.bf16": False, "ddp.grad_reduce_in_fp32": False}
INTERLEAVED: Settings = {
    "model.overlap_p2p_comm": True,
    "model.batch_p2p_comm": False,
    "ddp.align_param_gather": True,
}
LISTS = ("moe-layer-freq", "window-attn-skip-freq", "window-size")
RECIPE = '''\
"""{title}

The settings of Megatron-LM's options in Megatron-Bridge's words. `pretrain_config` is a recipe:
give it to your own launcher, or run this file under torchrun.
"""

import sys
from typing import Any

import torch
import torch.nn.functional as F
from megatron.bridge.models.{module} import {provider}
from megatron.bridge.recipes.gpt.vanilla_gpt import vanilla_gpt_pretrain_config
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides
from megatron.core.activations import squared_relu
from megatron.core.transformer.enums import AttnBackend

SETTINGS = {settings}
WORDS = {{
    "activation_func": {{"silu": F.silu, "squared_relu": squared_relu}},
    "attention_backend": AttnBackend.__members__,
}}
TYPES = {{"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8}}


def base_config() -> ConfigContainer:
    """What the settings are put on: Megatron-LM's defaults."""
    config = vanilla_gpt_pretrain_config()
    config.model = {provider}()
    config.mixed_precision = {precision}
    return config


def pretrain_config() -> ConfigContainer:
    """The plan as a recipe."""
    config = base_config()
    for path, value in SETTINGS.items():
        section, _, name = path.partition(".")
        setattr(getattr(config, section), name, meant(section, name, value))
    return config


def meant(section: str, name: str, value: Any) -> Any:
    """A setting as the classes want it."""
    if name in WORDS:
        return WORDS[name][value]
    return TYPES[value] if section != "model" and name.endswith("_dtype") else value


if __name__ == "__main__":
    job = process_config_with_overrides(pretrain_config(), cli_overrides=sys.argv[1:])
    pretrain(job, forward_step)
'''
PROGRAM = Program(
    run='"$here/recipe.py" "$@"',
    usage=(
        "What follows on the command line are overrides of Megatron-Bridge: data, checkpoints,",
        "logging. Example:",
        "  NODE_RANK=0 MASTER_ADDR=10.0.0.1 ./launch.sh dataset.blend=null logger.log_interval=1",
    ),
    reads_arguments=False,
)


def refusals(plan: Plan) -> list[str]:
    """Parts of a plan that Bridge refuses though Megatron-LM takes them."""
    found = []
    if plan.cuda_graph == "local":
        found.append("CUDA graphs of the kind local; transformer_engine and full_iteration it has")
    if megatron.is_fsdp(plan) and plan.rank_order != "tp-cp-ep-dp-pp":
        found.append(f"the rank order {plan.rank_order} with sharded {plan.sharding}")
    return found


def unsupported(plan: Plan) -> list[str]:
    """What a recipe cannot say about this model, in words."""
    found = megatron_unsupported(plan, _path)
    longest = plan.model.max_positions or 0
    if megatron.position_kind(plan.model) == "learned" and longest > plan.seq_len:
        found.append(f"learned positions beyond the sequence ({longest:,} in the model)")
    return found


def _path(name: str) -> str:
    """An option of Megatron-LM by its name here."""
    if name == "swiglu":
        return "model.activation_func=silu"
    return RENAMED.get(name, f"model.{name.replace('-', '_')}")


def settings(found: Iterable[megatron.Argument]) -> Settings:
    """Options as Bridge's dotted names and their values."""
    made: Settings = {}
    for option, *values in found:
        name = option.removeprefix("--")
        if name in LEFT_OUT:
            continue
        if name in SWITCHES:
            made |= dict(SWITCHES[name])
        elif name == "seq-length":
            made |= {"dataset.seq_length": int(values[0]), "model.seq_length": int(values[0])}
        else:
            made[_path(name)] = _value(name, values)
    return made


def _megatron_defaults(plan: Plan) -> Settings:
    """What Megatron-LM does by itself for such a plan."""
    made = dict(MEGATRON_DEFAULTS)
    if megatron.position_kind(plan.model) == "rope":
        made["model.apply_rope_fusion"] = True
    if plan.model.mla is not None:
        made |= OF_MLA
    if plan.vpp > 1:
        made |= INTERLEAVED
    return made | {"fp16": IN_FP16, "fp32": IN_FP32}.get(plan.precision, {})


def _value(name: str, values: Sequence[str]) -> Any:
    if not values:
        return True
    if name == "window-size":
        return tuple(int(word) for word in values[0].split(","))
    if name in LISTS:
        return [int(word) for word in values[0].strip("[]").split(",")]
    if len(values) > 1 or name.endswith("modules"):
        return list(values)
    (word,) = values
    try:
        return int(word)
    except ValueError:
        pass
    try:
        return float(word)
    except ValueError:
        return word


def override(path: str, value: Any) -> str:
    """One line as Hydra reads it.

    >>> override("model.moe_layer_freq", [0, 1]), override("model.bias", False)
    ('model.moe_layer_freq=[0,1]', 'model.bias=false')
    """
    if isinstance(value, bool):
        return f"{path}={'true' if value else 'false'}"
    if isinstance(value, list | tuple):
        return f"{path}=[{','.join(map(str, value))}]"
    if isinstance(value, str) and not value.replace("_", "").replace("-", "").isalnum():
        return f"{path}='{value}'"
    return f"{path}={value}"


def files(
    plan: Plan, notes: Sequence[str], *, train_iters: int, learning_rate: float
) -> dict[str, str]:
    """Name and text of every file but the plan."""
    found = megatron.arguments(plan, train_iters=train_iters, learning_rate=learning_rate)
    made = _megatron_defaults(plan) | settings(found)
    precision = made.pop("mixed_precision", None)
    title = one_line(f"{plan.model.name}: {plan.summary()}").replace("\\", "/").replace('"', "'")
    recipe = RECIPE.format(
        title=title,
        settings=pformat(made, sort_dicts=False, width=96),
        precision=f'get_mixed_precision_config("{precision}")' if precision else None,
        module="mla_provider" if plan.model.mla else "gpt_provider",
        provider="MLAModelProvider" if plan.model.mla else "GPTModelProvider",
    )
    return {
        "recipe.py": recipe,
        "overrides.txt": _overrides(made, precision),
        "env.txt": environment_text(megatron.environment(plan)),
        "launch.sh": launch_script(plan, PROGRAM, notes),
    }


def _overrides(made: Settings, precision: str | None) -> str:
    """The settings a line each. A precision is named where nothing in it is changed."""
    named = (
        {}
        if any(path.startswith("mixed_precision.") for path in made)
        else {"mixed_precision": precision or "null"}
    )
    said = {path: value for path, value in made.items() if path not in IN_PYTHON and value != "fp8"}
    return "".join(f"{override(*item)}\n" for item in (named | said).items())
