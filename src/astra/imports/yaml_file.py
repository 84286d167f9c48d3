"""YAML as the frameworks read it (OmegaConf's dialect), and its settings as names and words."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from astra.errors import InputError, shorten

MAX_BYTES = 1 << 20
MAX_NODES = 100_000  # with all that aliases repeat; the frameworks' own files have a few hundred
STANDARD = "tag:yaml.org,2002:"


def _wrong(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, problem, mark)


class _Loader(yaml.SafeLoader):
    """Constructs nothing but numbers, words, lists and tables. No key stands twice in a table."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.nodes = 0
        self.sizes: dict[str, int] = {}  # nodes behind each anchor

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        before = self.nodes
        if getattr(event, "tag", None) not in (None, "!", f"{STANDARD}str"):
            raise _wrong("tags are not read", event.start_mark)
        node = super().compose_node(parent, index)
        if not isinstance(event, yaml.AliasEvent):
            self.nodes += 1
            if event.anchor is not None:
                self.sizes[event.anchor] = self.nodes - before
        elif event.anchor in self.sizes:
            self.nodes += self.sizes[event.anchor]
        else:
            raise _wrong("an alias stands in itself", event.start_mark)
        if self.nodes > MAX_NODES:
            raise _wrong(f"more than {MAX_NODES:,} values are no configuration", event.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                raise _wrong(f"{shorten(key.value)} stands twice", key.start_mark)
            seen.add((key.tag, key.value))
        return node


# PyYAML takes 1e-5 for a word and 2024-01-01 for a date; to OmegaConf it is the other way round.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != f"{STANDARD}timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    f"{STANDARD}float", re.compile(r"[-+]?\d[\d_]*\.?[\d_]*[eE][-+]?\d+$"), list("-+0123456789")
)


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """The table that a YAML file is; the error names line and column."""
    if len(text) > MAX_BYTES:
        raise InputError(f"{where}: YAML of more than {MAX_BYTES >> 20} MiB is no configuration.")
    try:
        found = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InputError(f"{where}: {place}not valid YAML: {error.problem}.") from None
    except RecursionError:
        raise InputError(f"{where}: YAML nested too deep to be a configuration.") from None
    except (yaml.YAMLError, ValueError) as error:  # a wrong character; thousands of digits
        raise InputError(f"{where}: not valid YAML: {shorten(str(error), 120)}.") from None
    if not isinstance(found, dict):
        raise InputError(f"{where}: holds no settings; YAML's `name: value` was expected.")
    return found


def settings_of(table: dict[Any, Any]) -> dict[str, str]:
    """`section.name` and word of every setting that is not null.

    >>> settings_of({"model": {"layers": 4, "modules": ["mlp", "moe"]}, "bias": False})
    {'model.layers': '4', 'model.modules': '[mlp,moe]', 'top.bias': 'false'}
    """
    return dict(_leaves(table, ()))


def _leaves(table: dict[Any, Any], above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        names = (*above, _word(key))
        if isinstance(value, dict):
            yield from _leaves(value, names)
        elif value is not None:
            yield ".".join(names if above else ("top", *names)), _word(value)


def _word(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_word, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_word(key)}:{_word(held)}' for key, held in value.items())}}}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
