"""Quantities as people write them: SI numbers, or text such as "80 GB" or "400 Gbps"."""

import math
import re
from dataclasses import dataclass
from typing import Any

from astra.errors import InputError, shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityKind:
    """What a field counts: its SI unit, the units it may be written in, and what is believable."""

    name: str
    si: str
    units: dict[str, float]
    least: float
    most: float
    example: str


_DECIMAL = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_BYTES = {f"{prefix}B": scale for prefix, scale in (_DECIMAL | _BINARY).items()}

BYTES = QuantityKind(
    name="an amount of memory", si="bytes", units=_BYTES, least=1e8, most=1e15, example="80 GB"
)
BYTES_PER_S = QuantityKind(
    name="a transfer rate",
    si="bytes/s",
    units={f"{unit}/s": scale for unit, scale in _BYTES.items()}
    | {f"{prefix}bps": scale / 8 for prefix, scale in _DECIMAL.items()}
    | {f"{prefix}bit/s": scale / 8 for prefix, scale in _DECIMAL.items()},
    least=1e6,
    most=1e16,
    example="400 GB/s",
)
FLOPS_PER_S = QuantityKind(
    name="a compute rate",
    si="FLOP/s",
    units={f"{prefix}FLOP/s": scale for prefix, scale in _DECIMAL.items()}
    | {f"{prefix}FLOPS": scale for prefix, scale in _DECIMAL.items()},
    least=1e9,
    most=1e20,
    example="989 TFLOP/s",
)
WATTS = QuantityKind(
    name="a power", si="watts", units={"W": 1.0, "kW": 1e3}, least=1, most=1e6, example="700 W"
)

# The end of a field's name says what it counts; the longest ending comes first.
_ENDINGS = (
    ("flops_per_s", FLOPS_PER_S),
    ("bytes_per_s", BYTES_PER_S),
    ("_bytes", BYTES),
    ("power_w", WATTS),
)


def quantity_kind(field: str) -> QuantityKind | None:
    """What a field counts, by its name; None for a field that is no quantity."""
    return next((kind for end, kind in _ENDINGS if field.endswith(end)), None)


def quantity(raw: object, kind: QuantityKind, place: str) -> float:
    """`raw` in SI units, or an InputError that begins with `place`."""
    if isinstance(raw, str):
        value = _from_text(raw, kind, place)
    elif isinstance(raw, int | float) and not isinstance(raw, bool):
        value = float(raw)
    else:
        raise InputError(
            f"{place} = {shorten(raw)}: {kind.name} was expected: a number in "
            f'{kind.si}, or text such as "{kind.example}".'
        )
    if not math.isfinite(value) or not kind.least <= value <= kind.most:
        raise InputError(
            f"{place} = {shorten(raw)} is not believable as {kind.name}; a plain number "
            f'is in {kind.si}. Try text with a unit, such as "{kind.example}".'
        )
    return value


def _from_text(text: str, kind: QuantityKind, place: str) -> float:
    """A number, perhaps a space, and one of the kind's units, spelled exactly."""
    parts = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{0,20})?) *([A-Za-z/]{1,12})", text.strip())
    if parts and parts[2] in kind.units:
        return float(parts[1]) * kind.units[parts[2]]
    said, attempt = "no number with a unit", kind.example
    if parts:
        said = f"{parts[2]!r} is no unit for {kind.name}"
        attempt = f"{parts[1]} {_meant(parts[2], kind)}"
    usual = ", ".join(unit for unit in kind.units if unit[0] in "GTkW")
    raise InputError(f'{place} = {shorten(text)}: {said}. The units are {usual}; try "{attempt}".')


def _meant(unit: str, kind: QuantityKind) -> str:
    """The unit that a misspelled one stands for; a small b before /s is a bit."""
    spelled = unit.replace("b/s", "bps").lower()
    same = [known for known in kind.units if known.lower() == spelled]
    return same[0] if same else kind.example.split()[1]


def quantities(table: dict[str, Any], place: str) -> dict[str, Any]:
    """A table with every quantity in SI units; tables inside it likewise."""
    result: dict[str, Any] = {}
    for field, raw in table.items():
        kind = quantity_kind(field)
        if kind:
            result[field] = quantity(raw, kind, f"{place}{field}")
        elif isinstance(raw, dict):
            result[field] = quantities(raw, f"{place}{field}.")
        else:
            result[field] = raw
    return result


def bare(text: str, most: int = 60) -> str:
    """Text as an error may repeat it outside of quotes: on one line and short."""
    return shorten(text, most)[1:-1]


def check_bounds(document: object, where: str) -> None:
    """Refuses what no hardware file holds: deep nesting, numbers of many digits.

    Later steps may then recurse and quote values without care.
    """
    todo: list[tuple[object, int]] = [(document, 0)]
    while todo:
        value, depth = todo.pop()
        if depth > 8:
            raise InputError(f"{where}: nested too deep to describe hardware.")
        if isinstance(value, int) and abs(value) > 10**18:
            raise InputError(f"{where}: holds a whole number of more than 18 digits.")
        if isinstance(value, dict):
            todo.extend((inner, depth + 1) for inner in value.values())
        elif isinstance(value, list):
            todo.extend((inner, depth + 1) for inner in value)
