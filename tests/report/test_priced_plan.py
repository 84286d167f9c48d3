"""A priced plan on paper: narrow, plain where it is piped, and true to its numbers."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cost import some_plans

import astra
from astra.cli.printing import print_parts
from astra.cost.price import price_plan, price_plans
from astra.cost.step import PARTS
from astra.hardware.cluster import Gpu
from astra.report.answer import answer_page
from astra.report.plan_page import plan_page
from astra.report.priced_plan import (
    MEMORY_COLUMNS,
    MEMORY_LEGEND,
    PART_NAMES,
    TIME_BAR_WIDTH,
    export_hint,
    priced_json,
    seconds,
    sentence,
)
from astra.strategy.plan import Runtime

ASTRA = Path(sys.executable).parent / "astra"
WIDE = 80


@pytest.fixture(autouse=True)
def narrow_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDE))


def lines(priced: astra.PricedPlan, capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_parts(*plan_page(priced))
    return capsys.readouterr().out.splitlines()


def gpt3(pp: int, **fields: Any) -> astra.PricedPlan:
    job: dict[str, Any] = {"tp": 8, "pp": pp, "global_batch": 512, "seq_len": 2048, **fields}
    return astra.predict("gpt3-175b", gpus=f"h100:{8 * pp}", **job)


def test_bars_of_memory_have_their_legend_in_plan_as_in_predict() -> None:
    answer = astra.plan("llama-3-8b", gpus="h100:8", global_batch=64, seq_len=4096, top=1)
    for page in (plan_page(answer.plans[0]), answer_page(answer, None)):
        title = next(n for n, part in enumerate(page) if "Memory of one GPU" in str(part))
        assert page[title + 2] == MEMORY_LEGEND
    words = [word.strip()[0].upper() for word in MEMORY_LEGEND.split(":")[0].split(",")]
    assert words == [letter for _, letter, _ in MEMORY_COLUMNS]


@pytest.mark.slow
def test_every_page_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for found in price_plans(some_plans.every_plan()[::2]):
        for line in lines(found, capsys):
            assert len(line) <= WIDE, line
            assert "\x1b" not in line and line == line.rstrip()


@pytest.mark.parametrize("pp", [1, 8, 64])
def test_a_page_has_bars_and_every_stage(pp: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = gpt3(pp)
    shown = lines(found, capsys)
    time = [line for line in shown if re.search(r"% +#+$", line)]
    assert time and any("forward" in line for line in time)
    memory = [line.split() for line in shown if re.search(r"\d% ?[WGOALBR]*>?$", line)]
    covered: list[int] = []
    for first in (row[0] for row in memory if re.fullmatch(r"\d+(-\d+)?", row[0])):
        ends = [int(number) for number in first.split("-")]
        covered += range(ends[0], ends[-1] + 1)
    assert covered == list(range(pp))
    assert any(re.search(r"[WGOALBR]{1,}>?$", row[-1]) for row in memory)
    assert len(shown) < pp + 40


def test_bars_of_the_time_are_as_long_as_their_share(capsys: pytest.CaptureFixture[str]) -> None:
    found = gpt3(8)
    for line in lines(found, capsys):
        bar = re.search(r"([\d.]+)% +(#+)$", line)
        if bar:
            assert len(bar[2]) == pytest.approx(float(bar[1]) / 100 * TIME_BAR_WIDTH, abs=0.6)


def test_a_plan_that_does_not_fit_says_so_first_and_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = gpt3(1)
    assert not found.memory.fits
    shown = "\n".join(lines(found, capsys))
    assert "DOES NOT FIT" in sentence(found) and shown.startswith("gpt3-175b on 8 H100")
    assert re.search(r"warning +does not fit: stage 0 needs", shown)
    assert re.search(r"try +`astra plan` with the same model", shown)


def test_a_plan_just_over_the_margin_is_told_from_one_over_the_memory() -> None:
    """`DOES NOT FIT (probability 63%)` would read as a chance of not fitting."""
    found = gpt3(1)
    memory = msgspec.structs.replace(
        found.memory, reserved_bytes=77 * 2**30, usable_bytes=79 * 2**30, fit_probability=0.63
    )
    close = sentence(msgspec.structs.replace(found, memory=memory))
    words = "77.0 of 79.0 GiB, less free than the margin (it would run with probability 63%)"
    assert f"it DOES NOT FIT: {words}." in close
    assert "margin" not in sentence(found)


@pytest.mark.parametrize(
    ("runtime", "target"),
    [("megatron", "megatron"), ("flagscale", "megatron"), ("fsdp", "torchtitan"),
     ("deepspeed", "deepspeed"), ("any", None)],
)  # fmt: skip
def test_the_next_step_names_a_framework_that_runs_such_plans(
    runtime: Runtime, target: str | None
) -> None:
    found = gpt3(1)
    plan = msgspec.structs.replace(found.plan, runtime=runtime)
    hint = export_hint(msgspec.structs.replace(found, plan=plan, rank=2), "r.json")
    assert hint == ([f"  astra export r.json --rank 2 --to {target} --out job"] if target else [])


def test_each_gpu_type_is_as_full_as_its_own_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """Two pipelines over two types, one of them with a third of the memory."""
    plan = next(each for each in some_plans.mixed_plans("llama-3-8b") if len(each.pipelines) == 2)

    def smaller(gpu: Gpu) -> Gpu:
        third = gpu.usable_bytes / (3 if gpu.name.startswith("A100") else 1)
        return msgspec.structs.replace(gpu, usable_bytes=third)

    plan = some_plans.with_gpus(plan, smaller)
    found = price_plan(plan)
    usable = {pool.gpu.name: pool.gpu.usable_bytes for pool in plan.cluster.pools}
    shown = lines(found, capsys)
    for row in found.memory.stages:
        label = f"{row.pipeline + 1}.{row.stage}"
        matching = [line for line in shown if line.split()[:1] == [label]]
        if matching:  # else folded into the line of an equal stage
            (line,) = matching
            assert row.gpu in line and f" {row.reserved_bytes / usable[row.gpu]:.0%}" in line
    assert sum(line.split()[0].startswith(("1.", "2.")) for line in shown if line) >= 4
    assert "GiB of 79.1 and 26.4" in "\n".join(shown)


def test_piped_output_is_plain_and_narrow() -> None:
    words = ("predict", "llama-3-8b", "--gpus", "h100:8", "--tp", "2", "--global-batch", "64")
    out = subprocess.run([ASTRA, *words], capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in out and "#" in out
    assert max(map(len, out.splitlines())) <= WIDE


def test_every_part_of_a_step_has_a_name() -> None:
    assert tuple(PART_NAMES) == PARTS


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.5, "1,234 s"),
        (71.49, "71.5 s"),
        (1.1, "1.1 s"),
        (0.1, "0.1 s"),
        (0.01234, "12.3 ms"),
        (0.0, "0 ms"),
    ],
)
def test_seconds_have_three_figures_and_a_unit(value: float, text: str) -> None:
    assert seconds(value) == text


def test_json_is_the_answer_itself() -> None:
    found = gpt3(8)
    assert msgspec.convert(priced_json(found), astra.Prediction) == found


def test_a_search_says_what_its_model_left_open() -> None:
    """That an encoder is left out must not be found only by those who read the JSON."""
    said = "only the text decoder is planned"
    model = msgspec.structs.replace(astra.find_model("llama-3-8b"), assumed=(said,))
    answer = astra.plan(model, gpus="h100:8", global_batch=8, seq_len=512, top=2)
    assert [part for part in answer_page(answer, None) if part == f"assumed: {said}"]


@pytest.mark.parametrize("wide", [30, 40, 50, 60, 70, 80, 100])
def test_no_figure_is_cut_however_narrow_the_terminal(
    wide: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(wide))
    answer = astra.plan("llama-3-8b", gpus="h100:8", global_batch=8, seq_len=512, top=3)
    print_parts(*answer_page(answer, None))
    shown = capsys.readouterr().out
    assert "…" not in shown
    for plan in answer.plans:
        row = f"{plan.rank} +{seconds(plan.step_s)} +{plan.tokens_per_s:,.0f} "
        (line,) = [line for line in shown.splitlines() if re.match(rf" *{row}", line)]
        assert line.rstrip() and "tp" in line  # the plan itself is there too
    parts = answer.plans[0].step_parts_s.items()
    for name, value in parts:
        if value >= 0.0005 * answer.plans[0].step_s:
            assert re.search(rf"{re.escape(PART_NAMES[name])} +{seconds(value)}", shown)


def test_nothing_is_shown_as_a_trillionth_of_a_second() -> None:
    """What sums of floats leave of a bubble that is not there."""
    assert seconds(4.44e-16) == seconds(-3.55e-15) == seconds(0.0) == "0 ms"
