"""A plan as torchtitan's configuration: a module with one function, and the same as flags.

torchtitan's words change from version to version: 0.3 counts a batch in samples, later ones in
tokens. The module asks the installed one which it is. Checked against 0.3.0, where flags and
module must mean the same.
"""

from collections.abc import Mapping, Sequence
from pprint import pformat
from typing import Any

from astra.export.accelerate import copies
from astra.export.megatron_files import environment_text
from astra.export.pipeline_layout import layers_of_chunks
from astra.export.titan_models import (
    COMM_BACKENDS,
    CONVERTERS,
    MAX_POSITIONS,
    model_lines,
    model_of,
)
from astra.export.torchrun import Program, launch_script, one_line
from astra.strategy.plan import Plan
from astra.strategy.recompute import Recompute

Sections = dict[str, dict[str, Any]]
MODULE = "astra_plan"
CHECKPOINTS = {"none": "none", "selective": "selective", "full:uniform": "full"}
PROGRAM = Program(
    run=f"-m torchtitan.train --module {MODULE} --config plan "
    '--hf_assets_path "${HF_ASSETS:-./assets/hf}" "$@"',
    usage=(
        f"The plan is in {MODULE}.py. What follows on the command line changes torchtitan's",
        "settings: data, checkpoints, logging. HF_ASSETS is the folder of the tokenizer. Example:",
        "  NODE_RANK=0 MASTER_ADDR=10.0.0.1 HF_ASSETS=~/assets/hf/MODEL ./launch.sh \\",
        "    --dataloader.dataset c4 --checkpoint.enable",
        "With torchtitan 0.3 the flags of args.txt say the same:",
        f"  torchrun ... -m torchtitan.train $(cat args.txt)    (PYTHONPATH holds {MODULE}.py)",
    ),
    reads_arguments=False,
)
TEXT = '''\
"""{title}

The function `plan` is the whole job, `model` the same without how it is cut.
"""

from dataclasses import fields, replace

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.trainer import Trainer

try:
    from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader

    DATA = HuggingFaceTextDataLoader.Config(dataset="c4_test")
except ImportError:  # later than 0.3
    from torchtitan.components.data import ConcatThenSplitPackingConfig, GrainDataLoader
    from torchtitan.hf_datasets.text_datasets import DATASETS

    DATA = GrainDataLoader.Config(
        dataset=ConcatThenSplitPackingConfig(dataset=DATASETS["c4_test"])
    )

TRAINING = {training}
PARALLELISM = {parallelism}
# What 0.3 counts in samples is counted in tokens since.
SAMPLES = {samples}
TOKENS = {tokens}
{model}

def model() -> Trainer.Config:
    """What is trained, with torchtitan's defaults for the rest."""
    spec = model_spec()
    vocabulary = decoder_vocab_size(spec)
    return Trainer.Config(
        model_spec=spec,
        loss=ChunkedLossWrapper.Config(
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=vocabulary)
        ),
        optimizer=default_adamw(lr={lr:g}),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps={warmup}),
        training=TrainingConfig(steps={steps}),
        dataloader=DATA,
        metrics=MetricsProcessor.Config(log_freq=1),
    )


def plan() -> Trainer.Config:
    """The job as it was planned."""
    known = {{field.name for field in fields(TrainingConfig)}}
    counted = SAMPLES if "local_batch_size" in known else TOKENS
    return replace(
        model(),
        training=TrainingConfig(**TRAINING, **counted["training"]),
        parallelism=ParallelismConfig(**PARALLELISM, **counted["parallelism"]),
        activation_checkpoint={checkpoint},
        compile=CompileConfig({compile}),
    )
'''


def sections(plan: Plan, *, train_iters: int) -> Sections:
    """Settings by section that all versions know."""
    replicas, shards = copies(plan)
    low = "float32" if plan.precision == "fp32" else "bfloat16"
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": "always" if plan.sharding == "parameters" else "never",
        "tensor_parallel_degree": plan.pipelines[0].segments[0].tp,
        "enable_sequence_parallel": plan.sequence_parallel,
        "context_parallel_degree": plan.cp,
        "expert_parallel_degree": plan.ep,
        "pipeline_parallel_degree": plan.pp,
    }
    if plan.pp > 1:
        parallelism["pipeline_parallel_schedule"] = "1F1B" if plan.vpp == 1 else "Interleaved1F1B"
        parallelism["module_fqns_per_model_part"] = modules(plan)
    return {
        "training": {
            "steps": train_iters,
            "enable_cpu_offload": plan.offload_optimizer_fraction == 1,
            "disable_cuda_graphs": True,
            "dtype": "float32",
            "mixed_precision_param": low,
            "mixed_precision_reduce": "float32",
        },
        "parallelism": parallelism,
    }


def in_samples(plan: Plan) -> Sections:
    """The batch in the words of 0.3: a pipeline takes all its micro-batches at once."""
    local = plan.micro_batch * (plan.pipelines[0].micro_batches if plan.pp > 1 else 1)
    return {
        "training": {
            "local_batch_size": local,
            "global_batch_size": plan.global_batch,
            "seq_len": plan.seq_len,
        },
        "parallelism": {"pipeline_parallel_microbatch_size": plan.micro_batch},
    }


def in_tokens(plan: Plan) -> Sections:
    """The batch in the words of later versions."""
    micro_batches = plan.pipelines[0].micro_batches
    parallelism = {"num_pp_microbatches": micro_batches} if plan.pp > 1 else {}
    return {
        "training": {
            "num_tokens_per_microbatch_per_dp_rank": plan.micro_batch * plan.seq_len,
            "num_tokens_per_train_step": plan.global_batch * plan.seq_len,
            "max_context_length": plan.seq_len,
        },
        "parallelism": parallelism,
    }


