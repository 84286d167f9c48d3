"""`astra explain` from the outside: text, JSON, exit codes, and files of every kind."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astra.cli import main as door

Call = Callable[..., tuple[int, str, str]]
JOB = ("--gpus", "h100:8", "--global-batch", "64", "--seq-len", "4096")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """`astra WORDS` in this process: exit code, standard output, standard error."""

    def astra(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["astra", *words])
        code = door.main()
        out, err = capsys.readouterr()
        return code, out, err

    return astra


@pytest.fixture
def result(tmp_path: Path, call: Call) -> Path:
    path = tmp_path / "result.json"
    code, _, _ = call("plan", "llama-3-8b", *JOB, "--top", "3", "--out", str(path))
    assert code == 0
    return path


@pytest.mark.slow
def test_the_page_has_every_part(call: Call, result: Path) -> None:
    code, out, err = call("explain", str(result))
    assert (code, err) == (0, "")
    for part in (
        "Where the time goes",
        "binds:",
        "What the next plans take more or less",
        "What would change",
        "1.25 x the memory",
        "Bytes of one GPU",
    ):
        assert part in out


@pytest.mark.slow
def test_against_prints_the_comparison_alone(call: Call, result: Path) -> None:
    code, out, err = call("explain", str(result), "--against", "tp=4 pp=2")
    assert (code, err) == (0, "")
    assert "Against tp=4 pp=2: The best plan" in out
    assert "this" in out and "that" in out and "matrix products" in out
    for part in ("What the next plans take more or less", "What would change", "Bytes of one GPU"):
        assert part not in out


def test_json_is_alone_on_standard_output(call: Call, result: Path) -> None:
    code, out, err = call("explain", str(result), "--json", "--quick", "--against", "tp=4")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert sum(found["parts_s"].values()) == pytest.approx(found["step_s"])
    assert found["against"]["outcome"] == "time"
    assert {change["how"] for change in found["changes"]} == {"repriced"}


@pytest.mark.parametrize("kind", ["result", "priced", "bare"])
def test_every_kind_of_file_is_explained(call: Call, result: Path, kind: str) -> None:
    whole = json.loads(result.read_text())
    first = whole["plans"][0]
    content = {"result": whole, "priced": first, "bare": first["plan"]}[kind]
    result.write_text(json.dumps(content))
    code, out, _ = call("explain", str(result), "--quick", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["step_s"] == pytest.approx(first["step_s"])
    assert len(found["next_plans"]) == (2 if kind == "result" else 0)


def test_a_rank_chooses_the_plan(call: Call, result: Path) -> None:
    code, out, _ = call("explain", str(result), "--rank", "2", "--quick", "--json")
    found = json.loads(out)
    assert (code, found["rank"]) == (0, 2)
    assert found["best"]["rank"] == 1


@pytest.mark.slow
def test_the_margin_of_the_search_is_kept(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "roomy.json"
    call("plan", "llama-3-8b", *JOB, "--memory-margin", "0.3", "--out", str(path))
    filled = []
    for more in ((), ("--memory-margin", "0")):
        _, out, _ = call("explain", str(path), "--quick", "--json", *more)
        filled.append(json.loads(out)["binding"]["filled_fraction"])
    assert filled[1] == pytest.approx(filled[0] * 0.7)


def test_rules_that_are_gone_are_noted(call: Call, result: Path) -> None:
    whole = json.loads(result.read_text())
    whole["request"]["rules"] = "gone.rules"
    result.write_text(json.dumps(whole))
    code, out, _ = call("explain", str(result), "--quick")
    assert code == 0 and "gone.rules" in out


@pytest.mark.slow
def test_narrowed_searches_stay_narrow(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "narrow.json"
    call("plan", "llama-3-8b", *JOB, "--set", "tp=4", "--out", str(path))
    _, out, _ = call("explain", str(path), "--json")
    found: Any = json.loads(out)
    searched = [c["plan"] for c in found["changes"] if c["how"] == "searched" and c["plan"]]
    assert searched and all(plan["summary"].startswith("tp 4 ") for plan in searched)
    assert any("tp=4" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--rank", "9"), "there is no rank 9; it holds 3 plans"),
        (("--rank", "0"), "--rank"),
        (("--against", "tpp=4"), "no dimension 'tpp'"),
        (("--against", ""), "give settings"),
        (("--memory-margin", "2"), "--memory-margin"),
        (("--agianst", "tp=4"), "unknown option"),
    ],
)
def test_bad_options_are_input_errors(
    call: Call, result: Path, words: tuple[str, ...], says: str
) -> None:
    code, out, err = call("explain", str(result), *words)
    assert (code, out) == (2, "")
    assert says in err


def test_files_that_hold_no_plan_are_input_errors(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for text in ("{}", "[]", "not json", '{"plans": []}', '{"request": 3, "plans": []}'):
        path.write_text(text)
        code, out, err = call("explain", str(path))
        assert (code, out) == (2, "") and str(path) in err
    code, out, err = call("explain", str(tmp_path / "missing.json"))
    assert (code, out) == (2, "") and "missing.json" in err


def test_a_plan_that_its_runtime_refuses_is_an_input_error(call: Call, result: Path) -> None:
    whole = json.loads(result.read_text())
    plan = whole["plans"][0]["plan"]
    plan["global_batch"] = plan["global_batch"] + 1
    result.write_text(json.dumps(plan))
    code, out, err = call("explain", str(result))
    assert (code, out) == (2, "") and "rule" in err
