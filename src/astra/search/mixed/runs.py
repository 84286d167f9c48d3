"""How many layers runs of stages hold: types in any order, each in one run of one of its kinds."""

import numpy as np

from astra.strategy.plans import Flags, Floats, Ints

NEVER = -1e9


def reaching(pool: Ints, stages: Ints, most: Floats, target: int) -> Flags:
    """Kinds that some row of runs which holds so many layers has. (cell, kind)

    `most`: layers of a stage by place from the end, (cell, kind, place); NEVER of kinds that a
    cell does not have.
    """
    pools = [np.flatnonzero(pool == each) for each in sorted(set(pool.tolist()))]
    total = np.zeros((*most.shape[:2], most.shape[2] + 1))
    np.cumsum(most, axis=2, out=total[..., 1:])
    below = lower(total, stages, pools)
    found = np.zeros(most.shape[:2], np.bool_)
    cells = np.flatnonzero(below.max(axis=(0, 2)) >= target)
    if not len(cells):
        return found
    below, total = below[:, cells], total[cells]
    above = _upper(total, stages, pools)
    for row, kinds in enumerate(pools):
        some = np.array([mask for mask in range(1 << len(pools)) if not mask >> row & 1])
        ends = _through(below[some], total[:, kinds], stages[kinds])
        whole = ends + above[some | 1 << row][..., np.newaxis, :]
        found[np.ix_(cells, kinds)] = whole.max(axis=(0, 3)) >= target
    return found


def _through(below: Floats, total: Floats, stages: Ints) -> Floats:
    """Most layers held below a place by what lies further below and a run of one kind up to it.

    (..., cell, kind, place)
    """
    found = np.zeros((*below.shape[:-1], *total.shape[1:]))
    for longest in sorted(set(stages.tolist())):
        rows = np.flatnonzero(stages == longest)
        best, reach = below[..., np.newaxis, :] - total[:, rows], 1  # the most of so many places
        while 2 * reach <= longest:
            best = _later(best, reach)
            reach *= 2
        best = _later(best, longest - reach)
        found[..., rows, 1:] = best[..., :-1]
    found += total
    found[..., 0] = NEVER  # a run has a stage
    return found


def _later(best: Floats, by: int) -> Floats:
    """The larger of each value and the one so many places before."""
    if by <= 0:
        return best
    found = best.copy()
    np.maximum(best[..., by:], best[..., :-by], out=found[..., by:])
    return found


def _masks(pools: int) -> list[list[int]]:
    """Sets of types, by how many they are."""
    found: list[list[int]] = [[] for _ in range(pools + 1)]
    for mask in range(1 << pools):
        found[mask.bit_count()].append(mask)
    return found


def lower(total: Floats, stages: Ints, pools: list[Ints]) -> Floats:
    """By types in use, the most layers that stages up to a place hold. (types, cell, place)"""
    found = np.full((1 << len(pools), len(total), total.shape[2]), NEVER)
    found[0, :, 0] = 0.0
    for masks in _masks(len(pools)):
        for row, kinds in enumerate(pools):
            some = np.array([mask for mask in masks if not mask >> row & 1], np.int64)
            if len(some):
                ends = _through(found[some], total[:, kinds], stages[kinds]).max(axis=-2)
                wide = some | 1 << row
                found[wide] = np.maximum(found[wide], ends)
    return found


def _upper(total: Floats, stages: Ints, pools: list[Ints]) -> Floats:
    """By types in use below a place, the most layers that stages from there on hold."""
    found = np.zeros((1 << len(pools), len(total), total.shape[2]))
    for masks in reversed(_masks(len(pools))):
        for row, kinds in enumerate(pools):
            some = np.array([mask for mask in masks if not mask >> row & 1], np.int64)
            if len(some):
                above = found[some | 1 << row][..., ::-1]
                ends = _through(above, -total[:, kinds, ::-1], stages[kinds]).max(axis=-2)
                found[some] = np.maximum(found[some], ends[..., ::-1])
    return found
