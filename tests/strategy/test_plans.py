"""A plan as people write it and as a row of a table: the same thing twice."""

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategy.mixed_plans import mixed_plan
from tests.support.random_plans import random_plan

from astra.errors import InputError
from astra.model.zoo import find_model
from astra.strategy.plan import Pipeline, Plan, Segment, check_structure
from astra.strategy.plans import (
    COLUMNS,
    OFFLOAD_MODULES,
    PLAN_AXES,
    SLOT_COLUMNS,
    UNUSED,
    Plans,
    column_dtype,
    concatenate,
    plan_at,
    plans_of,
    task_of,
)
from astra.strategy.recompute import Recompute

MODELS = ("llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b", "qwen3-30b-a3b")
seeds = st.integers(0, 10**9)

# The fields of "A plan" in the description of the JSON, in its order.
PLAN_FIELDS = """
    model cluster stack runtime pipelines chunk_layers mtp_layers micro_batch global_batch
    seq_len cp cp_comm_type ep etp vpp schedule microbatch_group rank_order sharding shard_group
    sequence_parallel attention precision fp8_recipe main_grads_dtype grad_reduce_dtype
    master_dtype moment_dtypes overlap_grad_reduce overlap_param_gather overlap_p2p overlap_tp
    overlap_ep offload_optimizer_fraction offload_activations offload_layers dispatcher
    capacity_factor
    cuda_graph
"""


def uniform_plan(seed: int) -> Plan:
    return random_plan(seed, find_model(MODELS[seed % len(MODELS)]), ("h100", "a100-80g", "b200"))


def normal(plan: Plan) -> Plan:
    """The plan in the one spelling that a table gives back."""
    pipelines = tuple(
        msgspec.structs.replace(pipeline, segments=_merged(plan, pipeline))
        for pipeline in plan.pipelines
    )
    modules = tuple(name for name in OFFLOAD_MODULES if name in plan.offload_activations)
    one_depth = len({pipeline.stages for pipeline in plan.pipelines}) == 1
    group = plan.microbatch_group or (plan.pp if one_depth else None)
    return msgspec.structs.replace(
        plan,
        pipelines=pipelines,
        offload_activations=modules,
        microbatch_group=group if plan.vpp > 1 else None,
    )


def _merged(plan: Plan, pipeline: Pipeline) -> tuple[Segment, ...]:
    """Segments without what equals the plan's, neighbours of one cut made one."""
    found: list[Segment] = []
    for segment in pipeline.segments:
        bare = msgspec.structs.replace(
            segment,
            recompute=str(Recompute.parse(segment.recompute)),
            dp=None if segment.dp == pipeline.replicas else segment.dp,
            ep=None if segment.ep == plan.ep else segment.ep,
            etp=None if segment.etp == plan.etp else segment.etp,
            micro_batch=None if segment.micro_batch == plan.micro_batch else segment.micro_batch,
        )
        last = found[-1] if found else None
        blank = {"stages": 1, "layers": ()}
        if last and msgspec.structs.replace(last, **blank) == msgspec.structs.replace(
            bare, **blank
        ):
            layers = last.layers + bare.layers
            found[-1] = msgspec.structs.replace(last, stages=len(layers), layers=layers)
        else:
            found.append(bare)
    return tuple(found)


def assert_same_table(one: Plans, other: Plans) -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


@given(seeds)
@settings(max_examples=150, deadline=None)
def test_a_mixed_plan_comes_back_from_a_table(seed: int) -> None:
    plan = mixed_plan(seed)
    assert plan_at(plans_of([plan]), 0, task_of(plan)) == normal(plan)


@given(seeds)
@settings(max_examples=100, deadline=None)
def test_a_plan_of_one_gpu_type_comes_back_from_a_table(seed: int) -> None:
    plan = uniform_plan(seed)
    assert plan_at(plans_of([plan]), 0, task_of(plan)) == normal(plan)


