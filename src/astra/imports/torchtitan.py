"""A plan out of a torchtitan configuration: TOML, flags, or a Python module read as text.

What is not said is the default of torchtitan 0.3 (`torchtitan/config`).
"""

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any

from astra.errors import InputError, shorten
from astra.imports.arithmetic import evaluated

# Flavours of torchtitan's models that the zoo has.
MODELS = {
    ("llama3", "8b"): "llama-3.1-8b",
    ("llama3", "70b"): "llama-3.1-70b",
    ("llama3", "405b"): "llama-3.1-405b",
    ("llama3", "1b"): "llama-3.2-1b",
    ("llama3", "3b"): "llama-3.2-3b",
    ("deepseek_v3", "236b"): "deepseek-v2",
    ("kimi_k2_7", "moonlight-16b-a3b"): "moonlight-16b-a3b",
    ("deepseek_v3", "671b"): "deepseek-v3",
    ("deepseek_v3", "16b"): "deepseek-v2-lite",
    ("qwen3", "0.6b"): "qwen3-0.6b",
    ("qwen3", "1.7b"): "qwen3-1.7b",
    ("qwen3", "4b"): "qwen3-4b",
    ("qwen3", "8b"): "qwen3-8b",
    ("qwen3", "14b"): "qwen3-14b",
    ("qwen3", "32b"): "qwen3-32b",
    ("qwen3", "30b-a3b"): "qwen3-30b-a3b",
    ("qwen3", "235b-a22b"): "qwen3-235b-a22b",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
}
MODES = {"full": "full:uniform:1", "selective": "selective:core_attn", "none": "none"}
EIGHT = {"float8": "tensorwise", "mx": "mxfp8"}  # converters to fp8, and our recipes
CONVERTER = re.compile(r"(Float8|MXFP8|NVFP4)LinearConverter\.Config")
CLASSES = {"Float8": "float8", "MXFP8": "mx", "NVFP4": "nvfp4"}
UNDERSTOOD = {  # values that a plan has; others are listed
    "parallelism.pipeline_parallel_schedule": ("1f1b", "interleaved1f1b"),
    "activation_checkpoint.mode": tuple(MODES),
    "training.mixed_precision_reduce": ("float32",),
    "training.dtype": ("float32",),
}
CHECKPOINT = "activation-checkpoint:"
SECTIONS = ("model", "training", "parallelism", "activation_checkpoint", "compile", "quantize")
DEFAULTS: dict[str, Any] = {
    "training.local_batch_size": 8,
    "training.seq_len": 2048,
    "training.global_batch_size": -1,
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.tensor_parallel_degree": 1,
    "parallelism.pipeline_parallel_degree": 1,
    "parallelism.context_parallel_degree": 1,
    "parallelism.expert_parallel_degree": 1,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "parallelism.pipeline_parallel_microbatch_size": 1,
    "parallelism.fsdp_reshard_after_forward": "default",
    "parallelism.enable_sequence_parallel": True,
    "parallelism.module_fqns_per_model_part": None,
    "training.enable_cpu_offload": False,
    "training.mixed_precision_param": "bfloat16",
    "training.mixed_precision_reduce": "float32",
    "training.dtype": "float32",
    "compile.enable_async_tensor_parallel": False,
    "activation_checkpoint.mode": "selective",
}
OTHER_NAMES = {"training.batch_size": "training.local_batch_size"}
UNREAD = (
    *(
        "parallelism.pipeline_parallel_layers_per_stage",
        "parallelism.pipeline_parallel_split_points",
    ),
    *("parallelism.pipeline_parallel_schedule_csv", "parallelism.enable_async_tensor_parallel"),
)
REGISTRY = "torchtitan.models."
MODEL = ("model.name", "model.flavor")
READ = (*DEFAULTS, *MODEL, "model.converters", "compile.enable")


def flattened(table: Mapping[str, Any]) -> dict[str, Any]:
    """`parallelism.tensor_parallel_degree` and so on."""
    found: dict[str, Any] = {}
    for section, values in table.items():
        if isinstance(values, dict):
            for name, value in values.items():
                key = f"{section}.{name}".replace("-", "_")
                found[OTHER_NAMES.get(key, key)] = value
    return found


