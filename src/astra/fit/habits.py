"""What each framework does where a row does not say: its runtime, its stack and its defaults."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from astra.fit.cells import Cells, is_on
from astra.strategy.plan import Precision, Runtime, Sharding

OLD = 2023  # before this year flash attention, sequence parallel and bf16 were rare


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """One framework's ways."""

    stack: str
    runtime: Runtime = "megatron"
    sharding: Sharding = "optimizer"
    flash: bool = True
    sequence_parallel: bool = False  # with tp > 1
    experts_cut_by_tp: bool = False
    precision: Precision = "bf16"
    overlaps: bool = False  # gradient reduction, parameter gather, p2p between chunks
    low_gradients: bool = False  # gradients kept and reduced in bf16
    dispatcher: str = "alltoall"
    recompute: str = "none"
    known: bool = True


NEMO = Habits(stack="megatron", sequence_parallel=True, overlaps=True, low_gradients=True)
MEGATRON = Habits(stack="megatron", dispatcher="allgather", experts_cut_by_tp=True)
MEGATRON_DEEPSPEED = Habits(
    stack="megatron-deepspeed",
    sharding="none",
    flash=False,
    precision="fp16",
    experts_cut_by_tp=True,
)
PYTORCH = Habits(stack="torch-fsdp", runtime="fsdp", sharding="parameters", overlaps=True)
XLA = replace(PYTORCH, stack="jax", recompute="full:uniform:1")  # their own default

# Words in the framework's name, and its ways; the first that is found counts.
FRAMEWORKS: tuple[tuple[str, Habits], ...] = (
    ("sailor", replace(MEGATRON_DEEPSPEED, stack="sailor", precision="fp32")),
    ("deepspeed-megatron", replace(MEGATRON_DEEPSPEED, stack="deepspeed-3d")),
    ("megatron-deepspeed", MEGATRON_DEEPSPEED),
    ("automodel", replace(PYTORCH, stack="nemo-automodel")),
    ("bridge", NEMO),
    ("nemo", NEMO),
    ("nvidia", NEMO),
    ("llm-foundry", replace(PYTORCH, stack="llm-foundry")),
    ("torchtitan", PYTORCH),
    ("fms-fsdp", PYTORCH),
    ("maxtext", XLA),
    ("paxml", XLA),
    ("internevo", Habits(stack="internevo", overlaps=True)),
    ("megatron", MEGATRON),
    ("alpa", MEGATRON),
    ("deepspeed", Habits(stack="deepspeed", runtime="deepspeed", sharding="parameters")),
    ("fsdp", PYTORCH),
    ("accelerate", PYTORCH),
    ("pytorch", PYTORCH),
    ("torch", PYTORCH),
)

# The stack that comes nearest, where one of ours has not been fitted.
NEAREST = {
    "megatron-deterministic": "megatron",
    "megatron-dropout": "megatron",
    "megatron-deepspeed": "megatron",
    "bigscience": "megatron-deepspeed",
    "bigscience-bf16": "bigscience",
    "deepspeed-3d": "megatron-deepspeed",
    "sailor": "megatron-deepspeed",
    "internevo": "megatron",
    "llm-foundry": "torch-fsdp",
    "nemo-automodel": "torch-fsdp",
    "deepspeed": "torch-fsdp",
    "jax": "torch-fsdp",
    "torchtitan": "torch-fsdp",
    "torch-fsdp": "torch-compile",
}


def fitted_stack(wanted: str, known: Collection[str]) -> str:
    """The stack itself where it is known, else its nearest known relative."""
    stack = wanted
    while stack not in known and stack in NEAREST:
        stack = NEAREST[stack]
    return stack if stack in known else "megatron"


def habits_of(cells: Cells) -> Habits:
    """The ways of the row's framework, at the time of the run."""
    framework = cells.low("framework")
    habits = next((ways for word, ways in FRAMEWORKS if word in framework), None)
    if habits is None:
        return replace(MEGATRON, known=False)
    if "bigscience" in cells.low("framework_version"):
        late = "embedding treated as a layer" in cells.low("notes")
        habits = replace(habits, stack="bigscience-bf16" if late else "bigscience")
    if habits is MEGATRON and "CI test" in cells.text("notes"):
        habits = replace(habits, stack=_test_stack(cells))
    year = cells.year()
    if "torchtitan" in framework and "compile" in cells.low("notes") and (year or 0) > 2024:
        return replace(habits, stack="torchtitan")
    if habits is MEGATRON and year is not None and year < OLD:
        return replace(habits, sharding="none", flash=False, precision="fp16")
    return habits


def _test_stack(cells: Cells) -> str:
    """Megatron-LM's own tests leave dropout at its default, but for DeepSeek's recipe."""
    if is_on(cells.flags, "deterministic-mode"):
        return "megatron-deterministic"
    return "megatron" if cells.truth("mla") and cells.text("num_experts") else "megatron-dropout"
