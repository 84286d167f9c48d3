"""`request.command` and `request.question`: asking again what an answer says was asked."""

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

import astra
from astra.cli.main import run
from astra.web.questions import QUESTIONS, Answering, answer

ROOT = Path(__file__).parents[2]
JOB = "llama-3-8b --gpus h100:8 --global-batch 32 --seq-len 4k --set tp=1,2"
# Words of `astra plan`, and whether a link can hold them.
ASKED = {
    "plain": (f"{JOB} --top 3 --risk none --memory-margin 0.1 --time-limit 100", True),
    "tokens": ("gpt2 --gpus h100:8 --global-batch 0.1M-tokens --seq-len 1k --use-all", True),
    "changed": (f"{JOB} --set 'recompute=none,full:block:4' --what-if network=x0.5", True),
    "fewest": (f"{JOB} --objective gpus --min-tokens-per-s 20000 --all", True),
    "unfit": ("llama-3-70b --gpus h100:1 --global-batch 64 --seq-len 4k", True),
    "money": (
        f"{JOB} --tokens 1B --deadline 3d --price h100=2.5 --no-mixed --what-if network=x0.5",
        True,
    ),
    "spot": (f"{JOB} --objective money --tokens 1B --spot --cloud aws,gcp --no-failures", True),
    "config": ("examples/my-config --gpus h100:8 --global-batch 32 --seq-len 2k", True),
    "cluster": (
        "examples/my-model.toml --cluster examples/my-cluster.toml --global-batch 48 --seq-len 1k"
        " --max-gpus 8 --set pp=1",
        True,
    ),
    "rules": (f"{JOB} --rules examples/my.rules --pipeline-model paper", True),
    "own GPU": ("gpt2 --gpus examples/my-gpu.toml:8 --global-batch 32 --seq-len 1k", False),
}


def figures(document: dict[str, Any]) -> dict[str, Any]:
    """What an answer says, but for how long it took and where a file is."""

    def of(plan: dict[str, Any] | None) -> Any:
        return plan and (plan["summary"], plan["step_s"], plan["usd"], plan["memory"])

    nothing = document["nothing_fits"] or {"closest": None, "try": ()}
    request, search = document["request"], document["search"]
    return {
        "plans": [of(plan) for plan in document["plans"]],
        "frontier": [of(plan) for plan in document["frontier"]],
        "what_if": [of(other["plan"]) for other in document["what_if"]],
        "paper": document["paper"],
        "market": document["market"],
        "nothing": (of(nothing["closest"]), nothing["try"]),
        "answer": document["answer"],
        "search": {name: search[name] for name in ("candidates", "bounded", "simulated")},
        "request": {
            name: said
            for name, said in request.items()
            if name not in ("command", "python", "question", "rules", "rule_texts")
        },
    }


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run([*words, "--json"]) in (0, 3)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize(
    "words, fits_a_link",
    [
        pytest.param(*said, id=name, marks=[] if name in ("rules", "config") else pytest.mark.slow)
        for name, said in ASKED.items()
    ],
)
def test_command_and_question_ask_the_same(
    words: str,
    fits_a_link: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    found = printed(["plan", *shlex.split(words)], capsys)
    request = found["request"]
    program, *again = shlex.split(request["command"])
    assert program == "astra"
    for option in (part for part in shlex.split(words) if part.startswith("--")):
        assert option in again
    assert figures(printed(again, capsys)) == figures(found)
    assert (request["question"] is not None) == fits_a_link
    if fits_a_link:
        body = msgspec.json.encode(request["question"])
        asked = json.loads(answer("plan", body, Answering(time_limit_s=100.0)))
        assert figures(asked) == figures(found)
        assert asked["request"]["question"] == request["question"]


def test_what_is_in_no_file_has_no_command_but_goes_into_a_link() -> None:
    config = json.loads((ROOT / "examples/my-config/config.json").read_text(encoding="utf-8"))
    job: dict[str, Any] = {"gpus": {"h100": 8}, "global_batch": 32, "seq_len": 1024, "tp": 1}
    request = astra.plan(config, **job).request
    assert request.command is None and request.question is not None
    question = msgspec.convert(request.question, QUESTIONS["plan"][0])
    assert question.set == ("tp=1",)
    known = astra.plan(astra.find_model("gpt2"), **job).request
    assert known.command == (
        "astra plan gpt2 --gpus h100:8 --global-batch 32 --seq-len 1024 --set tp=1"
    )


def test_the_call_of_python_asks_the_same() -> None:
    job: dict[str, Any] = {"gpus": {"h100": 8}, "global_batch": 32, "seq_len": 1024, "tp": [1, 2]}
    answer = astra.plan("gpt2", **job, margin=0.1, fold=False, risk="careful", top=3)
    said = answer.request.python
    assert said is not None and said.startswith("astra.plan('gpt2', gpus='h100:8', ")
    again = eval(said, {"astra": astra})
    assert figures(again.to_dict()) == figures(answer.to_dict())
