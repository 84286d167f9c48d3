"""What `astra plan` makes of its goals and batches: nothing is dropped without a word."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiers import slow_after

import astra
from astra.cli.main import run
from astra.errors import InputError
from astra.fit.runs import parse_runs

SMALL: dict[str, Any] = {"gpus": "h100:16", "global_batch": 64, "seq_len": 4096}
JOB = ["plan", "llama-3-8b", "--gpus", "h100:16", "--seq-len", "8k"]


@pytest.mark.parametrize(
    ("tokens", "samples"), [("4M-tokens", 512), ("1M-tokens", 128), ("524k-tokens", 64)]
)
def test_tokens_become_a_batch_that_divides_and_say_so(
    tokens: str, samples: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*JOB, "--global-batch", tokens]) == 0
    told = capsys.readouterr()
    assert f"of {samples} x 8,192 tokens" in told.out.replace("\n", " ")
    assert f"{samples} samples of 8,192 tokens" in told.err


def test_goals_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InputError, match="use_all=True forbids it"):
        astra.plan("llama-3-8b", **SMALL, objective="gpus", use_all=True)
    with pytest.raises(InputError, match="objective='gpus'"):
        astra.plan("llama-3-8b", **SMALL, min_tokens_per_s=1000.0)


@pytest.mark.slow
def test_a_throughput_out_of_reach_is_said_and_one_within_is_kept() -> None:
    most = astra.plan("llama-3-8b", **SMALL)
    assert most.best is not None
    beyond = astra.plan("llama-3-8b", **SMALL, objective="gpus", min_tokens_per_s=1e9)
    assert any("reaches 1,000,000,000 tokens/s" in note for note in beyond.request.notes)
    floor = most.best.tokens_per_s / 2
    within = astra.plan("llama-3-8b", **SMALL, objective="gpus", min_tokens_per_s=floor)
    assert within.plans and all(plan.tokens_per_s >= floor for plan in within.plans)


MONEY = ["--objective", "money", "--tokens", "1B"]
FEWEST = ["--objective", "gpus", "--min-tokens-per-s"]
PAID = ["--price", "h100=2.5", "--tokens", "100B"]


@pytest.mark.parametrize(
    ("goals", "batches", "chosen"),
    [
        ([*PAID, "--deadline", "150"], "96,128", 96),
        ([*PAID, "--deadline", "150"], "128,96", 96),
        ([*PAID, "--deadline", "200"], "96,128", 128),  # both are in time: the cheaper
        ([*PAID, "--deadline", "120"], "128,96", 96),  # neither is: the nearer
        ([*PAID, "--deadline", "150", "--budget", "7780"], "96,128", 96),  # 0.4 % dearer, not late
        pytest.param([*FEWEST, "142000"], "24,128", 128, marks=pytest.mark.slow),  # 16, not 24 GPUs
        pytest.param([*FEWEST, "200000"], "128,96", 96, marks=pytest.mark.slow),
    ],
)
def test_of_several_batches_the_one_that_keeps_the_goals_is_the_answer(
    goals: list[str], batches: str, chosen: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "llama-3-8b", "--gpus", "h100:24", "--set", "pp=1", "--seq-len", "8192"]
    assert run([*words, *goals, "--global-batch", batches, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["request"]["global_batch"] == chosen


@pytest.mark.parametrize("shown", slow_after(1, [[], ["--json"]]))
@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--gpus", "h100:64"], 0),
        (["--gpus", "h100:2"], 3),  # nothing fits
        (["--gpus", "h100:64", "--set", "tp=3"], 3),  # no plan is left by the rules
        (["--gpus", "h100:2", "--objective", "money", *PAID], 3),
        pytest.param(["--gpus", "h100:1,a100-80g:1"], 3, marks=pytest.mark.slow),
        pytest.param(  # the nearest plan is one
            ["--gpus", "h100:16", *PAID, "--deadline", "1"], 0, marks=pytest.mark.slow
        ),
    ],
)
def test_an_answer_without_a_plan_has_exit_code_three(
    more: list[str], code: int, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    job = ["plan", "llama-3-70b", "--global-batch", "64", "--seq-len", "4096"]
    assert run([*job, *more, *shown]) == code
    told = capsys.readouterr().out
    none = (
        not json.loads(told)["plans"]
        if shown
        else told.startswith(("No plan fits", "No plan is l"))
    )
    assert none == (code == 3)


NOWHERE = "/proc/nowhere/a.svg"  # where not even root makes a folder


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder that nobody may write to")
@pytest.mark.parametrize(
    "command",
    [
        ["plan", "no-such-model", "--gpus", "h100:16", "--global-batch", "8", "--seq-len", "8k"],
        ["import", "no-such-file.sh"],
        ["export", "no-such-file.json", "--to", "megatron"],
    ],
)
@pytest.mark.parametrize(
    ("place", "said"),
    [
        (NOWHERE, "nowhere.*: cannot be written: No such file or directory"),
        ("taken/a.svg", "taken: is a file where a folder belongs"),
        ("", "not the name of a"),
        ("\udcff", "not the name of a"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_read_or_searched(
    command: list[str], place: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("a file")
    for option in ("--out", "--plot") if command[0] == "plan" and place[-1:] == "g" else ("--out",):
        with pytest.raises(InputError, match=said):
            run([*command, *(MONEY if option == "--plot" else []), option, place])
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_an_answer_goes_into_a_file_and_nothing_else(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place, said in ((tmp_path, "is a folder"), (pipe, "is a device or a pipe")):
        with pytest.raises(InputError, match=f"{place}: {said}; name a file"):
            run([*JOB, "--global-batch", "64", "--out", str(place)])
    assert list(tmp_path.iterdir()) == [pipe] and pipe.is_fifo()


def test_a_search_that_is_refused_leaves_no_folder_for_its_answer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no-such-model"):
        words = ["plan", "no-such-model", *JOB[2:], "--global-batch", "8"]
        run([*words, "--out", str(tmp_path / "a" / "b" / "result.json")])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("model", ["llama-3-70b", "mixtral-8x7b", "deepseek-v2-lite"])
def test_every_plan_of_an_answer_fits(model: str, precision: str) -> None:
    found = astra.plan(model, gpus="h100:64", global_batch=256, seq_len=4096, precision=precision)
    assert found.plans and all(plan.memory.fits for plan in found.plans)


def test_a_misspelt_column_of_runs_is_named() -> None:
    header = "row_id,model,num_layers,hidden_size,seq_len,global_batch,gpu_id,num_gpus"
    with pytest.raises(InputError, match="Did you mean tp"):
        parse_runs(f"{header},tpp,measured_step_time_s\n", "runs.csv")
    assert parse_runs(f"{header},remarks,measured_step_time_s\n", "runs.csv").runs == ()


def test_the_published_tables_have_no_misspelt_column() -> None:
    folder = Path(__file__).parents[2] / "validation" / "runs"
    for name in ("one-type.csv", "mixed.csv"):
        header = (folder / name).read_text(encoding="utf-8").splitlines()[0]
        assert parse_runs(header + "\n", name).runs == ()


def test_a_release_that_nobody_measured_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "predict",
        "llama-3-8b",
        "--gpus",
        "h100:8",
        "--tp",
        "2",
        "--global-batch",
        "64",
        "--json",
        "--stack",
    ]
    run([*words, "nemo@24.7"])
    wrong = json.loads(capsys.readouterr().out)
    said = "stack nemo@24.7: that release was not measured, so it counts as nemo on the whole. "
    assert f"{said}Did you mean 24.07 or 25.07?" in str(wrong["warnings"])
    for known in ("nemo@24.07", "nemo"):
        run([*words, known])
        assert "release" not in str(json.loads(capsys.readouterr().out)["warnings"])
    run(["stacks", "nemo@24.7"])
    assert said in capsys.readouterr().err


def test_models_count_at_a_length_they_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    """GPT-2 has a table of 1,024 positions: FLOPs at 4,096 are those of no GPT-2."""
    lengths = {}
    for words in (("gpt2-xl",), ("llama-3-8b",), ("gpt2-xl", "--seq-len", "2k")):
        assert run(["models", *words, "--json"]) == 0
        lengths[words] = json.loads(capsys.readouterr().out)["flops_per_token"]["seq_len"]
    assert list(lengths.values()) == [1024, 4096, 2048]
