"""The rules of every runtime: the same alone and in a table, each broken by some plan."""

from collections import Counter
from functools import cache
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategy.mixed_plans import mixed_plan, small_model
from tests.support.cases import each_case
from tests.support.random_plans import random_plan
from tests.support.tiers import slow_after

from astra.hardware.gpus_option import parse_gpus
from astra.model.shape import Mla, Model, Moe
from astra.model.zoo import find_model
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.plan import Pipeline, Plan, Runtime, Segment
from astra.strategy.plans import FLAGS, Plans, concatenate, plans_of, task_of
from astra.strategy.rule_messages import rule_message
from astra.strategy.rules.registry import broken_rules, check, rules_for
from astra.strategy.rules.rule import LAYERS, Rule
from astra.strategy.variants import depends_on_variant

RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
MODELS = ("llama-3-8b", "gpt2-xl", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "llama-3.2-1b")
GPUS = ("v100-32g", "a100-80g", "h100", "b200")
runtimes = st.sampled_from(RUNTIMES)
seeds = st.integers(0, 10**6)


@cache
def plans_of_one_task(kind: str, count: int = 40) -> tuple[Plan, ...]:
    """Plans that may stand in one table: one model, one cluster."""
    if kind == "mixed":
        plans = [plan for plan in map(mixed_plan, range(6 * count)) if plan.model.moe is None]
        return tuple(plans[:count])
    model = find_model(kind)
    plans = [random_plan(seed, model, ("h100",)) for seed in range(count)]
    cluster, _ = parse_gpus("h100:4096")
    return tuple(msgspec.structs.replace(plan, cluster=cluster) for plan in plans)


def rules_hold(table: Plans, plan: Plan, rules: tuple[Rule, ...]) -> dict[str, list[bool]]:
    return {rule.name: rule.holds(table, task_of(plan)).tolist() for rule in rules}


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    "kind", slow_after(2, ["mixed", "llama-3-8b", "mixtral-8x7b", "deepseek-v3"])
)
def test_a_plan_gets_the_same_answer_alone_as_in_a_table(runtime: Runtime, kind: str) -> None:
    plans = plans_of_one_task(kind)
    tables = [(plans_of([plan]), task_of(plan)) for plan in plans]
    together = concatenate([table for table, _ in tables])
    for rule in rules_for(runtime):
        at_once = rule.holds(together, task_of(plans[0]))
        assert at_once.shape == (len(plans),) and at_once.dtype == np.bool_, rule.name
        alone = [bool(rule.holds(table, task)[0]) for table, task in tables]
        assert at_once.tolist() == alone, rule.name


