"""A model as a person writes it in TOML: short, what is left out filled in and said."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astra.errors import InputError
from astra.files import convert, read_toml
from astra.model.check import check_shape
from astra.model.shape import Model

REQUIRED = ("layers", "hidden", "heads", "vocab")


def read_model_toml(path: Path) -> Model:
    """The model described in a TOML file of the user's."""
    return model_from_table(read_toml(path), str(path), path.stem)


def model_from_table(table: Mapping[str, Any], where: str, name: str) -> Model:
    """A table of our fields as a checked model; what was filled in stands in `assumed`."""
    filled = filled_in(table, where, name)
    return check_shape(convert(filled, Model, where), where)


def filled_in(table: Mapping[str, Any], where: str, name: str) -> dict[str, Any]:
    """The table with `name`, `kv_heads`, `head_dim` and `ffn` where they were left out."""
    missing = [field for field in REQUIRED if field not in table]
    if "ffn" not in table and "moe" not in table:
        missing.append("ffn")
    if missing:
        raise InputError(
            f"{where}: {missing[0]} is missing. A model needs at least "
            f"{', '.join(REQUIRED)} and ffn (or a [moe] table)."
        )
    filled = dict(table)
    filled.setdefault("name", name)
    filled.setdefault("ffn", 0)
    said = []
    if "kv_heads" not in table:
        filled["kv_heads"] = table["heads"]
        said.append(f"kv_heads = {table['heads']}: not given, one for each head")
    if "head_dim" not in table:
        filled["head_dim"], why = _head_dim(table, where)
        said.append(f"head_dim = {filled['head_dim']}: not given, {why}")
    if said and isinstance(table.get("assumed", ()), list | tuple):
        filled["assumed"] = [*table.get("assumed", ()), *said]
    return filled


def _head_dim(table: Mapping[str, Any], where: str) -> tuple[int, str]:
    """What it must be, and why. Wrong types are left for the conversion to name."""
    mla, hidden, heads = table.get("mla"), table["hidden"], table["heads"]
    if isinstance(mla, dict):
        nope, rope = mla.get("qk_nope_head_dim"), mla.get("qk_rope_head_dim")
        if type(nope) is int and type(rope) is int:
            return nope + rope, "mla.qk_nope_head_dim + mla.qk_rope_head_dim"
    if type(hidden) is not int or type(heads) is not int or hidden < 1 or heads < 1:
        return 1, "hidden / heads"
    if hidden % heads:
        raise InputError(
            f"{where}: hidden = {hidden} is not divisible by heads = {heads}, and head_dim is not "
            f"given. Add head_dim."
        )
    return hidden // heads, "hidden / heads"
