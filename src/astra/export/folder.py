"""The folder of launch files: written whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from astra.errors import InputError


def write_folder(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write these files, all or none of them; files of other names stay.

    Every file is complete before the first takes its place. A name that ends in `.sh` becomes
    executable.
    """
    made: list[Path] = []
    drafts: dict[Path, Path] = {}
    try:
        for name, text in files.items():
            path = folder / name
            _make_folders(path.parent, made)
            if path.is_dir():
                raise InputError(f"{path}: is a folder; name a file.")
            drafts[path] = _draft(path, text)
        for path, draft in drafts.items():
            draft.replace(path)
    except BaseException as error:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
        for parent in reversed(made):
            with contextlib.suppress(OSError):  # holds something by now
                parent.rmdir()
        if isinstance(error, OSError):
            where = error.filename or folder
            raise InputError(f"{where}: cannot be written: {error.strerror}.") from None
        raise


def _make_folders(folder: Path, made: list[Path]) -> None:
    """Make a folder and those above it; `made` gets what was not there before."""
    if folder.is_dir():
        return
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{folder}: is a file where a folder belongs.")
    if folder.parent != folder:
        _make_folders(folder.parent, made)
    folder.mkdir(exist_ok=True)
    made.append(folder)


def _draft(path: Path, text: str | bytes) -> Path:
    """The finished file under a name of its own, beside the place it will take."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        draft.chmod(0o755 if path.suffix == ".sh" else 0o644)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft
