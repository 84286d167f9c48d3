"""Why a plan: its parts add up, its bytes are those of its shapes, and others are told apart."""

from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.cost.some_plans import MODELS, legal_plans, mixed_plans
from tests.support.tiers import slow_after
from tests.timing.test_replica_groups import two_replica_groups

import astra
from astra.cost.price import price_plan
from astra.errors import InputError
from astra.explain.explain import explain_plan
from astra.explain.ledger import exchanges_of
from astra.explain.plan_detail import CLASSES, PlanDetail, detail_of
from astra.explain.result import Exchange, ExplanationDocument, WhatIf
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.topology import ranks_per_domain
from astra.notes import NoteCode
from astra.report.explanation_words import explanation_with_words
from astra.strategy.plan import Plan
from astra.strategy.plans import Ints
from astra.timing.collectives import all_gather_s, all_reduce_s, all_to_all_s, reduce_scatter_s
from astra.timing.stage import stage_times

JOB: dict[str, Any] = {"gpus": "h100:16", "global_batch": 64, "seq_len": 4096}


@cache
def found() -> astra.Answer:
    return astra.plan("llama-3-8b", top=5, **JOB)


@cache
def explained() -> ExplanationDocument:
    return found().explain()


def plan_of(model: str = "llama-3-8b", **settings: Any) -> Plan:
    return astra.predict(model, **{**JOB, **settings}).plan


def moved(plan: Plan) -> dict[tuple[str, str], Exchange]:
    """Exchanges by group and what is done."""
    return {(e.group, f"{e.operation} {e.what}"): e for e in exchanges_of(detail_of(plan))}


def change(explanation: ExplanationDocument, what: str) -> WhatIf:
    (one,) = (change for change in explanation.changes if change.what == what)
    return one


# ------------------------------------------------------------------ seconds


@pytest.mark.parametrize("model", slow_after(1, MODELS))
def test_classes_traffic_and_waiting_sum_to_the_step(model: str) -> None:
    for plan in (*legal_plans(model)[:8], *mixed_plans(model)[:4]):
        parts, priced = detail_of(plan).parts_s, price_plan(plan)
        assert sum(parts.values()) == pytest.approx(priced.step_s, rel=1e-9)
        kernels = priced.step_parts_s["forward"] + priced.step_parts_s["backward"]
        assert sum(parts[name] for name in CLASSES) == pytest.approx(kernels, rel=1e-9)
        others = {name: value for name, value in parts.items() if name not in CLASSES}
        assert others == pytest.approx(
            {name: priced.step_parts_s[name] for name in others}, rel=1e-9, abs=1e-12
        )


def test_only_a_model_with_experts_spends_time_on_them() -> None:
    dense, routed = plan_of(tp=2), plan_of("mixtral-8x7b", tp=2, ep=8, gpus="h100:64")
    assert detail_of(dense).parts_s["experts"] == 0
    assert detail_of(routed).parts_s["experts"] > 0


def test_the_head_lies_on_the_last_stage() -> None:
    detail = detail_of(plan_of(pp=4, tp=2))
    assert (detail.parts_s["head"] > 0) == detail.last


# ------------------------------------------------------------------ bytes


def test_tensor_parallel_bytes_are_those_of_the_activations() -> None:
    """32 layers, 64 / 8 micro-batches; forward 2 gathers and 2 scatters, backward 4 and 2."""
    by_name = moved(plan_of(tp=2, dp=8))
    gather = by_name["tp", "all-gather activations of a layer"]
    scatter = by_name["tp", "reduce-scatter activations of a layer"]
    payload = 4096 * 4096 * 2  # tokens x hidden x bytes
    assert gather.payload_bytes == scatter.payload_bytes == payload
    assert (gather.count, scatter.count) == (32 * 8 * 6, 32 * 8 * 4)
    assert gather.total_bytes == payload * 32 * 8 * 6
    assert gather.sent_bytes == gather.total_bytes / 2  # the other half is its own
    assert (gather.ranks, gather.crosses_nodes, gather.over) == (2, False, "link")


