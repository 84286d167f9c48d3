"""A priced plan for people: one sentence, then what it needs and what was assumed."""

from typing import TYPE_CHECKING, Any

import msgspec

from astra.search.priced import PlanMemory, Priced

if TYPE_CHECKING:
    from rich.console import RenderableType

GIB = 2**30
BAR = 40  # characters of a full GPU


def priced_json(priced: Priced) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(priced)
    return found


def sentence(priced: Priced) -> str:
    """What, on what, how: the first line of an answer."""
    plan = priced.plan
    gpus = " + ".join(f"{count} {name}" for name, count in priced.gpus.items())
    batch = f"{plan.global_batch:,} x {plan.seq_len:,} tokens a step"
    return f"{plan.model.name} on {gpus}, {batch}: {priced.summary}."


def page(priced: Priced) -> list["RenderableType"]:
    """The whole answer, part by part."""
    parts: list[RenderableType] = [sentence(priced), ""]
    parts += [_compute(priced), "", "Model states of one GPU, by stage"]
    parts += [_bars(priced.memory), ""]
    if priced.host_memory_bytes:
        parts.append(f"host memory  {priced.host_memory_bytes / GIB:.0f} GiB a node for offload")
    parts.append(f"checkpoint   {priced.checkpoint_bytes / 1e9:,.0f} GB")
    if priced.assumed:
        parts.append(f"assumed      {'; '.join(priced.assumed)}")
    parts += [f"note         {note}" for note in priced.provenance.notes]
    parts += [f"warning      {warning}" for warning in priced.warnings]
    return parts


def _compute(priced: Priced) -> str:
    return (
        f"compute      {priced.step_flops:.3g} model FLOPs a step; "
        f"at the GPUs' dense {priced.plan.precision} peak {priced.step_s_at_peak:.3g} s, "
        "which no step can beat"
    )


def _bars(memory: PlanMemory) -> "RenderableType":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("stage", "layers", "weights", "gradients", "optimizer", "GiB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"of {memory.usable_bytes / GIB:.1f} GiB", no_wrap=True)
    for label, row in _folded(memory):
        cells = (row.weights_bytes, row.gradients_bytes, row.optimizer_bytes, row.states_bytes)
        filled = row.states_bytes / memory.usable_bytes
        table.add_row(
            label,
            str(row.layers),
            *(f"{cell / GIB:.2f}" for cell in cells),
            f"{_bar(filled)} {filled:.0%}",
        )
    return table


def _bar(filled: float) -> str:
    return "#" * min(round(filled * BAR), BAR)


def _folded(memory: PlanMemory) -> list[tuple[str, Any]]:
    """Stages that look alike as one line: `1-6`."""
    lines: list[list[Any]] = []
    for row in memory.stages:
        key = msgspec.structs.replace(row, stage=0)
        if lines and lines[-1][2] == key and row.pipeline == lines[-1][3].pipeline:
            lines[-1][1] = row.stage
        else:
            lines.append([row.stage, row.stage, key, row])
    return [
        (f"{first}" if first == last else f"{first}-{last}", row) for first, last, _, row in lines
    ]
