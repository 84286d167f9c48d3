"""Measured collectives, as they lie in the folder of published tables."""

import csv
import gzip
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Gpu, Link
from astra.timing.link_curves import RING_RANKS, has_multicast_switch, link_class

READ_ON = "2026-11-15"
NAMES = {"alltoall": "all_to_all"}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
LARGE_BYTES = 8e9  # where a source prints a bandwidth "at large sizes" only
# Networks without RDMA, or broken ones: shown, never fitted.
NOT_RDMA = (
    "AWS p4d.24xlarge (HyperPod EKS)",
    "GCP a3-highgpu-8g",
    "CoreWeave H200 without InfiniBand",
)
SIMAI = "SimAI ratios, 8 x 400 Gbps assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured collective."""

    gpu: str
    collective: str
    ranks: int
    together: int  # ranks in one node or link domain
    nic_bytes_per_s: float  # 0: the typical one
    payload_bytes: float
    seconds: float
    system: str
    algorithm: str = ""
    link: str = ""  # over which of the GPU's links; empty: its first

    @property
    def place(self) -> str:
        return "inside" if self.together >= self.ranks else "across"


def read_collectives(folder: Path) -> Iterator[Row]:
    """The general table; a row with a bandwidth but no size counts as a large message."""
    with (folder / "collectives.csv").open(encoding="utf-8") as text:
        for line in csv.DictReader(text):
            collective = NAMES.get(line["collective"], line["collective"])
            if collective not in COLLECTIVES or not line["gpus"] or not line["nodes"]:
                continue
            gpu, ranks = find_gpu(line["gpu_id"])[0], int(line["gpus"])
            in_node = ranks // int(line["nodes"])
            size = float(line["message_bytes"] or LARGE_BYTES)
            wire = wire_fraction(collective, ranks) * size
            measured_us = float(line["time_us"] or 0)
            yield Row(
                gpu=gpu.name,
                collective=collective,
                ranks=ranks,
                together=min(ranks, max(in_node, gpu.link.domain_gpus if in_node > 1 else 1)),
                nic_bytes_per_s=float(line["nic_gbps_per_gpu"] or 0) * 1e9 / 8,
                payload_bytes=size,
                seconds=measured_us / 1e6 or wire / float(line["busbw_gbs"]) / 1e9,
                system=line["system"],
                algorithm=line["algorithm"],
            )


def read_rows(folder: Path) -> list[Row]:
    """All rows but those that were forced away from the algorithm that NCCL picks."""
    found = [*read_collectives(folder), *read_vtrain(folder), *read_simai(folder)]
    found += read_sailor(folder)
    return [row for row in found if not forced(row)]


def forced(row: Row) -> bool:
    adds = has_multicast_switch(find_gpu(row.gpu)[0])
    small_ring = row.place == "inside" and row.ranks > RING_RANKS and row.algorithm == "ring"
    four_nodes = row.place == "across" and row.algorithm == "NVLSTree"
    return row.collective == "all_reduce" and ((adds and small_ring) or four_nodes)


def doubtful(row: Row) -> bool:
    """Rows that are shown but never fitted: no RDMA, or the one bad box of eight of a GPU."""
    return row.system in NOT_RDMA or (row.gpu in ("L40S", "RTX-3090") and row.ranks == 8)


def wire_fraction(collective: str, ranks: int) -> float:
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


def read_vtrain(folder: Path) -> Iterator[Row]:
    """All-reduce in one node, 2 to 8 GPUs; every power of two of 1,024 sizes."""
    gpus = {"a100": "A100-80GB-SXM", "v100": "V100-32GB-SXM2"}
    for path in sorted((folder / "opdata" / "VIA-Research_vTrain").glob("nccl_allreduce_*.csv")):
        short, ranks = path.name.split("_")[2], int(path.name.split("GPU")[1][0])
        with path.open(encoding="utf-8") as text:
            for cells in list(csv.reader(text))[1:]:
                size = int(cells[0])
                if size & (size - 1) == 0:
                    yield Row(
                        gpu=gpus[short],
                        collective="all_reduce",
                        ranks=ranks,
                        together=ranks,
                        nic_bytes_per_s=0,
                        payload_bytes=size,
                        seconds=float(cells[3]) / 1e9,
                        system="vTrain",
                    )


