"""What binds, what would change it, what figures rest on, and how to run the plan."""

from astra.explain.result import ExplanationDocument
from astra.report.amounts import hours, usd
from astra.report.explain import MAX_NEXT_PLANS, bytes_text, difference_line, link_words, price_line
from astra.report.note_lines import of_ranks
from astra.report.priced_plan import GIB, export_target, seconds
from astra.report.sheet.blocks import (
    CommandLines,
    Grid,
    Items,
    PageBlock,
    Picture,
    Section,
    Words,
)
from astra.report.sheet.head import TIMES, WIDTH_PX
from astra.report.svg.changes import change_rows, changes_title
from astra.report.svg.charts import charts_of, draw
from astra.report.svg.frontier import GIVEN
from astra.report.svg.priced import Document, priced_plans

CONSTRAINTS = {
    "plan": "a better plan",
    "memory": "memory",
    "network": "the network",
    "link": "links between GPUs",
    "bubble": "the bubble",
    "batch": "the batch",
    "compute": "compute",
}


def why_sections(explained: ExplanationDocument | None) -> list[Section]:
    """What binds, and what one GPU sends."""
    if explained is None:
        return []
    costs = sorted(explained.binding.cost_s.items(), key=lambda each: -each[1])
    rows = tuple(
        (CONSTRAINTS[name], seconds(cost), f"{cost / explained.step_s:.1%}")
        for name, cost in costs
        if cost > 0
    )
    header = ("the step loses to", "seconds", "of the step")
    blocks: list[PageBlock] = [Words(explained.binding.sentence)]
    blocks += [Grid(header, rows, frozenset({1, 2}))] if rows else []
    sent = tuple(
        (
            f"{each.group} {each.ranks}",
            f"{each.operation}, {each.what}",
            f"{each.count:,.0f}",
            bytes_text(each.sent_bytes),
            link_words(each),
        )
        for each in explained.exchanges
    )
    found = [Section("What binds", tuple(blocks))]
    later = () if explained.money else explained.next_plans[:MAX_NEXT_PLANS]
    lost = tuple((str(each.rank), each.summary, difference_line(explained, each)) for each in later)
    if lost:
        grid = Grid(("", "plan", "its parts that take more or less"), lost, frozenset({0}))
        found.append(Section("What the next plans take more or less", (grid,)))
    if sent:
        names = ("group", "what one GPU sends in a step", "times", "sent", "")
        found.append(Section("Traffic", (Grid(names, sent, frozenset({2, 3})),)))
    return found


def change_sections(document: Document, explained: Document | None) -> list[Section]:
    """What would change the step, or the answer."""
    found = []
    for each in (explained, document):
        if each is None or "changes" not in charts_of(each):
            continue
        rows = tuple((row.name, row.words) for row in change_rows(each))
        picture = Picture(
            draw("changes", each, WIDTH_PX), Grid(("if", "the change"), rows, frozenset({1}))
        )
        found.append(Section(changes_title(each), (picture,)))
    return found


def price_section(explained: ExplanationDocument | None) -> list[Section]:
    if explained is None or not explained.prices:
        return []
    moves = tuple(price_line(each).strip() for each in explained.prices)
    return [Section("How far a price must move for another answer", (Items(moves),))]


