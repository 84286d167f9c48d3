"""A priced plan: the answer in the words of the JSON schema.

Notes have codes and numbers; their sentences are made by `report`, beside them.
"""

import msgspec

from astra.money.energy import Energy
from astra.money.rented import Money
from astra.notes import Note, NoteCode, has
from astra.strategy.plan import Plan


class StageMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of one stage, by cause."""

    pipeline: int
    stage: int
    gpu: str
    layers: int
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float
    buffers_bytes: float
    runtime_bytes: float
    slack_bytes: float  # what the allocator holds over what is allocated
    reserved_bytes: float  # all of these: what must fit
    usable_bytes: float
    fits: bool
    fit_probability: float

    @property
    def allocated_bytes(self) -> float:
        """What torch calls allocated at the peak: all but the runtime's own and slack."""
        states = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        return states + self.activations_bytes + self.logits_bytes + self.buffers_bytes


class PlanMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The worst stage decides: the one that fills its GPU most."""

    fits: bool
    fit_probability: float
    allocated_bytes: float
    reserved_bytes: float  # with allocator slack, CUDA context and NCCL: what must fit
    usable_bytes: float
    worst_pipeline: int
    worst_stage: int
    stages: tuple[StageMemory, ...]

    def __repr__(self) -> str:
        need, usable = self.reserved_bytes / 2**30, self.usable_bytes / 2**30
        return f"PlanMemory({need:.1f} of {usable:.1f} GiB, fits={self.fits})"

    @property
    def worst(self) -> StageMemory:
        place = (self.worst_pipeline, self.worst_stage)
        return next(row for row in self.stages if (row.pipeline, row.stage) == place)


class StageParts(msgspec.Struct, frozen=True, kw_only=True):
    """Where one stage's step goes; the parts sum to the step."""

    pipeline: int
    stage: int
    parts_s: dict[str, float]


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """How much of an answer was measured, fitted or guessed."""

    measured_fraction: float
    fitted_fraction: float
    guessed_fraction: float
    notes: tuple[str, ...] = ()  # in words
    sources: tuple[Note, ...] = msgspec.field(default=(), name="note_codes")


class PricedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One plan with what it costs.

    >>> import astra
    >>> priced = astra.predict("llama-3-8b", gpus={"h100": 8}, global_batch=32, seq_len=4096)
    >>> isinstance(priced, astra.PricedPlan)
    True
    >>> round(sum(priced.step_parts_s.values()) / priced.step_s, 6)
    1.0
    """

    rank: int
    summary: str
    plan: Plan
    assumed: tuple[str, ...]
    gpus: dict[str, int]
    step_s: float
    step_s_low: float
    step_s_high: float
    step_parts_s: dict[str, float]
    parts_stage: int
    stage_parts_s: tuple[StageParts, ...]
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu_fraction: float
    memory: PlanMemory
    host_memory_bytes: float
    checkpoint_bytes: float
    usd_per_hour: float | None = None
    hours: float | None = None
    hours_low: float | None = None  # with the low and the high end of the step
    hours_high: float | None = None
    usd: float | None = None
    usd_low: float | None = None
    usd_high: float | None = None
    money: Money | None = None
    energy: Energy | None = None  # with --objective energy
    provenance: Provenance
    warnings: tuple[str, ...] = ()  # in words
    notes: tuple[Note, ...] = msgspec.field(default=(), name="warning_codes")

    @property
    def fits_host(self) -> bool:
        """Whether the RAM of its nodes holds what it offloads, as far as it is known."""
        return not has(self.notes, NoteCode.RAM_TOO_SMALL)

    @property
    def runs(self) -> bool:
        """Whether it fits its GPUs and, as far as it is known, its hosts."""
        return self.memory.fits and self.fits_host


class MixedStage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a pipeline over several GPU types."""

    pipeline: int = 0
    gpu: str
    gpus: int  # that hold it, in all replicas, and the fewest nodes with as many
    nodes: int
    layers: int
    tp: int
    recompute: str
    busy_s: float  # of a step, its micro-batches alone
    filled_fraction: float  # of its GPUs' memory
    chunks: tuple[int, ...] = ()  # layers of each, where stages are interleaved


class PaperComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One plan by the simulator and by the formula."""

    rank: int  # by the simulator
    summary: str
    simulated_s: float
    paper_s: float
    error_fraction: float  # formula / simulator - 1
