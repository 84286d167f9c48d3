"""An existing job's launch file as a plan, and what of it was assumed or not understood."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from astra.errors import InputError, shorten
from astra.files import parse_json, parse_toml, read_json, read_text
from astra.hardware.cluster import Gpu
from astra.hardware.gpus_option import parse_rank_blocks
from astra.imports import deepspeed, flagscale, huggingface_trainer, megatron, torchtitan
from astra.imports.megatron_model import model_of
from astra.imports.options import LaunchOptions, option_name, training_words
from astra.imports.shell import Script, read_script
from astra.model.shape import Model
from astra.model.zoo import find_model
from astra.notes import Note
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.outside_space import outside_space
from astra.strategy.plan import Plan, Runtime
from astra.strategy.plan_file import read_plan
from astra.strategy.rules.registry import broken_rules
from astra.strategy.uniform import over_types

STACKS = {"fsdp": "torch-fsdp", "deepspeed": "deepspeed"}
LAUNCHERS = {  # nodes and processes of each, in the words of torchrun, srun, deepspeed, NeMo
    "nodes": ("nnodes", "num-nodes", "nodes", "num-machines"),
    "each": ("nproc-per-node", "ntasks-per-node", "num-gpus", "gpus-per-node", "devices"),
}
VARIABLES = {  # what people call them
    "nodes": ("NNODES", "NUM_NODES", "N_NODES", "NODES", "SLURM_NNODES"),
    "each": ("GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_GPUS_PER_NODE", "GPUS", "NGPU"),
    "all": ("WORLD_SIZE", "NUM_GPUS", "N_GPUS"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What the launch file may leave open, said by the person who imports it."""

    gpus: str  # the type, or types and counts in the order of ranks: launch files know no types
    described: Mapping[str, Gpu] = field(default_factory=dict)  # types besides the catalogue's
    world_size: int | None = None
    is_checked: bool = False  # whether a file that says another world size contradicts it
    is_alone: bool = False  # no file that it names is read
    model: Model | None = None
    seq_len: int | None = None
    vocab: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedJob:
    """A launch file as it was read."""

    plan: Plan
    framework: str
    assumed: tuple[str, ...]
    not_understood: tuple[str, ...]
    refused: tuple[str, ...]  # what the runtime will say against it
    notes: tuple[Note, ...] = ()  # on how the GPUs were read, and on what no search would try
    outside_space: tuple[str, ...] = ()  # the latter in words


def read_job(path: Path, asked: ImportRequest) -> ImportedJob:
    """The plan of a launch script, a configuration file or a folder that `export` wrote."""
    if path.is_dir():
        return _from_folder(path, asked)
    return job_of_text(read_text(path), path, asked)


def job_of_text(text: str, path: Path, asked: ImportRequest) -> ImportedJob:
    """The same of a file's text; by its name it is known what it is."""
    kind = path.suffix.lower()
    if kind == ".json":
        return _from_deepspeed(parse_json(text, str(path)), asked, str(path))
    if kind == ".toml":
        return _from_torchtitan(torchtitan.flattened(parse_toml(text, str(path))), asked, path)
    if kind == ".py":
        return _from_torchtitan(torchtitan.from_python(text, str(path)), asked, path)
    if kind in (".yaml", ".yml"):
        return _from_yaml(text, asked, path)
    return _from_script(_script_of(text, None if asked.is_alone else path.parent), asked, path)


def _from_yaml(text: str, asked: ImportRequest, path: Path) -> ImportedJob:
    """NeMo's configuration, FlagScale's task, or FlagScale's experiment, which names its task."""
    from astra.imports.yaml_file import parse_yaml, settings_of

    table = parse_yaml(text, str(path))
    said = settings_of(table)
    if "top.distributed_type" in said:
        raise InputError(
            f"{path}: accelerate's configuration says neither the model nor the batch; it is not "
            "read. `astra predict MODEL --runtime fsdp ...` prices such a job from its settings."
        )
    flagscale.refuse_mixed(said, path)
    if flagscale.is_experiment(said) and asked.is_alone:
        raise InputError(f"{path}: the settings are in the task that it names. Import that.")
    if flagscale.is_experiment(said):
        file = flagscale.task_file(table, path)
        counted = replace(asked, world_size=_agreed(flagscale.world_of(said, path), asked, path))
        return replace(_from_yaml(read_text(file), counted, file), framework="FlagScale")
    options = LaunchOptions(str(path))
    options.values |= {option_name(name): [value] for name, value in said.items()}
    flagscale.as_megatron(options)
    return _from_megatron(options, Script(), asked, path)


