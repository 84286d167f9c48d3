"""A priced plan: the answer in the words of the JSON schema."""

import msgspec

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
    activations_bytes: float | None = None
    logits_bytes: float | None = None
    buffers_bytes: float | None = None
    runtime_bytes: float | None = None

    @property
    def states_bytes(self) -> float:
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes


class PlanMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The worst stage decides. `fits` is None as long as not every cause is modelled."""

    fits: bool | None = None
    fit_probability: float | None = None
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    usable_bytes: float
    worst_pipeline: int
    worst_stage: int
    stages: tuple[StageMemory, ...]


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """How much of an answer was measured, fitted or guessed."""

    measured_fraction: float | None = None
    fitted_fraction: float | None = None
    guessed_fraction: float | None = None
    notes: tuple[str, ...] = ()


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """One plan with what it costs."""

    rank: int
    summary: str
    plan: Plan
    assumed: tuple[str, ...]
    gpus: dict[str, int]
    step_s: float | None = None
    step_s_low: float | None = None
    step_s_high: float | None = None
    step_parts_s: dict[str, float] | None = None
    parts_stage: int | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    mfu_fraction: float | None = None
    step_flops: float
    step_s_at_peak: float  # model FLOPs over the dense peak of all GPUs: no step is shorter
    memory: PlanMemory
    host_memory_bytes: float
    checkpoint_bytes: float
    usd_per_hour: float | None = None
    hours: float | None = None
    usd: float | None = None
    provenance: Provenance
    warnings: tuple[str, ...] = ()
