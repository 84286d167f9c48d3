"""A plan as people write it and as JSON keeps it. The table of many plans is in `plans.py`."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from astra.errors import InputError
from astra.hardware.cluster import Cluster
from astra.model.shape import Model
from astra.strategy.recompute import Recompute

Degree = Annotated[int, Meta(ge=1, le=10**7)]
LayerCount = Annotated[int, Meta(ge=0, le=10**6)]
MicroBatches = Annotated[int, Meta(ge=0, le=10**7)]
Fraction = Annotated[float, Meta(ge=0, le=1)]

MAX_GPUS = 10**9  # of one plan
MAX_SAMPLES = 10**15  # of one step
MAX_USD_PER_HOUR = 1e6  # of one GPU

Runtime = Literal["megatron", "flagscale", "fsdp", "deepspeed", "any"]
Schedule = Literal["1f1b", "interleaved"]
Sharding = Literal["none", "optimizer", "gradients", "parameters"]
Attention = Literal["flash", "unfused"]
Precision = Literal["bf16", "fp16", "fp8", "fp4", "fp32"]
Fp8Recipe = Literal["delayed", "tensorwise", "blockwise", "mxfp8"]
Dtype = Literal["fp32", "bf16", "fp16", "fp8"]
CpCommType = Literal["p2p", "a2a", "allgather"]
RankOrder = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]
Dispatcher = Literal["alltoall", "allgather", "deepep", "hybridep"]
CudaGraph = Literal["none", "local", "transformer_engine", "full_iteration"]
OffloadModule = Literal[
    "core_attn", "attn_proj", "expert_fc1", "moe_act", "attn_norm", "mlp_norm", "qkv_linear"
]


class Segment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Consecutive stages on one GPU type with equal settings. None means the plan's value."""

    gpu: str
    stages: Degree
    layers: tuple[LayerCount, ...]  # one entry per stage
    tp: Degree
    recompute: str = "none"
    dp: Degree | None = None
    ep: Degree | None = None
    etp: Degree | None = None
    micro_batch: Degree | None = None


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of identical data-parallel replicas."""

    replicas: Degree
    micro_batches: MicroBatches  # per replica and step
    segments: tuple[Segment, ...]

    @property
    def stages(self) -> int:
        return sum(segment.stages for segment in self.segments)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of every stage, first to last."""
        return tuple(count for segment in self.segments for count in segment.layers)

    def segment_at(self, stage: int) -> Segment:
        """The segment that a stage lies in."""
        for segment in self.segments:
            if stage < segment.stages:
                return segment
            stage -= segment.stages
        raise IndexError(stage)


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training strategy, with all it needs to be replayed anywhere.

    >>> import astra
    >>> job = {"global_batch": 32, "seq_len": 4096}
    >>> plan = astra.predict("llama-3-8b", gpus={"h100": 8}, tp=2, **job).plan
    >>> plan
    Plan(llama-3-8b on 8 H100-80GB-SXM, batch 32 x 4096, bf16, megatron: tp 2 pp 1 dp 4 mb 1)
    >>> plan.tp, plan.pp, plan.dp, plan.cp, plan.ep, plan.vpp, plan.micro_batch
    (2, 1, 4, 1, 1, 1, 1)
    """

    model: Model
    cluster: Cluster
    stack: str = "megatron"
    runtime: Runtime = "megatron"
    pipelines: tuple[Pipeline, ...]
    chunk_layers: tuple[LayerCount, ...] | None = None  # vpp > 1, uneven: virtual stage major
    mtp_layers: LayerCount = 0
    micro_batch: Degree = 1
    global_batch: Degree
    seq_len: Degree
    cp: Degree = 1
    cp_comm_type: CpCommType = "p2p"
    ep: Degree = 1
    etp: Degree = 1
    vpp: Degree = 1
    schedule: Schedule = "1f1b"
    microbatch_group: Degree | None = None
    rank_order: RankOrder = "tp-cp-ep-dp-pp"
    sharding: Sharding = "optimizer"
    shard_group: Degree = 1
    sequence_parallel: bool = False
    attention: Attention = "flash"
    precision: Precision = "bf16"
    fp8_recipe: Fp8Recipe | None = None
    main_grads_dtype: Dtype = "fp32"
    grad_reduce_dtype: Dtype = "fp32"
    master_dtype: Dtype = "fp32"
    moment_dtypes: tuple[Dtype, Dtype] = ("fp32", "fp32")
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    overlap_p2p: bool = False
    overlap_tp: bool = False
    overlap_ep: bool = False
    offload_optimizer_fraction: Fraction = 0.0
    offload_activations: tuple[OffloadModule, ...] = ()
    offload_layers: LayerCount = 0  # whose activations go to the host, the first ones
    dispatcher: Dispatcher | None = None
    capacity_factor: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    cuda_graph: CudaGraph = "none"

    def __repr__(self) -> str:
        gpus = " + ".join(f"{count} {name}" for name, count in self.gpus.items())
        return (
            f"Plan({self.model.name} on {gpus}, batch {self.global_batch} x {self.seq_len}, "
            f"{self.precision}, {self.runtime}: {self.summary()})"
        )

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs used of each type."""
        used: dict[str, int] = {}
        for pipeline in self.pipelines:
            for segment in pipeline.segments:
                count = segment.stages * segment.tp * self.cp * (segment.dp or pipeline.replicas)
                used[segment.gpu] = used.get(segment.gpu, 0) + count
        return used

    @property
    def tp(self) -> int | tuple[int, ...]:
        """Of all segments; where they differ one for each, first to last, group after group."""
        each = tuple(segment.tp for pipeline in self.pipelines for segment in pipeline.segments)
        return each[0] if len(set(each)) == 1 else each

    @property
    def recompute(self) -> str | tuple[str, ...]:
        """`none`, `selective:mlp`, `full:block:4`: of all segments, or of each as `tp` is."""
        each = [segment.recompute for pipeline in self.pipelines for segment in pipeline.segments]
        return each[0] if len(set(each)) == 1 else tuple(each)

    @property
    def pp(self) -> int:
        """Stages of the first pipeline."""
        return self.pipelines[0].stages

    def chunks(self, stage: int) -> tuple[int, ...]:
        """Layers of every chunk of a stage of its first pipeline.

        Without a list a stage divides its layers evenly; what does not divide goes to the first
        ones, so that no layer is lost where a rule will refuse the plan anyway.
        """
        if self.chunk_layers is not None:
            return self.chunk_layers[stage :: self.pp]
        each, more = divmod(self.pipelines[0].layers[stage], self.vpp)
        return tuple(each + (chunk < more) for chunk in range(self.vpp))

    @property
    def dp(self) -> int:
        """Replicas of all groups together."""
        return sum(pipeline.replicas for pipeline in self.pipelines)

    @property
    def is_one_job(self) -> bool:
        """Replicas differ in nothing but the GPUs they lie on: any framework launches them as one
        job, whose ranks lie in blocks by GPU type.
        """
        first, *others = self.pipelines
        same = (each.micro_batches == first.micro_batches for each in others)
        return all(same) and len({_stage_settings(self, each) for each in self.pipelines}) == 1

    @property
    def rank_blocks(self) -> tuple[tuple[str, int], ...]:
        """GPU types in the order of the ranks, and how many ranks of each stand in a row."""
        stage_major = self.rank_order == "tp-cp-ep-dp-pp"
        blocks: list[tuple[str, int]] = []
        for stage, pipeline in _places(self, stage_major):
            segment = pipeline.segment_at(stage)
            count = segment.tp * self.cp * (segment.dp or pipeline.replicas)
            if not stage_major:  # one replica after the other, each with all of its stages
                count //= pipeline.replicas
            if blocks and blocks[-1][0] == segment.gpu:
                count += blocks.pop()[1]
            blocks.append((segment.gpu, count))
        return tuple(blocks)

    @property
    def explicit_microbatch_group(self) -> int | None:
        """The micro-batch group where it must be asked for: neither pp nor the runtime's affair."""
        asked = self.vpp > 1 and self.runtime != "fsdp" and self.microbatch_group != self.pp
        return self.microbatch_group if asked else None

    def summary(self) -> str:
        """`tp 8 pp 4 dp 16 vpp 5 mb 1`: what a person would call this plan.

        Of several replica groups each has its own numbers: `tp 4 pp 2|1 dp 64|32 mb 1 x 14|36`.
        """
        tps = [segment.tp for pipeline in self.pipelines for segment in pipeline.segments]
        each = [
            "+".join(dict.fromkeys(str(segment.tp) for segment in pipeline.segments))
            for pipeline in self.pipelines
        ]
        parts = [
            f"tp {_joined(each)}",
            f"pp {_joined([pipeline.stages for pipeline in self.pipelines])}",
            f"dp {self.dp}"
            if self.is_one_job
            else f"dp {'|'.join(str(pipeline.replicas) for pipeline in self.pipelines)}",
        ]
        for name in ("vpp", "cp", "ep"):
            if getattr(self, name) > 1:
                parts.append(f"{name} {getattr(self, name)}")
            if name == "vpp" and self.explicit_microbatch_group:
                parts.append(f"group {self.microbatch_group}")
        if self.model.moe and self.etp != max(tps) and max(tps) > 1:
            parts.append(f"etp {self.etp}")
        parts.append(f"mb {self.micro_batch}")
        if not self.is_one_job:
            parts.append(f"x {'|'.join(str(each.micro_batches) for each in self.pipelines)}")
        if self.sharding in ("gradients", "parameters"):
            parts.append(f"sharded {self.sharding}")
        shards = _shards(self, self.pipelines[0])
        same = [each for each in self.pipelines if _shards(self, each) == shards]
        copies = sum(each.replicas for each in same) * self.cp
        if self.sharding != "none" and self.shard_group < copies:
            parts.append(f"in groups of {self.shard_group}")
        if self.overlap_ep:
            parts.append("ep-overlap")
        if self.dispatcher in ("deepep", "hybridep"):
            parts.append(self.dispatcher)
        if self.offload_optimizer_fraction:
            share = self.offload_optimizer_fraction
            parts.append("offload optimizer" if share == 1 else f"offload {share:g} optimizer")
        if self.offload_layers:
            parts.append(f"offload {self.offload_layers} layers")
        recomputes = [s.recompute for pipeline in self.pipelines for s in pipeline.segments]
        if set(recomputes) != {"none"}:
            parts.append(f"recompute {'|'.join(dict.fromkeys(recomputes))}")
        return " ".join(parts)


