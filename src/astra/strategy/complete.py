"""From what a person said to a whole plan: what is left open is what an expert would set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

from astra.errors import InputError, either
from astra.files import convert
from astra.hardware.cluster import Cluster, Gpu
from astra.model.shape import Model
from astra.strategy.dispatchers import usual_dispatcher
from astra.strategy.microbatch_group import microbatch_group_for
from astra.strategy.plan import Pipeline, Plan, Runtime, Segment, check_structure
from astra.strategy.recompute import Recompute
from astra.strategy.uniform import over_types


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Settings of one plan that a person gave. None: not given."""

    global_batch: int | None = None
    seq_len: int | None = None
    micro_batch: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    cp_comm_type: str | None = None
    microbatch_group: int | None = None
    rank_order: str | None = None
    layers_per_stage: tuple[int, ...] | None = None
    chunk_layers: tuple[int, ...] | None = None
    mtp_layers: int | None = None
    sharding: str | None = None
    shard_group: int | None = None
    sequence_parallel: bool | None = None
    attention: str | None = None
    recompute: str | None = None
    precision: str | None = None
    fp8_recipe: str | None = None
    main_grads_dtype: str | None = None
    grad_reduce_dtype: str | None = None
    master_dtype: str | None = None
    moment_dtypes: tuple[str, str] | None = None
    overlap_grad_reduce: bool | None = None
    overlap_param_gather: bool | None = None
    overlap_p2p: bool | None = None
    overlap_tp: bool | None = None
    overlap_ep: bool | None = None
    offload_optimizer_fraction: float | None = None
    offload_activations: tuple[str, ...] | None = None
    offload_layers: int | None = None
    dispatcher: str | None = None
    capacity_factor: float | None = None
    cuda_graph: str | None = None


@dataclass(frozen=True, slots=True)
class CompletedPlan:
    """A whole plan, and what was filled in."""

    plan: Plan
    assumed: tuple[str, ...]


def complete(
    settings: PlanSettings,
    model: Model,
    cluster: Cluster,
    runtime: Runtime = "megatron",
    stack: str = "megatron",
    cut: Callable[[Plan], Plan] = lambda plan: plan,
) -> CompletedPlan:
    """The plan a person means: all GPUs of the cluster, ranks in blocks by type.

    `cut` may share out the layers of a plan on one GPU type otherwise, where nobody said how.
    """
    said = {f.name: getattr(settings, f.name) for f in fields(PlanSettings)}
    said = {name: value for name, value in said.items() if value is not None}
    if "global_batch" not in said:
        raise InputError(
            "--global-batch is missing: the samples of one training step over all GPUs. "
            "Try --global-batch 256."
        )
    draft = _Draft(said)
    draft.fill("seq_len", min(model.max_positions or 4096, 4096), "sequence length {}")
    for degree in ("tp", "cp", "ep", "vpp", "micro_batch"):
        draft.fill(degree, 1, f"{degree.replace('_', '-')} {{}}")
    _fill_pipeline(draft, model, cluster, runtime)
    _fill_numbers(draft, cluster)
    _fill_parallel(draft, model, cluster, runtime)
    _fill_overlaps(draft, runtime, cluster)
    raw = draft.plan_fields()
    whole = {**raw, "model": model, "cluster": cluster, "runtime": runtime, "stack": stack}
    plan = over_types(convert(whole, Plan, "plan"), draft["counts"])
    if len(draft["counts"]) == 1 and not {"layers_per_stage", "chunk_layers"} & set(said):
        plan = cut(plan)
        draft.assumed += _cut_words(plan)
    return CompletedPlan(check_structure(plan), tuple(draft.assumed))


def _cut_words(plan: Plan) -> list[str]:
    """Layers of every stage, and of every chunk, where they are not all alike."""
    layers = plan.pipelines[0].layers
    words = [] if len(set(layers)) == 1 else [f"layers {'+'.join(map(str, layers))}"]
    if plan.chunk_layers is not None:
        words.append(f"chunks of {run_lengths(plan.chunk_layers)} layers")
    return words


def run_lengths(numbers: Sequence[int]) -> str:
    """Equal ones in a row as one.

    >>> run_lengths((1, 2, 2, 0))
    '1 + 2 x 2 + 0'
    """
    groups = [(value, len(list(equal))) for value, equal in groupby(numbers)]
    return " + ".join(f"{count} x {value}" if count > 1 else f"{value}" for value, count in groups)


