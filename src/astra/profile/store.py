"""The profile's file: one JSON document, replaced as a whole, so that it is never half written."""

import gzip
import json
import os
import tempfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astra.errors import InputError, shorten
from astra.profile.flops_and_bytes import bytes_of, flops_of
from astra.profile.measurement import Measurement, parse_key

SCHEMA = "astra-profile/1"
MACHINE_IDENTITY = ("device", "gpu", "torch", "cuda")  # what may not change inside a file


@dataclass(slots=True, kw_only=True)
class Profile:
    """What was measured on one machine. Entries are by key, in the order they were measured."""

    machine: dict[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def measured(self) -> list[tuple[Measurement, dict[str, Any]]]:
        """The entries that have a time."""
        return [(parse_key(key), row) for key, row in self.entries.items() if "median_s" in row]

    def errors(self) -> dict[str, str]:
        return {key: row["error"] for key, row in self.entries.items() if "error" in row}


def entry_of(one: Measurement, result: dict[str, Any]) -> dict[str, Any]:
    """One row of the file: what was measured, and how it went."""
    return {
        "key": one.key,
        "op": one.op,
        "variant": one.variant,
        "dtype": one.dtype,
        "shape": dict(one.shape),
        "flops": flops_of(one),
        "bytes": bytes_of(one),
        **result,
    }


def write_profile(path: Path, profile: Profile) -> None:
    """Writes beside the file and moves it into place; a crash leaves the old one whole."""
    head = {"schema": SCHEMA, "machine": profile.machine, "runs": profile.runs}
    rows = ",\n".join(json.dumps(row) for row in profile.entries.values())
    text = json.dumps(head, indent=1)[:-2] + f',\n "entries": [\n{rows}\n ]\n}}\n'
    draft = None
    try:
        handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
        draft = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(_packed(path, text))
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(0o644)
        draft.replace(path)
    except OSError as error:
        raise InputError(f"--out {path}: cannot be written: {error.strerror}.") from None
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)


def _packed(path: Path, text: str) -> bytes:
    """Compressed where the name ends so; the same bytes for the same text."""
    return gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode()


def _unpacked(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def read_profile(path: Path) -> Profile:
    """A profile that was written before."""
    try:
        document = json.loads(_unpacked(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file. `astra profile --out {path}` makes one.") from None
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path}: not a profile: {shorten(error, 120)}. Choose another file."
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else document
        raise InputError(
            f"{path}: schema is {shorten(found)}, not {SCHEMA!r}: this is no profile that this "
            "version of astra can read. Choose another file."
        )
    rows = document.get("entries")
    machine, runs = document.get("machine"), document.get("runs")
    if not isinstance(rows, list) or not isinstance(machine, dict) or not isinstance(runs, list):
        raise InputError(f"{path}: machine, runs or entries are missing. Was the file edited?")
    entries: dict[str, dict[str, Any]] = {}
    for place, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get("key"), str):
            raise InputError(f"{path}: entries[{place}] has no key. Was the file edited?")
        parse_key(row["key"])
        if "error" not in row and not isinstance(row.get("median_s"), int | float):
            raise InputError(f"{path}: entries[{place}] has neither median_s nor error.")
        entries[row["key"]] = row
    return Profile(machine=machine, runs=runs, entries=entries)


def continue_profile(path: Path, machine: dict[str, Any]) -> Profile:
    """The file as it stands, if it was measured on a machine like this one; else a new profile."""
    try:
        if not path.parent.is_dir():
            raise InputError(f"--out {path}: there is no folder {path.parent}. Make it first.")
        with tempfile.TemporaryFile(dir=path.parent):  # before hours of measuring, not after
            pass
    except OSError as error:
        raise InputError(f"--out {path}: cannot be written: {error.strerror}.") from None
    if not path.exists():
        return Profile(machine=machine)
    profile = read_profile(path)
    for name in MACHINE_IDENTITY:
        before, now = profile.machine.get(name), machine.get(name)
        if before != now:
            raise InputError(
                f"--out {path}: was measured with {name} = {shorten(before)}, and here it is "
                f"{shorten(now)}: times of both would mix. Give a new file."
            )
    return profile
