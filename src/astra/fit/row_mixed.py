"""A row of measured runs on mixed GPU types as a plan."""

from typing import Any

from msgspec.structs import replace

from astra.errors import InputError, shorten
from astra.files import convert, parse_json
from astra.fit.csv_row import CsvRow
from astra.fit.framework_defaults import framework_defaults
from astra.fit.row_cluster import GBPS, in_nodes
from astra.fit.row_model import model_of
from astra.fit.row_words import precision_of, recompute_of
from astra.hardware.catalogue import find_gpu, is_path
from astra.hardware.cluster import Cluster, Gpu
from astra.strategy.plan import Pipeline, Plan, check_structure
from astra.timing.collectives import host_share
from astra.timing.link_curves import inter_node_table

MEASURED = "links measured by the source"  # what messages get, not what is printed on a NIC
PCIE_BYTES_PER_S = {"pcie3": 15.75e9, "pcie4": 31.5e9, "pcie5": 63e9}


def mixed_plan_of(csv_row: CsvRow) -> tuple[Plan, list[str]]:
    """The plan of one row, and what had to be assumed."""
    status = csv_row.lower_text("status")
    if status not in ("", "ok"):
        raise InputError(f"the run did not end well: {shorten(status)}")
    if csv_row.flag("usable") is False:
        raise InputError("marked as not usable")
    defaults = framework_defaults(csv_row)
    model, assumed = model_of(csv_row, defaults)
    recompute, said = recompute_of(csv_row.text("recompute"))
    assumed += [said] if said else []
    pipelines = _pipelines(csv_row, recompute)
    cluster = _cluster(csv_row, pipelines)
    precision, recipe, more = precision_of(csv_row, defaults, cluster.pools[0].gpu)
    assumed += [*more, "no sharding and unfused attention, as this framework does"]
    whole = {
        "model": model,
        "cluster": cluster,
        "stack": defaults.stack,
        "runtime": "any",
        "pipelines": pipelines,
        "micro_batch": csv_row.required_count("micro_batch"),
        "global_batch": csv_row.required_count("global_batch"),
        "seq_len": csv_row.required_count("seq_len"),
        "sharding": "none",
        "attention": "flash" if defaults.flash else "unfused",
        "precision": precision,
        "fp8_recipe": recipe,
    }
    return check_structure(convert(whole, Plan, "plan")), assumed


def _pipelines(csv_row: CsvRow, recompute: str) -> tuple[Pipeline, ...]:
    text = csv_row.text("pipelines")
    if not text:
        raise InputError("pipelines is empty")
    found = convert(parse_json(text, "pipelines"), tuple[Pipeline, ...], "pipelines")
    segments = [len(pipeline.segments) for pipeline in found]
    if not segments or not min(segments) or sum(segments) > 1000:
        raise InputError("pipelines: without segments, or with more than any run has")
    return tuple(
        replace(
            pipeline,
            segments=tuple(
                replace(segment, gpu=_gpu(segment.gpu).name, recompute=recompute)
                for segment in pipeline.segments
            ),
        )
        for pipeline in found
    )


def _gpu(name: str) -> Gpu:
    if is_path(name) or len(name) > 80:
        raise InputError(f"gpu = {shorten(name)}: no GPU's name")
    return find_gpu(name)[0]


def _cluster(csv_row: CsvRow, pipelines: tuple[Pipeline, ...]) -> Cluster:
    """One pool per type, in the nodes and with the links that the row gives for it."""
    used: dict[str, int] = {}
    for pipeline in pipelines:
        for segment in pipeline.segments:
            count = segment.stages * segment.tp * pipeline.replicas
            used[segment.gpu] = used.get(segment.gpu, 0) + count
    tables = [
        _by_type(csv_row, name) for name in ("gpus_per_node", "intra_node", "inter_node_gbps")
    ]
    measured = MEASURED in csv_row.lower_text("notes")
    pools = []
    for name, count in sorted(used.items()):
        per_node, inside, outside = (table.get(name) for table in tables)
        gpu = _linked(_gpu(name), per_node, inside, outside, measured)
        pools.append({"gpu": gpu, "count": count})
    return convert({"name": "as measured", "pools": pools}, Cluster, "cluster")


def _by_type(csv_row: CsvRow, column: str) -> dict[str, Any]:
    """A cell that maps GPU types to values; the names become ours."""
    text = csv_row.text(column)
    if not text:
        return {}
    found = parse_json(text, column)
    if not isinstance(found, dict) or len(found) > 100:
        raise InputError(f"{column} = {shorten(text)}: a table by GPU type was expected")
    return {_gpu(name).name: value for name, value in found.items()}


def _linked(
    gpu: Gpu, per_node: object, inside: object, outside_gbps: object, measured: bool
) -> Gpu:
    """A GPU in the row's nodes. Outside are Gb/s of a node, on one NIC that its GPUs share."""
    if isinstance(per_node, int) and 1 <= per_node <= 10_000:
        gpu = in_nodes(gpu, per_node)
    if isinstance(inside, str) and inside.lower() in PCIE_BYTES_PER_S:
        rate = min(PCIE_BYTES_PER_S[inside.lower()], gpu.node.pcie_bytes_per_s)
        link = replace(gpu.link, bytes_per_s=rate, peer_bytes_per_s=rate)
        gpu = replace(gpu, link=link, node=replace(gpu.node, pcie_bytes_per_s=rate))
    elif isinstance(inside, int | float) and 0.001 <= inside <= 1e5:
        gpu = _measured_inside(gpu, inside * 1e9)
    if isinstance(outside_gbps, int | float) and 0.001 <= outside_gbps <= 1e6:
        rate = outside_gbps * GBPS / gpu.node.gpus
        rate = rate / inter_node_table().ring_efficiency if measured else rate
        gpu = replace(gpu, node=replace(gpu.node, nic_bytes_per_s=rate, nics=1))
    return gpu


def _measured_inside(gpu: Gpu, bytes_per_s: float) -> Gpu:
    """A GPU in nodes whose pairs of GPUs, all sending at once, were seen to move so much in all.

    A pair slower than PCIe has no bridge. No ring through the host is faster than a pair.
    """
    pair = bytes_per_s / max(gpu.node.gpus / 2, 1)
    if pair > gpu.node.pcie_bytes_per_s:
        return gpu
    if gpu.link.domain_gpus == gpu.node.gpus:
        gpu = replace(gpu, link=replace(gpu.link, domain_gpus=1))
    share = host_share(gpu, gpu.node.gpus)
    pcie = min(gpu.node.pcie_bytes_per_s, pair / share)
    return replace(gpu, node=replace(gpu.node, pcie_bytes_per_s=pcie))
