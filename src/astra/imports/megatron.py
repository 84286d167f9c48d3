"""A plan out of Megatron-LM's options (and NeMo's, which are the same under other names).

What is not said is Megatron-LM's own default, not what an expert would set.
"""

import re
from typing import Any

from astra.errors import InputError
from astra.imports.options import LaunchOptions
from astra.imports.pipeline_split import even_chunks, stages_with_ends
from astra.strategy.pipeline_layout import parse_pipeline_layout
from astra.strategy.recompute import MODULES

# Options that tell a training command from any other.
TELLING = (
    *("num-layers", "hidden-size", "num-attention-heads", "micro-batch-size", "seq-length"),
    *("tensor-model-parallel-size", "pipeline-model-parallel-size", "global-batch-size"),
    *("context-parallel-size", "expert-model-parallel-size", "encoder-seq-length"),
)
# NeMo's and Megatron-DeepSpeed's names for options of Megatron-LM.
OTHER_NAMES = {
    "encoder-seq-length": "seq-length",
    "model.encoder-seq-length": "seq-length",
    "activations-checkpoint-granularity": "recompute-granularity",
    "activations-checkpoint-method": "recompute-method",
    "activations-checkpoint-num-layers": "recompute-num-layers",
    "checkpoint-num-layers": "recompute-num-layers",
    "checkpoint-activations-method": "recompute-method",
    "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
    "ub-tp-comm-overlap": "tp-comm-overlap",
    "num-moe-experts": "num-experts",
}
SHARDING = {"no_shard": "none", "optim": "optimizer", "optim_grads": "gradients"}
SHARDING |= {"optim_grads_params": "parameters"}
FSDP = ("use-megatron-fsdp", "use-custom-fsdp")
ZERO = ("none", "optimizer", "gradients", "parameters")


def plain_names(options: LaunchOptions) -> None:
    """NeMo's sections dropped and its names replaced, so that one table serves all."""
    name = next((key for key in options.values if key.endswith("optim.name")), None)
    if name is not None and "distributed" in (options.text(name) or ""):
        options.put("use-distributed-optimizer", True)
        options.put("overlap-grad-reduce", options.text("model.optim.overlap-grad-sync") or True)
        options.put("overlap-param-gather", options.text("model.optim.overlap-param-sync"))
    for name in list(options.values):
        if name in options.read:
            continue
        short = name.rpartition(".")[2]
        if "." in name and short == "num-query-groups":
            options.put("group-query-attention", True)  # which NeMo does not ask for
        known = OTHER_NAMES.get(name) or OTHER_NAMES.get(short) or short
        if known != name:
            options.values.setdefault(known, options.values.pop(name))


def plan_settings_of(options: LaunchOptions, layers: int, world: int) -> dict[str, Any]:
    """Every setting of the plan, for so many GPUs."""
    tp = options.whole("tensor-model-parallel-size", "model-parallel-size", default=1) or 1
    cp = options.whole("context-parallel-size", default=1) or 1
    pp = options.whole("pipeline-model-parallel-size", default=1) or 1
    if world % (tp * cp * pp):
        raise InputError(
            f"{options.where}: {world} GPUs do not divide into tp {tp} x cp {cp} x pp {pp}. "
            "Say how many there are: --world-size N."
        )
    dp = world // (tp * cp * pp)
    micro_batch = options.need("micro-batch-size")
    found = {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "dp": dp,
        "micro_batch": micro_batch,
        "global_batch": options.whole("global-batch-size") or micro_batch * dp,
        "seq_len": options.need("seq-length"),
        "cp_comm_type": options.text("cp-comm-type") or "p2p",
        "rank_order": "tp-cp-ep-pp-dp" if options.flag("use-tp-pp-dp-mapping") else None,
        "sequence_parallel": options.flag("sequence-parallel") and tp > 1,
        "mtp_layers": options.whole("mtp-num-layers", default=0),
        "recompute": _recompute(options),
        "attention": _attention(options),
    }
    found |= _pipeline(options, layers, pp) | _experts(options, tp) | _precision(options)
    return found | _sharding(options, dp * cp) | _savers(options)


