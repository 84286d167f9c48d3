"""How commands write: tables for people, JSON for programs, always on standard output."""

import sys


def print_parts(*parts: object) -> None:
    """Text and rich tables, without trailing blanks; plain where nobody looks."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def write_json(answer: object) -> None:
    """The result alone."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n")


def note(text: str) -> None:
    """What a person should know, apart from the result."""
    sys.stderr.write(f"astra: {text}\n")
