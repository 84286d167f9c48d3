"""Megatron-Bridge's own verdict on recipes, beside what Megatron-LM makes of the same options.

Runs in a process of its own (`python -m tests.support.bridge_oracle`), because of what it puts in
place of modules that only a machine with a GPU has. Bridge's packages import every network and
dataset they know; here they are entered without that, and what remains is Bridge's own code: the
base recipe, its settings, its overrides and `ConfigContainer.validate`.
"""

import contextlib
import dataclasses
import enum
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import logging
import sys
import types
import warnings
from pathlib import Path
from typing import Any

from tests.support.megatron_oracle import GPU_ARCHITECTURE, _environment, megatron

from astra.export.verify import SCRIPTS

# Of a machine with a GPU; asked for by name only.
ABSENT = ("transformer_engine", "modelopt", "nvidia_resiliency_ext", "megatron.energon")
# Packages whose own code would import all that is in them.
ENTERED = (
    *("megatron.bridge", "megatron.bridge.models", "megatron.bridge.models.conversion"),
    *("megatron.bridge.models.hf_pretrained", "megatron.bridge.peft", "megatron.bridge.recipes"),
)
PROVIDERS = {  # what Bridge's code takes from the package `models`
    "GPTModelProvider": "gpt_provider",
    "T5ModelProvider": "t5_provider",
}


class _Name(type):
    """A name of an absent module. It may be mentioned, but not used."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {})

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{cls.__name__} needs a GPU")


class _Absent(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {"__module__": self.__name__})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if any(name == absent or name.startswith(f"{absent}.") for absent in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def bridge() -> None:
    """Make Bridge's modules importable."""
    cuda = megatron()["torch"].cuda
    cuda.get_device_properties = lambda *_: types.SimpleNamespace(
        major=GPU_ARCHITECTURE["major"],
        name={9: "NVIDIA H100", 10: "NVIDIA B200"}[GPU_ARCHITECTURE["major"]],
    )
    for name in [name for name in sys.modules if name.split(".")[0] == "transformer_engine"]:
        if not name.endswith("optimizers"):  # whose Adam is looked at
            del sys.modules[name]
    sys.meta_path.append(_Finder())
    root = importlib.machinery.PathFinder.find_spec("megatron", None)
    assert root is not None and root.submodule_search_locations is not None
    for name in ENTERED:
        inner = name.split(".")[1:]
        folders = [Path(folder, *inner) for folder in root.submodule_search_locations]
        module = types.ModuleType(name)
        module.__path__ = [str(folder) for folder in folders if folder.exists()]
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, module)

    def provider(name: str) -> Any:
        if name not in PROVIDERS:
            raise AttributeError(name)
        return getattr(importlib.import_module(f"megatron.bridge.models.{PROVIDERS[name]}"), name)

    sys.modules["megatron.bridge.models"].__getattr__ = provider  # type: ignore[method-assign]
    precision = importlib.import_module("megatron.bridge.training.mixed_precision")
    precision.is_te_min_version = lambda *_, **__: True  # type: ignore[attr-defined]


def judge(folder: Path, world: int, architecture: int) -> dict[str, Any]:
    """Why Bridge refuses a folder's recipe, and where its settings end up otherwise."""
    GPU_ARCHITECTURE["major"] = architecture
    options = (folder / "args.txt").read_text().split()
    env = dict(line.split("=", 1) for line in (folder / "env.txt").read_text().splitlines())
    with _environment({**env, "WORLD_SIZE": str(world), "RANK": "0"}):
        recipe: dict[str, Any] = {"__name__": "recipe"}
        exec(compile((folder / "recipe.py").read_text(), "recipe.py", "exec"), recipe)
        unknown = sorted(path for path in recipe["SETTINGS"] if not _is_field(recipe, path))
        try:
            made = recipe["pretrain_config"]()
            _begin(made)
        except (AssertionError, AttributeError, TypeError, ValueError) as error:
            return {"refused": f"{type(error).__name__}: {error}", "unknown": unknown}
        other = _overridden(recipe, (folder / "overrides.txt").read_text().splitlines())
        wanted = _of_megatron(options, world)
    ours = _values(made)
    return {
        "refused": None,
        "unknown": unknown,
        "other": other if isinstance(other, str) else _differences(_values(other), ours),
        "differ": _differences(ours, wanted),
        "world": [made.data_parallel_size, made.train.global_batch_size],
    }


