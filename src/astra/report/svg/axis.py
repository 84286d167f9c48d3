"""Round numbers along an axis, and text in a picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from astra.report.svg.colours import paint

FONT = "Inter, Helvetica, Arial, sans-serif"
# Width of a letter, of its height: about Helvetica's and Inter's, whichever is wider.
LETTER = 0.57
NARROW_LETTERS, NARROW_LETTER = frozenset("ijlI.,:;|!'()[] ft-r/"), 0.36
WIDE_LETTERS, WIDE_LETTER = frozenset("mwMWGOQ%@"), 0.88
STEPS = (1.0, 2.0, 5.0, 10.0)
TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten; at most so many, and one more.

    >>> ticks(0.0, 7.73), ticks(0.31, 0.36, 4)
    ([0.0, 2.0, 4.0, 6.0], [0.32, 0.34, 0.36])
    """
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(each * power for each in STEPS if each * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [round(number * step, digits) for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two ends of a logarithmic axis: 1, 2, 5 of every ten; or even steps
    where the ends are close.

    >>> log_ticks(500, 6000), log_ticks(90, 205)
    ([500.0, 1000.0, 2000.0, 5000.0], [100.0, 120.0, 140.0, 160.0, 180.0, 200.0])
    """
    if high / low < 5:
        return ticks(low, high)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    if high / low > 2000:
        found = [10.0**power for power in powers]
    return [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


@dataclass(frozen=True, slots=True)
class LogScale:
    """Where positive values lie: equal distances are equal ratios."""

    low: float
    high: float
    start: float  # where the lowest lies; pixels
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def log_scale(values: Sequence[float], start: float, end: float, pad: float = 0.06) -> LogScale:
    """One that holds these values with room at its ends."""
    low, high = min(values), max(values)
    room = max((high / low) ** pad, 1.03)
    return LogScale(low / room, high * room, start, end)


def time_labels(seconds: list[float]) -> list[str]:
    """In the largest unit that needs no leading zeros; the unit stands on the first.

    >>> time_labels([0.0, 0.02, 0.04])
    ['0 ms', '20', '40']
    """
    most = max(map(abs, seconds), default=0.0)
    size, unit = next((each for each in TIME_UNITS if most >= each[0]), TIME_UNITS[-1])
    labels = [f"{value / size:.6g}" for value in seconds]
    return [f"{label} {unit}" if row == 0 else label for row, label in enumerate(labels)]


def text_width(words: str, size: int) -> float:
    """About what words take up.

    >>> text_width("illicit", 12) < text_width("0.345 s", 12) < text_width("WWWWWWW", 12)
    True
    """
    return size * sum(
        NARROW_LETTER
        if letter in NARROW_LETTERS
        else WIDE_LETTER
        if letter in WIDE_LETTERS
        else LETTER
        for letter in words
    )


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 11,
    colour: str = "ink3",
    anchor: str = "start",
    weight: int = 400,
    value: str = "",
) -> str:
    """Words at a place, whatever is in them; a value behind them stands out."""
    bold = f' font-weight="{weight}"' if weight != 400 else ""
    strong = f' <tspan font-weight="600" fill="{paint("ink")}">{escape(value)}</tspan>'
    return (
        f'<text x="{number(x)}" y="{number(y)}" font-size="{size}" fill="{paint(colour)}" '
        f'text-anchor="{anchor}"{bold}>{escape(words)}{strong if value else ""}</text>'
    )


def number(value: float) -> str:
    """A place in the picture: tenths of a pixel are enough.

    >>> number(12.04), number(3.0)
    ('12', '3')
    """
    return f"{value:.1f}".removesuffix(".0")


def picture(width: float, height: float, sentence: str, parts: list[str]) -> str:
    """A whole SVG; the sentence is for those who cannot see it."""
    size = f'width="{number(width)}" height="{number(height)}"'
    box = f'viewBox="0 0 {number(width)} {number(height)}"'
    label = escape(sentence, quote=True)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} role="img" aria-label="{label}" '
        f'font-family="{FONT}">'
    )
    ground = f'<rect width="{number(width)}" height="{number(height)}" fill="{paint("panel")}"/>'
    return "\n".join([head, ground, *parts, "</svg>"]) + "\n"
