"""A priced plan for people: one sentence, where the time and the memory go, what was assumed."""

from typing import TYPE_CHECKING, Any

import msgspec

from astra.search.priced import PlanMemory, Priced, StageMemory

if TYPE_CHECKING:
    from rich.console import RenderableType

GIB = 2**30
BAR = 24  # characters of a whole bar

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
MEMORY_COLUMNS = (
    ("weights", "weights_bytes", "W"),
    ("grads", "gradients_bytes", "G"),
    ("optim", "optimizer_bytes", "O"),
    ("acts", "activations_bytes", "A"),
    ("logits", "logits_bytes", "L"),
    ("buffers", "buffers_bytes", "B"),
    ("runtime", "runtime_bytes", "R"),
)


def priced_json(priced: Priced) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(priced)
    return found


def sentence(priced: Priced) -> str:
    """What, on what, how fast, and whether it fits: the first line of an answer."""
    plan = priced.plan
    gpus = " + ".join(f"{count} {name}" for name, count in priced.gpus.items())
    fits = "fits" if priced.memory.fits else "DOES NOT FIT"
    return (
        f"{plan.model.name} on {gpus}: {seconds(priced.step_s)} a step of "
        f"{plan.global_batch:,} x {plan.seq_len:,} tokens ({priced.tokens_per_s:,.0f} tokens/s, "
        f"MFU {priced.mfu_fraction:.1%}) with {priced.summary}; it {fits}."
    )


def seconds(value: float) -> str:
    """Three figures and a unit."""
    if value >= 0.1:
        return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"
    return f"{value * 1e3:.3g} ms"


def page(priced: Priced) -> list["RenderableType"]:
    """The whole answer, part by part."""
    low, high = seconds(priced.step_s_low), seconds(priced.step_s_high)
    parts: list[RenderableType] = [
        sentence(priced),
        "",
        f"Where the time goes (stage {priced.parts_stage}; 80 % interval {low} to {high})",
        time_bars(priced),
        "",
        f"Memory of one GPU by stage, GiB of {priced.memory.usable_bytes / GIB:.1f}",
        memory_bars(priced.memory),
        "",
    ]
    if priced.host_memory_bytes:
        parts.append(f"host memory  {priced.host_memory_bytes / GIB:.0f} GiB a node for offload")
    parts.append(f"checkpoint   {priced.checkpoint_bytes / 1e9:,.0f} GB")
    if priced.assumed:
        parts.append(f"assumed      {'; '.join(priced.assumed)}")
    known = priced.provenance
    parts.append(
        f"sources      kernels {known.measured_fraction:.0%} measured, "
        f"{known.fitted_fraction:.0%} fitted, {known.guessed_fraction:.0%} guessed"
    )
    parts += [f"             {note}" for note in known.notes]
    parts += [f"warning      {warning}" for warning in priced.warnings]
    return parts


def time_bars(priced: Priced) -> "RenderableType":
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for name, value in priced.step_parts_s.items():
        share = value / priced.step_s
        if share >= 0.0005:
            bar = "#" * max(round(share * BAR), 1)
            table.add_row(f"  {PART_NAMES[name]}", seconds(value), f"{share:.1%}", bar)
    return table


def memory_bars(memory: PlanMemory) -> "RenderableType":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("stage", justify="right", no_wrap=True)
    for title, field, _ in MEMORY_COLUMNS:
        if any(getattr(row, field) >= 0.005 * GIB for row in memory.stages):
            table.add_column(title, justify="right", no_wrap=True)
    table.add_column("full", no_wrap=True)
    shown = [column.header for column in table.columns]
    for label, row in _folded(memory):
        cells = [
            f"{getattr(row, field) / GIB:.1f}"
            for title, field, _ in MEMORY_COLUMNS
            if title in shown
        ]
        total = row.allocated_bytes + row.runtime_bytes
        filled = total / memory.usable_bytes
        table.add_row(label, *cells, f"{_letters(row, memory)} {filled:.0%}")
    return table


def _letters(row: StageMemory, memory: PlanMemory) -> str:
    """A bar of one letter per cause."""
    bar = ""
    for _, field, letter in MEMORY_COLUMNS:
        bar += letter * round(getattr(row, field) / memory.usable_bytes * BAR)
    return bar


def _folded(memory: PlanMemory) -> list[tuple[str, StageMemory]]:
    """Stages that look alike as one line: `1-6`."""
    lines: list[list[Any]] = []
    for row in memory.stages:
        key = msgspec.structs.replace(row, stage=0)
        if lines and lines[-1][2] == key:
            lines[-1][1] = row.stage
        else:
            lines.append([row.stage, row.stage, key, row])
    return [
        (f"{first}" if first == last else f"{first}-{last}", row) for first, last, _, row in lines
    ]