def provenance_section(plan: Document) -> Section:
    """The interval of each figure, and what all of them rest on."""
    origin, memory = plan["provenance"], plan["memory"]
    rows = [
        (
            "step",
            seconds(plan["step_s"]),
            f"{seconds(plan['step_s_low'])} to {seconds(plan['step_s_high'])}, {TIMES}",
        )
    ]
    if plan.get("hours_low") is not None:
        low, high = plan["hours_low"], plan["hours_high"]
        rows.append(("hours", f"{plan['hours']:,.1f}", f"{low:,.1f} to {high:,.1f}, {TIMES}"))
    if plan.get("usd_low") is not None:
        low, high = usd(plan["usd_low"]), usd(plan["usd_high"])
        rows.append(("dollars", usd(plan["usd"]), f"{low} to {high}, {TIMES}"))
    need = f"{memory['reserved_bytes'] / GIB:.1f} of {memory['usable_bytes'] / GIB:.1f} GiB"
    rows.append(("fullest GPU", need, f"fits with probability {memory['fit_probability']:.0%}"))
    said = (
        f"Of the busy time {origin['measured_fraction']:.0%} was measured, "
        f"{origin['fitted_fraction']:.0%} fitted, {origin['guessed_fraction']:.0%} guessed; step "
        f"times of the stack {plan['plan']['stack']}."
    )
    grid = Grid(("figure", "predicted", "interval"), tuple(rows), frozenset({1}))
    blocks: list[PageBlock] = [grid, Words(said), Items(tuple(origin["notes"]))]
    return Section("What the figures rest on", tuple(blocks))


def search_section(document: Document) -> list[Section]:
    """The funnel, from candidates to plans."""
    search = document.get("search")
    if not search:
        return []
    removed = search["removed_by_rule"]
    rows = [
        ("candidates", search["candidates"]),
        ("against rules", sum(removed.values())),
        ("shown not to be better by a bound", search["bounded"]),
        ("estimated, not priced", search.get("estimated", 0)),
        ("priced", search["priced"]),
        ("of these too large for memory", search["out_of_memory"]),
        ("simulated event by event", search["simulated"]),
    ]
    cells = tuple((name, f"{count:,}") for name, count in rows if count)
    gap = search.get("gap_fraction")
    status = search["status"].replace("_", " ")
    sure = f"; no plan of the space is better by more than {gap:.1%}" if gap else ""
    said = f"Status: {status}{sure}; {search['seconds']:.1f} s."
    return [Section("How it was found", (Words(said), Grid(("", "plans"), cells, frozenset({1}))))]


def notes_section(
    document: Document, plan: Document | None, explained: ExplanationDocument | None
) -> list[Section]:
    """What was taken for granted, and every warning and note."""
    said = [("Warning", text) for text in _warnings(document, plan)]
    said += [("Assumed", text) for text in (plan or {}).get("assumed", ())]
    said += [("Note", text) for text in (document.get("request") or {}).get("notes", ())]
    said += [("Note", text) for text in (explained.notes if explained else ())]
    market = document.get("market")
    if market and market["longest_hours"]:
        longest = hours(market["longest_hours"])
        said.append(("Note", f"plans that take longer than {longest} are left out"))
    if market and any(machine["cloud"] != GIVEN for machine in market["machines"]):
        said.append(("Note", "list prices; a price is no promise of capacity"))
    texts = tuple(dict.fromkeys(f"{kind}: {text}" for kind, text in said))
    return [Section("Assumptions and warnings", (Items(texts),))] if texts else []


def _warnings(document: Document, plan: Document | None) -> list[str]:
    """Of all plans that the report shows, with the ranks of those that they hold for."""
    plans = document.get("frontier") or priced_plans(document) or ([plan] if plan else [])
    ranks: dict[str, list[int]] = {}
    for each in plans:
        for text in each["warnings"]:
            ranks.setdefault(text, []).append(each["rank"])
    return [of_ranks(text, sorted(warned), len(plans)) for text, warned in ranks.items()]


def run_section(document: Document, plan: Document | None, file: str) -> list[Section]:
    """How to run it, and to ask again."""
    lines = []
    if plan is not None and plan["memory"]["fits"]:
        target = export_target(plan["plan"]["runtime"], len(plan["gpus"]))
        which = f" --rank {plan['rank']}" if plan["rank"] > 1 else ""
        if target:
            lines.append(f"astra export {file}{which} --to {target} --out job")
    command = (document.get("request") or {}).get("command")
    if command:
        lines.append(command)
    return [Section("To run it, and to ask again", (CommandLines(tuple(lines)),))] if lines else []
