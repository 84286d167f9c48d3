"""A priced plan: the answer in the words of the JSON schema.

Notes have codes and numbers; their sentences are made by `report`, beside them.
"""

import msgspec

from astra.money.catalogue import PriceFrom
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

    @property
    def allocated_bytes(self) -> float:
        """What torch calls allocated at the peak: all but the runtime's own."""
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

    @property
    def worst(self) -> StageMemory:
        place = (self.worst_pipeline, self.worst_stage)
        return next(row for row in self.stages if (row.pipeline, row.stage) == place)

    @property
    def slack(self) -> float:
        """What the allocator holds over what is allocated."""
        return (self.reserved_bytes - self.worst.runtime_bytes) / self.allocated_bytes


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """How much of an answer was measured, fitted or guessed."""

    measured_fraction: float
    fitted_fraction: float
    guessed_fraction: float
    notes: tuple[str, ...] = ()  # in words
    sources: tuple[Note, ...] = msgspec.field(default=(), name="note_codes")


class RentedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one kind, and what an hour of them costs."""

    gpu: str
    cloud: str
    region: str
    instance: str
    spot: bool
    nodes: int
    node_gpus: int
    idle_gpus: int  # paid for, not used
    node_usd_per_hour: float
    usd_per_gpu_hour: float
    price_date: str
    price_source: str
    network_certainty: str  # of what joins the nodes: high, medium, low or guessed
    node_ram_bytes: float | None = None  # None: not known
    price_from: PriceFrom = "catalogue"


class Money(msgspec.Struct, frozen=True, kw_only=True):
    """Hours and dollars of a whole run, term by term.

    hours = training_hours / goodput_fraction + startup_hours; the four fractions sum to one.
    usd = hours x (sum of nodes x node_usd_per_hour) + storage_usd + egress_usd.
    """

    tokens: float
    rents: tuple[RentedNodes, ...]
    training_hours: float
    goodput_fraction: float
    writing_fraction: float
    lost_fraction: float
    restarting_fraction: float
    failures_per_hour: float
    checkpoint_s: float
    checkpoint_interval_s: float | None  # of training; None: none is needed
    restart_s: float
    startup_hours: float
    rent_usd: float
    storage_usd: float
    egress_usd: float
    usd_per_million_tokens: float


class PricedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One plan with what it costs."""

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
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu_fraction: float
    memory: PlanMemory
    host_memory_bytes: float
    checkpoint_bytes: float
    usd_per_hour: float | None = None
    hours: float | None = None
    usd: float | None = None
    money: Money | None = None
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