@given(st.lists(seeds, min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_every_plan_of_a_table_comes_back_from_its_row(picked: list[int]) -> None:
    plans = [mixed_plan(seed) for seed in picked]
    table = plans_of(plans)
    assert len(table) == len(plans)
    for row, plan in enumerate(plans):
        assert plan_at(table, row, task_of(plan)) == normal(plan)
        assert plan_at(table, row - len(plans), task_of(plan)) == normal(plan)


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_what_the_table_gives_back_makes_the_same_table(seed: int) -> None:
    plan = mixed_plan(seed)
    again = plan_at(plans_of([plan]), 0, task_of(plan))
    assert_same_table(plans_of([plan]), plans_of([again]))


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_a_plan_survives_json(seed: int) -> None:
    plan = mixed_plan(seed) if seed % 2 else uniform_plan(seed)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    assert msgspec.convert(json.loads(msgspec.json.encode(plan)), Plan) == plan


def test_json_fields_of_a_plan_are_those_of_the_contract() -> None:
    written = json.loads(msgspec.json.encode(mixed_plan(0)))
    assert list(written) == PLAN_FIELDS.split()
    pipeline = written["pipelines"][0]
    assert list(pipeline) == ["replicas", "micro_batches", "segments"]
    assert sorted(pipeline["segments"][0]) == sorted(
        ["gpu", "stages", "layers", "tp", "recompute", "dp", "ep", "etp", "micro_batch"]
    )


def test_documentation_names_every_column_that_is_called_differently() -> None:
    text = (Path(__file__).parents[2] / "docs" / "plans.md").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", text))
    own = {name for name in COLUMNS if name not in PLAN_FIELDS.split()}
    assert own <= words


def test_a_row_that_is_not_there_is_an_input_error() -> None:
    plan = mixed_plan(1)
    for row in (1, -2, 10**6):
        with pytest.raises(InputError, match="the table has 1"):
            plan_at(plans_of([plan]), row, task_of(plan))


def test_columns_have_their_axes_and_types() -> None:
    table = plans_of([mixed_plan(seed) for seed in range(20)])
    pipelines, slots, plans = table.stages.shape
    shapes = {1: (plans,), 2: (pipelines, plans), 3: (pipelines, slots, plans)}
    for name, column in table.columns().items():
        assert column.shape == shapes[PLAN_AXES.get(name, 1)], name
        assert column.dtype == column_dtype(name), name


def test_unused_slots_hold_no_stage_and_degrees_of_one() -> None:
    table = plans_of([mixed_plan(seed) for seed in range(40)])
    empty = table.stages == 0
    assert empty.any()
    for name in SLOT_COLUMNS:
        assert (getattr(table, name)[empty] == UNUSED.get(name, 1)).all(), name
    assert (table.tp[empty] == 1).all() and (table.layers[empty] == 0).all()


@given(st.lists(seeds, min_size=2, max_size=5), st.data())
@settings(max_examples=40, deadline=None)
def test_take_gives_the_rows_asked_for_in_that_order(
    picked: list[int], data: st.DataObject
) -> None:
    plans = [mixed_plan(seed) for seed in picked]
    table = plans_of(plans)
    rows = data.draw(st.lists(st.integers(0, len(plans) - 1), min_size=1, max_size=8))
    taken = table.take(rows)
    found = [plan_at(taken, i, task_of(plans[row])) for i, row in enumerate(rows)]
    assert found == [normal(plans[row]) for row in rows]


def test_take_understands_masks_slices_and_arrays() -> None:
    table = plans_of([mixed_plan(seed) for seed in range(6)])
    mask = np.array([True, False, False, True, False, True])
    assert_same_table(table.take(mask), table.take([0, 3, 5]))
    assert_same_table(table.take(slice(1, 4)), table.take(np.array([1, 2, 3])))
    assert len(table.take([])) == 0


@given(st.lists(st.lists(seeds, min_size=1, max_size=3), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_concatenated_tables_hold_the_plans_of_each(groups: list[list[int]]) -> None:
    tables = [plans_of([mixed_plan(seed) for seed in group]) for group in groups]
    joined = concatenate(tables)
    plans = [mixed_plan(seed) for group in groups for seed in group]
    assert len(joined) == len(plans)
    for row, plan in enumerate(plans):
        assert plan_at(joined, row, task_of(plan)) == normal(plan)
    assert_same_table(joined, plans_of(plans))


def test_concatenation_pads_slots_and_pipelines() -> None:
    narrow = next(p for p in map(mixed_plan, range(999)) if p.pp == 1)
    wide = next(p for p in map(mixed_plan, range(999)) if len(p.pipelines) == 3)
    joined = concatenate([plans_of([narrow]), plans_of([wide])])
    assert joined.stages.shape[0] == 3
    assert joined.stages.shape[1] == plans_of([wide]).stages.shape[1] > 1
    assert joined.stages[:, :, 0].sum() == 1
    assert joined.replicas[1:, 0].tolist() == [0, 0]


def test_concatenation_numbers_chunkings_anew_and_keeps_each_once() -> None:
    cut = [p for p in map(mixed_plan, range(999)) if p.chunk_layers is not None][:3]
    plain = next(p for p in map(mixed_plan, range(999)) if p.chunk_layers is None)
    first, second = plans_of([cut[0], plain]), plans_of([cut[1], cut[0], cut[2]])
    joined = concatenate([first, second])
    assert joined.chunking.tolist() == [0, -1, 1, 0, 2]
    assert joined.chunk_layers == tuple(plan.chunk_layers for plan in cut)


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_gpus_and_stages_of_a_row_are_those_of_its_plan(seed: int) -> None:
    plan = mixed_plan(seed)
    table = plans_of([plan])
    assert int(table.gpus[0]) == sum(plan.gpus.values())
    held = [pipeline.stages for pipeline in plan.pipelines]
    assert table.pp[:, 0].tolist() == held
    assert table.total_layers[:, 0].tolist() == [sum(p.layers) for p in plan.pipelines]


def test_gpus_are_counted_per_type_and_segment() -> None:
    """By hand: 2 stages x tp 2 x cp 2 x 3 replicas, and a mesh of its own with dp 6."""
    plan = next(p for p in map(mixed_plan, range(999)) if len(p.pipelines) == 1)
    gpus = [pool.gpu.name for pool in plan.cluster.pools]
    segments = (
        Segment(gpu=gpus[0], stages=2, layers=(6, 6), tp=2),
        Segment(gpu=gpus[1], stages=1, layers=(0,), tp=1, dp=6),
        Segment(gpu=gpus[0], stages=1, layers=(0,), tp=4),
    )
    pipeline = Pipeline(replicas=3, micro_batches=1, segments=segments)
    plan = msgspec.structs.replace(plan, pipelines=(pipeline,), cp=2, chunk_layers=None)
    assert plan.gpus == {gpus[0]: 24 + 24, gpus[1]: 12}
    assert plan.dp == 3 and plan.pp == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pipelines": ()}, "pipelines is empty"),
        ({"chunk_layers": (1, 2, 3)}, "chunk_layers has 3 entries"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(change: dict[str, object], said: str) -> None:
    plan = next(p for p in map(mixed_plan, range(999)) if len(p.pipelines) == 1 and p.vpp == 2)
    with pytest.raises(InputError, match=said):
        check_structure(msgspec.structs.replace(plan, **change))


def test_a_summary_names_degrees_that_differ_and_recompute() -> None:
    plan = next(p for p in map(mixed_plan, range(999)) if len(p.pipelines[0].segments) > 2)
    tps = dict.fromkeys(s.tp for p in plan.pipelines for s in p.segments)
    assert plan.summary().startswith(f"tp {'+'.join(map(str, tps))} pp {plan.pp} dp {plan.dp}")
