"""Parameters by part, and by what shards them among GPUs. All counts are exact integers."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from astra.model.layer_kinds import LayerKind, layer_kinds
from astra.model.shape import Mla, Model

WeightPart = Literal[
    "attention",
    "mlp",
    "routed_experts",
    "shared_experts",
    "router",
    "norms",
    "embedding",
    "positions",
    "head",
    "final_norm",
    "mtp",
]

# What shards a weight among GPUs.
#   tp      tensor parallel, by columns, rows or vocabulary
#   kv      tensor parallel too, but never finer than one key-value head
#   whole   nothing: every tensor-parallel rank keeps all of it
#   ep_etp  routed experts: expert parallel and expert tensor parallel
#   ep      one per expert, but not sharded inside it (bias after a row-parallel product)
ShardedBy = Literal["tp", "kv", "whole", "ep_etp", "ep"]

LEARNED_IN_ACTIVATION = {"xielu": 2}  # two learned scalars in each MLP (Apertus)


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor, or several that are sharded alike."""

    part: WeightPart
    name: str
    count: int
    sharded_by: ShardedBy
    matrix: bool = True  # takes part in a matrix product: two FLOPs per token and parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class KindParameters:
    """The weights of all layers of one kind."""

    kind: LayerKind
    layers: int
    weights: tuple[Weight, ...]  # of one layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """All weights of a model. The multi-token-prediction layers are counted apart."""

    kinds: tuple[KindParameters, ...]
    ends: tuple[Weight, ...]  # embedding, positions, final norm, head
    mtp: tuple[Weight, ...]  # of one multi-token-prediction layer
    mtp_layers: int
    inactive_fraction: tuple[int, int]  # routed experts a token does not see, of all experts

    @property
    def by_part(self) -> dict[WeightPart, int]:
        """Parameters of each part that is there, over all layers."""
        parts: dict[WeightPart, int] = {}
        for entry in self.kinds:
            for weight in entry.weights:
                parts[weight.part] = parts.get(weight.part, 0) + entry.layers * weight.count
        for weight in self.ends:
            parts[weight.part] = parts.get(weight.part, 0) + weight.count
        return {part: number for part, number in parts.items() if number}

    @property
    def total(self) -> int:
        """As model cards count: embeddings in, multi-token prediction out."""
        return sum(self.by_part.values())

    @property
    def active(self) -> int:
        """What one token passes through: of the routed experts only the chosen ones."""
        idle, experts = self.inactive_fraction
        return self.total - self.by_part.get("routed_experts", 0) * idle // experts

    @property
    def mtp_total(self) -> int:
        """All multi-token-prediction layers; the embedding and head they share are not in it."""
        return self.mtp_layers * count(self.mtp)


def count(
    weights: Iterable[Weight], part: WeightPart | None = None, sharded_by: ShardedBy | None = None
) -> int:
    """Parameters, of one part or sharded by one thing where given."""
    return sum(
        weight.count
        for weight in weights
        if part in (None, weight.part) and sharded_by in (None, weight.sharded_by)
    )


def parameters(model: Model) -> Parameters:
    """The weights of a model, by kind of layer."""
    found = layer_kinds(model)
    moe = model.moe
    return Parameters(
        kinds=tuple(
            KindParameters(kind=kind, layers=layers, weights=layer_weights(model, kind))
            for kind, layers in zip(found.kinds, found.counts, strict=True)
        ),
        ends=end_weights(model),
        mtp=mtp_weights(model),
        mtp_layers=model.mtp_layers,
        inactive_fraction=(moe.experts - moe.top_k, moe.experts) if moe else (0, 1),
    )


def layer_weights(model: Model, kind: LayerKind) -> tuple[Weight, ...]:
    """The weights of one decoder layer."""
    attention = attention_weights(model) if model.mla is None else latent_weights(model, model.mla)
    mlp = expert_weights(model) if kind.mlp == "moe" else dense_weights(model)
    norms = model.norms_per_layer * norm_width(model)
    return _nonzero(*attention, *mlp, Weight("norms", "norms", norms, "whole", matrix=False))


def attention_weights(model: Model) -> tuple[Weight, ...]:
    """Query, key, value and output projections, with what some families add to them."""
    hidden = model.hidden
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    gate = {None: 0, "head": model.heads, "element": queries}[model.attn_gate]
    qk_norm = {None: 0, "head": 2 * model.head_dim, "full": queries + keys}[model.qk_norm]
    return (
        Weight("attention", "query", hidden * queries, "tp"),
        Weight("attention", "key_value", 2 * hidden * keys, "kv"),
        Weight("attention", "gate", hidden * gate, "tp"),
        Weight("attention", "output", queries * hidden, "tp"),
        Weight("attention", "query_bias", model.qkv_bias * queries, "tp", matrix=False),
        Weight("attention", "key_value_bias", model.qkv_bias * 2 * keys, "kv", matrix=False),
        Weight("attention", "output_bias", model.attn_out_bias * hidden, "whole", matrix=False),
        Weight("attention", "qk_norm", qk_norm * (1 + model.qk_norm_bias), "whole", matrix=False),
        Weight("attention", "sinks", model.attn_sinks * model.heads, "tp", matrix=False),
    )


