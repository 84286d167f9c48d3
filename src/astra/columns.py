"""What numpy lacks for columns of few distinct values, and how near two numbers count as one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

REL_EPS = 1e-12  # relative; steps and bounds that differ by rounding alone
MAX_SPAN_PER_ENTRY = 8  # up to which whole numbers are counted, not sorted


def factorized(column: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Distinct values and the index of each entry. Small whole numbers need no sorting."""
    if not column.size:
        return column.reshape(-1), np.zeros(column.shape, np.int64)
    first = column.flat[0]
    if (column == first).all() or (first != first and np.isnan(column).all()):
        return np.array([first]), np.zeros(column.shape, np.int64)
    if column.dtype.kind in "iub":
        low = int(column.min())
        span = int(column.max()) - low + 1
        if span <= MAX_SPAN_PER_ENTRY * column.size:
            shifted = column.astype(np.int64) - low
            present = np.zeros(span, np.bool_)
            present[shifted.ravel()] = True
            places = np.cumsum(present) - 1
            return (np.flatnonzero(present) + low).astype(column.dtype), places[shifted]
    known, index = np.unique(column, return_inverse=True)
    return known, index.reshape(column.shape)
