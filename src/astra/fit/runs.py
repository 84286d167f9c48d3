"""Measured runs out of CSV files: a plan and its figures each, or the reason why not."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from astra.errors import InputError, shorten
from astra.files import read_text
from astra.fit.csv_row import MAX_CELL_CHARACTERS, CsvRow
from astra.fit.framework_defaults import fitted_stack, release_of
from astra.fit.header import COLUMNS, check_header, delimiter_of, translated_header
from astra.fit.lightest_recompute import is_recompute_open, lightest_that_fits
from astra.fit.rates import step_of
from astra.fit.row_mixed import mixed_plan_of
from astra.fit.row_plan import broken_notes, plan_of
from astra.hardware.stack import find_stack, stack_names
from astra.strategy.plan import Plan

MAX_ROWS = 200_000
GIB = 2**30
KINDS = ("allocated", "reserved", "device")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run as a plan, and what was measured."""

    row_id: str
    family: str
    plan: Plan
    stack: str  # the row's own; the plan names the nearest one that is fitted
    measured_step_s: float | None
    measured_memory_bytes: float | None
    memory_kind: str  # allocated, reserved, device or unknown
    memory_at_last_stage: bool  # of the rank that logs, else the fullest GPU's
    assumed: tuple[str, ...]
    release: str
    release_name: str | None  # as a stack names it
    model_name: str  # as the row spells it
    failed_for_memory: bool
    ran: bool  # to its end, so that its plan is known to fit


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that could not be read, and why."""

    row_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Runs:
    """What a file holds."""

    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...] = ()  # on what of the file is not read


def read_files(paths: Iterable[Path]) -> Runs:
    """All rows of several files, in order; one that is there twice, word for word, once."""
    tables = [read_runs(path) for path in paths]
    skipped = [row for table in tables for row in table.skipped]
    runs: list[Run] = []
    known: dict[str, list[Run]] = {}  # by row id
    for run in (run for table in tables for run in table.runs):
        alike = known.setdefault(run.row_id, [])
        if run in alike:
            skipped.append(Skipped(run.row_id, "the same run is there already"))
        else:
            alike.append(run)
            runs.append(run)
    notes = tuple(note for table in tables for note in table.notes)
    return Runs(tuple(runs), tuple(skipped), notes)


def read_runs(path: Path) -> Runs:
    """The runs of one CSV file with the columns of a table of runs, of one or of mixed types."""
    return parse_runs(read_text(path), str(path))


def parse_runs(text: str, where: str) -> Runs:
    runs: list[Run] = []
    skipped: list[Skipped] = []
    rows, notes = _rows(text, where)
    for number, row in enumerate(rows, start=1):
        row_id = (row.get("row_id") or "").strip()[:100] or f"row {number}"
        try:
            runs.append(_run(row, row_id))
        except InputError as error:
            skipped.append(Skipped(row_id, str(error).rstrip(".")))
    return Runs(tuple(runs), tuple(skipped), notes)


def _unread(names: list[str], where: str) -> tuple[str, ...]:
    if not names:
        return ()
    several = len(names) > 1
    said = f"{', '.join(shorten(name) for name in names[:8])}{' ...' if len(names) > 8 else ''}"
    return (f"{where}: the column{'s' * several} {said} {'are' if several else 'is'} not read.",)


def _rows(text: str, where: str) -> tuple[list[dict[str, str]], tuple[str, ...]]:
    """The rows by column name, and notes on columns that are read by another name or not at all;
    an InputError where this is no table of runs.
    """
    if "\0" in text:
        raise InputError(f"{where}: holds zero bytes; a CSV file is text.")
    text = text.removeprefix("\ufeff")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(text))
    try:
        written = [name.strip() for name in next(reader, [])]
        header, told = translated_header(written)
        check_header(header, written, where)
        rows: list[dict[str, str]] = []
        for csv_row in reader:
            if len(rows) >= MAX_ROWS:
                raise InputError(f"{where}: more than {MAX_ROWS:,} rows. Is this the right file?")
            if csv_row:
                rows.append(dict(zip(header, csv_row, strict=False)))
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}: not CSV: {error}.") from None
    notes = (f"{where}: {'; '.join(told)}.",) if told else ()
    return rows, (*notes, *_unread([n for n in header if n and n not in COLUMNS], where))


def _run(row: dict[str, str], row_id: str) -> Run:
    """One row; an InputError says what is wrong with it."""
    for name, cell in row.items():
        if len(cell or "") > MAX_CELL_CHARACTERS:
            raise InputError(f"{shorten(name)}: a cell of {len(cell):,} characters")
    csv_row = CsvRow(row)
    mixed = "pipelines" in row
    plan, assumed = mixed_plan_of(csv_row) if mixed else plan_of(csv_row)
    wanted = plan.stack
    stack, release = fitted_stack(wanted, stack_names()), release_of(csv_row)
    if stack != wanted:
        assumed.append(f"stack {wanted} is not fitted: priced as {stack}")
    known = release is not None and release in find_stack(stack).releases
    plan = replace(plan, stack=f"{stack}@{release}" if known else stack)
    step_s, derived = step_of(csv_row)
    assumed += [derived] if derived else []
    memory_gib = csv_row.positive("measured_peak_memory_GiB")
    failed = csv_row.text("completeness") == "X"
    if step_s is None and memory_gib is None and not failed:
        raise InputError("neither a step time nor a memory peak was measured")
    out_of_memory = step_s is None and "OOM" in csv_row.text("notes")
    ran = not failed and not out_of_memory
    if ran and not mixed and is_recompute_open(csv_row):
        plan, said = lightest_that_fits(plan)
        assumed += [said] if said else []
    return Run(
        row_id=row_id,
        family=_family(csv_row, row_id, mixed),
        plan=plan,
        stack=wanted,
        measured_step_s=step_s,
        measured_memory_bytes=None if memory_gib is None else memory_gib * GIB,
        memory_kind=_kind(csv_row, memory_gib, mixed),
        memory_at_last_stage="of the logging rank" in csv_row.text("notes"),
        assumed=tuple(assumed + broken_notes(plan)),
        release=csv_row.text("framework_version") or csv_row.text("source_date"),
        release_name=release,
        model_name=csv_row.text("model"),
        failed_for_memory=failed,
        ran=ran,
    )


def _family(csv_row: CsvRow, row_id: str, mixed: bool) -> str:
    """The row's family; mixed runs have none, so what their row ids begin with."""
    given = csv_row.text("source_family")
    if given:
        return given[:100]
    return row_id.rpartition("-")[0] or row_id if mixed else "unnamed"


def _kind(csv_row: CsvRow, memory_gib: float | None, mixed: bool) -> str:
    """What was read: a mixed run's figure is the total of a GPU, as the driver counts."""
    if memory_gib is None:
        return "unknown"
    said = csv_row.lower_text("memory_kind")
    if not said and mixed:
        return "device"
    return said if said in KINDS else "unknown"
