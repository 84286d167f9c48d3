"""Export targets of installed packages: the entry points of the group `astra.targets`.

    [project.entry-points."astra.targets"]
    our-trainer = "our_package.astra_target:TARGET"

One that cannot be used is an error where it is asked for, and a note beside any other export.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from importlib.metadata import EntryPoint, entry_points
from traceback import extract_tb
from typing import Any, get_args

from astra.errors import InputError, shorten
from astra.export.target import Target
from astra.strategy.plan import Plan, Runtime

GROUP = "astra.targets"


def installed_names() -> list[str]:
    """Words for `--to`; nothing is imported."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def installed_targets(built_in: Iterable[str]) -> tuple[dict[str, Target], dict[str, str]]:
    """Those that can be used, and why the others cannot."""
    points: dict[str, list[EntryPoint]] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        points.setdefault(point.name, []).append(point)
    found: dict[str, Target] = {}
    broken: dict[str, str] = {}
    for name, (point, *others) in points.items():
        if name in built_in:
            broken[name] = f"{_where(point)}: {name} is a target of Astra's own. Try another name."
        elif others:
            both = " and ".join(_where(each) for each in (point, *others))
            broken[name] = f"{both} both name a target {name}. Remove one of the packages."
        else:
            try:
                found[name] = _loaded(point)
            except InputError as error:
                broken[name] = str(error)
    return found, broken


def _where(point: EntryPoint) -> str:
    package = point.dist.name if point.dist else "an installed package"
    return f"{package} ({point.name} = {point.value})"


def _loaded(point: EntryPoint) -> Target:
    try:
        found = point.load()
    except Exception as error:  # whatever a package of others does when it is imported
        what = f"{type(error).__name__}: {shorten(error, 200)}"
        raise InputError(f"{_where(point)}: cannot be imported: {what}.") from error
    if not isinstance(found, Target):
        raise InputError(f"{_where(point)}: an astra.Target is needed, not {shorten(found)}.")
    unknown = {found.runtime, *found.takes} - set(get_args(Runtime))
    if unknown:
        raise InputError(
            f"{_where(point)}: runtime {shorten(unknown.pop())} is not known. "
            f"Use one of {', '.join(get_args(Runtime))}."
        )
    for part in (found.files, found.unsupported, found.refusals):
        if not callable(part):
            raise InputError(f"{_where(point)}: {shorten(part)} is not a function.")
    where = f"{found.name}, of {_where(point)}"
    return replace(
        found,
        files=_watched(found.files, f"{where}: its files"),
        unsupported=_of_texts(found.unsupported, f"{where}: its unsupported"),
        refusals=_of_texts(found.refusals, f"{where}: its refusals"),
    )


def _watched(function: Callable[..., Any], where: str) -> Callable[..., Any]:
    """The same function; whatever goes wrong inside is a mistake of the package, and says so."""

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except InputError:
            raise
        except Exception as error:
            last = extract_tb(error.__traceback__)[-1]
            raise InputError(
                f"{where} failed: {type(error).__name__}: {shorten(error, 200)} "
                f"({last.filename}, line {last.lineno}). That is to be mended in the package."
            ) from error

    return call


def _of_texts(function: Callable[[Plan], Any], where: str) -> Callable[[Plan], list[str]]:
    """The same function, whose result is a list of texts or an error."""
    watched = _watched(function, where)

    @wraps(function)
    def call(plan: Plan) -> list[str]:
        said = watched(plan)
        if not isinstance(said, list | tuple) or not all(isinstance(each, str) for each in said):
            raise InputError(f"{where} are {shorten(said)}; a list of texts is needed.")
        return list(said)

    return call
