"""The YAML that launch files are written in: blocks of keys, every value as JSON."""

import json
from typing import Any


def read_yaml(text: str) -> dict[str, Any]:
    root: dict[str, Any] = {}
    open_blocks = [(-1, root)]
    for line in text.splitlines():
        bare = line.lstrip(" ")
        if not bare or bare.startswith("#"):
            continue
        indent = len(line) - len(bare)
        key, colon, value = bare.partition(":")
        assert colon and key.replace("_", "a").isalnum(), line
        while open_blocks[-1][0] >= indent:
            open_blocks.pop()
        block = open_blocks[-1][1]
        assert key not in block, f"{key} stands twice"
        if value:
            assert value.startswith(" "), line
            block[key] = json.loads(value)
        else:
            block[key] = {}
            open_blocks.append((indent, block[key]))
    return root
