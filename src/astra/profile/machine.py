"""The machine that was measured, in words and numbers."""

import platform
import subprocess
from pathlib import Path
from typing import Any

from astra.errors import InputError

_SMI_FIELDS = {
    "driver": "driver_version",
    "power_limit_w": "power.limit",
    "power_limit_default_w": "power.default_limit",
    "sm_clock_max_mhz": "clocks.max.sm",
    "memory_clock_max_mhz": "clocks.max.memory",
    "persistence": "persistence_mode",
    "compute_mode": "compute_mode",
}
_SMI_LOAD_FIELDS = {
    "sm_clock_mhz": "clocks.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_w": "power.draw",
    "temperature_c": "temperature.gpu",
}


def load_torch(device: str) -> Any:
    """torch, if it is here and has the device."""
    try:
        import torch
    except ImportError:
        raise InputError(
            "profile: torch is not installed, and kernels are timed with it. "
            "Try `pip install 'astra-planner[profile]'`, or the python that you train with."
        ) from None
    if device == "cuda" and not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = "torch sees no GPU" if built else f"torch {torch.__version__} is built for CPUs only"
        raise InputError(
            f"profile: {why}, so there is nothing to measure. Check `nvidia-smi` and the torch "
            "that is installed; `--device cpu` tries the command out on this machine's CPU."
        )
    return torch


def describe(torch: Any, device: str) -> dict[str, Any]:
    """What a reader must know to compare two profiles."""
    found: dict[str, Any] = {
        "device": device,
        "gpu": None,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "python": platform.python_version(),
        "system": platform.platform(),
        "host_cpu": _cpu(),
        "host_cores": _cores(),
    }
    if device == "cpu":
        found["note"] = "timed on a CPU to try the command out; says nothing about a GPU"
        return found
    here = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(here)
    found |= {
        "gpu": properties.name,
        "gpus": torch.cuda.device_count(),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "cache_bytes": getattr(properties, "L2_cache_size", None),
    }
    return found | _smi(_SMI_FIELDS, torch)


def under_load(torch: Any) -> dict[str, Any]:
    """Clocks and power while products run; it also warms the GPU up."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(1200):  # a second or two of work, queued; the question is asked meanwhile
        torch.mm(a, b)
    seen = _smi(_SMI_LOAD_FIELDS, torch)
    torch.cuda.synchronize()
    return seen


def _smi(asked: dict[str, str], torch: Any) -> dict[str, Any]:
    """What the driver's own tool says; nothing where it is not installed."""
    here = torch.cuda.current_device()
    uuid = getattr(torch.cuda.get_device_properties(here), "uuid", None)
    command = [
        "nvidia-smi",
        f"--id={here if uuid is None else f'GPU-{uuid}'}",
        f"--query-gpu={','.join(asked.values())}",
        "--format=csv,noheader,nounits",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {"nvidia_smi": f"not to be had: {type(error).__name__}"}
    values = [text.strip() for text in done.stdout.strip().splitlines()[0].split(",")]
    return {name: _number(text) for name, text in zip(asked, values, strict=False)}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cores() -> int | None:
    import os

    return os.cpu_count()