def test_routed_experts_alone_take_no_part_in_tensor_parallel_bytes() -> None:
    """Half of what a layer with a dense MLP exchanges; shared experts take part in all of it."""
    job: dict[str, Any] = {"tp": 2, "gpus": "h100:16", "dp": 8, "ep": 8}
    by_name = moved(plan_of("mixtral-8x7b", **job))
    assert by_name["tp", "all-gather activations of a layer"].count == 32 * 8 * 3
    assert by_name["tp", "reduce-scatter activations of a layer"].count == 32 * 8 * 2
    by_name = moved(plan_of("qwen2-57b-a14b", **job))
    assert by_name["tp", "all-gather activations of a layer"].count == 28 * 8 * 6


def test_activations_cast_before_they_are_gathered_are_half_the_bytes() -> None:
    """torchao casts every rank's share to fp8 where a tensor has one scale."""
    said: dict[str, Any] = {"runtime": "fsdp", "tp": 2, "precision": "fp8"}
    by_name = moved(plan_of(fp8_recipe="tensorwise", stack="torchtitan", **said))
    gather = by_name["tp", "all-gather activations of a layer"]
    scatter = by_name["tp", "reduce-scatter activations of a layer"]
    assert gather.payload_bytes == scatter.payload_bytes / 2


def test_what_stages_gather_on_arrival_is_told() -> None:
    """Megatron-DeepSpeed sends shares of what every rank holds whole."""
    job: dict[str, Any] = {"tp": 2, "pp": 2, "sequence_parallel": False, "overlap_tp": False}
    whole = moved(plan_of(stack="megatron-deepspeed", **job))
    gathered = whole["tp", "all-gather activations between stages"]
    assert gathered.payload_bytes == 4096 * 4096 * 2
    send = next(each for (group, _), each in whole.items() if group == "pp")
    assert (gathered.count, send.payload_bytes) == (send.count, gathered.payload_bytes / 2)
    assert ("tp", "all-gather activations between stages") not in moved(plan_of(**job))


def test_copies_of_all_makes_that_are_cut_alike_are_one_group() -> None:
    plan = two_replica_groups(sharding="none")
    assert moved(plan)["dp", "all-reduce gradients"].ranks == 12
    assert moved(two_replica_groups())["make", "all-reduce gradients of other makes"].ranks == 2


def test_full_recompute_sends_the_forward_traffic_again() -> None:
    plain, again = (
        moved(plan_of(tp=2, recompute=how))["tp", "reduce-scatter activations of a layer"]
        for how in ("none", "full:uniform:1")
    )
    assert again.count == 1.5 * plain.count


def test_without_sequence_parallelism_activations_are_all_reduced() -> None:
    by_name = moved(plan_of(tp=2, sequence_parallel=False, overlap_tp=False))
    assert by_name["tp", "all-reduce activations of a layer"].count == 32 * 8 * 4


def test_data_parallel_bytes_are_those_of_the_weights() -> None:
    """Gradients in four bytes, parameters in two, of what one GPU holds."""
    by_name = moved(plan_of(tp=1, dp=16))
    parameters = 8_030_261_248
    gradients, weights = (
        by_name["dp", "reduce-scatter gradients"],
        by_name["dp", "all-gather parameters"],
    )
    assert gradients.payload_bytes == pytest.approx(4 * parameters, rel=1e-3)
    assert weights.payload_bytes == pytest.approx(2 * parameters, rel=1e-3)
    assert (gradients.count, gradients.ranks, gradients.crosses_nodes) == (1, 16, True)
    assert gradients.over == "network"


def test_sharded_parameters_are_gathered_for_every_micro_batch() -> None:
    by_name = moved(plan_of(runtime="fsdp", dp=16, sharding="parameters"))
    assert by_name["dp", "all-gather parameters"].count == 2 * 4
    assert by_name["dp", "reduce-scatter gradients"].count == 4


def test_unsharded_gradients_are_all_reduced() -> None:
    by_name = moved(plan_of(tp=1, dp=16, sharding="none"))
    assert by_name["dp", "all-reduce gradients"].count == 1


def test_stages_send_every_micro_batch_on() -> None:
    detail = detail_of(plan_of(tp=2, pp=2, dp=4, sequence_parallel=True))
    sends = [e for e in exchanges_of(detail) if e.group == "pp"]
    (send,) = sends  # an end of the pipeline has one neighbour
    assert send.count == 16
    assert send.payload_bytes == 4096 * 4096 * 2 / 2
    assert send.ranks == 2


