"""An existing job: what it measured beside what is predicted."""

from astra.report.priced_plan import GIB, seconds
from astra.report.sheet.blocks import Grid, Items, PageBlock, Section, Words
from astra.report.svg.priced import Document


def job_sections(document: Document, plan: Document | None) -> list[Section]:
    """Of a job that was imported; nothing of other documents."""
    job = document.get("job")
    if not job or plan is None:
        return []
    blocks: list[PageBlock] = []
    measured = job.get("measured")
    if measured:
        rows = tuple(_rows(measured, plan))
        header = ("", "measured", "predicted", "predicted / measured - 1")
        blocks = [Grid(header, rows, frozenset({1, 2, 3})), *_steps(measured)]
    else:
        blocks = [Words("Its files hold no measured steps.", "quiet")]
    found = [Section("Measured and predicted", tuple(blocks))]
    texts = [f"Not understood, left out: {text}" for text in job.get("not_understood", ())]
    texts += [f"Refused by {job['framework']}: {text}" for text in job.get("refused", ())]
    texts += [f"Assumed: {text}" for text in job.get("assumed", ())]
    if texts:
        found.append(Section("How its files were read", (Items(tuple(texts)),)))
    return found


def _rows(measured: Document, plan: Document) -> list[tuple[str, str, str, str]]:
    memory = plan["memory"]
    pairs = (
        ("step", "step_s", plan["step_s"], seconds),
        ("tokens/s", "tokens_per_s", plan["tokens_per_s"], _count),
        ("tokens/s a GPU", "tokens_per_s_per_gpu", plan["tokens_per_s_per_gpu"], _count),
        ("memory allocated", "memory_allocated_bytes", memory["allocated_bytes"], _gib),
        ("memory reserved", "memory_reserved_bytes", memory["reserved_bytes"], _gib),
    )
    return [
        (name, say(was), say(said), f"{said / was - 1:+.1%}")
        for name, field, said, say in pairs
        if (was := measured.get(field))
    ]


def _steps(measured: Document) -> list[PageBlock]:
    """Over which steps, and how far they spread."""
    low, high = measured.get("step_s_low"), measured.get("step_s_high")
    if low is None or high is None:
        return []
    count = measured.get("steps")
    over = f" over {count:,} steps" if count else ""
    return [Words(f"Measured {seconds(low)} to {seconds(high)}, 10th to 90th percentile{over}.")]


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _gib(value: float) -> str:
    return f"{value / GIB:.1f} GiB"
