"""Rectangles, lines and rows of names: what every chart is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from astra.report.svg.axis import number, text, text_width
from astra.report.svg.colours import COLOURS, paint

NUMBER_PX = 8  # free beside the words of a segment
SWATCH_PX = 10


@dataclass(frozen=True, slots=True)
class BarSegment:
    """A stretch of a bar: what it is, how much, and how that reads."""

    colour: str  # of `COLOURS`; or a hatch
    name: str
    value: float
    words: str  # the value with its unit
    short: str = ""  # the value alone, for inside
    hint: str = ""  # seen when it is pointed at


def rect(x: float, y: float, width: float, height: float, fill: str, hint: str = "") -> str:
    """A rectangle; what it is, for those who point at it."""
    place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    inside = f"><title>{escape(hint)}</title></rect>" if hint else "/>"
    return f'<rect {place} fill="{fill}"{inside}'


def line(
    x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, dashed: bool = False
) -> str:
    ends = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
    wide = f' stroke-width="{number(width)}"' if width != 1 else ""
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line {ends} stroke="{paint(colour)}"{wide}{dashes}/>'


def hatch(name: str, ground: str | None = None) -> str:
    """A pattern of slanted lines to fill with, as `url(#name)`."""
    below = f'<rect width="5" height="5" fill="{paint(ground)}"/>' if ground else ""
    return (
        f'<defs><pattern id="{name}" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)">{below}<rect width="1" height="5" fill="{paint("hatch")}"/>'
        "</pattern></defs>"
    )


def fill_of(colour: str) -> str:
    """A colour's name as what stands in `fill`; a hatch has its own."""
    return paint(colour) if colour in COLOURS else f"url(#{colour})"


def stacked_bar(
    segments: Sequence[BarSegment], x: float, y: float, px_per_unit: float, height: float
) -> list[str]:
    """Segments end to end, a pixel apart; words in those that hold them."""
    drawn, at = [], x
    for each in segments:
        width = each.value * px_per_unit
        gap = 1.0 if width > 3 else 0.0
        hint = each.hint or f"{each.name} {each.words}"
        drawn.append(rect(at, y, width - gap, height, fill_of(each.colour), hint))
        on = f"on_{each.colour}"
        if on in COLOURS and height >= 18 and each.short:
            whole = f"{each.name} {each.short}"
            fitting = [w for w in (whole, each.short) if text_width(w, 11) + NUMBER_PX < width]
            if fitting:
                drawn.append(text(at + 6, y + height / 2 + 4, fitting[0], colour=on))
        at += width
    return drawn


def legend(
    rows: Sequence[tuple[str, str, str]], width: float, y: float, left: float = 0.0
) -> tuple[float, list[str]]:
    """Colours, names and values, as many in a row as there is room; and where they end."""
    x, drawn = left, []
    for colour, name, value in rows:
        wide = 16 + text_width(f"{name} {value}", 12) + 12
        if x > left and x + wide - 12 > width:
            x, y = left, y + 20
        drawn.append(rect(x, y - 9, SWATCH_PX, SWATCH_PX, fill_of(colour)))
        drawn.append(text(x + 16, y, name, size=12, colour="ink2", value=value))
        x += wide
    return y + 10, drawn
