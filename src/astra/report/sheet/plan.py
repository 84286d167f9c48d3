"""Where a plan's time, memory and money go, and how it is laid out."""

from itertools import groupby

from astra.report.amounts import gpus_text, usd, usd_rate
from astra.report.priced_plan import GIB, PART_NAMES, seconds
from astra.report.sheet.blocks import Cell, Grid, Items, PageBlock, Picture, Section, Words
from astra.report.sheet.head import WIDTH_PX
from astra.report.svg.charts import charts_of, draw
from astra.report.svg.frontier import where_words
from astra.report.svg.memory import CAUSES
from astra.report.svg.mixing import mixing_rows
from astra.report.svg.parts import parts_title
from astra.report.svg.priced import Document
from astra.report.svg.scaling import fastest_by_count

NO_SETTING: tuple[object, ...] = (
    None,
    False,
    0,
    0.0,
    [],
    "none",
)  # what says nothing, in a list of settings
USD_CAUSES = {
    "training": "training",
    "checkpoints": "writing checkpoints",
    "lost_work": "work lost to failures",
    "restarts": "restarting",
    "startup": "start-up",
    "storage": "storage",
    "egress": "egress",
}
WHOLE_PLAN = ("model", "cluster", "pipelines", "chunk_layers")  # not in the list of settings


def pool_section(document: Document, plan: Document) -> list[Section]:
    """Which GPUs hold which layers, and what mixing them brings."""
    blocks: list[PageBlock] = [
        Picture(draw("pool", document, WIDTH_PX, plan["rank"]), _segments(plan))
    ]
    if "mixing" in charts_of(document) and plan["rank"] == 1:
        rows = tuple((row.name, row.words) for row in mixing_rows(document))
        grid = Grid(("a step", ""), rows, frozenset({1}))
        blocks.append(Picture(draw("mixing", document, WIDTH_PX), grid, "What mixing brings"))
        mixed = document["mixed"]
        idle = gpus_text(mixed.get("idle") or {})
        texts = (*([f"Idle: {idle}"] if idle else []), *(mixed.get("left_out") or ()))
        blocks += [Items(texts)] if texts else []
    return [Section("Which GPUs hold which layers", tuple(blocks))]


def _segments(plan: Document) -> Grid:
    rows: list[tuple[Cell, ...]] = []
    for row, pipeline in enumerate(plan["plan"]["pipelines"]):
        for segment in pipeline["segments"]:
            layers = " ".join(
                f"{n}x{size}" if (n := len(list(same))) > 1 else str(size)
                for size, same in groupby(segment["layers"])
            )
            rows.append(
                (
                    str(row + 1),
                    str(pipeline["replicas"]),
                    str(pipeline["micro_batches"]),
                    segment["gpu"],
                    str(segment["stages"]),
                    layers,
                    str(segment["tp"]),
                    segment["recompute"],
                )
            )
    header = ("group", "replicas", "micro-batches", "GPU", "stages", "layers", "tp", "recompute")
    return Grid(header, tuple(rows), frozenset({0, 1, 2, 4, 6}))


