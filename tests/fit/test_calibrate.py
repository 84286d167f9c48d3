"""A stack of one's own: runs made by a stack that is known find that stack again."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.support.published import published_runs

import astra
from astra.cli.main import run
from astra.cost.price import steps_s
from astra.errors import InputError
from astra.fit.calibrate import calibrate, most_named_stack
from astra.fit.runs import Run
from astra.fit.stack_file import stack_text
from astra.hardware.stack import Stack, find_stack, shipped_stacks, user_stack_folder

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-runs.csv"
BASE = find_stack("megatron")
HEADER = (
    "row_id,model,num_layers,hidden_size,seq_len,global_batch,gpu_id,num_gpus,tp,pp,micro_batch,"
    "sequence_parallel,measured_step_time_s\n"
)


@pytest.fixture(scope="module")
def published() -> list[Run]:
    """Runs of dense models, of several layouts."""
    runs = [run for run in published_runs().runs if run.measured_step_s]
    dense = [run for run in runs if run.plan.model.moe is None and run.plan.runtime == "megatron"]
    assert len(dense) > 200
    return dense[:: len(dense) // 12]


def made_by(stack: Stack, runs: Sequence[Run]) -> list[Run]:
    """The same runs, measured on a cluster that runs just like this stack."""
    plans = [replace(run.plan, stack="megatron") for run in runs]
    seconds = steps_s(plans, {"megatron": stack})
    return [
        changed(run, plan=plan, measured_step_s=float(step))
        for run, plan, step in zip(runs, plans, seconds, strict=True)
    ]


@pytest.mark.slow
def test_many_runs_find_the_stack_that_made_them(published: list[Run]) -> None:
    hidden = replace(BASE, compute_factor=BASE.compute_factor * 1.2)
    hidden = replace(hidden, tensor_factor=BASE.tensor_factor * 1.3)
    found = calibrate(made_by(hidden, published), BASE, "mine", "runs.csv", steps_s)
    assert found.mean_abs_error("before") > 0.12
    assert found.mean_abs_error("after") < 0.01
    assert found.mean_abs_error("left_out") < 0.02
    assert found.factors["compute"] == pytest.approx(1.2, rel=0.05)
    assert found.stack.runs == len(published) and found.helps


@pytest.mark.slow
def test_few_runs_move_the_stack_less_than_many(published: list[Run]) -> None:
    hidden = replace(BASE, compute_factor=BASE.compute_factor * 1.3)
    made = made_by(hidden, published)
    few = calibrate(made[:3], BASE, "mine", "runs.csv", steps_s)
    many = calibrate(made, BASE, "mine", "runs.csv", steps_s)
    assert 1.0 < few.factors["compute"] < many.factors["compute"] <= 1.31
    assert few.stack.spread_fraction > many.stack.spread_fraction


@pytest.mark.slow
def test_a_run_left_out_is_predicted_without_itself(published: list[Run]) -> None:
    """One run that is twice as long as the others say stays half predicted, seen or not."""
    made = made_by(BASE, published)
    odd = changed(made[0], measured_step_s=2 * (made[0].measured_step_s or 1.0))
    found = calibrate([odd, *made[1:]], BASE, "mine", "runs.csv", steps_s)
    case = found.cases[0]
    assert case.error("left_out") == pytest.approx(-0.5, abs=0.01)
    assert abs(case.error("after")) <= abs(case.error("left_out"))
    rest = [abs(other.error("left_out")) for other in found.cases[1:]]
    assert np.mean(rest) < 0.02, "one bad run does not spoil the others"


def test_a_stack_comes_back_from_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    user_stack_folder().mkdir(parents=True)
    for name in shipped_stacks():
        stack = find_stack(name)
        (user_stack_folder() / f"own-{name}.toml").write_text(stack_text(stack), encoding="utf-8")
        assert replace(find_stack(f"own-{name}"), name=name) == stack


def own_runs(path: Path, times: float, rows: int = 4) -> Path:
    lines = [HEADER]
    for row, (tp, batch) in enumerate([(1, 64), (2, 64), (4, 128), (8, 256)][:rows]):
        step = astra.predict(
            "llama-3-8b", gpus="h100:16", tp=tp, global_batch=batch, seq_len=4096
        ).step_s
        shared = str(tp > 1).lower()  # as predictions have it; a row that is silent has not
        lines.append(
            f"run-{row},llama-3-8b,32,4096,4096,{batch},H100-80GB-SXM,16,{tp},1,1,{shared},"
            f"{step * times}\n"
        )
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.slow
def test_the_command_keeps_a_stack_that_predictions_then_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    runs = own_runs(tmp_path / "runs.csv", 1.3)
    assert run(["calibrate", str(runs), "--name", "mine", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["base"] == "megatron" and len(told["runs"]) == 4
    errors = told["mean_abs_error_fraction"]
    assert errors["after"] < errors["left_out"] < errors["before"]
    asked: dict[str, Any] = {"gpus": "h100:16", "tp": 2, "global_batch": 64, "seq_len": 4096}
    plain, own = (astra.predict("llama-3-8b", stack=name, **asked) for name in ("megatron", "mine"))
    assert own.step_s == pytest.approx(1.3 * plain.step_s, rel=0.1)
    with pytest.raises(InputError, match="--force replaces it"):
        run(["calibrate", str(runs), "--name", "mine"])
    assert run(["calibrate", str(runs), "--name", "mine", "--force"]) == 0
    assert "Kept in" in capsys.readouterr().out
    assert [path.name for path in user_stack_folder().iterdir()] == ["mine.toml"]


def test_a_stack_that_cannot_be_kept_is_refused_before_runs_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config").write_text("a file")
    with pytest.raises(InputError, match="config: is a file where a folder belongs"):
        run(["calibrate", "no-such-runs.csv", "--name", "mine"])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("megatron", "comes with astra"), ("../up", "make a name"), ("", "make a name")],
)
def test_names_that_cannot_be(name: str, wrong: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=wrong):
        run(["calibrate", str(own_runs(tmp_path / "runs.csv", 1.0)), "--name", name])


def test_two_runs_are_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match="3 or more are needed"):
        run(["calibrate", str(own_runs(tmp_path / "runs.csv", 1.0, rows=2)), "--name", "mine"])
    assert not user_stack_folder().exists()


@pytest.mark.slow
def test_the_stack_to_start_from_is_that_of_most_runs(published: list[Run]) -> None:
    assert most_named_stack(made_by(BASE, published)) == "megatron"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def written(path: Path, rows: list[dict[str, str]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def test_steps_in_another_unit_are_refused_and_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "config"))
    rows = rows_of(EXAMPLE)
    for row in rows:
        row["measured_step_time_s"] = str(1e3 * float(row["measured_step_time_s"]))
    path = written(tmp_path / "ms.csv", rows)
    said = r"0 runs with a step time.*the first: korthikanti22-02802: a step of 1,420 s is .* times"
    with pytest.raises(InputError, match=said):
        run(["calibrate", path, "--name", "slip"])
    assert not list((tmp_path / "config").rglob("*.toml"))


@pytest.mark.slow
def test_one_slip_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "config"))
    rows = rows_of(EXAMPLE)
    clean = rows_of(EXAMPLE)[1:]
    rows[0]["measured_step_time_s"] = str(float(rows[0]["measured_step_time_s"]) / 60)
    run(["calibrate", written(tmp_path / "slip.csv", rows), "--name", "one", "--json"])
    one = json.loads(capsys.readouterr().out)
    run(["calibrate", written(tmp_path / "clean.csv", clean), "--name", "five", "--json"])
    five = json.loads(capsys.readouterr().out)
    (lost,) = one["skipped"]
    assert lost["row_id"] == rows[0]["row_id"] and "measured_step_time_s counts seconds" in str(
        lost
    )
    assert one["factors"] == five["factors"] and one["runs"] == five["runs"]


@pytest.mark.slow
def test_a_run_that_is_there_twice_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a run left out is seen all the same."""
    monkeypatch.setenv("HOME", str(tmp_path / "config"))
    run(["calibrate", str(EXAMPLE), str(EXAMPLE), "--name", "twice", "--json"])
    twice = json.loads(capsys.readouterr().out)
    assert len(twice["runs"]) == 6
    assert {row["reason"] for row in twice["skipped"]} == {"the same run is there already"}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["calibrate", "validate"])
