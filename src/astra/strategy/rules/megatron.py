"""What Megatron-LM accepts (megatron-core 0.19.2), checked against its own code in `make verify`.

Layers: parser = the command line and `validate_args`; config = `TransformerConfig`,
`OptimizerConfig`; layout = `PipelineParallelLayerLayout`; runtime = process groups, model build
and schedules.
"""

from dataclasses import replace

import numpy as np

from astra.hardware.cluster import Gpu
from astra.strategy.plans import OFFLOAD_MODULES, Flags, Plans, Task
from astra.strategy.rules.ours import BATCH_ADDS_UP, HOLDS_EVERY_LAYER, one_cut
from astra.strategy.rules.rule import (
    Rule,
    constant,
    every,
    every_pipeline,
    first_dp,
    first_pp,
    first_tp,
    is_word,
    recomputes,
    some,
)

ARGUMENTS = "megatron/training/arguments.py validate_args"
CONFIG = "megatron/core/transformer/transformer_config.py"
LAYOUT = "megatron/core/transformer/pipeline_parallel_layer_layout.py"
SCHEDULES = "megatron/core/pipeline_parallel/schedules.py"
GROUPS = "megatron/core/parallel_state.py initialize_model_parallel"
LAYERS = "megatron/core/tensor_parallel/layers.py"
TE = "transformer_engine/pytorch/attention"


def _is_fsdp(plans: Plans) -> Flags:
    return is_word(plans, "sharding", "gradients", "parameters")


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
    return every((groups % plans.tp == 0) | (plans.tp % groups == 0))


def _positions(plans: Plans, task: Task) -> Flags:
    rows = task.model.learned_positions
    return plans.seq_len <= rows if rows else constant(plans, True)


def _expert_grid(plans: Plans, task: Task) -> Flags:
    if task.model.moe is None:
        return constant(plans, True)
    ranks = plans.tp * plans.cp * plans.dp
    return every((ranks % (plans.segment_etp * plans.segment_ep) == 0) | ~plans.used)


