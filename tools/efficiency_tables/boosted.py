"""Products by gradient-boosted trees on what the roofline leaves over, distilled into a table.

The trees (XGBoost, extra `fit`) see the sides of a product and how well tiles fill the
multiprocessors, and are asked at every corner of a fine grid. What ships is the table: between
its corners the search interpolates with NumPy, as before.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from astra.hardware.cluster import Gpu
from astra.timing.gemm import Floats, moved_bytes, roofline_s

# Multiprocessors, as the vendor's data sheets have them.
PROCESSORS = {
    "A100-80GB-SXM": 108,
    "H100-80GB-SXM": 132,
    "H200-SXM": 132,
    "B200": 148,
    "B300": 148,
    "GB200": 148,
    "GB300": 148,
    "L40S": 142,
    "RTX-PRO-6000-Blackwell-SE": 188,
}
TILES = ((128, 128), (128, 256), (256, 128), (64, 128), (64, 64))
SETTINGS = {
    "max_depth": 7,
    "eta": 0.08,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "min_child_weight": 4,
    "nthread": 1,
    "seed": 0,
}
ROUNDS = 400
SHORT = np.array(
    [64, 96, 128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584,
     4096, 5120, 6144, 7168, 8192, 10240, 12288, 16384, 32768.0]
)  # fmt: skip
LONG = np.array(
    [64, 128, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192,
     10240, 12288, 14336, 16384, 20480, 24576, 28672, 36864, 51200, 65536.0]
)  # fmt: skip
DEPTH = np.array(
    [64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192,
     10240, 12288, 14336, 16384, 28672, 65536.0]
)  # fmt: skip
WEIGHT = 3.0  # of an answer of the trees, where a measured shape counts 1
SMOOTH = 0.003

LogSeconds = Callable[[Floats, Floats, Floats], Floats]


@dataclass(frozen=True, slots=True)
class Roofline:
    """The prior: log seconds of a product at a share of peak and bandwidth."""

    flops_per_s: float
    bytes_per_s: float
    ramp_s: float

    def __call__(self, rows: Floats, columns: Floats, depth: Floats) -> Floats:
        moved = moved_bytes(rows, columns, depth, 2, 2)
        flops = 2 * rows * columns * depth
        return np.log(roofline_s(flops, moved, self.flops_per_s, self.bytes_per_s, self.ramp_s))


def features(short: Floats, long: Floats, depth: Floats, processors: int) -> Floats:
    """Sides, work, and the share of the last wave of tiles that is filled."""
    columns = [np.log(short), np.log(long), np.log(depth), np.log(short * long * depth)]
    for high, wide in TILES:
        waves = np.ceil(np.ceil(short / high) * np.ceil(long / wide) / processors)
        columns.append(short * long / (waves * processors * high * wide))
    return np.stack(columns, axis=1)


def trees(
    shape: tuple[Floats, Floats, Floats], log_s: Floats, gpu: Gpu, prior: LogSeconds
) -> LogSeconds:
    """Log seconds of any product, by trees fitted on these (short, long, depth)."""
    import xgboost

    processors = PROCESSORS[gpu.name]
    data = xgboost.DMatrix(features(*shape, processors), label=log_s - prior(*shape))
    found = xgboost.train(SETTINGS, data, num_boost_round=ROUNDS)

    def asked(short: Floats, long: Floats, depth: Floats) -> Floats:
        rows = xgboost.DMatrix(features(short, long, depth, processors))
        return np.asarray(found.predict(rows), np.float64) + prior(short, long, depth)

    return asked
