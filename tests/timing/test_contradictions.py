"""Predictions that contradict the hardware are found in the data, and told where they decide."""

from dataclasses import replace as with_fields

import msgspec
import pytest

import astra
from astra.api.contradicted import MOST_NOTES, with_contradictions
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Gpu
from astra.hardware.gpus_option import parse_gpus
from astra.hardware.stack import Stack, StackSetting, find_stack
from astra.model.zoo import find_model
from astra.notes import Note, NoteCode
from astra.search.query import Query
from astra.search.solve import solve
from astra.strategy.plan import Plan
from astra.timing.contradictions import contradictions, has_no_less, on_type, relatives_of

PLAIN = msgspec.structs.replace(find_stack("megatron"), settings=())


def gpu_of(name: str) -> Gpu:
    return find_gpu(name)[0]


def plan_on(gpus: str, model: str = "llama-3-8b") -> Plan:
    return astra.predict(model, gpus=gpus, tp=2, global_batch=64, seq_len=4096).plan


def stack_with(*settings: StackSetting) -> Stack:
    return msgspec.structs.replace(PLAIN, settings=settings)


def notes_of(stack: Stack, gpus: str, model: str = "llama-3-8b") -> list[Note]:
    cluster, _ = parse_gpus(gpus)
    query = Query(
        model=find_model(model),
        cluster=cluster,
        stack=stack,
        global_batch=32,
        seq_len=4096,
        settings={"tp": (2,), "pp": (1,)},
        top=1,
    )
    notes = with_contradictions(solve(query)).notes
    return [each for each in notes if each.code is NoteCode.CONTRADICTS_HARDWARE]


@pytest.mark.parametrize(
    ("gpu", "other", "expected"),
    [
        ("h200", "h100", True),
        ("h100", "h200", False),
        ("h100", "h800", True),
        ("h20", "h100", False),  # more memory, fewer FLOP/s
        ("b300", "b200", True),
        ("b200", "mi250x", False),  # of another maker
        ("a10", "t4", False),  # the latter has no bf16
    ],
)
def test_more_of_everything_is_of_every_figure(gpu: str, other: str, expected: bool) -> None:
    assert has_no_less(gpu_of(gpu), gpu_of(other), "bf16") is expected


def test_a_gpu_that_a_stack_makes_slower_than_its_lesser_relative_is_found() -> None:
    h100, h200 = gpu_of("h100"), gpu_of("h200")
    plan = plan_on("h200:16")
    slow = stack_with(StackSetting(gpu="H200-SXM", compute_factor=1.5, runs=1))
    (found,) = contradictions(plan, slow, [h200], [h100, h200])
    (usual,) = contradictions(plan, stack_with(), [h200], [h100, h200]) or (None,)
    assert (found.work, found.slower, found.faster) == ("kernels", "H200-SXM", "H100-80GB-SXM")
    assert found.ratio == pytest.approx(1.5 * (usual.ratio if usual else 1.0), rel=0.08)


def test_one_link_at_two_speeds_is_found_in_either_direction() -> None:
    b200, b300 = gpu_of("b200"), gpu_of("b300")
    plan = plan_on("b200:16")
    for gpu, slower in (("B200", "B300"), ("B300", "B200")):
        stack = stack_with(StackSetting(gpu=gpu, tensor_factor=0.3, runs=1))
        works = {
            (each.slower, each.same_link or each.slower == "B300")
            for each in contradictions(plan, stack, [b200], [b300])
            if each.work == "tensor"
        }
        assert works == {(slower, True)}


def test_traffic_between_experts_concerns_models_with_experts_alone() -> None:
    slow = stack_with(StackSetting(gpu="H200-SXM", dispatch_factor=1.5, runs=1))
    for model, works in (("llama-3-8b", set()), ("mixtral-8x7b", {"expert"})):
        plan = plan_on("h200:16", model)
        found = contradictions(plan, slow, [gpu_of("h200")], [gpu_of("h100")])
        assert {each.work for each in found} - {"kernels"} == works


def test_relatives_are_of_one_maker_and_generation() -> None:
    names = {gpu.name for gpu in relatives_of(gpu_of("h200"))}
    assert {"H100-80GB-SXM", "H20"} <= names
    assert not names & {"H200-SXM", "A100-80GB-SXM", "B200", "MI300X"}


def test_a_plan_lies_on_the_other_type_as_a_whole() -> None:
    plan = plan_on("h200:16")
    moved = on_type(plan, gpu_of("h100"))
    assert moved.gpus == {"H100-80GB-SXM": 16}
    assert on_type(moved, plan.cluster.pools[0].gpu).pipelines == plan.pipelines


def test_an_answer_says_what_contradicts_its_gpu() -> None:
    slow = stack_with(StackSetting(gpu="H200-SXM", compute_factor=1.5, runs=1))
    (told,) = notes_of(slow, "h200:8")
    assert told.facts["slower"] == "H200-SXM" and told.facts["work"] == "kernels"
    assert 0 < told.facts["step_fraction"] < 1
    assert notes_of(slow, "h100:8") == []  # the lesser relative is as it should be


def test_of_several_types_the_pair_that_is_compared_is_told() -> None:
    slow = stack_with(StackSetting(gpu="H200-SXM", compute_factor=1.5, runs=1))
    told = notes_of(slow, "h100:8,h200:8")
    assert {(each.facts["slower"], each.facts["faster"]) for each in told} == {
        ("H200-SXM", "H100-80GB-SXM")
    }


def test_two_lines_at_most() -> None:
    bad = stack_with(
        StackSetting(
            gpu="H200-SXM", compute_factor=3.0, communication_factor=3.0, tensor_factor=2.0, runs=1
        )
    )
    assert len(notes_of(bad, "h200:16", "mixtral-8x7b")) == MOST_NOTES


def test_what_nothing_fits_has_no_contradiction() -> None:
    cluster, _ = parse_gpus("l4:1")
    query = Query(
        model=find_model("llama-3-70b"), cluster=cluster, stack=PLAIN, global_batch=8, seq_len=4096
    )
    found = solve(with_fields(query, suggest=False))
    assert with_contradictions(found) is found


def test_json_has_code_and_sentence_side_by_side() -> None:
    answer = astra.plan("llama-3-8b", gpus="b200:8", global_batch=32, seq_len=4096, tp=2, pp=1)
    request = answer.request
    codes = [each.code for each in request.note_codes]
    place = codes.index(NoteCode.CONTRADICTS_HARDWARE)
    assert "on B200 as on B300, over the same link" in request.notes[place]
