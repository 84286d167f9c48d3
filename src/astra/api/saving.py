"""Where results go: JSON that every function and command reads back."""

from pathlib import Path
from typing import Any

import msgspec

from astra.api.words import in_python_words
from astra.errors import InputError, shorten
from astra.values import of_kind


def out_path(said: str | Path, option: str, inside: str = "") -> Path:
    """Where something is written: refused before the work where that, or `inside` it, cannot be."""
    from astra.export.folder import check_writable

    text = str(of_kind(said, option, (str, Path), "a path"))
    odd = any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in text)
    if odd or not text:  # bytes that are no UTF-8 cannot be printed
        what, example = ("folder", "job") if inside else ("file", "result.json")
        raise InputError(f"{option} {shorten(text)}: not the name of a {what}. Try {example}.")
    check_writable(Path(text) / inside)
    return Path(text)


def save_json(document: Any, path: str | Path) -> Path:
    """A result as JSON, whole or not at all."""
    from astra.export.folder import write_folder

    place = out_path(path, "path")
    text = msgspec.json.format(msgspec.json.encode(document), indent=1).decode()
    write_folder(place.parent, {place.name: text})
    return place


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A result that can be kept."""

    @in_python_words
    def save(self, path: str | Path) -> Path:
        """As JSON, which `predict_plan`, `explain`, `export` and the commands read."""
        return save_json(self, path)

    def to_dict(self) -> dict[str, Any]:
        """As the JSON has it."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain
