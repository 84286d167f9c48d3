"""One plan costs what it costs, however it is asked; better hardware never makes it worse."""

import random
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cost import some_plans
from tests.cost.some_plans import changed, faster, numbers, with_gpus, with_segments

import astra
from astra.cost.price import MARGIN, price_plan, price_plans
from astra.cost.result import PricedPlan
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Pool
from astra.hardware.stack import find_stack
from astra.model.zoo import find_model
from astra.notes import NoteCode, has, note
from astra.report.words import with_words
from astra.strategy.complete import split_layers
from astra.strategy.plan import Pipeline, Plan, Segment
from astra.strategy.plans import Plans, concatenate, plans_of, task_of
from astra.strategy.stage_view import stage_view
from astra.timing.stage import stage_times

RECOMPUTES = ("none", "selective", "full:uniform:1", "full:uniform:2", "full:block:1")


def assert_alike(one: PricedPlan, other: PricedPlan, what: object = "") -> None:
    """Every number of two answers, to 1e-9 of itself; parts to 1e-9 of the step."""
    first, second = numbers(one), numbers(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        room = 1e-9 * (one.step_s if name.startswith("part ") else abs(value))
        assert abs(value - second[name]) <= room, (what, name, value, second[name])


def plan_of(pp: int = 4, **fields: Any) -> Plan:
    """Llama 3 8B on H100: tp 2, dp 2, eight micro-batches."""
    gpu, _ = find_gpu("h100")
    model = find_model("llama-3-8b")
    segment = Segment(gpu=gpu.name, stages=pp, layers=split_layers(model.layers, pp), tp=2)
    plan = Plan(
        model=model,
        cluster=msgspec.structs.replace(
            some_plans.legal_plans("llama-3-8b")[0].cluster, pools=(Pool(gpu=gpu, count=64),)
        ),
        pipelines=(Pipeline(replicas=2, micro_batches=8, segments=(segment,)),),
        global_batch=16,
        seq_len=4096,
        shard_group=2,
        sequence_parallel=True,
    )
    return changed(plan, **fields)


# ------------------------------------------------------------------ one or many


@pytest.mark.slow
def test_every_plan_costs_the_same_alone_as_among_all_others() -> None:
    plans = some_plans.every_plan()[::2]
    for plan, among in zip(plans, price_plans(plans), strict=True):
        assert_alike(price_plan(plan), among, plan.summary())


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(some_plans.tables(), st.randoms(use_true_random=False))
def test_permuting_a_table_permutes_its_answers(table: list[Plan], dice: random.Random) -> None:
    order = list(range(len(table)))
    dice.shuffle(order)
    straight = price_plans(table)
    for row, found in zip(order, price_plans([table[row] for row in order]), strict=True):
        assert_alike(straight[row], found)


def stage_columns(table: Plans, plan: Plan) -> dict[str, Any]:
    """All seconds of a table's stages, for comparing tables."""
    times = stage_times(stage_view(table, task_of(plan), every_stage=True), find_stack("megatron"))
    names = ("forward_s", "backward_s", "tensor_forward_s", "expert_backward_s", "link_s")
    columns = {name: times.part(name) for name in names}
    columns |= {"down": times.whole_forward_s, "back": times.whole_backward_s}
    return columns | {"recompute": times.recompute_s}


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(some_plans.any_plan())
def test_unused_slots_and_pipelines_change_nothing(plan: Plan) -> None:
    """The same row, padded by a wider one behind it."""
    own_segments = plan.pipelines[0].segments
    more = [with_segments(plan, recompute=how).pipelines[0].segments for how in RECOMPUTES]
    long = msgspec.structs.replace(
        plan.pipelines[0], segments=sum(more, own_segments) + own_segments
    )
    wide = changed(plan, pipelines=(long, *plan.pipelines), chunk_layers=None)
    own = plans_of([plan])
    padded = concatenate([own, plans_of([wide])]).take([0])
    assert padded.stages.shape[0] > own.stages.shape[0]
    assert padded.stages.shape[1] > own.stages.shape[1]
    pipelines, stages = len(plan.pipelines), int(own.pp.max())
    bare = stage_columns(own, plan)
    for name, column in stage_columns(padded, plan).items():
        held = column[:pipelines, :stages]
        assert abs(held - bare[name]).max() <= 1e-9 * abs(bare[name]).max(), name


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(some_plans.any_plan())
def test_plans_that_differ_in_recompute_only_cost_what_each_costs_alone(plan: Plan) -> None:
    """They share what recompute does not touch; sharing it changes nothing."""
    table = [with_segments(plan, recompute=how) for how in RECOMPUTES]
    table += [changed(table[2], offload_optimizer_fraction=0.5), plan, table[0]]
    for each, found in zip(table, price_plans(table), strict=True):
        assert_alike(price_plan(each), found, each.summary())


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.sampled_from((2, 4, 8)), st.sampled_from(RECOMPUTES), st.integers(1, 7))
def test_cutting_a_segment_in_two_alike_changes_nothing(pp: int, how: str, where: int) -> None:
    whole = with_segments(plan_of(pp), recompute=how)
    (segment,) = whole.pipelines[0].segments
    at = min(where, pp - 1)
    halves = tuple(
        msgspec.structs.replace(segment, stages=len(layers), layers=layers)
        for layers in (segment.layers[:at], segment.layers[at:])
    )
    cut = msgspec.structs.replace(whole.pipelines[0], segments=halves)
    assert_alike(price_plan(whole), price_plan(changed(whole, pipelines=(cut,))))