def _begin(config: Any) -> None:
    """What `pretrain` does first: precision, data copies, every rule."""
    sys.modules["megatron.bridge.training.config"].runtime_config_update(config)


def _overridden(recipe: dict[str, Any], words: list[str]) -> Any:
    """The same job by the command line; a text where that is refused."""
    override = sys.modules["megatron.bridge.training.utils.omegaconf_utils"]
    try:
        made = override.process_config_with_overrides(recipe["base_config"](), cli_overrides=words)
        _begin(made)
    except (override.OverridesError, AssertionError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return made


def _is_field(recipe: dict[str, Any], path: str) -> bool:
    section, _, name = path.partition(".")
    kind = getattr(recipe["base_config"](), section)
    return name in {field.name for field in dataclasses.fields(kind)}


def _of_megatron(options: list[str], world: int) -> dict[str, Any]:
    """What Megatron-LM's own code makes of the options: the network, optimizer and data copies."""
    framework = megatron()
    parsed = framework["parser"].parse_args(options)
    parsed._is_global_batch_size_explicitly_specified = True
    parsed.rank, parsed.world_size = 0, world
    framework["arguments"].validate_args(parsed)
    model = framework["config_from_args"](parsed)
    found = {f"model.{f.name}": getattr(model, f.name) for f in dataclasses.fields(model)}
    for field in dataclasses.fields(framework["optimizer_config"]):
        if hasattr(parsed, field.name):
            found[f"optimizer.{field.name}"] = getattr(parsed, field.name)
    from megatron.core.distributed import DistributedDataParallelConfig

    for field in dataclasses.fields(DistributedDataParallelConfig):
        if hasattr(parsed, field.name):
            found[f"ddp.{field.name}"] = getattr(parsed, field.name)
    found["ddp.grad_reduce_in_fp32"] = parsed.accumulate_allreduce_grads_in_fp32
    found["ddp.check_for_nan_in_grad"] = parsed.check_for_nan_in_loss_and_grad
    for name in ("vocab_size", "seq_length", "position_embedding_type", "rotary_base"):
        found[f"model.{name}"] = getattr(parsed, name)
    found["model.share_embeddings_and_output_weights"] = not (
        parsed.untie_embeddings_and_output_weights
    )
    return found


def _values(config: Any) -> dict[str, Any]:
    return {
        f"{section}.{field.name}": getattr(getattr(config, section), field.name)
        for section in ("model", "optimizer", "ddp", "train")
        for field in dataclasses.fields(getattr(config, section))
    }


def _differences(ours: dict[str, Any], wanted: dict[str, Any]) -> dict[str, list[str]]:
    """Settings that both know, and have otherwise."""
    return {
        name: [_text(ours[name]), _text(value)]
        for name, value in wanted.items()
        if name in ours and _text(ours[name]) != _text(value)
    }


def _text(value: Any) -> str:
    """A value as text: functions and layouts by what they say."""
    if isinstance(value, enum.Enum):
        return value.name
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(getattr(value, "layout", value))


def main() -> None:
    """Judge every folder of a JSON list on standard input: `[folder, GPUs, architecture]`.

    The first is also given to the script of `astra export --verify`.
    """
    jobs = json.load(sys.stdin)
    logging.disable(logging.WARNING)
    said = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(said):
        warnings.simplefilter("ignore")
        bridge()
        found = [judge(Path(folder), world, major) for folder, world, major in jobs]
        if found[0]["refused"] is None:
            sys.argv = ["verify", *map(str, jobs[0])]
            with _environment({}):
                exec(SCRIPTS["bridge"], {})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