@pytest.mark.parametrize("layers", [(24, 12, 6, 6), (6, 6, 12, 24)])
def test_tied_embeddings_cross_to_the_other_end_of_the_pipeline(layers: tuple[int, ...]) -> None:
    """Neighbours share a node here, the ends do not. Rows are those that Megatron-LM holds."""
    by_name = moved(plan_of("gpt2-xl", pp=4, tp=1, dp=4, layers_per_stage=layers, seq_len=1024))
    tied = by_name["pp", "send tied embedding gradients"]
    assert tied.crosses_nodes and tied.over == "network"
    assert tied.payload_bytes == 50_304 * 1600 * 4
    assert not any(e.crosses_nodes for e in by_name.values() if e.group == "pp" and e != tied)


def test_only_megatron_pads_the_vocabulary() -> None:
    """An odd one is slow at the head of all others, five to eight times on an H200."""
    for runtime in ("megatron", "fsdp", "deepspeed"):
        plan = plan_of("gpt2-xl", runtime=runtime, seq_len=1024)
        model = msgspec.structs.replace(plan.model, vocab=50_304)
        details = [detail_of(p) for p in (plan, msgspec.structs.replace(plan, model=model))]
        odd_s, even_s = (detail.parts_s["head"] for detail in details)
        pads = runtime == "megatron"
        assert odd_s == pytest.approx(even_s) if pads else odd_s > 3 * even_s


def test_experts_get_their_tokens_twice_a_pass() -> None:
    plan = plan_of("mixtral-8x7b", tp=1, ep=8, gpus="h100:64", dp=64, dispatcher="alltoall")
    sent = moved(plan)["ep", "all-to-all tokens"]
    assert sent.payload_bytes == 4096 * 2 * 4096 * 2  # tokens x top-k x hidden x bytes
    assert sent.count == 32 * 1 * 2 * 2


def test_one_gpu_exchanges_nothing() -> None:
    assert not exchanges_of(detail_of(plan_of("gpt3-125m", gpus="h100:1", seq_len=2048)))


def of_stage(detail: PlanDetail, column: Ints) -> int:
    """What a column of the segments holds of the busiest stage."""
    return int(detail.at(detail.view.stages.of(column)))


def gpu_of(detail: PlanDetail) -> Gpu:
    return next(pool.gpu for pool in detail.plan.cluster.pools if pool.gpu.name == detail.gpu)


def alone_s(exchange: Exchange, stride: int, detail: PlanDetail) -> float:
    """One exchange by the collective that the step is priced with."""
    collective = {
        "all-gather": all_gather_s,
        "reduce-scatter": reduce_scatter_s,
        "all-reduce": all_reduce_s,
        "all-to-all": all_to_all_s,
    }[exchange.operation]
    ranks = np.array([exchange.ranks])
    view = detail.view
    shares = (of_stage(detail, view.domain), of_stage(detail, view.node))  # GPUs of the job in each
    near, node = (ranks_per_domain(ranks, stride, share) for share in shares)
    payload = np.array([exchange.payload_bytes])
    return float(collective(payload, ranks, near, gpu_of(detail), node)[0])


@pytest.mark.parametrize("model", slow_after(1, MODELS))
def test_gradient_and_parameter_bytes_take_the_seconds_that_are_priced(model: str) -> None:
    for plan in legal_plans(model)[:12]:
        detail = detail_of(plan)
        plans = detail.view.plans
        columns = (plans.tp, plans.segment_ep, plans.segment_etp)
        tp, ep, etp = (of_stage(detail, column) for column in columns)
        priced = stage_times(detail.view, detail.stack).work.data_parallel
        at = (*detail.place, 0)
        found = {"gradients": 0.0, "parameters": 0.0}
        traffic = [e for e in exchanges_of(detail) if e.group in ("dp", "edp")]
        shards = {e.group: e.ranks for e in traffic if e.operation == "reduce-scatter"}
        for exchange in traffic:
            stride = tp if exchange.group == "dp" else ep * etp
            if exchange.operation == "all-reduce" and plan.sharding != "none":
                stride *= shards.get(exchange.group, 1)  # from one shard group to the next
            found[exchange.what] += alone_s(exchange, stride, detail)
        factor = detail.stack.on(gpu_of(detail)).data_factor
        assert found["gradients"] * factor == pytest.approx(float(priced.reduce_s[at]), rel=1e-9)
        assert found["parameters"] * factor == pytest.approx(float(priced.gather_s[at]), rel=1e-9)