def test_columns_that_nobody_reads_are_named(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "config"))
    rows = [row | {"colour": "blue", "who": "me"} for row in rows_of(EXAMPLE)]
    path = written(tmp_path / "more.csv", rows)
    run([command, path, "--json", *(["--name", "more"] if command == "calibrate" else [])])
    assert f"{path}: the columns 'colour', 'who' are not read." in capsys.readouterr().err
    run([command, str(EXAMPLE), "--json", *(["--name", "b"] if command == "calibrate" else [])])
    assert capsys.readouterr().err == ""


def test_too_few_runs_say_what_is_wrong_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "config"))
    rows = [row | {"measured_step_time_s": "-3"} for row in rows_of(EXAMPLE)]
    said = "6 rows are left out, the first: korthikanti22-02802: measured_step_time_s = '-3': must"
    with pytest.raises(InputError, match=said):
        run(["calibrate", written(tmp_path / "less.csv", rows), "--name", "less"])


def test_the_page_names_rows_that_were_skipped_and_steps_that_are_no_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    rows = rows_of(EXAMPLE)
    rows[0]["measured_step_time_s"] = "fast"
    rows[1]["measured_step_time_s"] = "1100"
    run(["validate", written(tmp_path / "slips.csv", rows)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 70
    page = " ".join(" ".join(lines).split())
    assert "5 runs compared, 5 of them in step time; 1 row skipped." in page
    assert f"{rows[0]['row_id']}: measured_step_time_s = 'fast': not a number" in page
    assert f"{rows[1]['row_id']} is off more than 30 times" in page and "1,100 s" in page
    assert all(line.startswith("       ") for line in lines if "assumed:" in line)


@pytest.mark.slow
def test_what_was_assumed_of_runs_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "config"))
    rows = rows_of(EXAMPLE)
    rows[0]["num_heads"] = ""
    run(["calibrate", written(tmp_path / "runs.csv", rows), "--name", "some"])
    page = " ".join(capsys.readouterr().out.split())
    assert "Assumed of what the rows do not say: ffn_hidden_size not stated: 4 x hidden;" in page
    assert "num_heads not stated: 48 (1 of 6)" in page
