"""What the GPUs of a question can be rented for: prices that were given, or the catalogue's."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from astra.errors import InputError, NoPriceError
from astra.hardware.cluster import Cluster, Pool
from astra.hardware.pools import gpu_specs, is_user_described
from astra.money.catalogue import (
    Offer,
    PriceFrom,
    filter_offers,
    joins,
    machine_gpu,
    offers_at,
)
from astra.money.conditions import Conditions, OwnedGpus
from astra.money.left_out import holds_a_job, offer_notes
from astra.money.options import MoneyOptions, owned_cost_terms, split_names, today, user_gpu_prices
from astra.money.user_prices import LIST_PRICE_OF, user_offer
from astra.notes import Note, NoteCode, note

ALIKE = 0.9  # a network of at least so many times the speed is taken for as good


def offers_of(options: MoneyOptions, cluster: Cluster) -> list[Offer]:
    """What can be rented: prices that were given, else the catalogue's, for every GPU type.

    Nodes that a file describes stay as they are, whoever's price it is.
    """
    gpus = [pool.gpu for pool in cluster.pools]
    prices, owned = user_gpu_prices(options, gpus), owned_cost_terms(options, gpus)
    given = _priced_pools(cluster, prices, owned, today(), options.spot)
    priced = {offer.machine.gpu for offer in given}
    listed = catalogue_of(options, cluster)
    if len(priced) == len(cluster.pools) and (options.cloud or options.region):
        raise InputError(
            f"{'--cloud' if options.cloud else '--region'} {options.cloud or options.region}: "
            "every price is given, so none is looked up there. Leave out the place or a price."
        )
    found = given
    for pool in cluster.pools:
        if pool.gpu.name not in priced:
            sold = [offer for offer in listed if offer.machine.gpu == pool.gpu.name]
            sold = [offer for offer in sold if holds_a_job(offer)] or sold
            if not sold:
                raise _no_price(pool, "there" if options.cloud or options.region else "")
            found += _in_own_nodes(pool, sold) if is_user_described(pool) else sold
    return found


def catalogue_of(options: MoneyOptions, cluster: Cluster) -> list[Offer]:
    """What the price lists have of these GPUs, where and how it may be rented."""
    clouds = split_names(options.cloud)
    catalogue = offers_at(clouds) if options.offers is None else options.offers
    listed = filter_offers(catalogue, clouds, split_names(options.region), options.spot)
    names = {pool.gpu.name for pool in cluster.pools}
    return [offer for offer in listed if offer.machine.gpu in names]


def with_prices(options: MoneyOptions, cluster: Cluster, offers: Sequence[Offer]) -> MoneyOptions:
    """With the prices that were given, wherever they were: so the same can be asked again."""
    if options.offers is not None:
        options = replace(options, offers=tuple(catalogue_of(options, cluster)))
    given = {
        offer.machine.gpu: offer.usd_per_gpu_hour for offer in offers if offer.price_from == "user"
    }
    return replace(options, price=given) if given else options


def _no_price(pool: Pool, there: str) -> NoPriceError:
    return NoPriceError(
        f"no price of {pool.gpu.name} is known{there and f' {there}'}. Give one: "
        f"--price {pool.gpu.name}=2.49 (USD for an hour of one GPU), or usd_per_hour in a "
        "cluster file."
    )


def _in_own_nodes(pool: Pool, sold: Sequence[Offer]) -> list[Offer]:
    """Nodes that were described, at the price of the cheapest ones like them.

    Where just these are for rent, they are; else nodes of as many GPUs lend their price, rather
    those with a network that is as fast. On demand and spot apart.
    """
    name, ram = pool.gpu.name, pool.gpu.node.ram_bytes
    own = gpu_specs(replace(pool.gpu, node=replace(pool.gpu.node, ram_bytes=None)))
    same = [
        offer
        for offer in sold
        if gpu_specs(machine_gpu(offer.machine)) == own and ram in (None, offer.machine.ram_bytes)
    ]
    if same:
        return same
    alike = [offer for offer in sold if offer.machine.gpus == pool.gpu.node.gpus]
    if not alike:
        sizes = ", ".join(map(str, sorted({offer.machine.gpus for offer in sold})))
        raise NoPriceError(
            f"no price of nodes of {pool.gpu.node.gpus} {name} is known: those for rent have "
            f"{sizes}. Give one: usd_per_hour in the cluster file, or --price {name}=2.49 (USD "
            "for an hour of one GPU)."
        )

    def promise(offer: Offer) -> tuple[bool, float]:
        least = ALIKE * pool.gpu.node.nic_bytes_per_s
        fast = joins(offer.machine) and offer.machine.nic_bytes_per_s >= least
        return not fast, offer.usd_per_hour

    best: dict[bool, Offer] = {}
    for offer in sorted(alike, key=promise):
        best.setdefault(offer.spot, offer)
    return [
        user_offer(
            pool.gpu,
            offer.usd_per_gpu_hour,
            offer.date,
            offer.spot,
            f"{LIST_PRICE_OF} {' '.join(dict.fromkeys((*offer.place, offer.machine.instance)))}",
            price_from="described",
        )
        for offer in best.values()
    ]


def price_notes(options: MoneyOptions, cluster: Cluster, offers: Sequence[Offer]) -> list[Note]:
    """Whose price nodes have that were described without one; what is left out, or assumed."""
    listed = catalogue_of(options, cluster)
    others = offer_notes(options, listed, offers)
    return others + [
        note(
            NoteCode.LIST_PRICE,
            gpu=offer.machine.gpu,
            usd_per_gpu_hour=offer.usd_per_gpu_hour,
            source=offer.source,
            spot=offer.spot,
            date=offer.date,
        )
        for offer in offers
        if offer.price_from == "described"
    ]


def offers_together(
    gpus: Mapping[str, int], cluster: Cluster, offers: Sequence[Offer], anywhere: bool
) -> dict[str, Offer]:
    """An offer of each GPU type of a plan in a node like the one it is planned in, the cheapest in
    all: of one cloud and region, unless `anywhere`. Prices that were given hold in any place.

    For plans that are given or searched for time alone: their machines are the cluster's.
    """
    nodes = {pool.gpu.name: pool.gpu.node for pool in cluster.pools}
    sold: dict[tuple[str, str], dict[str, list[Offer]]] = {}
    own = [offer for offer in offers if offer.machine.gpu in gpus]
    for place in dict.fromkeys(("", "") if anywhere else offer.place for offer in own):
        for offer in own:
            if anywhere or offer.place == place or offer.machine.cloud == "given":
                there = sold.setdefault(place, {})
                there.setdefault(offer.machine.gpu, []).append(offer)

    def unlike(offer: Offer) -> tuple[bool, bool, float]:
        node, machine = nodes[offer.machine.gpu], offer.machine
        slow = machine.nic_bytes_per_s < ALIKE * node.nic_bytes_per_s
        return machine.gpus != node.gpus, slow, offer.usd_per_gpu_hour

    choices = [
        {name: min(there[name], key=unlike) for name in gpus}
        for there in sold.values()
        if len(there) == len(gpus)
    ]
    if not choices:
        raise NoPriceError(
            f"{' and '.join(gpus)} are not for rent together in one cloud and region, so the plan "
            "has no price. Give prices of your own with --price, or --any-region to rent them in "
            "several."
        )

    def total(choice: Mapping[str, Offer]) -> tuple[int, float]:
        odd = sum(any(unlike(offer)[:2]) for offer in choice.values())
        return odd, sum(gpus[name] * offer.usd_per_gpu_hour for name, offer in choice.items())

    return min(choices, key=total)


def conditions_of_owner(
    options: MoneyOptions, cluster: Cluster, conditions: Conditions
) -> Conditions:
    """With the GPUs that one owns, in whole nodes, all of which are paid for."""
    terms = owned_cost_terms(options, [pool.gpu for pool in cluster.pools])
    owned = tuple(
        OwnedGpus(
            gpu=pool.gpu.name,
            count=-(-pool.count // pool.gpu.node.gpus) * pool.gpu.node.gpus,
            usd_per_gpu_hour=terms[pool.gpu.name]["amortisation"],
        )
        for pool in cluster.pools
        if pool.gpu.name in terms
    )
    return replace(conditions, owned=owned)


def _priced_pools(
    cluster: Cluster,
    prices: dict[str, float],
    owned: dict[str, dict[str, float]],
    date: str,
    spot: bool,
) -> list[Offer]:
    """Offers of the pools whose price was given, on the command line or in the file."""
    found = []
    for pool in cluster.pools:
        price = prices.get(pool.gpu.name, pool.usd_per_hour)
        if price is not None:
            source = "--price" if pool.gpu.name in prices else f"cluster {cluster.name}"
            terms = owned.get(pool.gpu.name)
            if terms:
                parts = (f"${cost:.4f}/h {what}" for what, cost in terms.items())
                source = f"owned: {' + '.join(parts)}"
            price_from: PriceFrom = "owned" if terms else "user"
            standing = terms["amortisation"] if terms else 0.0
            is_spot = spot and not terms
            found.append(user_offer(pool.gpu, price, date, is_spot, source, price_from, standing))
    for name in prices:
        if name not in {pool.gpu.name for pool in cluster.pools}:
            raise InputError(f"--price {name}: it is not among the GPUs. Add it to --gpus.")
    return found
