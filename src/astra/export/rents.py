"""What the search for money rented for each plan of a file: clouds, machines and prices."""

from typing import Any

from astra.errors import InputError
from astra.files import convert
from astra.money.rented import RentedNodes

Rents = tuple[RentedNodes, ...]
USER_CLOUD = "given"  # the cloud of prices that the user gave
ANYWHERE = "any"  # the region of a cloud that has none
# Clouds where SkyPilot starts machines, as of 0.14.1.
SKY_CLOUDS = (
    *("aws", "azure", "cudo", "do", "fluidstack", "gcp", "hyperbolic", "ibm", "lambda", "mithril"),
    *("nebius", "oci", "paperspace", "primeintellect", "runpod", "scp", "seeweb", "shadeform"),
    *("vast", "verda", "vsphere", "yotta"),
)
BARE_HOSTS = ("n1-",)  # machines that get their GPUs added


def rents_of_document(document: Any, where: str, rank: int | None = None) -> list[Rents]:
    """For every plan in what a file holds, or the one of a rank, its machines; none where none
    were chosen.
    """
    entries = [document]
    if isinstance(document, dict) and isinstance(document.get("plans"), list | tuple):
        entries = document["plans"]
    found = [_rents(entry, f"{where}: plans[{row}]") for row, entry in enumerate(entries)]
    return found if rank is None else found[rank - 1 : rank]


def _rents(entry: Any, where: str) -> Rents:
    money = entry.get("money") if isinstance(entry, dict) else None
    if not isinstance(money, dict):
        return ()
    return convert(money.get("rents", []), Rents, f"{where}.money.rents")


def resources(rents: Rents, gpu: str, accelerators: str) -> dict[str, Any]:
    """Where SkyPilot should look for a GPU type: cloud, region and machine as they were chosen.

    A chosen machine says its GPUs itself; they are named where a host gets them added, or where
    SkyPilot is to choose.
    """
    chosen = [rent for rent in rents if rent.gpu == gpu and rent.cloud != USER_CLOUD]
    if not chosen:
        return {"accelerators": accelerators, "use_spot": False}
    rent = chosen[0]
    if rent.cloud not in SKY_CLOUDS:
        raise InputError(
            f"--launcher skypilot: SkyPilot starts no machines at {rent.cloud}, where this plan "
            f"rents. Try --launcher kubernetes or slurm, or plan with --cloud {SKY_CLOUDS[0]}."
        )
    return {
        **({"accelerators": accelerators} if rent.instance.startswith(BARE_HOSTS) else {}),
        "cloud": rent.cloud,
        **({"region": rent.region} if rent.region != ANYWHERE else {}),
        "instance_type": rent.instance,
        "use_spot": rent.spot,
    }


def price_note(rents: Rents, gpu: str) -> str:
    """What an hour was reckoned at, as a comment."""
    notes = [
        f"# reckoned with ${rent.node_usd_per_hour:g} an hour for a node, price of "
        f"{rent.price_date}\n"
        for rent in rents
        if rent.gpu == gpu
    ]
    return "".join(notes[:1])
