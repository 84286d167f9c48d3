"""Which layers each pipeline stage and chunk held, as the framework split them."""

import re
from dataclasses import dataclass
from itertools import pairwise

from astra.errors import shorten
from astra.fit.csv_row import CsvRow, numbers_in
from astra.model.shape import Model
from astra.strategy.complete import split_layers
from astra.strategy.pipeline_layout import parse_pipeline_layout


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSplit:
    """Layers in the order of execution, one entry per chunk (pp x vpp)."""

    chunks: tuple[int, ...]
    vpp: int
    mtp_layers: int | None = None  # where a layout says it
    assumed: tuple[str, ...] = ()

    def stages(self, pp: int) -> tuple[int, ...]:
        return tuple(sum(self.chunks[stage::pp]) for stage in range(pp))

    @property
    def uneven(self) -> bool:
        return len(set(self.chunks)) > 1


def split_of(csv_row: CsvRow, model: Model, pp: int, vpp: int) -> RowSplit:
    """The split that the row prints, or the one its framework makes of the layer count."""
    text = re.search(r"pp_layout=([^;\s]{1,300})", csv_row.text("overlap"))
    layout = text[1] if text else csv_row.flags.get("pipeline-model-parallel-layout")
    assumed: tuple[str, ...] = ()
    if layout:
        chunks, mtp = parse_pipeline_layout(layout, pp, "pipeline layout")
        if sum(chunks) == model.layers:
            return RowSplit(chunks=chunks, vpp=len(chunks) // pp, mtp_layers=mtp)
        assumed = (f"pipeline layout {shorten(layout)} does not fit and was left out",)
    printed = _printed(csv_row.text("notes"), model.layers)
    if printed is not None and len(printed) == pp and sum(printed) == model.layers:
        return RowSplit(chunks=printed, vpp=1)
    chunks, said = _usual(model, pp * vpp, csv_row)
    return RowSplit(chunks=chunks, vpp=vpp, assumed=assumed + said)


def _usual(model: Model, count: int, csv_row: CsvRow) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Evenly; else with embedding and loss as a layer each; else as even as can be."""
    layers = model.layers
    if "embedding treated as a layer" in csv_row.lower_text("notes") and (layers + 2) % count == 0:
        return split_counting_ends(layers, count), ()
    if layers % count == 0:
        return (layers // count,) * count, ()
    if (layers + 2) % count == 0 and count > 1:
        words = "stages split with embedding and loss counted as a layer each"
        stated = re.search(
            r"asymmetric|account_for_embedding",
            f"{csv_row.text('overlap')} {csv_row.text('model')}",
        )
        return split_counting_ends(layers, count), () if stated else (words,)
    if model.mla is not None and model.moe is not None:
        in_order = split_in_order(layers, count)
        by_bridge = "bridge" in csv_row.lower_text("framework")  # `Et|(tt|)*30L`
        if by_bridge and 0 in in_order and (layers + 3) % count == 0:
            each = (layers + 3) // count
            lighter = (each - 1, *(each,) * (count - 2), each - 2)
            return lighter, ("one layer fewer beside the embedding and two beside the loss",)
        return in_order, ("stages filled in order, the last with the rest",)
    return split_layers(layers, count), ("layers split as evenly as can be",)


def split_counting_ends(layers: int, count: int) -> tuple[int, ...]:
    """Embedding and loss take the place of one layer each.

    >>> split_counting_ends(14, 4)
    (3, 4, 4, 3)
    """
    each = (layers + 2) // count
    chunks = [each] * count
    chunks[0] -= 1
    chunks[-1] -= 1
    return tuple(chunks)


def split_in_order(layers: int, count: int) -> tuple[int, ...]:
    """Chunks of equal size until the layers run out.

    >>> split_in_order(61, 4)
    (16, 16, 16, 13)
    """
    each = -(-layers // count)
    return tuple(max(0, min(each, layers - each * chunk)) for chunk in range(count))


def _printed(notes: str, layers: int) -> tuple[int, ...] | None:
    """Layers per stage out of a list of modules, of which some are not layers."""
    stages = re.search(r"layers per stage \[([0-9, ]{1,400})\] over ([0-9]{1,6}) modules", notes)
    if stages:
        held = list(numbers_in(stages[1]))
        extra = int(stages[2]) - layers
        if extra == 2 and min(held[0], held[-1]) >= 1:
            held[0] -= 1
            held[-1] -= 1
        return tuple(held)
    bounds = re.search(r"boundaries \[([0-9, ]{1,400})\] over ([0-9]{1,6})", notes)
    if not bounds:
        return None
    cuts = numbers_in(bounds[1])
    first = 2 if int(bounds[2]) > layers else 0  # an embedding and a transpose come before
    inside = [min(max(cut - first, 0), layers) for cut in cuts]
    return tuple(high - low for low, high in pairwise(inside))
