"""From a person's words to a whole plan: what was said stays, what was not is listed."""

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategy.mixed_plans import small_model
from tests.support.cases import each_case

from astra.errors import InputError
from astra.hardware.gpus_option import parse_gpus
from astra.model.zoo import find_model
from astra.strategy.complete import (
    CompletedPlan,
    PlanSettings,
    complete,
    split_by_speed,
    split_layers,
)
from astra.strategy.plan import Plan, Runtime
from astra.strategy.rule_messages import (
    DEGREES_TO_TRY,
    VALUES_TO_TRY,
    refused_plan,
    rule_message,
)
from astra.strategy.rules.registry import broken_rules, rules_for


def completed(
    gpus: str = "h100:16", runtime: Runtime = "megatron", model: str = "llama-3-8b", **said: Any
) -> CompletedPlan:
    cluster, _ = parse_gpus(gpus)
    plan_settings = PlanSettings(**{"global_batch": 64} | said)
    return complete(plan_settings, find_model(model), cluster, runtime)


def test_what_is_not_said_is_assumed_and_listed() -> None:
    answer = completed()
    assert answer.assumed == (
        "sequence length 4096",
        "tp 1",
        "cp 1",
        "ep 1",
        "vpp 1",
        "micro-batch 1",
        "pp 1",
        "no recompute",
        "precision bf16",
        "flash attention",
        "optimizer sharded over all data-parallel ranks",
        "overlapped: gradient reduction, parameter gather",
    )


def test_experts_get_the_dispatcher_that_a_search_would_give_them() -> None:
    found = [
        completed(gpus, model="mixtral-8x7b", ep=ep).plan.dispatcher
        for gpus, ep in (("h100:8", 8), ("h100:8", 1), ("a100-80g:8", 8))
    ]
    assert found == ["deepep", "alltoall", "alltoall"]


def test_what_is_said_is_not_listed_as_assumed() -> None:
    said: dict[str, Any] = {"tp": 2, "pp": 2, "cp": 1, "ep": 1, "vpp": 2, "micro_batch": 2}
    said |= {"seq_len": 8192, "microbatch_group": 2, "precision": "bf16"}
    said |= {"recompute": "none", "attention": "flash", "sharding": "optimizer"}
    said |= {"sequence_parallel": True, "overlap_grad_reduce": True, "overlap_tp": True}
    said |= {"overlap_param_gather": True, "overlap_p2p": True}
    assert completed(**said).assumed == ()


def test_tensor_parallelism_brings_sequence_parallelism_and_its_overlap() -> None:
    answer = completed(tp=4)
    assert answer.plan.sequence_parallel and answer.plan.overlap_tp
    assert "sequence parallel" in answer.assumed
    assert not completed(tp=4, sequence_parallel=False).plan.overlap_tp
    assert not completed().plan.sequence_parallel


WISHES = {
    "tp": (1, 2, 4),
    "pp": (1, 2, 4),
    "vpp": (1, 2),
    "cp": (1, 2),
    "ep": (1, 2),
    "etp": (1, 2),
    "micro_batch": (1, 2),
    "seq_len": (2048, 8192),
    "sharding": ("none", "optimizer", "gradients", "parameters"),
    "sequence_parallel": (True, False),
    "attention": ("flash", "unfused"),
    "precision": ("bf16", "fp16", "fp8"),
    "fp8_recipe": ("delayed", "blockwise"),
    "main_grads_dtype": ("fp32", "bf16"),
    "moment_dtypes": (("fp32", "fp32"), ("bf16", "fp16")),
    "overlap_grad_reduce": (True, False),
    "overlap_param_gather": (True, False),
    "overlap_p2p": (True, False),
    "overlap_tp": (True, False),
    "overlap_ep": (True, False),
    "offload_optimizer_fraction": (0.0, 0.5),
    "offload_activations": ((), ("core_attn",)),
    "cp_comm_type": ("p2p", "a2a"),
    "rank_order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
    "cuda_graph": ("none", "local"),
    "dispatcher": ("alltoall", "allgather"),
    "capacity_factor": (1.0, 1.5),
    "mtp_layers": (0, 1),
    "shard_group": (1, 2),
    "microbatch_group": (2, 4),
    "recompute": ("none", "full:block:2", "selective:mlp"),
}
runtimes = st.sampled_from(["megatron", "flagscale", "fsdp", "deepspeed", "any"])


@st.composite
def said_settings(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.sets(st.sampled_from(sorted(WISHES)), max_size=8))
    return {name: draw(st.sampled_from(WISHES[name])) for name in sorted(names)}


@given(said_settings(), runtimes)
@settings(max_examples=150, deadline=None)
def test_settings_survive_and_all_gpus_are_used(said: dict[str, Any], runtime: Runtime) -> None:
    plan = completed("h100:32", runtime, **said).plan
    segment = plan.pipelines[0].segments[0]
    for name, value in said.items():
        owner: Any = segment if name in ("tp", "recompute") else plan
        assert getattr(owner, name) == value, name
    assert plan.gpus == {"H100-80GB-SXM": 32}
    assert sum(plan.pipelines[0].layers) == 32
    assert plan.schedule == ("interleaved" if plan.vpp > 1 else "1f1b")
    assert plan.runtime == runtime


