"""The answer over several GPU types as people see it."""

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console
from tests.support.answers import planned

import astra
from astra.api.answers import Answer
from astra.report.answer import answer_json, answer_page


def shown(answer: Answer, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    for part in answer_page(answer, None):
        console.print(part, highlight=False, markup=False)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.slow
def test_a_mixed_answer_draws_its_pipeline_and_says_what_it_is_worth() -> None:
    answer = planned("llama-3-8b", gpus="h100:8,a100-80g:8", global_batch=64, seq_len=4096)
    assert answer.best is not None and answer.mixed is not None
    page = shown(answer)
    lines = page.splitlines()
    start = next(row for row, line in enumerate(lines) if line.startswith("stage GPU"))
    drawn = lines[start + 1 : start + 1 + len(answer.mixed.stages)]
    for stage, line in zip(answer.mixed.stages, drawn, strict=True):
        assert stage.gpu in line and f" {stage.layers} " in line and stage.recompute in line
        assert f"{stage.filled_fraction:.0%}" in line
    for name in answer.mixed.alone_step_s:
        assert f"{name} alone: " in page
    words = " ".join(page.split())
    assert "it is the best found" in words and "Proven of each type alone." in words
    assert "Megatron-LM launches it; the best of FlagScale takes" in words
    open_one = msgspec.structs.replace(answer.mixed, gap_fraction=0.003)
    words = " ".join(shown(msgspec.structs.replace(answer, mixed=open_one)).split())
    assert "no such pipeline is faster by more than 0.3%" in words
    gap = answer_json(answer)["mixed"]["gap_fraction"]
    assert gap is None or 0 <= gap < 0.1


@pytest.mark.slow
def test_a_narrow_terminal_cuts_neither_names_of_plans_nor_numbers() -> None:
    """Bars are what gives way."""
    workload: dict[str, Any] = {"global_batch": 512, "seq_len": 4096, "settings": ["tp=2,4"]}
    workload |= {"runtime": "flagscale", "risk": "none"}
    answer = astra.plan("llama-3-70b", gpus="h100:64,a100-80g:64", top=4, **workload)
    assert any("recompute none|full" in plan.summary for plan in answer.plans)
    page = shown(answer, 70)
    assert "…" not in page and "..." not in page
    words = page.replace("\n", " ").split()
    for plan in answer.plans:
        assert all(word in words for word in plan.summary.split())


@pytest.mark.slow
@pytest.mark.parametrize("width", [100, 70])
def test_a_mixed_interleaved_pipeline_shows_the_chunks_of_every_stage(width: int) -> None:
    workload: dict[str, Any] = {"global_batch": 64, "seq_len": 4096, "settings": ["vpp=3"]}
    answer = planned("llama-3-8b", gpus="h100:8,a100-80g:8", runtime="megatron", **workload)
    assert answer.best is not None and answer.mixed is not None
    assert len(answer.best.gpus) == 2
    page = shown(answer, width)
    lines = page.splitlines()
    start = next(row for row, line in enumerate(lines) if line.startswith("stage GPU"))
    assert "chunks" in lines[start]
    for stage, line in zip(answer.mixed.stages, lines[start + 1 :], strict=False):
        assert len(stage.chunks) == 3 and sum(stage.chunks) == stage.layers
        alike = len(set(stage.chunks)) == 1
        assert (f" 3x{stage.chunks[0]} " if alike else f"2x{max(stage.chunks)}") in line
    assert "--to megatron" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"max_gpus": 12}, "the cap of 12 GPUs allows no more."),
        (
            {"max_gpus": 13, "settings": ["tp=4"]},
            "the cap of 13 GPUs allows 1 more; no plan that uses them saves enough to be worth "
            "them.",
        ),
        ({"gpus": "h100:12,a100-80g:9"}, "GPUs are used 1, 2, 4 or whole nodes at a time."),
        (
            {"gpus": "h100:12,a100-80g:1"},
            "4 H100-80GB-SXM because GPUs are used 1, 2, 4 or whole nodes at a time; no plan that "
            "uses the others saves enough to be worth them.",
        ),
        ({"objective": "gpus", "settings": ["tp=2", "mb=1"]}, "the fewest GPUs were asked for."),
        ({"gpus": "h100:8,a100-80g:1"}, "no plan that uses them saves enough to be worth them."),
        ({"gpus": "h100:8,a100-80g:1", "risk": "none"}, "no plan that uses them was faster."),
    ],
)
def test_idle_gpus_say_what_holds_them_back(more: dict[str, Any], said: str) -> None:
    workload = {"gpus": "h100:8,a100-80g:8", "global_batch": 64, "seq_len": 4096, "top": 1}
    workload["settings"] = ["mb=1", "cp=1", "sharding=optimizer"]
    page = " ".join(shown(astra.plan("llama-3-8b", **{**workload, **more})).split())
    idle = page[page.index("Idle: ") :]
    assert idle.split("; ", 1)[1].startswith(said)


def test_types_that_no_plan_can_use_are_not_called_slow() -> None:
    workload: dict[str, Any] = {"global_batch": 64, "seq_len": 4096, "top": 1}
    page = shown(astra.plan("llama-3-8b", gpus="h100:8,t4:16", **workload))
    assert "T4 is left out: it has no bf16 units" in page and "Idle:" not in page
    page = shown(astra.plan("llama-3-8b", gpus="h100:12,t4:16", **workload))
    assert "Idle: 4 H100-80GB-SXM; GPUs are used" in page


def test_what_changes_nothing_is_said() -> None:
    workload: dict[str, Any] = {"global_batch": 64, "seq_len": 4096, "top": 1}
    page = shown(astra.plan("llama-3-8b", gpus="h100:8", exact=True, **workload))
    assert "note: exact: on one GPU type every search is proven without it" in page
