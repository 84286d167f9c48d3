"""Prices that the user gives: `--price h100=2.49`, GPUs that are owned, a cluster file's."""

import math
from collections.abc import Sequence

from astra.errors import InputError, shorten
from astra.hardware.catalogue import find_gpu, normalized_name
from astra.hardware.cluster import Gpu
from astra.money.catalogue import MAX_USD_PER_HOUR, Instance, Offer, PriceFrom

YEAR_H = 8766.0  # hours of a year
PUE = 1.3  # guessed: what cooling and supply add to the power of the machines
PRICES_FORM = "The form is GPU=USD[,GPU=USD...], such as h100=2.49,a100-80g=1.29."
LIST_PRICE_OF = "list price of"  # how the source of a price begins that others ask for nodes alike
HOST_FRACTION = 0.2  # guessed: power of a node's other parts beside its GPUs


def parse_prices(
    text: str, where: str = "--price", most: float = MAX_USD_PER_HOUR, user_gpus: Sequence[Gpu] = ()
) -> dict[str, float]:
    """`h100=2.49,a100-80g=1.29`: USD for an hour of one GPU, by its full name.

    `user_gpus`: GPUs that go by their names here before those of the catalogue.
    """
    found: dict[str, float] = {}
    for entry in text.split(","):
        name, equals, amount = (part.strip() for part in entry.partition("="))
        if not equals or not name or not amount:
            raise InputError(f"{where} {shorten(entry.strip())}: not GPU=USD. {PRICES_FORM}")
        full = gpu_named(name, user_gpus, where).name
        if full in found:
            raise InputError(f"{where}: {full} is given twice.")
        found[full] = parse_usd(amount, f"{where} {name}", most)
    return found


def gpu_named(name: str, user_gpus: Sequence[Gpu], where: str) -> Gpu:
    """One of the GPUs at hand, else one of the catalogue."""
    for gpu in user_gpus:
        if normalized_name(gpu.name) == normalized_name(name):
            return gpu
    try:
        return find_gpu(name)[0]
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def parse_usd(text: str, where: str, most: float = MAX_USD_PER_HOUR) -> float:
    """Dollars as people write them: 2.49, $2.49, 400k, 1.5M, 400_000."""
    amount = text.strip().removeprefix("$").replace("_", "").replace(",", "")
    scale = {"k": 1e3, "m": 1e6, "b": 1e9}.get(amount[-1:].lower(), 1.0)
    digits = amount[:-1] if scale > 1 else amount
    try:
        value = float(digits) * scale
    except ValueError:
        raise InputError(f"{where} = {shorten(text)}: not an amount of USD. Try 2.49.") from None
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{where} = {shorten(text)}: an amount of USD is 0 or more.")
    if value > most:
        raise InputError(f"{where} = {shorten(text)}: more than {most:,.0f} USD is not believable.")
    return value


def user_offer(
    gpu: Gpu,
    usd_per_gpu_hour: float,
    date: str,
    spot: bool = False,
    source: str = "--price",
    price_from: PriceFrom = "user",
    owned_usd_per_gpu_hour: float = 0.0,
) -> Offer:
    """GPUs in the nodes they are known in, at a price that is not a cloud's for just these."""
    machine = Instance(
        cloud="given",
        instance=f"{gpu.node.gpus} x {gpu.name}",
        gpu=gpu.name,
        gpus=gpu.node.gpus,
        nic_bytes_per_s=gpu.node.nic_bytes_per_s,
        domain_gpus=gpu.link.domain_gpus,
        rdma=True,
        certainty="high",
        network_source="the catalogue's typical node, or the cluster file",
        ram_bytes=gpu.node.ram_bytes,
    )
    return Offer(
        machine=machine,
        region="given",
        usd_per_hour=usd_per_gpu_hour * gpu.node.gpus,
        spot=spot,
        date=date,
        source=source,
        price_from=price_from,
        owned_usd_per_hour=owned_usd_per_gpu_hour * gpu.node.gpus,
    )


def owned_usd_per_gpu_hour(
    gpu: Gpu, purchase_usd: float, years: float, usd_per_kwh: float, pue: float = PUE
) -> dict[str, float]:
    """What an hour of a GPU of one's own costs, term by term. [USD/h]

    purchase / (years x 8766 h)  +  power x (1 + host) x PUE x price of a kWh
    """
    needed = "--power-price cannot be used. Try a price an hour with --price"
    watts = site_w(gpu, pue, needed) if usd_per_kwh else 0.0
    return {
        "amortisation": purchase_usd / (years * YEAR_H),
        "power": watts / 1e3 * usd_per_kwh,
    }


def site_w(gpu: Gpu, pue: float, needed: str) -> float:
    """Power of a GPU with its share of the host and of the site. [W]

    power limit x (1 + host) x PUE; `needed`: what cannot be told where it is not known.
    """
    if gpu.power_w is None:
        raise InputError(
            f"{gpu.name}: its power is not known, so {needed}, or give power_w in a GPU file."
        )
    return gpu.power_w * (1 + HOST_FRACTION) * pue
