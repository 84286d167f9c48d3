"""Matrix products: their times as a table, seconds on a grid of shapes, straight in log space."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GemmTable:
    """Logarithm of seconds at the corners of a grid of shapes.

    The axes are the shorter and the longer side of the result and the depth of the product: a
    GPU cares little which side is called m. The table falls along no axis. Between corners the
    logarithm is multilinear in the logarithms of the sides, so the time between falls nowhere
    either. Below an axis the time stays (a tile is computed whole); above it, it grows with the
    side.
    """

    short: Floats  # ascending, as the others
    long: Floats
    depth: Floats
    log_s: Floats  # (short, long, depth)

    @property
    def axes(self) -> tuple[Floats, Floats, Floats]:
        return self.short, self.long, self.depth

    def seconds(self, rows: Floats, columns: Floats, depth: Floats) -> Floats:
        """Times of products of these shapes, arrays of one shape. [s]"""
        point = (np.minimum(rows, columns), np.maximum(rows, columns), depth)
        flat = self.log_s.ravel()
        found = np.zeros(rows.shape)
        for index, weight in corners(self.axes, point):
            found += weight * flat[index]
        for axis, x in zip(self.axes, point, strict=True):
            found += np.log(np.maximum(x / axis[-1], 1.0))
        return np.asarray(np.exp(found))

    def outside(self, rows: Floats, columns: Floats, depth: Floats) -> Bools:
        """Which of these shapes lie off the grid."""
        point = (np.minimum(rows, columns), np.maximum(rows, columns), depth)
        off = np.zeros(rows.shape, dtype=np.bool_)
        for axis, x in zip(self.axes, point, strict=True):
            off |= (x < axis[0]) | (x > axis[-1])
        return off


def corners(axes: Sequence[Floats], point: Sequence[Floats]) -> list[tuple[Indices, Floats]]:
    """The corners of the cell around each point, each with its flat index and its weight."""
    sides = []
    for axis, x in zip(axes, point, strict=True):
        place = np.asarray(np.interp(np.log(x), np.log(axis), np.arange(len(axis))))
        low = np.minimum(place.astype(np.int64), len(axis) - 2)
        sides.append((low, place - low))
    strides = np.cumprod([1, *(len(axis) for axis in axes[:0:-1])])[::-1]
    found = []
    for bits in product((0, 1), repeat=len(axes)):
        index = np.zeros(point[0].shape, dtype=np.int64)
        weight = np.ones(point[0].shape)
        for bit, (low, part), stride in zip(bits, sides, strides, strict=True):
            index += (low + bit) * stride
            weight *= part if bit else 1 - part
        found.append((index, weight))
    return found


def rising(table: Floats) -> Floats:
    """The least table that is nowhere below this one and falls along no axis."""
    for axis in range(table.ndim):
        table = np.maximum.accumulate(table, axis=axis)
    return table


def roofline_s(
    flops: Floats, moved_bytes: Floats, flops_per_s: float, bytes_per_s: float, ramp_s: float
) -> Floats:
    """Least time of a kernel, with a soft corner between its two bounds. [s]

    T = ((F / P)^4 + (V / B)^4)^(1/4) + r

    It falls when P or B rises, whatever the shape.
    """
    return ((flops / flops_per_s) ** 4 + (moved_bytes / bytes_per_s) ** 4) ** 0.25 + ramp_s


# Times of a product whose inner sides share just this power of two, over one of 64 and more.
# Tensor cores want rows of 16 bytes at least (eight numbers), best of 128: NVIDIA, "Matrix
# Multiplication Background", section 3. By how much is fitted to BLOOM's trials of hidden sizes.
ALIGNED = (1, 2, 4, 8, 16, 32, 64)
ALIGNED_TIMES = (7.0, 7.0, 6.0, 1.12, 1.08, 1.04, 1.0)


def misaligned(*widths: Floats) -> Floats:
    """How much longer a product takes for widths that tensor cores are not made for."""
    found = np.ones(np.broadcast_shapes(*(width.shape for width in widths)))
    for width in widths:
        whole = np.maximum(np.rint(width), 1).astype(np.int64)
        shared = np.gcd(whole, ALIGNED[-1])
        found = np.maximum(found, np.interp(np.log2(shared), range(len(ALIGNED)), ALIGNED_TIMES))
    return found


def moved_bytes(
    rows: Floats, columns: Floats, depth: Floats, input_bytes: float, output_bytes: float
) -> Floats:
    """Both operands read once, the result written once. [bytes]"""
    return input_bytes * (rows + columns) * depth + output_bytes * rows * columns


def sustained_s(burst_s: Floats, slowdown: float, from_s: float) -> Floats:
    """Time under steady load, of a kernel measured in a short burst. [s]

    T' = T (1 + (f - 1) T / (T + t))

    Random data at full load pulls the clock down by f; a kernel much shorter than t is bound by
    other things. Rises with T, for any f >= 1.
    """
    return burst_s * (1 + (slowdown - 1) * burst_s / (burst_s + from_s))
