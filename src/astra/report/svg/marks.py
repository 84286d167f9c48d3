"""Dots of several shapes, so that no kind is told by its colour alone."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from astra.report.gpus import short_name
from astra.report.svg.axis import number, text, text_width
from astra.report.svg.colours import GPU_TYPES, paint
from astra.report.svg.labels import Point

SHAPES = ("circle", "square", "diamond", "triangle")
HOLLOW, RINGED = -1, -2  # of a legend: a small ring, a larger one
SEVERAL = "several types together"


def kind_of(gpus: Mapping[str, int]) -> str:
    """A GPU type, or a mix of some."""
    return next(iter(gpus)) if len(gpus) == 1 else SEVERAL


def kinds_of(plans: Iterable[Mapping[str, int]]) -> list[str]:
    """In the order of their names, mixes last: so a type keeps its colour within an answer."""
    found = {kind_of(gpus) for gpus in plans}
    return sorted(found, key=lambda kind: (kind == SEVERAL, kind))


def mark(kind: int, at: Point, hint: str, rank: int | None = None, radius: float = 5.5) -> str:
    """A dot of the so-manyth kind."""
    x, y, r = at[0], at[1], radius
    shape, name = SHAPES[kind % len(SHAPES)], list(GPU_TYPES)[kind % len(GPU_TYPES)]
    path = {
        "circle": f"M{number(x - r)} {number(y)}a{r:g} {r:g} 0 1 0 {2 * r:g} 0"
        f"a{r:g} {r:g} 0 1 0 {-2 * r:g} 0z",
        "square": f"M{number(x - r)} {number(y - r)}h{2 * r:g}v{2 * r:g}h{-2 * r:g}z",
        "diamond": f"M{number(x)} {number(y - 1.3 * r)}l{1.2 * r:g} {1.3 * r:g} {-1.2 * r:g} "
        f"{1.3 * r:g} {-1.2 * r:g} {-1.3 * r:g}z",
        "triangle": f"M{number(x)} {number(y - 1.1 * r)}l{1.2 * r:g} {2 * r:g}h{-2.4 * r:g}z",
    }[shape]
    which = f' data-rank="{rank}"' if rank is not None else ""
    return (
        f'<path d="{path}" fill="{paint(name)}" stroke="{paint("panel")}" stroke-width="1.5"'
        f"{which}><title>{escape(hint)}</title></path>"
    )


def hollow(at: Point, radius: float = 2.5, colour: str = "ink3") -> str:
    """A ring."""
    ring = f'r="{radius:g}" fill="none" stroke="{paint(colour)}"'
    return f'<circle cx="{number(at[0])}" cy="{number(at[1])}" {ring}/>'


def kinds_legend(
    kinds: Sequence[tuple[int, str]], width: float, y: float
) -> tuple[float, list[str]]:
    """Shapes with what they stand for, as many in a row as there is room; and where they end."""
    x, found = 0.0, []
    for kind, name in kinds:
        wide = 18 + text_width(short_name(name), 12) + 12
        if x and x + wide - 12 > width:
            x, y = 0.0, y + 20
        at = (x + 6, y - 4)
        rings = {HOLLOW: hollow(at), RINGED: hollow(at, 5.5, "ink")}
        found.append(rings.get(kind) or mark(kind, at, name, radius=4.5))
        found.append(text(x + 18, y, short_name(name), size=12, colour="ink2"))
        x += wide
    return y + 10, found
