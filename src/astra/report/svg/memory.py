"""Memory of one GPU of every stage, by cause, against what it has."""

from itertools import groupby

from astra.report.gpus import short_name
from astra.report.priced_plan import GIB
from astra.report.svg.axis import number, picture, text, text_width, ticks
from astra.report.svg.priced import Document
from astra.report.svg.shapes import BarSegment, hatch, legend, line, rect, stacked_bar

KEPT_FREE = "memory-kept-free"
TITLE = "Memory of one GPU, by stage and cause"
NARROW_PX = 560  # below it, names stand above their bars
NAMED_BYTES = 0.05 * GIB  # what a cause must take on some stage to be named
CAUSES = {  # colour, of which field, in words
    "weights": ("weights_bytes", "weights"),
    "gradients": ("gradients_bytes", "gradients"),
    "optimizer_states": ("optimizer_bytes", "optimizer"),
    "activations": ("activations_bytes", "activations"),
    "logits": ("logits_bytes", "logits"),
    "buffers": ("buffers_bytes", "buffers"),
    "runtime": ("runtime_bytes", "CUDA, NCCL"),
    "slack": ("slack_bytes", "allocator slack"),
}


def memory_svg(plan: Document, width: float, margin: float | None = None) -> str:
    """Bars to scale, the limit as a line through them; `margin`: the share to be kept free."""
    memory = plan["memory"]
    stages: list[Document] = memory["stages"]
    several = len({stage["gpu"] for stage in stages}) > 1
    pipelines = stages[-1]["pipeline"] > 0
    names = [_name(stage, several, pipelines) for stage in stages]
    narrow = width < NARROW_PX
    high, gap, each = _lanes(len(stages), narrow)
    one_line = high < 24 and not narrow
    labels = [[", ".join(name)] if one_line else name for name in names]
    left = 0.0 if narrow else max(text_width(w, 11) for name in labels for w in name) + 14
    right = 0.0 if narrow else 104.0
    most = max(max(usable_bytes(memory, stage), _reserved(stage)) for stage in stages)
    scale = (width - left - right - 8) / most
    named = _named(memory, stages, each)
    kept_free, bars, y = [], [], 0.0
    for usable, run in groupby(enumerate(stages), key=lambda e: usable_bytes(memory, e[1])):
        x, kept = left + usable * scale, usable * (margin or 0.0) * scale
        y += 16
        bars.append(_limit_words(usable, margin, x, y - 5, left))
        top = y
        for row, stage in run:
            y += 15 if narrow else 0
            bars += stacked_bar(_segments(stage), left, y, scale, high)
            if row in named:
                bars += _words(stage, labels[row], memory, y, high, width, narrow)
            if narrow:  # so that no line crosses the words between bars
                kept_free += _kept_free(x, kept, y, high)
                bars.append(_limit(x, y, high))
            y += high + gap
        if not narrow:
            kept_free += _kept_free(x, kept, top, y - gap - top)
            bars.append(_limit(x, top, y - gap - top))
    grid = [] if narrow else _grid(most, left, scale, 12, y)
    parts = [hatch(KEPT_FREE), *grid, *kept_free, *bars]
    y += 0 if narrow else 14
    shown = [
        (colour, words, "")
        for colour, (field, words) in CAUSES.items()
        if any(stage.get(field, 0.0) >= NAMED_BYTES for stage in stages)
    ]
    height, below = legend(shown, width, y + 22)
    return picture(width, height, memory_sentence(plan), [*parts, *below])


def memory_sentence(plan: Document) -> str:
    """What the fullest GPU needs, in words."""
    memory = plan["memory"]
    return (
        f"{TITLE}: the fullest, of stage {memory['worst_stage']}, needs "
        f"{memory['reserved_bytes'] / GIB:.1f} of {memory['usable_bytes'] / GIB:.1f} GiB"
    )


def usable_bytes(memory: Document, stage: Document) -> float:
    """Of a GPU of this stage; answers written before stages had their own say the worst one's."""
    found: float = stage.get("usable_bytes") or memory["usable_bytes"]
    return found


def _reserved(stage: Document) -> float:
    return sum(stage.get(field, 0.0) for field, _ in CAUSES.values())


