"""A row of measured runs as a plan."""

from typing import Any

from astra.errors import InputError
from astra.files import convert
from astra.fit.csv_row import CsvRow, is_on
from astra.fit.framework_defaults import (
    MODERN_FROM_YEAR,
    FrameworkDefaults,
    framework_defaults,
    release_of,
)
from astra.fit.row_cluster import cluster_of
from astra.fit.row_model import model_of
from astra.fit.row_words import (
    cuda_graph_of,
    dispatcher_of,
    hides_tensor,
    hides_transfers,
    offload_layers_of,
    overlap_of,
    precision_of,
    recompute_of,
    sharding_of,
)
from astra.fit.split import RowSplit, split_of
from astra.hardware.cluster import Gpu
from astra.model.shape import Model
from astra.strategy.microbatch_group import microbatch_group_for
from astra.strategy.plan import Plan, check_structure
from astra.strategy.rules.registry import broken_rules

MAX_DEGREE = 10**6
MEGATRON_OPTIMIZER_FROM = "24.09"  # NeMo's containers before it had Apex's distributed Adam


def plan_of(csv_row: CsvRow) -> tuple[Plan, list[str]]:
    """The plan that a row describes, and what had to be assumed."""
    _check_modelled(csv_row)
    defaults = framework_defaults(csv_row)
    assumed = [] if defaults.known else ["framework not known: read as Megatron-LM"]
    model, said = model_of(csv_row, defaults)
    gpus = csv_row.required_count("num_gpus")
    if gpus > MAX_DEGREE:
        raise InputError(f"num_gpus = {gpus:,}: more than any cluster has")
    cluster, more = cluster_of(csv_row, gpus)
    assumed += said + more
    gpu = cluster.pools[0].gpu
    fields: dict[str, Any] = {"model": model, "cluster": cluster, "stack": defaults.stack}
    fields |= {"runtime": defaults.runtime, "seq_len": csv_row.required_count("seq_len")}
    fields |= _layout(csv_row, model, gpu, gpus, assumed)
    fields |= _kernels(csv_row, defaults, gpu, fields["_tp"], assumed)
    fields |= _sharding(csv_row, defaults, gpu, fields, assumed)
    fields |= _experts(csv_row, defaults, model, fields["_tp"], assumed)
    fields |= overlap_of(csv_row, defaults, fields["vpp"] > 1, fields["_tp"], assumed)
    if model.moe is None:
        fields["overlap_ep"] = False
    fields |= _gradients(csv_row, defaults, assumed)
    fields["cuda_graph"] = cuda_graph_of(csv_row, defaults, model.moe is not None)
    fields["offload_layers"] = offload_layers_of(csv_row)
    if is_on(csv_row.flags, "fine-grained-activation-offloading"):
        fields["offload_activations"] = ("core_attn",)
        assumed.append("offloaded modules not stated: core_attn, which keeps most")
    whole = {name: value for name, value in fields.items() if not name.startswith("_")}
    return check_structure(convert(whole, Plan, "plan")), assumed


def _check_modelled(csv_row: CsvRow) -> None:
    """An InputError where a run holds what no plan can say."""
    if "lora" in csv_row.lower_text("task"):
        raise InputError("adapters (LoRA) are not modelled")
    if "distill" in csv_row.lower_text("model"):
        raise InputError("distillation is not modelled: a teacher is held besides")


def _layout(
    csv_row: CsvRow, model: Model, gpu: Gpu, gpus: int, assumed: list[str]
) -> dict[str, Any]:
    """Degrees, batches and the layers of every stage."""
    tp, pp, cp = (csv_row.count(name, most=MAX_DEGREE) or 1 for name in ("tp", "pp", "cp"))
    if pp > model.layers + 2:
        raise InputError(f"pp = {pp}: more stages than the model's {model.layers} layers")
    dp, left = divmod(gpus, tp * pp * cp)
    if left or not dp:
        raise InputError(f"{gpus} GPUs do not divide by tp {tp} x pp {pp} x cp {cp}")
    vpp = _chunks_of(csv_row, model, pp, assumed)
    if pp * vpp > model.layers + 2:
        raise InputError(f"pp {pp} x vpp {vpp}: more chunks than the model's layers")
    split = split_of(csv_row, model, pp, vpp)
    assumed += split.assumed
    micro_batch, micro_batches = _batches(csv_row, dp, assumed)
    recompute, said = recompute_of(csv_row.text("recompute"), framework_defaults(csv_row).recompute)
    assumed += [said] if said else []
    segment = {
        "gpu": gpu.name,
        "stages": pp,
        "layers": split.stages(pp),
        "tp": tp,
        "recompute": recompute,
    }
    pipeline = {"replicas": dp, "micro_batches": micro_batches, "segments": [segment]}
    return {
        "pipelines": [pipeline],
        "micro_batch": micro_batch,
        "global_batch": csv_row.required_count("global_batch"),
        "cp": cp,
        **_chunks(split, pp, micro_batches),
        "mtp_layers": model.mtp_layers if split.mtp_layers is None else split.mtp_layers,
        "rank_order": "tp-cp-ep-pp-dp"
        if "dp_last" in csv_row.lower_text("model")
        else "tp-cp-ep-dp-pp",
        "_tp": tp,
        "_dp": dp,
    }


