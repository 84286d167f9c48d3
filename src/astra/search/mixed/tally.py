"""What a search over several GPU types has done, and what it found."""

from dataclasses import dataclass, field

import numpy as np

from astra.search.mixed.cells import Cell
from astra.strategy.plans import Plans


@dataclass(slots=True)
class Tally:
    """Where the candidates went."""

    cells: int = 0
    closed: int = 0  # cells that a bound on their speed closes
    labels: int = 0
    work: int = 0  # labels, each times kinds of stages times types
    listed: int = 0  # whole pipelines whose bound is below the best
    simulated: int = 0
    out_of_memory: int = 0
    removed_by_rule: dict[str, int] = field(default_factory=dict)
    open_s: float = np.inf  # least bound of what was left open

    def remove(self, rule: str, count: int) -> None:
        self.removed_by_rule[rule] = self.removed_by_rule.get(rule, 0) + count

    @property
    def bounded(self) -> int:
        """Labels, and whole pipelines that were not looked at any more."""
        return self.labels + self.listed - self.simulated - sum(self.removed_by_rule.values())


@dataclass(frozen=True, slots=True)
class PipelineFound:
    """One simulated plan."""

    step_s: float
    cell: Cell
    plans: Plans  # a table of one
