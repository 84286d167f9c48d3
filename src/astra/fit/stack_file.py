"""A stack as the text of its file."""

from typing import Any

import msgspec

from astra.hardware.stack import Stack, StackSetting


def stack_text(stack: Stack, head: str = "") -> str:
    """TOML that reads back as this stack; what is as usual is left out."""
    lines = [f"# {head}"] if head else []
    for field in msgspec.structs.fields(Stack):
        value = getattr(stack, field.name)
        if field.name not in ("name", "release", "settings", "source") and value != field.default:
            lines.append(f"{field.name} = {_value(value)}")
    lines += ["", "[source]"]
    told = msgspec.to_builtins(stack.source)
    lines += [f"{key} = {_value(value)}" for key, value in told.items() if value]
    return "\n".join([*lines, *(_setting(row) for row in stack.settings)]) + "\n"


def _setting(row: StackSetting) -> str:
    lines = ["", "[[settings]]"]
    for field in msgspec.structs.fields(StackSetting):
        value = getattr(row, field.name)
        if value != field.default:
            lines.append(f"{field.name} = {_value(value)}")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else msgspec.json.encode(value).decode()
