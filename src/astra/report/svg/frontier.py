"""Hours against dollars: the plans of which none is both slower and dearer than another."""

from itertools import pairwise

from astra.report.amounts import DAY_H, tokens, usd, usd_short
from astra.report.gpus import short_gpus, short_name
from astra.report.svg.axis import LogScale, log_scale, log_ticks, number, picture, text, text_width
from astra.report.svg.colours import paint
from astra.report.svg.labels import Point, Wanted, boxes_along, dot_box, label_box, placed_labels
from astra.report.svg.marks import HOLLOW, RINGED, hollow, kind_of, kinds_legend, kinds_of, mark
from astra.report.svg.priced import Document
from astra.report.svg.shapes import line, rect

TOP, RIGHT, BOTTOM = 34.0, 16.0, 40.0
ANSWER = "the answer"
RING_PX = 11.0  # around the answer
WORDY_PX = 600  # from this width on labels have figures
IN_DAYS_H = 3 * DAY_H  # from so many hours on the axis counts days
GIVEN = "given"  # the cloud of a price that the user said
FAR = 10.0  # a goal so many times beyond all plans is left out


def frontier_svg(document: Document, width: float) -> str:
    """Dots joined along what can be had, goals as dashed lines; both axes logarithmic."""
    points, market = document["frontier"], document["market"]
    hours, dollars = [p["hours"] for p in points], [p["usd"] for p in points]
    wordy, plot_height = width >= WORDY_PX, max(200.0, min(340.0, 0.42 * width))
    in_days = max(hours) >= IN_DAYS_H
    unit, unit_h = ("days", DAY_H) if in_days else ("hours", 1.0)
    deadline = _near(market["deadline_hours"], hours)
    budget = _near(market["budget_usd"], dollars)
    changed = (market.get("what_if") or {}).get("frontier") or []
    all_dollars = [*dollars, *budget, *(p["usd"] for p in changed)]
    up = log_scale(all_dollars, TOP + plot_height, TOP)
    prices = log_ticks(up.low, up.high)
    left = max(text_width(usd_short(price), 11) for price in prices) + 10
    all_hours = [*hours, *deadline, *(p["hours"] for p in changed)]
    across = log_scale(all_hours, left, width - RIGHT)
    places = [(across.at(h), up.at(d)) for h, d in zip(hours, dollars, strict=True)]
    bottom = TOP + plot_height
    parts = [*_shade(across, deadline, bottom), *_axes(across, up, prices, unit_h)]
    parts += _titles(width, bottom, f"{unit} for {tokens(market['tokens'])} tokens", points)
    goals, goal_words = _goals(across, up, deadline, budget, unit, unit_h)
    parts += goals
    beaten = [(across.at(h), up.at(d)) for h, d in market["beaten"] if _shown(across, up, h, d)]
    parts += map(hollow, beaten)
    stairs = _stairs(places)
    parts.append(_path(stairs, "axis"))
    if changed:
        elsewhere = [(across.at(p["hours"]), up.at(p["usd"])) for p in changed]
        parts += [_path(_stairs(elsewhere), "ink2", dashed=True), *map(hollow, elsewhere)]
        words = f"dashed: with {market['what_if']['what']}"
        parts.append(text(width - RIGHT, 12, words, colour="ink", anchor="end"))
    kinds = kinds_of(point["gpus"] for point in points)
    for point, at in zip(points, places, strict=True):
        parts.append(mark(kinds.index(kind_of(point["gpus"])), at, _hint(point), point["rank"]))
    x, y = places[market["chosen"] - 1]
    answer = f'r="{RING_PX:g}" fill="none" stroke="{paint("ink")}" stroke-width="1.5"'
    parts.append(f'<circle cx="{number(x)}" cy="{number(y)}" {answer}/>')
    taken = [*boxes_along(stairs), *map(dot_box, places), *goal_words]
    taken += [
        box for line in _goal_lines(across, up, deadline, budget) for box in boxes_along(line)
    ]
    wanted = _wanted(document, places, wordy)
    inside = (left, TOP - 14, width - 2, bottom - 2)
    grid = [(left, up.at(price) - 1, width, up.at(price) + 1) for price in prices]
    faint = [*grid, *(dot_box(at, 3.5) for at in beaten)]
    labels = placed_labels(wanted, [*taken, dot_box((x, y), RING_PX + 1)], inside, faint)
    parts += labels
    rows = [*enumerate(kinds), *([(HOLLOW, "simulated, beaten in both")] if beaten else [])]
    if not any(ANSWER in label for label in labels):
        rows.append((RINGED, f"ringed: {ANSWER}"))
    height, below = kinds_legend(rows, width, bottom + BOTTOM + 18)
    return picture(width, height, _sentence(document), [*parts, *below])


