"""What would be if something were different: seconds, dollars or shares of the step."""

from astra.report.amounts import usd_short
from astra.report.priced_plan import seconds
from astra.report.svg.bars import Row, diverging_svg
from astra.report.svg.priced import Document

STEP, RUN = "What would change the step", "What would change the cost of the run"


def change_rows(document: Document) -> list[Row]:
    """Of an explanation or of an answer to what-ifs; in one unit."""
    market = (document.get("market") or {}).get("what_if")
    if market:
        return [_dollars(market)]
    rows = [*(document.get("changes") or ()), *(document.get("what_if") or ())]
    return [_row(row) for row in rows]


def changes_title(document: Document) -> str:
    return RUN if (document.get("market") or {}).get("what_if") else STEP


def changes_svg(document: Document, width: float) -> str:
    rows = sorted(change_rows(document), key=lambda row: (row.value is None, row.value or 0.0))
    return diverging_svg(rows, width, changes_title(document))


def _row(change: Document) -> Row:
    plan = change.get("plan")
    if plan is None:
        return Row(change["what"], None, "nothing fits")
    if change.get("step_change_fraction") is not None:
        share = change["step_change_fraction"]
        return Row(change["what"], share, f"{share:+.1%}")
    more = plan["slower_s"]
    return Row(change["what"], more, signed_seconds(more))


def signed_seconds(value: float) -> str:
    """
    >>> signed_seconds(0.25), signed_seconds(-0.0123), signed_seconds(0.0)
    ('+0.25 s', '-12.3 ms', '0 ms')
    """
    if not value:
        return seconds(0.0)
    return f"{'+' if value > 0 else '-'}{seconds(abs(value))}"


def _dollars(change: Document) -> Row:
    if change["plan"] is None:
        return Row(change["what"], None, "nothing fits")
    more = change["usd_change"]
    return Row(change["what"], more, f"{'+' if more >= 0 else '-'}{usd_short(abs(more))}")
