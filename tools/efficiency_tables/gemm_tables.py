"""Tables of matrix products: the smoothest through the measurements, or filled in by trees."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg
from tools.efficiency_tables import boosted
from tools.efficiency_tables.measurements import Products, azure_products
from tools.efficiency_tables.report import Report

from astra.hardware.cluster import Gpu
from astra.timing.efficiency import SOFT_PEAK
from astra.timing.gemm import Floats, GemmTable, corners, rising

RAMP_S = 2e-6
STEADY_FROM_S = 30e-6
SMOOTH = 0.3
# Of the smooth table's error: trees that gain less do not ship. Smaller gains are habits of the
# inference kernels: on our own timings of an H200, and on Azure's of three GPUs, they were none.
BETTER = 0.67
SHORT = np.array([64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768.0])
LONG = np.array([64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536.0])


def fit_table(seen: Products, gpu: Gpu) -> GemmTable:
    """The smoothest table through the measurements that falls along no axis.

    Least squares on what the roofline leaves over, with a penalty on bends, so that corners
    nobody measured are filled along the roofline.
    """
    axes = (SHORT[np.minimum(seen.m, seen.n).max() >= SHORT], LONG, LONG)
    return _table(axes, seen.shape, np.log(seen.seconds), np.ones(len(seen.m)), gpu, SMOOTH)


def boosted_table(seen: Products, gpu: Gpu) -> GemmTable:
    """The same on a fine grid, through the measurements and what trees answer at its corners."""
    short, long, depth = seen.shape
    asked = boosted.trees(seen.shape, np.log(seen.seconds), gpu, _prior(gpu))
    axes = (boosted.SHORT[short.max() >= boosted.SHORT], boosted.LONG, boosted.DEPTH)
    corner = np.stack(np.meshgrid(*axes, indexing="ij")).reshape(3, -1)
    known = (corner[0] <= corner[1]) & (corner[1] <= long.max()) & (corner[2] <= depth.max())
    corner = corner[:, known]
    shape = tuple(np.concatenate(pair) for pair in zip(seen.shape, corner, strict=True))
    log_s = np.concatenate([np.log(seen.seconds), asked(*corner)])
    weight = np.concatenate([np.ones(len(short)), np.full(len(corner[0]), boosted.WEIGHT)])
    return _table(axes, shape, log_s, weight, gpu, boosted.SMOOTH)


def _prior(gpu: Gpu) -> boosted.Roofline:
    return boosted.Roofline(SOFT_PEAK * bf16_peak(gpu), SOFT_PEAK * gpu.memory_bytes_per_s, RAMP_S)


def _table(
    axes: Sequence[Floats],
    shape: Sequence[Floats],
    log_s: Floats,
    weight: Floats,
    gpu: Gpu,
    smooth: float,
) -> GemmTable:
    prior = _prior(gpu)(*np.meshgrid(*axes, indexing="ij"))
    near = corners(axes, shape)
    left = log_s - sum(part * prior.ravel()[index] for index, part in near)
    for axis, x in zip(axes, shape, strict=True):  # the table lets time grow with a side beyond it
        left = left - np.log(np.maximum(x / axis[-1], 1.0))
    root = np.sqrt(weight)
    weighed = [(index, part * root) for index, part in near]
    fitted = prior + smoothest(axes, weighed, left * root, smooth)
    above = rising(fitted)
    below = -rising(-fitted[::-1, ::-1, ::-1])[::-1, ::-1, ::-1]
    return GemmTable(short=axes[0], long=axes[1], depth=axes[2], log_s=(above + below) / 2)


def bf16_peak(gpu: Gpu) -> float:
    assert gpu.bf16_flops_per_s is not None
    return gpu.bf16_flops_per_s


def smoothest(
    axes: Sequence[Floats], near: list[tuple[Any, Floats]], left: Floats, smooth: float
) -> Floats:
    """Minimises |A x - left|^2 + smooth |bends of x|^2 by conjugate gradients.

    A fine grid ends after 400 rounds, short of the tolerance.
    """
    shape = tuple(len(axis) for axis in axes)
    size = int(np.prod(shape))
    bends = [_bend_matrix(np.log(axis)) for axis in axes]

    def curve(x: Floats) -> Floats:
        cube, total = x.reshape(shape), np.zeros(shape)
        for axis, bend in enumerate(bends):
            part = np.tensordot(bend, cube, axes=(1, axis))
            total += np.moveaxis(part, 0, axis)
        return total.ravel()

    def normal(x: Floats) -> Floats:
        seen = sum(weight * x[index] for index, weight in near)
        return spread(np.asarray(seen)) + smooth * curve(x) + 1e-6 * x

    def spread(y: Floats) -> Floats:
        total = np.zeros(size)
        for index, weight in near:
            total += np.bincount(index, weight * y, size)
        return total

    found, _ = cg(LinearOperator((size, size), normal), spread(left), rtol=1e-6, maxiter=400)
    return np.asarray(found, np.float64).reshape(shape)


def _bend_matrix(logs: Floats) -> Floats:
    """The quadratic form of second differences on an uneven axis."""
    steps = np.diff(logs)
    slopes = np.diff(np.eye(len(logs)), axis=0) / steps[:, None]
    bends = np.diff(slopes, axis=0) * (0.5 * np.sqrt(steps[1:] + steps[:-1]))[:, None]
    return bends.T @ bends


def table_errors(report: Report, name: str, seen: Products, gpu: Gpu) -> GemmTable | None:
    """A table by trees, where that is better by a third at the sizes of training.

    Told by tables made without the pairs held back, on those pairs; reports both.
    """
    held = seen.held
    test = seen.take(held)
    large = (np.minimum(test.m, np.minimum(test.n, test.k)) >= 512) & (test.flops > 2e10)
    base = "raw inference kernels, pairs held back"
    off = {}
    for make, how in ((fit_table, "smooth"), (boosted_table, "trees")):
        table = make(seen.take(~held), gpu)
        ratio = table.seconds(test.m, test.n, test.k) / test.seconds
        report.add(name, "bf16", f"product, all shapes, {how}", base, ratio)
        report.add(name, "bf16", f"product, training sizes, {how}", base, ratio[large])
        off[how] = float(np.abs(ratio[large] - 1).mean())
    return boosted_table(seen, gpu) if off["trees"] < BETTER * off["smooth"] else None


def slowdown(table: GemmTable, seen: Products) -> float:
    """The f of `sustained_s` that makes half of the longer kernels too slow, half too fast."""
    burst_s = table.seconds(seen.m, seen.n, seen.k)
    keep = burst_s > 2 * STEADY_FROM_S
    burst_s = burst_s[keep]
    factors = 1 + (seen.seconds[keep] / burst_s - 1) * (burst_s + STEADY_FROM_S) / burst_s
    return float(np.median(factors))


def slowdown_fp8(folder: Path, name: str, table: GemmTable) -> float:
    """Steady load over bursts, told by fp8 products at twice the peak."""
    seen = azure_products(folder, name, "fp8")
    return slowdown(table, Products(seen.m, seen.n, seen.k, 2 * seen.seconds))