SAILOR = "nodes of eth-easl/sailor @cf2c8e3 (MIT)"
SAILOR_GPUS = {
    "GH-96": "GH200-96GB",
    "RTX-2080": "RTX-2080-Ti",
    "RTX-3090": "RTX-3090",
    "Titan-RTX": "Titan-RTX",
    "V100-16": "V100-16GB-SXM2",
}


def read_sailor(folder: Path) -> Iterator[Row]:
    """All-reduces as PyTorch sees them. Of the boards without NVLink only RTX 3090s have bridges
    (a pair of them gets 44 GB/s, of the others 4), and those end where a group is larger.
    """
    home = folder / "opdata" / "eth-easl_sailor" / "aceso_op_profiles"
    with gzip.open(home / "collectives_all.csv.gz", "rt", encoding="utf-8") as text:
        for line in csv.DictReader(text):
            name, ranks = SAILOR_GPUS.get(line["gpu"]), int(line["gpus"])
            size, seconds = float(line["data_size(MB)"]), float(line["time(ms)"]) / 1e3
            if line["collective"] != "all_reduce" or not name or not size or seconds > 10:
                continue  # what did not run has a time of days
            hosted = name in ("RTX-2080-Ti", "Titan-RTX") or (name == "RTX-3090" and ranks > 2)
            if name == "RTX-3090" and hosted and size > 100:
                continue  # from here on four are twice as fast: a step that no curve follows
            yield Row(
                gpu=name,
                collective="all_reduce",
                ranks=ranks,
                together=ranks,
                nic_bytes_per_s=0,
                payload_bytes=size * 2**20,
                seconds=seconds,
                system=SAILOR,
                link="pcie" if hosted else "",
            )


def over(gpu: Gpu, link: str) -> Gpu:
    """The GPU as it is over a link, through the host for one."""
    if not link or link == link_class(gpu):
        return gpu
    rate = gpu.node.pcie_bytes_per_s
    host = Link(kind="PCIe", bytes_per_s=rate, peer_bytes_per_s=rate, domain_gpus=1)
    return replace(gpu, link=host)


def read_simai(folder: Path) -> Iterator[Row]:
    """Bus bandwidth over nominal NIC speed by size and nodes; the system is not named."""
    files = {"nic_ratio.csv": "all_gather", "ata_ratio.csv": "all_to_all"}
    for name, collective in files.items():
        with (folder / "opdata" / "aliyun_SimAI" / name).open(encoding="utf-8") as text:
            for line in csv.DictReader(text):
                for title, ratio in line.items():
                    if "Node-" not in title or not ratio:
                        continue
                    ranks = int(title.split("-")[1].split("GPU")[0])
                    one_nic = collective == "all_to_all"
                    if one_nic and ranks == 16:
                        continue  # the ratio of two nodes is not of the NIC's speed
                    wire = wire_fraction(collective, ranks) * float(line["Size"])
                    yield Row(
                        gpu="H100-80GB-SXM",
                        collective=collective,
                        ranks=ranks,
                        together=8,
                        nic_bytes_per_s=50e9,
                        payload_bytes=float(line["Size"]),
                        seconds=wire / (float(ratio) * 50e9 * (1 if one_nic else 8)),
                        system=SIMAI,
                    )


def read_other_releases(folder: Path) -> Iterator[Row]:
    """Sweeps of aiconfigurator with older NCCL releases: to check with, never fitted."""
    fitted = {"2.29.2"}
    gpus = {
        "b200_sxm": "B200",
        "b300_sxm": "B300",
        "gb200": "GB200",
        "gb300": "GB300",
        "h100_sxm": "H100-80GB-SXM",
        "h200_sxm": "H200-SXM",
    }
    for short, gpu in gpus.items():
        home = folder / "opdata" / "ai-dynamo_aiconfigurator" / short
        for path in sorted(home.glob("nccl_*.csv*")):
            release = path.name.removeprefix("nccl_").split(".csv")[0]
            if release in fitted:
                continue
            raw = path.read_bytes()
            text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
            for line in csv.DictReader(io.StringIO(text)):
                if line["nccl_dtype"] == "half":
                    ranks = int(line["num_gpus"])
                    yield Row(
                        gpu=gpu,
                        collective=NAMES.get(line["op_name"], line["op_name"]),
                        ranks=ranks,
                        together=ranks,
                        nic_bytes_per_s=0,
                        payload_bytes=2 * float(line["message_size"]),
                        seconds=float(line["latency"]) / 1e3,
                        system=f"NCCL {release}",
                    )
