"""Copies of the activations of whole layers to the host and back, and what of them shows."""

import numpy as np

from astra.strategy.plans import Floats, Ints
from astra.strategy.stage_view import StageView
from astra.timing.constants import timing_constants
from astra.timing.data_parallel import slots_by_gpu


def exposed_copies_s(copies_s: Floats, layers_s: Floats, layers: Ints, offloaded: Ints) -> Floats:
    """What compute does not hide of the copies of N out of M layers, in one pass. [s]

        T = max(0, N c - (M - 2) t)    for N < M - 1
        T = N c                        for N = M - 1

    `copies_s` is N c and `layers_s` is M t: c seconds for the copy of a layer, t for its work.
    Copies begin behind the first layer and follow each other; layer M - N + i waits for that of
    layer i, so that no more than M - N layers are ever held. Backward is the mirror image.
    Transformer Engine 2.10, transformer_engine/pytorch/cpu_offload.py. Holds for equal layers.
    """
    beside_s = layers_s * np.maximum(layers - 2, 0) / np.maximum(layers, 1)
    return np.where(offloaded + 1 < layers, np.maximum(copies_s - beside_s, 0.0), copies_s)


def over_host_link_s(view: StageView, moved_bytes: Floats) -> Floats:
    """What so many bytes of one GPU take to the memory of its host. (pipeline, slot, plan) [s]"""
    found = moved_bytes
    for gpu, here in slots_by_gpu(view):
        rate = timing_constants().optimizer.bandwidth_fraction * gpu.node.pcie_bytes_per_s
        found = np.where(here, moved_bytes / rate, found)
    return found
