"""A cluster of one's own, in TOML: pools of GPUs, with nodes unlike the catalogue's typical one."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from astra.errors import InputError, shorten
from astra.files import convert
from astra.hardware.catalogue import find_gpu, is_path
from astra.hardware.cluster import Cluster, Count, Gpu, Pool, Positive
from astra.hardware.gpu_file import (
    check_domain,
    check_fields,
    check_gpu,
    gpu_of,
    read_gpu,
    read_hardware_toml,
    with_assumptions,
)
from astra.hardware.link_kind import guessed_kind, link_class_of
from astra.hardware.pools import merge_equal_pools
from astra.hardware.units import bare, quantities
from astra.notes import Note

MAX_POOLS = 64


class PoolTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[pools]]`: so many GPUs of a type, and how their nodes differ from the typical one."""

    gpu: str  # a name, an alias, a path, or one of the file's own [gpus.NAME]
    count: Count
    name: str | None = None  # to tell pools of one type with different nodes apart
    gpus_per_node: Count | None = None
    link_domain_gpus: Count | None = None
    link_bytes_per_s: Positive | None = None  # one direction, all links of a GPU
    nic_bytes_per_s: Positive | None = None  # per GPU, one direction
    pcie_bytes_per_s: Positive | None = None
    ram_bytes: Positive | None = None  # of a whole node
    usd_per_hour: Annotated[float, Meta(ge=0, le=1e6)] | None = None  # of one GPU


class ClusterTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    pools: tuple[PoolTable, ...]
    name: str | None = None
    max_gpus: Count | None = None
    gpus: dict[str, dict[str, Any]] = {}


def read_cluster(path: Path) -> tuple[Cluster, tuple[Note, ...]]:
    """The cluster a user described in a file, and notes on how it was read."""
    return cluster_of(read_hardware_toml(path), str(path), path.parent, path.stem)


def cluster_of(
    raw: dict[str, Any], where: str, folder: Path, name: str
) -> tuple[Cluster, tuple[Note, ...]]:
    """A cluster out of a TOML document; paths in it start from `folder`."""
    table = _typed(raw, where)
    file_gpus = {
        name_in_file: gpu_of(gpu, f"{where}: gpus.{bare(name_in_file)}", name_in_file)
        for name_in_file, gpu in table.gpus.items()
    }
    pools: list[Pool] = []
    notes: list[Note] = []
    for number, entry in enumerate(table.pools):
        place = f"{where}: pools[{number}]"
        gpu, note = _gpu(entry, file_gpus, folder, place)
        pools.append(_pool(entry, _adapted(gpu, entry, place), place))
        notes += [note] if note else []
    _check_names(pools, where)
    if table.name and (len(table.name) > 100 or not table.name.isprintable()):
        raise InputError(f'{where}: name = {shorten(table.name)}. Try a short one: "my-cluster".')
    merged, more = merge_equal_pools(pools, where)
    cluster = Cluster(name=table.name or name, pools=merged, max_gpus=table.max_gpus)
    return cluster, tuple(notes) + more


def _typed(raw: dict[str, Any], where: str) -> ClusterTable:
    """The file's fields, checked for spelling and type."""
    pools = raw.get("pools")
    if not isinstance(pools, list) or not pools:
        raise InputError(
            f"{where}: pools: {'no' if not pools else 'not a list of'} pools. A cluster has one "
            'or more tables [[pools]], each with gpu = "h100" and count = 64.'
        )
    if len(pools) > MAX_POOLS:
        raise InputError(f"{where}: {len(pools)} pools; {MAX_POOLS} are the most.")
    for number, pool in enumerate(pools):
        if isinstance(pool, dict):
            check_fields(pool, PoolTable, f"{where}: pools[{number}].")
    check_fields(raw, ClusterTable, f"{where}: ")
    si = [
        quantities(pool, f"{where}: pools[{number}].") if isinstance(pool, dict) else pool
        for number, pool in enumerate(pools)
    ]
    return convert(raw | {"pools": si}, ClusterTable, where)