def _stairs(places: list[Point]) -> list[Point]:
    """Along what can be had: from one plan to the next cheaper one."""
    return [at for a, b in pairwise(places) for at in (a, (b[0], a[1]))] + places[-1:]


def _path(stairs: list[Point], colour: str, dashed: bool = False) -> str:
    steps = "".join(f"L{number(x)} {number(y)}" for x, y in stairs)[1:]
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<path d="M{steps}" fill="none" stroke="{paint(colour)}" stroke-width="1.5"{dashes}/>'


def frontier_title(document: Document) -> str:
    """What is drawn, of which model."""
    first, market = document["frontier"][0], document["market"]
    name = first["plan"]["model"]["name"]
    return f"Time against money: {name} on {tokens(market['tokens'])} tokens"


def price_dates(points: list[Document]) -> str:
    """The days that prices are of."""
    rents = [rent for point in points for rent in (point.get("money") or {}).get("rents", ())]
    dates = sorted({rent["price_date"] for rent in rents if rent["cloud"] != GIVEN})
    if not dates:
        return "prices as given"
    span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"prices of {span}"


def place_words(rent: Document) -> str:
    """The cloud and its region; or that the price was given."""
    return "as given" if rent["cloud"] == GIVEN else f"{rent['cloud']} {rent['region']}"


def where_words(rent: Document) -> str:
    """The place and the day of its price."""
    dated = "" if rent["cloud"] == GIVEN else f", price of {rent['price_date']}"
    return f"{place_words(rent)}{dated}"


def _sentence(document: Document) -> str:
    points, market = document["frontier"], document["market"]
    answer, fast, cheap = (points[market[w] - 1] for w in ("chosen", "fastest", "cheapest"))
    return (
        f"{frontier_title(document)}. {len(points)} plans of which none is both slower and dearer "
        f"than another, from {_figures(fast)} to {_figures(cheap)}; the answer: {_figures(answer)}"
    )


def _figures(point: Document) -> str:
    return f"{usd_short(point['usd'])} in {_long(point['hours'])}"


def _long(hours: float) -> str:
    return f"{hours / DAY_H:.3g} days" if hours >= IN_DAYS_H else f"{hours:.3g} h"


def _hint(point: Document) -> str:
    rents = (point.get("money") or {}).get("rents", ())
    where = [
        f"{short_name(rent['gpu'])}: {usd(rent['usd_per_gpu_hour'])} a GPU-hour, "
        f"{where_words(rent)}"
        for rent in rents
    ]
    head = f"plan {point['rank']}: {usd(point['usd'])} in {_long(point['hours'])}"
    return "\n".join([head, short_gpus(point["gpus"]), point["summary"], *where])


def _near(goal: float | None, values: list[float]) -> list[float]:
    """A goal that is not far off from all plans."""
    return [goal] if goal and min(values) / FAR <= goal <= max(values) * FAR else []


def _shown(across: LogScale, up: LogScale, hours: float, dollars: float) -> bool:
    return hours > 0 and dollars > 0 and across.holds(hours) and up.holds(dollars)