@given(runtimes, st.sampled_from([1, 2, 4, 8]), st.sampled_from(["llama-3-8b", "mixtral-8x7b"]))
@settings(max_examples=40, deadline=None)
def test_what_an_expert_would_set_breaks_no_rule(runtime: Runtime, tp: int, name: str) -> None:
    cluster, _ = parse_gpus("h100:64")
    plan = complete(PlanSettings(global_batch=64, tp=tp), find_model(name), cluster, runtime).plan
    assert broken_rules(plan) == []


@each_case("gpu", ["v100-32g", "t4", "a100", "h100", "b200", "mi300x", "rtx-4090"])
def test_the_precision_that_is_assumed_is_one_the_gpu_has(gpu: str) -> None:
    plan = completed(f"{gpu}:8").plan
    assert plan.precision == ("fp16" if gpu in ("v100-32g", "t4") else "bf16")
    assert broken_rules(plan) == []


def test_fp8_takes_the_recipe_of_the_oldest_gpu() -> None:
    assert completed("h100:16", precision="fp8").plan.fp8_recipe == "tensorwise"
    assert completed("b200:16", precision="fp8").plan.fp8_recipe == "mxfp8"
    mixed = completed("b200:16,h100:16", "flagscale", precision="fp8", tp=4, pp=4)
    assert mixed.plan.fp8_recipe == "tensorwise"


def test_layers_per_stage_set_the_stages_and_survive() -> None:
    plan = completed(layers_per_stage=(7, 9, 9, 7)).plan
    assert (plan.pp, plan.pipelines[0].layers) == (4, (7, 9, 9, 7))


def test_chunk_layers_survive() -> None:
    cut: dict[str, Any] = {"layers_per_stage": (15, 17), "vpp": 2, "chunk_layers": (7, 9, 8, 8)}
    assert completed(**cut).plan.chunk_layers == (7, 9, 8, 8)
    with pytest.raises(InputError, match="gives stage 0 14 layers, its segment says 15"):
        completed(**{**cut, "chunk_layers": (7, 9, 7, 9)})


def test_a_mixed_cluster_gets_whole_stages_of_each_type() -> None:
    plan = completed("h100:16,a100-80g:8", "flagscale", tp=4, pp=3).plan
    segments = plan.pipelines[0].segments
    assert [(s.gpu, s.stages) for s in segments] == [("A100-80GB-SXM", 1), ("H100-80GB-SXM", 2)]
    assert plan.gpus == {"A100-80GB-SXM": 8, "H100-80GB-SXM": 16}
    # 312 against 989 TFLOP/s: an A100 stage takes no longer than an H100 stage
    assert plan.pipelines[0].layers == (4, 14, 14)


def test_layers_follow_the_speed_of_their_gpu() -> None:
    assert split_by_speed(12, [1.0, 1.0, 2.0]) == (3, 3, 6)
    assert split_by_speed(3, [1.0, 100.0, 100.0]) == (1, 1, 1)
    for layers in range(4, 60):
        split = split_by_speed(layers, [1.0, 2.0, 3.5, 1.0])
        assert sum(split) == layers and min(split) >= 1


def test_layers_that_do_not_divide_leave_the_ends_shorter() -> None:
    plan = completed("h100:16", tp=4, pp=4, vpp=2, model="llama-3.1-405b").plan
    assert plan.chunk_layers is not None and sum(plan.chunk_layers) == 126
    assert plan.chunk_layers[0] == plan.chunk_layers[-1] == 15
    assert set(plan.chunk_layers[1:-1]) == {16}


def test_a_stage_that_would_lie_on_two_types_is_refused() -> None:
    with pytest.raises(InputError, match="a stage of a replica lies on one GPU type"):
        completed("h100:12,a100-80g:4", "flagscale", tp=8, pp=2)