def _pipeline(options: LaunchOptions, layers: int, pp: int) -> dict[str, Any]:
    """Stages and chunks as Megatron-LM cuts them."""
    where = options.where
    layout = options.text("pipeline-model-parallel-layout")
    per_chunk = options.whole("num-layers-per-virtual-pipeline-stage")
    vpp = options.whole("num-virtual-stages-per-pipeline-rank") or 1
    first = options.whole("decoder-first-pipeline-num-layers")
    last = options.whole("decoder-last-pipeline-num-layers")
    counted = "embedding" in (options.text("pp-partition-method") or "")  # Megatron-DeepSpeed's
    embedding = options.flag("account-for-embedding-in-pipeline-split") or counted
    loss = options.flag("account-for-loss-in-pipeline-split") or counted
    if layout is not None:
        option = f"{where}: --pipeline-model-parallel-layout"
        chunks, predicting = parse_pipeline_layout(layout, pp, option)
        said = options.whole("mtp-num-layers", default=0)
        if predicting != said:
            raise InputError(
                f"{option} has {predicting} m, and --mtp-num-layers is {said}; Megatron-LM "
                "refuses this job."
            )
        vpp = len(chunks) // pp
    elif first is not None or last is not None:
        stages = stages_with_ends(layers, pp, first, last, where)
        chunks = tuple(count // vpp for _ in range(vpp) for count in stages)
    else:
        if per_chunk:
            vpp = max(layers // pp // per_chunk, 1)
        chunks = even_chunks(layers, pp * vpp, embedding, loss, where)
    held = tuple(sum(chunks[stage::pp]) for stage in range(pp))
    uneven = vpp > 1 and len(set(chunks)) > 1
    group = options.whole("microbatch-group-size-per-virtual-pipeline-stage")
    return {
        "vpp": vpp,
        "layers_per_stage": held,
        "chunk_layers": chunks if uneven else None,
        "microbatch_group": (group or pp) if vpp > 1 else None,
        "overlap_p2p": vpp > 1 and not options.flag("no-overlap-p2p-communication"),
    }


def _experts(options: LaunchOptions, tp: int) -> dict[str, Any]:
    if not options.whole("num-experts"):
        return {"ep": options.whole("expert-model-parallel-size", default=1)}
    kind = options.text("moe-token-dispatcher-type") or "allgather"
    if kind == "flex":
        kind = options.text("moe-flex-dispatcher-backend") or "deepep"
    capacity = options.text("moe-expert-capacity-factor")
    options.flag("moe-grouped-gemm", "moe-pad-expert-input-to-capacity")
    return {
        "ep": options.whole("expert-model-parallel-size", default=1),
        "etp": options.whole("expert-tensor-parallel-size") or tp,
        "dispatcher": kind,
        "capacity_factor": float(capacity) if capacity and float(capacity) > 0 else None,
        "overlap_ep": options.flag("overlap-moe-expert-parallel-comm"),
    }


def _precision(options: LaunchOptions) -> dict[str, Any]:
    """Types of weights, gradients and states."""
    said = (options.text("precision") or "").lower()  # NeMo's trainer.precision
    half = "fp16" if options.flag("fp16") or said in ("16", "16-mixed", "fp16") else None
    half = "bf16" if options.flag("bf16") or said.startswith("bf16") else half
    eight = options.text("fp8-format") or options.flag("fp8-hybrid", "fp8-e4m3", "fp8")
    four = options.text("fp4-format")
    precision = "fp4" if four else "fp8" if eight else half or "fp32"
    aware = options.flag("use-precision-aware-optimizer")
    types = [
        _dtype(options.text(option)) or "fp32"
        for option in ("main-grads-dtype", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
    ]
    recipe = options.text("fp8-recipe") or "delayed"
    comm = None
    if options.flag(*FSDP):
        own = half or "fp32"  # which `auto` means
        types[0] = _dtype(options.text("megatron-fsdp-main-grads-dtype"), own) or own
        types[1] = _dtype(options.text("megatron-fsdp-main-params-dtype"), own) or "fp32"
        comm = _dtype(options.text("megatron-fsdp-grad-comm-dtype"), types[0]) or types[0]
    return {
        "precision": precision,
        "fp8_recipe": recipe if precision == "fp8" else None,
        "main_grads_dtype": types[0],
        "master_dtype": types[1],
        "moment_dtypes": tuple(types[2:]) if aware else ("fp32", "fp32"),
        "grad_reduce_dtype": comm or _reduced_in(options, half, types[0]),
    }


def _reduced_in(options: LaunchOptions, half: str | None, kept: str) -> str:
    """The gradients' own type, unless fp32 is asked for; for bf16 Megatron-LM does by itself."""
    if options.flag("grad-reduce-in-bf16"):
        return "bf16"
    wide = options.flag("accumulate-allreduce-grads-in-fp32") or (half == "bf16" and kept == "fp32")
    return "fp32" if wide or half is None else half


def _dtype(text: str | None, own: str = "auto") -> str | None:
    names = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8", "auto": own}
    return names.get(text, text) if text else None


def _sharding(options: LaunchOptions, copies: int) -> dict[str, Any]:
    kind = "optimizer" if options.flag("use-distributed-optimizer") else "none"
    if options.flag(*FSDP):
        strategy = options.text("data-parallel-sharding-strategy") or "optim_grads_params"
        kind = SHARDING.get(strategy, "none")
    elif options.flag("use-torch-fsdp2"):
        kept = options.flag("torch-fsdp2-no-reshard-after-forward")
        kind = "gradients" if kept else "parameters"
    stage = options.whole("zero-stage")
    if stage is not None and 0 <= stage < len(ZERO):
        kind = ZERO[stage]
    parts = options.whole("num-distributed-optimizer-instances", default=1) or 1
    reduces = options.flag("overlap-grad-reduce")
    return {
        "sharding": kind,
        "shard_group": copies // parts if kind != "none" else 1,
        "overlap_grad_reduce": reduces,
        "overlap_param_gather": options.flag("overlap-param-gather"),
        "overlap_tp": options.flag("tp-comm-overlap"),
    }


def _recompute(options: LaunchOptions) -> str:
    """As we write it: none, selective:..., full:uniform:N, full:block:N."""
    kind = options.text("recompute-granularity")
    method = options.text("recompute-method")
    layers = options.whole("recompute-num-layers", default=1)
    modules = re.findall(r"\w+", " ".join(options.many("recompute-modules")))  # YAML: [a, b]
    if options.flag("recompute-activations"):
        kind = "selective"
    if options.flag("checkpoint-activations"):
        kind, method = "full", method or "uniform"
    if kind == "full":
        return f"full:{method or 'uniform'}:{layers}"
    if kind == "selective":
        chosen = [module for module in modules if module in MODULES] or ["core_attn"]
        return f"selective:{'+'.join(chosen)}"
    return "none"


def _attention(options: LaunchOptions) -> str:
    backend = options.text("attention-backend")
    flash = options.flag("use-flash-attn", "use-flash-attn-v1", "use-flash-attn-v2")
    local = options.text("transformer-impl") == "local"
    if backend in ("unfused", "local") or (local and not flash and backend is None):
        return "unfused"
    return "flash"


def _savers(options: LaunchOptions) -> dict[str, Any]:
    share = 0.0
    if options.flag("optimizer-cpu-offload"):
        share = float(options.text("optimizer-offload-fraction") or 1.0)
    offloads = options.flag("fine-grained-activation-offloading")
    graph = options.text("cuda-graph-impl") or "none"
    graph = "local" if options.flag("enable-cuda-graph") else graph
    graph = "transformer_engine" if options.flag("external-cuda-graph") else graph
    options.many("cuda-graph-modules")
    return {
        "offload_optimizer_fraction": share,
        "offload_activations": tuple(options.many("offload-modules")) if offloads else (),
        "offload_layers": options.whole("cpu-offloading-num-layers", default=0),
        "cuda_graph": graph,
    }
