"""Predictions against measured runs: row by row, by family, in memory and in ranking."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING

import msgspec

from astra.errors import InputError
from astra.fit.runs import Run, Skipped
from astra.fit.score import error_fraction, is_timed, kendall_tau, regret_fraction, score
from astra.strategy.plan import Plan

if TYPE_CHECKING:
    from astra.cost.result import PricedPlan, StageMemory

Price = Callable[[Plan], "PricedPlan"]

SWEEP_ROWS = 5


class ValidationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run: measured and predicted. What is not known is None."""

    row_id: str
    family: str
    measured_step_s: float | None
    predicted_step_s: float | None
    error_fraction: float | None
    measured_memory_bytes: float | None
    memory_kind: str
    predicted_memory_bytes: float | None
    memory_error_fraction: float | None
    fits: bool | None
    assumed: tuple[str, ...]
    model: str
    summary: str
    moe: bool
    stack: str


class WorstRow(msgspec.Struct, frozen=True, kw_only=True):
    row_id: str
    error_fraction: float


class RunFamily(msgspec.Struct, frozen=True, kw_only=True):
    """One source of runs."""

    runs: int
    mean_abs_error_fraction: float
    median_error_fraction: float
    worst: WorstRow


class MemoryErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Mean over rows that measured allocated memory; verdicts over all rows."""

    runs: int
    mean_abs_error_fraction: float | None
    called_unfit_but_ran: int
    called_fit_but_failed: int


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Layouts of one model on one cluster: do we rank them as the measurement does?"""

    name: str
    runs: int
    regret_fraction: float
    kendall_tau: float | None


class SkippedRow(msgspec.Struct, frozen=True, kw_only=True):
    row_id: str
    reason: str


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """The whole comparison, in the words of the JSON."""

    runs: tuple[ValidationRow, ...]
    skipped: tuple[SkippedRow, ...]
    families: dict[str, RunFamily]
    score: float | None
    score_dense: float | None
    score_moe: float | None
    memory: MemoryErrors
    sweeps: tuple[Sweep, ...]
    worst: tuple[ValidationRow, ...] = ()

    def __repr__(self) -> str:
        score = "no score" if self.score is None else f"score {self.score:.1%}"
        return f"Validation({len(self.runs)} runs, {len(self.skipped)} skipped, {score})"


def validate(
    runs: Sequence[Run],
    *,
    price: Price,
    skipped: Iterable[Skipped] = (),
    family_factors: Mapping[str, float] | None = None,
    worst: int = 10,
) -> Validation:
    """Prices every run's plan and compares. A factor multiplies the steps of its family."""
    rows: list[ValidationRow] = []
    kept: list[Run] = []
    left_out = [SkippedRow(row_id=row.row_id, reason=row.reason) for row in skipped]
    for run in runs:
        try:
            priced = price(run.plan)
        except InputError as error:
            left_out.append(SkippedRow(row_id=run.row_id, reason=str(error).rstrip(".")))
            continue
        kept.append(run)
        rows.append(_row(run, priced, (family_factors or {}).get(run.family, 1.0)))
    return summarize(kept, rows, left_out, worst)


def summarize(
    runs: Sequence[Run], rows: Sequence[ValidationRow], skipped: Sequence[SkippedRow], worst: int
) -> Validation:
    """What rows that are already compared add up to."""
    timed = [row for row in rows if row.error_fraction is not None and is_timed(row.family)]
    by_error = sorted(timed, key=lambda row: -abs(math.log1p(row.error_fraction or 0.0)))
    return Validation(
        runs=tuple(rows),
        skipped=tuple(skipped),
        families=_families(timed),
        score=score(pairs_of(timed)),
        score_dense=score(pairs_of(row for row in timed if not row.moe)),
        score_moe=score(pairs_of(row for row in timed if row.moe)),
        memory=_memory(runs, rows),
        sweeps=_sweeps(runs, rows),
        worst=tuple(by_error[:worst]),
    )