class _Draft:
    """The settings so far, and the words for what was filled in."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.values = dict(said)
        self.assumed: list[str] = []

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def fill(self, name: str, value: Any, words: str = "") -> None:
        """Set what was not said; say so in `words`, where {} is the value."""
        if name not in self.values:
            self.values[name] = value
            if words:
                self.assumed.append(words.format(value))

    def plan_fields(self) -> dict[str, Any]:
        names = Plan.__struct_fields__
        return {name: value for name, value in self.values.items() if name in names}


def _fill_pipeline(draft: _Draft, model: Model, cluster: Cluster, runtime: Runtime) -> None:
    """Stages, their layers and the replicas that use all GPUs."""
    given = draft.values.get("layers_per_stage")
    if given == ():
        raise InputError("--layers-per-stage has no entries; give one per stage.")
    if given is not None:
        draft.fill("pp", len(given))
        if draft["pp"] != len(given):
            raise InputError(
                f"--layers-per-stage has {len(given)} entries and --pp is {draft['pp']}; "
                "give one entry per stage."
            )
    draft.fill("pp", 1, "pp {}")
    pp = draft["pp"]
    if pp > model.layers + 2:  # an embedding-only and a loss-only stage may hold no layer
        raise InputError(
            f"--pp {pp}: {model.name} has only {model.layers} layers. Try --pp {model.layers}."
        )
    stage_gpus = draft["tp"] * draft["cp"]
    replicas = _replicas(draft, cluster, stage_gpus * pp)
    micro_batches = draft["global_batch"] // (draft["micro_batch"] * replicas)
    counts = _counts(cluster, stage_gpus * replicas * pp)
    if runtime == "deepspeed":
        layers = given or deepspeed_split(model.layers, pp)
    else:
        layers = given or _layers(draft, model, cluster, counts, stage_gpus * replicas)
    draft.fill("recompute", "none", "no recompute")
    recompute = str(Recompute.parse(draft["recompute"], "--recompute"))
    segment = Segment(
        gpu=counts[0][0], stages=pp, layers=layers, tp=draft["tp"], recompute=recompute
    )
    draft.values["pipelines"] = (
        Pipeline(replicas=replicas, micro_batches=micro_batches, segments=(segment,)),
    )
    draft.values["dp"] = replicas
    draft.values["counts"] = counts


def _counts(cluster: Cluster, gpus: int) -> tuple[tuple[str, int], ...]:
    """GPUs of each type that the plan takes, in the order of its ranks: the first pools first."""
    found, left = [], gpus
    for pool in cluster.pools:
        taken = min(pool.count, left)
        if taken:
            found.append((pool.gpu.name, taken))
        left -= taken
    return tuple(found)


def _layers(
    draft: _Draft,
    model: Model,
    cluster: Cluster,
    counts: Sequence[tuple[str, int]],
    stage_gpus: int,
) -> tuple[int, ...]:
    """Layers of every stage: even, with shorter ends where chunks need it, or by GPU speed where
    every stage lies on one type.
    """
    pp, vpp = draft["pp"], draft["vpp"]
    if len(counts) > 1 and not any(count % stage_gpus for _, count in counts):
        speeds = _speeds(cluster, counts, stage_gpus)
        split = split_by_speed(model.layers, speeds)
        if vpp > 1 and "chunk_layers" not in draft.values:
            split = _chunks_by_speed(draft, model.layers, speeds) or split
        draft.assumed.append(f"layers by GPU speed: {'+'.join(map(str, split))}")
        return split
    chunks = short_end_chunks(model.layers, pp * vpp) if vpp > 1 else None
    if chunks and "chunk_layers" not in draft.values and model.layers % (pp * vpp):
        draft.values["chunk_layers"] = chunks
        return tuple(sum(chunks[stage::pp]) for stage in range(pp))
    return split_layers(model.layers, pp)


def _chunks_by_speed(draft: _Draft, layers: int, speeds: Sequence[float]) -> tuple[int, ...] | None:
    """Layers of every stage whose chunks are equal, the last of all perhaps shorter; None where
    there are too few layers for that.
    """
    vpp, stages = draft["vpp"], len(speeds)
    if layers < vpp * stages:
        return None
    sizes = split_by_speed(-(-layers // vpp), speeds)
    chunks = list(sizes) * vpp
    chunks[-1] -= vpp * sum(sizes) - layers
    if chunks[-1] < 1:
        return None
    if chunks[-1] < sizes[-1]:
        draft.values["chunk_layers"] = tuple(chunks)
    return tuple(sum(chunks[stage::stages]) for stage in range(stages))


def short_end_chunks(layers: int, chunks: int) -> tuple[int, ...] | None:
    """Chunks of one size but for the first and last, which hold a layer less; None if that
    does not come out even. Megatron-LM calls it accounting for embedding and loss.

    >>> short_end_chunks(6, 4)
    (1, 2, 2, 1)
    """
    for first, last in ((0, 1), (1, 0), (1, 1)):
        size, left = divmod(layers + first + last, chunks)
        if not left and size > 1:
            return (size - first, *[size] * (chunks - 2), size - last)
    return None


def _speeds(cluster: Cluster, counts: Sequence[tuple[str, int]], stage_gpus: int) -> list[float]:
    """The dense rate of the GPU that each stage lies on."""
    rates = {
        pool.gpu.name: pool.gpu.bf16_flops_per_s or pool.gpu.fp16_flops_per_s or 1.0
        for pool in cluster.pools
    }
    return [rates[name] for name, count in counts for _ in range(count // stage_gpus)]


def split_by_speed(layers: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Layers in proportion to speed, at least one a stage; what is left over goes to the stages
    it slows least.

    >>> split_by_speed(12, [1.0, 1.0, 2.0])
    (3, 3, 6)
    """
    split = [max(int(layers * speed / sum(speeds)), 1) for speed in speeds]
    while sum(split) < layers:
        slowest = min(range(len(split)), key=lambda stage: (split[stage] + 1) / speeds[stage])
        split[slowest] += 1
    while sum(split) > layers:
        busiest = max(range(len(split)), key=lambda stage: split[stage] / speeds[stage])
        split[busiest] -= 1
    return tuple(split)


