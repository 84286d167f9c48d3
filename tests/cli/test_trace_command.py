"""`astra trace` and `astra.trace`: what they write, what they print, and what they refuse."""

import json
from pathlib import Path

import pytest

import astra
from astra.cli.main import run
from astra.errors import InputError

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def priced() -> astra.Prediction:
    return astra.predict("llama-3-8b", gpus={"h100": 8}, pp=2, global_batch=32, seq_len=4096)


@pytest.fixture(scope="module")
def plan_file(priced: astra.Prediction, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(priced.save(tmp_path_factory.mktemp("plans") / "plan.json"))


def test_a_trace_and_a_picture_are_written(
    plan_file: str, priced: astra.Prediction, tmp_path: Path, capsys: Capture
) -> None:
    assert run(["trace", plan_file, "--out", str(tmp_path / "trace.json")]) == 0
    out = capsys.readouterr().out
    assert "32 operations on 2 stages" in out and "ui.perfetto.dev" in out
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["otherData"]["step_s"] == priced.step_s
    assert run(["trace", plan_file, "--out", str(tmp_path / "step.svg")]) == 0
    assert (tmp_path / "step.svg").read_text().startswith("<svg")
    assert "perfetto" not in capsys.readouterr().out


def test_json_has_the_numbers_and_needs_no_file(
    plan_file: str, priced: astra.Prediction, capsys: Capture
) -> None:
    assert run(["trace", plan_file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(json.dumps(astra.trace(priced).to_dict()))
    (pipeline,) = found["pipelines"]
    assert (pipeline["replicas"], pipeline["chunks"], pipeline["micro_batches"]) == (4, 1, 8)
    assert [len(stage["start_s"]) for stage in pipeline["stages"]] == [16, 16]


def test_any_rank_of_an_answer_can_be_traced(tmp_path: Path) -> None:
    answer = astra.plan("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096, tp=[1, 2])
    file = answer.save(tmp_path / "result.json")
    for rank in (1, 2):
        plan = answer.plans[rank - 1]
        assert answer.trace(rank=rank).step_s == plan.trace().step_s == plan.step_s
        assert astra.trace(file, rank=rank) == answer.trace(rank=rank)
    with pytest.raises(InputError, match="no rank 99"):
        answer.trace(rank=99)


def test_bad_input_is_refused_before_anything_is_written(plan_file: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--out is missing"):
        run(["trace", plan_file])
    with pytest.raises(InputError, match=r"ends in \.json .* or \.svg"):
        run(["trace", plan_file, "--out", str(tmp_path / "trace.txt")])
    with pytest.raises(InputError, match="there is no rank 2"):
        run(["trace", plan_file, "--rank", "2", "--out", str(tmp_path / "trace.json")])
    with pytest.raises(InputError, match="not-there"):
        run(["trace", "not-there.json", "--out", str(tmp_path / "trace.json")])
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_its_runtime_refuses_is_not_traced(priced: astra.Prediction) -> None:
    raw = priced.to_dict()["plan"] | {"vpp": 3, "schedule": "interleaved"}
    from astra.strategy.plan_file import plan_from_json

    with pytest.raises(InputError, match="plan: "):
        astra.trace(plan_from_json(raw, "plan"))


def test_a_step_of_too_many_operations_is_refused_in_words() -> None:
    job = {"gpus": {"h100": 16}, "pp": 16, "global_batch": 20_000, "seq_len": 128}
    priced = astra.predict("llama-3-8b", **job)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="640,000 operations"):
        priced.trace()


def test_a_part_of_the_step_is_drawn_and_nonsense_is_refused(priced: astra.Prediction) -> None:
    step = astra.trace(priced)
    whole, part = step.svg(), step.svg(from_s=0.0, to_s=step.step_s / 4)
    assert whole != part and step._repr_html_() == whole
    for from_s, to_s in ((-1.0, None), (step.step_s, None), (0.2, 0.1), (0.0, 2 * step.step_s)):
        with pytest.raises(InputError, match="two moments of the step"):
            step.svg(from_s=from_s, to_s=to_s)
    with pytest.raises(InputError, match="out = "):
        step.save("picture.bmp")


def test_a_trace_prints_in_a_line(priced: astra.Prediction) -> None:
    assert repr(priced.trace()).startswith("StepTrace(llama-3-8b: tp 1 pp 2 dp 4 mb 1, ")
