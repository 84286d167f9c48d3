"""The files of `src/astra/data/links`, written."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from astra.timing.link_curves import InterNodeFigures, IntraNodeCurves


def toml_lines(table: dict[str, object], prefix: str) -> Iterator[str]:
    """A table of plain values and sub-tables; None is left out."""
    for key, value in table.items():
        if value is not None and not isinstance(value, dict):
            yield f"{key} = {toml_value(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield f"[{prefix}{key}]"
            yield from toml_lines(value, f"{prefix}{key}.")


def toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace('"', "'") + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return repr(value)


def plain(struct: msgspec.Struct) -> dict[str, object]:
    raw: dict[str, object] = msgspec.to_builtins(struct)
    source = raw.get("source")
    if isinstance(source, dict):
        raw["source"] = {k: v for k, v in source.items() if v not in (None, [], ())}
    return raw


def write_tables(
    tables: tuple[IntraNodeCurves, ...], across: InterNodeFigures, folder: Path
) -> None:
    made = "Written by tools/link_tables; do not edit.\n"
    lines = [f"# Collectives inside a node, by GPU and group size. {made}"]
    for table in tables:
        lines += ["[[row]]", *toml_lines(plain(table), "row."), ""]
    (folder / "inside.toml").write_text("\n".join(lines), encoding="utf-8")
    raw = plain(across)
    raw.pop("generations")
    lines = [f"# Collectives and sends across nodes, over RDMA. {made}", *toml_lines(raw, "")]
    for row in across.generations:
        lines += ["", "[[generations]]", *toml_lines(plain(row), "generations.")]
    (folder / "across.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
