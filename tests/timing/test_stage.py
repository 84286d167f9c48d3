"""Seconds of a stage: what recompute adds, what overlap hides, where the ends lie."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cost import some_plans
from tests.cost.some_plans import changed, stack, view, with_segments

from astra.api import predict
from astra.cost.price import price_plan
from astra.hardware.topology import even_share
from astra.strategy.plan import Plan
from astra.timing.collectives import p2p_s
from astra.timing.layer import layers_of
from astra.timing.stage import StageTime, stage_times
from astra.timing.stage_work import stage_sends

STACK = stack()


def times(plan: Plan) -> StageTime:
    return stage_times(view(plan), STACK)


def layers_forward(found: StageTime) -> Any:
    """Forward seconds of a stage's layers with their traffic, without its ends."""
    ends = found.part("head_forward_s") + found.part("embedding_forward_s")
    return found.whole_forward_s - found.gather_forward_s - ends


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(some_plans.any_plan())
def test_full_recompute_repeats_the_forward_pass_of_all_layers(plan: Plan) -> None:
    found = times(with_segments(plan, recompute="full:uniform:1"))
    assert np.allclose(found.recompute_s, layers_forward(found), rtol=1e-9, atol=1e-15)


@settings(max_examples=30, deadline=None)
@given(some_plans.any_plan(), st.integers(1, 8))
def test_block_recompute_repeats_so_many_layers_of_a_chunk(plan: Plan, layers: int) -> None:
    """Clipped where a chunk has fewer. Stages whose layers are of one kind."""
    if plan.model.name in ("gemma-2-2b", "deepseek-v3") or plan.chunk_layers:
        return
    seen = view(with_segments(plan, recompute=f"full:block:{layers}"))
    found = stage_times(seen, STACK)
    held = np.maximum(seen.stages.kind_layers.sum(axis=0), 1)
    again = np.minimum(layers * plan.vpp, held) / held
    assert np.allclose(found.recompute_s, again * layers_forward(found), rtol=1e-9, atol=1e-15)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(some_plans.any_plan())
def test_selective_recompute_repeats_attention_and_no_more(plan: Plan) -> None:
    seen = view(with_segments(plan, recompute="selective"))
    found = stage_times(seen, STACK)
    layers = layers_of(seen, STACK)
    cores = [seen.stages.of(kind.module_s["core_attn"]) for kind in layers.kinds]
    expected = sum(count * core for count, core in zip(seen.stages.kind_layers, cores, strict=True))
    extra = np.where(seen.stages.head, seen.plans.mtp_layers, 0) if plan.model.mtp_layers else 0
    assert np.allclose(found.recompute_s, expected + extra * cores[-1], rtol=1e-9, atol=1e-15)
    assert (found.recompute_s <= layers_forward(found) + 1e-15).all()


@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b", "gemma-2-2b", "deepseek-v2-lite"])
@pytest.mark.parametrize("how", ["full", "full:block:3", "selective"])
def test_recompute_adds_its_own_seconds_to_the_step_where_nothing_overlaps(
    model: str, how: str
) -> None:
    """One stage: micro-batches follow each other, so each adds what it does again."""
    fields: dict[str, Any] = {"gpus": "h100:8", "tp": 2, "global_batch": 16, "seq_len": 2048}
    fields |= {"overlap_grad_reduce": False, "overlap_param_gather": False, "overlap_tp": False}
    plan = predict(model, **fields).plan
    none, some = price_plan(plan), price_plan(with_segments(plan, recompute=how))
    added = some.step_s - none.step_s
    assert added == pytest.approx(some.step_parts_s["recompute"], rel=1e-9)
    micro_batches = plan.pipelines[0].micro_batches
    alone = times(with_segments(plan, recompute=how)).recompute_s.item()
    assert added == pytest.approx(micro_batches * alone, rel=1e-9) and added > 0


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(some_plans.any_plan(), st.sampled_from(("overlap_grad_reduce", "overlap_param_gather")))
def test_overlap_with_other_replicas_never_makes_a_slower_step(plan: Plan, switch: str) -> None:
    off, on = (price_plan(changed(plan, **{switch: way})).step_s for way in (False, True))
    assert on <= off * (1 + 1e-9)


def test_overlap_is_neither_free_nor_absent() -> None:
    """Of a reduction long enough to see, a part shows however much compute there is."""
    fields: dict[str, Any] = {"gpus": "h100:16", "global_batch": 16, "seq_len": 8192}
    fields |= {"overlap_param_gather": False}
    off, on = (
        predict("llama-3-8b", overlap_grad_reduce=way, **fields).step_parts_s["data_comm"]
        for way in (False, True)
    )
    assert 0.05 * off < on < 0.95 * off


