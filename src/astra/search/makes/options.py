"""What makes may recompute and offload, before anything of it is priced."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from astra.search.makes.commons import selected, whole_layers
from astra.strategy.plans import Flags, Floats, Ints, Plans, code, column_dtype
from astra.strategy.recompute import MODULES
from astra.strategy.space import Space
from astra.strategy.stage_view import StageView
from astra.timing.stage_work import StageWork

SELECTIVE, BLOCK = code("recompute", "selective"), code("recompute", "full:block")
UNIFORM = code("recompute", "full:uniform")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Options:
    """Variants of makes. (variant,)"""

    rows: Ints  # of the make
    choice: Ints  # of modules and offload: what all makes of a plan have in common
    mode: Ints
    number: Ints
    modules: Ints
    offload: Floats

    def take(self, rows: Ints) -> "Options":
        return Options(*(getattr(self, each.name)[rows] for each in fields(self)))

    @staticmethod
    def joined(parts: Sequence["Options"]) -> "Options":
        names = [each.name for each in fields(Options)]
        return Options(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))

    def columns(self, used: Flags) -> dict[str, Any]:
        """As columns of plans with these slots in use."""
        named = {
            "recompute": self.mode,
            "recompute_layers": self.number,
            "recompute_modules": self.modules,
        }
        found: dict[str, Any] = {"offload_optimizer_fraction": self.offload}
        for name, column in named.items():
            found[name] = np.where(used, column, 0).astype(column_dtype(name))
        return found

    def again_s(self, view: StageView, base: StageWork, at: Ints) -> Floats:
        """What each run of these plans does again for a micro-batch. (run, variant) [s]"""
        layers = np.maximum(view.stages.kind_layers[:, 0].sum(axis=0), 1)[:, at]
        share = np.where(
            self.mode == BLOCK, np.minimum(self.number * view.plans.vpp[at] / layers, 1.0), 0.0
        )
        share = np.where(self.mode == UNIFORM, 1.0, share)
        found: Floats = share * base.layers_forward_s[0][:, at]
        for place, module in enumerate(MODULES):
            chosen = self.modules >> place & 1
            if chosen.any():
                found = found + chosen * base.module_s[module][0][:, at]
        return np.where(view.stages.count[0][:, at] > 0, found, 0.0)


def options_of(space: Space, plans: Plans) -> Options:
    """All of every make."""
    largest = (-(-plans.layers[0] // plans.vpp)).max(axis=0, initial=1)
    offloads = space.values("offload_optimizer_fraction") or (0.0,)
    tables: dict[int, Ints] = {}
    for size in np.unique(largest).tolist():
        some = []
        for place, bits in enumerate(selected(space)):
            own = [(SELECTIVE, 0)] if bits else whole_layers(space, size)
            some += [
                (place * len(offloads) + at, mode, number, bits, at)
                for mode, number in own
                for at in range(len(offloads))
            ]
        tables[size] = np.array(some, np.int64).reshape(-1, 5)
    parts = [tables[size] for size in largest.tolist()]
    rows = np.repeat(np.arange(len(plans)), [len(part) for part in parts])
    flat = np.concatenate(parts) if parts else np.zeros((0, 5), np.int64)
    choice, mode, number, bits, at = flat.T
    return Options(rows, choice, mode, number, bits, np.array(offloads, np.float64)[at])
