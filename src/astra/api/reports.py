"""A finished report of an answer: one HTML file, or Markdown for a pull request."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.api.saving import out_path
from astra.api.words import in_python_words, python_words
from astra.errors import InputError, shorten
from astra.report.sheet.blocks import Sheet
from astra.values import whole_number

if TYPE_CHECKING:
    from astra.api.sources import PlanSource
    from astra.explain.result import ExplanationDocument

FORMATS = {".html": "html", ".htm": "html", ".md": "md"}
Json = Mapping[str, Any]


class Report:
    """A report, to be looked at in a notebook or written to a file.

    >>> import astra
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096)
    >>> report = astra.report(priced, quick=True)
    >>> report.html().startswith("<!doctype html>"), report.markdown().splitlines()[0]
    (True, '# llama-3-8b on 8 H100-80GB-SXM')
    """

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet

    def __repr__(self) -> str:
        return f"Report({self.sheet.title})"

    def html(self) -> str:
        """One file: no script, and nothing that is loaded from elsewhere."""
        from astra.report.sheet.page import page

        return page(self.sheet)

    def markdown(self) -> str:
        """The same figures, with tables in place of pictures."""
        from astra.report.sheet.markdown import markdown

        return markdown(self.sheet)

    def _repr_html_(self) -> str:
        from astra.report.sheet.page import body

        pieces = re.split(r"(<svg.*?</svg>)", body(self.sheet), flags=re.DOTALL)
        return "".join(each if each[:4] == "<svg" else python_words(each) for each in pieces)

    @in_python_words
    def save(self, path: str | Path, *, format: str | None = None) -> Path:  # noqa: A002
        """As HTML or Markdown: as `format` says, else as the name ends."""
        from astra.export.folder import write_folder

        kind, place = report_format(path, format), out_path(path, "--out")
        content = self.html() if kind == "html" else self.markdown()
        write_folder(place.parent, {place.name: content})
        return place


def report_format(path: str | Path, said: str | None) -> str:
    """`html` or `md`: what was said, else what the file's name asks for."""
    if said is not None:
        if said not in FORMATS.values():
            raise InputError(f"--format {shorten(said)}: use html or md.")
        return said
    kind = FORMATS.get(Path(str(path)).suffix.lower())
    if kind is None:
        raise InputError(
            f"--out {shorten(str(path))}: the name ends in .html or .md; or say --format."
        )
    return kind


def report(
    source: "PlanSource",
    out: str | Path | None = None,
    *,
    rank: int = 1,
    format: str | None = None,  # noqa: A002
    quick: bool = False,
    say: Callable[[str], None] | None = None,
) -> Report:
    """All that is to say and to see of an answer, on one page.

    `source` is an answer of `plan`, a priced or a bare plan, an imported job, or a file with any
    of them; `rank` says which plan of an answer. `out` is a file for it (.html or .md). `quick`
    leaves out what would change the plan, which takes searches. `say` is told what is being done.

    >>> import astra
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096)
    >>> astra.report(priced, quick=True)
    Report(llama-3-8b on 8 H100-80GB-SXM)
    """
    if format is not None or out is not None:
        report_format(out or "", format)
    if out is not None:
        out_path(out, "--out")
    tell = say or (lambda _: None)
    document, name = _document(source)
    found = Report(_sheet(document, name, whole_number(rank, "--rank"), quick, tell))
    if out is not None:
        found.save(out, format=format)
    return found


def _sheet(
    document: Json,
    name: str,
    rank: int,
    quick: bool,
    say: Callable[[str], None],
) -> Sheet:
    from astra.report.sheet.build import sheet_of
    from astra.report.svg.priced import priced_plan

    if document.get("nothing_fits"):
        return sheet_of(document, file=name)
    plan = priced_plan(document, rank)
    timeline = None
    if _is_drawn(plan):
        from astra.report.sheet.head import WIDTH_PX
        from astra.report.svg.charts import draw

        say("simulating the step")
        timeline = draw("timeline", document, WIDTH_PX, rank)
    explained = _explained(document, rank, quick, say)
    say("drawing")
    return sheet_of(document, rank=rank, explained=explained, timeline=timeline, file=name)


def _explained(
    document: Json, rank: int, quick: bool, say: Callable[[str], None]
) -> "ExplanationDocument":
    from astra.api.explanations import explain_answer

    say("asking what binds")
    plan = document.get("job", {}).get("plan")
    return explain_answer(
        plan or document, rank=rank, quick=quick, say=lambda what: say(f"searching {what}")
    )


def _is_drawn(plan: Json) -> bool:
    """A step of too many operations has no timeline; the report goes on without."""
    from astra.api.traces import MAX_OPERATIONS

    said = plan["plan"]
    operations = sum(
        2 * each["micro_batches"] * sum(segment["stages"] for segment in each["segments"])
        for each in said["pipelines"]
    )
    return operations * said["vpp"] <= MAX_OPERATIONS


def _document(source: "PlanSource") -> tuple[Json, str]:
    """What the JSON of a source says, and the name of its file."""
    from astra.cost.result import PricedPlan
    from astra.files import read_json
    from astra.report.document import AnswerDocument
    from astra.strategy.plan import Plan

    if isinstance(source, AnswerDocument | PricedPlan):
        return msgspec.to_builtins(source), "result.json"
    if isinstance(source, Plan):
        return _priced(source), "plan.json"
    if isinstance(source, str | Path):
        found, name = read_json(Path(source)), Path(source).name
    elif isinstance(source, Mapping):
        found, name = dict(source), "result.json"
    else:
        raise InputError(f"source = {shorten(source)}: an answer, a plan or a file is needed.")
    if not isinstance(found, dict):
        raise InputError(f"{name}: holds no answer, no plan and no job.")
    if not {"plans", "step_parts_s", "framework"} & found.keys():
        return _priced(found), name
    from astra.report.sheet.checked import checked

    whole = checked(found, name)
    is_job = "framework" in found  # that was imported
    return {"job": whole, "predicted": _priced(found)} if is_job else whole, name


def _priced(source: Any) -> Json:
    """A bare plan with its seconds and bytes."""
    from astra.api.sources import checked_plan
    from astra.cost.price import price_plan
    from astra.report.words import with_words
    from astra.strategy.outside_space import outside_space

    plan = checked_plan(source)
    found: Json = msgspec.to_builtins(with_words(price_plan(plan, notes=outside_space(plan))))
    return found
