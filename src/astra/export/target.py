"""What an export target is: a framework that plans are written for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from astra.errors import InputError, shorten
from astra.export.torchrun import Program, launch_script
from astra.strategy.plan import Plan, Runtime

OURS = {"plan.json", "README.md", "expected.json", "check.py"}  # written beside any target's files
TRAIN_SCRIPT = '"${TRAIN_SCRIPT:?your training script}" "$@"'


def _nothing(_: Plan) -> list[str]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A framework that plans are written for. The first three must be given.

    `files(plan, notes, train_iters=..., learning_rate=...)` gives the names and texts of its files;
    `notes` are comment lines for a script, more keywords may come. Where no `launch.sh` is among
    them, one is made that starts `start` by torchrun on every node; `$here` is its folder.

    >>> import astra
    >>> target = astra.Target(
    ...     name="our trainer",
    ...     runtime="fsdp",
    ...     files=lambda plan, notes, **options: {"trainer.json": "{}"},
    ... )
    >>> target.takes
    ('fsdp',)
    """

    name: str  # what people call it
    runtime: Runtime  # whose rules it obeys
    files: Callable[..., dict[str, str]]
    takes: tuple[Runtime, ...] = ()  # runtimes of the plans that can be its; by default its own
    unsupported: Callable[[Plan], list[str]] = _nothing  # what the files leave out, in words
    refusals: Callable[[Plan], list[str]] = _nothing  # parts it has no words for
    start: str = TRAIN_SCRIPT  # what torchrun starts, in the words of a shell
    set_up: tuple[str, ...] = ("TRAIN_SCRIPT=train.py",)  # what to set before the script
    first_try: str = ""  # what follows the script the first time
    logs: str = "It is your script that prints the seconds of each."

    def __post_init__(self) -> None:
        if not self.takes:
            object.__setattr__(self, "takes", (self.runtime,))

    def launch_files(
        self, plan: Plan, notes: list[str], *, train_iters: int, learning_rate: float
    ) -> dict[str, str]:
        """Its files, with a script that starts a node."""
        made = self.files(plan, notes, train_iters=train_iters, learning_rate=learning_rate)
        self._check(made)
        if "launch.sh" in made:
            return made
        program = Program(self.start, usage=(), reads_arguments="args.txt" in made)
        return {"env.txt": "", **made, "launch.sh": launch_script(plan, program, notes)}

    def _check(self, made: object) -> None:
        """Texts by their names in the folder, none of which is ours."""
        if not isinstance(made, dict):
            raise InputError(f"{self.name}: its files are {shorten(made)}; a dict is needed.")
        for name, text in made.items():
            path = PurePosixPath(name) if isinstance(name, str) and name else None
            if path is None or path.is_absolute() or ".." in path.parts:
                raise InputError(
                    f"{self.name}: {shorten(name)} is no name of a file in its folder."
                )
            if not isinstance(text, str):
                raise InputError(f"{self.name}: {name}: its text is {shorten(text)}; give a str.")
            if name in OURS:
                raise InputError(f"{self.name}: {name} is written by Astra. Try another name.")
