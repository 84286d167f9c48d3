"""Pipelines of one cell, built from the last stage to the first as a table of labels.

A label is the lower end of a pipeline: which types it used (mask), the kind and number of its
topmost stages, the layers that are left, and what bounds the step: `value_s`, the highest view
from any of its stages, and `below_s`, the round trip through it. When a stage is added, all that
it needs is known: how many micro-batches it holds, and how long the way below it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astra.strategy.plans import Flags, Floats

Rows = NDArray[np.integer[Any]]
Small = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Labels:
    """Lower ends of pipelines, of one number of stages. (label,)"""

    parent: Small  # label of the round before; -1 in the first
    kind: Small
    mask: Small  # bits of the pools in use
    count: Small  # stages of this kind so far
    left: Small  # layers for the stages above
    layers: Small  # of the topmost stage
    gpus: Small
    tail: Small  # how the last stage is cut, where the ends must agree
    value_s: Floats
    below_s: Floats
    ends_s: Floats  # when a stage has waited for the slowest GPU, the way down to it only
    above_s: Floats  # least seconds of the layers that are left
    bound_s: Floats  # least step of any pipeline that ends so

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: Rows) -> "Labels":
        return Labels(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Ends:
    """Whole pipelines: a label of the last round and the first stage on top. (pipeline,)"""

    parent: Small
    kind: Small
    up_s: Floats  # of the first stage and the links to it
    bound_s: Floats

    def take(self, rows: Rows) -> "Ends":
        return Ends(self.parent[rows], self.kind[rows], self.up_s[rows], self.bound_s[rows])


@dataclass(frozen=True, slots=True)
class Round:
    """Labels of one number of stages, and how each may go on."""

    labels: Labels
    open: Flags  # with another stage of its kind
    closed: Flags  # with a stage of a type that it does not use yet
    ends: Ends

    def __post_init__(self) -> None:
        assert len(self.open) == len(self.closed) == len(self.labels), "a flag for every label"


def join(parts: list[Labels]) -> Labels:
    if len(parts) == 1:
        return parts[0]
    return Labels(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Labels)))


def labels_of(whole: Sequence[NDArray[np.integer[Any]]], real: Sequence[Floats]) -> Labels:
    """Labels of these columns, in their order: whole numbers, then seconds."""
    columns: list[Any] = [column.astype(np.int32) for column in whole]
    return Labels(*columns, *real)


def nothing() -> Labels:
    return labels_of([np.zeros(0, np.int32)] * 8, [np.zeros(0)] * 5)