def test_a_gpu_type_that_a_plan_leaves_idle_costs_it_nothing() -> None:
    """Two stages of four GPUs inside one node talk over NVLink, whatever else there is."""
    plan = plan_of(2)
    slow = Pool(gpu=find_gpu("v100-32g")[0], count=64)
    pools = (*plan.cluster.pools, slow)
    wider = changed(plan, cluster=msgspec.structs.replace(plan.cluster, pools=pools))
    assert_alike(price_plan(plan), price_plan(wider))


def test_between_two_gpu_types_the_slower_nic_rules() -> None:
    fast, slow = (find_gpu(name)[0] for name in ("h100", "a100-80g"))
    assert slow.node.nic_bytes_per_s < fast.node.nic_bytes_per_s
    mixed = next(
        plan
        for plan in some_plans.mixed_plans("llama-3-8b")
        if len(plan.pipelines) == 1 and plan.cp == 1
    )
    seconds = stage_columns(plans_of([mixed]), mixed)["link_s"][0, :, 0]
    border = mixed.pipelines[0].segments[0].stages - 1
    for name, shown in (("H100-80GB-SXM", False), ("A100-80GB-SXM", True)):
        better = with_gpus(
            mixed, lambda gpu, name=name: faster(gpu, 1.2, "nic") if gpu.name == name else gpu
        )
        found = stage_columns(plans_of([better]), better)["link_s"][0, border, 0]
        assert bool(found < seconds[border]) is shown, name


# ------------------------------------------------------------------ better hardware


PARTS = ("compute", "memory", "link", "nic", "pcie")


@cache
def priced(plans: tuple[Plan, ...]) -> list[PricedPlan]:
    return price_plans(plans)


