"""Nested settings as YAML that any reader takes alike: every value is written as JSON."""

import json
from collections.abc import Mapping
from typing import Any

Tree = Mapping[str, Any]


def yaml_text(tree: Tree, indent: int = 0) -> str:
    """Mappings as blocks, all else on one line.

    >>> print(yaml_text({"a": {"b": [1, [2, 3]], "c": "x*2|"}, "d": True}), end="")
    a:
      b: [1, [2, 3]]
      c: "x*2|"
    d: true
    """
    lines = []
    for key, value in tree.items():
        start = f"{' ' * indent}{key}:"
        if isinstance(value, Mapping) and value:
            lines.append(f"{start}\n{yaml_text(value, indent + 2)}")
        else:
            lines.append(f"{start} {json.dumps(value)}\n")
    return "".join(lines)
