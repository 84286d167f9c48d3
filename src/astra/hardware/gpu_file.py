"""A GPU of one's own, in ten lines of TOML. What they leave out is filled in and said."""

import datetime
import re
from pathlib import Path
from typing import Any

import msgspec

from astra.errors import InputError, shorten
from astra.files import convert, field_hint, parse_toml, read_text
from astra.hardware.cluster import Gpu
from astra.hardware.link_kind import guessed_kind, link_class_of
from astra.hardware.units import bare, check_bounds, quantities

USABLE_FRACTION = 0.985  # cards that keep ECC bits in their memory: L4, L40S, A10, T4
GIB_PER_GB = 2**30 / 1e9  # 80 "GB" of HBM are often 80 GiB: usable may exceed what is sold
MAX_LINK_DOMAIN_GPUS = 65_536
MAX_FILE_CHARACTERS = 250_000
MAX_LINE_CHARACTERS = 2_000  # keys of very many dots take a TOML reader very long

GPU_FILE_HINT = (
    "Any other GPU can be described in ten lines of TOML (`astra gpus --help` shows them) "
    "and given by its path, such as ./my-gpu.toml."
)


def read_gpu(path: Path) -> Gpu:
    """The GPU a user described in a file; its name is the file's unless it has one."""
    return gpu_of(read_hardware_toml(path), str(path), path.stem)


def read_hardware_toml(path: Path) -> dict[str, Any]:
    """A user's TOML document, small enough and shallow enough to be taken apart."""
    if path.suffix.lower() != ".toml":
        raise InputError(f"{shorten(str(path))}: a hardware file is TOML and ends in .toml.")
    if not _is_text(str(path)):
        raise InputError(f"{shorten(str(path))}: the path is not UTF-8. Rename the file.")
    if "\0" in str(path) or _is_device(path):
        raise InputError(f"{shorten(str(path))}: not a plain file.")
    text = read_text(path)
    if len(text) > MAX_FILE_CHARACTERS or any(
        len(line) > MAX_LINE_CHARACTERS for line in text.splitlines()
    ):
        raise InputError(
            f"{path}: a file of more than {MAX_FILE_CHARACTERS:,} characters, or "
            f"{MAX_LINE_CHARACTERS:,} on a line, hardly describes hardware. Is this the right file?"
        )
    document = parse_toml(text, str(path))
    check_bounds(document, str(path))
    return document


def _is_text(text: str) -> bool:
    """Whether text can be written as UTF-8; an argument of broken bytes cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _is_device(path: Path) -> bool:
    """Whether reading might never end: a pipe, a terminal, /dev/zero."""
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except OSError:
        return False  # whoever opens it says why it cannot be read


def gpu_of(raw: dict[str, Any], where: str, name: str) -> Gpu:
    """A GPU out of a TOML table, with every guess in its `assumed`."""
    check_fields(raw, Gpu, f"{where}: ")
    table = {"name": name, "source": {"kind": "user", "where": where}}
    table |= quantities(raw, f"{where}: ")
    for field in ("memory_bytes", "memory_bytes_per_s"):
        if field not in table:
            raise InputError(f"{where}: {field} is missing. {_EXAMPLE[field]}")
    if "bf16_flops_per_s" not in table and "fp16_flops_per_s" not in table:
        raise InputError(
            f"{where}: bf16_flops_per_s is missing, and so is fp16_flops_per_s; one of them "
            'is needed. Try bf16_flops_per_s = "989 TFLOP/s" (dense, without sparsity).'
        )
    for part in ("link", "node", "source"):
        if not isinstance(table.get(part, {}), dict):
            raise InputError(
                f"{where}: {part} = {shorten(table[part])}: a table [{part}] belongs here."
            )
    filled, guesses = _fill(table)
    _dates_as_text(filled.get("source", {}))
    gpu = convert(filled, Gpu, where)
    check_gpu(gpu, where)
    return with_assumptions(gpu, guesses)


_EXAMPLE = {
    "memory_bytes": 'Try memory_bytes = "80 GB".',
    "memory_bytes_per_s": 'Try memory_bytes_per_s = "3.35 TB/s".',
}


def with_assumptions(gpu: Gpu, guesses: list[str]) -> Gpu:
    return msgspec.structs.replace(gpu, assumed=gpu.assumed + tuple(guesses))


def _fill(table: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The table with nothing left open, and each guess in words."""
    guesses: list[str] = []
    full = dict(table)

    def guess(into: dict[str, Any], field: str, value: object, words: str) -> None:
        if field not in into:
            into[field] = value
            guesses.append(words)

    guess(
        full,
        "usable_bytes",
        USABLE_FRACTION * full["memory_bytes"],
        "usable_bytes: 98.5 % of memory_bytes",
    )
    if "bf16_flops_per_s" in full:
        guess(full, "fp16_flops_per_s", full["bf16_flops_per_s"], "fp16_flops_per_s: as bf16")
    fast = "link" in full  # a part with links of its own sits in a server built for them
    node = full["node"] = dict(full.get("node", {}))
    link = full["link"] = dict(full.get("link", {}))
    guess(node, "gpus", 8, "node.gpus: 8")
    pcie, generation = (63e9, 5) if fast else (31.5e9, 4)
    words = f"node.pcie_bytes_per_s: {pcie / 1e9:g} GB/s (PCIe {generation}.0 x16)"
    guess(node, "pcie_bytes_per_s", pcie, words)
    nic = 50e9 if fast else 25e9
    words = f"node.nic_bytes_per_s: {nic / 1e9:g} GB/s ({nic / 1e9 * 8:g} Gbps) per GPU"
    guess(node, "nic_bytes_per_s", nic, words)
    if fast:
        guess(link, "domain_gpus", node["gpus"], "link.domain_gpus: the GPUs of a node")
    else:
        words = "link: none but PCIe, through the host"
        link.update(kind="PCIe", domain_gpus=1)
        guess(link, "bytes_per_s", node["pcie_bytes_per_s"], words)
        link["peer_bytes_per_s"] = link["bytes_per_s"]
    if "bytes_per_s" in link:
        words = "link.peer_bytes_per_s: all of link.bytes_per_s"
        guess(link, "peer_bytes_per_s", link["bytes_per_s"], words)
        kind = link.get("kind")
        if kind is None or (isinstance(kind, str) and link_class_of(kind) is None):
            rates = (link["bytes_per_s"], link["peer_bytes_per_s"], node["pcie_bytes_per_s"])
            link["kind"], words = guessed_kind(kind, *rates)
            guesses.append(words)
    return full, guesses


