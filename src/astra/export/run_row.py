"""A plan as a row of measured runs, to be filled with what its run takes: for `astra calibrate`."""

from typing import Any

from msgspec.structs import replace

from astra.cost.price import price_plan
from astra.cost.result import PricedPlan
from astra.errors import InputError
from astra.export.torchrun import one_line
from astra.fit.csv_row import CsvRow
from astra.fit.row_plan import plan_of
from astra.model.shape import Model
from astra.strategy.microbatch_group import least_microbatch_group
from astra.strategy.plan import Plan

SHARDING = ("none", "optimizer", "gradients", "parameters")  # ZeRO stages 0 to 3
OVERLAPS = {  # as rows name them
    "overlap_grad_reduce": "overlap-grad-reduce",
    "overlap_param_gather": "overlap-param-gather",
    "overlap_tp": "tp_comm_overlap",
    "overlap_ep": "overlap-moe-expert-parallel-comm",
}
# A row that is read as another job teaches a cluster wrong factors. Read back, its step may differ
# by this share of the interval around it; guessed: little against what runs scatter by.
MAX_SPREAD_SHARE = 0.25
FIELD_WORDS = {  # what a row may lack, in words
    "window": "attention windows",
    "mla": "the ranks of latent attention",
    "mtp_layers": "multi-token prediction",
    "qk_norm": "norms of queries and keys",
    "norms_per_layer": "norms in a layer",
    "attn_gate": "gates of attention",
    "capped_logits": "capped logits",
    "moe": "details of the experts",
    "learned_positions": "learned positions",
    "positions": "the kind of positions",
    "offload_optimizer_fraction": "an optimizer on the host",
    "offload_activations": "activations on the host",
    "offload_layers": "activations of whole layers on the host",
    "capacity_factor": "a capacity of the experts",
    "chunk_layers": "layers of each chunk",
    "cp_comm_type": "how context parallelism talks",
    "rank_order": "the order of ranks",
    "moment_dtypes": "types of Adam's moments",
    "master_dtype": "the type of master weights",
    "main_grads_dtype": "the type of gradients",
    "grad_reduce_dtype": "the type in which gradients travel",
}


def row_of(priced: PricedPlan) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The row, and what of the plan it cannot say; none where that would mislead.

    The row is read as `astra calibrate` will and priced again.
    """
    plan = priced.plan
    if len(plan.gpus) > 1:
        return None, ("GPUs of several types",)
    if plan.explicit_microbatch_group not in (
        None,
        least_microbatch_group(plan.pp, plan.pipelines[0].micro_batches),
    ):
        return None, ("micro-batches in turn on a chunk",)  # a table of runs has no column for it
    row = _row(plan, sum(priced.gpus.values()))
    try:
        read, _ = plan_of(CsvRow({name: str(value) for name, value in row.items()}))
    except InputError as error:
        return None, (str(error),)
    lost = _lost(plan, read)
    step_s = price_plan(replace(read, stack=plan.stack)).step_s
    room_s = MAX_SPREAD_SHARE * (priced.step_s_high - priced.step_s)
    return (row if abs(step_s - priced.step_s) <= room_s else None), lost


def _lost(plan: Plan, read: Plan) -> tuple[str, ...]:
    """What differs between a plan and its row, in words."""
    pairs = [(plan, read), (plan.model, read.model)]
    found = [
        words
        for one, other in pairs
        for name, words in FIELD_WORDS.items()
        if hasattr(one, name)
        and getattr(one, name) != getattr(other, name)
        and not (name == "cp_comm_type" and plan.cp == 1)
    ]
    same = [[s.layers for s in p.pipelines[0].segments] for p in (plan, read)]
    return tuple(dict.fromkeys([*found, *(["layers of each stage"] if same[0] != same[1] else [])]))


def _row(plan: Plan, world: int) -> dict[str, Any]:
    """Its cells, without a comma in any."""
    segment = plan.pipelines[0].segments[0]
    gpu = next(pool.gpu for pool in plan.cluster.pools if pool.gpu.name == segment.gpu)
    stage = SHARDING.index(plan.sharding)
    return {
        "row_id": _plain(f"{plan.model.name} {plan.summary()}"),
        **_shape(plan.model),
        "seq_len": plan.seq_len,
        "global_batch": plan.global_batch,
        "micro_batch": plan.micro_batch,
        "gpu_id": segment.gpu,
        "num_gpus": world,
        "gpus_per_node": gpu.node.gpus,
        "interconnect": f"{gpu.node.nic_bytes_per_s * 8e-9:g} Gb/s per GPU",
        "tp": segment.tp,
        "pp": plan.pp,
        "vpp": plan.vpp,
        "cp": plan.cp,
        "ep": plan.ep,
        "etp": plan.etp,
        "dp": plan.dp,
        "zero_stage": f"zero-{stage} shard={plan.shard_group}" if stage else "none",
        "sequence_parallel": _flag(plan.sequence_parallel),
        "flash_attention": _flag(plan.attention == "flash"),
        "recompute": segment.recompute,
        "overlap": "; ".join(_overlaps(plan)) or "none",
        "precision": f"{plan.precision} {plan.fp8_recipe or ''}".strip(),
        "framework": "pytorch-fsdp" if plan.runtime == "fsdp" else plan.runtime,
        "notes": "; ".join(_notes(plan)),
    }


def _shape(model: Model) -> dict[str, Any]:
    """What a table of runs has columns for; a model of the zoo is looked up for the rest."""
    moe = model.moe
    shape: dict[str, Any] = {
        "model": _plain(model.name),
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "num_heads": model.heads,
        "num_kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn_hidden_size": model.ffn or "",
        "vocab_size": model.vocab,
        "gated_mlp": _flag(model.gated_mlp),
    }
    if moe is not None:
        shape |= {
            "num_experts": moe.experts,
            "top_k": moe.top_k,
            "moe_ffn_hidden": moe.moe_ffn,
            "shared_experts": f"ffn {moe.shared_ffn}" if moe.shared_ffn else 0,
            "dense_layers": moe.first_dense_layers,
        }
    return shape | ({"mla": "true"} if model.mla is not None else {})


def _overlaps(plan: Plan) -> list[str]:
    found = [words for field, words in OVERLAPS.items() if getattr(plan, field)]
    return [*found, *([] if plan.overlap_p2p else ["pp_comm_async=false"])]


def _notes(plan: Plan) -> list[str]:
    """Options that no column has."""
    dispatcher = [f"moe-token-dispatcher-type={plan.dispatcher}"] if plan.dispatcher else []
    biased = plan.model.qkv_bias or plan.model.mlp_bias
    further = [f"mtp-num-layers={plan.mtp_layers}"] if plan.mtp_layers else []
    return [
        f"untie-embeddings-and-output-weights={not plan.model.tied_embeddings}",
        f"disable-bias-linear={not biased}",
        *dispatcher,
        *further,
        *([f"cuda-graph-impl={plan.cuda_graph}"] if plan.cuda_graph != "none" else []),
    ]


def _flag(value: bool) -> str:
    return str(value).lower()


def _plain(text: str) -> str:
    return one_line(text).replace(",", " ")
