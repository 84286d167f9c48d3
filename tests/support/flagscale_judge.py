"""FlagScale's own verdict on a folder of launch files. A process of its own: it brings its own
Megatron-LM.

Reads one JSON object a line, `{"folder": ..., "architecture": 9}`, and answers each with what
every mesh was made of, or with the refusal. The configuration is put together by Hydra, turned
into options by FlagScale's runner, and judged by FlagScale's and Megatron-LM's checks on the first
rank of every mesh. Replaced is only what asks the machine or other machines: the GPU's generation,
Transformer Engine's version, the gathering of every rank's device type, process groups and data.
"""

import contextlib
import io
import json
import os
import sys
import types
import typing
import warnings
from pathlib import Path
from typing import Any

GPU_ARCHITECTURE = {"major": 9}
BUILT = ("all_process_meshes", "all_inter_mesh_process_groups", "global_process_groups", "config")
UNUSED = ("aiohttp",)  # what its runner imports for other tasks than training


def load(root: Path) -> dict[str, Any]:
    """Import FlagScale from its unpacked wheel."""
    import typing_extensions

    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    for name in UNUSED:
        sys.modules.setdefault(name, _unused(name))
    sys.path[:0] = [str(root / "third_party" / "Megatron-LM"), str(root)]
    import torch
    from flagscale.runner.runner_train import _get_args_megatron
    from flagscale.runner.utils import parse_hostfile
    from flagscale.train.arguments import FSTrainArguments
    from flagscale.train.hetero.parallel_context import ParallelContext
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer import transformer_config
    from megatron.training import arguments

    torch.cuda.get_device_capability = lambda *_: (GPU_ARCHITECTURE["major"], 0)
    arguments.get_device_arch_version = lambda: GPU_ARCHITECTURE["major"]
    arguments.is_te_min_version = lambda *_, **__: True
    transformer_config.is_te_min_version = lambda *_, **__: True
    rope_utils.fused_apply_rotary_pos_emb = object()
    for built in BUILT:
        setattr(ParallelContext, f"build_{built}", lambda _: None)
    return {
        "torch": torch,
        "options": _get_args_megatron,
        "hosts": parse_hostfile,
        "own": FSTrainArguments,
        "context": ParallelContext,
        "arguments": arguments,
    }


class _Unused(types.ModuleType):
    """A module of which only names are looked up."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def _unused(name: str) -> types.ModuleType:
    return _Unused(name)


def composed(folder: Path) -> Any:
    """The experiment with its task, as `run.py --config-path FOLDER --config-name train`."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return compose("train")


def judged(tools: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """What each mesh was made of, by the checks of its first rank."""
    config = composed(folder)
    options = tools["options"](config)
    hosts = tools["hosts"](str(folder / "hostfile"))
    kinds = [info["type"] for info in hosts.values() for _ in range(info["slots"])]
    for name, value in config.experiment.envs.items():
        os.environ[name] = str(value)
    names, first = config.train.system.get("hetero"), [0]
    if names is None:
        return [one_rank(tools, options, kinds, 0)]
    flat = list(names.hetero_process_meshes)
    for at in range(0, len(flat) - 5, 5):
        tp, cp, _, dp, pp = flat[at : at + 5]
        first.append(first[-1] + tp * cp * dp * pp)
    order = sorted(range(len(kinds)), key=lambda r: (names.hetero_device_types.index(kinds[r]), r))
    return [one_rank(tools, options, kinds, order[logical]) for logical in first]


def one_rank(
    tools: dict[str, Any], options: list[str], kinds: list[str], rank: int
) -> dict[str, Any]:
    """All checks of one rank, in the order of FlagScale's `initialize_megatron`."""
    torch, arguments = tools["torch"], tools["arguments"]
    own = list(options)
    if "--hetero-current-device-type" in own:
        own[own.index("--hetero-current-device-type") + 1] = kinds[rank]
    sys.argv[1:] = own
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(len(kinds))
    args = arguments.parse_args()
    torch.distributed.is_initialized = lambda: True
    torch.distributed.get_rank = lambda *_: rank
    torch.distributed.get_world_size = lambda *_: len(kinds)
    torch.distributed.all_gather_object = lambda out, _: out.__setitem__(
        slice(None), [{"rank": r, "device_type": kind} for r, kind in enumerate(kinds)]
    )
    judge = None
    if args.hetero_process_meshes is not None:
        judge = tools["own"](args)
        judge.pre_validate_args()
    arguments.validate_args(args)
    if judge is not None:
        judge.post_validate_args()
        tools["context"](args)
    built = arguments.core_transformer_config_from_args(args)
    keys = (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "data_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
        "micro_batch_size",
    )
    found = {key: getattr(args, key) for key in keys}
    found["expert_tensor_parallel_size"] = built.expert_tensor_parallel_size
    found["device_type"] = kinds[rank]
    found["layers"] = args.hetero_pipeline_layer_split
    found["sequence_parallel"] = args.sequence_parallel
    for key in ("granularity", "method", "num_layers"):
        found[key] = getattr(args, f"recompute_{key}_per_stage_micro_batch", None)
        found[f"recompute_{key}"] = getattr(args, f"recompute_{key}")
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    answers = sys.stdout
    with contextlib.redirect_stdout(io.StringIO()):
        tools = load(Path(sys.argv[1]))
    for line in sys.stdin:
        asked = json.loads(line)
        GPU_ARCHITECTURE["major"] = asked["architecture"]
        silent = io.StringIO()
        answer: dict[str, Any]
        try:
            with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
                answer = {"meshes": judged(tools, Path(asked["folder"]))}
        except (Exception, SystemExit) as error:  # every refusal of the framework is an exception
            said = silent.getvalue().strip().splitlines()
            answer = {"refused": f"{type(error).__name__}: {error} {said[-1] if said else ''}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
