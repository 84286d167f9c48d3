"""Weights, gradients and optimizer states: bytes a parameter, and what divides them."""

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cost import some_plans
from tests.cost.some_plans import changed, view
from tests.support.cases import each_case

from astra.api import predict
from astra.cost.price import price_plan
from astra.cost.result import PricedPlan
from astra.hardware.stack import find_stack
from astra.memory.stage import memory_of
from astra.model.parameters import parameters
from astra.model.zoo import find_model
from astra.strategy.plan import Plan

STACK = find_stack("megatron")
SHARDINGS = ("none", "optimizer", "gradients", "parameters")


def states_bytes(plan: Plan) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Of one GPU of every stage, on the GPU or on its host."""
    held = memory_of(view(plan), STACK)
    total = held.weights_bytes + held.gradients_bytes + held.optimizer_bytes + held.host_bytes
    return np.asarray(total[..., 0])


def alone(name: str, **settings: object) -> PricedPlan:
    """A model on one stage of H100s, whether or not it fits."""
    return predict(name, global_batch=256, seq_len=1024, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gpt3-125m", "llama-3-8b", "llama-3.2-1b", "mixtral-8x7b"])
def test_bf16_states_are_18_bytes_a_parameter_without_sharding(name: str) -> None:
    """2 for the weight, 4 for the gradient, 4 for the master copy, 8 for Adam's moments."""
    (stage,) = alone(name, gpus="h100:1", sharding="none").memory.stages
    model = find_model(name)
    padding = -model.vocab % 128 * model.hidden * (1 if model.tied_embeddings else 2)
    held = parameters(model).total + padding
    assert stage.weights_bytes == pytest.approx(2 * held, rel=1e-12)
    assert stage.gradients_bytes == pytest.approx(4 * held, rel=1e-12)
    assert stage.optimizer_bytes == pytest.approx(12 * held, rel=1e-12)


@each_case("copies", [1, 2, 8, 64])
@each_case("sharding, whole", list(zip(SHARDINGS, (18, 6, 2, 0), strict=True)))
def test_the_distributed_optimizer_leaves_6_and_12_shared(
    copies: int, sharding: str, whole: int
) -> None:
    """6 + 12 / d; with gradients sharded too 2 + 16 / d, and with parameters 18 / d."""
    found = alone("llama-3-8b", gpus=f"h100:{copies}", sharding=sharding)
    (stage,) = found.memory.stages
    states = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
    model = find_model("llama-3-8b")
    held = parameters(model).total + 2 * (-model.vocab % 128) * model.hidden
    assert states == pytest.approx(held * (whole + (18 - whole) / copies), rel=1e-12)


def test_experts_are_shared_by_the_ranks_that_hold_the_same_ones() -> None:
    """ep 4 of 8 GPUs: a quarter of the experts each, their optimizer over two ranks; dense 8."""
    (stage,) = alone("mixtral-8x7b", gpus="h100:8", ep=4).memory.stages
    model = find_model("mixtral-8x7b")
    routed = parameters(model).by_part["routed_experts"]
    dense = parameters(model).total - routed
    assert -model.vocab % 128 == 0
    assert stage.weights_bytes == pytest.approx(2 * (dense + routed / 4), rel=1e-12)
    assert stage.gradients_bytes == pytest.approx(4 * (dense + routed / 4), rel=1e-12)
    assert stage.optimizer_bytes == pytest.approx(12 * (dense / 8 + routed / 4 / 2), rel=1e-12)


def test_experts_are_cut_by_their_own_tensor_parallelism_and_dense_layers_by_theirs() -> None:
    """tp 4, etp 1, ep 2: experts are cut by 2, norms and router by nothing, the rest by 4."""
    (stage,) = alone("mixtral-8x7b", gpus="h100:8", tp=4, ep=2, sharding="none").memory.stages
    model = find_model("mixtral-8x7b")
    parts = parameters(model).by_part
    whole = parts["norms"] + parts["router"] + parts["final_norm"]
    cut = parameters(model).total - parts["routed_experts"] - whole
    padding = 2 * (-model.vocab % (128 * 4)) * model.hidden
    held = whole + (cut + padding) / 4 + parts["routed_experts"] / 2
    assert stage.weights_bytes == pytest.approx(2 * held, rel=1e-12)


def test_keys_and_values_are_cut_no_finer_than_one_head() -> None:
    """Gemma 2 2B has four key-value heads: eight ranks hold each of them twice."""
    model = find_model("gemma-2-2b")
    assert model.kv_heads == 4
    rows = {}
    for tp in (4, 8):
        plan = changed(some_plans.legal_plans("gemma-2-2b")[0], cp=1, mtp_layers=0, vpp=1)
        plan = changed(plan, chunk_layers=None, precision="bf16", sharding="none", shard_group=1)
        (pipeline,) = plan.pipelines
        segment = msgspec.structs.replace(
            pipeline.segments[0], stages=1, layers=(model.layers,), tp=tp
        )
        plan = changed(plan, pipelines=(msgspec.structs.replace(pipeline, segments=(segment,)),))
        rows[tp] = memory_of(view(plan), STACK).weights_bytes.item() / 2
    key_value = 2 * model.layers * model.hidden * model.kv_heads * model.head_dim
    whole = sum(parameters(model).by_part[part] for part in ("norms", "final_norm"))
    cut = parameters(model).total - whole - key_value
    assert rows[4] == pytest.approx(whole + (cut + key_value) / 4, rel=1e-12)
    assert rows[8] == pytest.approx(whole + cut / 8 + key_value / 4, rel=1e-12)


