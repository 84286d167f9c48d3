"""Kept activations against the tables of Korthikanti et al. 2022 (arXiv 2205.05198).

GPT-3 175B: h 12288, a 96, s 2048, b 1, t 8, L 96. The paper counts, per layer,

    no parallelism            s b h (34 + 5 a s / h)
    tensor parallel           s b h (10 + 24 / t + 5 a s / (h t))
    and sequence parallel     s b h / t (34 + 5 a s / h)
    and selective recompute   s b h 34 / t
    full recompute            2 s b h
    dropout of the embedding  s b h / t a micro-batch in flight, on the first stage

Of the 34, two are masks of hidden dropout, which a stack without dropout does not keep, nor
three of the 5: a mask, and the softmax a second time. Fused attention has no s x s matrices, so
no 5 a s / h; it keeps the log of the sum of every row instead: 4 bytes a head and token.
"""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cost import some_plans
from tests.cost.some_plans import changed, stack, view, with_segments

from astra.api import predict
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.memory.stage import memory_of
from astra.model.zoo import find_model
from astra.strategy.plan import Pipeline, Plan, Segment

GPT3 = find_model("gpt3-175b")
H, A, S, B, T, LAYERS = 12_288, 96, 2048, 1, 8, 96
SBH = S * B * H
SCORES = 5 * A * S / H  # of unfused attention, in units of s b h
DROPOUT = stack(dropout=True)
DRY = stack()


