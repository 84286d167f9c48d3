"""`--gpus h100:512,a100-80g:256`: how many of each type there are at most."""

import re
from collections.abc import Mapping

from msgspec.structs import replace

from astra.errors import InputError, shorten
from astra.hardware.catalogue import find_gpu, is_known
from astra.hardware.cluster import Cluster, Gpu, Pool
from astra.hardware.pools import MAX_GPUS_PER_TYPE, gpu_specs, idle_note, merge_equal_pools
from astra.hardware.units import bare
from astra.notes import Note

RankBlock = tuple[str, int]  # a GPU type, and how many ranks of it stand in a row
MAX_GPU_TYPES = 64
FORM = "The form is TYPE:COUNT[,TYPE:COUNT...], such as h100:512,a100-80g:256."


def parse_gpus(
    text: str, described: Mapping[str, Gpu] | None = None
) -> tuple[Cluster, tuple[Note, ...]]:
    """The cluster of a `--gpus` option, and notes on how it was read.

    `described`: GPUs that are known by name besides the catalogue's.
    """
    pools: dict[str, Pool] = {}
    entries, notes = _entries(text, described or {})
    for entry, where, pool in entries:
        first = _first(pools, pool, where)
        if first is not None:
            raise InputError(_repeated(first, pool, entry, where))
        pools[pool.gpu.name] = pool
    cluster, more = _cluster(pools)
    idle = [note for pool in cluster.pools if (note := idle_note(pool))]
    return cluster, (*notes, *more, *idle)


def parse_rank_blocks(
    text: str, described: Mapping[str, Gpu] | None = None
) -> tuple[Cluster, tuple[RankBlock, ...], tuple[Note, ...]]:
    """The same where the order counts: also how many ranks of each type stand in a row.

    A type may come again behind another.
    """
    pools: dict[str, Pool] = {}
    entries, notes = _entries(text, described or {})
    for _, where, pool in entries:
        first = _first(pools, pool, where)
        total = pool.count + (first.count if first else 0)
        pools[pool.gpu.name] = replace(pool, count=parse_count(str(total), where, pool.gpu.name))
    cluster, more = _cluster(pools)
    names = {gpu_specs(pool.gpu): pool.gpu.name for pool in cluster.pools}  # twins have one
    blocks = tuple((names[gpu_specs(pool.gpu)], pool.count) for _, _, pool in entries)
    said = [*notes, *more]
    return cluster, blocks, tuple(n for row, n in enumerate(said) if n not in said[:row])


def _entries(
    text: str, described: Mapping[str, Gpu]
) -> tuple[list[tuple[str, str, Pool]], list[Note]]:
    """Every TYPE:COUNT as it is written, its place and its pool; and notes."""
    if not text.strip():
        raise InputError(f"--gpus is empty. {FORM}")
    written = text.split(",")
    if len(written) > MAX_GPU_TYPES:
        raise InputError(f"--gpus has {len(written)} entries; {MAX_GPU_TYPES} are the most. {FORM}")
    entries, notes = [], []
    for number, entry in enumerate(written, start=1):
        where = f"--gpus, entry {number} {shorten(entry.strip())}"
        pool, note = _pool(entry, where, described)
        entries.append((entry, where, pool))
        notes += [note] if note else []
    return entries, notes


def _cluster(pools: dict[str, Pool]) -> tuple[Cluster, tuple[Note, ...]]:
    merged, notes = merge_equal_pools(pools.values(), "--gpus")
    name = ",".join(f"{pool.gpu.name}:{pool.count}" for pool in merged)
    return Cluster(name=name, pools=merged), notes


def _pool(entry: str, where: str, described: Mapping[str, Gpu]) -> tuple[Pool, Note | None]:
    """One TYPE:COUNT."""
    if not entry.strip():
        raise InputError(f"{where}: empty. Is there a comma too many? {FORM}")
    kind, colon, count = (part.strip() for part in entry.rpartition(":"))
    if not colon:
        raise InputError(f"{where}: the count is missing. {_with_count(entry)}")
    if not kind:
        raise InputError(f"{where}: the type is missing. {FORM}")
    swapped = kind.isascii() and kind.isdigit() and not count.isdigit()
    if swapped and count:
        raise InputError(f"{where}: type and count are swapped. Try {bare(count)}:{kind[:12]}.")
    number = parse_count(count, where, kind)
    gpu, note = (described[kind], None) if kind in described else _find(kind, where)
    return Pool(gpu=gpu, count=number), note


def parse_count(count: str, where: str, kind: str) -> int:
    """A whole number of GPUs, from 1 to ten million."""
    shown = bare(kind)
    if not count:
        raise InputError(f"{where}: the count is missing. Try {shown}:8.")
    if not (count.isascii() and count.isdigit()):
        raise InputError(f"{where}: {shorten(count)} is not a whole number of GPUs. Try {shown}:8.")
    digits = count.lstrip("0")
    if not digits:
        raise InputError(f"{where}: no GPUs at all. Leave {shown} out, or try {shown}:8.")
    if len(digits) > len(str(MAX_GPUS_PER_TYPE)) or int(digits) > MAX_GPUS_PER_TYPE:
        raise InputError(
            f"{where}: {shorten(count)} GPUs are too many. At most {MAX_GPUS_PER_TYPE:,} of a type "
            f"can be planned for; try {shown}:{MAX_GPUS_PER_TYPE}."
        )
    return int(digits)


def _find(kind: str, where: str) -> tuple[Gpu, Note | None]:
    try:
        return find_gpu(kind)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _with_count(entry: str) -> str:
    """What was probably meant by an entry without a colon: `8xh100`, `h100x8`, `h100=8`, `h100`."""
    text = entry.strip()
    if text.isascii() and text.isdigit():
        return FORM
    front = re.fullmatch(r"([0-9]{1,8}) *[xX*] *(\S{1,60})", text)
    back = re.fullmatch(r"(\S{1,60}?) *[=*@] *([0-9]{1,8})", text)
    joined = re.fullmatch(r"(\S{1,60}?) *[xX] *([0-9]{1,8})", text)
    if front:
        return f"Try {bare(front[2])}:{front[1]}."
    if joined and is_known(joined[1]):  # rtx4090 is a name, h100x64 is none
        back = joined
    if back:
        return f"Try {bare(back[1])}:{back[2]}."
    return f"Try {bare(text)}:8."


def _first(pools: dict[str, Pool], pool: Pool, where: str) -> Pool | None:
    """The pool of a type that was named before."""
    first = pools.get(pool.gpu.name)
    if first is not None and first.gpu != pool.gpu:
        raise InputError(
            f"{where}: another GPU is called {pool.gpu.name} too, with other data. "
            "Give one of them a `name` of its own."
        )
    return first


def _repeated(first: Pool, pool: Pool, entry: str, where: str) -> str:
    """A type given twice is a slip more often than a sum."""
    kind = entry.strip().rpartition(":")[0]
    total = min(first.count + pool.count, MAX_GPUS_PER_TYPE)
    return (
        f"{where}: {pool.gpu.name} is given twice ({first.count} and {pool.count}). "
        f"If both are meant, write {bare(kind)}:{total}."
    )
