"""`import astra`: the command line's words as functions, with the command line's numbers."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.cases import each_case

import astra
from astra.cli import main as door
from astra.cost.result import PricedPlan

JOB: dict[str, Any] = {"gpus": "h100:16", "global_batch": 64, "seq_len": 4096}


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: Any, *words: str) -> Any:
    """The JSON that `astra WORDS` prints."""
    monkeypatch.setattr(sys, "argv", ["astra", *words])
    assert door.main() == 0
    return json.loads(capsys.readouterr().out)


def as_json(found: PricedPlan) -> Any:
    return json.loads(msgspec.json.encode(found))


# ------------------------------------------------------------------ the same answer


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (("--tp", "2"), {"tp": 2}),
        (("--tp", "2"), {"settings": {"tp": 2}}),
        (
            ("--tp", "2", "--pp", "4", "--vpp", "2", "--recompute", "full:block:1"),
            {"tp": 2, "pp": 4, "vpp": 2, "recompute": "full:block:1"},
        ),
        (
            ("--cp", "2", "--no-overlap-grad-reduce", "--moment-dtypes", "bf16,bf16"),
            {"cp": 2, "overlap_grad_reduce": False, "moment_dtypes": ("bf16", "bf16")},
        ),
        (("--runtime", "fsdp", "--memory-margin", "0.2"), {"runtime": "fsdp", "margin": 0.2}),
        (("--layers-per-stage", "15,17"), {"layers_per_stage": (15, 17)}),
    ],
)
def test_predict_returns_what_the_command_line_prints(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    settings: dict[str, Any],
) -> None:
    job = ("--gpus", "h100:16", "--global-batch", "64", "--seq-len", "4096", "--json")
    shown = printed(capsys, monkeypatch, "predict", "llama-3-8b", *job, *words)
    assert shown == as_json(astra.predict("llama-3-8b", **JOB, **settings))


def test_predict_plan_gives_a_plan_the_same_numbers_from_a_file_and_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = astra.predict("mixtral-8x7b", ep=4, **JOB)
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(found.plan))
    again = astra.predict_plan(path)
    assert as_json(again) == as_json(astra.predict_plan(found.plan))
    assert as_json(again) == printed(capsys, monkeypatch, "predict", "--plan", str(path), "--json")
    assert again.step_s == found.step_s and again.memory == found.memory


def test_a_model_may_be_a_name_a_file_or_a_model(tmp_path: Path) -> None:
    model = astra.find_model("llama-3-8b")
    path = tmp_path / "own.toml"
    fields = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
    lines = [f"{name} = {getattr(model, name)}" for name in fields]
    path.write_text("\n".join(['name = "own"', *lines]))
    steps = {astra.predict(each, **JOB).step_s for each in ("llama-3-8b", model, path, str(path))}
    assert len(steps) == 1


# ------------------------------------------------------------------ what a person can mend


@each_case(
    "settings, said",
    [
        ({"tpp": 2}, "there is no setting 'tpp'. Did you mean tp"),
        ({"micro_batch_size": 2}, "Did you mean micro_batch"),
        ({"wibble": 1}, "there is no setting 'wibble'"),
        ({"tp": 0}, "tp = 0"),
        ({"dp": 0}, "dp = 0"),
        ({"micro_batch": -1}, "micro_batch = -1"),
        ({"mtp_layers": -1}, "mtp_layers = -1"),
        ({"tp": "2"}, "tp = '2': expected `int"),
        ({"tp": 2.0}, "tp = 2.0: expected `int"),
        ({"tp": True}, "tp = True: expected `int"),
        ({"recompute": 3}, "recompute = 3: expected `str"),
        ({"recompute": "half"}, "half"),
        ({"sharding": "all"}, "sharding = 'all'"),
        ({"sequence_parallel": "yes"}, "sequence_parallel = 'yes'"),
        ({"moment_dtypes": ("fp32",)}, "moment_dtypes"),
        ({"stack": "megatrn"}, "Did you mean megatron"),
        ({"runtime": "megatorn"}, "runtime = 'megatorn'"),
        ({"margin": 2.0}, "margin = 2"),
        ({"margin": float("nan")}, "margin = nan"),
        ({"cluster": "here.toml"}, "and not both"),
        ({"tp": 3}, "Try"),
    ],
)
def test_bad_settings_are_input_errors_that_say_what_is_wrong(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(astra.InputError) as refused:
        astra.predict("llama-3-8b", **JOB | settings)
    assert said in str(refused.value)


def test_a_missing_batch_or_missing_gpus_are_input_errors() -> None:
    with pytest.raises(astra.InputError, match="global_batch= is missing"):
        astra.predict("llama-3-8b", gpus="h100:16")
    with pytest.raises(astra.InputError, match="give the GPUs"):
        astra.predict("llama-3-8b", global_batch=64)
    with pytest.raises(astra.InputError, match="Did you mean llama-3-8b"):
        astra.predict("llama-3-8bb", **JOB)
    with pytest.raises(astra.InputError, match="no such file"):
        astra.predict_plan("nowhere.json")


def test_a_plan_that_its_runtime_refuses_is_an_input_error() -> None:
    plan = astra.predict("llama-3-8b", tp=2, **JOB).plan
    worse = msgspec.structs.replace(plan, sequence_parallel=True, vpp=3, schedule="interleaved")
    with pytest.raises(astra.InputError, match="refuses"):
        astra.predict_plan(worse)


# ------------------------------------------------------------------ names


@each_case("name", astra.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(astra, name).__name__ == name
    assert name in dir(astra)


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'predicted'"):
        astra.predicted  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("runtime", ["fsdp", "deepspeed"])
def test_layers_that_a_runtime_leaves_out_are_told(runtime: Any) -> None:
    """DeepSeek without its further token is another, cheaper job."""
    model = msgspec.structs.replace(astra.find_model("deepseek-v2-lite"), mtp_layers=1)
    job: dict[str, Any] = {"gpus": "h200:16", "global_batch": 256, "seq_len": 1024}
    found = astra.plan(model, runtime=runtime, top=1, **job)
    notes = found.request.notes
    assert [note for note in notes if "multi-token prediction (1 layer) is left out" in note]
    one = astra.predict(model, runtime=runtime, ep=8, **job)
    assert one.plan.mtp_layers == 0 and "multi-token prediction left out" in one.assumed
    with_it = astra.plan(model, top=1, settings=["ep=8"], **job)
    assert "multi-token" not in str(with_it.request.notes)


BAD_QUESTIONS: list[tuple[dict[str, Any], str]] = [
    ({"global_batch": 0}, "global_batch = 0: must lie between 1 and"),
    ({"global_batch": -4}, "global_batch = -4"),
    ({"global_batch": "many"}, "global_batch = 'many': not a whole number"),
    ({"global_batch": 1.5}, "global_batch = 1.5: not a whole number"),
    ({"global_batch": True}, "global_batch = True: not a whole number"),
    ({"seq_len": 0}, "seq_len = 0"),
    ({"seq_len": "4q"}, "seq_len = '4q': not a whole number"),
    ({"top": 0}, "top = 0: must lie between 1 and 1,000"),
    ({"max_gpus": 0}, "max_gpus = 0"),
    ({"precision": "fp9"}, "precision = 'fp9': not known. Did you mean fp8"),
    ({"precision": "fp4"}, "H100-80GB-SXM has no units for fp4. "),
    ({"runtime": "foo"}, "runtime = 'foo': not known. Use one of megatron, flagscale, fsdp"),
    ({"settings": "tp=2"}, "settings = 'tp=2': give a list, ['tp=2']"),
    ({"gpus": 8}, "gpus = 8: give {'h100': 64}, or 'h100:64'"),
    ({"objective": "gpus", "min_tokens_per_s": -1}, "min_tokens_per_s = -1"),
    ({"gpus": "a100-80g:8", "precision": "fp8"}, "no units for fp8. Try precision='bf16' or fp16."),
    ({"gpus": "v100-16g:8"}, "V100-16GB-SXM2 has no units for bf16. Try precision='fp16'."),
    ({"gpus": "v100-16g:8,t4:8"}, "T4 and V100-16GB-SXM2 have no units for bf16. Try precision"),
]


@each_case("said, words", BAD_QUESTIONS)
def test_a_question_that_cannot_be_asked_is_an_input_error(
    said: dict[str, Any], words: str
) -> None:
    """Not a TypeError from somewhere inside, and never an answer to another question."""
    question: dict[str, Any] = {"gpus": "h100:8", "global_batch": 64, "seq_len": 4096} | said
    with pytest.raises(astra.InputError) as caught:
        astra.plan("llama-3-8b", **question)
    assert words in str(caught.value)


def test_counts_of_numpy_are_counts() -> None:
    sizes: dict[str, Any] = {"global_batch": np.int64(64), "seq_len": np.int32(512)}
    found = astra.plan("llama-3-8b", gpus="h100:8", top=1, **sizes)
    assert json.loads(msgspec.json.encode(found.request))["global_batch"] == 64


def test_predict_knows_its_runtimes_too() -> None:
    runtime: Any = "megatronn"
    with pytest.raises(astra.InputError, match="Did you mean megatron"):
        astra.predict("llama-3-8b", gpus="h100:8", runtime=runtime, global_batch=8)