@pytest.mark.parametrize("model", slow_after(1, MODELS))
def test_tensor_parallel_bytes_take_the_seconds_that_are_priced(model: str) -> None:
    """Of a stack that hides none of them."""
    checked = 0
    for plan in legal_plans(model):
        if plan.overlap_tp or plan.pipelines[0].segments[0].tp == 1:
            continue
        known = detail_of(plan)
        stack = msgspec.structs.replace(known.stack, tensor_waits=True, settings=())
        detail = replace(known, stack=stack)
        work = stage_times(detail.view, stack).work
        fraction = np.broadcast_to(detail.view.recomputed[0], work.forward_s.shape)
        whole = (1 + fraction) * work.tensor_forward_s + work.tensor_backward_s
        at = (*detail.place, 0)
        sent = [each for each in exchanges_of(detail) if each.group == "tp"]
        seconds = sum(each.count * alone_s(each, 1, detail) for each in sent)
        factor = stack.tensor_factor * stack.communication_factor
        expected = detail.pipeline.micro_batches * float(whole[at])
        assert seconds * factor == pytest.approx(expected, rel=1e-9)
        checked += 1
    assert checked


def test_sharded_parameters_take_the_seconds_that_are_priced() -> None:
    """Gathered in either pass of every micro-batch, and reduced, where nothing is hidden."""
    shown: dict[str, Any] = {"overlap_grad_reduce": False, "overlap_param_gather": False}
    plan = plan_of(runtime="fsdp", dp=16, sharding="parameters", **shown)
    detail = detail_of(plan)
    sent = [each for each in exchanges_of(detail) if each.group == "dp"]
    seconds = sum(each.count * alone_s(each, 1, detail) for each in sent)
    factors = detail.stack.on(gpu_of(detail))
    expected = price_plan(plan).step_parts_s["data_comm"]
    assert seconds * factors.data_factor * factors.communication_factor == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3"])
def test_expert_bytes_take_the_seconds_that_are_priced(model: str) -> None:
    checked = 0
    for plan in legal_plans(model):
        detail = detail_of(plan)
        sent = [e for e in exchanges_of(detail) if e.group in ("ep", "etp")]
        if plan.overlap_ep or not sent:
            continue
        work = stage_times(detail.view, detail.stack).work
        at = (*detail.place, 0)
        both = float(work.expert_forward_s[at] + work.expert_backward_s[at])
        fraction = np.broadcast_to(detail.view.recomputed[0], work.forward_s.shape)[at]
        again = float(fraction) * float(work.expert_forward_s[at])
        etp = of_stage(detail, detail.view.plans.segment_etp)
        seconds = 0.0
        for exchange in sent:
            stride = etp if exchange.operation == "all-to-all" else 1
            seconds += exchange.count * alone_s(exchange, stride, detail)
        expected = detail.pipeline.micro_batches * (both + again)
        assert seconds * detail.stack.on(gpu_of(detail)).dispatch_factor == pytest.approx(
            expected, rel=1e-9
        )
        checked += 1
    assert checked


# ------------------------------------------------------------------ what binds


def test_the_binding_sentence_has_a_number_and_the_fullest_stage() -> None:
    binding = explained().binding
    assert "%" in binding.sentence and "GiB" in binding.sentence
    assert 0 < binding.filled_fraction <= 1


def test_few_micro_batches_bind_a_deep_pipeline() -> None:
    plan = plan_of(pp=8, tp=1, dp=2, global_batch=16)
    binding = astra.explain(plan, quick=True).binding
    assert binding.constraint == "batch"
    assert "8 micro-batches per replica" in binding.sentence


def test_a_plan_that_does_not_fit_is_bound_by_memory() -> None:
    plan = plan_of("llama-3-70b", tp=1)
    binding = astra.explain(plan, quick=True).binding
    assert binding.constraint == "memory"
    assert binding.filled_fraction > 1 and "does not fit" in binding.sentence


def test_recompute_is_what_memory_costs() -> None:
    plan = plan_of(tp=1, recompute="full:uniform:1")
    binding = astra.explain(plan, quick=True).binding
    assert binding.constraint == "memory" and "computed again" in binding.sentence


# ------------------------------------------------------------------ the next plans


