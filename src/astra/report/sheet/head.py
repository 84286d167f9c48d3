"""The first part of a report: the question, the answer, its figures and its rivals."""

from astra.report.amounts import gpus_text, tokens, usd
from astra.report.fit_risk import risk_of
from astra.report.priced_plan import GIB, seconds
from astra.report.sheet.blocks import (
    Cell,
    Drawn,
    Grid,
    PageBlock,
    Picture,
    Section,
    Tile,
    Tiles,
    Words,
)
from astra.report.svg.charts import draw
from astra.report.svg.frontier import place_words, price_dates
from astra.report.svg.priced import Document, priced_plans
from astra.report.svg.whiskers import whisker_cell
from astra.search.objectives import OBJECTIVES

WIDTH_PX = 680.0  # of a picture on a page of A4
TIMES = "four times of five"


def question(document: Document, plan: Document | None) -> str:
    """What was asked, in one line."""
    request = document.get("request")
    if request:
        name, gpus = request["model"], f"up to {gpus_text(request['gpus'])}"
        if request.get("use_all"):
            gpus = gpus_text(request["gpus"])
        batch, length, precision = (request[k] for k in ("global_batch", "seq_len", "precision"))
        runtimes = " or ".join(request.get("runtimes") or [request["runtime"]])
    else:
        assert plan is not None
        said = plan["plan"]
        name, gpus = said["model"]["name"], gpus_text(plan["gpus"])
        batch, length, precision = (said[k] for k in ("global_batch", "seq_len", "precision"))
        runtimes = said["runtime"]
    return f"{name} on {gpus}, {batch:,} x {length:,} tokens a step, {precision}, {runtimes}"


def wished(document: Document) -> str:
    """What of all plans was wanted."""
    request, market = document.get("request"), document.get("market")
    if market:
        goals = [f"deadline {market['deadline_hours']:,.6g} h"] if market["deadline_hours"] else []
        goals += [f"budget {usd(market['budget_usd'])}"] if market["budget_usd"] else []
        return ", ".join([f"hours against dollars for {tokens(market['tokens'])} tokens", *goals])
    row = OBJECTIVES.get(request["objective"]) if request else None
    return f"wanted: {row.about}" if row else ""


def headline(document: Document, plan: Document | None) -> list[PageBlock]:
    """The answer in a few words, and in a sentence; of another plan than the recommended one its
    own.
    """
    answer = _said_of(document, plan)
    title, said = answer.get("title"), answer.get("sentence")
    if title and said:
        return [Words(title, "lead"), Words(said)]
    if not said:
        said = "No plan fits."
        if plan is not None and not document.get("nothing_fits"):
            which = f"Plan {plan['rank']}: " if plan["rank"] > 1 else ""
            said = f"{which}{seconds(plan['step_s'])} a step with {plan['summary']}."
    return [Words(said, "lead")]


def _said_of(document: Document, plan: Document | None) -> Document:
    """What the answer says first, where that is about this plan."""
    found: Document = document.get("answer") or {}
    return found if plan is None or plan["rank"] == 1 or document.get("nothing_fits") else {}


def answer_blocks(document: Document, plan: Document | None) -> tuple[PageBlock, ...]:
    """The sentence, how sure the plan is to fit, and its figures."""
    answer, blocks = _said_of(document, plan), headline(document, plan)
    if plan is None or document.get("nothing_fits"):
        return tuple(blocks)
    chance = plan["memory"]["fit_probability"]
    risk = answer.get("risk") or risk_of(chance)
    if not plan["memory"]["fits"]:
        blocks.append(Words(f"It does not fit: {_need(plan)}.", "risky"))
    else:
        blocks.append(Words(f"{risk.capitalize()}: it fits with probability {chance:.0%}.", risk))
    safer = answer.get("safer")
    if safer:
        blocks.append(Words(safer["sentence"]))
    return (*blocks, Tiles(tuple(_tiles(plan))))


def _need(plan: Document) -> str:
    memory = plan["memory"]
    need, usable = memory["reserved_bytes"] / GIB, memory["usable_bytes"] / GIB
    return f"{need:.1f} of {usable:.1f} GiB"


def _tiles(plan: Document) -> list[Tile]:
    memory, origin = plan["memory"], plan["provenance"]
    low, high = seconds(plan["step_s_low"]), seconds(plan["step_s_high"])
    found = []
    if plan.get("usd") is not None and plan.get("hours") is not None:
        found += [
            Tile("Cost", usd(plan["usd"]), _span(plan, "usd")),
            Tile("Time", f"{plan['hours']:,.4g} h", _span(plan, "hours")),
        ]
    energy = plan.get("energy")
    if energy:
        whole = energy.get("run_kwh")
        below = f"a step; {whole:,.0f} kWh in all" if whole else "a step"
        found.append(Tile("Energy", f"{energy['step_kwh']:.3g} kWh", below))
    return [
        *found,
        Tile("Step", seconds(plan["step_s"]), f"{low} to {high}, {TIMES}"),
        Tile(
            "Tokens a second",
            f"{plan['tokens_per_s']:,.0f}",
            f"{plan['tokens_per_s_per_gpu']:,.0f} a GPU",
        ),
        Tile("MFU", f"{plan['mfu_fraction']:.1%}", f"of the {plan['plan']['precision']} peak"),
        Tile("Fullest GPU", _need(plan), f"stage {memory['worst_stage']}"),
        Tile(
            "Rests on",
            f"{origin['measured_fraction']:.0%} measured",
            f"{origin['fitted_fraction']:.0%} fitted, {origin['guessed_fraction']:.0%} guessed",
        ),
    ]