def _script_of(text: str, folder: Path | None = None) -> Script:
    """A shell script; or options alone on their lines, which no shell will ever read."""
    lines = [line for line in text.splitlines() if line.strip()]
    words = ("--", torchtitan.CHECKPOINT)
    if lines and all(line.startswith(words) for line in lines) and "\\\n" not in text:
        return Script(commands=[text.split()])
    return read_script(text, folder)


def _from_folder(path: Path, asked: ImportRequest) -> ImportedJob:
    """What `astra export` wrote: its arguments or configuration, and how many it starts."""
    launcher, arguments, config, module = (
        path / name for name in ("launch.sh", "args.txt", "ds_config.json", "astra_plan.py")
    )
    experiment, own = path / "train.yaml", path / "plan.json"
    if experiment.is_file():
        return _from_yaml(read_text(experiment), asked, experiment)
    launch = read_script(read_text(launcher)) if launcher.is_file() else Script()
    said = _stated_world(launch, LaunchOptions(str(path)))
    if said is None and own.is_file():  # nodes of unlike size, which the shell tells apart
        said = sum(read_plan(own, 1).gpus.values())
    asked = replace(asked, world_size=_agreed(said, asked, path))
    if config.is_file():
        counted = replace(asked, world_size=_world(launch, LaunchOptions(str(path)), asked))
        return _from_deepspeed(read_json(config), _filled(counted, path), str(config))
    if module.is_file():  # which says more than the flags do
        counted = replace(asked, world_size=_world(launch, LaunchOptions(str(path)), asked))
        settings = torchtitan.from_python(read_text(module), str(module))
        return _from_torchtitan(settings, counted, module)
    if own.is_file() and not _is_megatron(arguments):
        raise InputError(
            f"{path}: the settings of this framework are not read; the plan they were written "
            f"from is: `astra predict --plan {own}`."
        )
    if not arguments.is_file():
        raise InputError(f"{path}: this folder holds no args.txt; name the launch file itself.")
    script = _script_of(read_text(arguments))
    script.commands += launch.commands
    return _from_script(script, asked, path)


def _is_megatron(arguments: Path) -> bool:
    return arguments.is_file() and "--num-layers" in read_text(arguments)


def _filled(asked: ImportRequest, folder: Path) -> ImportRequest:
    """What the plan in an exported folder tells and DeepSpeed's JSON does not."""
    file = folder / "plan.json"
    if not file.is_file():
        return asked
    plan = read_plan(file, 1)
    return replace(asked, model=asked.model or plan.model, seq_len=asked.seq_len or plan.seq_len)


def _from_script(script: Script, asked: ImportRequest, path: Path) -> ImportedJob:
    options = LaunchOptions(str(path))
    titan = [
        word for words in script.commands for word in words if word.startswith("--parallelism.")
    ]
    if titan or any("--job.config" in word for words in script.commands for word in words):
        return _from_titan_script(script, asked, path)
    options.add(training_words(script.commands, (*megatron.TELLING, "deepspeed")))
    config = options.text("deepspeed-config", "deepspeed")
    if "micro-batch-size" not in options.values and config and config.endswith(".json"):
        named = path.parent / config
        if asked.is_alone or not named.is_file():
            raise InputError(
                f"{path}: it names {shorten(config)}, which is not there. Import that."
            )
        counted = replace(
            asked,
            world_size=_world(script, options, asked),
            model=asked.model or huggingface_trainer.model_of(options),
            seq_len=asked.seq_len or huggingface_trainer.seq_len(options),
        )
        return _from_deepspeed(read_json(named), counted, str(named), options)
    return _from_megatron(options, script, asked, path)


def _from_titan_script(script: Script, asked: ImportRequest, path: Path) -> ImportedJob:
    options = LaunchOptions(str(path))
    for words in script.commands:
        options.add(words)
    settings: dict[str, Any] = {}
    named = options.text("job.config-file", "job.config_file")
    value = script.variables.get("CONFIG_FILE")
    named = named or (value if isinstance(value, str) else None)
    if named:
        places = () if asked.is_alone else (path.parent / named, Path(named))
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            raise InputError(f"{path}: it names {shorten(named)}, which is not there. Import that.")
        settings = torchtitan.flattened(parse_toml(read_text(file), str(file)))
    settings |= torchtitan.from_flags(options.values)
    settings |= torchtitan.checkpointing(word for words in script.commands for word in words)
    counted = replace(asked, world_size=_world(script, options, asked))
    return _from_torchtitan(settings, counted, path)