def test_what_the_next_plans_lose_sums_to_the_difference() -> None:
    answer, explanation = found(), explained()
    assert [loss.rank for loss in explanation.next_plans] == [2, 3, 4, 5]
    for loss, priced in zip(explanation.next_plans, answer.plans[1:], strict=True):
        assert loss.step_s == pytest.approx(priced.step_s)
        assert loss.slower_s == pytest.approx(priced.step_s - answer.plans[0].step_s)
        assert sum(loss.parts_s.values()) == pytest.approx(loss.slower_s, abs=1e-9)


def test_another_rank_is_compared_with_the_best_too() -> None:
    explanation = found().explain(rank=3, quick=True)
    assert explanation.best is not None and explanation.best.rank == 1
    assert explanation.best.slower_s <= 0
    assert [loss.rank for loss in explanation.next_plans] == [4, 5]


# ------------------------------------------------------------------ against


def test_against_tells_the_seconds_and_where_they_go() -> None:
    against = found().explain(against="tp=4 pp=2", quick=True).against
    assert against is not None and against.outcome == "time" and against.plan is not None
    narrowed = astra.plan("llama-3-8b", settings=["tp=4", "pp=2"], **JOB).best
    assert narrowed is not None
    assert against.plan.step_s == pytest.approx(narrowed.step_s)
    assert against.plan.slower_s > 0 and "slower" in against.sentence
    assert sum(against.plan.parts_s.values()) == pytest.approx(against.plan.slower_s)


def test_against_takes_a_plan_as_tables_name_it() -> None:
    best = found().best
    assert best is not None
    answer = msgspec.structs.replace(found(), plans=found().plans[1:])  # another plan's file
    against = answer.explain(against=best.summary, quick=True).against
    assert against is not None and "faster" in against.sentence
    assert {"tp", "pp", "mb"} <= {setting.partition("=")[0] for setting in against.settings}


@pytest.mark.slow
def test_against_the_best_plans_own_settings_is_as_fast() -> None:
    best = found().plans[0].plan
    tp = best.pipelines[0].segments[0].tp
    against = found().explain(against=f"tp={tp} pp={best.pp}", quick=True).against
    assert against is not None and "as fast" in against.sentence


@pytest.mark.slow
def test_against_tells_the_rule_that_forbids_all() -> None:
    explanation = astra.plan("llama-3-8b", gpus="h100:24", global_batch=48, seq_len=4096)
    wanted = "tp=2 sequence_parallel=false overlap_tp=true"
    against = explanation.explain(against=wanted, quick=True).against
    assert against is not None and against.outcome == "rules"
    assert "tp-overlap-needs-sequence-parallel" in against.rules
    assert "sequence parallelism" in against.sentence


@pytest.mark.slow
def test_against_tells_the_gib_that_do_not_fit() -> None:
    answer = astra.plan("llama-3-70b", gpus="h100:64", global_batch=64, seq_len=4096, top=1)
    wanted = "tp=1 pp=1 sharding=optimizer offload_optimizer_fraction=0"
    against = answer.explain(against=wanted, quick=True).against
    assert against is not None and against.outcome == "memory"
    assert against.needed_bytes is not None and against.usable_bytes is not None
    assert against.needed_bytes > against.usable_bytes and against.stage == 0
    assert "GiB" in against.sentence and against.plan is not None
    assert against.nearest is not None  # what no plan with all of them is: one that fits
    kept = wanted.split()
    near = [
        astra.plan(
            "llama-3-70b", gpus="h100:64", global_batch=64, seq_len=4096, risk="none", settings=some
        ).best
        for some in ([each for each in kept if each != left] for left in kept)
    ]
    fastest = min((plan for plan in near if plan), key=lambda plan: plan.step_s)
    assert against.nearest.step_s <= fastest.step_s * 1.1
    assert fastest.step_s <= against.nearest.step_s * (1 + 1e-9)


def test_against_what_is_no_plan_says_why() -> None:
    against = found().explain(against="pp=200", quick=True).against
    assert against is not None and against.outcome == "none"
    assert "32 layers" in against.sentence


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tpp=4", "against = 'tpp=4': no dimension 'tpp'. Did you mean"),
        ("tp", "KEY=VALUE"),
        ("tp=x", "not a whole number"),
        ("tp=2 tp=4", "given twice"),
        ("  ", "give settings"),
    ],
)
def test_bad_settings_are_refused_as_those_of_a_search(text: str, says: str) -> None:
    with pytest.raises(InputError, match="against") as caught:
        found().explain(against=text, quick=True)
    assert says in str(caught.value)


# ------------------------------------------------------------------ what would change


