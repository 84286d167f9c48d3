"""The framework's own verdict on exported files, in a process of its own, where it is installed.

What is asked is what runs on a machine without a GPU: parsers, configuration classes, sizes.
"""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from astra.export.folder import write_folder

SECONDS = 300
FAKE = """
import logging, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
folder, world = sys.argv[1], int(sys.argv[2])
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
"""
SCRIPTS = {
    "torchtitan": FAKE
    + """
sys.path.insert(0, folder)
from torchtitan.config.manager import ConfigManager
from torchtitan.distributed import ParallelDims
words = ["--module", "astra_plan", "--config", "plan"]
config = ConfigManager().parse_args(words)
ParallelDims.from_config(config.parallelism, world)
config.model_spec.model.update_from_config(config=config)
""",
    "accelerate": FAKE
    + """
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.parallelism_config import ParallelismConfig
config = load_config_from_file(f"{folder}/accelerate.yaml")
prefix = "parallelism_config_"
sizes = {k.removeprefix(prefix): v for k, v in (config.parallelism_config or {}).items()}
sizes.pop("cp_comm_strategy", None)
total = ParallelismConfig(**sizes).total_size
assert not sizes or total == world, f"{total} processes in the sizes, {world} in the plan"
""",
    "deepspeed": FAKE
    + """
import json
import deepspeed.comm
deepspeed.comm.get_rank = torch.distributed.get_rank
deepspeed.comm.get_world_size = torch.distributed.get_world_size
from deepspeed.runtime.config import DeepSpeedConfig
config = json.load(open(f"{folder}/ds_config.json"))
stages = config.get("pipeline", {}).get("stages", 1)
grid = type("Grid", (), {"get_data_parallel_world_size": lambda self: world // stages})()
DeepSpeedConfig(config, grid if stages > 1 else None)
""",
    "megatron": """
import logging, sys, typing, warnings
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
folder, world, architecture = sys.argv[1], sys.argv[2], int(sys.argv[3])
import os
os.environ |= {"RANK": "0", "WORLD_SIZE": world}
os.environ |= dict(line.strip().split("=", 1) for line in open(f"{folder}/env.txt"))
if not hasattr(typing, "override"):
    import typing_extensions
    typing.override = typing_extensions.override
import torch
torch.cuda.get_device_capability = lambda *_: (architecture, 0)
from megatron.training import arguments
arguments.get_device_arch_version = lambda: architecture
arguments.is_te_min_version = lambda *_, **__: True
parser = arguments.argparse.ArgumentParser(allow_abbrev=False)
words = open(f"{folder}/args.txt").read().split()
found = arguments.add_megatron_arguments(parser).parse_args(
    [*words, "--mock-data", "--tokenizer-type", "NullTokenizer"]
)
found.rank, found.world_size = 0, int(world)
arguments.validate_args(found)
""",
}
SCRIPTS["bridge"] = """
import logging, os, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
folder, world = sys.argv[1], sys.argv[2]
os.environ |= {"RANK": "0", "WORLD_SIZE": world}
os.environ |= dict(line.strip().split("=", 1) for line in open(f"{folder}/env.txt"))
sys.path.insert(0, folder)
from recipe import pretrain_config
from megatron.bridge.training.config import runtime_config_update
runtime_config_update(pretrain_config())
"""
NEEDS = {
    "bridge": ("megatron.bridge", "transformer_engine", "torch"),
    "torchtitan": ("torchtitan", "torch"),
    "accelerate": ("accelerate", "torch"),
    "deepspeed": ("deepspeed", "torch"),
    "megatron": ("megatron.training", "torch"),
}
WHERE = {
    "bridge": "It runs in NVIDIA's NeMo image; --to megatron writes the same settings, which "
    'pip install "astra-planner[verify]" can check.'
}
NO_CHECK = "a target of an installed package has no check of its own"
HOW = 'pip install "astra-planner[verify]"'


@dataclass(frozen=True, slots=True)
class FrameworkCheck:
    """What a validator said, and of what."""

    what: str
    outcome: Literal["accepted", "refused", "not checked"]
    words: str

    def line(self) -> str:
        return f"{self.what}: {self.outcome}{f': {self.words}' if self.words else ''}"


def verify(
    files: Mapping[str, str], target: str, world: int, architecture: int = 9
) -> list[FrameworkCheck]:
    """The verdicts of the framework and of shellcheck on one folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_folder(folder, files)
        found = [_framework(folder, target, world, architecture)]
        found.append(
            _scripts(folder, [file for file in files if file.endswith((".sh", ".sbatch"))])
        )
    return found


def _framework(folder: Path, target: str, world: int, architecture: int) -> FrameworkCheck:
    if target not in SCRIPTS:
        why = {
            "flagscale": "FlagScale's own code is asked by the project's tests only; "
            "`launch.sh action=dryrun` asks yours",
        }
        return FrameworkCheck(target, "not checked", why.get(target, NO_CHECK))
    missing = [module for module in NEEDS[target] if not _found(module)]
    if missing:
        how = WHERE.get(target, f"Try {HOW}.")
        return FrameworkCheck(target, "not checked", f"{missing[0]} is not installed. {how}")
    command = [sys.executable, "-c", SCRIPTS[target], str(folder), str(world), str(architecture)]
    return _run(target, command, folder)


def _scripts(folder: Path, names: list[str]) -> FrameworkCheck:
    beside = Path(sys.executable).with_name("shellcheck")
    tool = str(beside) if beside.exists() else shutil.which("shellcheck")
    if tool is None:
        return FrameworkCheck("scripts", "not checked", f"shellcheck is not installed. Try {HOW}.")
    return _run("scripts", [tool, "--shell=bash", *(str(folder / name) for name in names)], folder)


def _run(what: str, command: list[str], folder: Path) -> FrameworkCheck:
    """The last line of what it says; files of the folder by their names in the export."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd="/"
        )
    except subprocess.TimeoutExpired:
        return FrameworkCheck(what, "not checked", f"it did not answer within {SECONDS} s")
    if done.returncode == 0:
        return FrameworkCheck(what, "accepted", "")
    said = (done.stderr or done.stdout).replace(f"{folder}/", "").replace(str(folder), ".")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return FrameworkCheck(
        what, "refused", lines[-1] if lines else f"it ended with {done.returncode}"
    )


def _found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a parent of it is not there
        return False
