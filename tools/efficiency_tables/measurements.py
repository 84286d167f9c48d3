"""Measured kernels, as they lie in the folder of published tables and in our own file."""

import csv
import gzip
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from astra.files import Source
from astra.hardware.catalogue import find_gpu
from astra.timing.efficiency import FOLDER
from astra.timing.gemm import Floats

READ_ON = "2026-11-15"
PROFILES = Path(__file__).parents[2] / "validation" / "profiles"
PROFILE = PROFILES / "h200.json.gz"
LATER = PROFILES / "h200-later.json.gz"
HELD_BACK = 5  # one pair in five
SYSTEMS = {
    "A100-80GB-SXM": "a100_sxm",
    "H100-80GB-SXM": "h100_sxm",
    "H200-SXM": "h200_sxm",
    "B200": "b200_sxm",
    "B300": "b300_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "L40S": "l40s",
    "RTX-PRO-6000-Blackwell-SE": "rtx_pro_6000_server",
}
SIMUMAX_SYSTEMS = (
    ("A100-80GB-PCIe", "a100_pcie", 312e12),
    ("B200", "b200_bf16_ceperm", 2250e12),
)
OWN = (
    "our own timings on one H200 (700 W; torch 2.11.0+cu130, cuDNN 9.19, driver 580.159.04), "
    "random data, steady load, CUDA events, medians"
)
LAYOUTS = "torch layouts"  # products timed in their three layouts, one after the other
SIMUMAX = "MooreThreads/SimuMax @4dcaae5 (Apache-2.0), Transformer Engine kernels"
AICONF = "ai-dynamo/aiconfigurator @095f58a (Apache-2.0)"
SAILOR = "eth-easl/sailor @cf2c8e3 (MIT), operator profiles"
AZURE = "Azure/AI-benchmarking-guide (MIT)"
CHARTS = "charts of Dao-AILab/flash-attention @025110 (BSD-3)"


