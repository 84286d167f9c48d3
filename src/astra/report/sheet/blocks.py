"""What a report is made of, before it becomes HTML or Markdown."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Words:
    """A paragraph. The kind is `lead`, `quiet`, or how sure a plan is to fit."""

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A small picture in a table, and the same in words."""

    svg: str
    words: str


Cell: TypeAlias = str | Drawn


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; columns of numbers stand to the right."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: frozenset[int] = frozenset()
    strong: int | None = None  # this row


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart, and its figures as a table."""

    svg: str
    grid: Grid | None = None
    title: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure: what, how much, and what is to say of it."""

    name: str
    value: str
    below: str


@dataclass(frozen=True, slots=True)
class Tiles:
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommandLines:
    lines: tuple[str, ...]


PageBlock: TypeAlias = Words | Grid | Picture | Tiles | Items | CommandLines


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    blocks: tuple[PageBlock, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A whole report."""

    title: str
    about: str  # what was asked, in short
    head: tuple[PageBlock, ...]
    sections: tuple[Section, ...]
