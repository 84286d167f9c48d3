"""What Megatron-LM's `TransformerConfig` and `OptimizerConfig` accept."""

from astra.hardware.cluster import Gpu
from astra.strategy.plans import OFFLOAD_MODULES, Flags, Plans, Task
from astra.strategy.rules.rule import (
    Rule,
    any_slot,
    constant,
    every_slot,
    first_pp,
    is_word,
    recomputes,
)

CONFIG = "megatron/core/transformer/transformer_config.py"


def _has_grouped_gemm(task: Task) -> bool:
    """Grouped GEMM kernels exist from compute capability 8 on."""

    def major(gpu: Gpu) -> int:
        head = (gpu.compute_capability or "").partition(".")[0]
        return int(head) if head.isdigit() else 9

    return task.model.moe is not None and min(major(p.gpu) for p in task.cluster.pools) >= 8


def _offloads(plans: Plans, *modules: str) -> Flags:
    bits = sum(1 << OFFLOAD_MODULES.index(module) for module in modules)
    return plans.offload_activations & bits != 0


def _query_groups(plans: Plans, task: Task) -> Flags:
    groups = task.model.heads if task.model.mla else task.model.kv_heads
    return every_slot((groups % plans.tp == 0) | (plans.tp % groups == 0))


def _precision_aware(plans: Plans, _: Task) -> Flags:
    narrow = ~is_word(plans, "main_grads_dtype", "fp32") | ~is_word(plans, "master_dtype", "fp32")
    moments = ~is_word(plans, "first_moment_dtype", "fp32") | ~is_word(
        plans, "second_moment_dtype", "fp32"
    )
    special = narrow | moments | (plans.offload_optimizer_fraction > 0)
    return ~special | ~is_word(plans, "sharding", "none")


def _graph_offload(plans: Plans, task: Task) -> Flags:
    """A captured layer offloads nothing but what experts keep, and only outside of the graph."""
    offloading = plans.offload_activations != 0
    inside = _offloads(plans, *(set(OFFLOAD_MODULES) - {"expert_fc1", "moe_act"}))
    local_ok = ~inside if task.model.moe else constant(plans, False)
    return (
        ~offloading
        | is_word(plans, "cuda_graph", "none", "transformer_engine")
        | (is_word(plans, "cuda_graph", "local") & local_ok)
    )


def _delayed_scaling(plans: Plans, _: Task) -> Flags:
    delayed = is_word(plans, "precision", "fp8") & is_word(plans, "fp8_recipe", "delayed")
    return ~delayed | ~(recomputes(plans, "moe_act") | recomputes(plans, "layernorm"))


def _full_recompute(plans: Plans) -> Flags:
    full = is_word(plans, "recompute", "full:uniform", "full:block")
    return any_slot(full & plans.used)


