"""What Megatron-LM's command line and `validate_args` accept."""

from dataclasses import replace

import numpy as np

from astra.strategy.plans import Flags, Plans, Task
from astra.strategy.rules.our_rules import BATCH_ADDS_UP
from astra.strategy.rules.rule import Rule, constant, every_pipeline, every_slot, first_tp, is_word

ARGUMENTS = "megatron/training/arguments.py validate_args"


def _is_fsdp(plans: Plans) -> Flags:
    return is_word(plans, "sharding", "gradients", "parameters")


def _positions(plans: Plans, task: Task) -> Flags:
    rows = task.model.learned_positions
    return plans.seq_len <= rows if rows else constant(plans, True)


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
        settings=("seq_len", "cp"),
        where=ARGUMENTS,
        reason="Megatron: the sequence length must be a multiple of 2 x context-parallel size",
        holds=lambda plans, _: (plans.cp == 1) | (plans.seq_len % (2 * plans.cp) == 0),
    ),
    Rule(
        name="sequence-within-positions",
        layer="parser",
        settings=("seq_len", "model.learned_positions"),
        where=ARGUMENTS,
        reason="Megatron: the sequence cannot be longer than the table of learned positions",
        holds=_positions,
    ),
    Rule(
        name="interleaving-needs-stages",
        layer="parser",
        settings=("vpp", "pp"),
        where=ARGUMENTS,
        reason="Megatron: virtual stages need a pipeline-parallel size above 1",
        holds=lambda plans, _: (plans.vpp == 1) | every_pipeline(plans.pp > 1, plans),
    ),
    Rule(
        name="interleaving-without-p2p-overlap",
        layer="parser",
        settings=("vpp", "pp", "overlap_p2p"),
        where=ARGUMENTS,
        reason="Megatron: virtual stages without p2p overlap need a pipeline-parallel size above 2",
        holds=lambda plans, _: (
            (plans.vpp == 1) | plans.overlap_p2p | every_pipeline(plans.pp > 2, plans)
        ),
    ),
    Rule(
        name="param-gather-overlap-needs-sharding",
        layer="parser",
        settings=("overlap_param_gather", "sharding"),
        where=ARGUMENTS,
        reason="Megatron: --overlap-param-gather needs the distributed optimizer or Megatron-FSDP",
        holds=lambda plans, _: ~plans.overlap_param_gather | ~is_word(plans, "sharding", "none"),
    ),
    Rule(
        name="param-gather-overlap-needs-grad-overlap",
        layer="parser",
        settings=("overlap_param_gather", "overlap_grad_reduce"),
        where=ARGUMENTS,
        reason="Megatron: --overlap-param-gather needs --overlap-grad-reduce",
        holds=lambda plans, _: ~plans.overlap_param_gather | plans.overlap_grad_reduce,
    ),
    Rule(
        name="tp-overlap-needs-sequence-parallel",
        layer="parser",
        settings=("overlap_tp", "sequence_parallel", "tp"),
        where=ARGUMENTS,
        reason="Megatron: --tp-comm-overlap needs sequence parallelism, which needs tp above 1",
        holds=lambda plans, _: (
            ~plans.overlap_tp | (plans.sequence_parallel & (first_tp(plans) > 1))
        ),
    ),
    Rule(
        name="ep-needs-experts",
        layer="parser",
        settings=("ep", "model.moe"),
        where=ARGUMENTS,
        reason="Megatron: expert parallelism needs a model with experts",
        holds=lambda plans, task: every_slot(plans.segment_ep == 1) | (task.model.moe is not None),
    ),
    Rule(
        name="ep-divides-experts",
        layer="parser",
        settings=("ep", "model.moe.experts"),
        where=ARGUMENTS,
        reason="Megatron: the experts must be divisible by the expert-parallel size",
        holds=lambda plans, task: every_slot(
            (task.model.moe.experts if task.model.moe else 0) % plans.segment_ep == 0
        ),
    ),
    Rule(
        name="mtp-needs-rope",
        layer="parser",
        settings=("mtp_layers", "model.learned_positions"),
        where=ARGUMENTS,
        reason="Megatron: multi-token prediction needs rotary or no positions",
        holds=lambda plans, task: (plans.mtp_layers == 0) | (task.model.learned_positions == 0),
    ),
    Rule(
        name="main-grads-dtype",
        layer="parser",
        settings=("main_grads_dtype", "grad_reduce_dtype", "sharding"),
        where="megatron/training/arguments.py --main-grads-dtype",
        reason="Megatron: main gradients are fp32 or bf16 (with FSDP also fp16)",
        holds=_grads_dtype,
    ),
    Rule(
        name="master-dtype",
        layer="parser",
        settings=("master_dtype", "sharding"),
        where="megatron/training/arguments.py --main-params-dtype",
        reason="Megatron: master weights are fp32 or fp16 (with FSDP also bf16)",
        holds=_master_dtype,
    ),
    Rule(
        name="fp32-reduction-keeps-fp32-grads",
        layer="parser",
        settings=("main_grads_dtype", "grad_reduce_dtype", "precision"),
        where=ARGUMENTS,
        reason="Megatron: gradients reduced in fp32 are kept in fp32",
        holds=_fp32_sum,
    ),
)