def _from_megatron(
    options: LaunchOptions, script: Script, asked: ImportRequest, path: Path
) -> ImportedJob:
    if not any(name.rpartition(".")[2] in megatron.TELLING for name in options.values):
        raise InputError(
            f"{path}: no training command was found in it: none has options such as "
            "--num-layers or --micro-batch-size. Is the command in another file?"
        )
    if script.absent and asked.model is None and "num-layers" not in options.values:
        raise InputError(
            f"{path}: it sources {shorten(', '.join(script.absent))}, which is not there, and does "
            "not say --num-layers itself. Put that file where it is looked for."
        )
    world = _world(script, options, asked)
    megatron.plain_names(options)
    model = asked.model or model_of(options, path.stem, asked.vocab)
    plan_settings = megatron.plan_settings_of(options, model.layers, world)
    _read_quietly(options)
    doubts = [f"{name}, which it sources, was read with it" for name in script.sourced]
    doubts += [
        f"{name} is set in a branch or a loop; the last value was taken"
        for name in script.branched
        if _is_used(name, options, script)
    ]
    if model.positions == "alibi" and options.many("position-embedding-type") == ["none"]:
        doubts.append(f"the job is trained without positions; ALiBi is what {model.name} has")
    if options.many("rampup-batch-size"):
        doubts.append(
            f"the batch grows at first; the final one, {plan_settings['global_batch']}, was taken"
        )
    left = [*options.left(), *_unfilled(options)]
    return _job(plan_settings, model, asked, world, "megatron", doubts, left)


def _read_quietly(options: LaunchOptions) -> None:
    """Options of launchers, which say where and not what."""
    for names in LAUNCHERS.values():
        options.read.update(names)
    options.read.update(("deepspeed", "deepspeed-config", "zero-stage", "tokenizer-type"))
    if options.values.get("optimizer", ["adam"])[:1] == ["adam"]:
        options.read.add("optimizer")  # another keeps other states


def _is_used(name: str, options: LaunchOptions, script: Script) -> bool:
    """Whether a variable's value, or an option in it, is among the words that count."""
    value = script.variables.get(name) or []
    said = {word for words in options.values.values() for word in words}
    words = value.split() if isinstance(value, str) else value
    flags = {option_name(word[2:].partition("=")[0]) for word in words if word.startswith("--")}
    return bool(flags & set(options.values)) if flags else bool(said & {*words, value_text(value)})


def value_text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else " ".join(value)


def _unfilled(options: LaunchOptions) -> list[str]:
    """Values that only the shell knows, of options that count."""
    return [
        f"--{name} {word}: only the shell knows"
        for name in options.read
        for word in options.values.get(name, [])[:1]
        if word.startswith(("$", "`"))
    ]


def _from_deepspeed(
    document: Any, asked: ImportRequest, where: str, flags: LaunchOptions | None = None
) -> ImportedJob:
    """DeepSpeed's JSON; `flags` are those of the script that names it."""
    flags = flags or LaunchOptions(where)
    document, said = huggingface_trainer.filled(document, flags, where)
    if isinstance(document, dict) and {"plan", "plans", "pipelines"} & set(document):
        raise InputError(f"{where}: is a plan already; `astra predict --plan {where}` prices it.")
    if not deepspeed.looks_like(document):
        raise InputError(f"{where}: is no DeepSpeed configuration: no key of one is in it.")
    model = _asked_model(asked, where, "DeepSpeed's JSON")
    world = asked.world_size
    if world is None:
        raise InputError(f"{where}: how many GPUs? DeepSpeed's JSON does not say: --world-size N.")
    plan_settings = deepspeed.plan_settings_of(document, world, where)
    again = huggingface_trainer.recompute(flags)
    if again is None:
        said.append("DeepSpeed's JSON does not say whether layers are recomputed: no recompute")
    elif plan_settings["pp"] == 1:
        plan_settings["recompute"] = again
    if asked.seq_len is None:
        said.append("DeepSpeed's JSON does not say the sequence length: the model's, 4096 at most")
    plan_settings["seq_len"] = asked.seq_len or min(model.max_positions or 4096, 4096)
    left = [*deepspeed.unread_settings(document), *huggingface_trainer.unread_settings(flags)]
    return _job(plan_settings, model, asked, world, "deepspeed", said, left)


