"""Tables of candidate stages for some cells."""

import numpy as np

from astra.search.mixed.cells import Cell, Kind
from astra.search.mixed.small import Pricer
from astra.search.mixed.stock import Stocks
from astra.search.mixed.tables import Tables
from astra.strategy.plans import Ints

Item = tuple[Cell, list[Kind], Ints]  # most layers of a stage of every kind


def stage_tables(pricer: Pricer, cells: list[Item]) -> list[Tables]:
    """Of these cells, for stages of so many layers at most."""
    modes = [cell.recompute for cell, _, _ in cells]
    stocks = Stocks(pricer, [(cell, kinds) for cell, kinds, _ in cells], modes)
    return [stocks.tables(cell, np.arange(len(kinds)), most) for cell, kinds, most in cells]
