"""accelerate's own verdict on a configuration: its reader, its launcher and its parallel sizes."""

import argparse
import os
import tempfile
import types
import warnings
from functools import cache
from pathlib import Path
from typing import Any


@cache
def accelerate() -> types.SimpleNamespace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from accelerate.commands import launch
        from accelerate.parallelism_config import ParallelismConfig
        from accelerate.utils import FullyShardedDataParallelPlugin
        from accelerate.utils import launch as environment
    return types.SimpleNamespace(
        launch=launch,
        environment=environment,
        sizes=ParallelismConfig,
        plugin=FullyShardedDataParallelPlugin,
    )


def verdict(text: str, world: int) -> str | None:
    """Why accelerate would not launch a configuration on so many processes; None where it would."""
    try:
        args = read(text)
        _prepare(args, world)
    except (AssertionError, ValueError) as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return None


def read(text: str) -> argparse.Namespace:
    """What `accelerate launch --config_file` makes of a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "accelerate.yaml"
        file.write_text(text, encoding="utf-8")
        parser = accelerate().launch.launch_command_parser()
        words = ["--config_file", str(file), "--main_process_ip", "10.0.0.1"]
        args = parser.parse_args([*words, "--main_process_port", "29500", "train.py"])
        found, _, _ = accelerate().launch._validate_launch_command(args)
    return found


def _prepare(args: Any, world: int) -> None:
    """The environment of the processes, and what they make of it."""
    frame = accelerate()
    before = dict(os.environ)
    try:
        os.environ |= frame.environment.prepare_multi_gpu_env(args)
        if args.use_fsdp:
            frame.plugin()
        if args.use_parallelism_config:
            sizes = frame.sizes()
            state = types.SimpleNamespace(
                multi_device=world > 1,
                num_processes=world,
                is_fsdp2=args.use_fsdp and int(args.fsdp_version) == 2,
                is_main_process=True,
                distributed_type="FSDP",
            )
            sizes._validate_accelerator(state)
    finally:
        os.environ.clear()
        os.environ.update(before)
