"""What each framework does where a row does not say: its runtime, its stack and its defaults."""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from astra.fit.csv_row import CsvRow, is_on
from astra.strategy.plan import Precision, Runtime, Sharding

GRAPHED_FROM = "26.06"  # Megatron-Bridge's recipes of mixtures of experts, on Blackwell
MODERN_FROM_YEAR = 2023  # before this year flash attention, sequence parallel and bf16 were rare


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkDefaults:
    """One framework's ways."""

    stack: str
    runtime: Runtime = "megatron"
    sharding: Sharding = "optimizer"
    flash: bool = True
    sequence_parallel: bool = False  # with tp > 1
    experts_cut_by_tp: bool = False
    interleaves: bool = False  # a pipeline in as many chunks as there are layers
    precision: Precision = "bf16"
    overlaps: bool = False  # gradient reduction, parameter gather, p2p between chunks
    overlaps_tensor: bool = False  # tensor-parallel traffic with its matrix products
    low_gradients: bool = False  # gradients kept and reduced in bf16
    graphed_experts: bool = False  # one graph for the step, dispatch by HybridEP
    hides_dispatch: bool = False  # behind another micro-batch
    dispatcher: str = "alltoall"
    recompute: str = "none"
    known: bool = True


NEMO = FrameworkDefaults(
    stack="nemo",
    sequence_parallel=True,
    overlaps=True,
    overlaps_tensor=True,
    low_gradients=True,
    experts_cut_by_tp=True,
    interleaves=True,
)
MLPERF = replace(NEMO, stack="mlperf", precision="fp8")  # all rounds since 2023 ran in fp8 or less
MEGATRON = FrameworkDefaults(stack="megatron", dispatcher="allgather", experts_cut_by_tp=True)
MEGATRON_DEEPSPEED = FrameworkDefaults(
    stack="megatron-deepspeed",
    sharding="none",
    flash=False,
    precision="fp16",
    experts_cut_by_tp=True,
)
PYTORCH = FrameworkDefaults(
    stack="torch-fsdp", runtime="fsdp", sharding="parameters", overlaps=True
)
XLA = replace(PYTORCH, stack="jax", recompute="full:uniform:1")  # their own default

# Words in the framework's name, and its ways; the first that is found counts.
FRAMEWORKS: tuple[tuple[str, FrameworkDefaults], ...] = (
    ("sailor", replace(MEGATRON_DEEPSPEED, stack="sailor", precision="fp32")),
    ("deepspeed-megatron", replace(MEGATRON_DEEPSPEED, stack="deepspeed-3d")),
    ("megatron-deepspeed", MEGATRON_DEEPSPEED),
    ("automodel", replace(PYTORCH, stack="nemo-automodel")),
    ("bridge", replace(NEMO, stack="bridge", experts_cut_by_tp=False, interleaves=False)),
    ("nvidia", MLPERF),
    ("nemo", NEMO),
    ("llm-foundry", replace(PYTORCH, stack="llm-foundry")),
    ("torchtitan", PYTORCH),
    ("fms-fsdp", replace(PYTORCH, low_gradients=True)),  # its bfSixteen policy
    ("maxtext", XLA),
    ("paxml", XLA),
    ("internevo", FrameworkDefaults(stack="internevo", overlaps=True)),
    ("megatron", MEGATRON),
    ("alpa", MEGATRON),
    ("deepspeed", FrameworkDefaults(stack="deepspeed", runtime="deepspeed", sharding="parameters")),
    ("fsdp", PYTORCH),
    ("accelerate", PYTORCH),
    ("pytorch", PYTORCH),
    ("torch", PYTORCH),
)

# The stack that comes nearest, where one of ours has not been fitted.
NEAREST_STACK = {
    "megatron-deterministic": "megatron",
    "megatron-dropout": "megatron",
    "nemo": "megatron",
    "bridge": "nemo",
    "mlperf": "nemo",
    "megatron-deepspeed": "megatron",
    "bigscience": "megatron-deepspeed",
    "bigscience-bf16": "bigscience",
    "deepspeed-3d": "megatron-deepspeed",
    "sailor": "megatron-deepspeed",
    "sailor-gpt-neo": "sailor",
    "internevo": "megatron",
    "llm-foundry": "torch-fsdp",
    "nemo-automodel": "torch-fsdp",
    "deepspeed": "torch-fsdp",
    "jax": "torch-fsdp",
    "torchtitan": "torch-fsdp",
    "torch-fsdp": "torch-compile",
    "torch-fsdp-eager": "torch-fsdp",
}


