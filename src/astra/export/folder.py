"""The folder of launch files: written whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from astra.errors import InputError


def write_folder(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write these files, all or none of them; files of other names stay.

    Every file is complete before the first takes its place. A name that ends in `.sh` becomes
    executable.
    """
    with _drafts(folder, files) as drafts:
        for path, draft in drafts.items():
            draft.replace(path)


def check_writable(path: Path) -> None:
    """An InputError where this file could not be written. It is tried, and nothing is left of it:
    an answer that takes minutes should not be lost at the end.
    """
    with _drafts(path.parent, {path.name: ""}):
        pass


@contextlib.contextmanager
def _drafts(folder: Path, files: Mapping[str, str | bytes]) -> Iterator[dict[Path, Path]]:
    """Finished files by the places that they may take; those that do not take theirs vanish, and
    with them the folders that were made for them.
    """
    made: list[Path] = []
    drafts: dict[Path, Path] = {}
    path = folder
    try:
        for name, text in files.items():
            path = folder / name
            _make_folders(path.parent, made)
            if path.is_dir():
                raise InputError(f"{path}: is a folder; name a file.")
            if path.exists() and not path.is_file():
                raise InputError(f"{path}: is a device or a pipe; name a file.")
            drafts[path] = _draft(path, text)
        yield drafts
    except OSError as error:
        where = error.filename2 or path
        raise InputError(f"{where}: cannot be written: {error.strerror}.") from None
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
        for parent in reversed(made):
            with contextlib.suppress(OSError):  # holds something by now
                parent.rmdir()


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
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        draft.chmod(0o755 if path.suffix == ".sh" else 0o644)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft
