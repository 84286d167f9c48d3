"""A table of plans seen stage by stage: slots of stages that are equal in all that counts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astra.columns import factorized
from astra.model.layer_kinds import layer_kinds
from astra.model.shape import Model
from astra.strategy.plans import SLOT_COLUMNS, Flags, Floats, Ints, Plans, code


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Stages:
    """Slots of equal stages. (pipeline, slot, plan); an unused slot has `count` 0.

    Finer than the slots of `Plans`: the first stage (embedding) and the last (head, loss) have
    slots of their own, and the stages of a slot hold the same kinds of layers.
    """

    count: Ints  # stages of the slot
    index: Ints  # of its first stage, from 0
    plan_slot: Ints  # the slot of `Plans` that has its settings
    kind_layers: Ints  # (kind, pipeline, slot, plan): layers of each kind in one stage
    embedding: Flags
    head: Flags
    equal_settings: bool  # in every plan all stages have equal settings; only their layers differ

    def of(self, column: NDArray[Any]) -> NDArray[Any]:
        """A column of `Plans` (pipeline, slot, plan) for these slots, or one row for all."""
        if self.equal_settings:
            return column[:, :1]
        return np.take_along_axis(column, self.plan_slot, axis=1)

    def take(self, rows: NDArray[np.intp]) -> "Stages":
        """The slots of the plans at `rows`."""
        return self._each(lambda column: column[..., rows])

    def merged(self) -> "Stages":
        """Stages in a row that hold the same as one slot; the ends stay apart."""
        used = self.count > 0
        new = self.embedding | self.head
        new[:, 1:] |= self.embedding[:, :-1] | (self.plan_slot[:, 1:] != self.plan_slot[:, :-1])
        layers = self.kind_layers
        new[:, 1:] |= (layers[:, :, 1:] != layers[:, :, :-1]).any(axis=0)
        slot = np.where(used, np.cumsum(new, axis=1) - 1, np.iinfo(np.int64).max)
        most = int(np.where(used, slot, 0).max(initial=0)) + 1
        before = np.stack([(slot < row).sum(axis=1) for row in range(most + 1)], axis=1)
        first = np.minimum(before[:, :-1], used.shape[1] - 1)
        found = self._each(lambda column: _reordered_slots(column, first))
        count = np.diff(before, axis=1)
        return replace(
            found,
            count=count,
            kind_layers=np.where(count > 0, found.kind_layers, 0),
            embedding=found.embedding & (count > 0),
            head=found.head & (count > 0),
        )

    def compact(self) -> "Stages":
        """The same with unused slots behind the used ones, as few as there are."""
        used = self.count > 0
        most = int(used.sum(axis=1).max(initial=1))
        if most == used.shape[1]:
            return self
        order = np.argsort(~used, axis=1, kind="stable")[:, :most]
        return self._each(lambda column: _reordered_slots(column, order))

    def _each(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> "Stages":
        names = ("count", "index", "plan_slot", "kind_layers", "embedding", "head")
        columns: dict[str, Any] = {name: change(getattr(self, name)) for name in names}
        return replace(self, **columns)


def _reordered_slots(column: NDArray[Any], order: Ints) -> NDArray[Any]:
    """A (..., pipeline, slot, plan) column with its slots in this order."""
    index = np.broadcast_to(order, (*column.shape[:-3], *order.shape))
    return np.take_along_axis(column, index, axis=-2)


def stages_of(plans: Plans, model: Model, every_stage: bool = False) -> Stages:
    """The slots of a table of plans; with `every_stage`, one slot per stage."""
    if every_stage:
        return _each_stage(plans, model)
    if len(layer_kinds(model).kinds) > 1:
        return _by_layer_kinds(plans, model)
    return ends_as_own_slots(plans)


def _by_layer_kinds(plans: Plans, model: Model) -> Stages:
    """Slots by the kinds of layers they hold, of each distinct pipeline once."""
    rows = (*plans.stages.reshape(-1, len(plans)), *plans.layers.reshape(-1, len(plans)))
    shape = np.zeros(len(plans), np.int64)
    for column in (*rows, plans.vpp, plans.chunking):
        known, index = factorized(column)
        _, shape = factorized(shape * len(known) + index)
    _, first, back = np.unique(shape, return_index=True, return_inverse=True)
    found = _each_stage(plans.take(first), model).merged().take(back)
    return replace(found, equal_settings=_has_equal_settings(plans))


def _has_equal_settings(plans: Plans) -> bool:
    """Whether every used slot has the settings of the first one of its pipeline."""
    used = plans.used
    return all(
        bool(((column == column[:, :1]) | ~used).all())
        for name in SLOT_COLUMNS
        if name not in ("stages", "layers")
        for column in (getattr(plans, name),)
    )


def ends_as_own_slots(plans: Plans) -> Stages:
    """One kind of layer: first stage, the slots' other stages, last stage."""
    stages = plans.stages
    slots = stages.shape[1]
    place = np.arange(slots)[:, np.newaxis]
    last_slot = np.where(stages > 0, place, 0).max(axis=1, keepdims=True)
    alone = plans.pp[:, np.newaxis] == 1
    is_last = (place == last_slot) & ~alone
    body = stages - (place == 0) - is_last
    ones = (stages[:, :1] > 0).astype(np.int64)
    count = np.concatenate([ones, body, ones * ~alone], axis=1)
    count = np.maximum(count, 0)
    shape = (stages.shape[0], 1, stages.shape[2])
    slot = np.concatenate(
        [np.zeros(shape, np.int64), np.broadcast_to(place, stages.shape), last_slot], axis=1
    )
    layers = np.take_along_axis(plans.layers, slot, axis=1)
    index = np.cumsum(count, axis=1) - count
    used = count > 0
    return Stages(
        count=count,
        index=index,
        plan_slot=slot,
        kind_layers=np.where(used, layers, 0)[np.newaxis],
        embedding=used & (index == 0),
        head=used & (index + count == plans.pp[:, np.newaxis]) & (count == 1),
        equal_settings=_has_equal_settings(plans),
    )


