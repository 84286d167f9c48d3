"""A plan as Megatron-Bridge's settings, translated from Megatron-LM's options.

The names are those of Bridge's own translator between the two (scripts/translate_mlm_to_bridge.py);
what it does not list is a field of Megatron core's classes, under its own name. Bridge cannot be
loaded without a GPU, so what Megatron-LM's own code accepts is what is checked.
"""

from collections.abc import Iterable, Sequence
from pprint import pformat
from typing import Any

from astra.export import megatron
from astra.export.megatron_files import environment_text
from astra.export.torchrun import Program, launch_script, one_line
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
    "use-distributed-optimizer": (("ddp.use_distributed_optimizer", True),),
    "overlap-grad-reduce": (("ddp.overlap_grad_reduce", True),),
    "overlap-param-gather": (("ddp.overlap_param_gather", True),),
    "use-megatron-fsdp": (("ddp.use_megatron_fsdp", True), ("dist.use_megatron_fsdp", True)),
    "accumulate-allreduce-grads-in-fp32": (("ddp.grad_reduce_in_fp32", True),),
    "grad-reduce-in-bf16": (("ddp.grad_reduce_in_fp32", False),),
    "no-check-for-nan-in-loss-and-grad": (("ddp.check_for_nan_in_grad", False),),
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
LEFT_OUT = ("transformer-impl",)  # Bridge knows no other
LISTS = ("moe-layer-freq", "window-attn-skip-freq", "window-size")
RECIPE = '''\
"""{title}

The settings of Megatron-LM's options in Megatron-Bridge's words. `pretrain_config` is a recipe:
give it to your own launcher, or run this file under torchrun.
"""

import sys

import torch.nn.functional as F
from megatron.bridge.recipes.gpt.vanilla_gpt import vanilla_gpt_pretrain_config
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

SETTINGS = {settings}


def pretrain_config() -> ConfigContainer:
    """The plan as a recipe."""
    config = vanilla_gpt_pretrain_config()
    if "mixed_precision" in SETTINGS:
        config.mixed_precision = get_mixed_precision_config(SETTINGS["mixed_precision"])
    for path, value in SETTINGS.items():
        section, _, name = path.partition(".")
        if name == "activation_func":
            value = {{"silu": F.silu}}.get(value, value)
        if name:
            setattr(getattr(config, section), name, value)
    return config


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
            made |= {"dataset.sequence_length": int(values[0]), "model.seq_length": int(values[0])}
        else:
            path = RENAMED.get(name, f"model.{name.replace('-', '_')}")
            made[path] = _value(name, values)
    return made


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
    made = settings(found)
    title = one_line(f"{plan.model.name}: {plan.summary()}").replace("\\", "/").replace('"', "'")
    return {
        "recipe.py": RECIPE.format(title=title, settings=pformat(made, sort_dicts=False, width=96)),
        "overrides.txt": "".join(f"{override(*item)}\n" for item in made.items()),
        "env.txt": environment_text(megatron.environment(plan)),
        "launch.sh": launch_script(plan, PROGRAM, notes),
    }