@given(runtimes, st.sampled_from(["mixed", "mixtral-8x7b"]), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_permuting_rows_permutes_the_answers(runtime: Runtime, kind: str, random: Any) -> None:
    plans = plans_of_one_task(kind)
    order = list(range(len(plans)))
    random.shuffle(order)
    table = plans_of(plans)
    straight = rules_hold(table, plans[0], rules_for(runtime))
    shuffled = rules_hold(table.take(order), plans[0], rules_for(runtime))
    for name, held in straight.items():
        assert shuffled[name] == [held[row] for row in order], name


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_unused_slots_and_pipelines_change_no_answer(runtime: Runtime) -> None:
    plans = plans_of_one_task("mixed")
    wide = max(plans, key=lambda p: (len(p.pipelines), len(p.pipelines[0].segments)))
    one_segment = [p for p in plans if len(p.pipelines) == 1]
    table = plans_of(one_segment)
    padded = concatenate([table, plans_of([wide])]).take(list(range(len(one_segment))))
    assert padded.stages.shape[0] > table.stages.shape[0]
    for rule in rules_for(runtime):
        before, after = (rule.holds(t, task_of(plans[0])).tolist() for t in (table, padded))
        assert before == after, rule.name


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_rule_says_who_why_and_about_what(runtime: Runtime) -> None:
    rules = rules_for(runtime)
    assert len({rule.name for rule in rules}) == len(rules)
    derived = {"tp", "pp", "dp", "gpus", "gpu", "recompute", "layers", "micro_batches", "segments"}
    for rule in rules:
        assert rule.layer in LAYERS
        assert rule.reason and not rule.reason.endswith("."), rule.name
        assert rule.where, rule.name
        assert rule.settings, rule.name
        for field in rule.settings:
            owner: Any = Plan
            head, *rest = field.split(".")
            if head == "model" and rest:
                owner, head = Model, rest[0]
                if rest[1:]:
                    owner, head = {"moe": Moe, "mla": Mla}[rest[0]], rest[1]
            assert head in owner.__struct_fields__ or head in derived, (rule.name, field)


@cache
def random_plans() -> list[Plan]:
    models = [find_model(MODELS[seed % len(MODELS)]) for seed in range(500)]
    plans = [random_plan(seed, model, GPUS) for seed, model in enumerate(models)]
    return plans + [mixed_plan(seed) for seed in range(500, 700)]


@pytest.mark.parametrize("runtime", slow_after(1, RUNTIMES))
def test_random_plans_break_and_hold_nearly_every_rule(runtime: Runtime) -> None:
    held: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    for plan in random_plans():
        plan = msgspec.structs.replace(plan, runtime=runtime)
        names = {rule.name for rule in broken_rules(plan)}
        broken.update(names)
        held.update(rule.name for rule in rules_for(runtime) if rule.name not in names)
    every = {rule.name for rule in rules_for(runtime)}
    by_hand = {case[0] for case in CASES}
    assert set(held) == every
    assert every - set(broken) <= by_hand


# ------------------------------------------------------------------ one change, one rule
# rule, change of a legal plan, and what the legal plan is: its settings (on small's 12 layers and 8
# heads), the model's fields, the GPUs, the runtime.
MOE = {"experts": 8}
MIXED = {"gpus": "h100:16,a100-80g:16", "runtime": "flagscale", "tp": 4, "pp": 4}
TWO_PIPELINES = "two pipelines"
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    # ours
    (
        "one-vendor",
        {"second": {"gpu": "MI300X"}},
        {**MIXED, "gpus": "h100:16,h200:16,mi300x:16", "dp": 2},
    ),
    ("gpus-within-caps", {"tp": 4}, {}),
    ("gpus-within-caps", {"cp": 2}, {}),
    ("whole-chunks", {"vpp": 5, "schedule": "interleaved"}, {}),
    ("whole-chunks", {"layers": (5, 7)}, {"vpp": 2}),
    ("schedule-matches-vpp", {"schedule": "interleaved"}, {}),
    ("schedule-matches-vpp", {"schedule": "1f1b"}, {"vpp": 2}),
    ("segments-feed-each-other", {"second": {"micro_batch": 2}}, MIXED),
    ("segments-feed-each-other", {"second": {"dp": 1}}, MIXED),
    ("sequence-parallel-needs-tp", {"sequence_parallel": True}, {"tp": 1}),
    ("recompute-counted-once", {"recompute": "full:block:7"}, {}),
    ("recompute-counted-once", {"recompute": "full:uniform:4"}, {"vpp": 2}),
    ("module-exists", {"recompute": "selective:moe"}, {}),
    ("module-exists", {"recompute": "selective:shared_experts"}, MOE),
    ("module-exists", {"offload_activations": ("moe_act",)}, {}),
    ("experts-only-in-moe", {"etp": 2}, {}),
    ("experts-only-in-moe", {"dispatcher": "alltoall"}, {}),
    ("experts-only-in-moe", {"capacity_factor": 1.0}, {}),
    ("experts-only-in-moe", {"dispatcher": None}, MOE),
    ("dispatcher-runs-there", {"dispatcher": "deepep"}, {**MOE, "ep": 2, "gpus": "a100-80g:16"}),
    ("dispatcher-runs-there", {"dispatcher": "deepep"}, {**MOE, "ep": 2, "gpus": "gb200:16"}),
    ("dispatcher-runs-there", {"dispatcher": "hybridep"}, {**MOE, "ep": 2, "gpus": "h100-nvl:16"}),
    ("dispatcher-runs-there", {"precision": "fp16"}, {**MOE, "ep": 2, "dispatcher": "deepep"}),
    ("tp-overlap-inside-link-domain", {"overlap_tp": True}, {"gpus": "gh200:16"}),
    ("no-hybridep", {"dispatcher": "hybridep"}, {**MOE, "ep": 2, "runtime": "flagscale"}),
    ("own-dispatcher-needs-ep", {"dispatcher": "hybridep"}, MOE),
    ("gpu-has-the-precision", {"precision": "bf16"}, {"gpus": "v100-32g:16"}),
    ("gpu-has-the-precision", {"precision": "fp8", "fp8_recipe": "delayed"}, {"gpus": "a100:16"}),
    ("block-scaling-needs-blackwell", {"fp8_recipe": "mxfp8"}, {"precision": "fp8"}),
    ("recipe-needs-fp8", {"fp8_recipe": "delayed"}, {}),
    ("recipe-needs-fp8", {"fp8_recipe": None}, {"precision": "fp8"}),
    ("reduce-in-a-training-dtype", {"grad_reduce_dtype": "fp16"}, {}),
    ("reduce-in-a-training-dtype", {"grad_reduce_dtype": "bf16"}, {"precision": "fp16"}),
    ("shard-group-divides", {"shard_group": 3}, {}),
    ("shard-group-divides", {"shard_group": 4}, {"sharding": "none"}),
    ("one-job", {"pipelines": TWO_PIPELINES}, {"runtime": "flagscale"}),
    # Megatron-LM
    ("batch-adds-up", {"global_batch": 65}, {}),
    ("sequence-cut-by-cp", {"seq_len": 4098}, {"cp": 2}),
    ("sequence-within-positions", {"seq_len": 2048}, {"learned_positions": 1024, "seq_len": 1024}),
    ("interleaving-needs-stages", {"vpp": 2, "schedule": "interleaved"}, {"pp": 1}),
    ("interleaving-without-p2p-overlap", {"overlap_p2p": False}, {"vpp": 2}),
    ("param-gather-overlap-needs-sharding", {"sharding": "none", "shard_group": 1}, {}),
    ("param-gather-overlap-needs-grad-overlap", {"overlap_grad_reduce": False}, {}),
    ("tp-overlap-needs-sequence-parallel", {"sequence_parallel": False}, {}),
    ("ep-needs-experts", {"ep": 2}, {}),
    ("ep-divides-experts", {"ep": 4}, {"experts": 6, "ep": 2}),
    ("mtp-needs-rope", {"mtp_layers": 1}, {"learned_positions": 1024, "seq_len": 1024}),
    ("main-grads-dtype", {"main_grads_dtype": "fp16"}, {}),
    ("master-dtype", {"master_dtype": "bf16"}, {}),
    ("fp32-reduction-keeps-fp32-grads", {"main_grads_dtype": "bf16"}, {}),
    ("tp-divides-heads", {"tp": 3}, {}),
    ("tp-fits-kv-groups", {"tp": 4}, {"kv_heads": 6, "heads": 12, "ffn": 3072}),
    (
        "dispatch-group-has-a-size",
        {"dispatcher": "deepep"},
        {"experts": 6, "ep": 3, "gpus": "h100:24", "global_batch": 96},
    ),
    ("expert-bias-needs-etp-1", {"etp": 2}, {**MOE, "mlp_bias": True, "ep": 2}),
    ("precision-aware-needs-sharding", {"offload_optimizer_fraction": 0.5}, {"sharding": "none"}),
    ("moe-act-needs-grouped-gemm", {"recompute": "selective:moe_act"}, {}),
    (
        "moe-act-needs-grouped-gemm",
        {"recompute": "selective:moe_act"},
        {**MOE, "gpus": "v100-32g:16"},
    ),
    ("mla-up-proj-needs-mla", {"recompute": "selective:mla_up_proj"}, {}),
    (
        "delayed-fp8-keeps-inputs",
        {"recompute": "selective:layernorm"},
        {"precision": "fp8", "fp8_recipe": "delayed"},
    ),
    ("attn-proj-offloads-with-core-attn", {"offload_activations": ("attn_proj",)}, {}),
    (
        "no-offload-inside-recomputed-moe",
        {"offload_activations": ("expert_fc1",)},
        {**MOE, "recompute": "selective:moe"},
    ),
    ("offloads-fewer-layers-than-there-are", {"offload_layers": 32}, {"pp": 1}),
    ("offloaded-layers-exclude-pipelines", {"offload_layers": 4}, {"pp": 2}),
    ("offloaded-layers-exclude-recompute", {"offload_layers": 4}, {"pp": 1, "recompute": "full"}),
    (
        "offloads-layers-or-modules",
        {"offload_layers": 4},
        {"pp": 1, "offload_activations": ("core_attn",)},
    ),
    ("offloaded-layers-outside-graphs", {"offload_layers": 4}, {"pp": 1, "cuda_graph": "local"}),
    (
        "offloaded-layers-exclude-ep-overlap",
        {"offload_layers": 1},
        {**MOE, "pp": 1, "ep": 2, "overlap_ep": True},
    ),
    ("full-recompute-outside-graphs", {"recompute": "full"}, {"cuda_graph": "local"}),
    (
        "fsdp-ep-overlap-outside-layer-graphs",
        {"cuda_graph": "transformer_engine"},
        {**MOE, "pp": 1, "ep": 2, "overlap_ep": True, "sharding": "parameters"},
    ),
    (
        "fsdp-ep-overlap-outside-layer-graphs",
        {"cuda_graph": "local"},
        {**MOE, "pp": 1, "ep": 2, "overlap_ep": True, "sharding": "gradients"},
    ),
    ("graphs-limit-offload", {"offload_activations": ("core_attn",)}, {"cuda_graph": "local"}),
    ("ep-overlap-needs-ep", {"overlap_ep": True}, {**MOE, "pp": 1}),
    (
        "ep-overlap-needs-alltoall",
        {"dispatcher": "allgather"},
        {**MOE, "pp": 1, "ep": 2, "overlap_ep": True},
    ),
    (
        "ep-overlap-excludes-recompute",
        {"recompute": "selective:moe"},
        {**MOE, "pp": 1, "ep": 2, "overlap_ep": True},
    ),
    (
        "ep-overlap-needs-half-precision",
        {"precision": "fp32"},
        {**MOE, "pp": 1, "ep": 2, "overlap_ep": True},
    ),
    ("ep-overlap-needs-vpp", {"overlap_ep": True}, {**MOE, "ep": 2}),
    (
        "ep-overlap-allows-one-mtp",
        {"mtp_layers": 2},
        {**MOE, "pp": 1, "ep": 2, "overlap_ep": True, "mtp_layers": 1},
    ),
    ("holds-every-layer", {"layers": (6, 7)}, {}),
    ("holds-every-layer", {"layers": (6, 5)}, {}),
    ("expert-grid-divides-world", {"etp": 3}, {**MOE, "ep": 2}),
    ("experts-on-one-type", {"ep": 8}, {**MOE, "gpus": "h100:12,h200:4", "pp": 1}),
    ("optimizer-instances-divide-expert-copies", {"shard_group": 1}, {**MOE, "ep": 8}),
    ("rank-order-keeps-expert-copies", {"rank_order": "tp-cp-ep-pp-dp"}, {**MOE, "ep": 8}),
    ("microbatch-group-in-range", {"microbatch_group": 1}, {"vpp": 2}),
    ("microbatch-group-in-range", {"microbatch_group": 17}, {"vpp": 2}),
    ("microbatch-group-remainder", {"microbatch_group": 5}, {"vpp": 2}),
    ("tp-divides-widths", {"tp": 8}, {"ffn": 1028}),
    ("sequence-cut-by-tp", {"seq_len": 4097}, {}),
    ("a2a-divides-heads", {"cp_comm_type": "a2a"}, {"cp": 4}),
    ("cp-needs-fused-attention", {"attention": "unfused"}, {"cp": 2}),
    ("one-tp", {"second": {"tp": 2}}, {**MIXED, "runtime": "megatron"}),
    ("one-dp", {"second": {"dp": 1}}, {**MIXED, "runtime": "megatron"}),
    ("one-ep", {"second": {"ep": 2}}, {**MIXED, **MOE, "runtime": "megatron"}),
    ("one-micro-batch", {"second": {"micro_batch": 2}}, {**MIXED, "runtime": "megatron"}),
    ("one-recompute", {"second": {"recompute": "full"}}, {**MIXED, "runtime": "megatron"}),
    # FlagScale
    ("meshes-exclude-vpp", {"vpp": 3, "schedule": "interleaved"}, MIXED),
    ("first-mesh-feeds-all", {"second": {"dp": 3}}, MIXED),
    ("tied-ends-share-tp", {"second": {"tp": 2}}, {**MIXED, "tied_embeddings": True}),
    ("tied-ends-share-tp", {"second": {"tp": 2}}, {**MIXED, "mtp_layers": 1}),
    ("tied-ends-divide-dp", {"second": {"dp": 3}}, {**MIXED, "tied_embeddings": True}),
    ("tp-overlap-on-every-mesh", {"second": {"tp": 1}, "overlap_tp": True}, MIXED),
    ("stages-recompute-whole-layers", {"second": {"recompute": "selective"}}, MIXED),
    ("meshes-exclude-cp", {"cp": 2}, MIXED),
    ("meshes-share-one-optimizer", {"shard_group": 1}, MIXED),
]


