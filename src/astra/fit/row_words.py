"""Cells of free text in our words: recompute, precision, sharding, overlaps."""

import re
from dataclasses import dataclass
from typing import Any

from astra.errors import InputError, shorten
from astra.fit.csv_row import CsvRow
from astra.fit.framework_defaults import MODERN_FROM_YEAR, FrameworkDefaults
from astra.hardware.cluster import Gpu
from astra.strategy.recompute import MODULES, Recompute


def recompute_of(text: str, usual: str = "none") -> tuple[str, str | None]:
    """A recompute cell in our grammar, and what had to be assumed.

    >>> recompute_of("full (method=uniform layers=1 modules=)")
    ('full:uniform:1', None)
    >>> recompute_of("selective: mlp, core_attn")
    ('selective:core_attn+mlp', None)
    >>> recompute_of("full:block:4")
    ('full:block:4', None)
    """
    low = text.lower()
    if re.fullmatch(r"full:(uniform|block)(:[0-9]{1,4})?", low):  # in our own words
        return str(Recompute.parse(low)), None
    if not low:
        return usual, f"recompute not stated: {usual}"
    if low.startswith("none"):
        return "none", None
    if low.startswith("full"):
        return _full(low)
    if low.startswith("selective"):
        modules = [module for module in MODULES if re.search(rf"\b{module}\b", low)]
        setting = f"selective:{'+'.join(modules)}" if modules else "selective"
        plain = modules or "attention" in low or low == "selective"
        said = None if plain else f"recompute {shorten(text)} read as selective"
        return str(Recompute.parse(setting)), said
    raise InputError(f"recompute = {shorten(text)}: not understood")


def _full(low: str) -> tuple[str, str | None]:
    method = re.search(r"method=(uniform|block)", low)
    count = re.search(r"(?:num_)?layers=([0-9]{1,4})", low)
    said = "only some activations are saved: read as full recompute" if "policy" in low else None
    if count and int(count[1]):
        chosen = method[1] if method else "block"  # a number alone says how many layers
        return f"full:{chosen}:{int(count[1])}", said
    return "full:uniform:1", said


def precision_of(
    csv_row: CsvRow, defaults: FrameworkDefaults, gpu: Gpu
) -> tuple[str, str | None, list[str]]:
    """Precision, fp8 recipe, and what had to be assumed."""
    low = csv_row.lower_text("precision")
    if not low:
        chosen = _unstated(csv_row, defaults, gpu)
        return chosen, None, [f"precision not stated: {chosen}"]
    for word in ("fp4", "fp8", "bf16", "fp16", "fp32"):
        if word in low:
            break
    else:
        raise InputError(f"precision = {shorten(low)}: not understood")
    if word != "fp8":
        return word, None, []
    recipe, assumed = fp8_recipe_of(low, defaults, csv_row.year())
    return word, recipe, assumed


def _unstated(csv_row: CsvRow, defaults: FrameworkDefaults, gpu: Gpu) -> str:
    """fp16 where the GPU has no bf16 or the notes say so, else the framework's habit."""
    if defaults.precision != "fp32" and not gpu.bf16_flops_per_s:
        return "fp16"
    said = re.search(r"\b(fp16|bf16) mixed", csv_row.lower_text("notes"))
    return said[1] if said else defaults.precision


RECIPES = (
    ("mxfp8", "mxfp8"),
    ("block", "blockwise"),
    ("current", "tensorwise"),
    ("tensorwise", "tensorwise"),
    ("rowwise", "blockwise"),
    ("delayed", "delayed"),
)


# Stacks whose fp8 is torchao's, scaled by each tensor's largest value from the start.
TORCHAO = ("torch-eager", "torch-compile", "torch-fsdp", "torchtitan")


