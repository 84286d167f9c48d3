"""Lower ends of pipelines with the seconds of all their stages, run through the simulator.

The order of a stage's operations depends only on the stages below it. So a lower end by itself,
with all its input there, takes no longer than as part of any pipeline: what its stages add up to
in the simulator is a bound that knows every turn and every link.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astra.columns import REL_EPS
from astra.search.mixed.cellar import Cellar
from astra.search.mixed.labels import Ends, Labels, Rows
from astra.search.mixed.tables import FIRST, INSIDE, LAST
from astra.simulate.one_f_one_b_columns import OneF1BColumns, stage_end_s
from astra.strategy.plans import Floats

Whole = NDArray[np.integer[Any]]
CELLS = 1 << 15  # numbers of one (stage, label) table that stay in cache


@dataclass(frozen=True, slots=True)
class Paths:
    """Seconds of the stages of labels, the topmost first. (stage, label)"""

    forward_s: Floats
    backward_s: Floats
    link_s: Floats  # to the next stage below, one way
    stay_s: Floats  # behind the last backward

    def take(self, rows: Rows) -> "Paths":
        parts = (self.forward_s, self.backward_s, self.link_s, self.stay_s)
        return Paths(*(part[:, rows] for part in parts))

    def ends_s(self, micro_batches: int) -> Floats:
        """When each stage has done its last backward. (stage, label)"""
        stages, count = self.forward_s.shape
        nothing = np.zeros_like(self.link_s)
        above = np.concatenate([nothing[:1], self.link_s[:-1]])
        columns = OneF1BColumns(
            forward_s=self.forward_s,
            backward_s=self.backward_s,
            from_above_s=above,
            from_below_s=self.link_s,
            first_gather_s=nothing,
            last_reduce_s=nothing,
        )
        found, width = np.empty((stages, count)), max(1, CELLS // stages)
        for start in range(0, count, width):
            rows = np.arange(start, min(start + width, count))
            found[:, rows] = stage_end_s(columns.take(rows), micro_batches, True)
        return found * (1 - REL_EPS)


def lowest(cellar: Cellar, labels: Labels) -> Paths:
    """Paths of labels of one stage."""
    loads = cellar.tables.loads
    load = loads.at[loads.layers, labels.layers]
    return _one(cellar, LAST, 1, labels.kind, load, np.zeros(len(labels)))


def on_top(
    cellar: Cellar, paths: Paths, below: Labels, above: tuple[Whole, Whole, Whole], place: int
) -> Paths:
    """Paths with one stage more: `above` is the label each is put on, its kind and its load."""
    parent, kind, load = above
    depth = len(paths.forward_s)
    link = cellar.tables.link_s[kind, below.kind[parent]]
    flying = min(cellar.cell.micro_batches, depth + 1)
    top, rest = _one(cellar, place, flying, kind, load, link), paths.take(parent)
    return Paths(
        np.concatenate([top.forward_s, rest.forward_s]),
        np.concatenate([top.backward_s, rest.backward_s]),
        np.concatenate([top.link_s, rest.link_s]),
        np.concatenate([top.stay_s, rest.stay_s]),
    )


def _one(cellar: Cellar, place: int, flying: int, kind: Whole, load: Whole, link: Floats) -> Paths:
    chosen = cellar.tables.at(place, flying)
    columns = chosen.forward_s, chosen.backward_s, cellar.stay_s[place]
    forward, backward, stay = (column[kind, load][np.newaxis] for column in columns)
    return Paths(forward, backward, link[np.newaxis], stay)


def extended(cellar: Cellar, paths: Paths, below: Labels, labels: Labels) -> Paths:
    """Paths of the labels of the next round."""
    load = cellar.tables.loads.at[below.left[labels.parent], labels.layers]
    return on_top(cellar, paths, below, (labels.parent, labels.kind, load), INSIDE)


def tightened(cellar: Cellar, labels: Labels, paths: Paths) -> tuple[Labels, Paths]:
    """The labels that can still beat the limit, as the simulator sees them."""
    end = paths.ends_s(cellar.cell.micro_batches)
    value = np.maximum(labels.value_s, end[0])
    ends = np.maximum(labels.ends_s, (end + paths.stay_s).max(axis=0))
    bound = np.maximum(
        value + labels.above_s + cellar.rest_s,
        ends + cellar.left_weight[labels.left] * cellar.down_s,
    )
    changed = replace(labels, value_s=value, ends_s=ends, bound_s=bound)
    rows = np.flatnonzero(bound < cellar.limit_s)
    return changed.take(rows), paths.take(rows)


def tightened_ends(cellar: Cellar, below: Labels, paths: Paths, ends: Ends) -> Ends:
    """The whole pipelines that can still beat the limit, as the simulator sees them."""
    left = below.left[ends.parent]
    load = cellar.tables.loads.at[left, left]
    whole = on_top(cellar, paths, below, (ends.parent, ends.kind, load), FIRST)
    end = whole.ends_s(cellar.cell.micro_batches)
    tables, at = cellar.tables, (FIRST, ends.kind, load)
    gpus = below.gpus[ends.parent] + cellar.stage_gpus[ends.kind]
    rest = tables.after_s[at] + tables.wait_s[at] * np.log2(gpus)
    bound = np.maximum(end[0] + rest, (end + whole.stay_s).max(axis=0)) + tables.opening_s[at]
    bound = np.maximum(bound, ends.bound_s)
    rows = np.flatnonzero(bound < cellar.limit_s)
    return replace(ends, bound_s=bound).take(rows)
