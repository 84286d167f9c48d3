"""Things that are known, in a row: a tuple that shows as a table."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from astra.report.html import page_html

Item = TypeVar("Item")


class Listing(tuple[Item, ...], Generic[Item]):
    """Models, GPUs or prices: a tuple of them that a notebook shows as a table.

    >>> import astra
    >>> astra.gpus("h200")
    4 GPUs: GH200-144GB, GH200-96GB, H200-NVL, H200-SXM
    >>> astra.gpus("h200")[3].memory_bytes > 140e9
    True
    """

    what: str
    name: Callable[[Item], str]
    row: Callable[[Item], dict[str, Any]]
    table: Callable[["Listing[Item]"], Any]

    @classmethod
    def of(
        cls,
        items: Iterable[Item],
        *,
        what: str,
        name: Callable[[Item], str],
        row: Callable[[Item], dict[str, Any]],
        table: Callable[["Listing[Item]"], Any],
    ) -> "Listing[Item]":
        """`row`: one as a flat dictionary; `table`: all of them as terminals show them."""
        listing = cls(items)
        listing.what, listing.name, listing.row, listing.table = what, name, row, table
        return listing

    def __repr__(self) -> str:
        names = list(dict.fromkeys(map(self.name, self)))
        more = ", ..." if len(names) > 4 else ""
        plural = "" if len(self) == 1 else "s"
        return f"{len(self)} {self.what}{plural}: {', '.join(names[:4])}{more}"

    def _repr_html_(self) -> str:
        return page_html([repr(self), self.table(self)] if self else [repr(self)])

    def to_rows(self) -> list[dict[str, Any]]:
        """One flat dictionary each, in SI units."""
        return [self.row(item) for item in self]

    def to_pandas(self) -> Any:
        """The rows as a DataFrame of pandas, where it is installed."""
        from astra.report.plan_table import frame_of

        return frame_of(self.to_rows(), "pandas")