def gpt3(
    tp: int = T,
    pp: int = 1,
    vpp: int = 1,
    recompute: str = "none",
    gpu: str = "a100-80g",
    **fields: Any,
) -> Plan:
    found, _ = find_gpu(gpu)
    segment = Segment(
        gpu=found.name, stages=pp, layers=(LAYERS // pp,) * pp, tp=tp, recompute=recompute
    )
    plan = Plan(
        model=GPT3,
        cluster=Cluster(name="many", pools=(Pool(gpu=found, count=1024),)),
        pipelines=(Pipeline(replicas=1, micro_batches=64, segments=(segment,)),),
        micro_batch=B,
        global_batch=64 * B,
        seq_len=S,
        vpp=vpp,
        schedule="interleaved" if vpp > 1 else "1f1b",
        microbatch_group=pp if vpp > 1 else None,
        attention="unfused",
    )
    return changed(plan, **fields)


def layer_sbh(plan: Plan, dropout: bool = True) -> float:
    """Kept of one layer and micro-batch, in units of s b h.

    Stage 0 of two, one micro-batch: no final norm behind it.
    """
    (pipeline,) = plan.pipelines
    segment = msgspec.structs.replace(
        pipeline.segments[0], stages=2, layers=(LAYERS // 2, LAYERS // 2)
    )
    pipeline = msgspec.structs.replace(pipeline, micro_batches=1, segments=(segment,))
    held = memory_of(view(changed(plan, pipelines=(pipeline,))), DROPOUT if dropout else DRY)
    mask = SBH / (plan.pipelines[0].segments[0].tp if plan.sequence_parallel else 1)
    kept = float(held.activations_bytes[0, 0, 0]) - dropout * mask  # the embedding's
    return kept / (LAYERS // 2) / SBH


def test_the_shape_is_the_papers() -> None:
    assert (GPT3.hidden, GPT3.heads, GPT3.layers, GPT3.ffn) == (H, A, LAYERS, 4 * H)


def test_without_parallelism_a_layer_saves_34_and_the_scores() -> None:
    assert layer_sbh(gpt3(tp=1)) == pytest.approx(34 + SCORES, rel=1e-12)


def test_tensor_parallelism_leaves_10_whole_and_cuts_24_and_the_scores() -> None:
    assert layer_sbh(gpt3()) == pytest.approx(10 + 24 / T + SCORES / T, rel=1e-12)


def test_sequence_parallelism_cuts_everything() -> None:
    found = layer_sbh(gpt3(sequence_parallel=True))
    assert found == pytest.approx((34 + SCORES) / T, rel=1e-12)


def test_selective_recompute_drops_the_scores() -> None:
    found = layer_sbh(gpt3(sequence_parallel=True, recompute="selective"))
    assert found == pytest.approx(34 / T, rel=1e-12)


def test_full_recompute_saves_the_input_of_each_layer() -> None:
    """2 s b h; with sequence parallelism every rank keeps its share of it."""
    assert layer_sbh(gpt3(recompute="full")) == pytest.approx(2, rel=1e-12)
    shared = layer_sbh(gpt3(recompute="full", sequence_parallel=True))
    assert shared == pytest.approx(2 / T, rel=1e-12)


def test_without_dropout_two_masks_less_are_saved() -> None:
    assert layer_sbh(gpt3(tp=1), dropout=False) == pytest.approx(32 + SCORES * 2 / 5, rel=1e-12)
    shared = layer_sbh(gpt3(sequence_parallel=True, recompute="selective"), dropout=False)
    assert shared == pytest.approx(32 / T, rel=1e-12)


def test_fused_attention_saves_a_sum_for_every_row_instead_of_the_scores() -> None:
    found = layer_sbh(gpt3(sequence_parallel=True, attention="flash", gpu="h100"))
    assert found == pytest.approx((34 + 4 * A / H) / T, rel=1e-12)


def test_flash_attention_2_saves_its_output_in_two_orders() -> None:
    """Batch first as it writes, sequence first as the projection reads: 2 s b h / t more.

    Megatron-LM's test of a GPT-3 7B (32 layers of 4096, tp 4, 2 x 8192 tokens) allocates
    1,024 MiB more on A100 and on GB200, where its deterministic attention is flash-attention 2,
    than on H100, where it is cuDNN's (the A100's workspaces being 28 MiB smaller).
    """
    flash: dict[str, Any] = {"sequence_parallel": True, "attention": "flash"}
    more = layer_sbh(gpt3(**flash)) - layer_sbh(gpt3(**flash, gpu="h100"))
    assert more == pytest.approx(2 / T, rel=1e-12)
    assert 32 * 2 * 8192 * 4096 / 4 * 2 == 1024 * 2**20
    assert layer_sbh(gpt3(gpu="a100")) == layer_sbh(gpt3(gpu="h100"))  # unfused: one order
    strict = stack(deterministic=True)
    for gpu, copies in (("h100", False), ("gb200", True)):
        plan = gpt3(**flash, gpu=gpu)
        both = [memory_of(view(plan), each).activations_bytes[0, 0, 0] for each in (DRY, strict)]
        assert (both[1] > both[0]) == copies


def test_grouped_keys_and_gated_mlps_by_their_tensors() -> None:
    """Llama 3 8B: norms 4 + 4, query 2 and keys and values 1, output 2, gate, up and their product.

    Hidden 4096, 32 heads over 8 key-value heads, MLP of 14336 = 3.5 h.
    """
    model = find_model("llama-3-8b")
    base = gpt3(gpu="h100")
    (pipeline,) = base.pipelines
    segment = msgspec.structs.replace(pipeline.segments[0], stages=2, layers=(16, 16), tp=1)
    pipeline = msgspec.structs.replace(pipeline, micro_batches=1, segments=(segment,))
    plan = changed(base, model=model, pipelines=(pipeline,), attention="flash")
    held = memory_of(view(plan), DRY).activations_bytes[0, 0, 0] / 16 / (S * model.hidden)
    expected = 8 + 2 + 2 * 2 * 8 / 32 + 2 + 4 * 32 / 4096 + 3 * 2 * 3.5
    assert held == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("pp", "in_flight"), [(2, 2), (8, 8), (32, 32)])
def test_the_first_stage_of_1f1b_holds_the_activations_of_all_layers(
    pp: int, in_flight: int
) -> None:
    """L layers whatever p is: L / p of them, p times. Section 4.3 of the paper."""
    plan = gpt3(pp=pp, sequence_parallel=True)
    held = float(memory_of(view(plan), DROPOUT).activations_bytes[0, 0, 0])
    layers = LAYERS / pp * (34 + SCORES)
    assert held == pytest.approx(in_flight * SBH * (layers + 1) / T, rel=1e-12)


@pytest.mark.parametrize(("pp", "vpp"), [(8, 3), (8, 2), (4, 4)])
def test_interleaving_holds_the_papers_factor_more(pp: int, vpp: int) -> None:
    """L (1 + (p - 1) / (p m)) with m chunks: section 4.2.3 of the paper."""
    plan = gpt3(pp=pp, vpp=vpp, sequence_parallel=True)
    held = float(memory_of(view(plan), DROPOUT).activations_bytes[0, 0, 0])
    factor = 1 + (pp - 1) / (pp * vpp)
    layers = LAYERS * (34 + SCORES) + pp  # and the embedding's masks
    assert held == pytest.approx(factor * SBH * layers / T, rel=1e-12)


RECOMPUTES = (
    "selective",
    "selective:layernorm",
    "selective:mlp",
    "selective:core_attn+layernorm+mlp+moe+moe_act+mla_up_proj+shared_experts",
    "full:uniform:1",
    "full:uniform:4",
    "full:block:1",
    "full:block:3",
)


@settings(max_examples=60, deadline=None)
@given(some_plans.any_plan(), st.sampled_from(RECOMPUTES))
def test_recompute_never_saves_more_activations(plan: Plan, how: str) -> None:
    none, some = (
        memory_of(view(with_segments(plan, recompute=each)), DRY) for each in ("none", how)
    )
    assert (some.activations_bytes <= none.activations_bytes * (1 + 1e-12)).all()


@settings(max_examples=40, deadline=None)
@given(some_plans.any_plan(), st.integers(1, 6))
def test_recomputing_more_layers_of_a_block_never_saves_more(plan: Plan, layers: int) -> None:
    fewer, more = (
        memory_of(view(with_segments(plan, recompute=f"full:block:{n}")), DRY).activations_bytes
        for n in (layers, layers + 1)
    )
    assert (more <= fewer * (1 + 1e-12)).all()


@settings(max_examples=40, deadline=None)
@given(some_plans.any_plan(), st.booleans())
def test_a_larger_micro_batch_never_needs_less(plan: Plan, same_batch: bool) -> None:
    """With as many micro-batches, and with half as many of the same batch."""
    larger = changed(plan, micro_batch=2 * plan.micro_batch)
    if same_batch:
        pipelines = tuple(
            msgspec.structs.replace(each, micro_batches=2 * each.micro_batches)
            for each in plan.pipelines
        )
        plan = changed(plan, pipelines=pipelines)
    small, large = (memory_of(view(each), DRY) for each in (plan, larger))
    assert (large.allocated_bytes >= small.allocated_bytes * (1 - 1e-12)).all()
    assert np.array_equal(large.weights_bytes, small.weights_bytes)


def test_torchtitans_selective_saves_every_second_product() -> None:
    """Llama 3 8B, tensor by tensor: input, wq, wv, attention, w1, w2 (wk, wo, w3 done again)."""

    def kept(recompute: str) -> float:
        plan = predict(
            "llama-3-8b", gpus="h100:8", runtime="fsdp", recompute=recompute, global_batch=8
        ).plan
        plan = changed(plan, seq_len=4096)
        return float(memory_of(view(plan), DRY).activations_bytes.item())

    hidden, keys, ffn = 4096, 1024, 14336
    counted = 4096 * (2 * (hidden * 4 + keys + ffn) + 4 * 32)
    none, some, full = kept("none"), kept("selective"), kept("full")
    working = full - 32 * 4096 * 2 * hidden  # of the layer that is done again
    assert (some - working) / 32 == pytest.approx(counted, rel=0.1)
    assert full < some < none