def _axes(across: LogScale, up: LogScale, prices: list[float], unit_h: float) -> list[str]:
    found = []
    for price in prices:
        y = up.at(price)
        found.append(line(across.start, y, across.end, y, "line"))
        found.append(text(across.start - 8, y + 4, usd_short(price), anchor="end"))
    end = -100.0
    for value in log_ticks(across.low / unit_h, across.high / unit_h):
        x, words = across.at(value * unit_h), f"{value:,.6g}"
        if x - text_width(words, 11) / 2 > end + 8:
            end = x + text_width(words, 11) / 2
            found.append(line(x, up.start, x, up.start + 4, "axis"))
            found.append(text(x, up.start + 18, words, anchor="middle"))
    return found


def _titles(width: float, bottom: float, below: str, points: list[Document]) -> list[str]:
    dates = price_dates(points)
    ways, room = [f"{below} (log scale)", below], width - text_width(dates, 11) - RIGHT - 12
    shortest = below.partition(" ")[0]
    under = next((each for each in ways if text_width(each, 11) < room), shortest)
    return [
        text(0, 12, "dollars: rent, start-up, failures (log scale)"),
        text(width - RIGHT, bottom + 36, under, anchor="end"),
        text(0, bottom + 36, dates),
    ]


def _shade(across: LogScale, deadline: list[float], bottom: float) -> list[str]:
    """What is too late."""
    return [
        rect(across.at(at), TOP, across.end - across.at(at), bottom - TOP, paint("sunk"))
        for at in deadline
    ]


def _goal_lines(
    across: LogScale, up: LogScale, deadline: list[float], budget: list[float]
) -> list[list[tuple[float, float]]]:
    upright = [[(across.at(at), TOP - 8), (across.at(at), up.start)] for at in deadline]
    level = [[(across.start, up.at(at)), (across.end, up.at(at))] for at in budget]
    return [*upright, *level]


def _goals(
    across: LogScale,
    up: LogScale,
    deadline: list[float],
    budget: list[float],
    unit: str,
    unit_h: float,
) -> tuple[list[str], list[tuple[float, float, float, float]]]:
    """Dashed lines with their words, and what the words take up."""
    lines = _goal_lines(across, up, deadline, budget)
    found = [line(*a, *b, "ink", 1, dashed=True) for a, b in lines]
    boxes = []
    for at in deadline:
        words, x = f"deadline {at / unit_h:,.4g} {unit}", across.at(at)
        beyond = x + text_width(words, 12) + 6 > across.end
        side, anchor = (x - 6, "end") if beyond else (x + 6, "start")
        found.append(text(side, TOP - 4, words, size=12, colour="ink", anchor=anchor))
        boxes.append(label_box(words, side, TOP - 4, anchor))
    for at in budget:
        words, y = f"budget {usd_short(at)}", up.at(at) - 5
        found.append(text(across.end, y, words, size=12, colour="ink", anchor="end"))
        boxes.append(label_box(words, across.end, y, "end"))
    return found, boxes


def _wanted(document: Document, places: list[tuple[float, float]], wordy: bool) -> list[Wanted]:
    """Labels, the strongest first."""
    points, market = document["frontier"], document["market"]
    names: dict[int, list[str]] = {}
    for which, word in (
        ("chosen", ANSWER),
        ("fastest", "the fastest"),
        ("knee", "the knee"),
        ("cheapest", "the cheapest"),
    ):
        names.setdefault(market[which], []).append(word)
    found = []
    for place, words in names.items():
        point, said = points[place - 1], " and ".join(words)
        figures = f"{said}: {_figures(point)}"
        is_answer = place == market["chosen"]
        ways = [f"{figures}, {short_gpus(point['gpus'])}"] if is_answer else []
        ways = [*ways, figures, said] if wordy else [said]
        radius = RING_PX if is_answer else 6.0
        found.append(Wanted(places[place - 1], tuple(ways), is_answer, radius))
    return found