def _chunks_of(csv_row: CsvRow, model: Model, pp: int, assumed: list[str]) -> int:
    """Chunks of a stage; who always interleaves is taken to where a row does not say."""
    if pp == 1:
        return 1
    vpp = csv_row.count("vpp", most=1000)
    usual = framework_defaults(csv_row).interleaves or hides_transfers(csv_row)
    if vpp is None and usual and not model.layers % pp:
        vpp = model.layers // pp
        assumed.append(f"vpp not stated: {vpp}, as traffic between stages is hidden")
    return vpp or 1


def _chunks(split: RowSplit, pp: int, micro_batches: int) -> dict[str, Any]:
    interleaved = split.vpp > 1
    return {
        "vpp": split.vpp,
        "schedule": "interleaved" if interleaved else "1f1b",
        "microbatch_group": microbatch_group_for(pp, micro_batches) if interleaved else None,
        "chunk_layers": split.chunks if interleaved and split.uneven else None,
    }


def _batches(csv_row: CsvRow, dp: int, assumed: list[str]) -> tuple[int, int]:
    """Samples of a micro-batch, and micro-batches of each replica."""
    global_batch = csv_row.required_count("global_batch")
    micro_batch = csv_row.count("micro_batch", most=MAX_DEGREE)
    if micro_batch is None:
        micro_batch = 1
        assumed.append("micro_batch not stated: 1")
    micro_batches, left = divmod(global_batch, micro_batch * dp)
    if left or not micro_batches:
        micro_batches = max(micro_batches, 1)
        words = f"global batch {global_batch} is no multiple of micro-batch {micro_batch} x dp {dp}"
        assumed.append(f"{words}: {micro_batches} micro-batches")
    return micro_batch, micro_batches


def _kernels(
    csv_row: CsvRow, defaults: FrameworkDefaults, gpu: Gpu, tp: int, assumed: list[str]
) -> dict[str, Any]:
    """Precision, attention, sequence parallel."""
    precision, recipe, said = precision_of(csv_row, defaults, gpu)
    assumed += said
    flash = csv_row.flag("flash_attention")
    if flash is None:
        year = csv_row.year()
        flash = defaults.flash and (year is None or year >= MODERN_FROM_YEAR)
        assumed.append(f"attention not stated: {'flash' if flash else 'unfused'}")
    if flash and csv_row.flags.get("transformer-impl") == "local":
        flash = False
        assumed.append("attention unfused: Megatron-LM's own layers have no other")
    sequence = csv_row.flag("sequence_parallel")
    if sequence is None:
        sequence = (defaults.sequence_parallel or hides_tensor(csv_row)) and tp > 1
        if tp > 1:
            assumed.append(f"sequence parallel not stated: {'on' if sequence else 'off'}")
    return {
        "precision": precision,
        "fp8_recipe": recipe,
        "attention": "flash" if flash else "unfused",
        "sequence_parallel": sequence and tp > 1,
    }


def _sharding(
    csv_row: CsvRow,
    defaults: FrameworkDefaults,
    gpu: Gpu,
    fields: dict[str, Any],
    assumed: list[str],
) -> dict[str, Any]:
    copies = fields["_dp"] * fields["cp"]
    shards = sharding_of(csv_row.text("zero_stage"), defaults, copies, gpu.node.gpus)
    assumed += shards.assumed
    group = shards.group
    if "multi_dist_optimizer_instances" in csv_row.lower_text("model") and group % 2 == 0:
        group //= 2
        assumed.append(f"two instances of the distributed optimizer: shard group {group}")
    return {"sharding": shards.kind, "shard_group": group}


def _experts(
    csv_row: CsvRow, defaults: FrameworkDefaults, model: Model, tp: int, assumed: list[str]
) -> dict[str, Any]:
    if model.moe is None:
        return {}
    ep = csv_row.count("ep", most=MAX_DEGREE) or 1
    etp = csv_row.count("etp", most=MAX_DEGREE)
    if etp is None:
        etp = tp if defaults.experts_cut_by_tp else 1
        if tp > 1:
            assumed.append(f"etp not stated: {etp}")
    dropping = "tokendrop" in csv_row.lower_text("model").replace(" ", "")
    return {
        "ep": ep,
        "etp": etp,
        "dispatcher": dispatcher_of(csv_row, defaults),
        "capacity_factor": 1.0 if dropping else None,
    }


def _gradients(csv_row: CsvRow, defaults: FrameworkDefaults, assumed: list[str]) -> dict[str, Any]:
    """Dtypes of gradients where they are not fp32."""
    if defaults.low_gradients and (csv_row.year() or MODERN_FROM_YEAR) > MODERN_FROM_YEAR:
        assumed.append("gradients kept and reduced in bf16, as its recipes do")
        found = {"main_grads_dtype": "bf16", "grad_reduce_dtype": "bf16"}
        if (
            defaults.stack == "nemo"
            and (release_of(csv_row) or MEGATRON_OPTIMIZER_FROM) < MEGATRON_OPTIMIZER_FROM
        ):
            assumed.append("master weights kept as what bf16 leaves of them, two bytes each")
            found["master_dtype"] = "fp16"  # as wide
        return found
    if "precision mode=pure" in csv_row.lower_text("notes"):
        return {"grad_reduce_dtype": "bf16"}
    return {}


def broken_notes(plan: Plan) -> list[str]:
    """Rules of the runtime that a plan breaks although it ran: release or reading differ."""
    return [
        f"breaks rule {rule.name}"
        for rule in broken_rules(plan)
        if rule.layer in ("parser", "config", "layout")
    ]