def check_fields(table: dict[str, Any], into: type[msgspec.Struct], place: str) -> None:
    """An unknown field is an error that names the near ones."""
    fields = into.__struct_fields__
    for field in table:
        if field not in fields:
            hint = field_hint(field, into) or f"The fields are {', '.join(fields)}."
            raise InputError(f"{place}{bare(field)}: there is no such field. {hint}")


def _dates_as_text(source: dict[str, Any]) -> None:
    """TOML has dates; a source keeps them as text."""
    if isinstance(source.get("read_on"), datetime.date):
        source["read_on"] = source["read_on"].isoformat()


def check_gpu(gpu: Gpu, where: str) -> None:
    """What no type can say: names that print, domains that fit nodes, memory that adds up."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,63}", gpu.name):
        raise InputError(
            f"{where}: name = {shorten(gpu.name)}: a GPU's name is up to 64 letters, digits, "
            'spaces and . _ + -, such as "my-gpu".'
        )
    if gpu.usable_bytes > 1.01 * GIB_PER_GB * gpu.memory_bytes:
        raise InputError(
            f"{where}: usable_bytes = {gpu.usable_bytes:,.0f} is more than the memory itself, "
            f"memory_bytes = {gpu.memory_bytes:,.0f}. Leave usable_bytes out to have it guessed."
        )
    if gpu.link.peer_bytes_per_s > gpu.link.bytes_per_s:
        raise InputError(
            f"{where}: link.peer_bytes_per_s = {gpu.link.peer_bytes_per_s:g} is more than all "
            f"links together, link.bytes_per_s = {gpu.link.bytes_per_s:g}. Try the same."
        )
    check_domain(gpu, where)


def check_domain(gpu: Gpu, where: str) -> None:
    """A link domain holds whole nodes, or a node holds whole domains."""
    domain, node = gpu.link.domain_gpus, gpu.node.gpus
    if domain > MAX_LINK_DOMAIN_GPUS:
        raise InputError(
            f"{where}: a link domain of {domain:,} GPUs is larger than any ever built. "
            f"Try {node}, the GPUs of a node."
        )
    if domain % node and node % domain:
        down, up = max(domain // node, 1) * node, (domain // node + 1) * node
        tries = f"{down} or {up}" if down != up else f"{down}"
        raise InputError(
            f"{where}: a link domain of {domain} GPUs and nodes of {node} do not fit: one must "
            f"hold a whole number of the other. Try a domain of {tries}."
        )
