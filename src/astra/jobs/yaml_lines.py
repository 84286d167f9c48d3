"""Names and values of a YAML file, as far as launch files need it; nothing is ever constructed."""

import re

NAMED = re.compile(r"( *)([\w.-]+):\s*(.*?)\s*(?:#.*)?")
ITEM = re.compile(r" *- +[\"']?([\w.-]+)[\"']?\s*(?:#.*)?")


def yaml_leaves(text: str) -> list[tuple[str, str]]:
    """`section.name` and value of every plain line; a list of words below a name is `[a,b]`.

    >>> yaml_leaves("model:\\n  layers: 4  # few\\n  modules:\\n  - mlp\\n  - moe\\n")
    [('model.layers', '4'), ('model.modules', '[mlp,moe]')]
    """
    found: list[tuple[str, str]] = []
    above: list[tuple[int, str]] = []  # how far in, and the name
    items: list[str] = []  # of the list below the last name

    def close() -> None:
        if items and above:
            found.append((_name([name for _, name in above]), f"[{','.join(items)}]"))
        items.clear()

    for line in text.splitlines():
        if item := ITEM.fullmatch(line):
            items.append(item[1])
            continue
        match = NAMED.fullmatch(line)
        if match is None:
            continue
        close()
        deep = len(match[1])
        above = [(depth, name) for depth, name in above if depth < deep]
        if match[3]:
            names = [*(name for _, name in above), match[2]]
            found.append((_name(names), match[3].strip("'\"")))
        else:
            above.append((deep, match[2]))
    close()
    return found


def _name(names: list[str]) -> str:
    return ".".join(names) if len(names) > 1 else f"top.{names[0]}"
