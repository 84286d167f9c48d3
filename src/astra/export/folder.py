"""The folder of launch files: written whole or not at all."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from astra.errors import InputError


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write these files; each appears complete or not at all. Other files there stay.

    A name that ends in `.sh` becomes executable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, text)
    except FileExistsError:
        raise InputError(f"{folder}: is a file; give a folder for the launch files.") from None
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}.") from None


def _write(path: Path, text: str) -> None:
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mode = 0o755 if path.suffix == ".sh" else 0o644
        Path(draft).chmod(mode)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