def legal(
    gpus: str = "h100:16", runtime: Runtime = "megatron", experts: int = 0, **more: Any
) -> Plan:
    """The plan an expert would make of tp 2, pp 2 on 16 GPUs, with these changes."""
    shape = {name: more.pop(name) for name in list(more) if name in MODEL_FIELDS}
    settings_said = {"global_batch": 64, "seq_len": 4096, "tp": 2, "pp": 2} | more
    if runtime == "deepspeed":
        settings_said = {"global_batch": 64, "seq_len": 4096} | more
    cluster, _ = parse_gpus(gpus)
    model = small_model(experts=experts, **shape)
    plan = complete(PlanSettings(**settings_said), model, cluster, runtime).plan
    assert broken_rules(plan) == []
    return plan


MODEL_FIELDS = {"layers", "heads", "kv_heads", "ffn", "learned_positions", "mlp_bias"}
MODEL_FIELDS |= {"tied_embeddings"}


def changed(plan: Plan, change: dict[str, Any]) -> Plan:
    """A plan with other fields; tp, layers and recompute are set in all segments."""
    change = dict(change)
    second = change.pop("second", {})
    if change.get("pipelines") == TWO_PIPELINES:
        half = msgspec.structs.replace(plan.pipelines[0], replicas=plan.dp // 2)
        less, more = (
            msgspec.structs.replace(half, micro_batches=half.micro_batches + add) for add in (-1, 1)
        )
        return msgspec.structs.replace(plan, pipelines=(less, more))
    own = {name: change.pop(name) for name in ("tp", "layers", "recompute") if name in change}
    pipelines = []
    for pipeline in plan.pipelines:
        segments = [msgspec.structs.replace(segment, **own) for segment in pipeline.segments]
        if second:
            segments[1] = msgspec.structs.replace(segments[1], **second)
        pipelines.append(msgspec.structs.replace(pipeline, segments=tuple(segments)))
    return msgspec.structs.replace(plan, pipelines=tuple(pipelines), **change)


def assert_one_change_breaks(name: str, change: dict[str, Any], base: dict[str, Any]) -> None:
    plan = legal(**base)
    broken = [rule.name for rule in broken_rules(changed(plan, change))]
    assert name in broken, broken


@each_case("name, change, base", CASES)
def test_one_change_of_a_legal_plan_breaks_the_rule(
    name: str, change: dict[str, Any], base: dict[str, Any]
) -> None:
    assert_one_change_breaks(name, change, base)


FSDP_CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("batch-adds-up", {"global_batch": 65}, {}),
    ("fsdp-shards-gradients", {"sharding": "optimizer"}, {}),
    ("context-ranks-shard", {"sharding": "none", "shard_group": 1}, {"cp": 2}),
    ("shard-group-holds-cp", {"shard_group": 1}, {"cp": 2}),
    ("ep-divides-experts", {"ep": 2}, {}),
    ("ep-divides-experts", {"ep": 4}, {"experts": 6}),
    ("expert-grid-divides-shards", {"ep": 3}, {"experts": 6}),
    ("experts-are-spread-or-cut", {"etp": 4}, MOE),
    ("experts-are-spread-or-cut", {"etp": 1}, MOE),
    ("experts-are-spread-or-cut", {"etp": 2}, {**MOE, "ep": 2}),
    ("own-dispatcher-needs-ep", {"dispatcher": "deepep"}, MOE),
    ("pipeline-needs-untied-embeddings", {"model": True}, {}),
    ("sequence-cut-evenly", {"seq_len": 4097}, {}),
    ("tp-divides-heads", {"tp": 8}, {}),
    ("interleaving-needs-stages", {"vpp": 2, "schedule": "interleaved"}, {"pp": 1}),
    ("rounds-are-equal", {"vpp": 2, "schedule": "interleaved", "pipelines": 5}, {}),
    (
        "group-is-a-round",
        {"vpp": 2, "schedule": "interleaved", "pipelines": 4, "microbatch_group": 4},
        {},
    ),
    ("pipeline-is-filled", {"pipelines": 1, "global_batch": 4}, {}),
    (
        "interleaving-is-filled",
        {"vpp": 2, "schedule": "interleaved", "pipelines": 1, "global_batch": 4},
        {},
    ),
    ("checkpoint-per-layer", {"recompute": "full:block:1"}, {}),
    ("states-in-fp32", {"master_dtype": "bf16"}, {}),
    ("no-fp16", {"precision": "fp16"}, {}),
    ("offload-all-or-nothing", {"offload_optimizer_fraction": 0.5}, {}),
    ("offload-all-or-nothing", {"offload_layers": 1}, {}),
    ("no-expert-capacity", {"capacity_factor": 1.0}, MOE),
    ("no-mtp", {"mtp_layers": 1}, {}),
    ("dp-fits-shard-group", {"shard_group": 3}, {}),
    ("no-graphs", {"cuda_graph": "local"}, {}),
    ("holds-every-layer", {"layers": (6, 7)}, {}),
]
DEEPSPEED_CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("batch-adds-up", {"global_batch": 65}, {}),
    ("pipeline-excludes-zero-2", {"sharding": "gradients"}, {"pp": 2}),
    ("pipeline-excludes-tp", {"tp": 2}, {"pp": 2}),
    ("pipeline-excludes-sequence-parallel", {"cp": 2}, {"pp": 2}),
    ("no-virtual-stages", {"vpp": 2}, {"pp": 2}),
    ("stages-are-shared-out", {"layers": (5, 7)}, {"pp": 2}),
    ("stages-are-shared-out", {"layers": (6, 7)}, {"pp": 2, "layers": 13}),
    ("zero-3-experts-exclude-ulysses", {"ep": 2}, {**MOE, "cp": 2}),
    ("expert-grid-divides-stage", {"ep": 3}, {"experts": 6}),
    ("ep-divides-experts", {"ep": 4}, {"experts": 6}),
    ("ep-divides-experts", {"ep": 2}, {}),
    (
        "folded-experts-exclude-ulysses-and-offload",
        {"offload_optimizer_fraction": 1.0},
        {**MOE, "tp": 2, "ep": 2},
    ),
    ("experts-are-not-cut", {"etp": 2}, MOE),
    ("ulysses-divides-heads", {"cp": 16}, {}),
    ("ulysses-exchanges-heads", {"cp_comm_type": "p2p"}, {"cp": 2}),
    ("sequence-divides", {"seq_len": 4097}, {"cp": 2}),
    ("tp-divides-heads", {"tp": 8}, {}),
    ("no-sequence-parallel-tp", {"sequence_parallel": True}, {"tp": 2}),
    ("shards-over-all-copies", {"shard_group": 8}, {"sharding": "optimizer"}),
    ("shards-over-all-copies", {"shard_group": 8}, {"sharding": "parameters"}),
    ("part-offload-needs-zero-3", {"offload_optimizer_fraction": 0.5}, {"sharding": "optimizer"}),
    ("offload-needs-zero", {"offload_optimizer_fraction": 1.0}, {"sharding": "none"}),
    ("offload-needs-zero", {"offload_layers": 1}, {}),
    ("half-precision", {"precision": "fp8", "fp8_recipe": "delayed"}, {}),
    ("checkpoint-per-layer", {"recompute": "selective"}, {}),
    ("states-in-fp32", {"moment_dtypes": ("bf16", "fp32")}, {}),
    ("no-megatron-switches", {"cuda_graph": "local"}, {}),
    ("no-megatron-switches", {"overlap_ep": True}, MOE),
    ("holds-every-layer", {"layers": (11,)}, {}),
]


@each_case("name, change, base", FSDP_CASES)
def test_one_change_of_a_legal_fsdp_plan_breaks_the_rule(
    name: str, change: dict[str, Any], base: dict[str, Any]
) -> None:
    plan = legal(**{**base, "runtime": "fsdp"})
    if isinstance(change.get("pipelines"), int):  # the micro-batches of the one pipeline
        count = change["pipelines"]
        pipeline = msgspec.structs.replace(plan.pipelines[0], micro_batches=count)
        plan = msgspec.structs.replace(plan, pipelines=(pipeline,))
        change = {key: value for key, value in change.items() if key != "pipelines"}
    if change.get("model"):
        change = {"model": msgspec.structs.replace(plan.model, tied_embeddings=True)}
    broken = [rule.name for rule in broken_rules(changed(plan, change))]
    assert name in broken, broken


@each_case("name, change, base", DEEPSPEED_CASES)
def test_one_change_of_a_legal_deepspeed_plan_breaks_the_rule(
    name: str, change: dict[str, Any], base: dict[str, Any]
) -> None:
    assert_one_change_breaks(name, change, {**base, "runtime": "deepspeed"})


def test_every_rule_has_a_plan_by_hand_that_breaks_it() -> None:
    by_hand = {name for name, *_ in CASES}
    for runtime in ("megatron", "flagscale", "any"):
        assert {rule.name for rule in rules_for(runtime)} <= by_hand
    one_cut = {name for name in by_hand if name.startswith("one-")}
    ours = {rule.name for rule in rules_for("any") if rule.layer == "ours"} | one_cut
    for runtime, cases in (("fsdp", FSDP_CASES), ("deepspeed", DEEPSPEED_CASES)):
        names = {rule.name for rule in rules_for(runtime)}
        assert names - ours <= {name for name, *_ in cases}


