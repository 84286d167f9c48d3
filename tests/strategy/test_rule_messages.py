"""A refused plan names the field to change, with numbers that are truly at odds."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.uniform_plans import uniform_plan

from astra.errors import InputError
from astra.files import convert
from astra.hardware.gpus_option import parse_gpus
from astra.model.zoo import find_model
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.plan import Plan
from astra.strategy.rule_messages import rule_message
from astra.strategy.rules.registry import broken_rules


def plan_of(**said: Any) -> Plan:
    cluster, _ = parse_gpus("h100:16")
    settings = PlanSettings(global_batch=64, seq_len=2048, tp=2, pp=2)
    return replace(complete(settings, find_model("llama-3-8b"), cluster).plan, **said)


def sentences(plan: Plan) -> str:
    return "; ".join(rule_message(plan, rule) for rule in broken_rules(plan))


def test_a_batch_that_divides_is_not_said_to_be_indivisible() -> None:
    """64 is divisible by 2 x 4; what is wrong are the 16 micro-batches that the file still has."""
    told = sentences(plan_of(micro_batch=2))
    assert (
        "4 x 16 x 2 is not 64; pipelines[0].micro_batches would be 8 [rule batch-adds-up]" in told
    )
    assert "divisible" not in told


def test_micro_batches_of_replicas_on_several_types_are_counted_together() -> None:
    plan = uniform_plan("h100:12,h200:4", global_batch=64)
    first, second = plan.pipelines
    told = sentences(replace(plan, global_batch=128))
    assert (first.replicas, second.replicas) == (12, 4)
    assert (
        "16 x 4 x 1 is not 128; pipelines[0].micro_batches and pipelines[1].micro_batches would "
        "be 8 [rule batch-adds-up]" in told
    )


def test_a_batch_that_does_not_divide_is() -> None:
    told = sentences(plan_of(micro_batch=3))
    assert "divisible" in told and "(global_batch 64, micro_batch 3, dp 4)" in told


def test_a_missing_recipe_is_named_as_missing() -> None:
    assert "(no fp8_recipe, precision fp8)" in sentences(plan_of(precision="fp8"))


def test_layers_of_stages_and_model_are_told_apart() -> None:
    plan = plan_of()
    (pipeline,) = plan.pipelines
    (segment,) = pipeline.segments
    short = replace(pipeline, segments=(replace(segment, layers=(16, 15)),))
    assert "(stages hold 16+15, the model has 32)" in sentences(replace(plan, pipelines=(short,)))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"precision": "fp9"}, "precision = 'fp9': not known. Use bf16, fp16, fp8, fp4 or fp32."),
        ({"moment_dtypes": ["fp32", "x"]}, "Use fp32, bf16, fp16 or fp8."),
    ],
)
def test_a_wrong_word_gets_the_list_of_right_ones(table: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as caught:
        convert(msgspec.to_builtins(plan_of()) | table, Plan, "p.json")
    assert words in str(caught.value)
