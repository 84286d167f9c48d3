"""A step drawn: stages against time, what they do and where they wait.

A lane's ground is a hatch, so waiting is what is left uncovered. Operations that are wide enough
are drawn one by one; where they are narrower, columns show what share of the time around them
went where. What comes behind the last backward is always drawn as it is.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from astra.report.gpus import short_name
from astra.report.priced_plan import seconds
from astra.report.svg.axis import LETTER, number, picture, text, text_width, ticks, time_labels
from astra.report.svg.colours import paint
from astra.strategy.plans import Floats, Ints
from astra.timeline.pieces import PIECES, STEP_PART, StagePieces, stage_pieces
from astra.timeline.step import PipelineTimeline, StageTimeline, StepTimeline

NARROW_PX = 560.0  # below it, lanes are named by their number alone
LEAST_OPERATION_PX = 5.0  # narrower ones become shares
NUMBERED_PX = 15.0  # wide enough for the number of its micro-batch
GAP_PX = 0.8  # between two operations
LEAST_SEEN = 5e-4  # of the step, that a part must take on some stage to be named
STACKED = (  # from the ground of a lane up
    *("backward", "recompute", "forward", "tensor_comm", "context_comm", "expert_comm"),
    *("pipeline_comm", "data_comm", "optimizer", "other"),
)
LEGEND = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recompute",
    "tensor_comm": "tensor traffic",
    "context_comm": "context traffic",
    "expert_comm": "expert traffic",
    "pipeline_comm": "links between stages",
    "data_comm": "gradients, parameters",
    "optimizer": "optimizer",
    "other": "other",
    "waiting": "waiting",
}
STRIP_PX, THIN_STRIP_PX = 7.0, 3.0  # a lane of the whole step above a part of it; of many


@dataclass(frozen=True, slots=True)
class Lanes:
    """How lanes are drawn, by how many there are."""

    height: float
    gap: float
    column: float  # width of a share
    named: int  # every so many-th


def lanes_for(stages: int) -> Lanes:
    """Readable at 4 and at 64 stages."""
    if stages <= 8:
        return Lanes(32, 5, 2, 1)
    return Lanes(14, 5, 2, 1) if stages <= 16 else Lanes(7, 1, 3, 8)


@dataclass(frozen=True, slots=True)
class TimeScale:
    """Which seconds lie between which pixels."""

    from_s: float
    to_s: float
    left: float
    width: float

    def x(self, at_s: Floats) -> Floats:
        inside = np.clip(at_s, self.from_s, self.to_s)
        return self.left + (inside - self.from_s) / (self.to_s - self.from_s) * self.width


def timeline_svg(
    timeline: StepTimeline, width: float = 860, *, from_s: float = 0.0, to_s: float | None = None
) -> str:
    """The step, or what of it lies between two moments, under the whole of it."""
    until_s = timeline.step_s if to_s is None else to_s
    assert 0 <= from_s < until_s
    lanes = lanes_for(max(len(each.stages) for each in timeline.pipelines))
    names = [_lane_name(timeline, stage, lanes, width) for _, stage in _stages(timeline)]
    gutter = max(text_width(line, 12) for name in names for line in name) + 10
    scale = TimeScale(from_s, until_s, gutter, width - gutter - 14)
    pieces = [stage_pieces(stage) for _, stage in _stages(timeline)]
    exact, pair_s = _is_exact(timeline, scale), _pair_s(timeline)
    y, heading = _heading(timeline, exact, width)
    parts = [_hatch(), *heading]
    if (from_s, until_s) != (0.0, timeline.step_s):
        thin = Lanes(STRIP_PX if len(pieces) <= 16 else THIN_STRIP_PX, 1, 3, 1)
        parts += _strip(timeline, pieces, scale, y, thin, pair_s)
        y += len(pieces) * (thin.height + thin.gap) + 10
    top, body = y, []
    for row, (pipeline, stage) in enumerate(_stages(timeline)):
        if stage.stage == 0 and len(timeline.pipelines) > 1:
            y += 16 if row == 0 else 22
            body.append(text(0, y - 6, _group_words(timeline, pipeline), colour="ink2"))
        if stage.stage % lanes.named == 0:
            body += _name(names[row], y, lanes)
        body += _lane(stage, pieces[row], scale, y, lanes, None if exact else pair_s)
        y += lanes.height + lanes.gap
    parts += [*_grid(scale, top, y), *body]
    height, legend = _legend(timeline, pieces, width, y + 34)
    sentence = f"{_title(timeline)}: {_how(timeline)}"
    return picture(width, height, sentence, [*parts, *legend])


def _stages(timeline: StepTimeline) -> Iterator[tuple[PipelineTimeline, StageTimeline]]:
    for pipeline in timeline.pipelines:
        for stage in pipeline.stages:
            yield pipeline, stage


def _title(timeline: StepTimeline) -> str:
    return f"One step of {seconds(timeline.step_s)}, stage by stage"


def _how(timeline: StepTimeline) -> str:
    """What goes through what."""
    first = timeline.pipelines[0]
    if len(timeline.pipelines) > 1:
        return f"{timeline.model}, one replica of each of {len(timeline.pipelines)} groups"
    chunks = f", {first.chunks} chunks each" if first.chunks > 1 else ""
    stages = "1 stage" if len(first.stages) == 1 else f"{len(first.stages)} stages"
    replicas = f", one of {first.replicas} replicas" if first.replicas > 1 else ""
    return f"{timeline.model}, {_batches(first)} through {stages}{chunks}{replicas}"


def _heading(timeline: StepTimeline, exact: bool, width: float) -> tuple[float, list[str]]:
    """What is drawn, in as many lines as it needs; and where the lanes begin."""
    said = [f"{_how(timeline)}."]
    if not exact:
        said.append("Too narrow to draw one by one: heights are shares of the time.")
    lines = [line for words in said for line in textwrap.wrap(words, int(width / (LETTER * 12)))]
    title = text(0, 15, _title(timeline), size=15, colour="ink", weight=600)
    below = [text(0, 34 + 16 * row, line, size=12) for row, line in enumerate(lines)]
    return 36.0 + 16 * len(lines), [title, *below]


def _group_words(timeline: StepTimeline, pipeline: PipelineTimeline) -> str:
    row = timeline.pipelines.index(pipeline) + 1
    replicas = "1 replica" if pipeline.replicas == 1 else f"{pipeline.replicas} replicas"
    return f"group {row}: {replicas}, {_batches(pipeline)} each"


def _batches(pipeline: PipelineTimeline) -> str:
    count = pipeline.micro_batches
    return "1 micro-batch" if count == 1 else f"{count} micro-batches"


def _lane_name(
    timeline: StepTimeline, stage: StageTimeline, lanes: Lanes, width: float
) -> list[str]:
    if width < NARROW_PX:
        return [f"stage {stage.stage}"]
    several = len({each.gpu for _, each in _stages(timeline)}) > 1
    layers = "1 layer" if stage.layers == 1 else f"{stage.layers} layers"
    if lanes.height > 24:
        return [f"stage {stage.stage}", f"{layers}, {short_name(stage.gpu)}"]
    return [f"stage {stage.stage}, {layers}" + (f", {short_name(stage.gpu)}" if several else "")]


def _name(lines: list[str], y: float, lanes: Lanes) -> list[str]:
    middle = y + lanes.height / 2
    if len(lines) == 1:
        return [text(0, middle + 4, lines[0])]
    first, second = lines
    return [text(0, middle - 3, first, size=12, colour="ink"), text(0, middle + 11, second)]


def _hatch() -> str:
    ground, line = paint("waiting"), paint("hatch")
    return (
        '<defs><pattern id="waiting" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="5" height="5" fill="{ground}"/>'
        f'<rect width="1" height="5" fill="{line}"/></pattern></defs>'
    )


def _grid(scale: TimeScale, top: float, bottom: float) -> list[str]:
    """Lines of round seconds, lighter than anything on them."""
    values = ticks(scale.from_s, scale.to_s, max(3, min(6, int(scale.width / 90))))
    found = []
    places = scale.x(np.array(values)).tolist()
    for x, label in zip(places, time_labels(values), strict=True):
        ends = f'x1="{number(x)}" x2="{number(x)}" y1="{number(top - 4)}" y2="{number(bottom)}"'
        found.append(f'<line {ends} stroke="{paint("line")}"/>')
        found.append(text(x, bottom + 13, label, anchor="middle"))
    return found


def _is_exact(timeline: StepTimeline, scale: TimeScale) -> bool:
    """Whether the operations in view are wide enough to be drawn, most of them."""
    widths = [
        (np.array(stage.end_s) - np.array(stage.start_s))[
            (np.array(stage.end_s) > scale.from_s) & (np.array(stage.start_s) < scale.to_s)
        ]
        for _, stage in _stages(timeline)
    ]
    inside = np.concatenate(widths)
    px = float(np.median(inside)) if len(inside) else 0.0
    return px / (scale.to_s - scale.from_s) * scale.width >= LEAST_OPERATION_PX


def _lane(
    stage: StageTimeline,
    pieces: StagePieces,
    scale: TimeScale,
    y: float,
    lanes: Lanes,
    pair_s: float | None,
) -> list[str]:
    """One path for each part of a step; of shares in windows of two pairs, where there is one."""
    span = f'x="{number(scale.left)}" width="{number(scale.width)}"'
    ground = f'<rect {span} y="{number(y)}" height="{number(lanes.height)}" fill="url(#waiting)"/>'
    boxes = _exact_boxes(pieces, scale, lanes.height, behind_only=pair_s is not None)
    if pair_s is not None:
        shares = part_shares(stage, pieces, scale, lanes.column, pair_s)
        boxes = {part: [*_share_boxes(part, shares, scale, lanes), *boxes[part]] for part in boxes}
    paths = [
        f'<path fill="{paint(part)}" d="{"".join(_box(each, y, lanes.height) for each in found)}"/>'
        for part, found in boxes.items()
        if found
    ]
    numbers = _numbers(stage, scale, y, lanes) if pair_s is None else []
    return [ground, *paths, *numbers]


Box = tuple[float, float, float, float]  # left, right, from the ground of the lane up to


def _box(box: Box, y: float, height: float) -> str:
    left, right, low, high = box
    wide = number(right - left)
    return f"M{number(left)} {number(y + height - high)}h{wide}v{number(high - low)}h-{wide}z"


def _exact_boxes(
    pieces: StagePieces, scale: TimeScale, height: float, behind_only: bool
) -> dict[str, list[Box]]:
    """Pieces as they are, each operation drawn a little short."""
    found: dict[str, list[Box]] = {part: [] for part in STACKED}
    inside = (pieces.end_s > scale.from_s) & (pieces.start_s < scale.to_s)
    rows = np.flatnonzero(inside & ((pieces.operation < 0) | (not behind_only)))
    left, right = scale.x(pieces.start_s[rows]), scale.x(pieces.end_s[rows])
    group = np.where(pieces.name[rows] == PIECES.index("transfer"), -1, pieces.operation[rows])
    for first, last in _runs(group):
        span = right[last - 1] - left[first]
        shrink = max(span - GAP_PX, 0.3 * span) / span if group[first] >= 0 and span else 1.0
        for row in range(first, last):
            ends = left[first] + (np.array([left[row], right[row]]) - left[first]) * shrink
            part = STEP_PART[PIECES[pieces.name[rows[row]]]]
            found[part].append((float(ends[0]), float(ends[1]), 0.0, height))
    return found


def _runs(values: Ints) -> list[tuple[int, int]]:
    """From where to where equal values follow one another."""
    if not len(values):
        return []
    changes = (np.flatnonzero(np.diff(values)) + 1).tolist()
    return list(zip([0, *changes], [*changes, len(values)], strict=True))


def part_shares(
    stage: StageTimeline, pieces: StagePieces, scale: TimeScale, column_px: float, pair_s: float
) -> dict[str, Floats]:
    """(column,) What each part has of the time around every column, while operations run.

    Around a column lie a forward and a backward of the slowest stage to either side: a window that
    is no multiple of the period would ripple. It ends where the stage's operations do.
    """
    columns = max(1, round(scale.width / column_px))
    edges = np.linspace(scale.from_s, scale.to_s, columns + 1)
    middle = (edges[:-1] + edges[1:]) / 2
    first, last = stage.start_s[0], stage.end_s[-1]
    low, high = (np.clip(middle + side, first, last) for side in (-pair_s, pair_s))
    inside = (middle > first) & (middle < last)
    found = {}
    for part in STACKED:
        rows = np.flatnonzero(
            np.isin(pieces.name, [PIECES.index(name) for name in PIECES if STEP_PART[name] == part])
            & (pieces.operation >= 0)
        )
        at = np.stack([pieces.start_s[rows], pieces.end_s[rows]], axis=1).ravel()
        took = np.repeat(pieces.end_s[rows] - pieces.start_s[rows], 2)
        took[::2] = 0.0
        sums = np.cumsum(took)
        share = np.zeros(columns)
        if len(rows):
            spent = np.interp(high, at, sums, left=0.0) - np.interp(low, at, sums, left=0.0)
            share = np.where(inside, spent / np.maximum(high - low, 1e-30), 0.0)
        found[part] = share
    return found


def _pair_s(timeline: StepTimeline) -> float:
    """A forward and a backward of the slowest stage, on average over its chunks."""
    return max(
        2 * float(np.mean(np.array(stage.end_s) - np.array(stage.start_s)))
        for _, stage in _stages(timeline)
    )


def _share_boxes(
    part: str, shares: dict[str, Floats], scale: TimeScale, lanes: Lanes
) -> Iterator[Box]:
    """Columns of a part on top of the parts below it; those of equal height are one box."""
    below = STACKED[: STACKED.index(part)]
    under: Floats = np.sum([shares[each] for each in below], axis=0) if below else 0 * shares[part]
    low = np.rint(under * lanes.height * 2) / 2
    high = np.rint((under + shares[part]) * lanes.height * 2) / 2
    px = scale.width / len(low)
    for start, stop in _runs((low * 1000 + high * 2).astype(np.int64)):
        if high[start] > low[start]:
            left, right = scale.left + start * px, scale.left + stop * px
            yield left, right, float(low[start]), float(high[start])


def _numbers(stage: StageTimeline, scale: TimeScale, y: float, lanes: Lanes) -> list[str]:
    """The micro-batch of every operation that is wide enough to say it."""
    if lanes.height < 14:
        return []
    left, right = scale.x(np.array(stage.start_s)), scale.x(np.array(stage.end_s))
    found = []
    for row in np.flatnonzero(right - left >= NUMBERED_PX).tolist():
        words, x = str(stage.micro_batch[row]), float(left[row] + right[row]) / 2
        if text_width(words, 11) < right[row] - left[row] - 2:
            colour = f"on_{stage.kind[row]}"
            found.append(text(x, y + lanes.height / 2 + 4, words, colour=colour, anchor="middle"))
    return found


def _strip(
    timeline: StepTimeline,
    pieces: list[StagePieces],
    scale: TimeScale,
    y: float,
    thin: Lanes,
    pair_s: float,
) -> list[str]:
    """The whole step in thin lanes, and a frame around what is seen below."""
    whole = TimeScale(0.0, timeline.step_s, scale.left, scale.width)
    found, at = [], y
    for row, (_, stage) in enumerate(_stages(timeline)):
        found += _lane(stage, pieces[row], whole, at, thin, pair_s)
        at += thin.height + thin.gap
    left, right = whole.x(np.array([scale.from_s, scale.to_s])).tolist()
    frame = f'x="{number(left)}" y="{number(y - 2)}" width="{number(right - left)}"'
    size = f'height="{number(at - y + 3)}" fill="none" stroke="{paint("ink")}"'
    return [*found, f"<rect {frame} {size}/>"]


def _legend(
    timeline: StepTimeline, pieces: list[StagePieces], width: float, y: float
) -> tuple[float, list[str]]:
    """The parts that are there, as many in a row as there is room; and where the picture ends."""
    sums, least_s = [each.seconds() for each in pieces], LEAST_SEEN * timeline.step_s
    shown = [part for part in LEGEND if any(own.get(part, 0) > least_s for own in sums)]
    x, found = 0.0, []
    for part in [*shown, "waiting"]:
        wide = 16 + text_width(LEGEND[part], 12) + 16
        if x and x + wide > width:
            x, y = 0.0, y + 20
        fill = "url(#waiting)" if part == "waiting" else paint(part)
        place = f'x="{number(x)}" y="{number(y - 9)}" width="10" height="10" rx="2"'
        found += [f'<rect {place} fill="{fill}"/>', text(x + 16, y, LEGEND[part], size=12)]
        x += wide
    return y + 10, found