CONFIGURATION = (
    Rule(
        name="tp-divides-heads",
        layer="config",
        settings=("tp", "model.heads"),
        where=CONFIG,
        reason="Megatron: attention heads must be divisible by the tensor-parallel size",
        holds=lambda plans, task: every_slot(task.model.heads % plans.tp == 0),
    ),
    Rule(
        name="tp-fits-kv-groups",
        layer="config",
        settings=("tp", "model.kv_heads"),
        where=CONFIG,
        reason="Megatron: KV groups must be a multiple or a divisor of the tensor-parallel size",
        holds=_query_groups,
    ),
    Rule(
        name="expert-bias-needs-etp-1",
        layer="config",
        settings=("etp", "model.mlp_bias"),
        where=CONFIG,
        reason="Megatron: experts with biases need an expert tensor-parallel size of 1",
        holds=lambda plans, task: (
            every_slot(plans.segment_etp == 1)
            | (task.model.moe is None)
            | (not task.model.mlp_bias)
        ),
    ),
    Rule(
        name="precision-aware-needs-sharding",
        layer="config",
        settings=(
            "sharding",
            "main_grads_dtype",
            "master_dtype",
            "moment_dtypes",
            "offload_optimizer_fraction",
        ),
        where="megatron/core/optimizer/optimizer_config.py",
        reason="Megatron: other optimizer dtypes than fp32 and optimizer offload need the "
        "distributed optimizer",
        holds=_precision_aware,
    ),
    Rule(
        name="moe-act-needs-grouped-gemm",
        layer="config",
        settings=("recompute", "model.moe", "gpu"),
        where=CONFIG,
        reason="Megatron: recomputing moe_act needs grouped GEMM, which needs experts and compute "
        "capability 8 or later",
        holds=lambda plans, task: ~recomputes(plans, "moe_act") | _has_grouped_gemm(task),
    ),
    Rule(
        name="mla-up-proj-needs-mla",
        layer="config",
        settings=("recompute", "model.mla"),
        where=CONFIG,
        reason="Megatron: recomputing mla_up_proj needs multi-latent attention",
        holds=lambda plans, task: ~recomputes(plans, "mla_up_proj") | (task.model.mla is not None),
    ),
    Rule(
        name="delayed-fp8-keeps-inputs",
        layer="config",
        settings=("recompute", "fp8_recipe"),
        where=CONFIG,
        reason="Megatron: delayed fp8 scaling does not allow recomputing moe_act or layernorm",
        holds=_delayed_scaling,
    ),
    Rule(
        name="attn-proj-offloads-with-core-attn",
        layer="config",
        settings=("offload_activations",),
        where=CONFIG,
        reason="Megatron: attn_proj is offloaded only together with core_attn",
        holds=lambda plans, _: ~_offloads(plans, "attn_proj") | _offloads(plans, "core_attn"),
    ),
    Rule(
        name="no-offload-inside-recomputed-moe",
        layer="config",
        settings=("offload_activations", "recompute"),
        where=CONFIG,
        reason="Megatron: what a recomputed MoE layer holds cannot be offloaded",
        holds=lambda plans, _: (
            ~_offloads(plans, "expert_fc1", "moe_act") | ~recomputes(plans, "moe")
        ),
    ),
    Rule(
        name="offloads-fewer-layers-than-there-are",
        layer="config",
        settings=("offload_layers", "model.layers"),
        where=CONFIG,
        reason="Megatron: activations of all layers but one can be offloaded, not of all",
        holds=lambda plans, task: plans.offload_layers < task.model.layers,
    ),
    Rule(
        name="offloaded-layers-exclude-pipelines",
        layer="config",
        settings=("offload_layers", "pp"),
        where=CONFIG,
        reason="Megatron: activations of whole layers are offloaded without a pipeline only",
        holds=lambda plans, _: (plans.offload_layers == 0) | (plans.pp <= 1).all(axis=0),
    ),
    Rule(
        name="offloaded-layers-exclude-recompute",
        layer="config",
        settings=("offload_layers", "recompute"),
        where=CONFIG,
        reason="Megatron: activations of whole layers are offloaded only without recompute",
        holds=lambda plans, _: (
            (plans.offload_layers == 0)
            | every_slot(is_word(plans, "recompute", "none") | ~plans.used)
        ),
    ),
    Rule(
        name="offloads-layers-or-modules",
        layer="config",
        settings=("offload_layers", "offload_activations"),
        where=CONFIG,
        reason="Megatron: activations are offloaded by layers or by modules, not both",
        holds=lambda plans, _: (plans.offload_layers == 0) | (plans.offload_activations == 0),
    ),
    Rule(
        name="offloaded-layers-outside-graphs",
        layer="config",
        settings=("offload_layers", "cuda_graph"),
        where=CONFIG,
        reason="Megatron: layers whose activations are offloaded go only with graphs of the full "
        "iteration",
        holds=lambda plans, _: (
            (plans.offload_layers == 0) | is_word(plans, "cuda_graph", "none", "full_iteration")
        ),
    ),
    Rule(
        name="offloaded-layers-exclude-ep-overlap",
        layer="runtime",
        settings=("offload_layers", "overlap_ep"),
        where="megatron/core/models/gpt/fine_grained_callables.py",
        reason="Megatron: where the experts' all-to-all is hidden, layers run past the offload",
        holds=lambda plans, _: (plans.offload_layers == 0) | ~plans.overlap_ep,
    ),
    Rule(
        name="full-recompute-outside-graphs",
        layer="config",
        settings=("cuda_graph", "recompute"),
        where=CONFIG,
        reason="Megatron: full recompute goes only with graphs of the full iteration",
        holds=lambda plans, _: (
            is_word(plans, "cuda_graph", "none", "full_iteration") | ~_full_recompute(plans)
        ),
    ),
    Rule(
        name="fsdp-ep-overlap-outside-layer-graphs",
        layer="runtime",
        settings=("cuda_graph", "overlap_ep", "sharding"),
        where="core/distributed/fsdp/mcore_fsdp_adapter.py",
        reason="Megatron-FSDP: hiding the experts' all-to-all excludes CUDA graphs of layers",
        holds=lambda plans, _: (
            is_word(plans, "cuda_graph", "none", "full_iteration")
            | ~plans.overlap_ep
            | ~is_word(plans, "sharding", "gradients", "parameters")
        ),
    ),
    Rule(
        name="graphs-limit-offload",
        layer="config",
        settings=("cuda_graph", "offload_activations"),
        where=CONFIG,
        reason="Megatron: activation offload goes only with transformer_engine graphs, or with "
        "local ones where only expert activations leave",
        holds=_graph_offload,
    ),
    Rule(
        name="ep-overlap-needs-ep",
        layer="config",
        settings=("overlap_ep", "ep"),
        where=CONFIG,
        reason="Megatron: hiding the experts' all-to-all needs expert parallelism",
        holds=lambda plans, _: ~plans.overlap_ep | (plans.ep > 1),
    ),
    Rule(
        name="ep-overlap-needs-alltoall",
        layer="config",
        settings=("overlap_ep", "dispatcher"),
        where=CONFIG,
        reason="Megatron: hiding the experts' all-to-all needs the alltoall or a flex dispatcher",
        holds=lambda plans, _: ~plans.overlap_ep | ~is_word(plans, "dispatcher", "allgather"),
    ),
    Rule(
        name="ep-overlap-excludes-recompute",
        layer="config",
        settings=("overlap_ep", "recompute"),
        where=CONFIG,
        reason="Megatron: hiding the experts' all-to-all excludes full recompute and recomputing "
        "the moe module",
        holds=lambda plans, _: (
            ~plans.overlap_ep | ~(_full_recompute(plans) | recomputes(plans, "moe"))
        ),
    ),
    Rule(
        name="ep-overlap-needs-half-precision",
        layer="config",
        settings=("overlap_ep", "precision"),
        where=CONFIG,
        reason="Megatron: hiding the experts' all-to-all needs bf16 or fp16",
        holds=lambda plans, _: ~plans.overlap_ep | ~is_word(plans, "precision", "fp32"),
    ),
    Rule(
        name="ep-overlap-needs-vpp",
        layer="config",
        settings=("overlap_ep", "vpp", "pp"),
        where=CONFIG,
        reason="Megatron: hiding the experts' all-to-all in a pipeline needs virtual stages",
        holds=lambda plans, _: ~plans.overlap_ep | (first_pp(plans) == 1) | (plans.vpp > 1),
    ),
    Rule(
        name="ep-overlap-allows-one-mtp",
        layer="config",
        settings=("overlap_ep", "mtp_layers"),
        where=CONFIG,
        reason="Megatron: hiding the experts' all-to-all allows one multi-token-prediction layer",
        holds=lambda plans, _: ~plans.overlap_ep | (plans.mtp_layers <= 1),
    ),
)
