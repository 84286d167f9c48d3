"""Points of hours and dollars: which are dominated by none, and what lies between them."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FLAT = 1.25  # dearest over cheapest: a frontier of less is weighed as if it were so steep


def frontier(hours: Floats, usd: Floats) -> Ints:
    """Rows that no other row beats: none is as fast and as cheap. Fastest first.

    Of equal points the first one stays.
    """
    order = np.lexsort((np.arange(len(hours)), usd, hours))
    order = order[np.isfinite(hours[order]) & np.isfinite(usd[order])]
    if not len(order):
        return order
    least = np.minimum.accumulate(usd[order])
    before = np.concatenate([[np.inf], least[:-1]])
    return order[usd[order] < before]


def knee(hours: Floats, usd: Floats) -> int:
    """The place on a frontier where it bends most: farthest below the line between its ends.

    On logarithmic axes, so that neither dollars for hours nor their units matter; one on which all
    cost about the same is weighed as if it were steeper. Where none lies below the line, the end
    of the least hours x dollars: the faster one, unless it costs more by a larger share than it
    saves. Satopaa et al. 2011, "Finding a kneedle in a haystack", section 2.
    """
    x, y = np.log(hours), np.log(np.maximum(usd, 1e-9))
    if len(hours) > 2:
        across = (x - x[0]) / (x[-1] - x[0])
        below = (y[0] - y) / max(y[0] - y[-1], np.log(FLAT)) - across
        if below.max() > 1e-12:
            return int(np.argmax(below))
    return 0 if x[0] + y[0] < x[-1] + y[-1] else len(hours) - 1


def steps_along(hours: Floats, usd: Floats) -> tuple[Floats, Floats]:
    """From each point of a frontier to the next faster one: hours saved, and dollars more.

    Points fastest first; the first has nowhere to go and gets zeros.
    """
    saved = np.concatenate([[0.0], np.diff(hours)])
    more = np.concatenate([[0.0], -np.diff(usd)])
    return saved, more
