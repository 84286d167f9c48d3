"""The files of `src/astra/data/efficiency`, read and written."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from astra.files import Source, convert, read_toml
from astra.timing.efficiency import FOLDER, GemmFile, Kernels
from astra.timing.gemm import GemmTable


def write_table(name: str, table: GemmTable, source: Source) -> None:
    file = GemmFile(
        gpu=name.partition(".")[0],
        source=source,
        short=tuple(table.short.tolist()),
        long=tuple(table.long.tolist()),
        depth=tuple(table.depth.tolist()),
        log_us_e3=tuple(int(x) for x in np.round(1000 * (table.log_s.ravel() + np.log(1e6)))),
    )
    told = msgspec.to_builtins(file)
    told["source"] = {key: value for key, value in told["source"].items() if value}
    lines = [f'  "{key}": {json.dumps(value)}' for key, value in told.items()]
    (FOLDER / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def toml_lines(table: dict[str, Any], path: str) -> Iterator[str]:
    """A table in TOML: plain values first, then the tables inside it."""
    plain = {k: v for k, v in table.items() if not isinstance(v, dict) and not _is_tables(v)}
    for key, value in plain.items():
        if value not in (None, [], ()):
            yield f"{key} = {_toml_value(value)}"
    for key, value in table.items():
        inner = f"{path}.{key}" if path else key
        if isinstance(value, dict) and (value or key == "formats"):
            yield f"\n[{inner}]"
            yield from toml_lines(value, inner)
        if _is_tables(value):
            for one in value:
                yield f"\n[[{inner}]]"
                yield from toml_lines(one, inner)


def _is_tables(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], dict)


def _toml_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)


HEADER = """\
# How kernels run on GPUs: everything but the tables of matrix products beside this file.
# Made by tools/efficiency_tables from published measurements and our own of an H200
# (h200-kernels.csv.gz); docs/reports/efficiency.md has the errors on shapes that were held back.

"""


def read_kernels() -> Kernels:
    """What is installed."""
    path = FOLDER / "kernels.toml"
    return convert(read_toml(path), Kernels, path.name)


def write_kernels(known: Kernels) -> None:
    lines = toml_lines(msgspec.to_builtins(known), "")
    (FOLDER / "kernels.toml").write_text(HEADER + "\n".join(lines) + "\n")
