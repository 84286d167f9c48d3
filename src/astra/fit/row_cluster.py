"""The GPUs of a row, in the nodes and on the network that it describes."""

import re

from msgspec.structs import replace

from astra.errors import InputError, shorten
from astra.fit.csv_row import CsvRow
from astra.hardware.catalogue import find_gpu, is_path
from astra.hardware.cluster import Cluster, Gpu, Pool

GBPS = 1e9 / 8  # bytes per second

# Networks that rows name without a speed: what one NIC of theirs carries, one NIC a GPU.
FABRICS = {"slingshot": 200 * GBPS, "omnipath": 100 * GBPS}

_RATE = re.compile(
    r"(?:\b([0-9]{1,3}) ?x +)?((?:[A-Za-z][\w-]* +){0,5})\b([0-9]{1,5}(?:\.[0-9]{1,3})?) ?"
    r"Gb(?:ps|it/s|/s)?(?![A-Za-z])([^;,+]{0,60})"
)

_INSIDE = re.compile(r"nvlink|nvswitch|nvl72|pcie|aggregated", re.IGNORECASE)


def cluster_of(csv_row: CsvRow, gpus: int) -> tuple[Cluster, list[str]]:
    """The pool of GPUs that the run used, and what had to be assumed."""
    gpu, assumed = gpu_of(csv_row)
    per_node = csv_row.count("gpus_per_node", most=10_000)
    if per_node is not None:
        gpu = in_nodes(gpu, per_node)
    if gpus > max(gpu.node.gpus, gpu.link.domain_gpus):
        gpu, said = networked(gpu, csv_row.text("interconnect"))
        assumed += said
    return Cluster(name="as measured", pools=(Pool(gpu=gpu, count=gpus),)), assumed


def gpu_of(csv_row: CsvRow) -> tuple[Gpu, list[str]]:
    for column in ("gpu_id", "gpu"):
        name = csv_row.text(column)
        if name and not is_path(name) and len(name) <= 80:
            gpu, note = find_gpu(name)
            return gpu, [f"{name} was read as {gpu.name}"] if note else []
    raise InputError("gpu_id is not known")


def in_nodes(gpu: Gpu, per_node: int) -> Gpu:
    """The same GPU in nodes of another size. A link domain that was the node stays the node."""
    domain = gpu.link.domain_gpus
    if domain == gpu.node.gpus:
        domain = per_node
    elif domain < gpu.node.gpus:
        domain = min(domain, per_node)
    elif domain % per_node:
        domain = per_node
    return replace(
        gpu,
        node=replace(gpu.node, gpus=per_node),
        link=replace(gpu.link, domain_gpus=domain),
    )


def networked(gpu: Gpu, text: str) -> tuple[Gpu, list[str]]:
    """The GPU behind the network that a text describes; what is not understood changes nothing."""
    rate = nic_bytes_per_s(text, gpu.node.gpus)
    if rate is not None:
        several = re.search(r"\b[0-9]{1,3} ?x ", text)  # NICs: not one that all of them share
        nics = None if several else gpu.node.nics
        return replace(gpu, node=replace(gpu.node, nic_bytes_per_s=rate, nics=nics)), []
    for name, fabric in FABRICS.items():
        if name in text.lower():
            slower = replace(gpu, node=replace(gpu.node, nic_bytes_per_s=fabric, nics=None))
            return slower, [f"{name}: {fabric / GBPS:g} Gb/s a GPU"]
    usual = f"{gpu.node.nic_bytes_per_s / GBPS:g} Gb/s a GPU"
    parts = re.split(r"[;,]", text)
    other = ";".join(part for part in parts if part.strip() and not _INSIDE.search(part))
    words = f"network {shorten(other)} not understood" if other else "network not stated"
    return gpu, [f"{words}: {usual}"]


def nic_bytes_per_s(text: str, per_node: int) -> float | None:
    """What a GPU's share of the network carries one way, where the text says it.

    `8x HDR IB 200 Gb/s per node` are eight NICs; `800 Gb/s per node total` is shared by the
    GPUs of the node; a rate alone, or one `per GPU`, is each GPU's own.
    """
    compute = text.partition("Compute:")[2] or text
    found = _RATE.search(compute)
    if not found:
        return None
    count, before, rate, after = found.groups()
    gbps = float(rate)
    words = f"{before} {after}"
    if not 0.01 <= gbps <= 100_000 or "NVLink" in before:
        return None
    if count:
        return int(count) * gbps * GBPS / per_node
    whole_node = re.search(r"per node|/node", words + compute[found.end() :])
    return gbps * GBPS / per_node if whole_node and "per GPU" not in words else gbps * GBPS