def _each_stage(plans: Plans, model: Model) -> Stages:
    """One slot per stage."""
    most = int(plans.pp.max(initial=1))
    index = np.arange(most)[np.newaxis, :, np.newaxis]
    ends = np.cumsum(plans.stages, axis=1)
    slot = (index[:, :, np.newaxis] >= ends[:, np.newaxis]).sum(axis=2)
    used = index < plans.pp[:, np.newaxis]
    slot = np.minimum(slot, plans.stages.shape[1] - 1)
    layers = chunk_kind_layers(plans, model, slot, used).sum(axis=0)
    shape = used.shape
    return Stages(
        count=used.astype(np.int64),
        index=np.broadcast_to(index, shape),
        plan_slot=slot,
        kind_layers=layers,
        embedding=used & (index == 0),
        head=used & (index == plans.pp[:, np.newaxis] - 1),
        equal_settings=_has_equal_settings(plans),
    )


def chunk_kind_layers(plans: Plans, model: Model, slot: Ints, used: Flags) -> Ints:
    """Layers of each kind in each chunk of each stage. (chunk, kind, pipeline, stage, plan)

    Chunk c of stage i comes after all chunks below c and after chunk c of the stages before i.
    """
    chunks = chunk_layers(plans, slot, used)
    stages = chunks.shape[2]
    flat = np.moveaxis(chunks, 0, 1)  # (pipeline, chunk, stage, plan)
    ordered = flat.reshape(flat.shape[0], -1, flat.shape[-1])
    ends = np.cumsum(ordered, axis=1).reshape(flat.shape)
    starts = ends - flat
    kinds = layer_kinds(model)
    rows = np.array(kinds.of_layer)
    counts = []
    for kind in range(len(kinds.kinds)):
        before = np.concatenate([[0], np.cumsum(rows == kind)])
        top = np.minimum(ends, model.layers)
        counts.append(before[top] - before[np.minimum(starts, model.layers)])
    found = np.stack(counts)  # (kind, pipeline, chunk, stage, plan)
    assert found.shape[3] == stages
    return np.moveaxis(found, 2, 0)


