"""Whose GPUs can be part of one job.

The collectives of a job run in one library, and each vendor has its own: NCCL (NVIDIA), RCCL
(AMD), HCCL (Intel Gaudi). They share an interface, not a protocol: ranks of two of them fail to
form a group (ROCm/rccl issue 1220), and no released framework joins them (arXiv 2601.22585).
"""

from msgspec.structs import replace

from astra.hardware.cluster import Cluster, Gpu
from astra.notes import Note, NoteCode, note

LIBRARIES = {"AMD": "RCCL", "Intel": "HCCL", "NVIDIA": "NCCL"}
DEFAULT_VENDOR = "NVIDIA"  # where a GPU's own file names no vendor


def vendor_of(gpu: Gpu) -> str:
    """Who makes it, in one spelling."""
    said = (gpu.vendor or DEFAULT_VENDOR).strip()
    known = (name for name in LIBRARIES if said.upper().startswith(name.upper()))
    return next(known, said)


def by_vendor(cluster: Cluster) -> tuple[Cluster, ...]:
    """The same with the pools of one vendor each: what a job can use."""
    names = sorted({vendor_of(pool.gpu) for pool in cluster.pools})
    return tuple(
        replace(cluster, pools=tuple(p for p in cluster.pools if vendor_of(p.gpu) == name))
        for name in names
    )


def vendor_note(cluster: Cluster) -> Note | None:
    """Why GPUs of a cluster are not joined; None where they may be."""
    names = sorted({vendor_of(pool.gpu) for pool in cluster.pools})
    if len(names) < 2:
        return None
    libraries = [LIBRARIES.get(name, f"that of {name}") for name in names]
    return note(NoteCode.VENDORS_APART, vendors=names, libraries=libraries)
