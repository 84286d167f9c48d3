"""What the page shows beside an answer: charts, simulated steps, packed launch files, choices."""

import base64
import io
import json
import zipfile
from functools import cache
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.support.cases import each_case

import astra
from astra.errors import InputError
from astra.report.svg.charts import charts_of, draw
from astra.web.listings import LISTINGS
from astra.web.questions import QUESTIONS, Answering, answer

JOB: dict[str, Any] = {"gpus": {"h100": 8}, "global_batch": 32, "seq_len": 4096}


def asked(name: str, **words: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        answer(name, json.dumps(words).encode(), Answering(time_limit_s=60))
    )
    return found


@cache
def planned() -> dict[str, Any]:
    return astra.plan("llama-3-8b", tp=[1, 2], top=3, **JOB).to_dict()


@cache
def priced() -> dict[str, Any]:
    return astra.predict("llama-3-8b", tp=2, pp=2, **JOB).to_dict()


def test_charts_are_those_of_the_report_in_the_width_that_is_asked_for() -> None:
    found = asked("charts", plan=planned(), charts={"memory": 300, "parts": 500}, rank=2)["charts"]
    assert found["memory"] == draw("memory", planned(), 300, 2)
    assert found["parts"] == draw("parts", planned(), 500, 2)
    assert list(asked("charts", plan=planned())["charts"]) == charts_of(planned())


def test_what_an_answer_has_nothing_for_is_left_out_and_what_is_no_chart_is_refused() -> None:
    assert asked("charts", plan=priced(), charts={"frontier": 500})["charts"] == {}
    with pytest.raises(InputError, match=r"memori is not known\. Did you mean memory"):
        asked("charts", plan=priced(), charts={"memori": 500})


def test_a_priced_plan_is_drawn_with_the_margin_that_is_said() -> None:
    (drawn,) = asked("charts", plan=priced(), charts={"memory": 700}, memory_margin=0.1)[
        "charts"
    ].values()
    assert "10% kept free" in drawn
    (drawn,) = asked("charts", plan=priced(), charts={"memory": 700})["charts"].values()
    assert "kept free" not in drawn


def test_a_part_of_the_timeline_begins_and_ends_where_it_is_asked_to() -> None:
    (whole,) = asked("charts", plan=priced(), charts={"timeline": 600})["charts"].values()
    part = asked("charts", plan=priced(), charts={"timeline": 600}, from_s=0.1, to_s=0.2)
    step = astra.trace(priced())
    assert whole == step.svg(600)
    assert part["charts"]["timeline"] == step.svg(600, from_s=0.1, to_s=0.2) != whole
    ElementTree.fromstring(whole)


@each_case(
    "wrong",
    (
        {"charts": {"timeline": 1}},
        {"charts": {"memory": 1e9}},
        {"charts": {"timeline": 600}, "from_s": 1e9},
        {"rank": 99},
        {"plan": {}},
        {"plan": {"plans": 3}},
        {"plan": {"step_parts_s": {"forward": "x"}}},
    ),
)
def test_what_cannot_be_drawn_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        asked("charts", **{"plan": priced(), **wrong})


def test_a_trace_is_that_of_python() -> None:
    assert asked("trace", plan=planned(), rank=2) == json.loads(
        json.dumps(astra.trace(planned(), rank=2).to_dict())
    )


def test_launch_files_are_packed_where_that_is_asked_for() -> None:
    plain = asked("export", plan=priced(), to="megatron")
    assert plain["zip"] is None
    job = asked("export", plan=priced(), to="megatron", launcher="slurm", zip=True)
    archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(job["zip"])))
    texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert texts == {file["name"]: file["text"] for file in job["files"]}
    assert archive.getinfo("launch.sh").external_attr >> 16 & 0o111
    assert not archive.getinfo("args.txt").external_attr >> 16 & 0o111


def test_every_choice_is_one_that_a_question_takes() -> None:
    choices = LISTINGS["choices"].answer({})
    words = QUESTIONS["plan"][0].__struct_fields__
    assert {"objective", "order", "precision", "risk", "runtime", "stack"} <= set(choices) & set(
        words
    )
    for precision in choices["precision"]:
        asked(
            "predict",
            model="llama-3-8b",
            gpus="b200:8",
            global_batch=32,
            seq_len=1024,
            precision=precision,
        )
    for target in choices["to"]:
        assert target["called"]