def _shards(plan: Plan, pipeline: Pipeline) -> tuple[object, ...]:
    """What every stage holds of the model."""
    return tuple(
        (layers, segment.tp, segment.ep or plan.ep, segment.etp or plan.etp)
        for segment in pipeline.segments
        for layers in segment.layers
    )


def _stage_settings(plan: Plan, pipeline: Pipeline) -> tuple[object, ...]:
    """All that every stage is set to but for its GPU type and copies."""
    return _shards(plan, pipeline) + tuple(
        (Recompute.parse(segment.recompute), segment.micro_batch or plan.micro_batch)
        for segment in pipeline.segments
        for _ in segment.layers
    )


def _places(plan: Plan, stage_major: bool) -> Iterator[tuple[int, Pipeline]]:
    """Every stage of every group of replicas, in the order of their ranks."""
    if stage_major:
        deepest = max(pipeline.stages for pipeline in plan.pipelines)
        for stage in range(deepest):
            yield from ((stage, each) for each in plan.pipelines if stage < each.stages)
    else:
        for each in plan.pipelines:
            for _ in range(each.replicas):
                yield from ((stage, each) for stage in range(each.stages))


def _joined(values: Sequence[object]) -> str:
    """One value where all pipelines have it, else that of each."""
    texts = list(map(str, values))
    return texts[0] if len(set(texts)) == 1 else "|".join(texts)