def settings_section(plan: Document) -> Section:
    """Every setting that says something, in the words of the JSON."""
    rows = [
        (name, _setting(value))
        for name, value in plan["plan"].items()
        if name not in WHOLE_PLAN and value not in NO_SETTING
    ]
    half = -(-len(rows) // 2)
    pairs = [
        (*rows[row], *(rows[row + half] if row + half < len(rows) else ("", "")))
        for row in range(half)
    ]
    return Section("Its settings", (Grid(("setting", "", "setting", ""), tuple(pairs)),))


def _setting(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def time_section(document: Document, plan: Document, timeline: str | None) -> Section:
    """The step from stage to stage, and the parts of its busiest stage."""
    rows = tuple(
        (PART_NAMES[part], seconds(value), f"{value / plan['step_s']:.1%}")
        for part, value in plan["step_parts_s"].items()
        if value > 0
    )
    grid = Grid(("part", "seconds", "of the step"), rows, frozenset({1, 2}))
    parts = Picture(draw("parts", document, WIDTH_PX, plan["rank"]), grid, parts_title(plan))
    step: tuple[PageBlock, ...] = (Picture(timeline),) if timeline else ()
    return Section("Where the time goes", (*step, parts))


def memory_section(document: Document, plan: Document) -> Section:
    """By stage and cause, against the limit."""
    memory = plan["memory"]
    stages = memory["stages"]
    causes = [
        (field, words)
        for field, words in CAUSES.values()
        if any(stage.get(field, 0.0) for stage in stages)
    ]
    rows = []
    for first, last, stage in _alike(stages):
        name = f"{first}" if first == last else f"{first} to {last}"
        group = f"{stage['pipeline'] + 1}: " if stages[-1]["pipeline"] else ""
        sizes = [stage.get(field, 0.0) / GIB for field, _ in causes]
        limit = (stage.get("usable_bytes") or memory["usable_bytes"]) / GIB
        figures = [f"{size:.1f}" for size in (*sizes, sum(sizes), limit)]
        rows.append((f"{group}{name}", stage["gpu"], str(stage["layers"]), *figures))
    header = ("stage", "GPU", "layers", *(words for _, words in causes), "all", "limit")
    grid = Grid(header, tuple(rows), frozenset(range(2, len(header))))
    blocks: list[PageBlock] = [Picture(draw("memory", document, WIDTH_PX, plan["rank"]), grid)]
    host, saved = plan["host_memory_bytes"], plan["checkpoint_bytes"]
    beside = f"A checkpoint takes {saved / 1e9:,.0f} GB."
    if host:
        beside += f" Offload takes {host / GIB:,.0f} GiB of a node's RAM."
    return Section("Memory of one GPU, by stage and cause", (*blocks, Words(beside, "quiet")))


def _alike(stages: list[Document]) -> list[tuple[int, int, Document]]:
    """Consecutive stages that differ in nothing but their number as one: the first, the last."""

    def key(stage: Document) -> list[object]:
        return [value for name, value in stage.items() if name != "stage"]

    runs = ([*run] for _, run in groupby(stages, key))
    return [(run[0]["stage"], run[-1]["stage"], run[0]) for run in runs]


def money_section(plan: Document) -> list[Section]:
    """What is rented at which price of which day, and where the dollars go."""
    money = plan.get("money")
    if not money:
        return []
    rents = tuple(
        (
            rent["gpu"],
            str(rent["nodes"]),
            rent["instance"],
            f"{usd(rent['usd_per_gpu_hour'])} a GPU-hour",
            where_words(rent),
            rent["network_certainty"],
        )
        for rent in money["rents"]
    )
    header = ("GPU", "nodes", "instance", "price", "where", "its network is known")
    blocks: list[PageBlock] = [Grid(header, rents, frozenset({1}))]
    causes = money.get("usd_by_cause") or {}
    rows = tuple(
        (words, usd(causes[name]), f"{causes[name] / plan['usd']:.2%}")
        for name, words in USD_CAUSES.items()
        if causes.get(name)
    )
    if rows:
        blocks.append(Grid(("dollars for", "", ""), rows, frozenset({1, 2})))
    said = f"{usd_rate(plan['usd_per_hour'])} an hour x {plan['hours']:,.2f} h"
    beside = f"; {usd(money['usd_per_million_tokens'])} a million tokens."
    return [Section("Where the money goes", (Words(said + beside), *blocks))]


def scaling_section(document: Document) -> list[Section]:
    """Throughput by the number of GPUs, where the answer holds several."""
    if "scaling" not in charts_of(document):
        return []
    rows = tuple(
        (gpu, f"{count:,}", f"{plan['tokens_per_s']:,.0f}", seconds(plan["step_s"]))
        for gpu, each in fastest_by_count(document).items()
        for count, plan in each.items()
    )
    grid = Grid(("GPU", "count", "tokens/s", "step"), rows, frozenset({1, 2, 3}))
    picture = Picture(draw("scaling", document, WIDTH_PX), grid)
    return [Section("Throughput by the number of GPUs", (picture,))]
