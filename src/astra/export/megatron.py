"""A plan as Megatron-LM's command line and environment. Nothing is decided here.

Also writes plans that Megatron-LM refuses, faithfully: the refusal is then Megatron-LM's own.
"""

from collections.abc import Iterable

from astra.export.pipeline_layout import is_even_split, pipeline_layout_text
from astra.hardware.cluster import Gpu
from astra.model.layer_kinds import has_experts, is_windowed
from astra.model.shape import Model
from astra.strategy.plan import Plan
from astra.strategy.recompute import Recompute

Argument = tuple[str, ...]  # an option and its values


def arguments(plan: Plan, *, train_iters: int = 100, learning_rate: float = 1e-4) -> list[Argument]:
    """The complete command line but for data, checkpoints and logging."""
    return [
        *_model(plan.model),
        *_positions(plan),
        *_attention(plan),
        *_experts(plan),
        *_pipeline(plan),
        *_parallel(plan),
        *_sharding(plan),
        *_precision(plan),
        *_memory_savers(plan),
        ("--micro-batch-size", str(plan.micro_batch)),
        ("--global-batch-size", str(plan.global_batch)),
        ("--train-iters", str(train_iters)),
        ("--optimizer", "adam"),
        ("--lr", f"{learning_rate:g}"),
        ("--transformer-impl", "transformer_engine"),
        ("--cross-entropy-loss-fusion",),
        ("--cross-entropy-fusion-impl", "native"),
        ("--attention-dropout", "0.0"),
        ("--hidden-dropout", "0.0"),
    ]


def environment(plan: Plan) -> dict[str, str]:
    """Variables the job needs. Megatron-LM refuses to start with the wrong number of queues.

    `CUDA_DEVICE_MAX_CONNECTIONS` orders communication before compute when it is 1: wanted by
    tensor and context parallelism before Blackwell, forbidden by FSDP, harmful to EP overlap.
    """
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    if is_fsdp(plan):
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    elif plan.overlap_ep:
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    elif architecture(plan) < 10:
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if plan.offload_activations:
        env["NVTE_CPU_OFFLOAD_V1"] = "1"
    if plan.cuda_graph == "transformer_engine":
        env["NCCL_GRAPH_REGISTER"] = "0"
    return env


def architecture(plan: Plan) -> int:
    """Lowest compute-capability generation among the plan's NVIDIA GPUs (9: Hopper)."""
    return min((_major(pool.gpu) for pool in plan.cluster.pools), default=9)


def _major(gpu: Gpu) -> int:
    head = (gpu.compute_capability or "").partition(".")[0]
    return int(head) if head.isdigit() else 9


def is_fsdp(plan: Plan) -> bool:
    """Gradients and parameters are sharded by Megatron-FSDP, the optimizer without it."""
    return plan.sharding in ("gradients", "parameters")


def position_kind(model: Model) -> str:
    """How a model knows where a token stands."""
    return "learned" if model.learned_positions else model.positions


def _flags(**flags: bool) -> list[Argument]:
    """Options without a value, for the flags that are on."""
    return [(f"--{name.replace('_', '-')}",) for name, on in flags.items() if on]


def _model(model: Model) -> list[Argument]:
    biased = model.mlp_bias
    ffn = model.ffn or (model.moe.moe_ffn if model.moe else 0)
    return [
        ("--num-layers", str(model.layers)),
        ("--hidden-size", str(model.hidden)),
        ("--ffn-hidden-size", str(ffn)),
        ("--num-attention-heads", str(model.heads)),
        ("--vocab-size", str(model.vocab)),
        ("--make-vocab-size-divisible-by", "128"),
        ("--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"),
        *_flags(
            swiglu=model.gated_mlp,
            squared_relu=not model.gated_mlp and model.activation == "relu2",
            disable_bias_linear=not biased,
            add_qkv_bias=model.qkv_bias and not biased,
            untie_embeddings_and_output_weights=not model.tied_embeddings,
        ),
    ]


def _positions(plan: Plan) -> list[Argument]:
    """A learned table has a size; elsewhere the limit is a check that the plan's length sets."""
    model = plan.model
    rows = model.learned_positions or max(plan.seq_len, model.max_positions or 0)
    kind = {"learned": "learned_absolute", "rope": "rope"}.get(position_kind(model), "none")
    found: list[Argument] = [
        ("--seq-length", str(plan.seq_len)),
        ("--max-position-embeddings", str(rows)),
        ("--position-embedding-type", kind),
    ]
    if kind == "rope" and model.rope_theta is not None:
        found.append(("--rotary-base", str(round(model.rope_theta))))
    return found


