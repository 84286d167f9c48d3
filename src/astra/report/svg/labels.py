"""Words beside marks: near, inside of the picture, and across nothing else."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from astra.report.svg.axis import text, text_width
from astra.report.svg.shapes import line

Box = tuple[float, float, float, float]  # left, top, right, bottom
Point = tuple[float, float]
SIZE = 12  # height of the words
STEPS, FAR_STEPS = 3, 18  # how often words may be moved off their place; around others
STEP_PX = 9.0
LEADER_PX = 26.0  # words farther off have a line to their place
PIECE_PX = 6.0  # of a slanted line, that words keep off


@dataclass(frozen=True, slots=True)
class Wanted:
    """Words that belong to a place; shorter ones where they find no room."""

    at: Point
    words: tuple[str, ...]
    strong: bool = False
    radius: float = 6.0  # of its mark


def placed_labels(
    wanted: Sequence[Wanted], taken: Iterable[Box], inside: Box, faint: Sequence[Box] = ()
) -> list[str]:
    """Those that find room, the strongest said first; the weaker of two that collide is left out.

    `faint`: what words keep off where they can.
    """
    boxes, drawn = list(taken), []
    for each in wanted:
        ways = ((words, avoided) for avoided in (faint, ()) for words in each.words)
        for words, avoided in ways:
            steps = FAR_STEPS if avoided or each.strong else STEPS
            free = _free_place(each, words, (boxes, avoided), inside, steps)
            if free is not None:
                x, y, anchor = free
                colour, weight = ("ink", 600) if each.strong else ("ink2", 400)
                drawn.append(
                    text(x, y, words, size=SIZE, colour=colour, anchor=anchor, weight=weight)
                )
                boxes.append(label_box(words, x, y, anchor))
                drawn += _leader(each, boxes[-1])
                break
    return drawn


def _leader(wanted: Wanted, box: Box) -> list[str]:
    """A line from a mark to words that lie far off."""
    return [line(*start, *end, "ink3") for start, end in _leader_ends(wanted, box)]


def _leader_ends(wanted: Wanted, box: Box) -> list[tuple[Point, Point]]:
    (at_x, at_y), radius = wanted.at, wanted.radius
    x = min(max(at_x, box[0] + 4), box[2] - 4)
    y, side = (box[3] + 1, -radius) if box[3] < at_y else (box[1] - 1, radius)
    return [((at_x, at_y + side), (x, y))] if abs(y - at_y) > LEADER_PX else []


def _leader_boxes(wanted: Wanted, box: Box) -> list[Box]:
    """What the line takes up; what lies beside its mark it may touch."""
    return [each for ends in _leader_ends(wanted, box) for each in boxes_along(ends)[2:]]


def _free_place(
    wanted: Wanted,
    words: str,
    taken: tuple[Sequence[Box], Sequence[Box]],
    inside: Box,
    steps: int,
) -> tuple[float, float, str] | None:
    """The nearest place for words that neither they nor their line share with what is taken; the
    words alone keep off the second kind.
    """
    lines, faint = taken
    for x, y, anchor in _places(wanted, steps):
        box = label_box(words, x, y, anchor)
        covered = any(_overlap(box, other) for other in (*lines, *faint))
        leader = _leader_boxes(wanted, box)
        crossed = any(_overlap(each, other) for each in leader for other in lines)
        if _holds(inside, box) and not covered and not crossed:
            return x, y, anchor
    return None


def _places(wanted: Wanted, steps: int) -> Iterable[tuple[float, float, str]]:
    """Beside a mark, the nearest first."""
    (x, y), side = wanted.at, wanted.radius + 4
    yield from ((x + side, y + 4, "start"), (x - side, y + 4, "end"))
    for step in range(steps):
        above, below = y - side + 2 - step * STEP_PX, y + side + 8 + step * STEP_PX
        yield from (
            (x + side, above, "start"),
            (x - side, above, "end"),
            (x + side, below, "start"),
            (x - side, below, "end"),
            (x, above - 6, "middle"),
            (x, below + 6, "middle"),
        )


def label_box(words: str, x: float, y: float, anchor: str, size: int = SIZE) -> Box:
    """What words take up."""
    wide = text_width(words, size)
    left = x - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
    return left, y - 0.8 * size, left + wide, y + 0.25 * size


def boxes_along(places: Sequence[Point]) -> list[Box]:
    """What a line through these places takes up."""
    found = []
    for (x, y), (other_x, other_y) in pairwise(places):
        pieces = 1
        if x != other_x and y != other_y:
            pieces = 1 + int(max(abs(x - other_x), abs(y - other_y)) / PIECE_PX)
        for piece in range(pieces):
            a, b = (x + (other_x - x) * end / pieces for end in (piece, piece + 1))
            c, d = (y + (other_y - y) * end / pieces for end in (piece, piece + 1))
            found.append((min(a, b) - 1, min(c, d) - 1, max(a, b) + 1, max(c, d) + 1))
    return found


def dot_box(at: Point, radius: float = 7.0) -> Box:
    return at[0] - radius, at[1] - radius, at[0] + radius, at[1] + radius


def _overlap(one: Box, other: Box) -> bool:
    across = min(one[2], other[2]) > max(one[0], other[0])
    return across and min(one[3], other[3]) > max(one[1], other[1])


def _holds(outer: Box, box: Box) -> bool:
    fits_across = outer[0] <= box[0] and box[2] <= outer[2]
    return fits_across and outer[1] <= box[1] and box[3] <= outer[3]