@each_case(
    "said, words",
    [
        ({"global_batch": None}, "Try --global-batch 256"),
        ({"tp": 3}, "Try 15 or 18 GPUs, other degrees, or --dp to leave some idle"),
        ({"tp": 32}, "Try 32 GPUs"),
        ({"pp": 35}, "llama-3-8b has only 32 layers. Try --pp 32"),
        ({"pp": 10**7}, "Try --pp 32"),
        ({"tp": 10**7, "cp": 10**7}, "do not divide into replicas"),
        ({"dp": 32}, "this needs 32; there are 16. Try --dp 16"),
        ({"dp": 3, "tp": 8}, "Try --dp 2"),
        ({"dp": 1, "tp": 32}, "Try --dp 1"),
        ({"layers_per_stage": (16, 16), "pp": 4}, "give one entry per stage"),
        ({"recompute": "half"}, "not a recompute setting"),
        ({"vpp": 2, "pp": 2, "chunk_layers": (16, 16)}, "pp 2 x vpp 2 needs 4"),
        ({"sharding": "everything"}, "sharding = 'everything'"),
        ({"mtp_layers": 10**9}, "mtp_layers = 1000000000"),
        ({"capacity_factor": -1.0}, "capacity_factor = -1.0"),
    ],
)
def test_what_cannot_be_is_an_input_error_with_a_way_out(said: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        completed(**said)
    assert words in str(caught.value)


def test_a_replica_count_that_leaves_gpus_idle_is_taken_at_its_word() -> None:
    assert completed(dp=3, tp=4).plan.gpus == {"H100-80GB-SXM": 12}


@given(st.integers(1, 200), st.integers(1, 64))
def test_layers_are_shared_out_evenly_and_the_ends_get_no_more(layers: int, stages: int) -> None:
    split = split_layers(layers, stages)
    assert sum(split) == layers and len(split) == stages
    assert max(split) - min(split) <= 1
    assert stages < 3 or max(split[0], split[-1]) <= max(split[1:-1])


def test_plan_settings_have_a_word_for_every_setting_of_a_plan() -> None:
    said = {field.name for field in fields(PlanSettings)}
    made = {"model", "cluster", "stack", "runtime", "pipelines", "schedule"}
    assert set(Plan.__struct_fields__) - made <= said


# ------------------------------------------------------------------ what a broken rule means


def refusal(**said: Any) -> str:
    cluster, _ = parse_gpus("h100:16")
    model = small_model()

    def complete_again(plan_settings: PlanSettings) -> CompletedPlan:
        return complete(plan_settings, model, cluster)

    plan_settings = PlanSettings(**{"global_batch": 64} | said)
    plan = complete_again(plan_settings).plan
    return str(refused_plan(plan, broken_rules(plan), complete_again, plan_settings))


def test_a_refusal_names_the_rule_the_values_and_what_to_try() -> None:
    text = refusal(tp=16)
    assert "attention heads must be divisible by the tensor-parallel size (tp 16, heads 8)" in text
    assert "[rule tp-divides-heads]" in text
    assert text.endswith("Try tp 1, 2, 4 or 8.")


def test_an_interleaved_pipeline_gets_the_least_group_that_fits_its_micro_batches() -> None:
    answer = completed("h100:40", model="llama-3-70b", pp=5, vpp=2, tp=2)
    assert answer.plan.pipelines[0].micro_batches == 16
    assert answer.plan.microbatch_group == 8 and not broken_rules(answer.plan)
    assert "micro-batch group 8 (the least for 16 micro-batches on 5 stages)" in answer.assumed
    assert "vpp 2 group 8" in answer.plan.summary()
    plain = completed("h100:16", pp=2, vpp=2, tp=2)
    assert "micro-batch group 2 (pp)" in plain.assumed and "group" not in plain.plan.summary()


def test_a_group_that_is_advised_breaks_no_other_rule() -> None:
    text = refusal(pp=4, vpp=3, microbatch_group=5)
    assert "[rule microbatch-group-remainder]" in text
    assert "Try microbatch_group 4, 6, 8, 12 or 16" in text


def test_values_that_are_advised_do_mend_the_rule() -> None:
    cluster, _ = parse_gpus("h100:16")
    for tp in (1, 2, 4, 8):
        plan = complete(PlanSettings(global_batch=64, tp=tp), small_model(), cluster).plan
        assert "tp-divides-heads" not in [rule.name for rule in broken_rules(plan)]


def test_a_refusal_of_many_rules_counts_the_rest() -> None:
    text = refusal(
        tp=16, precision="fp16", sharding="none", offload_optimizer_fraction=0.5, ep=2, etp=2
    )
    assert "more rules" in text and text.count("[rule ") == 3


def test_every_rule_can_be_explained_for_a_plan() -> None:
    plan = completed(tp=2, pp=2).plan
    for runtime in ("megatron", "flagscale", "fsdp", "deepspeed", "any"):
        for rule in rules_for(runtime):
            text = rule_message(plan, rule)
            assert text.endswith(f"[rule {rule.name}]") and "None" not in text
            assert "\n" not in text


def test_only_settings_of_a_plan_are_advised() -> None:
    assert set(VALUES_TO_TRY) <= {field.name for field in fields(PlanSettings)}
    assert list(DEGREES_TO_TRY) == sorted(DEGREES_TO_TRY)


def test_chunks_of_stages_on_several_types_go_by_speed() -> None:
    """A stage of a faster type has larger chunks; the last chunk of all may be lighter."""
    even = completed("h100:8,a100-80g:8", tp=4, pp=4, vpp=2, dp=1).plan
    assert even.chunk_layers is None
    assert even.pipelines[0].layers == (4, 4, 12, 12)
    assert broken_rules(even) == []
    uneven = completed("h100:8,a100-80g:8", tp=4, pp=4, vpp=3, dp=1).plan
    assert uneven.chunk_layers == (1, 1, 5, 4, 1, 1, 5, 4, 1, 1, 5, 3)
    assert sum(uneven.pipelines[0].layers) == 32
    assert broken_rules(uneven) == []


def test_too_few_layers_for_chunks_on_every_stage_are_refused_by_a_rule() -> None:
    plan = completed("h100:8,a100-80g:8", tp=4, pp=4, vpp=9, dp=1).plan
    assert [rule.name for rule in broken_rules(plan)] == ["whole-chunks"]
