"""Predictions against measured runs, and stacks fitted on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from astra.errors import InputError, did_you_mean, shorten
from astra.values import file_path, of_kind, whole_number

if TYPE_CHECKING:
    from astra.fit.calibrate import Calibration
    from astra.fit.runs import Runs, Skipped
    from astra.fit.validate import Validation

RunFiles: TypeAlias = "str | Path | Sequence[str | Path]"


def validate(
    runs: RunFiles,
    *,
    family: str | None = None,
    worst: int = 10,
    say: Callable[[str], None] | None = None,
) -> "Validation":
    r"""Predictions against the measured runs of CSV files: step time, memory, ranking.

    >>> import astra, pathlib, tempfile
    >>> run = {"row_id": "a", "model": "my-gpt", "num_layers": 24, "hidden_size": 2048}
    >>> run |= {"num_heads": 16, "vocab_size": 51200, "seq_len": 2048, "global_batch": 512}
    >>> run |= {"gpu_id": "A100-80GB-SXM", "num_gpus": 32, "measured_step_time_s": 4.8}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "runs.csv")
    ...     _ = file.write_text(",".join(run) + "\n" + ",".join(map(str, run.values())))
    ...     astra.validate(file).runs[0].model
    'my-gpt'

    `family` keeps the runs of one source, `worst` says how many are listed in full, `say` gets
    what is to be known of the files.
    """
    from astra.cost.price import price_plans
    from astra.fit.validate import validate as compare

    shown = whole_number(worst, "--worst", least=0, most=100_000)
    found = _read(runs, say)
    if family is not None:
        found = _of_family(found, family)
    plans = [run.plan for run in found.runs]
    priced = dict(zip(map(id, plans), price_plans(plans), strict=True))
    return compare(
        found.runs, price=lambda plan: priced[id(plan)], skipped=found.skipped, worst=shown
    )


@dataclass(frozen=True, slots=True)
class CalibratedStack:
    """A fitted stack, the file it is kept in, and the rows that could not be used."""

    name: str  # for stack=
    fit: "Calibration"
    skipped: "tuple[Skipped, ...]"
    path: Path

    def __repr__(self) -> str:
        return f"CalibratedStack({self.path}: {self.fit!r})"


def calibrate(
    runs: RunFiles,
    name: str,
    *,
    base: str | None = None,
    force: bool = False,
    say: Callable[[str], None] | None = None,
) -> CalibratedStack:
    """A stack of your own, fitted on three measured runs or more; `stack=name` finds it then.

    >>> import astra
    >>> astra.calibrate("runs.csv", "megatron")
    Traceback (most recent call last):
    ...
    astra.errors.InputError: name = 'megatron': that stack comes with astra. Try name='my-megatron'.

    It starts from `base`, else from the stack that most runs name. `force` replaces a stack of
    that name. It is kept in `~/.config/astra/stacks`.
    """
    from astra.cost.price import steps_s
    from astra.export.folder import write_folder
    from astra.fit.calibrate import calibrate as fit
    from astra.fit.calibrate import most_named_stack
    from astra.fit.runs import Skipped
    from astra.fit.stack_file import stack_text
    from astra.hardware.stack import find_stack

    path = _file_of(name, force)
    found = _read(runs, say)
    where = ", ".join(file.name for file in _files(runs))
    known = find_stack(base or (most_named_stack(found.runs) if found.runs else "megatron"))
    fitted = fit(found.runs, known, name, where, steps_s, found.skipped)
    head = f"{fitted.base} as it runs on one cluster; made by astra calibrate"
    write_folder(path.parent, {path.name: stack_text(fitted.stack, head)})
    skipped = (*found.skipped, *(Skipped(*row) for row in fitted.left_out))
    return CalibratedStack(name, fitted, skipped, path)


def _files(runs: RunFiles) -> list[Path]:
    names = [runs] if isinstance(runs, str | Path) else of_kind(runs, "runs", Sequence, "a file")
    return [file_path(name, "runs") for name in names]


def _read(runs: RunFiles, say: Callable[[str], None] | None) -> "Runs":
    from astra.fit.runs import read_files

    found = read_files(_files(runs))
    if say is not None:
        for text in found.notes:
            say(text)
    return found


def _of_family(found: "Runs", family: str) -> "Runs":
    """The runs of one family; rows that could not be read belong to none."""
    from astra.fit.runs import Runs

    names = sorted({run.family for run in found.runs})
    if family not in names:
        hint = did_you_mean(family, names, f"The families are {', '.join(names[:40])}.")
        raise InputError(f"--family {shorten(family)}: no run has it. {hint}")
    return Runs(tuple(run for run in found.runs if run.family == family), ())


def _file_of(name: str, force: bool) -> Path:
    from astra.export.folder import check_writable
    from astra.hardware.stack import shipped_stacks, user_stack_folder

    plain = of_kind(name, "name", str, "text").replace("-", "").replace("_", "").replace(".", "")
    if not (plain.isascii() and plain.isalnum() and len(name) <= 60):
        raise InputError(
            f"--name {shorten(name)}: letters, digits, - _ and . make a name, as in my-cluster."
        )
    if name in shipped_stacks():
        raise InputError(f"--name {name}: that stack comes with astra. Try --name my-{name}.")
    path = user_stack_folder() / f"{name}.toml"
    check_writable(path)
    if path.exists() and not force:
        raise InputError(f"{path}: there is a stack {name} already. --force replaces it.")
    return path
