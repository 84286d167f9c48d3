"""The values of variables for many plans at once, and what rules do with them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bools: TypeAlias = NDArray[np.bool_]
VariableKind: TypeAlias = Literal["number", "word", "flag"]


@dataclass(frozen=True, slots=True)
class VariableColumn:
    """The values of one variable for all plans. The plan axis is last, segments go in front."""

    values: NDArray[Any]
    is_set: Bools | None = None  # where not, the value is `None`; no mask: all are set
    exists: Bools | None = None  # where not, the slot is unused and never matches; no mask: all do


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A name that rules may use, and how to read its column from a table of plans."""

    name: str
    kind: VariableKind
    read: Callable[[Any], VariableColumn]
    meaning: str
    words: tuple[str, ...] | None = None  # of a word column: its values are rows of this
    alias: Callable[[str], str | None] | None = None
    """The true word for another spelling of it (`h100`), or None. It may name a word outside
    the vocabulary: then no plan has it."""

    def __post_init__(self) -> None:
        assert (self.words is not None) == (self.kind == "word"), self.name


NOTHING = VariableColumn(np.asarray(0), is_set=np.asarray(False))

_ORDERS: dict[str, np.ufunc] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_ARITHMETIC: dict[str, np.ufunc] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.mod,
}


def constant(value: float) -> VariableColumn:
    """Whole numbers as integers, so that comparing an integer column needs no conversion."""
    whole = value.is_integer() and abs(value) < 2**53
    return VariableColumn(np.asarray(int(value) if whole else value))


def compare(operator: str, left: VariableColumn, right: VariableColumn) -> Bools:
    """(plan,) True where the comparison is true for any existing entry."""
    if operator == "==":
        result = _equal(left, right)
    elif operator == "!=":
        result = _masked(~_equal(left, right), _both(_defined(left), _defined(right)))
    else:
        order = _ORDERS[operator](left.values, right.values)
        result = _masked(order, _both(left.is_set, right.is_set))
    return any_segment(VariableColumn(result, exists=_both(left.exists, right.exists)))


def _equal(left: VariableColumn, right: VariableColumn) -> Bools:
    """Both set and the same, or both unset."""
    same = np.equal(left.values, right.values)
    if left.is_set is None or right.is_set is None:
        return _masked(same, _both(left.is_set, right.is_set))
    return (same & left.is_set & right.is_set) | ~(left.is_set | right.is_set)


def _defined(column: VariableColumn) -> Bools | None:
    """Not where division by zero left not-a-number; no mask: everywhere. Unset is defined."""
    if column.values.dtype.kind != "f":
        return None
    return ~_masked(np.isnan(column.values), column.is_set)


def any_segment(condition: VariableColumn) -> Bools:
    """(plan,) True where the condition is for any existing entry."""
    result = _masked(condition.values, condition.exists)
    return np.any(result, axis=tuple(range(result.ndim - 1))) if result.ndim > 1 else result


def switched_on(flag: VariableColumn) -> VariableColumn:
    """Booleans, in a fresh array; a flag that is not set is off."""
    return VariableColumn(_masked(flag.values.astype(np.bool_), flag.is_set), exists=flag.exists)


def translated(column: VariableColumn, table: NDArray[np.int64]) -> VariableColumn:
    """Codes of one vocabulary as those of another; an unused slot may hold anything."""
    return VariableColumn(np.take(table, column.values, mode="clip"), column.is_set, column.exists)


def arithmetic(operator: str, left: VariableColumn, right: VariableColumn) -> VariableColumn:
    """In floating point: exact for whole numbers below 2^53, and it cannot wrap around."""
    a, b = left.values, right.values
    if operator != "%" or not a.dtype.kind == b.dtype.kind == "i":  # whole remainders are faster
        a, b = a.astype(np.float64), b.astype(np.float64)
    values = np.asarray(_ARITHMETIC[operator](a, b))
    if operator in "/%":
        values = np.where(b == 0, np.nan, values)
    return VariableColumn(
        values, _both(left.is_set, right.is_set), _both(left.exists, right.exists)
    )


def negative(column: VariableColumn) -> VariableColumn:
    return VariableColumn(
        np.asarray(-column.values.astype(np.float64)), column.is_set, column.exists
    )


# Masks. None is one that is true everywhere, and costs nothing.


def _masked(result: Bools, mask: Bools | None) -> Bools:
    return result if mask is None else result & mask


def _both(a: Bools | None, b: Bools | None) -> Bools | None:
    if a is None or b is None:
        return a if b is None else b
    return a & b