def _span(plan: Document, field: str) -> str:
    """From low to high, where the answer says so."""
    low, high = plan.get(f"{field}_low"), plan.get(f"{field}_high")
    if low is None or high is None:
        return ""
    ends = (usd(low), usd(high)) if field == "usd" else (f"{low:,.4g} h", f"{high:,.4g} h")
    return f"{ends[0]} to {ends[1]}, {TIMES}"


def rivals(document: Document, plan: Document) -> list[Section]:
    """The plans beside the recommended one: by their steps, or by hours and dollars."""
    if document.get("market"):
        return [_frontier(document)]
    plans = priced_plans(document)
    if len(plans) < 2 or document.get("nothing_fits"):
        return []
    differ = len({tuple(each["gpus"].items()) for each in plans}) > 1
    energy = any(each.get("energy") for each in plans)
    columns: dict[str, list[Cell]] = {
        "": [str(each["rank"]) for each in plans],
        "plan": [each["summary"] for each in plans],
        **({"GPUs": [gpus_text(each["gpus"]) for each in plans]} if differ else {}),
        **({"kWh": [_kwh(each) for each in plans]} if energy else {}),
        "step": [seconds(each["step_s"]) for each in plans],
        f"interval, {TIMES}": [_interval(each, plans) for each in plans],
        "tokens/s": [f"{each['tokens_per_s']:,.0f}" for each in plans],
        "fullest GPU": [f"{each['memory']['reserved_bytes'] / GIB:.1f} GiB" for each in plans],
        "fits": [f"{each['memory']['fit_probability']:.0%}" for each in plans],
    }
    words = ("plan", "GPUs", f"interval, {TIMES}")
    numbers = frozenset(place for place, name in enumerate(columns) if name not in words)
    strong = next((row for row, each in enumerate(plans) if each is plan), None)
    rows = tuple(zip(*columns.values(), strict=True))
    grid = Grid(tuple(columns), rows, numbers, strong)
    ties = (document.get("answer") or {}).get("ties")
    said: tuple[PageBlock, ...] = (Words(ties["why"]),) if ties else ()
    batches = _batches(document)
    return [Section("The plan and its rivals", (*said, grid, *_on_paper(document))), *batches]


def _interval(plan: Document, plans: list[Document]) -> Cell:
    words = f"{seconds(plan['step_s_low'])} to {seconds(plan['step_s_high'])}"
    return Drawn(whisker_cell(plan, plans), words)


def _kwh(plan: Document) -> str:
    energy = plan.get("energy")
    return f"{energy['step_kwh']:.3g}" if energy else ""


def _on_paper(document: Document) -> list[PageBlock]:
    """The fastest of all, where risk put another plan first."""
    fastest, best = document.get("fastest_on_paper"), document["plans"][0]
    if not fastest or fastest["step_s"] >= best["step_s"]:
        return []
    change, chance = fastest["step_s"] / best["step_s"] - 1, fastest["memory"]["fit_probability"]
    return [
        Words(
            f"Fastest on paper: {seconds(fastest['step_s'])} ({change:+.1%}) with "
            f"{fastest['summary']}; it fits with probability {chance:.0%}."
        )
    ]


def _batches(document: Document) -> list[Section]:
    """The best plan of each batch, where several were asked for."""
    rows = tuple(
        (
            f"{row['global_batch']:,}",
            "nothing fits" if row["step_s"] is None else seconds(row["step_s"]),
            "" if row["tokens_per_s"] is None else f"{row['tokens_per_s']:,.0f}",
            row["summary"] or "",
        )
        for row in document.get("batches") or ()
    )
    grid = Grid(("batch", "step", "tokens/s", "best plan"), rows, frozenset({0, 1, 2}))
    return [Section("The batches that were asked for", (grid,))] if rows else []


def _frontier(document: Document) -> Section:
    """The picture, and every point of it."""
    market, points = document["market"], document["frontier"]
    rows = []
    for point in points:
        rents = (point.get("money") or {}).get("rents", ())
        where = "; ".join(dict.fromkeys(map(place_words, rents)))
        rows.append(
            (
                str(point["rank"]),
                f"{point['hours']:,.1f}",
                f"{point['usd']:,.0f}",
                f"{point['usd_per_hour']:,.2f}",
                f"{point['money']['usd_per_million_tokens']:.4g}",
                gpus_text(point["gpus"]),
                where,
                point["summary"],
            )
        )
    header = ("rank", "hours", "USD", "USD/h", "USD/Mtok", "GPUs", "where", "plan")
    grid = Grid(header, tuple(rows), frozenset({0, 1, 2, 3, 4}), market["chosen"] - 1)
    said = (
        f"{len(points)} plans of which none is both slower and dearer than another; "
        f"{price_dates(points)}."
    )
    if len(points) < 2:
        return Section("Time against money", (Words(said), grid))
    picture = Picture(draw("frontier", document, WIDTH_PX))
    return Section("Time against money", (Words(said), picture, grid))
