"""What a launch file does not say: Megatron-LM's own defaults, on command lines with gaps.

Options of random legal plans are left out at random. Where Megatron-LM's own parser and validation
accept what remains, our import must arrive at the same job.
"""

import contextlib
import io
import random
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.frameworks import needs

needs("torch", "triton", "megatron.core", "megatron.training")

from tests.support.megatron_oracle import GPU_ARCHITECTURE, _environment, megatron  # noqa: E402
from tests.support.random_plans import random_plan  # noqa: E402

from astra.api import import_job  # noqa: E402
from astra.export.megatron import Argument, architecture, arguments, environment  # noqa: E402
from astra.model.zoo import find_model  # noqa: E402
from astra.strategy.plan import Plan  # noqa: E402
from astra.strategy.rules.registry import broken_rules  # noqa: E402

MODELS = ("llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b", "gpt-oss-20b")
EACH, LARGEST = 30, 2_048
KEPT = 0.85  # of the options
NEEDED = (
    *("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--vocab-size"),
    *("--max-position-embeddings", "--micro-batch-size", "--train-iters", "--lr"),
)


def parsed(kept: list[Argument], plan: Plan) -> Any:
    """The job as Megatron-LM reads it; None where it refuses."""
    framework, world = megatron(), sum(plan.gpus.values())
    GPU_ARCHITECTURE["major"] = architecture(plan)
    silent = io.StringIO()
    with (
        _environment({**environment(plan), "WORLD_SIZE": str(world), "RANK": "0"}),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(silent),
        contextlib.redirect_stderr(silent),
    ):
        warnings.simplefilter("ignore")
        try:
            found = framework["parser"].parse_args([word for option in kept for word in option])
            found._is_global_batch_size_explicitly_specified = True
            found.rank, found.world_size = 0, world
            framework["arguments"].validate_args(found)
            found.config = framework["config_from_args"](found)
        except (SystemExit, Exception):  # every refusal of the framework is one of its own
            return None
    return found


def theirs(a: Any) -> dict[str, Any]:
    """Megatron-LM's job in our words."""
    torch = megatron()["torch"]
    types = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    half = "bf16" if a.bf16 else "fp16" if a.fp16 else "fp32"
    moe, vpp = a.num_experts is not None, a.virtual_pipeline_model_parallel_size or 1
    flex = a.moe_token_dispatcher_type == "flex"
    kind = a.moe_flex_dispatcher_backend if flex else a.moe_token_dispatcher_type
    grads = types.get(a.main_grads_dtype)
    reduced = "fp32" if a.accumulate_allreduce_grads_in_fp32 else half
    sharded = "optim" if a.use_distributed_optimizer else "no_shard"
    if a.use_megatron_fsdp:
        grads = types.get(a.megatron_fsdp_main_grads_dtype, half)
        reduced = types.get(a.megatron_fsdp_grad_comm_dtype, grads)
        sharded = a.data_parallel_sharding_strategy
    recompute = a.recompute_granularity or "none"
    return {
        "cut": (a.tensor_model_parallel_size, a.pipeline_model_parallel_size, vpp),
        "copies": (a.data_parallel_size, a.context_parallel_size, sharded),
        "batch": (a.micro_batch_size, a.global_batch_size, a.seq_length),
        "experts": (a.expert_model_parallel_size, a.expert_tensor_parallel_size, kind)
        if moe
        else None,
        "overlaps": (a.overlap_grad_reduce, a.overlap_param_gather, a.tp_comm_overlap),
        "more overlaps": (bool(a.overlap_p2p_comm) and vpp > 1, a.overlap_moe_expert_parallel_comm),
        "precision": "fp8" if a.fp8 else "fp4" if a.fp4 else half,
        "fp8 recipe": a.fp8_recipe if a.fp8 else None,
        "gradients": (grads, reduced),
        "sequence parallel": a.sequence_parallel,
        "recompute": recompute,
        "modules": sorted(a.config.recompute_modules) if recompute == "selective" else [],
        "unfused": a.attention_backend.name in ("unfused", "local"),
        "offload": a.optimizer_offload_fraction if a.optimizer_cpu_offload else 0,
        "graphs": a.cuda_graph_impl,
        "shape": (a.config.num_query_groups, a.swiglu, not a.untie_embeddings_and_output_weights),
        "layers": (a.add_bias_linear, a.normalization.lower(), a.mtp_num_layers or 0),
        "router": (a.moe_router_topk, a.config.moe_ffn_hidden_size) if moe else None,
    }


def ours(plan: Plan) -> dict[str, Any]:
    """The same of a plan."""
    model, segment = plan.model, plan.pipelines[0].segments[0]
    recompute, _, modules = segment.recompute.partition(":")
    kinds = {"none": "no_shard", "optimizer": "optim", "gradients": "optim_grads"}
    return {
        "cut": (segment.tp, plan.pp, plan.vpp),
        "copies": (plan.dp, plan.cp, kinds.get(plan.sharding, "optim_grads_params")),
        "batch": (plan.micro_batch, plan.global_batch, plan.seq_len),
        "experts": (plan.ep, plan.etp, plan.dispatcher) if model.moe else None,
        "overlaps": (plan.overlap_grad_reduce, plan.overlap_param_gather, plan.overlap_tp),
        "more overlaps": (plan.overlap_p2p and plan.vpp > 1, plan.overlap_ep),
        "precision": plan.precision,
        "fp8 recipe": plan.fp8_recipe,
        "gradients": (plan.main_grads_dtype, plan.grad_reduce_dtype),
        "sequence parallel": plan.sequence_parallel,
        "recompute": recompute,
        "modules": sorted((modules or "core_attn").split("+")) if recompute == "selective" else [],
        "unfused": plan.attention == "unfused",
        "offload": plan.offload_optimizer_fraction,
        "graphs": plan.cuda_graph,
        "shape": (model.kv_heads, model.gated_mlp, model.tied_embeddings),
        "layers": (model.mlp_bias, model.norm, plan.mtp_layers),
        "router": (model.moe.top_k, model.moe.moe_ffn) if model.moe else None,
    }


def test_gaps_are_filled_as_megatron_fills_them(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    wrong = []
    for name in MODELS:
        found = 0
        for seed in range(10_000):
            plan = random_plan(seed, find_model(name), ("h100", "b200"))
            if sum(plan.gpus.values()) > LARGEST or broken_rules(plan):
                continue
            found += 1
            if found > EACH:
                break
            chance = random.Random(seed)
            said = [a for a in arguments(plan) if a[0] in NEEDED or chance.random() < KEPT]
            job = parsed(said, plan)
            if job is None:
                seen["refused"] += 1
                continue
            file = tmp_path / "args.txt"
            file.write_text("".join(f"{' '.join(option)}\n" for option in said))
            gpu, world = plan.cluster.pools[0].gpu.name, sum(plan.gpus.values())
            read = ours(import_job(file, gpus=gpu, world_size=world).plan)
            seen[name] += 1
            wrong += [
                f"{name} {seed}: {what} is {read[what]}, not {value}"
                for what, value in theirs(job).items()
                if read[what] != value
            ]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:30])
    assert all(seen[name] >= 5 for name in MODELS) and seen.total() - seen["refused"] >= 60, seen