@given(st.lists(st.integers(0, 39), max_size=30), runtimes)
@settings(max_examples=40, deadline=None)
def test_a_check_counts_each_removed_plan_once(rows: list[int], runtime: Runtime) -> None:
    plans = plans_of_one_task("mixtral-8x7b")
    table = plans_of(plans).take(rows)
    rules = rules_for(runtime)
    found = check(table, task_of(plans[0]), rules)
    assert found.allowed.shape == (len(rows),)
    assert sum(found.removed_by_rule.values()) + int(found.allowed.sum()) == len(rows)
    expected: Counter[str] = Counter()
    for row, allowed in zip(rows, found.allowed, strict=True):
        plan = msgspec.structs.replace(plans[row], runtime=runtime)
        broken = broken_rules(plan)
        assert bool(allowed) == (not broken)
        expected.update(rule.name for rule in broken[:1])
    assert found.removed_by_rule == dict(expected)


def test_only_the_runtime_any_lets_replicas_differ() -> None:
    plan = changed(legal(runtime="flagscale"), {"pipelines": TWO_PIPELINES})
    for runtime in RUNTIMES:
        names = [r.name for r in broken_rules(msgspec.structs.replace(plan, runtime=runtime))]
        assert ("one-job" in names) == (runtime != "any")
    assert broken_rules(msgspec.structs.replace(plan, runtime="any")) == []


