"""How far predictions are from measurements. Pure functions of pairs of numbers."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, combinations, pairwise
from statistics import fmean

MAX_LOG_ERROR = math.log(2)  # a prediction off by more than twice or half counts as off by twice
MIN_FAMILY_ROWS = 10  # families of fewer rows are pooled as one
UNTIMED_FAMILIES = "megatron-ci"  # tiny models of a test suite: their step is launch overhead


def error_fraction(predicted: float, measured: float) -> float:
    """Signed error: predicted / measured - 1."""
    return predicted / measured - 1


def capped_error(predicted: float, measured: float) -> float:
    """exp(min(|log(predicted / measured)|, log 2)) - 1: alike for too slow and too fast.

    >>> [round(capped_error(p, 10.0), 3) for p in (11.0, 8.0, 90.0)]
    [0.1, 0.25, 1.0]
    """
    return math.exp(min(abs(math.log(predicted / measured)), MAX_LOG_ERROR)) - 1


def is_timed(family: str) -> bool:
    """Whether step times of a family count."""
    return not family.startswith(UNTIMED_FAMILIES)


def score(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> float | None:
    """Mean over families of the mean capped error of their (predicted, measured) pairs.

    Families of fewer than ten rows are pooled as one, those whose times mean nothing are left
    out. None without any row.
    """
    timed = {name: rows for name, rows in pairs.items() if rows and is_timed(name)}
    groups = [rows for rows in timed.values() if len(rows) >= MIN_FAMILY_ROWS]
    pooled = [pair for rows in timed.values() if len(rows) < MIN_FAMILY_ROWS for pair in rows]
    if pooled:
        groups.append(pooled)
    return fmean(fmean(capped_error(*pair) for pair in rows) for rows in groups) if groups else None


def regret_fraction(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Measured time of what we would pick over the best measured time, less 1.

    Of several that we predict equal, their mean measured time counts.
    """
    best = min(predicted)
    picked = [m for p, m in zip(predicted, measured, strict=True) if p == best]
    return fmean(picked) / min(measured) - 1


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings; None where one of them is all ties.

        tau = (C - D) / sqrt((n0 - n1) (n0 - n2))

    C and D count pairs ordered alike and otherwise, n0 all pairs, n1 and n2 the pairs tied in
    the first and in the second. Knight 1966: sorted by the first, D is the number of swaps that
    sort the second, so the time is n log n.
    """
    pairs = sorted(zip(first, second, strict=True))
    every = _pairs(len(pairs))
    tied_first = _tied([a for a, _ in pairs])
    tied_both = _tied(pairs)
    ordered, swaps = _sorted_with_swaps([b for _, b in pairs])
    tied_second = _tied(ordered)
    scale = math.sqrt((every - tied_first) * (every - tied_second))
    if not scale:
        return None
    return (every - tied_first - tied_second + tied_both - 2 * swaps) / scale


def _pairs(count: int) -> int:
    return count * (count - 1) // 2


def _tied(ordered: Sequence[object]) -> int:
    """Pairs of equal neighbours in a sorted list."""
    total, run = 0, 1
    for before, after in pairwise(ordered):
        run = run + 1 if before == after else 1
        total += run - 1
    return total


def _sorted_with_swaps(values: list[float]) -> tuple[list[float], int]:
    """Merge sort, and how many pairs were the wrong way round."""
    if len(values) < 2:
        return values, 0
    left, left_swaps = _sorted_with_swaps(values[: len(values) // 2])
    right, right_swaps = _sorted_with_swaps(values[len(values) // 2 :])
    merged: list[float] = []
    swaps, i = left_swaps + right_swaps, 0
    for value in right:
        while i < len(left) and left[i] <= value:
            merged.append(left[i])
            i += 1
        merged.append(value)
        swaps += len(left) - i
    return merged + left[i:], swaps


def pair_spread(
    errors: Mapping[tuple[str, ...], Sequence[float]], share: float = 0.8
) -> tuple[float, int]:
    """How far the ratio of two runs of a sweep is off in this share of pairs, and the pairs.

    `errors` are log(predicted / measured) by sweep, whose first word is its family. Each family
    counts alike, in it each sweep, in it each pair.
    """
    sweeps = Counter(key[0] for key in errors)
    sizes: list[tuple[float, float]] = []
    for key, logs in errors.items():
        off = [abs(a - b) for a, b in combinations(logs, 2)]
        sizes += [(each, 1 / (len(off) * sweeps[key[0]])) for each in off]
    sizes.sort()
    target = share * sum(weight for _, weight in sizes)
    reached = accumulate(weight for _, weight in sizes)
    place = next(at for at, total in enumerate(reached) if total >= target * (1 - 1e-12))
    return math.expm1(sizes[place][0]), len(sizes)
