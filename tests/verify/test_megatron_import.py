"""What we read out of launch scripts, against what Megatron-LM's own parser reads."""

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.support.frameworks import needs

needs("torch", "triton", "megatron.core", "megatron.training")

from tests.support.megatron_oracle import _environment, megatron  # noqa: E402

from astra.api import import_job  # noqa: E402
from astra.export.pipeline_layout import layers_of_chunks  # noqa: E402
from astra.imports.megatron import TELLING  # noqa: E402
from astra.imports.options import training_words  # noqa: E402
from astra.imports.shell import read_script  # noqa: E402

SCRIPTS = Path(__file__).parents[1] / "imports" / "scripts"
FILES = (
    *("megatron_arrays.sh", "llama3_fp8.sh", "mixtral.sbatch", "deepseek_layout.sh"),
    *("fsdp_megatron.sh", "uneven_stages.sh"),
)
SAME = {  # of Megatron-LM's arguments, what a plan calls them
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "data_parallel_size": "dp",
    "micro_batch_size": "micro_batch",
    "global_batch_size": "global_batch",
    "seq_length": "seq_len",
    "sequence_parallel": "sequence_parallel",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
    "tp_comm_overlap": "overlap_tp",
    "expert_model_parallel_size": "ep",
}


def parsed(file: str, world: int) -> Any:
    """The script's options as Megatron-LM's parser and validation leave them."""
    words = training_words(read_script((SCRIPTS / file).read_text()).commands, TELLING)
    first = next(row for row, word in enumerate(words) if word.endswith(".py"))
    framework = megatron()
    silent = io.StringIO()
    queues = {} if "fsdp" in file else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    with (
        _environment({**queues, "WORLD_SIZE": str(world), "RANK": "0"}),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(silent),
        contextlib.redirect_stderr(silent),
    ):
        warnings.simplefilter("ignore")
        found, _ = framework["parser"].parse_known_args(words[first + 1 :])
        found._is_global_batch_size_explicitly_specified = True
        found.rank, found.world_size = 0, world
        framework["arguments"].validate_args(found)
    return found


@pytest.mark.parametrize("file", FILES)
def test_degrees_batches_and_switches_are_megatrons(file: str) -> None:
    plan = import_job(SCRIPTS / file).plan
    found = parsed(file, sum(plan.gpus.values()))
    ours = {"tp": plan.pipelines[0].segments[0].tp, "pp": plan.pp, "dp": plan.dp}
    for theirs, name in SAME.items():
        assert getattr(found, theirs) == ours.get(name, getattr(plan, name, None)), theirs
    assert (found.virtual_pipeline_model_parallel_size or 1) == plan.vpp
    assert bool(found.use_distributed_optimizer) == (plan.sharding != "none")
    wide = found.accumulate_allreduce_grads_in_fp32
    if found.use_megatron_fsdp:  # which has a type of its own, unset that of the weights
        own = found.megatron_fsdp_grad_comm_dtype or found.megatron_fsdp_main_grads_dtype
        wide = str(own or found.params_dtype) == "torch.float32"
    assert bool(wide) == (plan.grad_reduce_dtype == "fp32")
    assert found.ffn_hidden_size in (plan.model.ffn, plan.model.moe and plan.model.moe.moe_ffn)
    assert bool(found.fp8) == (plan.precision == "fp8")
    if plan.model.moe:
        assert found.expert_tensor_parallel_size == plan.etp
        assert found.moe_router_topk == plan.model.moe.top_k
        assert found.moe_ffn_hidden_size == plan.model.moe.moe_ffn
    if found.pipeline_model_parallel_layout is not None:
        from megatron.core.transformer.pipeline_parallel_layer_layout import (
            PipelineParallelLayerLayout,
        )

        text = found.pipeline_model_parallel_layout
        stages = PipelineParallelLayerLayout.parse_str_to_list(text)
        assert tuple(
            sum(kind.name == "decoder" for kind in stage) for stage in stages
        ) == layers_of_chunks(plan)
