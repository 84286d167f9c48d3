"""A report has every figure of its plan, loads nothing, and says the same as Markdown."""

import copy
import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.report.some_answers import mixed, nothing_fits, priced, rented, searched, sixty_four
from tests.support.cases import each_case

import astra
from astra.cli.main import run
from astra.report.amounts import usd
from astra.report.gpus import short_name
from astra.report.priced_plan import GIB, seconds
from astra.report.svg.memory import CAUSES

VOID = {"meta"}
LOADING = {"script", "link", "img", "iframe", "object", "embed", "audio", "video", "base", "form"}


class Page(HTMLParser):
    """The words and tags of a page whose tags are all closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words, self.open, self.tags = "", list[str](), set[str]()
        self.links, self.hidden = list[str](), 0
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
        assert not any(name == "style" or name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "title"):
            self.words += f" {data}"


def figures_of(plan: dict[str, Any]) -> set[str]:
    """What a report of a plan must say."""
    memory, origin = plan["memory"], plan["provenance"]
    found = {plan["summary"], f"{plan['tokens_per_s']:,.0f}", f"{plan['mfu_fraction']:.1%}"}
    found |= {seconds(plan[name]) for name in ("step_s", "step_s_low", "step_s_high")}
    found |= {seconds(part) for part in plan["step_parts_s"].values() if part}
    found |= {f"{origin[f'{kind}_fraction']:.0%} {kind}" for kind in ("fitted", "guessed")}
    found |= {f"{memory['reserved_bytes'] / GIB:.1f}", f"{memory['usable_bytes'] / GIB:.1f}"}
    found |= {f"{memory['fit_probability']:.0%}", f"{plan['checkpoint_bytes'] / 1e9:,.0f} GB"}
    for stage in memory["stages"]:
        found |= {f"{stage[field] / GIB:.1f}" for field, _ in CAUSES.values() if stage[field]}
    if plan.get("usd"):
        found |= {usd(plan[name]) for name in ("usd", "usd_low", "usd_high")}
        found |= {usd(cost) for cost in plan["money"]["usd_by_cause"].values() if cost}
    return {*found, *plan["warnings"], *plan["assumed"], *origin["notes"]}


def cells(text: str) -> list[str]:
    """Numbers in the order in which a document has them, pictures left out."""
    return re.findall(r"\d[\d,.]*", text)


@pytest.mark.slow
@each_case("asked", [priced, searched, rented, mixed])
def test_a_report_has_every_figure_of_its_plan_in_either_format(asked: Any) -> None:
    document = asked()
    plan = document["plans"][0] if "plans" in document else document
    report = astra.report(document, quick=True)
    words = " ".join(Page(report.html()).words.split())
    plain = " ".join(re.sub(r"\\(.)", r"\1", report.markdown()).split())
    for figure in figures_of(plan):
        assert " ".join(figure.split()) in words, figure
        assert " ".join(figure.split()) in plain, figure


@pytest.mark.slow
@each_case("asked", [priced, sixty_four, searched, rented, mixed, nothing_fits])
def test_a_report_is_one_file_that_loads_nothing(asked: Any) -> None:
    text = astra.report(asked(), quick=True).html()
    page = Page(text)
    assert not page.tags & LOADING and page.links == []
    assert "default-src 'none'" in text
    outside = re.findall(r"(?:https?:)?//[\w.]+", text.replace("http://www.w3.org/2000/svg", ""))
    assert outside == [] and not re.search(r"@import|url\((?!#)", text)
    assert "break-inside: avoid" in text and "size: A4" in text


@pytest.mark.slow
def test_markdown_has_the_tables_of_the_page() -> None:
    report = astra.report(searched(), quick=True)
    in_html = re.sub(r"<(svg|style).*?</\1>", "", report.html(), flags=re.S)
    html_tables = [
        [unescape(re.sub(r"<[^>]*>", " ", row)) for row in table.split("</tr>")]
        for table in re.findall(r"<table>.*?</table>", in_html, flags=re.S)
    ]
    lines = [set(cells(line.replace("\\", ""))) for line in report.markdown().splitlines()]
    rows = [set(cells(row)) for table in html_tables for row in table]
    assert len(rows) > 60 and all(any(row <= line for line in lines) for row in rows)


def test_where_nothing_fits_the_report_says_what_binds_and_what_to_try() -> None:
    document = nothing_fits()
    report = astra.report(document)
    for text in (" ".join(Page(report.html()).words.split()), report.markdown()):
        plain = re.sub(r"\\(.)", r"\1", text)
        assert "No plan fits." in plain and document["nothing_fits"]["closest"]["summary"] in plain
        assert all(each in plain for each in document["nothing_fits"]["try"])
        assert "astra export" not in plain


def test_what_binds_and_what_would_change_it_are_the_explanations() -> None:
    answer = astra.predict("llama-3-8b", gpus={"h100": 8}, tp=2, global_batch=32, seq_len=4096)
    why = answer.explain(quick=True)
    plain = re.sub(r"\\(.)", r"\1", answer.report(quick=True).markdown())
    assert why.binding.sentence in plain
    for change in why.changes:
        assert change.plan is not None and f"| {change.what} |" in plain


def test_a_job_is_reported_with_what_it_measured_beside_what_is_predicted() -> None:
    plan = copy.deepcopy(priced()["plan"])
    measured = {"step_s": 2 * priced()["step_s"], "tokens_per_s": 1000.0, "steps": 40}
    measured |= {"step_s_low": 9.5, "step_s_high": 11.0, "memory_allocated_bytes": 2.0**36}
    job = {"plan": plan, "framework": "Megatron-LM", "measured": measured, "assumed": ["bf16"]}
    text = astra.report(job, quick=True).markdown()
    (row,) = [line for line in text.splitlines() if line.startswith("| step |") and "-50" in line]
    cells_of = [cell.strip().replace("\\", "") for cell in row.split("|")[1:-1]]
    assert cells_of == ["step", seconds(measured["step_s"]), seconds(priced()["step_s"]), "-50.0%"]
    assert "64.0 GiB" in text and "over 40 steps" in text and "Assumed: bf16" in text
    bare = {**job, "measured": None}
    assert "no measured steps" in astra.report(bare, quick=True).markdown()


def test_names_of_a_model_cannot_change_the_page() -> None:
    evil = "<script>x</script>|`*_"
    text = json.dumps(searched()).replace('"llama-3-8b"', json.dumps(evil))
    report = astra.report(json.loads(text), quick=True)
    assert "<script" not in report.html() and evil in Page(report.html()).words
    assert "<script" not in report.markdown().replace("\\<", "")


def test_the_command_writes_what_python_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, answer = tmp_path / "result.json", priced()
    file.write_text(json.dumps(answer))
    for name in ("report.html", "report.md"):
        assert run(["report", str(file), "--quick", "--out", str(tmp_path / name)]) == 0
    assert capsys.readouterr().out.startswith("Wrote ")
    report = astra.report(file, quick=True)
    assert (tmp_path / "report.html").read_text() == report.html()
    assert (tmp_path / "report.md").read_text() == report.markdown()
    assert run(["report", str(file), "--quick", "--out", "-", "--format", "md"]) == 0
    assert capsys.readouterr().out == report.markdown()
    assert run(["report", str(file), "--quick", "--format", "md", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == report.markdown()


@each_case(
    "more, said",
    [
        ([], "--out is missing"),
        (["--out", "report.pdf"], r"ends in \.html or \.md"),
        (["--out", "-"], "needs --format"),
        (["--out", "a.html", "--format", "pdf"], "use html or md"),
        (["--out", "a.html", "--rank", "2"], "no rank 2"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    more: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("result.json").write_text(json.dumps(priced()))
    with pytest.raises(astra.InputError, match=said):
        run(["report", "result.json", *more])
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_file_that_is_no_answer_is_refused_with_its_place(tmp_path: Path) -> None:
    broken = copy.deepcopy(searched())
    broken["plans"][0]["step_s"] = "soon"
    half, job = copy.deepcopy(searched()), {"plan": priced()["plan"], "framework": "NeMo"}
    del half["plans"][0]["memory"]
    for document, said in (
        (broken, r"plans\[0\].*step_s = 'soon'"),
        (half, r"plans\[0\].*memory is missing"),
        ({**job, "measured": {"step_s": "soon"}}, r"measured.step_s = 'soon'"),
        ({"rows": 3}, "holds no plan"),
        ([1], "holds no answer"),
    ):
        file = tmp_path / "x.json"
        file.write_text(json.dumps(document))
        with pytest.raises(astra.InputError, match=said):
            astra.report(file, quick=True)


def test_a_file_of_before_its_newest_fields_is_reported_without_them(tmp_path: Path) -> None:
    document = copy.deepcopy(searched())
    del document["answer"], document["request"]["command"], document["plans"][0]["stage_parts_s"]
    for plan in document["plans"]:
        for stage in plan["memory"]["stages"]:
            for name in ("slack_bytes", "reserved_bytes", "usable_bytes", "fits"):
                del stage[name]
    file = tmp_path / "old.json"
    file.write_text(json.dumps(document))
    text = astra.report(file, quick=True).markdown()
    assert f"{seconds(document['plans'][0]['step_s'])} a step with" in text.replace("\\", "")


def test_rivals_on_other_gpus_name_them_and_batches_stand_beside() -> None:
    document = copy.deepcopy(searched())
    for plan in document["plans"]:
        plan["gpus"] = {"H100-80GB-SXM": 16}
    assert "| GPUs |" not in astra.report(document, quick=True).markdown()
    document["plans"][-1]["gpus"] = {"H100-80GB-SXM": 8}
    document["batches"] = [
        {"global_batch": 64, "summary": "tp 1", "step_s": 2.5, "tokens_per_s": 1e5},
        {"global_batch": 8192, "summary": None, "step_s": None, "tokens_per_s": None},
    ]
    text = astra.report(document, quick=True).markdown().replace("\\", "")
    assert "| GPUs |" in text and "| 8 H100-80GB-SXM |" in text
    assert "| 64 | 2.5 s | 100,000 | tp 1 |" in text and "| 8,192 | nothing fits |" in text


@pytest.mark.slow
def test_a_mixed_pool_says_what_mixing_brings_and_what_stays_idle() -> None:
    document = copy.deepcopy(mixed())
    document["mixed"]["idle"] = {"A100-80GB-SXM": 3}
    text = astra.report(document, quick=True).markdown()
    for gpu, step_s in document["mixed"]["alone_step_s"].items():
        said = "nothing fits" if step_s is None else seconds(step_s)
        assert f"| {short_name(gpu)} alone | {said} |" in text
    assert "Idle: 3 A100-80GB-SXM" in text


def test_a_report_of_another_rank_is_about_that_plan() -> None:
    document = searched()
    other = document["plans"][2]
    text = astra.report(document, rank=3, quick=True).markdown().replace("\\", "")
    first, _, rest = text.partition("## ")
    assert f"Plan 3: {seconds(other['step_s'])} a step with {other['summary']}." in first
    assert document["answer"]["sentence"] not in text
    assert "--rank 3 --to megatron" in rest
