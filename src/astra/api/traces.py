"""The simulated step of a plan: for Perfetto, as a picture, as numbers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.api.saving import out_path
from astra.api.sources import checked_plan
from astra.api.words import in_python_words
from astra.errors import InputError, shorten
from astra.report.priced_plan import seconds
from astra.timeline.step import StepTimeline, step_timeline

if TYPE_CHECKING:
    from astra.api.sources import PlanSource

MAX_OPERATIONS = 500_000  # of a step: some 300 MB of trace


class StepTrace(StepTimeline, frozen=True, kw_only=True):
    """One simulated step: what every stage of one replica of each group does when.

    >>> import astra
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 8}, pp=2, global_batch=32, seq_len=4096)
    >>> step = astra.trace(priced)
    >>> first, last = step.pipelines[0].stages
    >>> first.kind[:3], last.kind[:3]
    (('forward', 'forward', 'backward'), ('forward', 'backward', 'forward'))
    >>> step.step_s == priced.step_s
    True
    """

    def __repr__(self) -> str:
        stages = "|".join(str(len(each.stages)) for each in self.pipelines)
        return f"StepTrace({self.model}: {self.summary}, {seconds(self.step_s)}, {stages} stages)"

    def _repr_html_(self) -> str:
        return self.svg()

    @in_python_words
    def svg(self, width: float = 860, *, from_s: float = 0.0, to_s: float | None = None) -> str:
        """The picture, of the whole step or of what lies between two moments of it."""
        from astra.report.svg.timeline import timeline_svg

        if not 0 <= from_s < (self.step_s if to_s is None else to_s) <= self.step_s:
            raise InputError(
                f"from_s = {from_s}, to_s = {to_s}: two moments of the step are needed, the first "
                f"before the second, from 0 to {self.step_s:.6g}."
            )
        return timeline_svg(self, width, from_s=from_s, to_s=to_s)

    @in_python_words
    def save(self, path: str | Path) -> Path:
        """As a trace (.json, opens in ui.perfetto.dev) or a picture (.svg), as the name ends."""
        from astra.export.folder import write_folder
        from astra.report.trace import chrome_trace

        ending, place = file_ending(path), out_path(path, "--out")
        content = self.svg() if ending == ".svg" else chrome_trace(self)
        write_folder(place.parent, {place.name: content})
        return place

    def to_dict(self) -> dict[str, Any]:
        """All numbers, as `astra trace --json` has them."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def file_ending(path: str | Path) -> str:
    """What a file's name asks for."""
    ending = Path(str(path)).suffix.lower()
    if ending not in (".json", ".svg"):
        raise InputError(
            f"--out {shorten(str(path))}: the name ends in .json (a trace for Perfetto) or .svg "
            "(a picture)."
        )
    return ending


def trace(
    plan: "PlanSource",
    out: str | Path | None = None,
    *,
    rank: int = 1,
) -> StepTrace:
    """The simulated step of a plan, operation by operation, and its memory over time.

    >>> import astra, tempfile
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 8}, pp=2, global_batch=32, seq_len=4096)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     step = astra.trace(priced, f"{folder}/trace.json")
    ...     picture = step.save(f"{folder}/step.svg").read_text()
    >>> step.pipelines[0].micro_batches, picture.startswith("<svg")
    (8, True)

    `plan` is an answer of `plan`, a priced or a bare plan, or a file with any of them; `rank` says
    which plan of an answer. `out` is a file for it: `.json` opens in ui.perfetto.dev, `.svg` is a
    picture of stages against time.
    """
    if out is not None:
        file_ending(out)
        out_path(out, "--out")
    found = checked_plan(plan, rank)
    operations = sum(2 * each.micro_batches * each.stages for each in found.pipelines) * found.vpp
    if operations > MAX_OPERATIONS:
        raise InputError(
            f"{found.summary()}: its step has {operations:,} operations, a trace holds "
            f"{MAX_OPERATIONS:,} at most. Try a smaller global batch: the middle of a step only "
            "repeats itself."
        )
    step = StepTrace(**msgspec.structs.asdict(step_timeline(found)))
    if out is not None:
        step.save(out)
    return step
