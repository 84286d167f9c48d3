"""What functions give back: short in print, a table in a notebook, a file that is read again."""

import doctest
import inspect
import re
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from tests.support.cases import each_case

import astra
from astra.api import words
from astra.api.inputs import SETTING_NAMES

SOURCE = Path(astra.__file__).parent
EXAMPLES = [  # modules whose docstrings have some
    ".".join(("astra", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
JOB: dict[str, Any] = {"gpus": {"h100": 8}, "global_batch": 32, "seq_len": 4096}


@cache
def answer() -> astra.Answer:
    return astra.plan("llama-3-8b", tp=[1, 2], top=5, **JOB)


@cache
def best() -> astra.Prediction:
    found = answer().best
    assert found is not None
    return found


@cache
def rented() -> astra.Answer:
    return astra.plan(
        "llama-3-8b", objective="money", tokens="1B", price={"h100": 2.0}, tp=1, pp=1, **JOB
    )


def test_results_print_in_a_few_lines() -> None:
    listings = (astra.models(), astra.gpus(), astra.prices("h100"))
    for result in (answer(), rented(), best(), best().plan, best().explain(quick=True), *listings):
        assert len(repr(result)) < 500 and len(repr(result).splitlines()) <= 4


def test_plans_have_the_attributes_that_people_guess() -> None:
    plan = best().plan
    (segment,) = plan.pipelines[0].segments
    assert (plan.tp, plan.pp, plan.dp) == (segment.tp, segment.stages, 8 // segment.tp)
    second = msgspec.structs.replace(segment, tp=2 * segment.tp)
    uneven = msgspec.structs.replace(plan.pipelines[0], segments=(segment, second))
    assert msgspec.structs.replace(plan, pipelines=(uneven,)).tp == (segment.tp, 2 * segment.tp)


def test_what_is_saved_is_read_by_all_that_read_plans(tmp_path: Path) -> None:
    for result in (answer(), best()):
        path = result.save(tmp_path / "kept" / "result.json")
        assert astra.read_plan(path) == best().plan
        assert astra.predict_plan(path).step_s == best().step_s
        assert astra.explain(path, quick=True).step_s == best().step_s
        assert astra.export(path, "megatron", tmp_path / "job").plans == (best().plan,)
        assert msgspec.json.decode(path.read_bytes()) == msgspec.json.decode(
            msgspec.json.encode(result.to_dict())
        )


def test_an_answer_a_plan_and_its_file_give_the_same_launch_files(tmp_path: Path) -> None:
    saved = answer().save(tmp_path / "answer.json")
    answer().export("megatron", tmp_path / "of-answer", rank=2)
    answer().plans[1].export("megatron", tmp_path / "of-plan")
    astra.export(saved, "megatron", tmp_path / "of-file", rank=2)
    texts = [
        {path.name: path.read_text() for path in (tmp_path / place).iterdir()}
        for place in ("of-answer", "of-plan", "of-file")
    ]
    assert texts[0] == texts[1] == texts[2] and "launch.sh" in texts[0]
    with pytest.raises(astra.InputError, match="there is no rank 9; it holds 5 plans"):
        answer().export("megatron", tmp_path, rank=9)
    with pytest.raises(astra.InputError, match=r"target = 'megatrn': not known\. Did you mean"):
        answer().export("megatrn", tmp_path)


def test_every_answer_is_drawn_into_a_file(tmp_path: Path) -> None:
    for result in (answer(), best(), best().explain(quick=True), rented()):
        picture = result.plot(tmp_path / "answer.svg").read_text()
        ElementTree.fromstring(picture)
        words = "What would change" if isinstance(result, astra.Explanation) else "Memory of one"
        assert words in picture and words in result.plot(tmp_path / "answer.html").read_text()
    with pytest.raises(astra.InputError, match=r"ends in \.svg, \.png or \.html"):
        answer().plot(tmp_path / "answer.pdf")


class Tags(HTMLParser):
    """The tags of a page, each closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert attrs == []
        self.seen.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_results_show_as_plain_tables_with_nothing_of_the_users_in_the_markup() -> None:
    evil = msgspec.structs.replace(astra.find_model("llama-3-8b"), name="<script>x</script>")
    shown = astra.plan(evil, top=2, tp=2, **JOB)
    nothing = astra.plan(evil, gpus={"h100": 1}, global_batch=8, seq_len=131072)
    assert nothing.best is None
    results: list[Any] = [shown, shown.best, shown.best.explain(quick=True), nothing, rented()]  # type: ignore[union-attr]
    for result in (*results, astra.models("llama"), astra.gpus(), astra.prices("h100")):
        whole = result._repr_html_()
        page = re.sub(r"<svg.*?</svg>", "", whole, flags=re.DOTALL)
        assert "<script" not in whole
        assert ("<svg" in whole) == (result in results)
        assert Tags(page).seen <= {"p", "table", "thead", "tbody", "tr", "th", "td", "pre"}
        assert ("table" in Tags(page).seen) == (result is not nothing)
        assert not re.search(r"(?<!`)--[a-z]", re.sub("`[^`]*`", "", page))


def test_tables_become_frames() -> None:
    import pandas

    assert len(best().to_pandas()) == 1
    for listing in (astra.models("llama"), astra.gpus(), astra.prices("h100")):
        frame = listing.to_pandas()
        assert isinstance(frame, pandas.DataFrame) and len(frame) == len(listing) > 1
    assert list(answer().to_pandas()["step_s"]) == [plan.step_s for plan in answer().plans]


# ------------------------------------------------------------------ names and words


def test_every_public_name_has_an_example() -> None:
    texts = {name: inspect.getdoc(getattr(astra, name)) or "" for name in astra.__all__}
    assert [name for name, text in texts.items() if ">>> " not in text] == []


@each_case("module", EXAMPLES)
def test_the_examples_of_every_module_are_true(module: str) -> None:
    failed, tried = doctest.testmod(import_module(module))
    assert (failed, tried > 0) == (0, True)


def test_errors_can_name_every_argument_that_is_an_option() -> None:
    from astra.cli.main import COMMANDS, parser_for

    functions = {getattr(astra, name) for name in astra.__all__ if name.islower()}
    own = {name for each in functions for name in inspect.signature(each).parameters}
    options = {
        option.removeprefix("--")
        for command in COMMANDS
        for action in parser_for(command)._actions
        for option in action.option_strings
    }
    both = {o for o in options if o.replace("-", "_") in {*own, *SETTING_NAMES}}
    assert {
        option for option in both if words.python_words(f"--{option}") == f"--{option}"
    } == set()


def test_an_answer_without_a_plan_says_that_nothing_fits_and_why() -> None:
    job = JOB | {"gpus": {"h100": 1}, "global_batch": 8}
    nothing = astra.plan("llama-3-70b", **job)
    said = repr(nothing)
    assert "no plan of " in said and "nothing fits: memory of stage 0" in said
    assert said.endswith("see .nothing_fits")
    assert nothing.nothing_fits is not None and nothing.nothing_fits.binding in said
    refused = repr(astra.plan("llama-3-8b", rules=["$tp > 0"], **job))
    assert "nothing fits: " not in refused and len(refused) < 500


def test_a_plan_of_an_answer_is_predicted_by_its_rank() -> None:
    assert astra.predict_plan(answer()).plan == best().plan
    assert astra.predict_plan(answer(), 2).plan == answer().plans[1].plan
    with pytest.raises(astra.InputError, match="no rank 99; it holds 5 plans"):
        astra.predict_plan(answer(), 99)


def test_a_plan_tells_its_recompute_as_its_tp() -> None:
    plan = best().plan
    (segment,) = plan.pipelines[0].segments
    assert plan.recompute == segment.recompute
    second = msgspec.structs.replace(segment, recompute="full:block:4")
    uneven = msgspec.structs.replace(plan.pipelines[0], segments=(segment, second))
    told = msgspec.structs.replace(plan, pipelines=(uneven,)).recompute
    assert told == (segment.recompute, "full:block:4")


def test_the_json_of_an_answer_is_taken_wherever_its_file_is() -> None:
    answer = astra.plan("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096, tp=1)
    document = answer.to_dict()
    assert astra.explain(document, quick=True) == astra.explain(answer, quick=True)
    assert astra.predict_plan(document, 2).step_s == answer.plans[1].step_s
    job = astra.export(document, "megatron", None)
    assert job.out is None and tuple(sorted(job.texts)) == job.files
    assert astra.import_job("args.txt", text=job.texts["args.txt"], gpus="h100:8").plan.tp == 1


def test_files_that_an_imported_text_names_are_not_read(tmp_path: Path) -> None:
    settings = tmp_path / "ds_config.json"
    settings.write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}')
    text = f"deepspeed --num_gpus 8 train.py --deepspeed {settings}"
    asked: Any = {"model": "llama-3-8b", "gpus": "h100:8", "seq_len": 4096}
    (tmp_path / "run.sh").write_text(text)
    assert astra.import_job(tmp_path / "run.sh", **asked).framework == "DeepSpeed"
    with pytest.raises(astra.InputError, match="which is not there"):
        astra.import_job(tmp_path / "run.sh", text=text, **asked)