def test_a_mixed_plan_is_flagscales_and_not_megatrons() -> None:
    cluster, _ = parse_gpus("h100:16,a100-80g:16")
    segments = (
        Segment(gpu="A100-80GB-SXM", stages=2, layers=(2, 2), tp=2, recompute="full:uniform:1"),
        Segment(gpu="H100-80GB-SXM", stages=1, layers=(8,), tp=4),
    )
    plan = complete(
        PlanSettings(global_batch=64, tp=4, pp=4), small_model(), cluster, "flagscale"
    ).plan
    pipeline = Pipeline(replicas=4, micro_batches=16, segments=segments)
    plan = msgspec.structs.replace(plan, pipelines=(pipeline,), shard_group=4)
    assert broken_rules(plan) == []
    megatron = msgspec.structs.replace(plan, runtime="megatron")
    assert [rule.name for rule in broken_rules(megatron)] == ["one-tp", "one-recompute"]


def test_flags_of_a_table_are_booleans_so_that_not_means_not() -> None:
    table = plans_of(plans_of_one_task("mixed"))
    assert all(getattr(table, name).dtype == np.bool_ for name in FLAGS)


def test_a_broken_rule_names_the_segments_that_differ() -> None:
    plan = next(each for each in map(mixed_plan, range(400)) if len(each.pipelines[0].segments) > 1)
    first, *rest = plan.pipelines[0].segments
    segments = (
        msgspec.structs.replace(first, tp=8),
        *(msgspec.structs.replace(each, tp=6) for each in rest),
    )
    pipelines = (msgspec.structs.replace(plan.pipelines[0], segments=segments),)
    plan = msgspec.structs.replace(plan, pipelines=pipelines)
    rule = next(rule for rule in rules_for(plan.runtime) if "tp" in rule.settings)
    assert "segments[0].tp 8, segments[1].tp 6" in rule_message(plan, rule)


