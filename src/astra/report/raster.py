"""A small picture as PNG without a library: lines, dots and capital letters drawn in strokes."""

import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Place = tuple[float, float]
Grey = npt.NDArray[np.float64]

PIXELS_PER_UNIT = 2  # pixels for a unit of the picture, each way
# Strokes on a grid four wide and six high, y downwards: points of a line, lines by a space.
LETTER_STROKES = {
    "0": "0040 4046 4606 0600 0640",
    "1": "1120 2026 1636",
    "2": "0040 4043 4303 0306 0646",
    "3": "0040 4046 4606 0343",
    "4": "0003 0343 4046",
    "5": "4000 0003 0343 4346 4606",
    "6": "4000 0006 0646 4643 4303",
    "7": "0040 4016",
    "8": "0040 4046 4606 0600 0343",
    "9": "4303 0300 0040 4046 4606",
    "A": "0602 0220 2042 4246 0444",
    "B": "0006 0030 3041 4142 4233 0333 3344 4445 4536 3606",
    "C": "4000 0006 0646",
    "D": "0006 0030 3041 4145 4536 3606",
    "E": "4000 0006 0646 0333",
    "F": "4000 0006 0333",
    "G": "4000 0006 0646 4643 4323",
    "H": "0006 4046 0343",
    "I": "1030 2026 1636",
    "J": "4045 4536 3616 1605",
    "K": "0006 4003 0346",
    "L": "0006 0646",
    "M": "0600 0023 2340 4046",
    "N": "0600 0046 4640",
    "O": "0040 4046 4606 0600",
    "P": "0600 0040 4043 4303",
    "Q": "0040 4046 4606 0600 2446",
    "R": "0600 0040 4043 4303 2346",
    "S": "4000 0003 0343 4346 4606",
    "T": "0040 2026",
    "U": "0006 0646 4640",
    "V": "0026 2640",
    "W": "0016 1622 2236 3640",
    "X": "0046 4006",
    "Y": "0023 4023 2326",
    "Z": "0040 4006 0646",
    "$": "4101 0103 0343 4345 4505 2026",
    ".": "2526",
    ",": "2516",
    ":": "2122 2425",
    "-": "0343",
    "+": "0343 2125",
    "(": "3021 2125 2536",
    ")": "1021 2125 2516",
    "[": "3010 1016 1636",
    "]": "1030 3036 3616",
    "/": "0640",
    "%": "0640 0011 3546",
    "*": "1135 3115 0343",
    "_": "0646",
    "'": "2021",
}


def png(
    width: int,
    height: int,
    lines: Sequence[tuple[Place, Place, bool, bool]],
    dots: Sequence[tuple[Place, float, bool]],
    texts: Sequence[tuple[Place, str, int, str]],
) -> bytes:
    """Black and grey on white. Lines are (start, end, pale, dashed), dots (place, radius, filled),
    texts (place, words, size, anchor)."""
    page = np.ones((height * PIXELS_PER_UNIT, width * PIXELS_PER_UNIT))
    for start, end, pale, dashed in lines:
        for a, b in _dashes(start, end) if dashed else [(start, end)]:
            _stroke(page, a, b, 0.27 if pale else 0.87, 0.6)
    for place, radius, filled in dots:
        _dot(page, place, radius, filled)
    for place, text, size, anchor in texts:
        for a, b in _letters(place, text, size, anchor):
            _stroke(page, a, b, 0.87, 0.55)
    return _encoded(page)


def _dashes(start: Place, end: Place) -> list[tuple[Place, Place]]:
    a, b = np.array(start), np.array(end)
    count = max(int(np.hypot(*(b - a)) / 12), 1)
    dashes = []
    for n in range(count):
        first, last = a + (b - a) * n / count, a + (b - a) * (n + 0.6) / count
        dashes.append(((first[0], first[1]), (last[0], last[1])))
    return dashes


def _letters(place: Place, text: str, size: int, anchor: str) -> list[tuple[Place, Place]]:
    unit = size / 10.0
    advance = 5.6 * unit
    shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * advance * len(text)
    strokes = []
    for n, letter in enumerate(text.upper()):
        x, y = place[0] - shift + n * advance, place[1] - 7 * unit
        for stroke in LETTER_STROKES.get(letter, "").split():
            a, b, c, d = (int(digit) for digit in stroke)
            strokes.append(
                ((x + a * unit, y + b * unit), (x + c * unit, y + d * unit)),
            )
    return strokes


def _stroke(page: Grey, start: Place, end: Place, dark: float, half: float) -> None:
    """Darkens what lies within half a width of a line."""
    a, b = np.array(start) * PIXELS_PER_UNIT, np.array(end) * PIXELS_PER_UNIT
    reach = half * PIXELS_PER_UNIT + 1
    low, high = np.minimum(a, b) - reach, np.maximum(a, b) + reach
    window, x, y = _window(page, low, high)
    if not window.size:
        return
    length = max(float(((b - a) ** 2).sum()), 1e-9)
    share = np.clip(((x - a[0]) * (b[0] - a[0]) + (y - a[1]) * (b[1] - a[1])) / length, 0, 1)
    far = np.hypot(x - a[0] - share * (b[0] - a[0]), y - a[1] - share * (b[1] - a[1]))
    cover = np.clip(half * PIXELS_PER_UNIT + 0.5 - far, 0, 1) * dark
    np.minimum(window, 1 - cover, out=window)


def _dot(page: Grey, place: Place, radius: float, filled: bool) -> None:
    centre, size = np.array(place) * PIXELS_PER_UNIT, radius * PIXELS_PER_UNIT
    window, x, y = _window(page, centre - size - 2, centre + size + 2)
    if not window.size:
        return
    far = np.hypot(x - centre[0], y - centre[1])
    inside = np.clip(size + 0.5 - far, 0, 1)
    ring = inside - np.clip(size - PIXELS_PER_UNIT + 0.5 - far, 0, 1)
    if not filled:
        window[...] = np.maximum(window, inside)
    np.minimum(window, 1 - 0.87 * (inside if filled else ring), out=window)


def _window(page: Grey, low: Grey, high: Grey) -> tuple[Grey, Grey, Grey]:
    """The part of a page between two corners, and where its pixels lie."""
    rows, columns = page.shape
    left, right = max(int(low[0]), 0), min(int(high[0]) + 1, columns)
    top, bottom = max(int(low[1]), 0), min(int(high[1]) + 1, rows)
    x = np.arange(left, max(right, left))[np.newaxis, :] + 0.5
    y = np.arange(top, max(bottom, top))[:, np.newaxis] + 0.5
    return page[top:bottom, left:right], x, y


def _encoded(page: Grey) -> bytes:
    """Eight bits of grey, as the PNG specification lays them out (ISO/IEC 15948)."""
    levels = np.round(page * 255).astype(np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in levels)
    head = struct.pack(">IIBBBBB", page.shape[1], page.shape[0], 8, 0, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
