"""One plan with what it takes, and what can be asked of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.api.saving import Saved
from astra.api.words import in_python_words, python_words
from astra.cost.result import PricedPlan
from astra.report.html import charts_html, page_html
from astra.report.plan_table import to_frame
from astra.report.priced_plan import sentence

if TYPE_CHECKING:
    from astra.api.explanations import Explanation
    from astra.api.exports import ExportedJob
    from astra.api.reports import Report
    from astra.api.traces import StepTrace


class Prediction(PricedPlan, Saved, frozen=True, kw_only=True):
    """A plan with its seconds, bytes and dollars; `predict` gives one, an answer of `plan` many.

    >>> import astra
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 8}, tp=2, global_batch=32, seq_len=4096)
    >>> priced.plan.tp, priced.plan.dp, priced.memory.fits
    (2, 4, True)
    """

    def __repr__(self) -> str:
        return f"Prediction({sentence(self)})"

    def _repr_html_(self) -> str:
        from astra.report.plan_page import plan_page

        return page_html(plan_page(self), python_words) + charts_html(self.to_dict())

    @in_python_words
    def explain(
        self, against: str | Mapping[str, Any] | None = None, *, quick: bool = False
    ) -> "Explanation":
        """Why it is as fast as it is, and why not a plan of other settings (`{"tp": 4}`)."""
        from astra.api.explanations import explain_answer

        return explain_answer(self, against, quick=quick)

    @in_python_words
    def export(self, target: str, out: str | Path, **options: Any) -> "ExportedJob":
        """Its launch files; options as those of `astra.export`."""
        from astra.api.exports import export

        return in_python_words(export)(self, target, out, **options)

    @in_python_words
    def trace(self, out: str | Path | None = None) -> "StepTrace":
        """Its simulated step, operation by operation; `out` as that of `astra.trace`."""
        from astra.api.traces import trace

        return trace(self, out)

    @in_python_words
    def plot(self, path: str | Path) -> Path:
        """Its charts, as .svg, .png or .html."""
        from astra.api.pictures import save_picture

        return save_picture(self, path)

    @in_python_words
    def report(self, out: str | Path | None = None, *, quick: bool = False) -> "Report":
        """All of it on one page, with pictures; `out` as that of `astra.report`."""
        from astra.api.reports import report

        return report(self, out, quick=quick)

    @in_python_words
    def to_pandas(self) -> Any:
        """One row, where pandas is installed."""
        return to_frame(self, "pandas")


def prediction_of(priced: PricedPlan) -> Prediction:
    return Prediction(**msgspec.structs.asdict(priced))
