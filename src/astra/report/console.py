"""A rich console as every page is printed on."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def new_console(**options: Any) -> "Console":
    """Without highlights and emoji; with NO_COLOR without any style, where rich would keep bold."""
    from rich.console import Console

    console = Console(highlight=False, emoji=False, **options)
    if console.no_color:
        return Console(highlight=False, emoji=False, color_system=None, **options)
    return console