def chunk_layers(plans: Plans, slot: Ints, used: Flags) -> Ints:
    """Layers of each chunk of each stage. (chunk, pipeline, stage, plan)"""
    layers = np.where(used, np.take_along_axis(plans.layers, slot, axis=1), 0)
    most = int(plans.vpp.max(initial=1))
    chunk = np.arange(most)[:, np.newaxis, np.newaxis, np.newaxis]
    share = layers // plans.vpp + (chunk < layers % plans.vpp)
    even = np.where(chunk < plans.vpp, share, 0)
    listed_rows = np.flatnonzero(plans.chunking >= 0)
    listings = zip(
        plans.chunking[listed_rows].tolist(), plans.vpp[listed_rows].tolist(), strict=True
    )
    for chunking, vpp in sorted(set(listings)):  # one list may be divided in several ways
        rows = np.flatnonzero((plans.chunking == chunking) & (plans.vpp == vpp))
        pp = int(plans.pp[0, rows[0]])
        listed = np.reshape(plans.chunk_layers[int(chunking)], (vpp, pp))
        even[..., rows] = 0
        # one list for all pipelines of a plan
        even[:vpp, :, :pp, rows] = listed[:, np.newaxis, :, np.newaxis] * used[:, :pp, rows]
    return even


def least_first_chunk(plans: Plans, layers: Ints, index: Ints) -> Ints:
    """Layers that the first chunks of stages have at least, and of all behind. (slot, plan)

    For stages from `index` on with so many `layers`: an even share of them, or what a list of
    unlike chunks says.
    """
    found = layers // plans.vpp
    if (plans.chunking >= 0).any():
        rows, sizes, at = _listed_chunks(plans)
        least = np.minimum.accumulate(sizes[:, 0, ::-1], axis=-1)[:, ::-1]
        found[:, rows] = least[at, np.minimum(index[:, rows], sizes.shape[-1] - 1)]
    return found


def _listed_chunks(plans: Plans) -> tuple[Ints, Ints, Ints]:
    """Rows with a list of unlike chunks, layers of all chunks of the distinct ones
    (list, chunk, stage), and which of these each row has.

    Behind the last stage stands what the last one has, behind the last chunk nothing.
    """
    rows = np.flatnonzero(plans.chunking >= 0)
    pp, vpp = plans.pp[0, rows], plans.vpp[rows]
    key = plans.chunking[rows] * (int(pp.max()) + 1) + pp
    _, first, at = np.unique(key, return_index=True, return_inverse=True)
    sizes = np.zeros((len(first), int(vpp.max()), int(pp.max())), np.int64)
    for own, row in zip(sizes, rows[first].tolist(), strict=True):
        listed = np.reshape(plans.chunk_layers[plans.chunking[row]], (plans.vpp[row], -1))
        own[: len(listed), : listed.shape[1]] = listed
        own[: len(listed), listed.shape[1] :] = listed[:, -1:]
    return rows, sizes, at.reshape(-1)


def recomputed_fraction(plans: Plans, stages: Stages) -> tuple[Floats, Floats]:
    """Fraction of a stage's layers that are recomputed whole, and checkpoints saved for each."""
    layers = np.maximum(stages.kind_layers.sum(axis=0), 1)
    chunk = layers / plans.vpp
    number = np.maximum(stages.of(plans.recompute_layers), 1)
    modes = stages.of(plans.recompute)
    block = is_recompute(modes, "full:block")
    uniform = is_recompute(modes, "full:uniform")
    fraction = np.where(block, np.minimum(number / chunk, 1.0), np.where(uniform, 1.0, 0.0))
    checkpoints = np.where(uniform, np.ceil(chunk / number) / chunk, 1.0)
    if (plans.chunking >= 0).any() and (block.any() or uniform.any()):
        rows, sizes, at = _listed_chunks(plans)
        stage = np.minimum(stages.index[..., rows], sizes.shape[-1] - 1)
        number, layers = np.broadcast_to(number, layers.shape)[..., rows], layers[..., rows]
        chunks = [sizes[at, place, stage] for place in range(sizes.shape[1])]
        part = sum(np.minimum(number, own) for own in chunks) / layers
        saved = sum(-(-own // number) for own in chunks) / layers
        fraction[..., rows] = np.where(block[..., rows], part, fraction[..., rows])
        checkpoints[..., rows] = np.where(uniform[..., rows], saved, checkpoints[..., rows])
    return fraction, checkpoints


def is_recompute(modes: Ints, word: str) -> Flags:
    return modes == code("recompute", word)