def modules(plan: Plan) -> list[list[str]]:
    """Modules of every virtual stage in the order of execution."""
    parts, first = [], 0
    for count in layers_of_chunks(plan):
        parts.append([f"layers.{layer}" for layer in range(first, first + count)])
        first += count
    parts[0] = ["tok_embeddings", *parts[0]]
    parts[-1] += ["norm", "lm_head"]
    return parts


def flags(plan: Plan, *, train_iters: int) -> list[tuple[str, ...]]:
    """The same for 0.3 as options on top of the module's `model`."""
    found: list[tuple[str, ...]] = [("--module", MODULE), ("--config", "model")]
    counted = in_samples(plan)
    for section, settings in sections(plan, train_iters=train_iters).items():
        for name, value in (settings | counted[section]).items():
            if value is True or value is False:
                found.append((f"--{section}.{'' if value else 'no-'}{name}",))
            elif isinstance(value, list):
                found.append((f"--{section}.{name}", *(",".join(part) for part in value)))
            else:
                found.append((f"--{section}.{name}", str(value)))
    if is_compiled(plan):
        found.append(("--compile.enable",))
    if plan.overlap_tp:
        found.append(("--compile.enable_async_tensor_parallel",))
    mode = Recompute.parse(plan.pipelines[0].segments[0].recompute).mode
    found.append((f"activation-checkpoint:{CHECKPOINTS[mode]}",))  # a word of its own, at the end
    return found


def is_compiled(plan: Plan) -> bool:
    """Only the stack that was measured without it trains without `torch.compile`."""
    return plan.stack != "torch-eager"


def refusals(plan: Plan) -> list[str]:
    """Parts of a plan that torchtitan has no words for."""
    found = []
    module, flavour = model_of(plan.model) or ("", "")
    if flavour and plan.seq_len > MAX_POSITIONS[module]:
        found.append(
            f"sequences of {plan.seq_len:,} tokens; {MAX_POSITIONS[module]:,} are its most"
        )
    if not module:
        found.append(
            f"the network of {plan.model.name}; it has Llama's in any size, and Qwen 3, "
            "DeepSeek-V2 and V3, gpt-oss and Moonlight only in their own"
        )
    if plan.attention != "flash":
        found.append("attention that is not fused (attention)")
    if plan.grad_reduce_dtype != "fp32":
        found.append(f"gradients reduced in {plan.grad_reduce_dtype} (grad_reduce_dtype)")
    if plan.precision == "fp8" and plan.fp8_recipe not in CONVERTERS:
        found.append(f"the fp8 recipe {plan.fp8_recipe}")
    if plan.dispatcher not in COMM_BACKENDS:
        found.append(f"the dispatcher {plan.dispatcher}")
    if plan.precision == "fp8" and plan.model.moe and plan.dispatcher == "deepep":
        found.append("experts in fp8 with the dispatcher deepep; alltoall and hybridep it has")
    if plan.dispatcher in ("deepep", "hybridep") and plan.ep == 1:
        found.append(f"the dispatcher {plan.dispatcher} without expert parallelism")
    return found


def unsupported(plan: Plan) -> list[str]:
    """What torchtitan does otherwise than the plan says."""
    found = []
    if plan.cp > 1 and plan.cp_comm_type != "allgather":
        found.append("context parallelism gathers keys and values (allgather)")
    if plan.precision == "fp8" and plan.fp8_recipe == "tensorwise":
        found.append("fp8 is scaled by row, not by tensor")
    if plan.model.moe is not None:
        found.append("load balancing and router scaling are torchtitan's own")
    _, flavour = model_of(plan.model) or ("", "")
    if plan.model.rope_theta is None and not flavour:
        found.append("the rotary base is not known here: astra_plan.py says 10000 (theta)")
    if plan.model.mtp_layers:
        found.append("multi-token prediction, which torchtitan does not train")
    return found


def config_module(plan: Plan, *, train_iters: int, learning_rate: float) -> str:
    """The text of `astra_plan.py`."""
    made = sections(plan, train_iters=train_iters)
    mode = Recompute.parse(plan.pipelines[0].segments[0].recompute).mode
    checkpoint = {"none": "None", "selective": "SelectiveAC.Config()"}
    compiled = f"enable={is_compiled(plan)}"
    if plan.overlap_tp:
        compiled += ", enable_async_tensor_parallel=True"
    return TEXT.format(
        title=_quoted(f"{plan.model.name}: {plan.summary()}"),
        training=_literal(made["training"]),
        parallelism=_literal(made["parallelism"]),
        samples=_literal(in_samples(plan)),
        tokens=_literal(in_tokens(plan)),
        model=model_lines(plan),
        lr=learning_rate,
        warmup=max(min(200, train_iters // 10), 1),
        steps=train_iters,
        checkpoint=checkpoint.get(mode, "FullAC.Config()"),
        compile=compiled,
    )


def _literal(settings: Mapping[str, Any]) -> str:
    return pformat(settings, sort_dicts=False, width=96)


def _quoted(text: str) -> str:
    """A user's text inside a docstring: neither its end nor an escape."""
    return one_line(text).replace("\\", "/").replace('"', "'")


def files(
    plan: Plan, notes: Sequence[str], *, train_iters: int, learning_rate: float
) -> dict[str, str]:
    """Name and text of every file but the plan."""
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    script = launch_script(plan, PROGRAM, notes)
    here = 'export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"\n'
    return {
        f"{MODULE}.py": config_module(plan, train_iters=train_iters, learning_rate=learning_rate),
        "args.txt": "".join(f"{' '.join(f)}\n" for f in flags(plan, train_iters=train_iters)),
        "env.txt": environment_text(env),
        "launch.sh": script.replace("\nexec ", f"\n{here}exec ", 1),
    }