def _segments(stage: Document) -> list[BarSegment]:
    found = []
    for colour, (field, words) in CAUSES.items():
        value = stage.get(field, 0.0)
        if value > 0:
            size = f"{value / GIB:.1f}"
            hint = f"stage {stage['stage']}, {words}: {size} GiB"
            found.append(BarSegment(colour, words, value, f"{size} GiB", size, hint))
    return found


def _lanes(stages: int, narrow: bool) -> tuple[float, float, int]:
    """Height and gap of bars, and every how many-th is named."""
    if stages <= 8:
        return (24.0, 5.0 if narrow else 8.0, 1)
    if stages <= 16 or narrow:
        return 14.0, 5.0, 1
    return 7.0, 1.0, 8


def _named(memory: Document, stages: list[Document], each: int) -> set[int]:
    """Rows that have words: some at equal distances, and the fullest."""
    worst = (memory["worst_pipeline"], memory["worst_stage"])
    fullest = [row for row, s in enumerate(stages) if (s["pipeline"], s["stage"]) == worst]
    if each == 1:
        return set(range(len(stages)))
    rows = range(0, len(stages), each)
    return {row for row in rows if all(abs(row - other) > 2 for other in fullest)} | {*fullest}


def _kept_free(x: float, kept: float, top: float, high: float) -> list[str]:
    """The end of a GPU's memory that is to be kept free, behind all bars."""
    return [rect(x - kept, top, kept, high, f"url(#{KEPT_FREE})")] if kept else []


def _limit(x: float, top: float, high: float) -> str:
    return line(x, top - 2, x, top + high + 2, "ink", 1.5)


def _name(stage: Document, several: bool, pipelines: bool) -> list[str]:
    layers = "1 layer" if stage["layers"] == 1 else f"{stage['layers']} layers"
    place = f"stage {stage['stage']}"
    group = f"group {stage['pipeline'] + 1}, {place}" if pipelines else place
    return [group, f"{layers}, {short_name(stage['gpu'])}" if several else layers]


def _limit_words(usable: float, margin: float | None, x: float, y: float, left: float) -> str:
    kept = f", {margin:.0%} kept free" if margin else ""
    words = f"limit {usable / GIB:.1f} GiB{kept}"
    anchor = "end" if x - text_width(words, 11) >= left else "start"
    return text(x if anchor == "end" else left, y, words, colour="ink2", anchor=anchor)


def _words(
    stage: Document,
    label: list[str],
    memory: Document,
    y: float,
    high: float,
    width: float,
    narrow: bool,
) -> list[str]:
    """A stage's name, what it needs in all and how full it is."""
    need, usable = _reserved(stage), usable_bytes(memory, stage)
    total, full = f"{need / GIB:.1f} GiB", f"{need / usable:.0%} full"
    colour = "ink" if need <= usable else "risky"
    if narrow:
        said = f"{total}, {full}"
        names = [", ".join(label), *label[:1]]
        room = width - text_width(said, 11) - 8
        name = next((each for each in names if text_width(each, 11) <= room), names[-1])
        return [
            text(0, y - 4, name),
            text(width, y - 4, said, colour=colour, anchor="end"),
        ]
    middle = y + high / 2
    if len(label) == 1:
        return [
            text(0, middle + 4, label[0]),
            text(width, middle + 4, f"{total}, {need / usable:.0%}", colour=colour, anchor="end"),
        ]
    return [
        text(0, middle - 2, label[0], colour="ink", weight=600),
        text(0, middle + 11, label[1]),
        text(width, middle - 2, total, colour=colour, anchor="end", weight=600),
        text(width, middle + 11, full, anchor="end"),
    ]


def _grid(most: float, left: float, scale: float, top: float, bottom: float) -> list[str]:
    found = []
    for row, value in enumerate(ticks(0.0, most / GIB, 5)):
        x = left + value * GIB * scale
        found.append(line(x, top, x, bottom, "line"))
        words = f"{number(value)} GiB" if row == 0 else number(value)
        found.append(text(x, bottom + 14, words, anchor="start" if row == 0 else "middle"))
    return found
