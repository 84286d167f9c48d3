"""Nested settings as YAML that any reader takes alike: every value is written as JSON."""

import json
from collections.abc import Mapping
from typing import Any

Tree = Mapping[str, Any]


def yaml_text(tree: Tree, indent: int = 0) -> str:
    """Mappings, lists of mappings and texts of several lines as blocks, all else on one line.

    >>> print(yaml_text({"a": {"b": [1, [2, 3]], "c": "x*2|"}, "d": [{"e": 1, "f": 2}]}), end="")
    a:
      b: [1, [2, 3]]
      c: "x*2|"
    d:
      - e: 1
        f: 2
    """
    lines = []
    for key, value in tree.items():
        start = f"{' ' * indent}{key}:"
        if isinstance(value, Mapping) and value:
            lines.append(f"{start}\n{yaml_text(value, indent + 2)}")
        elif _is_blocks(value):
            lines.append(f"{start}\n")
            for item in value:
                block = yaml_text(item, indent + 4)
                lines.append(f"{' ' * (indent + 2)}- {block[indent + 4 :]}")
        elif isinstance(value, str) and value.endswith("\n"):
            text = "".join(f"{' ' * (indent + 2)}{line}\n" for line in value.splitlines())
            lines.append(f"{start} |\n{text}")
        else:
            lines.append(f"{start} {json.dumps(value)}\n")
    return "".join(lines)


def _is_blocks(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) and item for item in value)
    )
