"""Options about money that several commands share, and how their values are read."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from astra.cli.options import word

if TYPE_CHECKING:
    from astra.money.catalogue import Offer


def words(text: str | None) -> list[str]:
    """`aws,gcp` as a list; nothing where nothing is said."""
    return [part.strip() for part in text.split(",") if part.strip()] if text else []


def catalogue_of(which: str) -> "tuple[Offer, ...]":
    """The price lists: the shipped ones, or SkyPilot's in the user's home."""
    if word(which, "--prices", ("shipped", "sky")) == "shipped":
        from astra.money.catalogue import shipped_offers

        return shipped_offers()
    from astra.money.sky import sky_offers

    return sky_offers(Path(os.environ.get("SKY_RUNTIME_DIR") or Path.home()))
