"""A row of measured runs on mixed GPU types as a plan."""

from typing import Any

from msgspec.structs import replace

from astra.errors import InputError, shorten
from astra.files import convert, parse_json
from astra.fit.cells import Cells
from astra.fit.habits import habits_of
from astra.fit.row_cluster import GBPS, in_nodes
from astra.fit.row_model import model_of
from astra.fit.wording import precision_of, recompute_of
from astra.hardware.catalogue import find_gpu, is_path
from astra.hardware.cluster import Cluster, Gpu
from astra.strategy.plan import Pipeline, Plan, check_structure

PCIE_BYTES_PER_S = {"pcie3": 15.75e9, "pcie4": 31.5e9, "pcie5": 63e9}


def mixed_plan_of(cells: Cells) -> tuple[Plan, list[str]]:
    """The plan of one row, and what had to be assumed."""
    status = cells.low("status")
    if status not in ("", "ok"):
        raise InputError(f"the run did not end well: {shorten(status)}")
    if cells.truth("usable") is False:
        raise InputError("marked as not usable")
    habits = habits_of(cells)
    model, assumed = model_of(cells, habits)
    recompute, said = recompute_of(cells.text("recompute"))
    assumed += [said] if said else []
    pipelines = _pipelines(cells, recompute)
    cluster = _cluster(cells, pipelines)
    precision, recipe, more = precision_of(cells, habits, cluster.pools[0].gpu)
    assumed += [*more, "no sharding and unfused attention, as this framework does"]
    whole = {
        "model": model,
        "cluster": cluster,
        "stack": habits.stack,
        "runtime": "any",
        "pipelines": pipelines,
        "micro_batch": cells.needed("micro_batch"),
        "global_batch": cells.needed("global_batch"),
        "seq_len": cells.needed("seq_len"),
        "sharding": "none",
        "attention": "flash" if habits.flash else "unfused",
        "precision": precision,
        "fp8_recipe": recipe,
    }
    return check_structure(convert(whole, Plan, "plan")), assumed


def _pipelines(cells: Cells, recompute: str) -> tuple[Pipeline, ...]:
    text = cells.text("pipelines")
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


def _cluster(cells: Cells, pipelines: tuple[Pipeline, ...]) -> Cluster:
    """One pool per type, in the nodes and with the links that the row gives for it."""
    used: dict[str, int] = {}
    for pipeline in pipelines:
        for segment in pipeline.segments:
            count = segment.stages * segment.tp * pipeline.replicas
            used[segment.gpu] = used.get(segment.gpu, 0) + count
    tables = [_by_type(cells, name) for name in ("gpus_per_node", "intra_node", "inter_node_gbps")]
    pools = []
    for name, count in sorted(used.items()):
        gpu = _linked(_gpu(name), *(table.get(name) for table in tables))
        pools.append({"gpu": gpu, "count": count})
    return convert({"name": "as measured", "pools": pools}, Cluster, "cluster")


def _by_type(cells: Cells, column: str) -> dict[str, Any]:
    """A cell that maps GPU types to values; the names become ours."""
    text = cells.text(column)
    if not text:
        return {}
    found = parse_json(text, column)
    if not isinstance(found, dict) or len(found) > 100:
        raise InputError(f"{column} = {shorten(text)}: a table by GPU type was expected")
    return {_gpu(name).name: value for name, value in found.items()}


def _linked(gpu: Gpu, per_node: object, inside: object, outside_gbps: object) -> Gpu:
    """A GPU in the row's nodes. Numbers inside are GB/s of a GPU, outside Gb/s of a node."""
    if isinstance(per_node, int) and 1 <= per_node <= 10_000:
        gpu = in_nodes(gpu, per_node)
    inside_rate = _rate(inside)
    if inside_rate is not None:
        link = replace(gpu.link, bytes_per_s=inside_rate, peer_bytes_per_s=inside_rate)
        pcie = min(gpu.node.pcie_bytes_per_s, inside_rate)
        gpu = replace(gpu, link=link, node=replace(gpu.node, pcie_bytes_per_s=pcie))
    if isinstance(outside_gbps, int | float) and 0.001 <= outside_gbps <= 1e6:
        rate = outside_gbps * GBPS / gpu.node.gpus
        gpu = replace(gpu, node=replace(gpu.node, nic_bytes_per_s=rate))
    return gpu


def _rate(inside: object) -> float | None:
    """`49.77` GB/s, or the name of a link; NVLink stays as the catalogue has it."""
    if isinstance(inside, str):
        return PCIE_BYTES_PER_S.get(inside.lower())
    if isinstance(inside, int | float) and 0.001 <= inside <= 1e5:
        return inside * 1e9
    return None