def _from_torchtitan(settings: Mapping[str, Any], asked: ImportRequest, path: Path) -> ImportedJob:
    known = torchtitan.model_name(settings)
    model = asked.model or (find_model(known) if known else None)
    model = model or _asked_model(asked, str(path), "this configuration")
    world = asked.world_size
    if world is None:
        raise InputError(f"{path}: how many GPUs? A configuration does not say: --world-size N.")
    plan_settings = torchtitan.plan_settings_of(settings, world, str(path))
    said = [
        f"{key} = {value}: torchtitan's default"
        for key, value in torchtitan.DEFAULTS.items()
        if key not in settings
        and ("batch" in key or "seq_len" in key or "mode" in key)
        and value != -1
        and (plan_settings["pp"] > 1 or "pipeline" not in key)
    ]
    return _job(
        plan_settings, model, asked, world, "fsdp", said, torchtitan.unread_settings(settings)
    )


def _asked_model(asked: ImportRequest, where: str, what: str) -> Model:
    if asked.model is None:
        raise InputError(
            f"{where}: {what} does not say which model is trained. Say it: --model llama-3-8b."
        )
    return asked.model


def _world(script: Script, options: LaunchOptions, asked: ImportRequest) -> int:
    """GPUs of the job: as asked, or as its file says."""
    world = _agreed(_stated_world(script, options), asked, options.where)
    if world is None:
        raise InputError(
            f"{options.where}: how many GPUs? Neither its launcher nor a variable says: "
            "--world-size N."
        )
    return world


def _agreed(said: int | None, asked: ImportRequest, where: str | Path) -> int | None:
    """GPUs as asked; else as the file says, where it does."""
    if asked.is_checked and said not in (None, asked.world_size):
        raise InputError(
            f"{where}: it starts {said} GPUs, and --gpus {asked.gpus} are {asked.world_size}. "
            f"Make them agree; where it is started otherwise, add --world-size {asked.world_size}."
        )
    return asked.world_size or said


def _stated_world(script: Script, options: LaunchOptions) -> int | None:
    """GPUs as its launcher says, or as its variables are named."""
    words = LaunchOptions(options.where)
    for command in script.commands:
        words.add(
            piece for word in command for piece in (word.split() if " --" in word else [word])
        )
    for name, values in options.values.items():
        words.values.setdefault(name.rpartition(".")[2], values)
    found = {}
    for what, names in LAUNCHERS.items():
        text = words.text(*names) or _variable(script, VARIABLES[what]) or _scheduled(script, what)
        found[what] = int(text) if text and re.fullmatch(r"\d{1,7}", text) else None
    if found["nodes"] and found["each"]:
        return found["nodes"] * found["each"]
    whole = _variable(script, VARIABLES["all"])
    if whole and whole.isdigit():
        return int(whole)
    one_node = found["each"] and not script.scheduler  # as torchrun takes it
    return found["each"] if one_node else None


def _variable(script: Script, names: tuple[str, ...]) -> str | None:
    found = (script.variables.get(name) for name in names)
    return next((value for value in found if isinstance(value, str) and value.isdigit()), None)


def _scheduled(script: Script, what: str) -> str | None:
    """Nodes and GPUs of each as SLURM is asked for them."""
    if what == "nodes":
        return script.scheduler.get("nodes") or script.scheduler.get("N")
    asked = script.scheduler.get("gpus-per-node") or script.scheduler.get("gres")
    return asked.rpartition(":")[2] if asked else script.scheduler.get("ntasks-per-node")


def _job(
    plan_settings: dict[str, Any],
    model: Model,
    asked: ImportRequest,
    world: int,
    runtime: Runtime,
    said: list[str],
    left: list[str],
) -> ImportedJob:
    counted = asked.gpus if ":" in asked.gpus else f"{asked.gpus}:{world}"
    cluster, blocks, notes = parse_rank_blocks(counted, asked.described)
    one_type = msgspec.structs.replace(cluster.pools[0], count=world)
    alone = msgspec.structs.replace(cluster, pools=(one_type,))  # what a launch file knows of
    stack = STACKS.get(runtime, "megatron")
    settled = complete(
        PlanSettings(**{k: v for k, v in plan_settings.items() if v is not None}),
        model,
        alone,
        runtime,
        stack,
    )
    plan = over_types(msgspec.structs.replace(settled.plan, cluster=cluster), blocks)
    names = {"megatron": "Megatron-LM", "fsdp": "torchtitan", "deepspeed": "DeepSpeed"}
    broken = broken_rules(plan)
    return ImportedJob(
        plan=plan,
        framework=names[runtime],
        assumed=(*said, *model.assumed),
        notes=(*notes, *outside_space(plan)),
        not_understood=tuple(left),
        refused=tuple(f"{rule.reason} [rule {rule.name}]" for rule in broken),
    )
