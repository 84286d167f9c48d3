"""Reading what people write: TOML and JSON into typed values, with errors that name the place."""

import json
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from astra.errors import InputError, either, near, shorten

T = TypeVar("T")

MOST_BYTES = 64 << 20  # a plan file of any size we write is far below this
_open_folders: tuple[Path, ...] = ()  # where not empty, files elsewhere are not read


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a fact comes from. Every data file has one."""

    kind: str  # vendor | published | measured | fitted | guessed | user
    where: str
    read_on: str | None = None
    certainty: str | None = None  # high | medium | low
    checked_against: tuple[str, ...] = ()
    note: str | None = None


USER = Source(kind="user", where="given by the user")


def read_only_below(*folders: Path) -> None:
    """From now on, in this process, files that lie elsewhere are refused, whoever names them."""
    global _open_folders
    _open_folders = folders


def read_text(path: Path) -> str:
    """The text of a file a user named."""
    below = ".." not in path.parts and any(map(path.is_relative_to, _open_folders))
    if _open_folders and not below:
        raise InputError(f"{shorten(str(path))}: no file is read here. Give what is in it.")
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{path}: is a folder, not a file.")
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            raise InputError(f"{path}: is a device; reading it might never end.")
        if status.st_size > MOST_BYTES:
            raise InputError(f"{path}: larger than {MOST_BYTES >> 20} MiB. Is this the right file?")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}).") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    except ValueError:
        raise InputError(f"{shorten(str(path))}: not the name of a file.") from None


def read_json(path: Path) -> Any:
    """A JSON document; the error names line and column."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise InputError(f"{where}: the file is empty; JSON was expected.") from None
        early = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        cut = " The file ends too early: was it cut off?" if early else ""
        raise InputError(
            f"{where}: line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}.{cut}"
        ) from None
    except RecursionError:
        raise InputError(f"{where}: JSON nested too deep to be a configuration.") from None
    except ValueError as error:  # an integer of thousands of digits
        raise InputError(f"{where}: not valid JSON: {shorten(error, 120)}.") from None


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML document; the error names line and column."""
    return parse_toml(read_text(path), str(path))


def parse_toml(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: not valid TOML: {error}.") from None
    except RecursionError:
        raise InputError(f"{where}: TOML nested too deep to be a configuration.") from None
    except ValueError as error:
        raise InputError(f"{where}: not valid TOML: {shorten(error, 120)}.") from None


def convert(raw: object, into: type[T], where: str) -> T:
    """`raw` as the typed value `into`; a wrong type or unknown field is an error with its path."""
    try:
        return msgspec.convert(raw, into)
    except msgspec.ValidationError as error:
        raise InputError(_validation_message(raw, into, where, str(error))) from None
    except RecursionError:
        raise InputError(f"{where}: nested too deep to be a configuration.") from None
    except UnicodeEncodeError:
        raise InputError(f"{where}: holds text that is not Unicode (a lone surrogate).") from None


def _validation_message(raw: object, into: type, where: str, message: str) -> str:
    """msgspec's message with our path notation, the offending value and near names.

    >>> _validation_message({"a": "x"}, object, "f", "Expected `int`, got `str` - at `$.a`")
    "f: a = 'x': expected `int`, got `str`."
    """
    what, _, path = message.partition(" - at `")
    path = path.rstrip("`").removeprefix("$").removeprefix(".")
    unknown = re.search(r"unknown field `(.*)`", what)
    if unknown:
        place = f"{path}.{unknown[1]}" if path else unknown[1]
        hint = field_hint(unknown[1], into, path)
        return f"{where}: {place}: there is no such field. {hint}".rstrip()
    missing = re.search(r"missing required field `(.*)`", what)
    if missing:
        place = f"{path}.{missing[1]}" if path else missing[1]
        return f"{where}: {place} is missing."
    value = _at(raw, path)
    shown = f"{path} = {shorten(value)}: " if path else ""
    words = _words_at(into, path) if what.startswith("Invalid enum value") else []
    if words:
        return f"{where}: {shown}not known. Use {either(words)}."
    return f"{where}: {shown}{what[:1].lower()}{what[1:]}."


def _words_at(into: Any, path: str) -> list[str]:
    """The words that the type at `a.b[2]` allows, where it is a choice of words."""
    kinds: list[Any] = [into]
    for step in re.findall(r"[^.\[\]]+", path):
        kinds = [inner for kind in kinds for inner in _inside(kind, step)]
    return list(dict.fromkeys(str(word) for kind in kinds for word in _choices(kind)))


def _inside(kind: Any, step: str) -> list[Any]:
    """The types of a struct's field, or of what a list holds."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [field.type for field in msgspec.structs.fields(kind) if field.encode_name == step]
    inner = [part for part in get_args(kind) if part is not Ellipsis]
    if step == "..." or step.isdigit():
        return inner
    return [found for part in inner for found in _inside(part, step)]


def _choices(kind: Any) -> list[object]:
    """What a Literal lists, also inside a union or an annotation."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [word for part in get_args(kind) for word in _choices(part)]


def field_hint(name: str, into: type, table: str = "") -> str:
    """Fields that look like `name`, those of other tables with their own: `node.gpus`."""
    table = re.sub(r"\[[^]]*\]", "", table)
    tables = _field_tables(into)
    found = []
    for field in near(name, tables):
        home = table if table in tables[field] else min(tables[field], key=len)
        found.append(field if home in (table, "") else f"{home}.{field}")
    return f"Did you mean {either(found)}?" if found else ""


def _field_tables(into: type) -> dict[str, list[str]]:
    """Every field of a struct and of the structs inside it, and the tables that have it."""
    tables: dict[str, list[str]] = {}
    seen: set[type] = set()
    todo: list[tuple[Any, str]] = [(into, "")]
    while todo:
        kind, table = todo.pop(0)
        todo.extend((part, table) for part in getattr(kind, "__args__", ()))
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
            seen.add(kind)
            for field in msgspec.structs.fields(kind):
                tables.setdefault(field.encode_name, []).append(table)
                todo.append((field.type, f"{table}.{field.encode_name}".lstrip(".")))
    return tables


def _at(raw: object, path: str) -> object:
    """The value at `a.b[2]`; None where the path does not lead anywhere."""
    for step in re.findall(r"[^.\[\]]+", path):
        if isinstance(raw, dict):
            raw = raw.get(step)
        elif isinstance(raw, list | tuple) and step.isdigit() and int(step) < len(raw):
            raw = raw[int(step)]
        else:
            return None
    return raw
