"""What the flags of a Hugging Face Trainer say that DeepSpeed's JSON leaves to them.

The Trainer fills every `auto` of the JSON from its own arguments and refuses a JSON that
contradicts them (transformers, integrations/deepspeed.py, HfTrainerDeepSpeedConfig).
"""

from collections.abc import Mapping
from typing import Any

from astra.errors import InputError, shorten
from astra.imports.options import LaunchOptions
from astra.model.shape import Model
from astra.model.zoo import find_model

# Field of the JSON, flag, and the Trainer's own default.
BATCHES = (
    ("train_micro_batch_size_per_gpu", "per-device-train-batch-size", 8),
    ("gradient_accumulation_steps", "gradient-accumulation-steps", 1),
)
LENGTHS = ("max-seq-length", "max-length", "block-size", "model-max-length", "cutoff-len")
# What changes the seconds or the memory of a step and no plan says.
WATCHED = (
    *("optim", "torch-compile", "fsdp", "tp-size", "attn-implementation", "use-liger-kernel"),
    *("use-peft", "use-lora", "lora-r", "load-in-4bit", "load-in-8bit", "quantization-bit"),
)
PLAIN = {"optim": ("adamw_torch", "adamw_torch_fused", "adamw_apex_fused"), "fsdp": ("",)}
MODELS = ("model-name-or-path", "model-name", "model-id", "base-model")


def is_trainers(options: LaunchOptions) -> bool:
    """Whether these are arguments of a Trainer."""
    names = (*(flag for _, flag, _ in BATCHES), *MODELS, "gradient-checkpointing")
    return any(name in options.values for name in names)


def filled(document: Any, options: LaunchOptions, where: str) -> tuple[Any, list[str]]:
    """The JSON with every `auto` that its flags settle, and what is the Trainer's default."""
    if not isinstance(document, Mapping) or not is_trainers(options):
        return document, []
    full, said = dict(document), []
    for field, flag, default in BATCHES:
        given, written = options.whole(flag), full.get(field)
        if written not in (None, "auto"):
            if given is not None and given != written:
                raise InputError(
                    f"{where}: {field} = {shorten(written)}, but its script says --{flag} {given}; "
                    "a Trainer refuses that. Make them agree, or write `auto`."
                )
            continue
        full[field] = given or default
        if given is None:
            said.append(f"{field} = {default}: the Trainer's default")
    if full.get("train_batch_size") == "auto":
        del full["train_batch_size"]
    for kind in ("bf16", "fp16"):
        section = full.get(kind)
        if isinstance(section, Mapping) and section.get("enabled") == "auto":
            full[kind] = {**section, "enabled": options.flag(kind)}
    return full, said


def recompute(options: LaunchOptions) -> str | None:
    """Whether layers are recomputed; None where no Trainer says."""
    if not is_trainers(options):
        return None
    return "full:uniform:1" if options.flag("gradient-checkpointing") else "none"


def seq_len(options: LaunchOptions) -> int | None:
    return options.whole(*LENGTHS)


def model_of(options: LaunchOptions) -> Model | None:
    """The model by the name or folder that it is loaded from."""
    named = options.text(*MODELS)
    if named is None or named.startswith("$"):
        return None
    try:
        return find_model(named)
    except InputError as error:
        raise InputError(f"{options.where}: {error} Or say it: --model llama-3-8b.") from None


def unread_settings(options: LaunchOptions) -> list[str]:
    """Flags that count and were not understood, as they were written."""
    found = [name for name in WATCHED if name in options.values and is_trainers(options)]
    return [
        " ".join([f"--{name}", *options.values[name][:1]])
        for name in found
        if not set(options.values[name]) & set(PLAIN.get(name, ()))
        and options.values[name] not in (["False"], ["false"])
    ]