def _replicas(draft: _Draft, cluster: Cluster, replica_gpus: int) -> int:
    """Data-parallel replicas: as said, or what fills the cluster."""
    count = sum(pool.count for pool in cluster.pools)
    if "dp" in draft.values:
        dp: int = draft["dp"]
        if dp * replica_gpus > count:
            raise InputError(
                f"--dp {dp}: a replica takes {replica_gpus} GPUs (tp x cp x pp), so this needs "
                f"{dp * replica_gpus}; there are {count}. Try --dp {max(count // replica_gpus, 1)}."
            )
        if dp * replica_gpus < count:
            draft.assumed.append(f"{count - dp * replica_gpus} of {count} GPUs stay idle")
        return dp
    if count % replica_gpus:
        below, above = count // replica_gpus * replica_gpus, -(-count // replica_gpus)
        tries = [number for number in (below, above * replica_gpus) if number > 0]
        raise InputError(
            f"{count} GPUs do not divide into replicas of {replica_gpus} "
            f"(tp {draft['tp']} x cp {draft['cp']} x pp {draft['pp']}). "
            f"Try {either(tries)} GPUs, other degrees, or --dp to leave some idle."
        )
    return count // replica_gpus


def split_layers(layers: int, stages: int) -> tuple[int, ...]:
    """As even as can be; what is left over goes to the middle, since the ends do more. Where one
    end must be longer it is the first: the loss costs more than the embedding, and a shorter last
    stage is what Megatron-LM's users set (`--decoder-last-pipeline-num-layers`).

    >>> split_layers(30, 4), split_layers(32, 4), split_layers(32, 3)
    ((7, 8, 8, 7), (8, 8, 8, 8), (11, 11, 10))
    """
    least, extra = divmod(layers, stages)
    before = (stages - extra) // 2
    return tuple(least + (before <= stage < before + extra) for stage in range(stages))


def deepspeed_split(layers: int, stages: int) -> tuple[int, ...]:
    """As even as can be; the first stages take what is left over, as DeepSpeed shares out.

    >>> deepspeed_split(10, 4), deepspeed_split(8, 4)
    ((3, 3, 2, 2), (2, 2, 2, 2))
    """
    least, extra = divmod(layers, stages)
    return tuple(least + (stage < extra) for stage in range(stages))


