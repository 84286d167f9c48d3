"""Charts and simulated steps of an answer, for pages that show it."""

from typing import Any

import msgspec

from astra.api import trace
from astra.cost.result import PricedPlan
from astra.errors import InputError
from astra.explain.result import ExplanationDocument
from astra.files import convert
from astra.report.document import AnswerDocument
from astra.report.svg.charts import CHARTS, LEAST_WIDTH, MAX_WIDTH, charts_of, draw
from astra.values import number, whole_number

TIMELINE = "timeline"


class ChartsQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Charts of an answer as SVG; what it has nothing for is left out."""

    plan: dict[str, Any]  # an answer of plan, a priced plan, or an explanation
    charts: dict[str, float] | None = None  # pixels by name; else all, of 860
    rank: int = 1
    memory_margin: float | None = None  # of a priced plan, which does not say it
    from_s: float = 0.0  # the part of the step that the timeline shows
    to_s: float | None = None

    def answer(self, how: object) -> object:  # noqa: ARG002 - nothing is searched
        document = _checked(self.plan, self.memory_margin)
        fitting = charts_of(document)
        drawn = {}
        for name, width in (self.charts or dict.fromkeys(fitting, 860.0)).items():
            if name == TIMELINE:
                drawn[name] = self._timeline(width)
            elif name in fitting or name not in CHARTS:  # draw says which there are
                drawn[name] = draw(name, document, width, self.rank)
        return ChartsAnswer(charts=drawn)

    def _timeline(self, width: float) -> str:
        number(width, "charts.timeline", least=LEAST_WIDTH, most=MAX_WIDTH)
        step = trace(self.plan, rank=self.rank)
        return step.svg(width, from_s=self.from_s, to_s=self.to_s)


class ChartsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Charts as SVG, by name."""

    charts: dict[str, str]


class TraceQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated step of a plan in numbers, in the words of `astra trace`."""

    plan: dict[str, Any]
    rank: int = 1

    def answer(self, how: object) -> object:  # noqa: ARG002 - nothing is searched
        return trace(self.plan, rank=whole_number(self.rank, "rank"))


def _checked(document: dict[str, Any], margin: float | None) -> dict[str, Any]:
    """What charts may be drawn of: the document of an answer, whole and of the right types."""
    if "plans" in document:
        kind: type = AnswerDocument
    elif "step_parts_s" in document:
        kind = PricedPlan
    elif "exchanges" in document:
        kind = ExplanationDocument
    else:
        raise InputError("plan: charts are of an answer, a priced plan or an explanation.")
    found: dict[str, Any] = msgspec.to_builtins(convert(document, kind, "plan"))
    if kind is PricedPlan and margin is not None:
        kept = number(margin, "memory_margin", least=0.0, most=0.99)
        return {"request": {"memory_margin": kept}, "plans": [found]}
    return found
