"""What can be rented and for how much, for people and for programs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from astra.money.catalogue import GBPS, GUESSED, Offer

if TYPE_CHECKING:
    from rich.console import RenderableType

PRICES_LEGEND = (
    "USD an hour: of one GPU, and of the whole instance, which is what one rents; NIC: of one GPU, "
    "? where it is a guess; link: GPUs that NVLink or its like joins. A price is no promise of "
    "capacity."
)


def offer_json(offer: Offer) -> dict[str, Any]:
    """One offer; the machine's fields beside its own."""
    offer_fields: dict[str, Any] = msgspec.to_builtins(offer)
    machine: dict[str, Any] = offer_fields.pop("machine")
    return machine | offer_fields | {"usd_per_gpu_hour": offer.usd_per_gpu_hour}


def prices_json(offers: Sequence[Offer], note: str | None) -> dict[str, Any]:
    return {"offers": [offer_json(offer) for offer in offers], "notes": [note] if note else []}


def cheapest_of_each(offers: Sequence[Offer]) -> list[Offer]:
    """For every GPU the cheapest offer, dearest GPU last."""
    best: dict[str, Offer] = {}
    for offer in by_price(offers):
        best.setdefault(offer.machine.gpu, offer)
    return by_price(list(best.values()))


def by_price(offers: Sequence[Offer]) -> list[Offer]:
    """Cheapest first; larger instances before smaller ones at the same price."""
    return sorted(
        offers,
        key=lambda o: (o.usd_per_gpu_hour, -o.machine.gpus, o.machine.cloud, o.region, o.spot),
    )


def merge_regions(offers: Sequence[Offer]) -> list[tuple[Offer, list[str]]]:
    """Offers that differ in their region alone as one, in the order of the first of them."""
    regions: dict[Offer, list[str]] = {}
    for offer in offers:
        regions.setdefault(msgspec.structs.replace(offer, region=""), []).append(offer.region)
    return list(regions.items())


def prices_table(offers: Sequence[Offer], max_rows: int | None = None) -> "RenderableType":
    from astra.report.text_table import TableColumn, TextTable

    has_several_gpus = len({offer.machine.gpu for offer in offers}) > 1
    columns = (
        *(TableColumn(name) for name in ("$/GPU-h", "$/h", "GPUs")),
        TableColumn("GPU" if has_several_gpus else "", right=False),
        TableColumn("", right=False),
        TableColumn("date", right=False),
        TableColumn("NIC Gbps", lesser=True),
        TableColumn("link", lesser=True),
        TableColumn("where", right=False, words=True),
    )
    rows = []
    for offer, regions in merge_regions(offers)[:max_rows]:
        machine = offer.machine
        doubt = "?" if machine.certainty == GUESSED else ""
        first = ", ".join(regions[:2]) + (f" and {len(regions) - 2} more" if regions[2:] else "")
        rows.append(
            (
                f"{offer.usd_per_gpu_hour:.2f}",
                f"{offer.usd_per_hour:.2f}",
                str(machine.gpus),
                machine.gpu if has_several_gpus else "",
                "spot" if offer.spot else "",
                offer.date,
                f"{machine.nic_bytes_per_s / GBPS:.4g}{doubt}",
                str(machine.domain_gpus),
                f"{machine.cloud} {machine.instance} {first}",
            )
        )
    return TextTable(columns, tuple(rows))