@dataclass(frozen=True, slots=True)
class Products:
    """Measured matrix products: shapes of the forward product, seconds."""

    m: Floats
    n: Floats
    k: Floats
    seconds: Floats

    def take(self, rows: Any) -> "Products":
        return Products(self.m[rows], self.n[rows], self.k[rows], self.seconds[rows])

    @property
    def shape(self) -> tuple[Floats, Floats, Floats]:
        """Shorter and longer side of the result, and the depth."""
        return np.minimum(self.m, self.n), np.maximum(self.m, self.n), self.k

    @property
    def flops(self) -> Floats:
        return 2 * self.m * self.n * self.k

    @property
    def held(self) -> Any:
        """Rows of the (n, k) pairs held back: the same pairs for every GPU."""
        pairs = sorted(set(zip(self.n, self.k, strict=True)))
        np.random.default_rng(0).shuffle(pairs)
        back = {tuple(pair) for pair in pairs[: len(pairs) // HELD_BACK]}
        return np.array([pair in back for pair in zip(self.n, self.k, strict=True)])


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from csv.DictReader(file)


def products(rows: Iterable[tuple[float, float, float, float]]) -> Products:
    table = np.array(list(rows), dtype=np.float64).reshape(-1, 4)
    return Products(*table.T)


def read_products(folder: Path, system: str, dtype: str) -> Products:
    """Products of one system; where two libraries timed a shape, the mean of the logarithms.

    Odd m (one row past a tile) and sides below 64 are left out: training has none.
    """
    found: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for path in sorted((folder / "opdata/ai-dynamo_aiconfigurator" / system).glob("gemm_*")):
        for row in rows_of(path):
            shape = int(row["m"]), int(row["n"]), int(row["k"])
            if row["gemm_dtype"] == dtype and shape[0] % 2 == 0 and min(shape) >= 64:
                found[shape].append(float(row["latency"]) * 1e-3)
    return products((*shape, float(np.exp(np.mean(np.log(s))))) for shape, s in found.items())


def own_rows(operator: str, **wanted: str) -> list[dict[str, str]]:
    return [
        row
        for row in rows_of(FOLDER / "h200-kernels.csv.gz")
        if row["operator"] == operator and all(row[key] == value for key, value in wanted.items())
    ]


def own_products(dtype: str, direction: str, kernel: str) -> Products:
    rows = own_rows("gemm", dtype=dtype, direction=direction, kernel=kernel)
    return products(
        (float(r["a"]), float(r["b"]), float(r["c"]), float(r["seconds"])) for r in rows
    )


def simumax(folder: Path, system: str, operator: str) -> Iterator[tuple[dict[str, str], float]]:
    """Shape and efficiency of each row of one operator."""
    path = folder / "opdata/MooreThreads_SimuMax/op_efficiency_flat.csv.gz"
    for row in rows_of(path):
        if row["system"] == system and row["op"] == operator:
            shape = dict(re.findall(r"(\w+)=(\w+)", row["shape_key"]))
            yield shape, float(row["measured_efficiency"])


def simumax_products(folder: Path, system: str, peak: float, layout: str, out: str) -> Products:
    """Products of one layout, as shapes of the product itself."""
    return products(
        (m, n, k, 2 * m * n * k / (peak * share))
        for shape, share in simumax(folder, system, "matmul")
        if shape["layout"] == layout and shape["out_dtype"] == out and shape["b"] == "1"
        for m, n, k in [(float(shape["m"]), float(shape["n"]), float(shape["k"]))]
    )


def as_products(seen: Products, direction: str) -> Products:
    """Own rows name the forward shape; this is the shape of the product that ran."""
    if direction == "dgrad":
        return Products(seen.m, seen.k, seen.n, seen.seconds)
    return Products(seen.n, seen.k, seen.m, seen.seconds) if direction == "wgrad" else seen


def azure_products(folder: Path, gpu: str, dtype: str) -> Products:
    return products(
        (m, n, k, 2 * m * n * k / (float(row["tflops"]) * 1e12))
        for row in rows_of(folder / "matmul_efficiency.csv")
        if row["kind"] == "gemm" and row["gpu_id"] == gpu and row["dtype"] == dtype
        if row["source"].startswith("Azure") and float(row["m"]) < 1e5
        for m, n, k in [(float(row["m"]), float(row["n"]), float(row["k"]))]
    )


SAILOR_GPUS = {
    "A100-40": "A100-40GB-SXM",
    "V100-16": "V100-16GB-SXM2",
    "RTX-3090": "RTX-3090",
    "Titan-RTX": "Titan-RTX",
    "RTX-2080": "RTX-2080-Ti",
}
SAILOR_WIDTHS = {"GPT-Neo-2.7": 2560.0, "OPT-350": 1024.0, "OPT-30": 7168.0}


def sailor_rows(
    folder: Path, gpu: str, operators: Sequence[str], dtype: str = "fp16"
) -> Iterator[dict[str, str]]:
    path = folder / "opdata/eth-easl_sailor/aceso_op_profiles/op_times_all.csv.gz"
    for row in rows_of(path):
        alone = (row["gpu"], row["dtype"], row["tp"], row["algo"]) == (gpu, dtype, "1", "0")
        if alone and row["op_name"] in operators and float(row["forward_us"]) > 200:
            yield row


def sailor_products(folder: Path, gpu: str, dtype: str = "fp16") -> Products:
    found = []
    for row in sailor_rows(folder, gpu, ("enc-attention-dense", "enc-MLP-GEMM-2"), dtype):
        width = SAILOR_WIDTHS[row["model"]]
        depth = 4 * width if "MLP" in row["op_name"] else width
        found.append((2048 * float(row["mbs"]), width, depth, float(row["forward_us"]) * 1e-6))
    return products(found)


def azure_stream(folder: Path) -> dict[str, float]:
    """Mean of copy and add over nominal bandwidth."""
    names = {"A100_v4": "A100-80GB-SXM", "H100_v5": "H100-80GB-SXM", "H200_v5": "H200-SXM"}
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows_of(folder / "opdata/Azure_AI-benchmarking-guide/nd_results_flat.csv"):
        stream = row["section"] == "HBM Bandwidth" and row["c1"] in ("Copy", "Add")
        if stream and row["system"] in names:
            found[names[row["system"]]].append(float(row["c2"]) * 1e12)
    return {
        name: float(np.mean(rates)) / find_gpu(name)[0].memory_bytes_per_s
        for name, rates in found.items()
    }


def gemm_source(folder: Path, name: str) -> Source:
    files = sorted((folder / "opdata/ai-dynamo_aiconfigurator" / SYSTEMS[name]).glob("gemm_*"))
    libraries = [path.name.removeprefix("gemm_").removesuffix(".csv.gz") for path in files]
    said = " and ".join(
        library.replace("trtllm_", "TensorRT-LLM ").replace("vllm_", "vLLM ")
        for library in libraries
    )
    return Source(
        kind="measured",
        where=f"{said} on {name}, {AICONF}",
        read_on=READ_ON,
        note="forward products in bf16, short bursts; smoothed and made to rise",
    )


def fitted_source(kind: str, where: str) -> Source:
    return Source(kind=kind, where=where, read_on=READ_ON)


def forward_shape(seen: Products, direction: str) -> Products:
    """The reverse of `as_products`."""
    if direction == "dgrad":
        return Products(seen.m, seen.k, seen.n, seen.seconds)
    return Products(seen.k, seen.m, seen.n, seen.seconds) if direction == "wgrad" else seen