@pytest.mark.parametrize(
    ("runtime", "tp", "rows"),
    [("megatron", 1, 50_304), ("megatron", 8, 51_200), ("any", 4, 50_688)],
)
def test_megatron_pads_the_vocabulary_to_128_rows_for_each_tensor_parallel_rank(
    runtime: str, tp: int, rows: int
) -> None:
    """GPT-2's 50,257 words. Embedding on the first stage, its tied copy on the last."""
    model = find_model("gpt3-6.7b")
    assert model.vocab == 50_257 and model.tied_embeddings
    even: dict[str, Any] = {"layers_per_stage": [8] * 4, "sharding": "none"}
    found = alone("gpt3-6.7b", gpus=f"h100:{4 * tp}", tp=tp, runtime=runtime, **even)
    first, inner, _, last = (stage.weights_bytes / 2 for stage in found.memory.stages)
    positions, final = model.learned_positions * model.hidden, 2 * model.hidden
    assert first - inner == pytest.approx(rows * model.hidden / tp + positions, rel=1e-12)
    assert last - inner == pytest.approx(rows * model.hidden / tp + final, rel=1e-12)


def test_plain_pytorch_does_not_pad_the_vocabulary() -> None:
    model = find_model("gpt3-6.7b")
    found = alone("gpt3-6.7b", gpus="h100:1", runtime="fsdp", sharding="parameters")
    (stage,) = found.memory.stages
    assert stage.gradients_bytes == pytest.approx(4 * parameters(model).total, rel=1e-12)


def test_fsdp_keeps_one_fp32_copy_that_is_weight_and_master() -> None:
    """4 for the shard, 4 for its gradient, 8 for the moments, all shared."""
    (stage,) = alone("llama-3-8b", gpus="h100:8", runtime="fsdp").memory.stages
    states = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
    assert states == pytest.approx(16 * parameters(find_model("llama-3-8b")).total / 8, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(some_plans.any_plan(), st.sampled_from(("megatron", "deepspeed", "any")))
def test_more_sharding_never_needs_more_states(plan: Plan, runtime: str) -> None:
    group = plan.pipelines[0].replicas * plan.cp
    found = [
        states_bytes(changed(plan, sharding=how, shard_group=group, runtime=runtime))
        for how in SHARDINGS
    ]
    for less, more in pairwise(found):
        assert (more <= less * (1 + 1e-12)).all()


@settings(max_examples=40, deadline=None)
@given(some_plans.any_plan(), st.sampled_from(SHARDINGS[1:]))
def test_a_larger_shard_group_never_needs_more_states(plan: Plan, sharding: str) -> None:
    most = plan.pipelines[0].replicas * plan.cp
    groups = [size for size in (1, 2, 4, 8, 16) if most % size == 0]
    found = [states_bytes(changed(plan, sharding=sharding, shard_group=size)) for size in groups]
    for small, large in pairwise(found):
        assert (large <= small * (1 + 1e-12)).all()


@settings(max_examples=25, deadline=None)
@given(some_plans.any_plan(), st.floats(0, 1))
def test_what_leaves_the_gpu_by_offload_arrives_on_the_host(plan: Plan, fraction: float) -> None:
    plan = changed(
        plan, precision="bf16", fp8_recipe=None, offload_activations=(), offload_layers=0
    )
    stay = memory_of(view(changed(plan, offload_optimizer_fraction=0.0)), STACK)
    moved = memory_of(view(changed(plan, offload_optimizer_fraction=fraction)), STACK)
    kept = stay.optimizer_bytes * (1 - fraction)
    assert np.allclose(moved.optimizer_bytes, kept, rtol=1e-12)
    assert np.allclose(moved.optimizer_bytes + moved.host_bytes, stay.optimizer_bytes, rtol=1e-12)
    assert not stay.host_bytes.any()


def test_a_checkpoint_holds_every_parameter_once_however_it_is_cut() -> None:
    sizes = {price_plan(plan).checkpoint_bytes for plan in some_plans.legal_plans("llama-3-8b", 5)}
    total = parameters(find_model("llama-3-8b")).total
    assert sizes == {14.0 * total}
    (plan,) = some_plans.legal_plans("llama-3-8b", 1)
    assert price_plan(changed(plan, moment_dtypes=("fp8", "bf16"))).checkpoint_bytes == 9.0 * total