class _Asked:
    """A table that notes which of its columns are asked for."""

    def __init__(self, plans: Plans) -> None:
        self.plans, self.names = plans, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self.plans, name)

    def __len__(self) -> int:
        return len(self.plans)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_rules_that_ask_for_recompute_or_offload_say_so(runtime: Runtime) -> None:
    """A search asks only these again of the variants of a layout. What is equal on all stages of a
    layout is equal on those of its variants: rules that ask for no more need not say so.
    """
    plans = plans_of_one_task("deepseek-v3")
    table, task = concatenate([plans_of([plan]) for plan in plans]), task_of(plans[0])
    asked = {"recompute", "recompute_layers", "recompute_modules", "offload_optimizer_fraction"}
    asked |= {"offload_layers"}
    spoken = 0
    for rule in rules_for(runtime):
        noted = _Asked(table)
        rule.holds(noted, task)  # type: ignore[arg-type]
        if noted.names & asked and not rule.name.startswith("meshes-"):
            assert depends_on_variant(rule), rule.name
        spoken += depends_on_variant(rule)
    assert 0 < spoken < len(rules_for(runtime)) / 2


@pytest.mark.parametrize("runtime", get_args(Runtime))
def test_no_plans_break_no_rules(runtime: Runtime) -> None:
    """What a search leaves may be nothing."""
    plan = mixed_plan(0)
    nothing = plans_of([plan]).take(np.zeros(0, np.int64))
    assert len(check(nothing, task_of(plan), rules_for(runtime)).allowed) == 0
