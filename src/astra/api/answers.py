"""The answer of a search, and what can be asked of it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import msgspec

from astra.api.prediction import Prediction, prediction_of
from astra.api.saving import Saved
from astra.api.words import in_python_words, python_words
from astra.money.goals import goals_missed
from astra.report.document import AnswerDocument, document
from astra.report.headline import headline_of
from astra.report.html import charts_html, page_html
from astra.report.plan_table import to_frame
from astra.report.priced_plan import seconds
from astra.search.objectives import OBJECTIVES
from astra.search.result import Result

if TYPE_CHECKING:
    from astra.api.explanations import Explanation
    from astra.api.exports import ExportedJob
    from astra.api.reports import Report
    from astra.api.traces import StepTrace

PLANS_IN_REPR = 3
CHARACTERS_OF_REASON = 240  # of what binds where there is no plan


class Answer(AnswerDocument, Saved, frozen=True, kw_only=True):
    """What a search says, in the words of the JSON.

    >>> import astra
    >>> answer = astra.plan("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096, tp=1)
    >>> answer.search.status, len(answer.plans) > 1, answer.best is answer.plans[0]
    ('proven', True, True)
    """

    plans: tuple[Prediction, ...]
    frontier: tuple[Prediction, ...] = ()

    @property
    def best(self) -> Prediction | None:
        return self.plans[0] if self.plans else None

    def __repr__(self) -> str:
        search, request = self.search, self.request
        gpus = " + ".join(f"{count} {name}" for name, count in request.gpus.items())
        found = {0: "no plan", 1: "1 plan"}.get(len(self.plans), f"{len(self.plans)} plans")
        lines = [
            f"Answer({request.model} on {gpus}, batch {request.global_batch:,} x "
            f"{request.seq_len:,}: {found} of {search.candidates:,} candidates, {search.status})"
        ]
        for plan in self.plans[:PLANS_IN_REPR]:
            lines.append(f"  {plan.rank}  {seconds(plan.step_s)}  {plan.summary}")
        if self.nothing_fits is not None:
            why = shorten(self.nothing_fits.binding, CHARACTERS_OF_REASON, placeholder=" ...")
            fits = "nothing fits: " if self.nothing_fits.closest else ""
            lines.append(f"  {fits}{python_words(why)}; see .nothing_fits")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from astra.report.answer import answer_parts

        return page_html(answer_parts(self), python_words) + charts_html(self.to_dict())

    @in_python_words
    def explain(
        self,
        rank: int = 1,
        against: str | Mapping[str, Any] | None = None,
        *,
        quick: bool = False,
    ) -> "Explanation":
        """Why the plan of this rank, and why not those of these settings (`{"tp": 4, "pp": 8}`)."""
        from astra.api.explanations import explain_answer

        return explain_answer(self, against, rank, quick=quick)

    @in_python_words
    def export(self, target: str, out: str | Path, **options: Any) -> "ExportedJob":
        """Launch files of the best plan, or of that of a `rank`; options as of `astra.export`."""
        from astra.api.exports import export

        return in_python_words(export)(self, target, out, **options)

    @in_python_words
    def trace(self, out: str | Path | None = None, *, rank: int = 1) -> "StepTrace":
        """The simulated step of the plan of this rank; `out` as that of `astra.trace`."""
        from astra.api.traces import trace

        return trace(self, out, rank=rank)

    @in_python_words
    def report(
        self, out: str | Path | None = None, *, rank: int = 1, quick: bool = False
    ) -> "Report":
        """All of it on one page, with pictures; `out` as that of `astra.report`."""
        from astra.api.reports import report

        return report(self, out, rank=rank, quick=quick)

    @in_python_words
    def plot(self, path: str | Path) -> Path:
        """Its charts, as .svg, .png or .html."""
        from astra.api.pictures import save_picture

        return save_picture(self, path)

    @in_python_words
    def to_pandas(self) -> Any:
        """A row a plan, best first, where pandas is installed."""
        return to_frame(self.plans, "pandas")


def answer_of(result: Result) -> Answer:
    found = document(result)
    fields = msgspec.structs.asdict(found) | {"headline": headline_of(found)}
    lists = {name: tuple(map(prediction_of, fields[name])) for name in ("plans", "frontier")}
    return Answer(**fields | lists)


def best_answer(answers: Sequence[Answer]) -> Answer:
    """Of answers for several batches the one that keeps the goals, or comes nearest to them; of
    those that keep them, the first in the order asked for.
    """
    return min(answers, key=_precedence)


def _precedence(answer: Answer) -> tuple[float, ...]:
    """What the best plan of an answer misses, then what is to be small of it."""
    best, market = answer.best, answer.market
    if best is None:
        return (math.inf,)
    if market is not None:
        assert best.hours is not None and best.usd is not None
        missed = goals_missed(best.hours, best.usd, market.deadline_hours, market.budget_usd)
        first = {"throughput": best.hours, "cost": best.usd, "knee": best.hours * best.usd}
        return (*missed, first[market.order])
    if answer.request.objective == "gpus":
        below = best.tokens_per_s < answer.request.min_tokens_per_s
        return below, 0 if below else sum(best.gpus.values()), -best.tokens_per_s
    measure = OBJECTIVES[answer.request.objective].measure
    if measure is not None:
        return (measure.of(best) / (best.plan.global_batch * best.plan.seq_len),)
    return (-best.tokens_per_s if best.hours is None else best.hours,)