def test_faster_hardware_never_slows_the_same_plan_much() -> None:
    repriced = [change for change in explained().changes if change.how == "repriced"]
    for change in repriced:
        assert change.plan is not None and change.key.startswith("more_")
        assert change.factor is not None and f"{change.factor:g}" in change.what
        assert change.step_s == change.plan.step_s
        assert change.delta_s == pytest.approx(change.step_s - explained().step_s, abs=1e-12)
    assert len(repriced) == 4
    for change in repriced:
        assert change.same_plan and change.plan is not None
        assert change.plan.slower_s <= 1e-9


def test_more_memory_never_makes_the_best_plan_slower() -> None:
    more = change(explained(), "1.25 x the memory")
    assert more.how == "searched" and more.plan is not None
    assert more.plan.slower_s <= 1e-9


def test_other_micro_batches_and_fewer_gpus_are_searched_for() -> None:
    explanation, best = explained(), found().plans[0].plan
    sizes = {f"micro-batch {n}" for n in (best.micro_batch // 2, best.micro_batch * 2) if n}
    said = {change.what for change in explanation.changes}
    assert sizes <= said and "8 GPUs" in said
    fewer = change(explanation, "8 GPUs")
    assert fewer.plan is not None and sum(fewer.plan.gpus.values()) <= 8
    assert fewer.plan.slower_s > 0


@pytest.mark.slow
def test_a_bare_plan_is_compared_with_the_best_there_is() -> None:
    explanation = astra.explain(plan_of(tp=8))
    best = change(explanation, "the best plan as things are")
    assert best.plan is not None
    assert best.plan.step_s == pytest.approx(found().plans[0].step_s)


def test_quick_searches_for_nothing() -> None:
    explanation = found().explain(quick=True)
    assert {change.how for change in explanation.changes} == {"repriced"}


# ------------------------------------------------------------------ mixed plans


FEW = ("mb=1", "cp=1", "sharding=optimizer")
MIXED: dict[str, Any] = {"gpus": "h100:8,a100-80g:8", "global_batch": 64, "seq_len": 4096}


@cache
def mixed_answer() -> astra.Answer:
    return astra.plan("llama-3-8b", top=5, settings=FEW, **MIXED)


@pytest.mark.slow
def test_a_mixed_plan_is_searched_again_over_its_types() -> None:
    asked: dict[str, Any] = MIXED | {"settings": ("tp=2", "recompute=none", *FEW)}
    answer = astra.plan("llama-3-8b", top=5, **asked)
    assert answer.mixed is not None and len(answer.plans[0].gpus) == 2
    explanation = answer.explain()
    assert explanation.stages == answer.mixed.stages
    for name, step_s in answer.mixed.alone_step_s.items():
        other = next(gpu for gpu in answer.mixed.alone_step_s if gpu != name)
        alone = change(explanation, f"no {other}").plan
        assert alone is not None and alone.step_s == pytest.approx(step_s)
        more = change(explanation, f"16 {name}").plan
        assert more is not None and more.step_s <= answer.plans[0].step_s * (1 + 1e-9)
    twice = astra.plan("llama-3-8b", **asked | {"gpus": "h100:16,a100-80g:8"})
    double = change(explanation, "16 H100-80GB-SXM").plan
    assert double is not None and double.step_s == pytest.approx(twice.plans[0].step_s)


@pytest.mark.slow
def test_the_network_between_types_is_the_slower_one() -> None:
    """Faster NICs of both types save no less than those of either."""
    explanation = mixed_answer().explain(quick=True)
    both = change(explanation, "2 x the network").plan
    each = [change(explanation, f"2 x the network of {name}").plan for name in explanation.gpus]
    assert both is not None
    assert all(one is not None and one.slower_s >= both.slower_s - 1e-9 for one in each)


@pytest.mark.slow
def test_against_searches_over_several_types() -> None:
    answer = mixed_answer()
    against = answer.explain(against="tp=4", quick=True).against
    narrowed = astra.plan("llama-3-8b", settings=("tp=4", *FEW), **MIXED).plans[0]
    assert against is not None and against.plan is not None
    assert against.plan.step_s == pytest.approx(narrowed.step_s)
    with pytest.raises(InputError, match=r"against = \"pp=2\": over several GPU types pp cannot"):
        answer.explain(against="pp=2", quick=True)


@pytest.mark.slow
def test_against_a_plan_of_the_answer_by_its_name_needs_no_search() -> None:
    for answer in (mixed_answer(), found()):
        other = answer.plans[1]
        heard: list[str] = []
        explained = astra.explain(answer, against=other.summary, quick=True, say=heard.append)
        assert explained.against is not None and explained.against.plan is not None
        assert explained.against.plan.step_s == pytest.approx(other.step_s)
        assert explained.against.plan.rank == 2 and not heard


@pytest.mark.slow
def test_what_pipelines_over_types_do_not_search_is_searched_of_uniform_plans() -> None:
    plan = msgspec.structs.replace(mixed_answer().plans[0].plan, cuda_graph="local")
    explanation = astra.explain(plan)
    assert {change.how for change in explanation.changes} == {"repriced", "searched"}


def test_another_busiest_stage_is_named() -> None:
    """A part that only the last stage has must not look like a loss of the other plan's."""
    plan = plan_of(pp=4, tp=2, layers_per_stage=(12, 9, 8, 3))
    other = plan_of(pp=4, tp=2, layers_per_stage=(7, 7, 8, 10))
    loss = explanation_with_words(explain_plan([plan, other], quick=True)).next_plans[0]
    assert loss.other_place and loss.busiest == "stage 3 of 4 on H100-80GB-SXM, the last"
    same = explain_plan([plan, plan], quick=True).next_plans[0]
    assert not same.other_place and same.parts_stage == 0


@pytest.mark.slow
def test_every_kind_of_source_gives_the_same() -> None:
    priced = found().plans[0]
    plain = astra.explain(priced.plan, quick=True)
    assert astra.explain(priced, quick=True) == plain
    whole = found().explain(quick=True)
    assert msgspec.structs.replace(whole, next_plans=()) == plain


@pytest.mark.slow
def test_a_mixed_plan_with_experts_is_searched_again() -> None:
    said: dict[str, Any] = {**MIXED, "settings": ("tp=1,2", "ep=8", *FEW)}
    explanation = astra.plan("gpt-oss-20b", top=2, **said).explain()
    assert change(explanation, "no A100-80GB-SXM").plan is not None
    assert any("tp=1,2" in note for note in explanation.notes)


@pytest.mark.slow
def test_a_plan_that_another_beats_by_far_binds_itself() -> None:
    plan = astra.predict(
        "llama-3-8b", gpus="h100:8", tp=8, global_batch=64, seq_len=4096, recompute="full:uniform:1"
    ).plan
    binding = astra.explain(plan).binding
    assert binding.constraint == "plan"
    assert "would save" in binding.sentence


def little_ram(name: str) -> Pool:
    gpu, _ = find_gpu(name)
    node = msgspec.structs.replace(gpu.node, ram_bytes=3e10)
    return Pool(gpu=msgspec.structs.replace(gpu, node=node), count=8)


@pytest.mark.slow
def test_offload_that_no_node_has_the_ram_for_binds_over_several_types_too() -> None:
    """Of which type it is comes before the reason, and is no reason."""
    cluster = Cluster(name="few", pools=(little_ram("a100-80g"), little_ram("h100")))
    job: dict[str, Any] = {"cluster": cluster, "global_batch": 64, "seq_len": 4096}
    answer = astra.plan("llama-3-8b", runtime="fsdp", settings=["tp=1", "pp=1"], **job)
    against = answer.explain(against="offload_optimizer=1", quick=True).against
    assert against is not None and against.outcome == "memory" and against.why is not None
    assert against.why.code is NoteCode.RAM_TOO_SMALL
    assert against.needed_bytes and against.usable_bytes
    assert against.needed_bytes > against.usable_bytes and "host memory" in against.sentence


def test_a_plan_that_its_nodes_have_not_the_ram_for_is_bound_by_memory() -> None:
    cluster = Cluster(name="few", pools=(little_ram("h100"),))
    job: dict[str, Any] = {"cluster": cluster, "global_batch": 64, "seq_len": 4096}
    priced = astra.predict("llama-3-8b", offload_optimizer_fraction=1.0, **job)
    assert priced.memory.fits and not priced.fits_host
    explanation = astra.explain(priced, quick=True)
    assert explanation.binding.constraint == "memory" and not explanation.binding.fits_ram
    assert "RAM of its nodes" in explanation.binding.sentence
    assert any("host memory" in text for text in explanation.notes)
