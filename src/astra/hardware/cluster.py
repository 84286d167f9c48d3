"""GPUs, the nodes and links they sit in, and pools of them. Nothing about transformers."""

from typing import Annotated

import msgspec
from msgspec import Meta

from astra.files import USER, Source

Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1, le=10**7)]


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What joins the GPUs of one link domain (NVLink, xGMI, PCIe)."""

    kind: str
    bytes_per_s: Positive  # one direction, all links of a GPU
    peer_bytes_per_s: Positive  # one direction, to a single peer
    domain_gpus: Count  # GPUs that reach each other over it; 1: only through the host


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine a GPU is rented in."""

    gpus: Count
    nic_bytes_per_s: Positive  # per GPU, one direction
    nics: Count | None = None  # that the GPUs share; None: each has its own
    pcie_bytes_per_s: Positive  # per GPU to its host, one direction
    ram_bytes: Positive | None = None  # of the whole node, for what is offloaded; None: not known


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator type. Rates are dense (no 2:4 sparsity); None where it has no such unit.

    >>> import astra
    >>> h100, how_read = astra.find_gpu("h100")
    >>> h100
    Gpu(H100-80GB-SXM, 80 GB)
    >>> astra.predict("llama-3-8b", gpus={h100: 8}, global_batch=32, seq_len=4096).gpus
    {'H100-80GB-SXM': 8}
    """

    name: str
    memory_bytes: Positive  # as sold
    usable_bytes: Positive  # what torch.cuda.mem_get_info calls total
    memory_bytes_per_s: Positive
    bf16_flops_per_s: Positive | None = None
    fp16_flops_per_s: Positive | None = None
    tf32_flops_per_s: Positive | None = None
    fp8_flops_per_s: Positive | None = None
    fp4_flops_per_s: Positive | None = None
    fp32_flops_per_s: Positive | None = None  # vector units
    vendor: str | None = None
    architecture: str | None = None
    form_factor: str | None = None
    compute_capability: str | None = None
    power_w: Positive | None = None
    aliases: tuple[str, ...] = ()
    link: Link
    node: Node
    assumed: tuple[str, ...] = ()  # fields the source left open, in words
    source: Source = USER

    def __repr__(self) -> str:
        return f"Gpu({self.name}, {self.memory_bytes / 1e9:g} GB)"


class Pool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs of one type: at most `count` of them."""

    gpu: Gpu
    count: Count
    usd_per_hour: Annotated[float, Meta(ge=0)] | None = None  # of one GPU
    described: bool = False  # a file says what its nodes are like: no others stand in for them


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What there is to run on: a cap per type, and perhaps on the total.

    >>> import astra
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096)
    >>> cluster = priced.plan.cluster
    >>> cluster
    Cluster(8 H100-80GB-SXM)
    >>> same = astra.predict("llama-3-8b", cluster=cluster, global_batch=32, seq_len=4096)
    >>> same.step_s == priced.step_s
    True
    """

    name: str
    pools: tuple[Pool, ...]
    max_gpus: Count | None = None

    def __repr__(self) -> str:
        pools = ", ".join(f"{pool.count} {pool.gpu.name}" for pool in self.pools)
        return f"Cluster({pools})"