def from_flags(options: Mapping[str, list[str]]) -> dict[str, Any]:
    """The same out of `--parallelism.tensor_parallel_degree 8`."""
    found: dict[str, Any] = {}
    for name, values in options.items():
        key = name.replace("-", "_")
        if "." not in key or key.partition(".")[0] not in SECTIONS:
            continue
        if ".no_" in key:  # `--parallelism.no-enable_sequence_parallel`
            found[key.replace(".no_", ".")] = False
        elif key.endswith("module_fqns_per_model_part"):
            found[key] = [part.split(",") for part in values]
        else:
            found[OTHER_NAMES.get(key, key)] = _typed(values[0] if values else "true")
    return found


def checkpointing(words: Iterable[str]) -> dict[str, Any]:
    """`activation-checkpoint:full`, a word of its own in 0.3."""
    kinds = [word.partition(":")[2] for word in words if word.startswith(CHECKPOINT)]
    return {"activation_checkpoint.mode": kinds[-1]} if kinds else {}


def _typed(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.lstrip("-").isdigit() else text


def from_python(text: str, where: str) -> dict[str, Any]:
    """Settings written as `name=value` in calls, or set on a section, in a Python module."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{where}: is no Python that can be read.") from None
    names = {key.partition(".")[2]: key for key in (*DEFAULTS, *UNREAD, *MODEL)}
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        pairs = [(word.arg, word.value) for word in getattr(node, "keywords", [])]
        if isinstance(node, ast.Assign):
            pairs += [(t.attr, node.value) for t in node.targets if isinstance(t, ast.Attribute)]
        if isinstance(node, ast.Dict):
            pairs += [
                (key.value, value)
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
            ]
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(REGISTRY):
            found["model.name"] = (node.module or "").removeprefix(REGISTRY)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if converter := CONVERTER.search(called):
                found["model.converters"] = CLASSES[converter[1]]
            if called.endswith("model_registry") and node.args:
                found["model.flavor"] = _literal(node.args[0])
            if any(word.arg == "activation_checkpoint" for word in node.keywords):
                found.setdefault("activation_checkpoint.mode", "none")
            for kind in ("Full", "Selective"):
                if called.endswith(f"{kind}AC.Config"):
                    found["activation_checkpoint.mode"] = kind.lower()
        for name, value in pairs:
            if name in TOKENS:
                found[f"training.{name}"] = _literal(value)
            elif name == "moe_comm_backend":
                found[BACKEND] = _literal(value)
            elif name in names:
                found[names[name]] = _literal(value)
    return _from_tokens(found, where)


def _literal(node: ast.expr) -> Any:
    """A number, a word or a sum as it is written; anything else is its text."""
    try:
        return evaluated(node)
    except ValueError:
        plain = isinstance(node, ast.Constant | ast.UnaryOp | ast.List | ast.Tuple)
        try:
            return ast.literal_eval(node) if plain else ast.unparse(node)
        except ValueError:  # a list of things that are no plain values
            return ast.unparse(node)


BACKEND = "model.moe_comm_backend"  # an argument of the model in its Python files
TOKENS = (
    "num_tokens_per_microbatch_per_dp_rank",
    "num_tokens_per_train_step",
    "max_context_length",
)


def _from_tokens(found: dict[str, Any], where: str) -> dict[str, Any]:
    """Batches that are said in tokens, as newer releases have it, in samples."""
    micro, step, length = (found.pop(f"training.{name}", None) for name in TOKENS)
    if length is None:
        return found
    found.setdefault("training.seq_len", length)
    for key, tokens in (("local_batch_size", micro), ("global_batch_size", step)):
        if tokens is not None:
            if type(tokens) is not int or type(length) is not int or tokens % length:
                raise InputError(f"{where}: {tokens} tokens are no whole samples of {length}.")
            found.setdefault(f"training.{key}", tokens // length)
    return found


def model_name(settings: Mapping[str, Any]) -> str | None:
    """The zoo's name of the model, where it has it."""
    name = str(settings.get("model.name", "")).rpartition(".")[2].lower()
    return MODELS.get((name, str(settings.get("model.flavor", "")).lower()))


def plan_settings_of(settings: Mapping[str, Any], world: int, where: str) -> dict[str, Any]:
    """Every setting of the plan, for so many GPUs."""
    full = DEFAULTS | dict(settings)

    def whole(key: str) -> int:
        value = full[key]
        if type(value) is not int or value == 0 or value < -1:
            raise InputError(f"{where}: {key} = {shorten(value)} is no degree.")
        return value

    tp, pp = (whole(f"parallelism.{name}_parallel_degree") for name in ("tensor", "pipeline"))
    cp = whole("parallelism.context_parallel_degree")
    copies = whole("parallelism.data_parallel_replicate_degree")
    shards = whole("parallelism.data_parallel_shard_degree")
    rest, left = divmod(world, tp * pp * cp * copies)
    shards = rest if shards == -1 else shards
    if left or shards != rest or not rest:
        raise InputError(
            f"{where}: replicate {copies} x shard {shards} x cp {cp} x tp {tp} x pp {pp} is not "
            f"{world} GPUs. Say how many there are: --world-size N."
        )
    dp, local = copies * shards, whole("training.local_batch_size")
    batch = whole("training.global_batch_size")
    eight = _recipe(settings)
    schedule = str(full["parallelism.pipeline_parallel_schedule"])
    reshard = full["parallelism.fsdp_reshard_after_forward"]
    kept = reshard == "never" or (reshard == "default" and pp > 1)
    kind = "none" if shards * cp == 1 else "gradients" if kept else "parameters"
    cut = _chunks(full["parallelism.module_fqns_per_model_part"], pp, where)
    low = str(full["training.mixed_precision_param"])
    backend = settings.get(BACKEND)
    return {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "dp": dp,
        "ep": whole("parallelism.expert_parallel_degree"),
        "vpp": 2 if pp > 1 and "interleaved" in schedule.lower() else 1,
        "cp_comm_type": "allgather",
        "micro_batch": whole("parallelism.pipeline_parallel_microbatch_size") if pp > 1 else local,
        "global_batch": batch if batch > 0 else local * dp,
        "seq_len": whole("training.seq_len"),
        "sharding": kind,
        "shard_group": shards * cp if kind != "none" else 1,
        "sequence_parallel": tp > 1 and full["parallelism.enable_sequence_parallel"] is True,
        "recompute": MODES.get(str(full["activation_checkpoint.mode"]), "none"),
        "attention": "flash",
        "precision": "fp8" if eight else "fp32" if low == "float32" else "bf16",
        "fp8_recipe": eight,
        "overlap_tp": full["compile.enable_async_tensor_parallel"] is True,
        "offload_optimizer_fraction": float(full["training.enable_cpu_offload"] is True),
        **({"dispatcher": backend} if backend in ("deepep", "hybridep") else {}),
        **cut,
    }


def _recipe(settings: Mapping[str, Any]) -> str | None:
    """The fp8 recipe of `model.converters`: `float8`, `quantize.linear.mx` and so on."""
    said = re.findall(r"\w+", str(settings.get("model.converters", "")).lower())
    return next((EIGHT[word] for word in said if word in EIGHT), None)


def _chunks(parts: Any, pp: int, where: str) -> dict[str, Any]:
    """Layers of every stage out of the modules of every virtual stage, where they are listed."""
    if not isinstance(parts, list) or pp == 1:
        return {}
    chunks = tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)
    if len(chunks) % pp:
        raise InputError(
            f"{where}: module_fqns_per_model_part has {len(chunks)} parts for pp {pp}."
        )
    vpp = len(chunks) // pp
    return {
        "vpp": vpp,
        "layers_per_stage": tuple(sum(chunks[stage::pp]) for stage in range(pp)),
        "chunk_layers": chunks if vpp > 1 and len(set(chunks)) > 1 else None,
    }


def unread_settings(settings: Mapping[str, Any]) -> list[str]:
    """What bears on a plan and was not read."""
    quiet = ("model.", "training.", "compile.", "quantize.")
    converters = settings.get("model.converters")
    return [
        f"{key} = {shorten(value)}"
        for key, value in settings.items()
        if key in UNREAD
        or (key in UNDERSTOOD and str(value).lower() not in UNDERSTOOD[key])
        or (key == "model.converters" and converters and _recipe(settings) is None)
        or (key.startswith(SECTIONS) and key not in READ and not key.startswith(quiet))
    ]
