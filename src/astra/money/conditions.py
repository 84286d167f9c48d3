"""What a run loses and pays for besides its steps: failures, checkpoints, start-up, storage."""

from functools import cache
from pathlib import Path

import msgspec

from astra.files import Source, convert, read_toml

POWER_PRICE = "power_usd_per_kwh"  # of the data file; for GPUs that one owns
NODE_RAM = "ram_gib_per_gpu"  # that a node has at least
FILE = Path(__file__).parent.parent / "data" / "money.toml"


class ConditionDefault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure for want of the user's own, and who says so."""

    value: float
    low: float | None = None  # between these it may well be
    high: float | None = None
    source: Source


class OwnedGpus(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of one's own: what they were bought for is paid whether they work or not."""

    gpu: str
    count: int
    usd_per_gpu_hour: float

    @property
    def usd_per_hour(self) -> float:
        return self.count * self.usd_per_gpu_hour


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
    owned: tuple[OwnedGpus, ...] = ()

    @property
    def owned_usd_per_hour(self) -> float:
        """Of all GPUs that one owns, idle or not."""
        return sum(each.usd_per_hour for each in self.owned)


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
    del known[POWER_PRICE], known[NODE_RAM]
    given = {name: value for name, value in said.items() if value is not None}
    return convert(known | given, Conditions, "conditions")