@settings(max_examples=30, deadline=None)
@given(some_plans.any_plan())
def test_the_ends_lie_on_the_first_and_the_last_stage(plan: Plan) -> None:
    found = times(plan)
    for pipeline, each in enumerate(plan.pipelines):
        embedding = found.part("embedding_forward_s")[pipeline, :, 0]
        head = found.part("head_forward_s")[pipeline, :, 0]
        assert list(np.flatnonzero(embedding)) == [0]
        assert list(np.flatnonzero(head)) == [each.stages - 1]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(some_plans.any_plan())
def test_a_stage_takes_the_seconds_of_its_layers_and_no_link_leads_out_of_one_stage(
    plan: Plan,
) -> None:
    """More layers take longer: stages of one segment in order of their layers."""
    seen = view(plan)
    found = stage_times(seen, STACK)
    assert bool(found.part("link_s").any()) is (max(each.stages for each in plan.pipelines) > 1)
    bare = layers_forward(found)[..., 0]
    for pipeline, each in enumerate(plan.pipelines):
        start = 0
        for segment in each.segments:
            rows = slice(start, start + segment.stages)
            start += segment.stages
            if len(seen.stages.kind_layers) == 1 and not plan.mtp_layers:
                per_layer = bare[pipeline, rows] / np.maximum(segment.layers, 1)
                full = np.array(segment.layers) > 0
                assert np.allclose(per_layer[full], per_layer[full][:1], rtol=1e-9)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(some_plans.any_plan())
def test_both_views_of_a_table_give_the_same_seconds(plan: Plan) -> None:
    """Runs of alike stages, and one row a stage: the same stages, counted."""
    totals = []
    for every_stage in (False, True):
        seen = view(plan, every_stage=every_stage)
        found = stage_times(seen, STACK)
        count = seen.stages.count
        whole = count * (found.whole_forward_s + found.whole_backward_s)
        totals.append(whole.sum(axis=1)[:, 0])
    assert totals[0] == pytest.approx(totals[1], rel=1e-9)