def fitted_stack(wanted: str, known: Collection[str]) -> str:
    """The stack itself where it is known, else its nearest known relative."""
    stack = wanted
    while stack not in known and stack in NEAREST_STACK:
        stack = NEAREST_STACK[stack]
    return stack if stack in known else "megatron"


def framework_defaults(csv_row: CsvRow) -> FrameworkDefaults:
    """The ways of the row's framework, at the time of the run."""
    framework = csv_row.lower_text("framework")
    defaults = next((ways for word, ways in FRAMEWORKS if word in framework), None)
    if defaults is None:
        return replace(MEGATRON, known=False)
    if "bigscience" in csv_row.lower_text("framework_version"):
        late = "embedding treated as a layer" in csv_row.lower_text("notes")
        defaults = replace(defaults, stack="bigscience-bf16" if late else "bigscience")
    if defaults is MEGATRON and "CI test" in csv_row.text("notes"):
        return replace(defaults, stack=_test_stack(csv_row))
    if defaults.stack == "bridge":
        hopper = "h100" in csv_row.lower_text("gpu_id") or "h200" in csv_row.lower_text("gpu_id")
        if hopper:  # the recipes of DeepSeek and Qwen on Hopper: tokens cross the network once
            return replace(defaults, dispatcher="deepep", hides_dispatch=True)
        late = (release_of(csv_row) or "") >= GRAPHED_FROM
        return replace(defaults, graphed_experts=late, hides_dispatch=late)
    if defaults.stack == "sailor" and "neo" in csv_row.lower_text("model"):
        return replace(defaults, stack="sailor-gpt-neo")
    if defaults.stack == "torch-fsdp" and re.search(r"\beager\b", csv_row.lower_text("notes")):
        return replace(defaults, stack="torch-fsdp-eager")
    year = csv_row.year()
    if (
        "torchtitan" in framework
        and "compile" in csv_row.lower_text("notes")
        and (year or 0) > 2024
    ):
        return replace(defaults, stack="torchtitan")
    if defaults is MEGATRON and year is not None and year < MODERN_FROM_YEAR:
        old = replace(defaults, sharding="none", flash=False, precision="fp16")
        return replace(old, stack="megatron-deepspeed")
    return defaults


def _test_stack(csv_row: CsvRow) -> str:
    """Megatron-LM's own tests leave dropout at its default, but for DeepSeek's recipe."""
    if is_on(csv_row.flags, "deterministic-mode"):
        return "megatron-deterministic"
    return "megatron" if csv_row.flag("mla") and csv_row.text("num_experts") else "megatron-dropout"


_RELEASE = re.compile(
    r"\b(2[0-9]\.[01][0-9](?:\.[0-9]{1,2})?|20[1-4][0-9]-[01][0-9]|[0-9a-f]{8,12})\b"
)


def release_of(csv_row: CsvRow) -> str | None:
    """The framework's release as a stack names it: `24.07`, `dgxc-25.02`, `2024-12`, a commit,
    `core-0.14`.

    Of MLPerf's results it is the round.

    >>> release_of(CsvRow({"framework_version": "NeMo container 26.02.01"}))
    '26.02.01'
    """
    round_ = re.search(r"MLPerf Training (v[0-9]\.[0-9])", csv_row.text("source"))
    if round_:  # containers are named after the first round that wrote such a file
        return round_[1]
    for column in ("framework_version", "framework"):
        text = csv_row.lower_text(column).replace(" v", " ")
        found = _RELEASE.search(text)
        if found:
            recipe = "dgxc-" if "dgxc" in text else ""
            return recipe + found[1]
        core = re.search(r"megatron-(?:lm|core) r?(0\.[0-9]{1,2})", text)
        if core:
            return f"core-{core[1]}"
    return None
