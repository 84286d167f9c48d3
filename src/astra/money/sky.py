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

from astra.errors import InputError
from astra.files import read_text
from astra.hardware.catalogue import find_gpu
from astra.money.catalogue import FOLDER, GIB, Instance, Offer, instances, plain_network

SIZES = (1, 2, 4, 8, 16)  # GPUs of a node that plans can fill
Row = dict[str, str]


def sky_offers(home: Path) -> tuple[Offer, ...]:
    """All offers of GPUs that are known here, the cheapest zone of each region."""
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
    for cloud, path in files.items():
        for offer in _offers(cloud, path):
            key = (cloud, offer.machine.instance, offer.region, offer.spot)
            if key not in best or offer.usd_per_hour < best[key].usd_per_hour:
                best[key] = offer
    return tuple(best.values())


def _offers(cloud: str, path: Path) -> Iterator[Offer]:
    rows = list(csv.DictReader(io.StringIO(read_text(path))))
    missing = {"AcceleratorName", "AcceleratorCount", "Region", "Price"} - set(
        rows[0] if rows else ()
    )
    if rows and missing:
        raise InputError(f"{path}: the column {', '.join(sorted(missing))} is missing.")
    changed = datetime.date.fromtimestamp(path.stat().st_mtime).isoformat()
    hosts = {
        (row.get("InstanceType", ""), _zone(row)): row for row in rows if row.get("InstanceType")
    }
    for row in rows:
        machine = _machine(cloud, row)
        if machine is None:
            continue
        host = None if row.get("InstanceType") else hosts.get((machine.instance, _zone(row)))
        if not row.get("InstanceType") and host is None:
            continue  # an accelerator whose host is not sold there
        for column, spot in (("Price", False), ("SpotPrice", True)):
            price = _number(row.get(column))
            if host is not None and price is not None:
                extra = _number(host.get(column))
                price = None if extra is None else price + extra
            if price is not None and price > 0:
                yield Offer(
                    machine=machine,
                    region=row["Region"] or "any",
                    usd_per_hour=price,
                    spot=spot,
                    date=changed,
                    source=str(path),
                )


def _zone(row: Row) -> str:
    return row.get("AvailabilityZone") or row.get("Region") or ""


def _machine(cloud: str, row: Row) -> Instance | None:
    """The instance of a row; None where its GPU is not known or its node is of an odd size."""
    count = _number(row.get("AcceleratorCount"))
    if not row.get("AcceleratorName") or count is None or count not in SIZES:
        return None
    known = instances()
    name = row.get("InstanceType") or ""
    if (cloud, name) in known:
        return known[cloud, name]
    gpu_id = names().get((cloud, row["AcceleratorName"])) or names().get(
        ("*", row["AcceleratorName"])
    )
    if gpu_id is None:
        return None
    if not name:  # an accelerator for a host: the instance of that cloud with these GPUs
        hosts = tuple(_hosts().get((cloud, row["AcceleratorName"]), "").split())
        alike = [
            machine
            for (where, instance), machine in known.items()
            if (where, machine.gpu, machine.gpus) == (cloud, gpu_id, int(count))
            and instance.startswith(hosts)
        ]
        return alike[0] if alike else None
    gpu, _ = find_gpu(gpu_id)
    ram = _number(row.get("MemoryGiB"))
    return Instance(
        cloud=cloud,
        instance=name,
        gpu=gpu_id,
        gpus=int(count),
        ram_bytes=ram * GIB if ram else None,
        **plain_network(gpu, int(count)),  # type: ignore[arg-type]
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
