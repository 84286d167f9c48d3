"""What a run loses and pays for besides its steps: failures, checkpoints, start-up, storage."""

from functools import cache
from pathlib import Path

import msgspec

from astra.files import Source, convert, read_toml

FILE = Path(__file__).parent.parent / "data" / "money.toml"


class ConditionDefault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure for want of the user's own, and who says so."""

    value: float
    source: Source


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """How often a run stops, what that costs it, and what else is paid."""

    failures: bool = True  # off: every second trains, from the first one on
    gpu_mtbf_hours: float  # of one GPU
    spot_interruptions_per_hour: float  # of one node
    restart_s: float
    spot_restart_s: float
    startup_s: float
    storage_bytes_per_s_per_node: float
    storage_bytes_per_s_most: float
    storage_usd_per_gb_month: float = 0.0
    storage_bytes: float | None = None  # that are kept all the time; None: one checkpoint
    egress_usd_per_gb: float = 0.0
    egress_bytes: float | None = None  # that leave at the end; None: one checkpoint


@cache
def defaults() -> dict[str, ConditionDefault]:
    """Every figure of the data file."""
    return {
        name: convert(table, ConditionDefault, f"money.toml: {name}")
        for name, table in read_toml(FILE).items()
    }


def conditions(**said: object) -> Conditions:
    """The defaults, with what was said in their place; None means nothing was."""
    known = {name: default.value for name, default in defaults().items()}
    given = {name: value for name, value in said.items() if value is not None}
    return convert(known | given, Conditions, "conditions")