def _gpu(
    entry: PoolTable, file_gpus: dict[str, Gpu], folder: Path, place: str
) -> tuple[Gpu, Note | None]:
    """The GPU of a pool: the file's own, one in another file, or the catalogue's."""
    if entry.gpu in file_gpus:
        return file_gpus[entry.gpu], None
    try:
        if is_path(entry.gpu):
            return read_gpu(folder / entry.gpu), None
        return find_gpu(entry.gpu)
    except InputError as error:
        listed = (
            f" This file itself describes {bare(', '.join(file_gpus), 200)}." if file_gpus else ""
        )
        raise InputError(f"{place}.gpu: {error}{listed}") from None


def _adapted(gpu: Gpu, entry: PoolTable, place: str) -> Gpu:
    """The GPU with the pool's own nodes, links and NICs in place of the typical ones."""
    guesses: list[str] = []
    node = replace(
        gpu.node,
        gpus=entry.gpus_per_node or gpu.node.gpus,
        nic_bytes_per_s=entry.nic_bytes_per_s or gpu.node.nic_bytes_per_s,
        nics=None if entry.nic_bytes_per_s else gpu.node.nics,  # a speed is each GPU's own
        pcie_bytes_per_s=entry.pcie_bytes_per_s or gpu.node.pcie_bytes_per_s,
        ram_bytes=entry.ram_bytes or gpu.node.ram_bytes,
    )
    domain = entry.link_domain_gpus or gpu.link.domain_gpus
    joined = domain == gpu.node.gpus > 1
    if entry.gpus_per_node and not entry.link_domain_gpus and joined:
        domain = node.gpus  # the links joined a node; they still do
        if domain != gpu.link.domain_gpus:
            guesses.append(f"link.domain_gpus: {domain}, the GPUs of a node")
    speed = entry.link_bytes_per_s or gpu.link.bytes_per_s
    peer = gpu.link.peer_bytes_per_s * (speed / gpu.link.bytes_per_s)
    kind = gpu.link.kind
    if entry.link_bytes_per_s and link_class_of(kind) == "pcie" and speed > node.pcie_bytes_per_s:
        kind, words = guessed_kind(None, speed, peer, node.pcie_bytes_per_s)
        guesses.append(words)
    link = replace(
        gpu.link, kind=kind, domain_gpus=domain, bytes_per_s=speed, peer_bytes_per_s=peer
    )
    open_still = tuple(
        guess for guess in gpu.assumed if not guess.startswith(_stated_fields(entry))
    )
    adapted = replace(gpu, node=node, link=link, assumed=open_still)
    if entry.name:
        adapted = replace(adapted, name=entry.name, aliases=())
        check_gpu(adapted, place)
    check_domain(adapted, place)
    return with_assumptions(adapted, guesses)


def _stated_fields(entry: PoolTable) -> tuple[str, ...]:
    """How guesses begin that the pool replaces by what it says."""
    fields = {
        "node.gpus:": entry.gpus_per_node,
        "node.nic_bytes_per_s:": entry.nic_bytes_per_s,
        "node.pcie_bytes_per_s:": entry.pcie_bytes_per_s,
        "link.kind: PCIe": entry.link_bytes_per_s,
        "link.domain_gpus:": entry.link_domain_gpus or entry.gpus_per_node,
    }
    return tuple(beginning for beginning, value in fields.items() if value)


def _pool(entry: PoolTable, gpu: Gpu, place: str) -> Pool:
    node, count = gpu.node.gpus, entry.count
    if count > node and count % node:
        down = count // node * node
        raise InputError(
            f"{place}.count = {count} is not a whole number of nodes of {node} GPUs. "
            f"Try {down} or {down + node}, or set gpus_per_node."
        )
    return Pool(gpu=gpu, count=count, usd_per_hour=entry.usd_per_hour, described=_describes(entry))


def _describes(entry: PoolTable) -> bool:
    """Whether the file says anything of the pool's nodes."""
    plain = ("gpu", "count", "name", "usd_per_hour")
    return any(
        getattr(entry, field) is not None
        for field in PoolTable.__struct_fields__
        if field not in plain
    )


def _check_names(pools: list[Pool], where: str) -> None:
    """Reports tell pools apart by the GPU's name."""
    first: dict[str, int] = {}
    for number, pool in enumerate(pools):
        name = pool.gpu.name
        if name in first:
            raise InputError(
                f"{where}: pools[{number}].gpu: {name} is already in pools[{first[name]}]. "
                f'Add the counts up, or, if the nodes differ, set name = "{name}-2" here.'
            )
        first[name] = number
