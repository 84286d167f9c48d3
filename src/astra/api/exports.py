"""Launch files for a plan, from an answer, a priced or a bare plan, or a file with any of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from astra.api.saving import out_path
from astra.cost.result import PricedPlan
from astra.errors import InputError, shorten
from astra.files import read_json
from astra.notes import NoteCode
from astra.strategy.plan import Plan
from astra.values import number, whole_number, word

if TYPE_CHECKING:
    from astra.api.sources import PlanSource
    from astra.export.rents import Rents
    from astra.export.verify import FrameworkCheck

LAUNCHERS = ("torchrun", "slurm", "skypilot", "kubernetes")
FEW = 0.5  # of the GPUs that were given: a plan on fewer gets a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedJob:
    """What was written, and what to know about it."""

    out: str | None  # None: nothing was written
    files: tuple[str, ...]  # sorted
    plans: tuple[Plan, ...]
    expected: tuple[str, ...]  # what the first of them should take
    not_expressed: tuple[str, ...]  # settings that the framework has no words for
    verified: tuple[str, ...]  # what the framework's own code says, where it was asked
    next_steps: tuple[str, ...]  # how to start it
    notes: tuple[str, ...] = ()  # few GPUs in use; targets of packages that cannot be used
    texts: Mapping[str, str] = field(default_factory=dict)  # of the files, by name

    def __repr__(self) -> str:
        what = f"{len(self.plans)} plans" if len(self.plans) > 1 else self.plans[0].summary()
        return f"ExportedJob({len(self.files)} files in {self.out or 'texts'}: {what})"


def export(
    plan: "PlanSource",
    target: str,
    out: str | Path | None,
    *,
    rank: int | str = 1,
    launcher: str = "torchrun",
    verify: bool = False,
    train_iters: int = 100,
    learning_rate: float = 1e-4,
) -> ExportedJob:
    """Launch files for a plan in the folder `out`: all settings, the environment, a script. With
    None nothing is written; the result has their `texts`.

    >>> import astra, tempfile
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     job = astra.export(priced, "megatron", folder)
    >>> "launch.sh" in job.files
    True

    `plan` is an answer of `plan`, a priced or a bare plan, a file with any of them or its JSON as a
    dict; `rank` says which plan of an answer, or "all". `target` is megatron, bridge, flagscale,
    torchtitan, accelerate, deepspeed or one of an installed package (docs/extend.md), `launcher`
    torchrun, slurm, skypilot or kubernetes. `verify` asks the framework's own code, where it is
    installed; what it refuses is an InputError, and nothing is written then.
    """
    from astra.cost.price import price_plan
    from astra.export import targets, tuner
    from astra.export.folder import write_folder

    targets.target_named(target)
    word(launcher, "--launcher", LAUNCHERS)
    folder = None if out is None else out_path(out, "--out", inside="plan.json")
    options: dict[str, Any] = {
        "train_iters": whole_number(train_iters, "--train-iters", most=10**9),
        "learning_rate": number(learning_rate, "--lr", least=1e-12, most=100.0),
    }
    place = None if rank == "all" else whole_number(rank, "--rank")
    found = _plans_and_rents(plan, place)
    files: dict[str, str] = {}
    checks: list[FrameworkCheck] = []
    for row, (each, rents) in enumerate(found, 1):
        prefix = f"rank-{row:03d}/" if place is None else ""
        made = targets.export_files(each, target, launcher=launcher, rents=rents, **options)
        if verify:
            checks += _framework_checks(each, target, made, prefix)
        files |= {f"{prefix}{name}": text for name, text in made.items()}
    plans = [each for each, _ in found]
    if place is None and target == "flagscale":
        files |= tuner.files(plans)
    if folder is not None:
        write_folder(folder, files)
    script = next(name for name in sorted(files) if name.endswith("launch.sh"))
    script = f"{out or '.'}/{script}"
    return ExportedJob(
        out=None if out is None else str(out),
        files=tuple(sorted(files)),
        plans=tuple(plans),
        expected=tuple(targets.expectations(price_plan(plans[0]))),
        not_expressed=tuple(targets.unsupported(plans[0], target)),
        verified=tuple(check.line() for check in checks),
        next_steps=tuple(targets.next_steps(plans[0], target, script, launcher)),
        notes=(*_few_gpus(plan, plans), *targets.target_notes()),
        texts=files,
    )


def _few_gpus(source: "PlanSource", plans: Sequence[Plan]) -> list[str]:
    """A warning where a plan leaves most of the GPUs alone that were given."""
    from astra.report.document import AnswerDocument

    document: Any = source
    if isinstance(source, AnswerDocument):
        document = {"request": msgspec.to_builtins(source.request)}
    elif isinstance(source, str | Path):
        document = read_json(Path(source))
    request = document.get("request") if isinstance(document, Mapping) else None
    request = request if isinstance(request, dict) else {}
    notes = [each.get("code") for each in request.get("note_codes", ())]
    if not request.get("gpus") or NoteCode.COUNT_ASSUMED in notes:
        return []
    there, used = sum(request["gpus"].values()), min(sum(each.gpus.values()) for each in plans)
    if used >= FEW * there:
        return []
    more = " --order throughput finds the fastest." if request.get("money") else ""
    return [f"the plan runs on {used} of the {there} GPUs that were given.{more}"]


def _plans_and_rents(source: "PlanSource", rank: int | None) -> "list[tuple[Plan, Rents]]":
    """The plan of a rank, or all of them, each with the machines that were rented for it."""
    from astra.export.rents import rents_of_document
    from astra.report.document import AnswerDocument
    from astra.strategy.plan_file import plans_of_document

    if isinstance(source, str | Path | Mapping):
        if isinstance(source, Mapping):
            document, where = source, "plan"
        else:
            document, where = read_json(Path(source)), str(source)
        plans = plans_of_document(document, where, rank)
        if not plans:
            raise InputError(f"{where}: the search found no plan; there is nothing to export.")
        return list(zip(plans, rents_of_document(document, where, rank), strict=True))
    if isinstance(source, Plan):
        return [(source, ())]
    if isinstance(source, PricedPlan):
        priced = [source]
    elif isinstance(source, AnswerDocument):
        priced = _of_rank(source.plans, rank)
    else:
        raise InputError(f"plan = {shorten(source)}: an answer, a plan or a file is needed.")
    return [(each.plan, each.money.rents if each.money else ()) for each in priced]


def _of_rank(plans: tuple[PricedPlan, ...], rank: int | None) -> list[PricedPlan]:
    if not plans:
        raise InputError("answer: the search found no plan; there is nothing to export.")
    if rank is None:
        return list(plans)
    if rank > len(plans):
        count = "1 plan" if len(plans) == 1 else f"{len(plans)} plans"
        raise InputError(f"answer: there is no rank {rank}; it holds {count}.")
    return [plans[rank - 1]]


def _framework_checks(
    plan: Plan, target: str, made: dict[str, str], prefix: str
) -> "list[FrameworkCheck]":
    """What the framework says; a refusal ends it all before anything is written."""
    from astra.export.megatron import architecture
    from astra.export.verify import verify

    found = verify(made, target, sum(plan.gpus.values()), architecture(plan))
    for check in found:
        if check.outcome == "refused":
            raise InputError(f"--verify: {prefix}{check.line()}. Nothing was written.")
    return found
