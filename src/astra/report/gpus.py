"""The catalogue of GPUs, and one GPU's facts, for people and for programs."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from astra.hardware.catalogue import gpu_names
from astra.hardware.cluster import Gpu
from astra.timing.link_curves import link_source

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHORT_CERTAINTY = {"high": "high", "medium": "med", "low": "low"}

# Header, unit and value of each column. Together they fit into 80 characters.
COLUMNS = (
    ("name", "", lambda gpu: gpu.name),
    ("mem", "GB", lambda gpu: _figure(gpu.memory_bytes, 1e9)),
    ("usable", "GiB", lambda gpu: f"{gpu.usable_bytes / 2**30:.1f}"),
    ("band", "TB/s", lambda gpu: f"{gpu.memory_bytes_per_s / 1e12:.2f}"),
    ("bf16", "TF/s", lambda gpu: _figure(gpu.bf16_flops_per_s, 1e12)),
    ("fp8", "TF/s", lambda gpu: _figure(gpu.fp8_flops_per_s, 1e12)),
    (
        "link",
        "GB/s",
        lambda gpu: _figure(gpu.link.bytes_per_s, 1e9) + _borrowed_mark(gpu, "borrowed"),
    ),
    ("dom", "", lambda gpu: str(gpu.link.domain_gpus)),
    (
        "NIC",
        "Gbps",
        lambda gpu: (
            _figure(gpu.node.nic_bytes_per_s, 1e9 / 8) + _borrowed_mark(gpu, "across_borrowed")
        ),
    ),
    ("pow", "W", lambda gpu: _figure(gpu.power_w, 1)),
    ("sure", "", lambda gpu: _SHORT_CERTAINTY.get(gpu.source.certainty or "", "-")),
)
GPUS_LEGEND = (
    "mem: as sold; usable: what torch sees; bf16, fp8: dense; link: one direction, all links; "
    "dom: GPUs a link domain joins; NIC: per GPU in a typical node; ?: nobody timed collectives "
    "over it, how much of it they reach is borrowed from another GPU (`astra gpus NAME` says from "
    "which); sure: how certain the figures are."
)


def gpus_json(gpus: Sequence[Gpu]) -> dict[str, Any]:
    """The listing."""
    return {"gpus": [gpu_json(gpu) for gpu in gpus]}


def gpu_json(gpu: Gpu, note: str | None = None) -> dict[str, Any]:
    """One GPU, all fields, SI units; with how its name was read."""
    facts: dict[str, Any] = msgspec.to_builtins(gpu)
    links = {"collectives": msgspec.to_builtins(link_source(gpu))}
    return facts | {"short_name": short_name(gpu.name)} | links | {"notes": [note] if note else []}


def short_name(name: str) -> str:
    """What people call it: its words, with its size only where others differ in that alone.

    >>> [short_name(name) for name in ("H100-80GB-SXM", "A100-40GB-SXM", "L40S", "of-our-own")]
    ['H100 SXM', 'A100 40GB SXM', 'L40S', 'of-our-own']
    """
    return _short_names().get(name, name)


def short_gpus(gpus: Mapping[str, int]) -> str:
    """Counts and what people call them.

    >>> short_gpus({"H100-80GB-SXM": 1024, "B200": 8})
    '1,024 H100 SXM + 8 B200'
    """
    return " + ".join(f"{count:,} {short_name(name)}" for name, count in gpus.items())


@cache
def _short_names() -> dict[str, str]:
    """Words of the canonical names; a size is left out where there is no other of its form."""
    bare = {name: re.sub(r"-\d+GB\b", "", name) for name in gpu_names()}
    count = Counter(bare.values())
    kept = {name: short if count[short] == 1 else name for name, short in bare.items()}
    return {name: words.replace("-", " ") for name, words in kept.items()}


def gpu_row(gpu: Gpu) -> dict[str, Any]:
    """One GPU as a flat row, SI units: its own figures, its link and its typical node."""
    facts: dict[str, Any] = msgspec.to_builtins(gpu)
    nested = {part: facts.pop(part) for part in ("link", "node", "source")}
    row = {name: value for name, value in facts.items() if not isinstance(value, list)}
    for part in ("link", "node"):
        row |= {f"{part}_{name}": value for name, value in nested[part].items()}
    return row | {"certainty": nested["source"].get("certainty")}


def filter_gpus(gpus: Sequence[Gpu], text: str) -> list[Gpu]:
    """The GPUs in whose name, aliases, maker, architecture or form every word of `text` occurs."""
    words = text.lower().split()
    return [gpu for gpu in gpus if all(word in _searchable_text(gpu) for word in words)]


def _searchable_text(gpu: Gpu) -> str:
    described = (gpu.name, *gpu.aliases, gpu.vendor, gpu.architecture, gpu.form_factor)
    return " ".join(word for word in described if word).lower()


def gpus_table(gpus: Sequence[Gpu]) -> "RenderableType":
    """The listing as a table of 80 columns."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for header, unit, _ in COLUMNS:
        left = header in ("name", "sure")
        title = f"{header}\n{unit}"
        table.add_column(title, justify="left" if left else "right", no_wrap=True)
    for gpu in gpus:
        table.add_row(*(value(gpu) for _, _, value in COLUMNS))
    return table


def gpu_lines(gpu: Gpu) -> list[tuple[str, str]]:
    """One GPU's facts as (what, value with unit)."""
    link, node = gpu.link, gpu.node
    rates = [
        (f"{kind} vector" if kind == "fp32" else f"{kind} dense", f"{rate / 1e12:,g} TFLOP/s")
        for kind in ("bf16", "fp16", "tf32", "fp8", "fp4", "fp32")
        if (rate := getattr(gpu, f"{kind}_flops_per_s")) is not None
    ]
    words = (gpu.vendor, gpu.architecture, gpu.form_factor)
    kind = ", ".join(word for word in words if word)
    if gpu.compute_capability:
        kind += f" (compute capability {gpu.compute_capability})"
    reach = f"joins {link.domain_gpus} GPUs" if link.domain_gpus > 1 else "through the host only"
    lines = [
        ("kind", kind),
        (
            "memory",
            f"{gpu.memory_bytes / 1e9:,g} GB as sold, {gpu.usable_bytes / 2**30:.1f} GiB usable",
        ),
        ("memory bandwidth", f"{gpu.memory_bytes_per_s / 1e12:g} TB/s"),
        *rates,
        ("power", f"{gpu.power_w:g} W" if gpu.power_w else ""),
        ("link", f"{link.kind}, {link.bytes_per_s / 1e9:g} GB/s one direction, {reach}"),
        ("link to one peer", f"{link.peer_bytes_per_s / 1e9:g} GB/s"),
        ("typical node", f"{node.gpus} GPUs"),
        (
            "NIC per GPU",
            f"{node.nic_bytes_per_s * 8 / 1e9:g} Gbps ({node.nic_bytes_per_s / 1e9:g} GB/s)"
            + (f", its share of {node.nics} in the node" if node.nics else ""),
        ),
        ("to the host", f"{node.pcie_bytes_per_s / 1e9:g} GB/s one direction"),
        ("also called", ", ".join(gpu.aliases)),
    ]
    return [line for line in lines + _networks(gpu) + _provenance(gpu) if line[1]]


def _borrowed_mark(gpu: Gpu, which: str) -> str:
    """A mark where collectives over a link were timed on other GPUs alone."""
    return "?" if getattr(link_source(gpu), which) else ""


def _networks(gpu: Gpu) -> list[tuple[str, str]]:
    """What collectives reach of the links, and who tells the networks of nodes for rent."""
    from astra.money.catalogue import GUESSED, shipped_offers

    source = link_source(gpu)
    sold = {offer.machine for offer in shipped_offers() if offer.machine.gpu == gpu.name}
    typical = {machine for machine in sold if machine.gpus == gpu.node.gpus}
    clouds: dict[str, set[str]] = {}
    for machine in typical or sold:
        clouds.setdefault(machine.certainty, set()).add(machine.cloud)
    networks = [
        f"{grade} certainty at {', '.join(sorted(clouds[grade]))}"
        for grade in ("high", "medium", "low")
        if grade in clouds
    ]
    if GUESSED in clouds:
        guesses = ", ".join(sorted(clouds[GUESSED]))
        networks.append(f"GUESSED for nodes of {guesses} (`astra prices {gpu.name}` marks them ?)")
    return [
        ("in a node", source.inside),
        ("between nodes", source.across),
        ("rented networks", "; ".join(networks)),
    ]


def _provenance(gpu: Gpu) -> list[tuple[str, str]]:
    source = gpu.source
    origin = f"{source.kind}: {source.where}" + (f", {source.read_on}" if source.read_on else "")
    return [
        *(("assumed", guess) for guess in gpu.assumed),
        ("source", origin),
        ("certainty", source.certainty or ""),
        ("checked against", "; ".join(source.checked_against)),
        ("note", source.note or ""),
    ]


def gpu_page(gpu: Gpu) -> "RenderableType":
    """One GPU for people."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=None, box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text("GPU"), Text(gpu.name))
    for what, value in gpu_lines(gpu):
        table.add_row(Text(what), Text(value))
    return table


def _figure(value: float | None, unit: float) -> str:
    """A figure in its unit, as short as the table needs it."""
    if value is None:
        return "-"
    amount = value / unit
    return f"{amount:.0f}" if amount >= 100 else f"{amount:.3g}"