def sends_inside(plan: Plan) -> list[bool]:
    """Of each stage of one pipeline, whether all that it sends stays in a node, GPU by GPU."""
    (pipeline,), pools = plan.pipelines, plan.cluster.pools
    nodes = {p.gpu.name: max(p.gpu.node.gpus, p.gpu.link.domain_gpus) for p in pools}
    taken, places = dict.fromkeys(nodes, 0), []
    for stage in range(pipeline.stages):
        segment = pipeline.segment_at(stage)
        gpu, count = segment.gpu, segment.tp * plan.cp * (segment.dp or pipeline.replicas)
        node = int(even_share(plan.gpus[gpu], nodes[gpu]))
        places.append([(gpu, rank // node) for rank in range(taken[gpu], taken[gpu] + count)])
        taken[gpu] += count
    found = []
    for here, there in zip(places, [*places[1:], places[0]], strict=True):
        alike = len(here) == len(there)  # rank to rank, else any to any
        pairs = zip(here, there, strict=True) if alike else product(here, there)
        found.append(all(one == other for one, other in pairs))
    return found


@pytest.mark.slow
def test_sends_between_stages_stay_in_a_node_where_every_gpu_has_its_partner_there() -> None:
    """Of two stages to a node every second one sends across; so over NVL72 too."""
    fields: dict[str, Any] = {"global_batch": 256, "seq_len": 4096, "pp": 8}
    halves = predict("llama-3-70b", gpus="gb200:256", tp=2, **fields).plan
    checked = 0
    for plan in (*some_plans.every_plan(), halves):
        if len(plan.pipelines) == 1 and plan.pp > 1:
            seen, (pipeline,) = view(plan), plan.pipelines
            sends = stage_sends(seen, STACK)
            pools = [pool.gpu.name for pool in plan.cluster.pools]
            own = [pools.index(pipeline.segment_at(stage).gpu) for stage in range(plan.pp)]
            near = sends.near[0, :, 0] & (sends.there[0, :, 0] == own)
            assert near.tolist() == sends_inside(plan), plan.summary()
            checked += 1
    assert checked > 100
    assert sends_inside(halves) == [True, False] * 4


@pytest.mark.parametrize("name", ["deepspeed-3d", "sailor"])
def test_deepspeeds_stages_send_shares_and_gather_them_on_arrival(name: str) -> None:
    """Four ranks of a group each send a quarter of what all of them hold, over a NIC they share."""
    from astra.hardware.stack import find_stack
    from astra.timing.collectives import all_gather_s, p2p_s

    said: dict[str, Any] = {"gpus": "a100-80g:16", "global_batch": 64, "seq_len": 4096}
    plan = predict("llama-3-8b", tp=8, pp=2, sequence_parallel=False, overlap_tp=False, **said).plan
    gpu, own = plan.cluster.pools[0].gpu, find_stack(name).on(plan.cluster.pools[0].gpu)
    whole = 4096 * 4096 * 2.0  # tokens x hidden x bytes
    sent_s = p2p_s(whole / 8, False, gpu) * own.communication_factor * own.pipeline_factor
    expected = sent_s + all_gather_s(whole, 8, 8, gpu, 8)
    found = stage_times(view(plan), find_stack(name)).part("link_s")
    assert found[0, 0, 0] == pytest.approx(float(expected))
    own = find_stack("megatron").on(gpu)
    sent_s = p2p_s(whole, False, gpu) * own.communication_factor * own.pipeline_factor
    plain = stage_times(view(plan), find_stack("megatron")).part("link_s")
    assert plain[0, 0, 0] == pytest.approx(float(sent_s))


def test_a_send_that_no_buffer_takes_holds_up_both_stages() -> None:
    """NCCL's has 4 MiB: a message of so many is on its way when its sender goes on, and only what
    is gathered on arrival holds up its receiver. Megatron-LM's sends are not waited for at all.
    """
    from astra.hardware.stack import find_stack

    said: dict[str, Any] = {"gpus": "a100-80g:16", "global_batch": 64, "seq_len": 4096}
    sent = {}
    for tp in (8, 4, 1):  # of 32 MiB: tokens x hidden x bytes
        plan = predict("llama-3-8b", tp=tp, pp=2, sequence_parallel=False, overlap_tp=False, **said)
        work = stage_times(view(plan.plan), find_stack("deepspeed-3d")).work
        sent[tp] = float(work.link_s[0, 0, 0]), float(work.blocking_send_s[0, 0, 0])
        assert not stage_times(view(plan.plan), find_stack("megatron")).work.blocking_send_s.any()
    assert 0 < sent[8][1] < 0.5 * sent[8][0]
    assert 0.5 * sent[4][0] < sent[4][1] < sent[4][0]
    assert sent[1][1] == pytest.approx(sent[1][0])  # nothing to gather


def test_gradients_of_tied_embeddings_cross_in_the_format_they_are_kept_in() -> None:
    """DeepSpeed reduces them as they are, fp16; in fp32 they stay as wide."""
    from msgspec.structs import replace

    from astra.hardware.stack import find_stack

    own = find_stack("deepspeed-3d")
    wide = replace(own, tied_bytes=0.0)
    said: dict[str, Any] = {"gpus": "v100:8", "global_batch": 64, "seq_len": 1024, "pp": 8}
    for precision, ratio in (("fp16", 2.0), ("fp32", 1.0)):
        plan = predict("gpt2-medium", precision=precision, grad_reduce_dtype="fp32", **said).plan
        seconds = [stage_times(view(plan), each).tied_s()[0, 0, 0] for each in (wide, own)]
        assert seconds[0] / seconds[1] == pytest.approx(ratio, rel=0.02)


def test_gradients_of_tied_embeddings_go_to_another_type_over_the_network() -> None:
    """At the pace of the slower NIC, however few GPUs there are."""
    bare = stack(settings=(), communication_factor=1.0, pipeline_factor=1.0)
    checked = 0
    for plan in some_plans.mixed_plans("gemma-2-2b"):
        (pipeline, *others), cluster = plan.pipelines, plan.cluster
        ends = [pipeline.segments[0], pipeline.segments[-1]]
        if others or ends[0].tp != ends[1].tp:
            continue
        gpus = [next(pool.gpu for pool in cluster.pools if pool.gpu.name == e.gpu) for e in ends]
        tp = ends[0].tp
        payload = plan.model.vocab * plan.model.hidden / tp * 4.0
        expected = p2p_s(payload, False, gpus[0], gpus[1], tp * plan.cp * pipeline.replicas)
        found = stage_times(view(plan), bare).tied_s()[0, [0, -1], 0]
        assert found == pytest.approx([float(expected)] * 2)
        checked += 1
    assert checked
