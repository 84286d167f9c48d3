"""The shipped price catalogue out of a folder with `prices.csv`, `networks.csv` and `gpus.csv`.

    python -m tools.make_price_table FOLDER

List prices alone: no auction floors, no offers of market places. What is older than half a year
goes to a file of its own, for who asks for it. Of instances with the same GPUs and the same network
in one region the cheapest stays, and those with more RAM than any that is no dearer.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path

OUT = Path(__file__).parents[1] / "src" / "astra" / "data" / "prices"
SIZES = (1, 2, 4, 8, 16)  # GPUs of a node that plans can fill
PLAIN_GBPS = 25.0  # of a node whose cloud publishes nothing: one port
PLAIN = "guessed: one 25 Gbps port a node, for want of anything published"
TYPICAL = "guessed: the GPU's typical NICs, as this cloud joins its other 8-GPU nodes by RDMA"
Row = dict[str, str]


def read(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def network_of(
    row: Row,
    known: dict[tuple[str, str], Row],
    gpus: dict[str, Row],
    sold: set[tuple[str, str]],
) -> Row:
    """NIC and link domain of an instance, and where they come from."""
    said = known.get((row["cloud"], row["instance_type"]))
    count, part = int(row["gpu_count"]), gpus[row["gpu_id"]]
    domain = min(int(part["gpus_per_link_domain"]), count)
    if said and said["gbps_per_gpu"]:
        return {
            "nic_gbps_per_gpu": f"{float(said['gbps_per_gpu']):g}",
            "domain_gpus": said["gpus_per_link_domain"] or str(domain),
            "rdma": "yes" if said["rdma"] == "yes" else "no",
            "certainty": said["certainty"],
            "network_source": said["source"],
        }
    joins = any(
        row["cloud"] == cloud and other["rdma"] == "yes" and other["gpus"] == "8"
        for (cloud, instance), other in known.items()
        if (cloud, instance) in sold
    )
    typical = joins and count == 8
    speed = float(part["typical_nic_gbps_per_gpu"]) if typical else PLAIN_GBPS / count
    return {
        "nic_gbps_per_gpu": f"{speed:g}",
        "domain_gpus": str(domain),
        "rdma": "yes" if typical else "no",
        "certainty": "guessed",
        "network_source": TYPICAL if typical else PLAIN,
    }


def usable(row: Row, stale: str) -> bool:
    fresh = row["stale"] == stale and row["price_kind"] == "list"
    priced = row["ondemand_usd_h_min"] or row["spot_usd_h_min"]
    return bool(fresh and priced and row["gpu_id"] and int(row["gpu_count"]) in SIZES)


def cheapest(rows: list[Row], networks: dict[tuple[str, str], Row]) -> list[Row]:
    """Of instances alike in GPUs and network in one region: the cheapest on demand, and on spot,
    and those that have more RAM than any that is no dearer."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        net = networks[row["cloud"], row["instance_type"]]
        key = (row["cloud"], row["region"], row["gpu_id"], row["gpu_count"])
        groups[(*key, net["nic_gbps_per_gpu"], net["domain_gpus"])].append(row)
    kept = []
    for group in groups.values():
        best = set()
        for name in ("ondemand_usd_h_min", "spot_usd_h_min"):
            most = -1.0
            for row in sorted(
                (r for r in group if r[name]), key=lambda r: (float(r[name]), -ram_gib(r))
            ):
                if ram_gib(row) > most:
                    most = ram_gib(row)
                    best.add(row["instance_type"])
        kept += [row for row in group if row["instance_type"] in best]
    return kept


def ram_gib(row: Row) -> float:
    """0 where the list does not say."""
    return float(row["memory_gib"] or 0)


def ram_of(rows: list[Row]) -> dict[tuple[str, str], str]:
    """RAM of every instance that a list tells it of; the least where lists differ by region."""
    found: dict[tuple[str, str], float] = {}
    for row in rows:
        if ram_gib(row):
            key = (row["cloud"], row["instance_type"])
            found[key] = min(ram_gib(row), found.get(key, ram_gib(row)))
    return {key: f"{gib:g}" for key, gib in found.items()}


def write_offers(rows: list[Row], path: Path) -> list[Row]:
    """A line for each instance and price, with all its regions."""
    offers: dict[tuple[str, ...], list[str]] = defaultdict(list)
    names = ("cloud", "instance_type", "ondemand_usd_h_min", "spot_usd_h_min", "price_date")
    for row in rows:
        offers[tuple(row[name] for name in names)].append(row["region"] or "any")
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(
            ["cloud", "instance", "usd_per_hour", "spot_usd_per_hour", "date", "regions"]
        )
        for offer in sorted(offers):
            table.writerow([*offer, " ".join(sorted(offers[offer]))])
    print(f"{path.name}: {len(offers)} offers")
    return rows


def main(folder: Path) -> None:
    known = {(r["cloud"], r["instance_type"]): r for r in read(folder / "networks.csv")}
    gpus = {r["gpu_id"]: r for r in read(folder / "gpus.csv")}
    listed = read(folder / "prices.csv")
    ram, networks, rows = ram_of(listed), dict[tuple[str, str], Row](), list[Row]()
    sold: set[tuple[str, str]] = set()
    for path, stale in (("offers.csv", "no"), ("old_offers.csv", "yes")):
        own = [row for row in listed if usable(row, stale)]
        sold |= {(r["cloud"], r["instance_type"]) for r in own}
        networks |= {
            (r["cloud"], r["instance_type"]): network_of(r, known, gpus, sold) for r in own
        }
        rows += write_offers(cheapest(own, networks), OUT / path)
    shown = {(r["cloud"], r["instance_type"], r["gpu_id"], r["gpu_count"]) for r in rows}
    for (cloud, instance), row in known.items():  # for price lists of the user's own
        if cloud != "reference" and " " not in instance and row["gbps_per_gpu"]:
            said = {"gpu_id": row["gpu_id"], "gpu_count": row["gpus"], "cloud": cloud}
            networks[cloud, instance] = network_of(
                said | {"instance_type": instance}, known, gpus, sold
            )
            shown.add((cloud, instance, row["gpu_id"], row["gpus"]))
    with (OUT / "instances.csv").open("w", newline="", encoding="utf-8") as file:
        columns = ("nic_gbps_per_gpu", "domain_gpus", "rdma", "certainty", "network_source")
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["cloud", "instance", "gpu", "gpus", "ram_gib", *columns])
        for cloud, instance, gpu, count in sorted(shown):
            net = networks[cloud, instance]
            gib = ram.get((cloud, instance), "")  # empty: the list does not say
            table.writerow([cloud, instance, gpu, count, gib, *(net[name] for name in columns)])
    print(f"{len(shown)} instance types")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