def _fill_parallel(draft: _Draft, model: Model, cluster: Cluster, runtime: Runtime) -> None:
    tp, vpp, pp = draft["tp"], draft["vpp"], draft["pp"]
    etp = tp if model.moe and runtime == "fsdp" and draft["ep"] == 1 else 1
    why = f"experts {'' if etp > 1 else 'not '}cut by tensor parallelism (etp {etp})"
    draft.fill("etp", etp, why if model.moe else "")
    if model.moe:
        gpus, degrees = [pool.gpu for pool in cluster.pools], (draft["ep"], draft["etp"])
        usual = usual_dispatcher(runtime, gpus, draft["precision"], *degrees)
        draft.fill("dispatcher", usual, "dispatcher {}" if usual != "alltoall" else "")
    draft.fill("cp_comm_type", "a2a" if runtime == "deepspeed" else "p2p")
    draft.values["schedule"] = "interleaved" if vpp > 1 else "1f1b"
    if vpp > 1:
        count = draft["global_batch"] // (draft["micro_batch"] * draft["dp"])
        group = microbatch_group_for(pp, count)
        least = "pp" if group == pp else f"the least for {count} micro-batches on {pp} stages"
        why = f"micro-batch group {{}} ({least})"
        if runtime == "fsdp":  # PyTorch shares the micro-batches out over equal rounds
            group, why = count // max(count // pp, 1), "micro-batch group {} (PyTorch's rounds)"
        draft.fill("microbatch_group", group, why)
    mtp = trained_mtp_layers(model, runtime)
    without = "multi-token prediction left out" if model.mtp_layers else ""
    draft.fill("mtp_layers", mtp, "{} multi-token-prediction layers" if mtp else without)
    sharing = tp > 1 and runtime != "deepspeed"
    draft.fill("sequence_parallel", sharing, "sequence parallel" if sharing else "")
    draft.fill("attention", "flash", "flash attention")
    _fill_sharding(draft, runtime)


def trained_mtp_layers(model: Model, runtime: Runtime) -> int:
    """Multi-token-prediction layers of a model that plans of a runtime train."""
    return model.mtp_layers if runtime in ("megatron", "flagscale", "any") else 0


def _fill_sharding(draft: _Draft, runtime: Runtime) -> None:
    """The optimizer is sharded over all copies; plain PyTorch and ZeRO shard parameters too."""
    whole = {"fsdp": "parameters", "deepspeed": "parameters"}
    kind = whole.get(runtime, "optimizer")
    if runtime == "deepspeed" and (draft["pp"] > 1 or draft["tp"] > 1):
        kind = "optimizer"
    draft.fill("sharding", kind, "{} sharded over all data-parallel ranks")
    copies = draft["dp"] * draft["cp"]
    draft.fill("shard_group", 1 if draft["sharding"] == "none" else copies)


def _fill_numbers(draft: _Draft, cluster: Cluster) -> None:
    """Precision and dtypes. Nothing that changes the training's result is chosen silently."""
    has_bf16 = all(pool.gpu.bf16_flops_per_s for pool in cluster.pools)
    draft.fill("precision", "bf16" if has_bf16 else "fp16", "precision {}")
    if draft["precision"] == "fp8":
        draft.fill("fp8_recipe", fp8_recipe(cluster), "fp8 recipe {}")
    for name in ("main_grads_dtype", "grad_reduce_dtype", "master_dtype"):
        draft.fill(name, "fp32")
    draft.fill("moment_dtypes", ("fp32", "fp32"))


def fp8_recipe(cluster: Cluster) -> str:
    """Block scaling where all GPUs have it, else one scale per tensor."""
    new = all(scales_in_blocks(pool.gpu) for pool in cluster.pools)
    return "mxfp8" if new else "tensorwise"


def scales_in_blocks(gpu: Gpu) -> bool:
    """Whether its units take a scale for each block of numbers."""
    head = (gpu.compute_capability or "").partition(".")[0]
    return head.isdigit() and int(head) >= 10


def _fill_overlaps(draft: _Draft, runtime: Runtime, cluster: Cluster) -> None:
    """Every overlap the runtime allows, but the experts' (it costs memory)."""
    before = len(draft.assumed)
    copies = draft["dp"] * draft["cp"] > 1
    draft.fill("overlap_grad_reduce", copies, "gradient reduction" if copies else "")
    gathers = draft["sharding"] != "none" and draft["overlap_grad_reduce"]
    draft.fill("overlap_param_gather", gathers, "parameter gather" if gathers else "")
    chunks = draft["vpp"] > 1
    draft.fill("overlap_p2p", chunks, "pipeline p2p" if chunks else "")
    domain = min(pool.gpu.link.domain_gpus for pool in cluster.pools)
    tensor = draft["sequence_parallel"] and 1 < draft["tp"] <= domain
    tensor = tensor and runtime in ("megatron", "flagscale", "any")
    draft.fill("overlap_tp", tensor, "tensor-parallel communication" if tensor else "")
    draft.fill("overlap_ep", False)
    hidden = draft.assumed[before:]
    if hidden:
        draft.assumed[before:] = [f"overlapped: {', '.join(hidden)}"]
