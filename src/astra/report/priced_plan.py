"""A priced plan for people: one sentence, where the time and the memory go, what was assumed."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from astra.cost.result import PlanMemory, PricedPlan, StageMemory

if TYPE_CHECKING:
    from rich.console import RenderableType

GIB = 2**30
TIME_BAR_WIDTH = 24  # characters of a whole step
MEMORY_BAR_WIDTH = 10  # and of a full GPU

PART_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recompute",
    "tensor_comm": "tensor-parallel traffic",
    "context_comm": "context-parallel traffic",
    "expert_comm": "expert-parallel traffic",
    "pipeline_comm": "links between stages",
    "data_comm": "gradients and parameters",
    "optimizer": "optimizer",
    "other": "other",
    "bubble": "waiting (bubble)",
}
# Title, letter in the bar, and value of every cause; the rest is CUDA, NCCL and allocator slack.
MEMORY_COLUMNS: tuple[tuple[str, str, Callable[[StageMemory], float]], ...] = (
    ("wts", "W", lambda row: row.weights_bytes),
    ("grad", "G", lambda row: row.gradients_bytes),
    ("opt", "O", lambda row: row.optimizer_bytes),
    ("act", "A", lambda row: row.activations_bytes),
    ("logit", "L", lambda row: row.logits_bytes),
    ("buf", "B", lambda row: row.buffers_bytes),
    ("rest", "R", lambda row: row.runtime_bytes),
)
EXPORT_TARGETS = {  # whose launch files a runtime's plans become
    "megatron": "megatron",
    "flagscale": "flagscale",
    "fsdp": "torchtitan",
    "deepspeed": "deepspeed",
}
MEMORY_LEGEND = (
    "weights, gradients, optimizer, activations, logits, buffers, rest: CUDA, NCCL, slack"
)


def priced_json(priced: PricedPlan) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(priced)
    return document


def sentence(priced: PricedPlan) -> str:
    """What, on what, how fast, and whether it fits: the first line of an answer."""
    plan = priced.plan
    gpus = " + ".join(f"{count} {name}" for name, count in priced.gpus.items())
    low, high = seconds(priced.step_s_low), seconds(priced.step_s_high)
    host = "" if priced.fits_host else ", but its offload DOES NOT FIT the RAM of its nodes"
    return (
        f"{plan.model.name} on {gpus}: {seconds(priced.step_s)} a step ({low} to {high} in four "
        f"cases of five) of {plan.global_batch:,} x {plan.seq_len:,} tokens "
        f"({priced.tokens_per_s:,.0f} tokens/s, "
        f"MFU {priced.mfu_fraction:.1%} of the {plan.precision} peak) with {priced.summary}; "
        f"it {_fit_words(priced.memory)}{host}."
    )


def origin_words(priced: PricedPlan) -> str:
    """How much of a prediction was measured, and whose step times it is scaled to."""
    origin = priced.provenance
    return (
        f"{origin.measured_fraction:.0%} of the busy time measured, "
        f"{origin.fitted_fraction:.0%} fitted, {origin.guessed_fraction:.0%} guessed; step times "
        f"of the stack {priced.plan.stack}"
    )


def _fit_words(memory: PlanMemory) -> str:
    """Whether it fits; where not, by how much, since it may still run."""
    if memory.fits:
        return f"fits (probability {memory.fit_probability:.0%})"
    need = f"{memory.reserved_bytes / GIB:.1f} of {memory.usable_bytes / GIB:.1f} GiB"
    margin = ", less free than the margin" if memory.reserved_bytes <= memory.usable_bytes else ""
    return (
        f"DOES NOT FIT: {need}{margin} (it would run with probability {memory.fit_probability:.0%})"
    )


def export_target(runtime: str, gpu_types: int) -> str | None:
    """Whose launch files a plan becomes; FlagScale's plans of one type are Megatron-LM's."""
    plain = runtime == "flagscale" and gpu_types == 1
    return "megatron" if plain else EXPORT_TARGETS.get(runtime)


def export_hint(priced: PricedPlan, file: str) -> list[str]:
    """How to get launch files of a plan, where there are any for its runtime."""
    target = export_target(priced.plan.runtime, len(priced.gpus))
    which = f" --rank {priced.rank}" if priced.rank > 1 else ""
    return [f"  astra export {file}{which} --to {target} --out job"] if target else []


def next_lines(saved: str | None, export: list[str]) -> list[str]:
    """Commands that go on from here; `export`: how to start the plan."""
    file = saved or "result.json"
    kept = f"Next: add --out {file} to keep the answer, then"
    kept = kept if saved is None else f"Kept in {saved}. Next:"
    return [kept, f"  astra explain {file}", *export]


def seconds(value: float) -> str:
    """Three figures and a unit; below a nanosecond, nothing.

    >>> seconds(12.345), seconds(0.0123), seconds(-4e-15)
    ('12.3 s', '12.3 ms', '0 ms')
    """
    if abs(value) < 1e-9:
        return "0 ms"
    if value >= 0.1:
        return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"
    return f"{value * 1e3:.3g} ms"


def host_lines(priced: PricedPlan) -> list["RenderableType"]:
    """What is offloaded, beside the RAM of the nodes where they are known; or nothing."""
    if not priced.host_memory_bytes:
        return []
    offloaded = f"{priced.host_memory_bytes / GIB:.0f} GiB a node for offload"
    if priced.money:
        nodes = {rent.instance: rent.node_ram_bytes for rent in priced.money.rents}
    else:
        gpus = [pool.gpu for pool in priced.plan.cluster.pools if pool.gpu.name in priced.gpus]
        nodes = {f"a node of {gpu.node.gpus} {gpu.name}": gpu.node.ram_bytes for gpu in gpus}
    known = [
        f"{name} has {ram / GIB:.0f} GiB of RAM"
        if ram
        else f"how much RAM {name} has is not known: see that it is enough"
        for name, ram in nodes.items()
    ]
    return [titled_line("host memory", "; ".join([offloaded, *known]))]


def titled_line(title: str, text: str) -> "RenderableType":
    """A title and its text, wrapped beside it."""
    from rich.table import Table

    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=11, no_wrap=True)
    table.add_column(ratio=1)
    table.add_row(title, text)
    return table


def time_bars(priced: PricedPlan) -> "RenderableType":
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="crop")  # a bar, cut where there is no room
    for name, value in priced.step_parts_s.items():
        share = value / priced.step_s
        if share >= 0.0005:
            bar = "#" * round(share * TIME_BAR_WIDTH)
            table.add_row(f"  {PART_NAMES[name]}", seconds(value), f"{share:.1%}", bar)
    return table


def _usable(priced: PricedPlan) -> dict[str, float]:
    """Memory of each GPU type that the plan runs on."""
    pools = priced.plan.cluster.pools
    return {pool.gpu.name: pool.gpu.usable_bytes for pool in pools if pool.gpu.name in priced.gpus}


def usable_sizes(priced: PricedPlan) -> str:
    """`79.1`, or `79.1 and 31.7` where the types differ."""
    shown = [f"{usable / GIB:.1f}" for usable in _usable(priced).values()]
    return " and ".join(dict.fromkeys(shown))


def memory_bars(priced: PricedPlan) -> "RenderableType":
    from rich.table import Table

    memory, usable = priced.memory, _usable(priced)
    mixed = len({row.gpu for row in memory.stages}) > 1
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("stage", justify="right", no_wrap=True)
    table.add_column("lay", justify="right", no_wrap=True)
    if mixed:
        table.add_column("GPU", overflow="fold")
    for title, _, _ in MEMORY_COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("all", justify="right", no_wrap=True)
    table.add_column("full", justify="right", no_wrap=True)
    table.add_column(overflow="crop")  # cut where there is no room, so that no number is
    for label, row in _merge_equal_stages(memory):
        cells = [value(row) for _, _, value in MEMORY_COLUMNS]
        cells[-1] += row.slack_bytes
        shares = [cell / usable[row.gpu] for cell in cells]
        table.add_row(
            label,
            str(row.layers),
            *([row.gpu] if mixed else []),
            *(f"{cell / GIB:.1f}" for cell in (*cells, sum(cells))),
            f"{sum(shares):.0%}",
            _memory_bar(shares),
        )
    return table


def _memory_bar(shares: list[float]) -> str:
    """A bar of one letter per cause."""
    letters = [letter for _, letter, _ in MEMORY_COLUMNS]
    pairs = zip(letters, shares, strict=True)
    bar = "".join(letter * round(share * MEMORY_BAR_WIDTH) for letter, share in pairs)
    return bar if len(bar) <= MEMORY_BAR_WIDTH + 1 else f"{bar[:MEMORY_BAR_WIDTH]}>"


def _merge_equal_stages(memory: PlanMemory) -> list[tuple[str, StageMemory]]:
    """Stages that look alike as one line: `1-6`; `2.1-6` in the second of several pipelines."""
    has_several_pipelines = memory.stages[-1].pipeline > 0
    lines: list[list[Any]] = []
    for row in memory.stages:
        key = msgspec.structs.replace(row, stage=0)
        if lines and lines[-1][2] == key:
            lines[-1][1] = row.stage
        else:
            lines.append([row.stage, row.stage, key, row])
    labelled = []
    for first, last, _, row in lines:
        label = f"{first}" if first == last else f"{first}-{last}"
        labelled.append((f"{row.pipeline + 1}.{label}" if has_several_pipelines else label, row))
    return labelled
