"""What of a given plan no search tries is said, with the option that would make it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import astra
from astra.notes import NoteCode
from astra.report.words import words
from astra.strategy.outside_space import outside_space, own_space
from astra.strategy.plan import Plan
from astra.strategy.plans import plan_at, task_of
from astra.strategy.space import Space, parse_set
from astra.strategy.variants import enumerate_plans

JOB: dict[str, Any] = {"global_batch": 64, "seq_len": 4096}


def plan_of(model: str, gpus: str, **settings: Any) -> Plan:
    return astra.predict(model, gpus=gpus, **{**JOB, **settings}).plan


def said_of(plan: Plan) -> dict[str, str]:
    """All settings that lie outside."""
    return {
        name: value
        for each in outside_space(plan)
        for name, value in each.facts["settings"].items()
    }


def space_with_options(plan: Plan) -> Space:
    """The space that the options of the notes make."""
    options = " ".join(each.facts["option"] or "" for each in outside_space(plan))
    plain = own_space(plan)
    workload = replace(plain.workload, use_all="--use-all" in options)
    return replace(
        plain, workload=workload, settings=parse_set(re.findall(r"--set (\S+)", options))
    )


@pytest.mark.parametrize(
    ("model", "gpus", "settings"),
    [
        ("llama-3-8b", "h100:8", {}),
        ("llama-3-8b", "h100:16", {"tp": 2, "pp": 2, "runtime": "megatron"}),
        ("llama-3-70b", "h100:64", {"tp": 8, "pp": 4, "vpp": 5}),
        ("llama-3-8b", "h100:16", {"runtime": "fsdp"}),
        ("llama-3-8b", "h100:16", {"runtime": "deepspeed"}),
        ("llama-3-8b", "h100:16", {"precision": "fp8"}),
        ("mixtral-8x7b", "h100:64", {"tp": 2, "ep": 8}),
        ("llama-3-8b", "h100:8", {"recompute": "full:block:32"}),  # another name of full:uniform:1
    ],
)
def test_what_an_expert_would_set_is_in_the_space(
    model: str, gpus: str, settings: dict[str, Any]
) -> None:
    assert outside_space(plan_of(model, gpus, **settings)) == ()


@pytest.mark.parametrize(
    ("settings", "outside"),
    [
        ({"global_batch": 256, "micro_batch": 32}, {"micro_batch": "32"}),
        ({"cp": 3, "seq_len": 3072, "gpus": "h100:48", "tp": 2}, {"cp": "3"}),
        ({"gpus": "h100:12", "tp": 2, "global_batch": 36}, {"dp": "6"}),
        ({"recompute": "selective"}, {"recompute": "selective"}),
        ({"recompute": "selective", "attention": "unfused"}, {"attention": "unfused"}),
        ({"sharding": "none"}, {"sharding": "none"}),
        ({"tp": 2, "overlap_tp": False}, {"overlap_tp": "false"}),
        (
            {"tp": 4, "sequence_parallel": False, "overlap_tp": False},
            {"sequence_parallel": "false", "overlap_tp": "false"},
        ),
        ({"model": "mixtral-8x7b", "gpus": "h100:64", "tp": 4, "ep": 8, "etp": 2}, {"etp": "2"}),
        ({"grad_reduce_dtype": "bf16"}, {"grad_reduce_dtype": "bf16"}),
        ({"offload_optimizer_fraction": 0.3}, {"offload_optimizer_fraction": "0.3"}),
        (
            {"model": "mixtral-8x7b", "gpus": "h100:64", "ep": 8, "capacity_factor": 1.5},
            {"capacity_factor": "1.5"},
        ),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_each_option_includes_what_lies_outside(
    settings: dict[str, Any], outside: dict[str, str]
) -> None:
    named = {"model": "llama-3-8b", "gpus": "h100:8", **settings}
    plan = plan_of(named.pop("model"), named.pop("gpus"), **named)
    assert said_of(plan) == outside
    assert outside_space(plan, space_with_options(plan)) == ()


def test_the_space_with_the_options_holds_the_plan() -> None:
    """Against the enumerator: the very plan is among all of its space."""
    plan = plan_of(
        "gpt2", "h100:4", global_batch=128, seq_len=1024, micro_batch=32, recompute="selective"
    )
    names = {"tp": (plan.tp,), "pp": (1,), "dp": (plan.dp,)}

    def holds(space: Space) -> bool:
        narrow = replace(space, settings={**space.settings, **names}, memo={})
        return any(
            plan_at(table, row, task_of(plan)) == plan
            for table in enumerate_plans(narrow)
            for row in range(len(table))
        )

    assert not holds(own_space(plan))
    assert holds(space_with_options(plan))


def test_a_split_that_is_not_searched_has_no_option() -> None:
    plan = plan_of("llama-3-8b", "h100:32", tp=2, pp=4, layers_per_stage=(7, 8, 9, 8))
    (found,) = outside_space(plan)
    assert found.facts["settings"] == {"layers": "7, 8, 9, 8"} and found.facts["option"] is None
    assert words(found).endswith("no option includes it")


def test_why_is_said_in_the_words_of_the_space() -> None:
    (found,) = outside_space(plan_of("llama-3-8b", "h100:8", global_batch=256, micro_batch=32))
    assert words(found) == (
        "micro_batch 32: not searched (divisors of the batch up to 16); "
        "--set micro_batch=32 includes it"
    )


def test_unfused_attention_makes_its_recompute_worth_trying() -> None:
    """As Korthikanti et al. 2022 published: the space that asks for it tries it unasked."""
    plan = plan_of("llama-3-8b", "h100:8", recompute="selective", attention="unfused")
    space = replace(own_space(plan), settings={"attention": ("unfused",)})
    assert outside_space(plan, space) == ()


def test_import_predict_and_explain_say_it(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 "
        "--num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --bf16 "
        "--micro-batch-size 32 --global-batch-size 256 --vocab-size 1000 "
        "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather\n"
    )
    job = astra.import_job(script)
    (text,) = job.outside_space
    assert text.startswith("micro_batch 32: not searched")
    assert job.notes[-1].code is NoteCode.OUTSIDE_SPACE and text not in job.assumed
    assert text in astra.predict_plan(job.plan).provenance.notes
    assert text in astra.explain(job.plan, quick=True).notes


def test_explain_knows_what_the_search_was_widened_by() -> None:
    answer = astra.plan("gpt2", gpus="h100:8", global_batch=256, seq_len=1024, micro_batch=32, tp=1)
    assert answer.best is not None and answer.best.plan.micro_batch == 32
    assert not [text for text in answer.explain(quick=True).notes if "not searched" in text]