def latent_weights(model: Model, mla: Mla) -> tuple[Weight, ...]:
    """Multi-head latent attention, DeepSeek-V2 (arXiv 2405.04434), section 2.1.

    The down-projections and their norms are not sharded: every tensor-parallel rank needs the
    whole latent vector.
    """
    hidden, heads, rank = model.hidden, model.heads, mla.q_lora_rank or 0
    query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    latent = mla.kv_lora_rank + mla.qk_rope_head_dim
    up = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    bias = model.qkv_bias * (rank + latent)
    return (
        Weight("attention", "query_down", hidden * rank, "whole"),
        Weight("attention", "query", (rank or hidden) * query, "tp"),
        Weight("attention", "key_value_down", hidden * latent, "whole"),
        Weight("attention", "key_value_up", mla.kv_lora_rank * up, "tp"),
        Weight("attention", "output", heads * mla.v_head_dim * hidden, "tp"),
        Weight("attention", "latent_norms", rank + mla.kv_lora_rank, "whole", matrix=False),
        Weight("attention", "down_bias", bias, "whole", matrix=False),
        Weight("attention", "output_bias", model.attn_out_bias * hidden, "whole", matrix=False),
    )


def mlp_weights(model: Model, part: WeightPart, width: int, experts: int = 1) -> tuple[Weight, ...]:
    """An MLP of `width`, or as many equal experts: up (and gate), down, their biases."""
    routed = part == "routed_experts"
    inside: ShardedBy = "ep_etp" if routed else "tp"
    outside: ShardedBy = "ep" if routed else "whole"
    ups = 1 + model.gated_mlp
    bias = (model.biased_experts if routed else model.mlp_bias) * experts
    learned = LEARNED_IN_ACTIVATION.get(model.activation, 0) * experts
    return (
        Weight(part, "up", experts * ups * model.hidden * width, inside),
        Weight(part, "down", experts * width * model.hidden, inside),
        Weight(part, "up_bias", bias * ups * width, inside, matrix=False),
        Weight(part, "down_bias", bias * model.hidden, outside, matrix=False),
        Weight(part, "activation", learned, outside, matrix=False),
    )


def dense_weights(model: Model) -> tuple[Weight, ...]:
    """The MLP of a layer without experts."""
    return mlp_weights(model, "mlp", model.ffn) if model.ffn else ()


def expert_weights(model: Model) -> tuple[Weight, ...]:
    """Routed experts, shared experts and the router of one layer."""
    moe = model.moe
    assert moe is not None, "a layer with experts in a model without"
    shared = mlp_weights(model, "shared_experts", moe.shared_ffn) if moe.shared_ffn else ()
    gate = model.hidden if moe.shared_ffn and moe.shared_gate else 0
    return (
        *mlp_weights(model, "routed_experts", moe.moe_ffn, moe.experts),
        *shared,
        Weight("shared_experts", "gate", gate, "whole"),
        Weight("router", "router", model.hidden * moe.experts, "whole"),
        Weight("router", "router_bias", moe.router_bias * moe.experts, "whole", matrix=False),
    )


def end_weights(model: Model) -> tuple[Weight, ...]:
    """What comes before the first layer and after the last."""
    width = model.embedding_dim or model.hidden
    projection = 2 * model.hidden * width if width != model.hidden else 0
    head = 0 if model.tied_embeddings else model.vocab * width
    norm = norm_width(model)
    return _nonzero(
        Weight("embedding", "embedding", model.vocab * width, "tp", matrix=False),
        Weight("embedding", "projections", projection, "whole"),
        Weight("embedding", "embedding_norm", model.embedding_norm * norm, "whole", matrix=False),
        Weight(
            "positions", "positions", model.learned_positions * model.hidden, "whole", matrix=False
        ),
        Weight("final_norm", "final_norm", model.final_norm * norm, "whole", matrix=False),
        Weight("head", "head", head, "tp"),
        Weight("head", "head_bias", model.lm_head_bias * model.vocab, "tp", matrix=False),
    )


def mtp_weights(model: Model) -> tuple[Weight, ...]:
    """One multi-token-prediction layer, DeepSeek-V3 (arXiv 2412.19437), section 2.2.

    A decoder layer of the last kind, a projection of the joined hidden state and next
    embedding (2h to h), a norm for either, and a norm before the head. Embedding and head are
    the main model's.
    """
    if not model.mtp_layers:
        return ()
    inner = layer_weights(model, layer_kinds(model).mtp_kind)
    return (
        *(Weight("mtp", each.name, each.count, each.sharded_by, each.matrix) for each in inner),
        Weight("mtp", "join", 2 * model.hidden * model.hidden, "tp"),
        Weight("mtp", "join_norms", 3 * norm_width(model), "whole", matrix=False),
    )


def norm_width(model: Model) -> int:
    """Parameters of one norm over the hidden state."""
    per_column = {
        "rmsnorm": 1,
        "layernorm": 2,
        "layernorm_no_bias": 1,
        "layernorm_nonparametric": 0,
    }
    return per_column[model.norm] * model.hidden


def _nonzero(*weights: Weight) -> tuple[Weight, ...]:
    """Without the ones this model does not have."""
    return tuple(weight for weight in weights if weight.count)