def fp8_recipe_of(low: str, defaults: FrameworkDefaults, year: int | None) -> tuple[str, list[str]]:
    """The scaling recipe that a text names, or the usual one of framework and time."""
    for word, recipe in RECIPES:
        if word in low:
            said = [f"fp8 {word} read as {recipe}"] if word == "rowwise" else []
            return recipe, said
    early = year is not None and year < 2025 and defaults.stack not in TORCHAO
    recipe = "delayed" if early else "tensorwise"
    return recipe, [f"fp8 recipe not stated: {recipe}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSharding:
    """What is sharded, and over how many ranks."""

    kind: str
    group: int
    assumed: tuple[str, ...] = ()


# Words in a sharding cell, and what they mean; the first that is found counts.
SHARDING: tuple[tuple[str, str], ...] = (
    (r"fsdp=0", "usual"),
    (r"shard_grad_op|zero-?2\b|zero stage 2|^2$", "gradients"),
    (r"optim_grads_params|full.?shard|zero-?3\b|zero stage 3|fsdp|hsdp|^3$", "parameters"),
    (r"optim_grads\b", "gradients"),
    (r"distributed.optimizer|zero-?1\b|zero stage 1|optim\b|^1$", "optimizer"),
    (r"none|no_shard|ddp|zero-?0\b|^0$", "none"),
)


def sharding_of(text: str, defaults: FrameworkDefaults, copies: int, node: int) -> RowSharding:
    """A sharding cell, for `copies` = dp x cp ranks that hold the same weights."""
    low = text.lower()
    kind = next((kind for words, kind in SHARDING if re.search(words, low)), None)
    assumed: tuple[str, ...] = ()
    if not low or kind == "usual":
        kind = defaults.sharding
        assumed = (f"sharding not stated: {kind}",)
    if kind is None:
        raise InputError(f"zero_stage = {shorten(text)}: not understood")
    if kind == "none":
        return RowSharding(kind=kind, group=1, assumed=assumed)
    group = copies
    over = re.search(r"over ([0-9]{1,7})x cp([0-9]{1,7})", low)
    size = re.search(r"shard=([0-9]{1,7})", low)
    if over:
        group = int(over[1]) * int(over[2])
    elif size:
        group = int(size[1])
    elif "hsdp" in low:
        group = node
        assumed += (f"sharded over one node of {node}",)
    if group > copies or group < 1 or copies % group:
        assumed += (f"shard group {group} does not fit {copies} copies: {copies}",)
        group = copies
    return RowSharding(kind=kind, group=group, assumed=assumed)


def overlap_of(
    csv_row: CsvRow, defaults: FrameworkDefaults, chunks: bool, tp: int, assumed: list[str]
) -> dict[str, Any]:
    """The plan's overlap flags; without a word, the framework's habit."""
    low = csv_row.lower_text("overlap")
    usual = defaults.overlaps
    late = (
        csv_row.year() or MODERN_FROM_YEAR
    ) >= MODERN_FROM_YEAR  # since then Megatron-LM hides it by default
    gathers = usual or "grad reduce/param gather" in low
    if not low:
        assumed.append(f"overlap not stated: {'gradients and parameters' if usual else 'none'}")
    tensor = hides_tensor(csv_row) or (defaults.overlaps_tensor and not low)
    experts = "moe_a2a_overlap=true" in low or "overlap-moe-expert-parallel-comm" in low
    return {
        "overlap_grad_reduce": gathers or "overlap-grad-reduce" in low,
        "overlap_param_gather": gathers or "overlap-param-gather" in low,
        "overlap_p2p": chunks and late and "pp_comm_async=false" not in low,
        "overlap_tp": tp > 1 and tensor,
        "overlap_ep": experts or (not low and defaults.hides_dispatch),
    }


def hides_tensor(csv_row: CsvRow) -> bool:
    """Whether tensor-parallel traffic is said to be hidden, which needs sequence parallelism."""
    low = csv_row.lower_text("overlap")
    return any(word in low for word in ("tp_comm_overlap", "async tp", "tp and pp comm overlap"))


def hides_transfers(csv_row: CsvRow) -> bool:
    """Whether traffic between stages is said to be hidden, which only several chunks allow."""
    return "pp comm overlap on" in csv_row.lower_text("overlap")


def cuda_graph_of(csv_row: CsvRow, defaults: FrameworkDefaults, moe: bool) -> str:
    """`cuda_graph_impl=local; cuda_graph_scope=full_iteration` and the like."""
    low = csv_row.lower_text("overlap")
    if not low and moe and defaults.graphed_experts:
        return "full_iteration"
    found = re.search(r"cuda_graph_impl=(\w+)", low)
    word = found[1] if found else csv_row.flags.get("cuda-graph-impl", "none")
    if word == "local" and "cuda_graph_scope=full_iteration" in low:
        return "full_iteration"
    return word if word in ("local", "transformer_engine", "full_iteration") else "none"


def dispatcher_of(csv_row: CsvRow, defaults: FrameworkDefaults) -> str:
    """How tokens reach their experts."""
    text = f"{csv_row.lower_text('overlap')} {csv_row.lower_text('notes')}"
    for word in ("hybridep", "deepep"):
        if word in text:
            return word
    if not csv_row.lower_text("overlap") and defaults.graphed_experts:
        return "hybridep"
    flag = csv_row.flags.get("moe-token-dispatcher-type", "")
    return flag if flag in ("alltoall", "allgather") else defaults.dispatcher


def offload_layers_of(csv_row: CsvRow) -> int:
    """Layers whose activations go to the host."""
    layers = re.search(r"cpu_offloading_num_layers=([0-9]{1,4})", csv_row.lower_text("overlap"))
    return int(layers[1]) if layers else 0