def check_structure(plan: Plan, where: str = "plan") -> Plan:
    """The plan itself, or an InputError where it contradicts itself.

    Whether a runtime accepts it is for the rules to say; this is about being a plan at all.
    """
    if not plan.pipelines:
        raise InputError(f"{where}: pipelines is empty; a plan has at least one.")
    known = [pool.gpu.name for pool in plan.cluster.pools]
    for p, pipeline in enumerate(plan.pipelines):
        if not pipeline.segments:
            raise InputError(f"{where}: pipelines[{p}].segments is empty.")
        for s, segment in enumerate(pipeline.segments):
            place = f"{where}: pipelines[{p}].segments[{s}]"
            if segment.stages != len(segment.layers):
                raise InputError(
                    f"{place}.layers has {len(segment.layers)} entries for {segment.stages} "
                    "stages; give one per stage."
                )
            if segment.gpu not in known:
                raise InputError(
                    f"{place}.gpu = {segment.gpu!r} is not in the plan's cluster, "
                    f"which has {', '.join(known)}."
                )
            Recompute.parse(segment.recompute, f"{place}.recompute")
    _check_sizes(plan, where)
    return _check_chunks(plan, where)


def _check_sizes(plan: Plan, where: str) -> None:
    """Numbers that are finite, and products that a table of 64-bit integers can hold."""
    theta = plan.model.rope_theta
    if theta is not None and not 0 < theta < 1e15:
        raise InputError(f"{where}: model.rope_theta = {theta:g} is no rotary base. Try 10000.")
    for row, pool in enumerate(plan.cluster.pools):
        if pool.usd_per_hour is not None and not pool.usd_per_hour <= MAX_USD_PER_HOUR:
            raise InputError(
                f"{where}: cluster.pools[{row}].usd_per_hour = {pool.usd_per_hour:g} is no price."
            )
    gpus = sum(plan.gpus.values())
    if gpus > MAX_GPUS:
        raise InputError(
            f"{where}: the plan takes {gpus:,} GPUs, more than any cluster: {MAX_GPUS:,} at most."
        )
    for p, pipeline in enumerate(plan.pipelines):
        if pipeline.replicas * pipeline.micro_batches * plan.micro_batch > MAX_SAMPLES:
            raise InputError(
                f"{where}: pipelines[{p}].micro_batches = {pipeline.micro_batches:,} makes more "
                f"samples than the global batch of {plan.global_batch:,}."
            )


def _check_chunks(plan: Plan, where: str) -> Plan:
    """`chunk_layers` is virtual stage major and adds up to the layers of every stage."""
    if plan.chunk_layers is None:
        return plan
    if len({pipeline.layers for pipeline in plan.pipelines}) > 1:
        raise InputError(
            f"{where}: chunk_layers holds for all pipelines, and their layers differ. Give every "
            "pipeline the same layers, or leave chunk_layers out."
        )
    if len(plan.chunk_layers) != plan.pp * plan.vpp:
        raise InputError(
            f"{where}: chunk_layers has {len(plan.chunk_layers)} entries; "
            f"pp {plan.pp} x vpp {plan.vpp} needs {plan.pp * plan.vpp}."
        )
    for stage, layers in enumerate(plan.pipelines[0].layers):
        listed = sum(plan.chunk_layers[stage :: plan.pp])
        if listed != layers:
            raise InputError(
                f"{where}: chunk_layers gives stage {stage} {listed} layers, "
                f"its segment says {layers}."
            )
    return plan