def _instances_divide_expert_copies(plans: Plans, task: Task) -> Flags:
    if task.model.moe is None:
        return constant(plans, True)
    copies = first_dp(plans) * plans.cp
    experts = first_tp(plans) * copies // np.maximum(plans.etp * plans.ep, 1)
    instances = np.maximum(copies // plans.shard_group, 1)
    return is_word(plans, "sharding", "none") | (experts % instances == 0)


def _rank_order(plans: Plans, task: Task) -> Flags:
    """With stages inside the data-parallel ranks, dense and expert copies must be as many."""
    if task.model.moe is None:
        return constant(plans, True)
    alike = plans.etp * plans.ep == first_tp(plans) * plans.cp
    return is_word(plans, "rank_order", "tp-cp-ep-dp-pp") | (first_pp(plans) == 1) | alike


def _group_range(plans: Plans, _: Task) -> Flags:
    group, count = plans.groups, plans.micro_batches
    inside = (plans.pp <= group) & (group <= count)
    return (plans.vpp == 1) | every_pipeline(inside, plans)


def _group_remainder(plans: Plans, _: Task) -> Flags:
    rest = plans.micro_batches % np.maximum(plans.groups, 1)
    good = (rest == 0) | (rest >= plans.pp)
    return (plans.vpp == 1) | every_pipeline(good, plans)


def _widths(plans: Plans, task: Task) -> Flags:
    """Every column-parallel width is a multiple of what cuts it."""
    model = task.model
    held = every(model.ffn % plans.tp == 0)
    if model.moe:
        held &= every(model.moe.moe_ffn % plans.segment_etp == 0)
        held &= every(model.moe.shared_ffn % plans.tp == 0)
    return held


def _sequence_cut(plans: Plans, _: Task) -> Flags:
    cut = np.where(plans.sequence_parallel, first_tp(plans), 1) * plans.cp
    return plans.seq_len % cut == 0


def _cp_heads(plans: Plans, task: Task) -> Flags:
    """Ulysses-style context parallelism exchanges heads."""
    groups = task.model.heads if task.model.mla else task.model.kv_heads
    parts = first_tp(plans) * plans.cp
    shared = (task.model.heads % parts == 0) & (groups % parts == 0)
    return (plans.cp == 1) | ~is_word(plans, "cp_comm_type", "a2a") | shared


def _grads_dtype(plans: Plans, _: Task) -> Flags:
    fsdp_words = is_word(plans, "main_grads_dtype", "fp32", "bf16", "fp16") & is_word(
        plans, "grad_reduce_dtype", "fp32", "bf16", "fp16"
    )
    return np.where(_is_fsdp(plans), fsdp_words, is_word(plans, "main_grads_dtype", "fp32", "bf16"))


def _master_dtype(plans: Plans, _: Task) -> Flags:
    fsdp = _is_fsdp(plans) & is_word(plans, "master_dtype", "bf16")
    return is_word(plans, "master_dtype", "fp32", "fp16") | fsdp


def _fp32_sum(plans: Plans, _: Task) -> Flags:
    """Summing gradients in fp32 and keeping them in bf16 exclude each other."""
    brain = is_word(plans, "precision", "bf16", "fp8", "fp4")
    narrow = ~is_word(plans, "main_grads_dtype", "fp32")
    wide = is_word(plans, "grad_reduce_dtype", "fp32")
    return ~(brain & narrow & wide) | _is_fsdp(plans)


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
    return some(full & plans.used)


PARSER = (
    replace(
        BATCH_ADDS_UP,
        layer="parser",
        where=ARGUMENTS,
        reason="Megatron: the global batch must be divisible by micro-batch x data-parallel size",
    ),
    Rule(
        name="sequence-cut-by-cp",
        layer="parser",
        about="seq_len cp",
        where=ARGUMENTS,
        reason="Megatron: the sequence length must be a multiple of 2 x context-parallel size",
        holds=lambda plans, _: (plans.cp == 1) | (plans.seq_len % (2 * plans.cp) == 0),
    ),
    Rule(
        name="sequence-within-positions",
        layer="parser",
        about="seq_len model.learned_positions",
        where=ARGUMENTS,
        reason="Megatron: the sequence cannot be longer than the table of learned positions",
        holds=_positions,
    ),
    Rule(
        name="interleaving-needs-stages",
        layer="parser",
        about="vpp pp",
        where=ARGUMENTS,
        reason="Megatron: virtual stages need a pipeline-parallel size above 1",
        holds=lambda plans, _: (plans.vpp == 1) | every_pipeline(plans.pp > 1, plans),
    ),
    Rule(
        name="interleaving-without-p2p-overlap",
        layer="parser",
        about="vpp pp overlap_p2p",
        where=ARGUMENTS,
        reason="Megatron: virtual stages without p2p overlap need a pipeline-parallel size above 2",
        holds=lambda plans, _: (
            (plans.vpp == 1) | plans.overlap_p2p | every_pipeline(plans.pp > 2, plans)
        ),
    ),
    Rule(
        name="param-gather-overlap-needs-sharding",
        layer="parser",
        about="overlap_param_gather sharding",
        where=ARGUMENTS,
        reason="Megatron: --overlap-param-gather needs the distributed optimizer or Megatron-FSDP",
        holds=lambda plans, _: ~plans.overlap_param_gather | ~is_word(plans, "sharding", "none"),
    ),
    Rule(
        name="param-gather-overlap-needs-grad-overlap",
        layer="parser",
        about="overlap_param_gather overlap_grad_reduce",
        where=ARGUMENTS,
        reason="Megatron: --overlap-param-gather needs --overlap-grad-reduce",
        holds=lambda plans, _: ~plans.overlap_param_gather | plans.overlap_grad_reduce,
    ),
    Rule(
        name="tp-overlap-needs-sequence-parallel",
        layer="parser",
        about="overlap_tp sequence_parallel tp",
        where=ARGUMENTS,
        reason="Megatron: --tp-comm-overlap needs sequence parallelism, which needs tp above 1",
        holds=lambda plans, _: (
            ~plans.overlap_tp | (plans.sequence_parallel & (first_tp(plans) > 1))
        ),
    ),
    Rule(
        name="ep-needs-experts",
        layer="parser",
        about="ep model.moe",
        where=ARGUMENTS,
        reason="Megatron: expert parallelism needs a model with experts",
        holds=lambda plans, task: every(plans.segment_ep == 1) | (task.model.moe is not None),
    ),
    Rule(
        name="ep-divides-experts",
        layer="parser",
        about="ep model.moe.experts",
        where=ARGUMENTS,
        reason="Megatron: the experts must be divisible by the expert-parallel size",
        holds=lambda plans, task: every(
            (task.model.moe.experts if task.model.moe else 0) % plans.segment_ep == 0
        ),
    ),
    Rule(
        name="mtp-needs-rope",
        layer="parser",
        about="mtp_layers model.learned_positions",
        where=ARGUMENTS,
        reason="Megatron: multi-token prediction needs rotary or no positions",
        holds=lambda plans, task: (plans.mtp_layers == 0) | (task.model.learned_positions == 0),
    ),
    Rule(
        name="main-grads-dtype",
        layer="parser",
        about="main_grads_dtype grad_reduce_dtype sharding",
        where="megatron/training/arguments.py --main-grads-dtype",
        reason="Megatron: main gradients are fp32 or bf16 (with FSDP also fp16)",
        holds=_grads_dtype,
    ),
    Rule(
        name="master-dtype",
        layer="parser",
        about="master_dtype sharding",
        where="megatron/training/arguments.py --main-params-dtype",
        reason="Megatron: master weights are fp32 or fp16 (with FSDP also bf16)",
        holds=_master_dtype,
    ),
    Rule(
        name="fp32-reduction-keeps-fp32-grads",
        layer="parser",
        about="main_grads_dtype grad_reduce_dtype precision",
        where=ARGUMENTS,
        reason="Megatron: gradients reduced in fp32 are kept in fp32",
        holds=_fp32_sum,
    ),
)

CONFIGURATION = (
    Rule(
        name="tp-divides-heads",
        layer="config",
        about="tp model.heads",
        where=CONFIG,
        reason="Megatron: attention heads must be divisible by the tensor-parallel size",
        holds=lambda plans, task: every(task.model.heads % plans.tp == 0),
    ),
    Rule(
        name="tp-fits-kv-groups",
        layer="config",
        about="tp model.kv_heads",
        where=CONFIG,
        reason="Megatron: KV groups must be a multiple or a divisor of the tensor-parallel size",
        holds=_query_groups,
    ),
    Rule(
        name="expert-bias-needs-etp-1",
        layer="config",
        about="etp model.mlp_bias",
        where=CONFIG,
        reason="Megatron: experts with biases need an expert tensor-parallel size of 1",
        holds=lambda plans, task: (
            every(plans.segment_etp == 1) | (task.model.moe is None) | (not task.model.mlp_bias)
        ),
    ),
    Rule(
        name="precision-aware-needs-sharding",
        layer="config",
        about="sharding main_grads_dtype master_dtype moment_dtypes offload_optimizer_fraction",
        where="megatron/core/optimizer/optimizer_config.py",
        reason="Megatron: other optimizer dtypes than fp32 and optimizer offload need the "
        "distributed optimizer",
        holds=_precision_aware,
    ),
    Rule(
        name="moe-act-needs-grouped-gemm",
        layer="config",
        about="recompute model.moe gpu",
        where=CONFIG,
        reason="Megatron: recomputing moe_act needs grouped GEMM, which needs experts and compute "
        "capability 8 or later",
        holds=lambda plans, task: ~recomputes(plans, "moe_act") | _has_grouped_gemm(task),
    ),
    Rule(
        name="mla-up-proj-needs-mla",
        layer="config",
        about="recompute model.mla",
        where=CONFIG,
        reason="Megatron: recomputing mla_up_proj needs multi-latent attention",
        holds=lambda plans, task: ~recomputes(plans, "mla_up_proj") | (task.model.mla is not None),
    ),
    Rule(
        name="delayed-fp8-keeps-inputs",
        layer="config",
        about="recompute fp8_recipe",
        where=CONFIG,
        reason="Megatron: delayed fp8 scaling does not allow recomputing moe_act or layernorm",
        holds=_delayed_scaling,
    ),
    Rule(
        name="attn-proj-offloads-with-core-attn",
        layer="config",
        about="offload_activations",
        where=CONFIG,
        reason="Megatron: attn_proj is offloaded only together with core_attn",
        holds=lambda plans, _: ~_offloads(plans, "attn_proj") | _offloads(plans, "core_attn"),
    ),
    Rule(
        name="no-offload-inside-recomputed-moe",
        layer="config",
        about="offload_activations recompute",
        where=CONFIG,
        reason="Megatron: what a recomputed MoE layer holds cannot be offloaded",
        holds=lambda plans, _: (
            ~_offloads(plans, "expert_fc1", "moe_act") | ~recomputes(plans, "moe")
        ),
    ),
    Rule(
        name="full-recompute-outside-graphs",
        layer="config",
        about="cuda_graph recompute",
        where=CONFIG,
        reason="Megatron: full recompute goes only with graphs of the full iteration",
        holds=lambda plans, _: (
            is_word(plans, "cuda_graph", "none", "full_iteration") | ~_full_recompute(plans)
        ),
    ),
    Rule(
        name="graphs-limit-offload",
        layer="config",
        about="cuda_graph offload_activations",
        where=CONFIG,
        reason="Megatron: activation offload goes only with transformer_engine graphs, or with "
        "local ones where only expert activations leave",
        holds=_graph_offload,
    ),
    Rule(
        name="ep-overlap-needs-ep",
        layer="config",
        about="overlap_ep ep",
        where=CONFIG,
        reason="Megatron: hiding the experts' all-to-all needs expert parallelism",
        holds=lambda plans, _: ~plans.overlap_ep | (plans.ep > 1),
    ),
    Rule(
        name="ep-overlap-needs-alltoall",
        layer="config",
        about="overlap_ep dispatcher",
        where=CONFIG,
        reason="Megatron: hiding the experts' all-to-all needs the alltoall or a flex dispatcher",
        holds=lambda plans, _: ~plans.overlap_ep | ~is_word(plans, "dispatcher", "allgather"),
    ),
    Rule(
        name="ep-overlap-excludes-recompute",
        layer="config",
        about="overlap_ep recompute",
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
        about="overlap_ep precision",
        where=CONFIG,
        reason="Megatron: hiding the experts' all-to-all needs bf16 or fp16",
        holds=lambda plans, _: ~plans.overlap_ep | ~is_word(plans, "precision", "fp32"),
    ),
    Rule(
        name="ep-overlap-needs-vpp",
        layer="config",
        about="overlap_ep vpp pp",
        where=CONFIG,
        reason="Megatron: hiding the experts' all-to-all in a pipeline needs virtual stages",
        holds=lambda plans, _: ~plans.overlap_ep | (first_pp(plans) == 1) | (plans.vpp > 1),
    ),
    Rule(
        name="ep-overlap-allows-one-mtp",
        layer="config",
        about="overlap_ep mtp_layers",
        where=CONFIG,
        reason="Megatron: hiding the experts' all-to-all allows one multi-token-prediction layer",
        holds=lambda plans, _: ~plans.overlap_ep | (plans.mtp_layers <= 1),
    ),
)

LAYOUTS = (
    replace(
        HOLDS_EVERY_LAYER,
        layer="layout",
        where=LAYOUT,
        reason="Megatron: the layout's decoder layers must be the model's",
    ),
)

RUNTIME = (
    Rule(
        name="expert-grid-divides-world",
        layer="runtime",
        about="tp cp dp ep etp",
        where=GROUPS,
        reason="Megatron: the GPUs of a stage must be divisible by ep x etp",
        holds=_expert_grid,
    ),
    Rule(
        name="optimizer-instances-divide-expert-copies",
        layer="runtime",
        about="shard_group ep etp",
        where=GROUPS,
        reason="Megatron: the copies of the experts must be divisible by the number of "
        "distributed-optimizer instances",
        holds=_instances_divide_expert_copies,
    ),
    Rule(
        name="rank-order-keeps-expert-copies",
        layer="runtime",
        about="rank_order ep etp tp cp",
        where=GROUPS,
        reason="Megatron: with pipeline ranks inside data-parallel ranks, dense and expert copies "
        "must be as many",
        holds=_rank_order,
    ),
    Rule(
        name="microbatch-group-in-range",
        layer="runtime",
        about="microbatch_group pp micro_batches vpp",
        where=SCHEDULES,
        reason="Megatron: the micro-batch group of an interleaved schedule lies between the "
        "pipeline-parallel size and the number of micro-batches",
        holds=_group_range,
    ),
    Rule(
        name="microbatch-group-remainder",
        layer="runtime",
        about="microbatch_group pp micro_batches vpp",
        where=SCHEDULES,
        reason="Megatron: the micro-batches left after whole groups must be none, or at least the "
        "pipeline-parallel size",
        holds=_group_remainder,
    ),
    Rule(
        name="tp-divides-widths",
        layer="runtime",
        about="tp etp model.ffn model.moe",
        where=LAYERS,
        reason="Megatron: the MLP width must be divisible by tp, an expert's by etp",
        holds=_widths,
    ),
    Rule(
        name="sequence-cut-by-tp",
        layer="runtime",
        about="seq_len cp tp sequence_parallel",
        where="megatron/core/tensor_parallel/mappings.py",
        reason="Megatron: the sequence must be divisible by cp, and by tp x cp with sequence "
        "parallelism",
        holds=_sequence_cut,
    ),
    Rule(
        name="a2a-divides-heads",
        layer="runtime",
        about="cp cp_comm_type tp model.kv_heads",
        where=TE,
        reason="Transformer Engine: context parallelism by all-to-all needs heads and KV groups "
        "divisible by tp x cp",
        holds=_cp_heads,
    ),
    Rule(
        name="cp-needs-fused-attention",
        layer="runtime",
        about="cp attention",
        where=TE,
        reason="Transformer Engine: context parallelism needs flash or fused attention",
        holds=lambda plans, _: (plans.cp == 1) | is_word(plans, "attention", "flash"),
    ),
)

RULES = (*PARSER, *CONFIGURATION, *LAYOUTS, *RUNTIME, *one_cut("Megatron-LM's command line"))