def pairs_of(rows: Iterable[ValidationRow]) -> dict[str, list[tuple[float, float]]]:
    """(predicted, measured) step times by family, where both are known."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.predicted_step_s and row.measured_step_s:
            pair = (row.predicted_step_s, row.measured_step_s)
            found.setdefault(row.family, []).append(pair)
    return found


def _row(run: Run, priced: "PricedPlan", factor: float) -> ValidationRow:
    step_s = None if priced.step_s is None else priced.step_s * factor
    memory = predicted_memory_bytes(run, priced)
    return ValidationRow(
        row_id=run.row_id,
        family=run.family,
        measured_step_s=run.measured_step_s,
        predicted_step_s=step_s,
        error_fraction=_error(step_s, run.measured_step_s),
        measured_memory_bytes=run.measured_memory_bytes,
        memory_kind=run.memory_kind,
        predicted_memory_bytes=memory,
        memory_error_fraction=_error(memory, run.measured_memory_bytes),
        fits=priced.memory.fits,
        assumed=run.assumed,
        model=run.model_name,
        summary=priced.summary,
        moe=run.plan.model.moe is not None,
        stack=run.stack,
    )


def _error(predicted: float | None, measured: float | None) -> float | None:
    return error_fraction(predicted, measured) if predicted and measured else None


def predicted_memory_bytes(run: Run, priced: "PricedPlan") -> float | None:
    """What the measurement should have read: on the worst stage, or on the one that logs."""
    memory = priced.memory
    stages = {(stage.pipeline, stage.stage): stage for stage in memory.stages}
    if run.memory_kind == "allocated":
        if not run.memory_at_last_stage:
            return memory.allocated_bytes
        return allocated_bytes(stages[max(stages)])
    if run.memory_kind == "device":
        return memory.reserved_bytes
    if run.memory_kind != "reserved":
        return None
    worst = stages[memory.worst_pipeline, memory.worst_stage]
    return memory.reserved_bytes - worst.runtime_bytes  # by the allocator alone


def allocated_bytes(stage: "StageMemory") -> float | None:
    """All causes of one stage but what lies outside of the allocator."""
    parts = [
        stage.weights_bytes,
        stage.gradients_bytes,
        stage.optimizer_bytes,
        stage.activations_bytes,
        stage.logits_bytes,
        stage.buffers_bytes,
    ]
    return None if any(part is None for part in parts) else sum(parts)


def _families(timed: Sequence[ValidationRow]) -> dict[str, RunFamily]:
    rows_of: dict[str, list[ValidationRow]] = {}
    for row in timed:
        rows_of.setdefault(row.family, []).append(row)
    found = {}
    for name, rows in sorted(rows_of.items()):
        errors = [row.error_fraction or 0.0 for row in rows]
        _, at = max((abs(math.log1p(error)), place) for place, error in enumerate(errors))
        found[name] = RunFamily(
            runs=len(rows),
            mean_abs_error_fraction=fmean(map(abs, errors)),
            median_error_fraction=median(errors),
            worst=WorstRow(row_id=rows[at].row_id, error_fraction=errors[at]),
        )
    return found


def _memory(runs: Sequence[Run], rows: Sequence[ValidationRow]) -> MemoryErrors:
    errors = [
        abs(row.memory_error_fraction)
        for row in rows
        if row.memory_kind == "allocated" and row.memory_error_fraction is not None
    ]
    verdicts = [(run, row.fits) for run, row in zip(runs, rows, strict=True)]
    return MemoryErrors(
        runs=len(errors),
        mean_abs_error_fraction=fmean(errors) if errors else None,
        called_unfit_but_ran=sum(run.ran and fits is False for run, fits in verdicts),
        called_fit_but_failed=sum(run.failed_for_memory and fits is True for run, fits in verdicts),
    )


def _sweeps(runs: Sequence[Run], rows: Sequence[ValidationRow]) -> tuple[Sweep, ...]:
    """Five or more rows that differ in nothing but the layout."""
    groups: dict[tuple[str, ...], list[ValidationRow]] = {}
    for run, row in zip(runs, rows, strict=True):
        if row.error_fraction is not None and is_timed(row.family):
            groups.setdefault(sweep_key(run), []).append(row)
    found = []
    for key, members in groups.items():
        if len(members) >= SWEEP_ROWS:
            predicted = [row.predicted_step_s or 0.0 for row in members]
            measured = [row.measured_step_s or 0.0 for row in members]
            sweep = Sweep(
                name=" ".join(key),
                runs=len(members),
                regret_fraction=regret_fraction(predicted, measured),
                kendall_tau=kendall_tau(predicted, measured),
            )
            found.append(sweep)
    return tuple(found)


def sweep_key(run: Run) -> tuple[str, ...]:
    """What the rows of one sweep have in common."""
    plan = run.plan
    gpus = "+".join(f"{count}x{name}" for name, count in sorted(plan.gpus.items()))
    batch = f"batch {plan.global_batch} seq {plan.seq_len}"
    return (run.family, run.model_name, gpus, batch, plan.precision, run.release)