def _attention(plan: Plan) -> list[Argument]:
    model = plan.model
    backend = "auto" if plan.attention == "flash" else "unfused"
    found: list[Argument] = [("--attention-backend", backend)]
    if model.mla:
        found += [("--multi-latent-attention",), ("--qk-layernorm",)]
        if model.mla.q_lora_rank is not None:
            found.append(("--q-lora-rank", str(model.mla.q_lora_rank)))
        found += [
            ("--kv-lora-rank", str(model.mla.kv_lora_rank)),
            ("--qk-head-dim", str(model.mla.qk_nope_head_dim)),
            ("--qk-pos-emb-head-dim", str(model.mla.qk_rope_head_dim)),
            ("--v-head-dim", str(model.mla.v_head_dim)),
        ]
    else:
        found.append(("--kv-channels", str(model.head_dim)))
        if model.kv_heads != model.heads:
            found += [("--group-query-attention",), ("--num-query-groups", str(model.kv_heads))]
        found += _flags(qk_layernorm=model.qk_norm is not None)
    if model.attn_sinks:
        found.append(("--softmax-type", "learnable"))
    if model.window:
        found.append(("--window-size", f"{model.window.tokens - 1},0"))
        if model.window.layers is not None:
            found.append(
                (
                    "--window-attn-skip-freq",
                    _pattern(is_windowed(model, layer) for layer in range(model.layers)),
                )
            )
    return found


def _pattern(flags: Iterable[bool]) -> str:
    """A per-layer switch as the Python list Megatron-LM parses."""
    return f"[{','.join('1' if flag else '0' for flag in flags)}]"


def _experts(plan: Plan) -> list[Argument]:
    moe = plan.model.moe
    if moe is None:  # written all the same, so that the refusal is Megatron-LM's
        plain: list[Argument] = [("--expert-model-parallel-size", str(plan.ep))]
        plain += _flags(overlap_moe_expert_parallel_comm=plan.overlap_ep)
        return plain if plan.ep > 1 or plan.overlap_ep else []
    flex = plan.dispatcher in ("deepep", "hybridep")
    found: list[Argument] = [
        ("--num-experts", str(moe.experts)),
        ("--moe-router-topk", str(moe.top_k)),
        ("--moe-ffn-hidden-size", str(moe.moe_ffn)),
        ("--moe-router-dtype", "fp32"),
        ("--expert-model-parallel-size", str(plan.ep)),
        ("--expert-tensor-parallel-size", str(plan.etp)),
        ("--moe-token-dispatcher-type", "flex" if flex else plan.dispatcher or "alltoall"),
        *_flags(
            moe_grouped_gemm=has_grouped_gemm(plan),
            moe_router_pre_softmax=moe.top_k == 1,
            moe_shared_expert_gate=moe.shared_gate,
            overlap_moe_expert_parallel_comm=plan.overlap_ep,
        ),
    ]
    if flex:
        found.append(("--moe-flex-dispatcher-backend", str(plan.dispatcher)))
    flags = [has_experts(plan.model, layer) for layer in range(plan.model.layers)]
    if not all(flags):
        found.append(("--moe-layer-freq", _pattern(flags)))
    if moe.shared_ffn:
        found.append(("--moe-shared-expert-intermediate-size", str(moe.shared_ffn)))
    if moe.router_bias and not plan.model.mlp_bias:
        found += [("--moe-router-score-function", "sigmoid"), ("--moe-router-enable-expert-bias",)]
    if plan.capacity_factor is not None:
        found.append(("--moe-expert-capacity-factor", f"{plan.capacity_factor:g}"))
    return found


def has_grouped_gemm(plan: Plan) -> bool:
    """Grouped GEMM kernels need compute capability 8 (Ampere) or later."""
    return architecture(plan) >= 8


def _pipeline(plan: Plan) -> list[Argument]:
    """The default split where it is this plan's, else the layout string, which says any."""
    found: list[Argument] = [("--pipeline-model-parallel-size", str(plan.pp))]
    if plan.mtp_layers:
        found.append(("--mtp-num-layers", str(plan.mtp_layers)))
    if not is_even_split(plan):
        found.append(("--pipeline-model-parallel-layout", pipeline_layout_text(plan)))
    elif plan.vpp > 1:
        found.append(("--num-virtual-stages-per-pipeline-rank", str(plan.vpp)))
    if plan.vpp > 1:
        if group := plan.explicit_microbatch_group:
            found.append(("--microbatch-group-size-per-virtual-pipeline-stage", str(group)))
        found += _flags(no_overlap_p2p_communication=not plan.overlap_p2p)
    return found


def _parallel(plan: Plan) -> list[Argument]:
    found: list[Argument] = [
        ("--tensor-model-parallel-size", str(plan.pipelines[0].segments[0].tp)),
        *_flags(sequence_parallel=plan.sequence_parallel, tp_comm_overlap=plan.overlap_tp),
        ("--context-parallel-size", str(plan.cp)),
    ]
    if plan.cp > 1:
        found.append(("--cp-comm-type", plan.cp_comm_type))
    if plan.rank_order == "tp-cp-ep-pp-dp":
        found.append(("--use-tp-pp-dp-mapping",))
    return found


def _sharding(plan: Plan) -> list[Argument]:
    found = _flags(
        use_distributed_optimizer=plan.sharding != "none",
        overlap_grad_reduce=plan.overlap_grad_reduce,
        overlap_param_gather=plan.overlap_param_gather,
    )
    if is_fsdp(plan):
        strategy = {"gradients": "optim_grads", "parameters": "optim_grads_params"}[plan.sharding]
        found += [
            ("--use-megatron-fsdp",),
            ("--data-parallel-sharding-strategy", strategy),
            ("--ckpt-format", "fsdp_dtensor"),
        ]
    if plan.sharding != "none" and plan.shard_group < plan.dp * plan.cp:
        instances = plan.dp * plan.cp // plan.shard_group
        found.append(("--num-distributed-optimizer-instances", str(instances)))
    return found


