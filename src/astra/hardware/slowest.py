"""Several GPU types taken for one: the least of each figure."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from astra.hardware.cluster import Gpu

RATES = (
    "bf16_flops_per_s",
    "fp16_flops_per_s",
    "tf32_flops_per_s",
    "fp8_flops_per_s",
    "fp4_flops_per_s",
    "fp32_flops_per_s",
)
SIZES = ("memory_bytes", "usable_bytes", "memory_bytes_per_s")


def slowest_gpu(gpus: Sequence[Gpu], base: Gpu) -> Gpu:
    """A GPU that is no better than any of these in memory, rates, links, domain and node.

    Its name, and so what was measured of its kernels, is that of `base`, the slowest of them.
    """
    nic = min((gpu.node for gpu in gpus), key=lambda node: node.nic_bytes_per_s)
    rams = [gpu.node.ram_bytes for gpu in gpus if gpu.node.ram_bytes is not None]
    least: dict[str, Any] = {name: min(getattr(gpu, name) for gpu in gpus) for name in SIZES}
    for name in RATES:
        rates = [getattr(gpu, name) for gpu in gpus]
        least[name] = None if None in rates else min(rates)
    link = replace(
        min((gpu.link for gpu in gpus), key=lambda link: link.bytes_per_s),
        peer_bytes_per_s=min(gpu.link.peer_bytes_per_s for gpu in gpus),
        domain_gpus=min(gpu.link.domain_gpus for gpu in gpus),
    )
    node = replace(
        nic,
        gpus=min(gpu.node.gpus for gpu in gpus),
        pcie_bytes_per_s=min(gpu.node.pcie_bytes_per_s for gpu in gpus),
        ram_bytes=min(rams, default=None),
    )
    return replace(base, **least, link=link, node=node)


def flops_per_s(gpu: Gpu, precision: str) -> float:
    """Dense rate in a format; 0 where it has no such units."""
    rate: float | None = getattr(gpu, f"{precision}_flops_per_s")
    return rate or 0.0
