"""Pools side by side: every type once, equal ones under two names merged, sorted by name."""

from collections.abc import Iterable
from math import inf
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from astra.errors import InputError
from astra.files import USER
from astra.hardware.catalogue import find_gpu, gpu_names
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.gpu_file import check_gpu
from astra.hardware.units import quantities
from astra.notes import Note, NoteCode, note

MAX_GPUS_PER_TYPE = 10**7
# Guessed: the share of a node's RAM for the system, the processes and the data.
RESERVED_RAM_FRACTION = 0.1


def merge_equal_pools(
    pools: Iterable[Pool], where: str
) -> tuple[tuple[Pool, ...], tuple[Note, ...]]:
    """Pools sorted by name, those of equal data and price made one; and notes that say so.

    Two names for one type would let a search find plans that one name hides, so that the
    answer would depend on spelling. The catalogue's name wins, else the first by alphabet.
    """
    known = set(gpu_names())
    ranked = sorted(pools, key=lambda pool: (pool.gpu.name not in known, pool.gpu.name))
    merged: dict[tuple[Gpu, float | None], Pool] = {}
    notes: list[Note] = []
    for pool in ranked:
        key = (gpu_specs(pool.gpu), pool.usd_per_hour)
        first = merged.get(key)
        if first is None:
            merged[key] = pool
            continue
        total = first.count + pool.count
        if total > MAX_GPUS_PER_TYPE:
            raise InputError(
                f"{where}: {first.gpu.name} and {pool.gpu.name} are the same GPU, and "
                f"{total:,} of them are too many: {MAX_GPUS_PER_TYPE:,} of a type are the most."
            )
        merged[key] = replace(first, count=total, described=first.described or pool.described)
        notes.append(
            note(NoteCode.EQUAL_GPUS, gpu=pool.gpu.name, first=first.gpu.name, count=total)
        )
    return tuple(sorted(merged.values(), key=lambda pool: pool.gpu.name)), tuple(notes)


def check_cluster(cluster: Cluster, where: str) -> None:
    """What the types of a cluster cannot say. For one that was read back from a plan file."""
    if not cluster.pools:
        raise InputError(f"{where}: pools: no GPUs at all. A cluster has one pool or more.")
    names: set[str] = set()
    for number, pool in enumerate(cluster.pools):
        place = f"{where}: pools[{number}].gpu"
        quantities(_known(to_builtins(pool.gpu)), f"{place}.")
        check_gpu(pool.gpu, place)
        if pool.gpu.name in names:
            raise InputError(f"{place}.name = {pool.gpu.name!r} is there twice. Rename one.")
        names.add(pool.gpu.name)


def _known(table: dict[str, Any]) -> dict[str, Any]:
    """Without the figures that nobody knows."""
    return {
        name: _known(value) if isinstance(value, dict) else value
        for name, value in table.items()
        if value is not None
    }


def gpu_specs(gpu: Gpu) -> Gpu:
    """What a GPU is, without what it is called and who says so."""
    return replace(gpu, name="", aliases=(), assumed=(), source=USER)


def is_user_described(pool: Pool) -> bool:
    """Whether its nodes were described, or its GPU is not as in the catalogue."""
    gpu = pool.gpu
    if pool.described or gpu.name not in gpu_names():
        return True
    return gpu_specs(gpu) != gpu_specs(find_gpu(gpu.name)[0])


def usable_ram_bytes(ram_bytes: float | None) -> float:
    """What plans may keep in the RAM of a node; infinite where its RAM is not known."""
    return inf if ram_bytes is None else ram_bytes * (1 - RESERVED_RAM_FRACTION)


def idle_note(pool: Pool) -> Note | None:
    """Says so when the pool does not end with a whole node."""
    node = pool.gpu.node.gpus
    rest = pool.count % node
    if pool.count < node or not rest:
        return None
    return note(
        NoteCode.PARTIAL_NODES,
        count=pool.count,
        gpu=pool.gpu.name,
        node_gpus=node,
        used=pool.count - rest,
    )
