"""The price catalogue that SkyPilot keeps in the user's home, read as files.

`<home>/.sky/catalogs/v8/<cloud>/vms.csv`: one row per instance type and zone, columns by header
(InstanceType, AcceleratorName, AcceleratorCount, Region, Price, SpotPrice; their order and some of
them differ by cloud). Rows of Google's accelerators have no instance type: the host's price in the
same zone is added. Nothing is imported and nothing is fetched.
"""

import csv
import datetime
import io
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from astra.errors import InputError, shorten
from astra.files import read_text
from astra.hardware.catalogue import find_gpu
from astra.money.catalogue import (
    FOLDER,
    GIB,
    MAX_USD_PER_HOUR,
    Instance,
    Offer,
    default_network,
    instances,
)

SIZES = (1, 2, 4, 8, 16)  # GPUs of a node that plans can fill
Row = dict[str, str]
_Sold = tuple[Instance, float, bool]  # the machine, USD an hour, whether it is spot


class SkippedOffers:
    """Rows of a catalogue that give no offer: how many for each reason, and the first of them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.first: dict[str, str] = {}

    def add(self, why: str, where: str) -> None:
        self.counts[why] = self.counts.get(why, 0) + 1
        self.first.setdefault(why, where)

    def notes(self) -> tuple[str, ...]:
        """A sentence, or nothing."""
        if not self.counts:
            return ()
        each = [
            f"{count:,} where {why} (first: {self.first[why]})"
            for why, count in sorted(self.counts.items(), key=lambda item: -item[1])
        ]
        total = sum(self.counts.values())
        offers = "1 offer of GPUs is" if total == 1 else f"{total:,} offers of GPUs are"
        return (f"{offers} left out: {'; '.join(each)}.",)


def skypilot_offers(home: Path) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
    """All offers of GPUs that are known here, the cheapest zone of each region, and a note on
    the rows of GPUs that were left out."""
    root = home / ".sky" / "catalogs"
    versions = sorted(
        (path for path in root.glob("v*") if re.fullmatch(r"v[0-9]{1,4}", path.name)),
        key=lambda path: -int(path.name[1:]),
    )
    files: dict[str, Path] = {}
    for version in versions:  # the newest that has a cloud's file
        for path in sorted(version.glob("*/vms.csv")):
            files.setdefault(path.parent.name, path)
    if not files:
        raise InputError(
            f"--prices sky: no {root}/v*/CLOUD/vms.csv. SkyPilot writes them on first use "
            "(`sky gpus list`); without them the shipped catalogue is used: leave --prices out."
        )
    best: dict[tuple[str, str, str, bool], Offer] = {}
    skipped = SkippedOffers()
    for cloud, path in files.items():
        for offer in _offers(cloud, path, skipped):
            key = (cloud, offer.machine.instance, offer.region, offer.spot)
            if key not in best or offer.usd_per_hour < best[key].usd_per_hour:
                best[key] = offer
    if not best:
        raise InputError(
            f"--prices sky: no offer of a known GPU in {root}. {' '.join(skipped.notes())}".strip()
        )
    return tuple(best.values()), tuple(f"--prices sky: {said}" for said in skipped.notes())


def _offers(cloud: str, path: Path, skipped: SkippedOffers) -> Iterator[Offer]:
    reader = csv.DictReader(io.StringIO(read_text(path)))
    rows = [(row, reader.line_num) for row in reader]
    missing = {"AcceleratorName", "AcceleratorCount", "Region", "Price"} - set(
        reader.fieldnames or ()
    )
    if rows and missing:
        raise InputError(f"{path}: the column {', '.join(sorted(missing))} is missing.")
    changed = datetime.date.fromtimestamp(path.stat().st_mtime).isoformat()
    hosts = {
        (row.get("InstanceType", ""), _zone(row)): row for row, _ in rows if row.get("InstanceType")
    }
    for row, line in rows:
        if not row.get("AcceleratorName"):
            continue  # a machine without GPUs
        found, reasons = _sold(cloud, row, hosts)
        shown = shorten(row.get("InstanceType") or row["AcceleratorName"])[1:-1]
        for why in reasons:
            skipped.add(why, f"{shown}, {cloud}/{path.name} line {line}")
        for machine, price, spot in found:
            yield Offer(
                machine=machine,
                region=row["Region"] or "any",
                usd_per_hour=price,
                spot=spot,
                date=changed,
                source=str(path),
            )


class _UnusableError(Exception):
    """Why a row gives no offer."""


def _sold(cloud: str, row: Row, hosts: dict[tuple[str, str], Row]) -> tuple[list[_Sold], list[str]]:
    """What a row with a GPU sells, on demand and spot, and why it does not sell more."""
    if row.get("Region") is None or row.get("Price") is None:
        return [], ["the row ends early"]
    try:
        machine = _machine(cloud, row)
    except _UnusableError as error:
        return [], [str(error)]
    host = None if row.get("InstanceType") else hosts.get((machine.instance, _zone(row)))
    if not row.get("InstanceType") and host is None:
        return [], ["the host of the accelerator is not sold in its zone"]
    found: list[_Sold] = []
    reasons = []
    for column, spot in (("Price", False), ("SpotPrice", True)):
        try:
            price = _price(row, host, column)
        except _UnusableError as error:
            reasons.append(str(error))
            continue
        found += [(machine, price, spot)] if price else []
    return found, reasons if found or reasons else ["there is no price"]


def _price(row: Row, host: Row | None, column: str) -> float | None:
    """Of the instance, with its host where that is sold apart; None or 0: it is not offered."""
    parts = [each.get(column) for each in (row, host) if each is not None]
    if not all(part and part.strip() for part in parts):
        return None
    numbers = [_number(part) for part in parts]
    price = sum(number for number in numbers if number is not None)
    if None in numbers or not 0 <= price <= MAX_USD_PER_HOUR:
        raise _UnusableError(f"{column} is no amount of USD")
    return price


def _zone(row: Row) -> str:
    return row.get("AvailabilityZone") or row.get("Region") or ""


def _machine(cloud: str, row: Row) -> Instance:
    """The instance of a row, where its GPU is known and plans can fill its node."""
    count = _number(row.get("AcceleratorCount"))
    if count is None:
        raise _UnusableError("AcceleratorCount is no number")
    known = instances()
    name = row.get("InstanceType") or ""
    if (cloud, name) in known:
        return known[cloud, name]
    gpu_id = names().get((cloud, row["AcceleratorName"])) or names().get(
        ("*", row["AcceleratorName"])
    )
    if gpu_id is None:
        raise _UnusableError("the accelerator is not known here")
    if count not in SIZES:
        raise _UnusableError(f"the number of GPUs is none of {', '.join(map(str, SIZES))}")
    if not name:  # an accelerator for a host: the instance of that cloud with these GPUs
        hosts = tuple(_hosts().get((cloud, row["AcceleratorName"]), "").split())
        alike = [
            machine
            for (where, instance), machine in known.items()
            if (where, machine.gpu, machine.gpus) == (cloud, gpu_id, int(count))
            and instance.startswith(hosts)
        ]
        if not alike:
            raise _UnusableError("that cloud has no instance known here with so many of it")
        return alike[0]
    gpu, _ = find_gpu(gpu_id)
    ram = _number(row.get("MemoryGiB"))
    return Instance(
        cloud=cloud,
        instance=name,
        gpu=gpu_id,
        gpus=int(count),
        ram_bytes=ram * GIB if ram else None,
        **default_network(gpu, int(count)),  # type: ignore[arg-type]
    )


@cache
def names() -> dict[tuple[str, str], str]:
    """SkyPilot's accelerator names by cloud; `*` holds for all others."""
    return {(row["cloud"], row["name"]): row["gpu"] for row in _name_rows()}


@cache
def _hosts() -> dict[tuple[str, str], str]:
    """How the instances begin that an accelerator without an instance type is rented in."""
    return {(row["cloud"], row["name"]): row["hosts"] for row in _name_rows() if row["hosts"]}


def _name_rows() -> list[Row]:
    return list(csv.DictReader(io.StringIO(read_text(FOLDER / "sky_names.csv"))))


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