def _precision(plan: Plan) -> list[Argument]:
    found: list[Argument] = []
    if plan.precision != "fp32":
        found.append(("--fp16",) if plan.precision == "fp16" else ("--bf16",))
    if plan.precision == "fp8":
        recipe = plan.fp8_recipe or "delayed"
        eight_bit = "e4m3" if recipe in ("blockwise", "mxfp8") else "hybrid"
        found += [("--fp8-format", eight_bit), ("--fp8-recipe", recipe)]
        if keeps_fp8_weights(plan):
            found.append(("--fp8-param-gather",))
            fsdp = is_fsdp(plan)
            found += _flags(reuse_grad_buf_for_mxfp8_param_ag=recipe == "mxfp8" and not fsdp)
    if plan.precision == "fp4":
        found.append(("--fp4-format", "e2m1"))
    return found + (_fsdp_dtypes(plan) if is_fsdp(plan) else _optimizer_dtypes(plan))


def keeps_fp8_weights(plan: Plan) -> bool:
    """Whether the optimizer writes fp8 weights itself, so that no bf16 copy is kept."""
    offloads = plan.offload_optimizer_fraction > 0 and plan.fp8_recipe != "delayed"
    return plan.sharding != "none" and not offloads


def _optimizer_dtypes(plan: Plan) -> list[Argument]:
    """Gradients are summed and reduced in fp32 unless said otherwise."""
    found: list[Argument] = []
    if plan.grad_reduce_dtype == "bf16":
        found.append(("--grad-reduce-in-bf16",))
    elif plan.grad_reduce_dtype == "fp32" and plan.precision != "fp32":
        found.append(("--accumulate-allreduce-grads-in-fp32",))
    if is_precision_aware(plan):
        found += [
            ("--use-precision-aware-optimizer",),
            ("--main-grads-dtype", plan.main_grads_dtype),
            ("--main-params-dtype", plan.master_dtype),
            ("--exp-avg-dtype", plan.moment_dtypes[0]),
            ("--exp-avg-sq-dtype", plan.moment_dtypes[1]),
        ]
    return found


def is_precision_aware(plan: Plan) -> bool:
    """Whether Transformer Engine's Adam with its own dtypes is needed."""
    dtypes = (plan.main_grads_dtype, plan.master_dtype, *plan.moment_dtypes)
    return set(dtypes) != {"fp32"} or plan.offload_optimizer_fraction > 0


def _fsdp_dtypes(plan: Plan) -> list[Argument]:
    found: list[Argument] = [
        ("--megatron-fsdp-main-params-dtype", plan.master_dtype),
        ("--megatron-fsdp-main-grads-dtype", plan.main_grads_dtype),
        ("--megatron-fsdp-grad-comm-dtype", plan.grad_reduce_dtype),
    ]
    if set(plan.moment_dtypes) != {"fp32"} or plan.offload_optimizer_fraction > 0:
        found += [
            ("--use-precision-aware-optimizer",),
            ("--exp-avg-dtype", plan.moment_dtypes[0]),
            ("--exp-avg-sq-dtype", plan.moment_dtypes[1]),
        ]
    return found


def _memory_savers(plan: Plan) -> list[Argument]:
    found = recompute_arguments(Recompute.parse(plan.pipelines[0].segments[0].recompute))
    if plan.offload_optimizer_fraction > 0:
        found += [
            ("--optimizer-cpu-offload",),
            ("--optimizer-offload-fraction", f"{plan.offload_optimizer_fraction:g}"),
            ("--overlap-cpu-optimizer-d2h-h2d",),
        ]
    if plan.offload_activations:
        found += [
            ("--fine-grained-activation-offloading",),
            ("--offload-modules", *plan.offload_activations),
        ]
    if plan.offload_layers:
        found.append(("--cpu-offloading-num-layers", str(plan.offload_layers)))
    if plan.cuda_graph != "none":
        found.append(("--cuda-graph-impl", plan.cuda_graph))
        if plan.cuda_graph == "full_iteration":
            found.append(("--no-check-for-nan-in-loss-and-grad",))
        elif plan.model.moe:  # how many tokens an expert gets is not known when the graph is made
            found.append(("--cuda-graph-modules", "attn"))
    return found


def recompute_arguments(recompute: Recompute) -> list[Argument]:
    """Options of one recompute setting."""
    if recompute.mode == "none":
        return []
    if recompute.mode == "selective":
        return [
            ("--recompute-granularity", "selective"),
            ("--recompute-modules", *recompute.modules),
        ]
    return [
        ("--recompute-granularity", "full"),
        ("--recompute-method", recompute.mode.removeprefix("full:")),
        ("--recompute-num-layers", str(recompute.layers)),
    ]
