"""What a stage can hold: layers in a row, told apart by how many there are of each kind."""

from dataclasses import dataclass

import numpy as np

from astra.model.layer_kinds import layer_kinds
from astra.model.shape import Model
from astra.strategy.plans import Floats, Ints

FIRST, INSIDE, LAST = range(3)  # places in the pipeline


@dataclass(frozen=True, slots=True)
class Loads:
    """The distinct loads of a model, the lighter in layers first; load 0 is none.

    Where all layers are alike a load is a number of layers.
    """

    counts: Ints  # (load, kind of layer)
    sizes: Ints  # (load,) layers of all kinds
    at: Ints  # (layers left, size): the load of a stage whose lower end these layers are
    starts: Ints  # (place, load): first layer of some stage with this load; -1: lies nowhere

    @property
    def layers(self) -> int:
        return self.at.shape[0] - 1

    @property
    def alike(self) -> bool:
        return self.counts.shape[1] == 1

    def upto(self, size: int) -> int:
        """How many loads have no more layers than that."""
        return int(np.searchsorted(self.sizes, size, side="right"))

    def weights(self, kind_s: Floats | None) -> tuple[Floats, Floats]:
        """Of every load and of all layers above a place, as multiples of a mean layer.

        `kind_s`: seconds of a layer of each kind; None: all alike. (load,), (layers left,)
        """
        each = np.ones(self.counts.shape[1])
        if kind_s is not None and not self.alike:
            total = self.counts[self.at[self.layers, self.layers]]
            each = kind_s * self.layers / float((total * kind_s).sum())
        weight = self.counts @ each
        return weight, weight[self.at.diagonal()]


def loads_of(model: Model) -> Loads:
    """All loads of a model's layers."""
    kinds = layer_kinds(model)
    rows, layers = np.array(kinds.of_layer), model.layers
    before = np.zeros((layers + 1, len(kinds.kinds)), np.int64)
    before[1:] = np.cumsum(rows[:, np.newaxis] == np.arange(len(kinds.kinds)), axis=0)
    left, size = np.nonzero(np.tri(layers + 1, dtype=np.bool_))  # size <= left
    held = before[left] - before[left - size]
    keys = np.concatenate([size[:, np.newaxis], held], axis=1)
    distinct, load = np.unique(keys, axis=0, return_inverse=True)
    load = load.reshape(-1)
    at = np.zeros((layers + 1, layers + 1), np.int64)
    at[left, size] = load
    starts = np.full((3, len(distinct)), -1, np.int64)
    begin = left - size
    for place, there in (
        (FIRST, (begin == 0) & (left < layers)),
        (INSIDE, (begin > 0) & (left < layers)),
        (LAST, (begin > 0) & (left == layers)),
    ):
        starts[place, load[there & (size > 0)]] = begin[there & (size > 0)]
    return Loads(distinct[:, 1:], distinct[:, 0], at, starts)
