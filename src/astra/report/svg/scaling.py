"""Tokens a second against the number of GPUs, where an answer holds several counts."""

from astra.report.gpus import short_name
from astra.report.svg.axis import log_scale, log_ticks, number, picture, text, text_width
from astra.report.svg.colours import paint
from astra.report.svg.labels import Wanted, boxes_along, dot_box, placed_labels
from astra.report.svg.marks import kinds_legend, kinds_of, mark
from astra.report.svg.priced import Document, priced_plans
from astra.report.svg.shapes import line

TITLE = "Throughput by the number of GPUs"
TOP, RIGHT, BOTTOM = 26.0, 16.0, 44.0
Fastest = dict[str, dict[int, Document]]  # of each GPU type, by the count


def fastest_by_count(document: Document) -> Fastest:
    """The fastest plan of every count of a GPU type alone; types with one count are left out."""
    found: Fastest = {}
    for plan in [*priced_plans(document), *(document.get("frontier") or ())]:
        if len(plan["gpus"]) == 1:
            ((gpu, count),) = plan["gpus"].items()
            best = found.setdefault(gpu, {}).get(count)
            if best is None or plan["tokens_per_s"] > best["tokens_per_s"]:
                found[gpu][count] = plan
    return {gpu: dict(sorted(each.items())) for gpu, each in found.items() if len(each) > 1}


def scaling_svg(document: Document, width: float) -> str:
    """Dots beside throughput in proportion to the least count; both axes logarithmic."""
    series = fastest_by_count(document)
    kinds = kinds_of({gpu: 1} for gpu in series)
    plans = [plan for each in series.values() for plan in each.values()]
    counts = sorted({count for each in series.values() for count in each})
    rates = [*(plan["tokens_per_s"] for plan in plans), *(_ideal(s)[1][1] for s in series.values())]
    high = max(180.0, min(300.0, 0.4 * width))
    up = log_scale(rates, TOP + high, TOP, 0.1)
    values = log_ticks(up.low, up.high)
    left = max(text_width(rate_words(value), 11) for value in values) + 10
    across = log_scale([float(count) for count in counts], left, width - RIGHT, 0.08)
    parts = []
    for value in values:
        parts.append(line(left, up.at(value), width - RIGHT, up.at(value), "line"))
        parts.append(text(left - 8, up.at(value) + 4, rate_words(value), anchor="end"))
    bottom, end = TOP + high, -100.0
    for count in counts:
        x, words = across.at(count), f"{count:,}"
        if x - text_width(words, 11) / 2 > end + 6:
            end = x + text_width(words, 11) / 2
            parts.append(line(x, bottom, x, bottom + 4, "axis"))
            parts.append(text(x, bottom + 18, words, anchor="middle"))
    taken, wanted, dots = [], [], []
    for gpu, each in series.items():
        at = [(across.at(n), up.at(p["tokens_per_s"])) for n, p in each.items()]
        ideal = [(across.at(n), up.at(rate)) for n, rate in _ideal(each)]
        clip = "".join(f"L{number(x)} {number(y)}" for x, y in ideal)[1:]
        dashes = f'stroke="{paint("ink3")}" stroke-dasharray="2 4"'
        parts.append(f'<path d="M{clip}" fill="none" {dashes}/>')
        path = "".join(f"L{number(x)} {number(y)}" for x, y in at)[1:]
        parts.append(f'<path d="M{path}" fill="none" stroke="{paint("axis")}" stroke-width="1.5"/>')
        taken += [*boxes_along(ideal), *boxes_along(at), *map(dot_box, at)]
        for place, (count, plan) in zip(at, each.items(), strict=True):
            hint = f"{_words(gpu, count, plan)}\n{plan['summary']}"
            dots.append(mark(kinds.index(gpu), place, hint, plan["rank"]))
        shown = _shares(each)
        wanted += [
            Wanted(place, (shown[n],)) for place, n in zip(at, each, strict=True) if shown[n]
        ]
    inside = (left, TOP - 10, width - 2, bottom - 2)
    labels = placed_labels(wanted[::-1], taken, inside)
    parts += [
        *dots,
        *labels,
        text(0, 12, "tokens a second (both axes are logarithmic)"),
        text(width - RIGHT, bottom + 34, "GPUs", anchor="end"),
        text(0, bottom + 34, "dotted: as much a GPU as with the fewest"),
    ]
    height, legend = kinds_legend(list(enumerate(kinds)), width, bottom + BOTTOM + 14)
    said = "; ".join(_words(gpu, n, p) for gpu, each in series.items() for n, p in each.items())
    return picture(width, height, f"{TITLE}. {said}", [*parts, *legend])


def rate_words(value: float) -> str:
    """
    >>> rate_words(547765.2), rate_words(3517773.6), rate_words(950)
    ('548k', '3.52M', '950')
    """
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if value >= scale * (1 - 5e-4):
            return f"{value / scale:.3g}{unit}"
    return f"{value:.3g}"


def _ideal(series: dict[int, Document]) -> list[tuple[float, float]]:
    """From the least count to the largest, as many tokens a GPU as with the least."""
    least, most = min(series), max(series)
    rate = series[least]["tokens_per_s"]
    return [(least, rate), (most, rate * most / least)]


def _shares(series: dict[int, Document]) -> dict[int, str]:
    """What each count reaches of the throughput in proportion to the least."""
    (least, rate), _ = _ideal(series)
    return {
        count: f"{plan['tokens_per_s'] / (rate * count / least):.0%}" if count > least else ""
        for count, plan in series.items()
    }


def _words(gpu: str, count: int, plan: Document) -> str:
    return f"{count:,} {short_name(gpu)}: {rate_words(plan['tokens_per_s'])} tokens/s"
