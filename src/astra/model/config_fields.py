"""Fields of a Hugging Face config: found under any of their names, typed, defaults remembered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from astra.errors import InputError, shorten
from astra.files import convert, parse_toml

TABLE = Path(__file__).parent.parent / "data" / "huggingface.toml"
MAX_NUMBER = 10**9


class FamilyOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a family's config is read, where it differs. The table's head explains each."""

    ffn_times: int | None = None
    ffn_is_twice: bool = False
    experts_from_ffn: bool = False
    no_experts: bool = False
    one_shared: bool = False
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool | None = None
    positions_offset: int = 0


class ConfigFamily(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the table of families, before `like` is followed."""

    like: str | None = None
    traits: dict[str, Any] = {}
    options: dict[str, Any] = {}
    read: dict[str, str] = {}
    defaults: dict[str, Any] = {}
    nested: dict[str, Any] = {}
    window: str | None = None
    special: str | None = None
    say: str | None = None


class Refusal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Model types that cannot be planned, and why."""

    why: str
    types: tuple[str, ...]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """data/huggingface.toml"""

    names: dict[str, tuple[str, ...]]
    activations: dict[str, str]
    families: dict[str, ConfigFamily]
    refused: tuple[Refusal, ...]
    telltale: dict[str, tuple[str, ...]]


@cache
def table() -> Table:
    """What we know about the families, read once."""
    text = TABLE.read_text(encoding="utf-8")
    return convert(parse_toml(text, TABLE.name), Table, TABLE.name)


@cache
def family(name: str) -> ConfigFamily:
    """A family with all that it takes from the families it is like."""
    entry = table().families[name]
    if entry.like is None:
        return entry
    base = family(entry.like)
    return ConfigFamily(
        traits=base.traits | entry.traits,
        options=base.options | entry.options,
        read=_without_empty(base.read | entry.read),
        defaults=_without_empty(base.defaults | entry.defaults),
        nested=entry.nested,
        window=entry.window or base.window,
        special=entry.special or base.special,
        say=entry.say or base.say,
    )


def _without_empty(entries: dict[str, Any]) -> dict[str, Any]:
    """Without what an empty string takes back."""
    return {name: value for name, value in entries.items() if value != ""}


@dataclass(slots=True)
class Config:
    """A config under reading. It remembers which names were used and which defaults taken."""

    raw: Mapping[str, Any]
    where: str
    model_type: str
    prefix: str = ""  # `text_config.` where the decoder is a part of the file
    family: ConfigFamily = field(default_factory=ConfigFamily)
    options: FamilyOptions = field(default_factory=FamilyOptions)
    used: dict[str, str] = field(default_factory=dict)  # our field: the config's name for it
    taken: dict[str, Any] = field(default_factory=dict)  # the config's name: default taken

    def error(self, name: str, why: str) -> InputError:
        """The message for one field of this file."""
        value = self.given(name)
        shown = json_word(value) if value is None or isinstance(value, bool) else shorten(value)
        return InputError(f"{self.where}: {self.prefix}{name} = {shown}: {why}")

    def has(self, name: str) -> bool:
        return self._look_up(name)[0]

    def given(self, name: str) -> Any:
        """The value under this very name (`a.b` looks into a); None where there is none."""
        return self._look_up(name)[1]

    def get(self, name: str) -> Any:
        """The value under this name, or the family's default, remembered."""
        there, value = self._look_up(name)
        if there:
            return value
        if name in self.family.defaults:
            self.taken[name] = self.family.defaults[name]
            return self.family.defaults[name]
        return None

    def name_of(self, our_field: str) -> str:
        """What this file calls our field: the first name with a value, else the usual one."""
        names = table().names[our_field]
        given = [name for name in names if self.given(name) is not None]
        null = [name for name in names if self.has(name)]
        default = [name for name in names if name in self.family.defaults]
        name = (given or null or default or list(names))[0]
        self.used[our_field] = name
        return name

    def maybe_count(self, our_field: str, least: int = 1) -> int | None:
        """A whole number, or None where the file says null or nothing."""
        return self.whole(self.name_of(our_field), least)

    def count(self, our_field: str) -> int:
        """A whole number that must be there."""
        names = table().names[our_field]
        name = self.name_of(our_field)
        number = self.whole(name, 1)
        if number is None and self.has(name):
            raise self.error(name, "a number is needed here.")
        if number is None:
            others = f" (or {', '.join(names[1:])})" if names[1:] else ""
            raise InputError(
                f"{self.where}: {self.prefix}{names[0]}{others} is missing. "
                "Is this the config.json of a language model?"
            )
        self._agree(our_field, name, number)
        return number

    def whole(self, name: str, least: int = 0) -> int | None:
        """The whole number under this name. A list of equal numbers stands for that number."""
        value = self.get(name)
        if isinstance(value, list):
            value = self._same(name, value)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            hint = f" Try {str(value).strip()} without quotes." if _digits(value) else ""
            raise self.error(name, f"a whole number is needed.{hint}")
        if value < least:
            raise self.error(name, f"must be at least {least}.")
        if value > MAX_NUMBER:
            raise self.error(name, f"is more than {MAX_NUMBER:,}. Is this the right field?")
        return value

    def flag(self, name: str) -> bool:
        """True or false; false where neither the file nor the family says."""
        value = self.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.error(name, "true or false is needed.")
        return value

    def word(self, our_field: str) -> str | None:
        name = self.name_of(our_field)
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            raise self.error(name, "a name in quotes is needed.")
        return value

    def number(self, our_field: str) -> float | None:
        name = self.name_of(our_field)
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e18:
            raise self.error(name, "a positive number is needed.")
        return float(value)

    def words(self, name: str, length: int) -> list[str] | None:
        """A list of one word for every layer."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self.error(name, "a list with one word for every layer is needed.")
        if len(value) < length:
            raise self.error(name, f"has {len(value)} entries for {length} layers.")
        return value[:length]

    def layer_numbers(self, name: str, layers: int) -> list[int] | None:
        """A list of layers, counted from 0."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(entry) is int for entry in value):
            raise self.error(name, "a list of layer numbers is needed.")
        beyond = [entry for entry in value if not 0 <= entry < layers]
        if beyond:
            raise self.error(
                name, f"names layer {beyond[0]}, but there are {layers}, counted from 0."
            )
        return value

    def _look_up(self, name: str) -> tuple[bool, Any]:
        """Whether it is there, and its value."""
        value: Any = self.raw
        for step in name.split("."):
            if not isinstance(value, Mapping) or step not in value:
                return False, None
            value = value[step]
        return True, value

    def _agree(self, our_field: str, name: str, number: int) -> None:
        """Two names for one thing must not say different things."""
        if our_field not in ("layers", "hidden", "heads"):
            return
        for other in table().names[our_field]:
            said = self.given(other)
            if type(said) is int and said != number:
                raise self.error(
                    other, f"contradicts {self.prefix}{name} = {number}. Delete the wrong one."
                )

    def _same(self, name: str, values: Sequence[Any]) -> Any:
        if not values:
            return None
        if any(value != values[0] or type(value) is not type(values[0]) for value in values):
            raise self.error(name, "differs from layer to layer, which is not modelled.")
        return values[0]


def _digits(value: object) -> bool:
    return isinstance(value, str) and value.strip().isdigit()


def json_word(value: object) -> str:
    """true, false and null as JSON spells them; all else as it is."""
    words = {"True": "true", "False": "false", "None": "null"}
    return words.get(str(value), str(value))