def never_slower(plans: tuple[Plan, ...], *parts: str) -> None:
    better = [with_gpus(plan, lambda gpu: faster(gpu, 1.3, *parts)) for plan in plans]
    before, after = priced(plans), price_plans(better)
    for plan, old, new in zip(plans, before, after, strict=True):
        assert new.step_s <= old.step_s * (1 + 1e-9), (plan.model.name, plan.summary(), parts)
    assert any(new.step_s < old.step_s for old, new in zip(before, after, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("parts", [PARTS, ("memory",), ("link",), ("nic",), ("pcie",)])
def test_faster_hardware_never_makes_a_slower_step(parts: tuple[str, ...]) -> None:
    plans = some_plans.every_plan()
    if parts == ("pcie",):
        plans = tuple(changed(plan, offload_optimizer_fraction=0.5) for plan in plans)
    never_slower(plans, *parts)


@pytest.mark.slow
def test_faster_matrix_units_never_make_a_slower_step_where_replicas_wait_in_turn() -> None:
    """With gradients reduced beside compute that already hides other traffic they may: less
    compute hides less of both.
    """
    plans = tuple(
        changed(plan, overlap_grad_reduce=False, overlap_param_gather=False)
        for plan in some_plans.every_plan()
    )
    never_slower(plans, "compute")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(some_plans.any_plan(), st.floats(0.1, 10))
def test_more_memory_never_turns_a_fit_into_a_misfit(plan: Plan, factor: float) -> None:
    def sized(gpu: Any, scale: float) -> Any:
        return msgspec.structs.replace(gpu, usable_bytes=gpu.usable_bytes * scale)

    small = price_plan(with_gpus(plan, lambda gpu: sized(gpu, factor))).memory
    large = price_plan(with_gpus(plan, lambda gpu: sized(gpu, factor * 1.25))).memory
    assert large.fits or not small.fits
    assert large.fit_probability >= small.fit_probability
    assert large.allocated_bytes == pytest.approx(small.allocated_bytes, rel=1e-12)


def test_memory_and_margin_decide_what_fits() -> None:
    plan = plan_of()
    found = price_plan(plan).memory
    needed = found.reserved_bytes

    def with_memory(usable_bytes: float, margin: float) -> bool:
        gpus = with_gpus(plan, lambda gpu: msgspec.structs.replace(gpu, usable_bytes=usable_bytes))
        return price_plan(gpus, margin=margin).memory.fits

    assert found.fits == (needed <= found.usable_bytes * (1 - MARGIN))
    assert with_memory(needed * 1.0001, 0.0) and not with_memory(needed * 0.9999, 0.0)
    assert with_memory(needed / 0.8999, 0.1) and not with_memory(needed / 0.9001, 0.1)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(some_plans.any_plan(), st.integers(2, 4))
def test_more_micro_batches_make_a_longer_step(plan: Plan, times: int) -> None:
    more = changed(
        plan,
        global_batch=plan.global_batch * times,
        pipelines=tuple(
            msgspec.structs.replace(each, micro_batches=each.micro_batches * times)
            for each in plan.pipelines
        ),
    )
    assert price_plan(more).step_s > price_plan(plan).step_s


# ------------------------------------------------------------------ what an answer says


def test_what_does_not_fit_is_said_of_the_stage_that_is_fullest() -> None:
    """A pipeline cut by 8, and one not cut at all: it lacks a communicator, but not memory."""
    plan = plan_of(1)
    pipelines = tuple(
        msgspec.structs.replace(with_segments(plan, tp=tp).pipelines[0], replicas=1)
        for tp in (8, 1)
    )
    found = price_plan(changed(plan, pipelines=pipelines, shard_group=1))
    cut, whole = found.memory.stages
    assert (found.memory.worst_pipeline, found.memory.worst_stage) == (1, 0)
    assert whole.runtime_bytes < cut.runtime_bytes
    needed = found.memory.reserved_bytes / 2**30
    first = with_words(found).warnings[0]
    assert first.startswith(f"does not fit: stage 0 needs {needed:.1f} GiB")


def test_tensor_parallel_groups_over_the_network_are_warned_of() -> None:
    asked: dict[str, Any] = {"global_batch": 16, "seq_len": 2048, "tp": 8}
    wide = note(NoteCode.TENSOR_OVER_NETWORK, gpu="GH200-96GB", tp=8, near=1)
    assert wide in astra.predict("llama-3-8b", gpus="gh200:16", **asked).notes
    inside = astra.predict("llama-3-8b", gpus="l40s:16", **asked).notes  # a node of eight
    assert not has(inside, NoteCode.TENSOR_OVER_NETWORK)


def test_a_sequence_beyond_the_models_positions_is_warned_of() -> None:
    beyond = note(NoteCode.BEYOND_POSITIONS, seq_len=16_384, positions=8_192, model="llama-3-8b")
    assert beyond in price_plan(plan_of(seq_len=16_384)).notes
    assert not has(price_plan(plan_of(seq_len=8_192)).notes, NoteCode.BEYOND_POSITIONS)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(some_plans.any_plan())
def test_rates_follow_from_the_step(plan: Plan) -> None:
    found = price_plan(plan)
    tokens = plan.global_batch * plan.seq_len
    assert found.tokens_per_s == pytest.approx(tokens / found.step_s)
    assert found.tokens_per_s_per_gpu * sum(found.gpus.values()) == pytest.approx(
        found.tokens_per_s
    )
    assert found.step_s_low < found.step_s < found.step_s_high
    assert 0 < found.mfu_fraction < 1
    known = found.provenance
    parts = (known.measured_fraction, known.fitted_fraction, known.guessed_fraction)
    assert min(parts) >= 0 and sum(parts) == pytest.approx(1)


def test_hidden_traffic_and_host_times_are_called_guesses() -> None:
    shown = price_plan(plan_of(overlap_grad_reduce=False)).provenance
    hidden = price_plan(plan_of(overlap_grad_reduce=True)).provenance
    assert hidden.guessed_fraction > 0
    assert shown.fitted_fraction > hidden.fitted_fraction


def test_a_plan_by_the_papers_formula_keeps_the_simulators_step_in_a_warning() -> None:
    said: dict[str, Any] = {
        "gpus": "h100:32",
        "pp": 4,
        "vpp": 4,
        "global_batch": 32,
        "seq_len": 4096,
    }
    simulated = astra.predict("llama-3-8b", **said)
    paper = astra.predict("llama-3-8b", pipeline_model="paper", **said)
    assert paper.step_s > 1.05 * simulated.step_s  # few micro-batches, interleaved
    assert sum(paper.step_parts_s.values()) == pytest.approx(paper.step_s)
    assert f"the simulator gives {simulated.step_s:.4g} s" in paper.warnings[-1]
    assert paper.memory == simulated.memory
    tokens = paper.tokens_per_s * paper.step_s
    assert tokens == pytest.approx(simulated.tokens_per_s * simulated.step_s)


@pytest.mark.slow
def test_an_answer_compares_its_plans_with_the_papers_formula() -> None:
    said: dict[str, Any] = {"gpus": "h100:16", "global_batch": 64, "seq_len": 4096}
    plain = astra.plan("llama-3-8b", **said)
    found = astra.plan("llama-3-8b", pipeline_model="paper", **said)
    assert plain.paper is None and found.paper is not None
    assert [row.simulated_s for row in found.paper] == [plan.step_s for plan in plain.plans]
    for row, priced in zip(found.paper, found.plans, strict=True):
        by_paper = astra.predict_plan(priced.plan, pipeline_model="paper")
        assert row.paper_s == pytest.approx(by_paper.step_s)
        assert row.error_fraction == pytest.approx(row.paper_s / row.simulated_s - 1)


def test_an_unknown_pipeline_model_is_an_input_error() -> None:
    import astra
    from astra.errors import InputError

    with pytest.raises(InputError, match="Did you mean paper"):
        astra.predict("llama-3-8b", gpus="h100:8", global_batch=8, pipeline_model="papers")
