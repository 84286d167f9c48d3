"""The shape of a decoder-only transformer: all that its cost depends on, nothing about GPUs."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from astra.files import USER, Source

Count = Annotated[int, Meta(ge=1, le=10**9)]
CountOrZero = Annotated[int, Meta(ge=0, le=10**9)]
Total = Annotated[int, Meta(ge=1, le=10**18)]


class Mla(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

    q_lora_rank: Count | None = None  # None: queries are projected directly
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count


class Moe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Routed experts in place of the dense MLP."""

    experts: Count
    top_k: Count
    moe_ffn: Count  # width of one expert
    shared_experts: CountOrZero = 0
    shared_ffn: CountOrZero = 0  # total width of the shared experts
    shared_gate: bool = False
    first_dense_layers: CountOrZero = 0
    moe_layer_step: Count = 1  # every n-th layer has experts
    layers: tuple[CountOrZero, ...] | None = None  # which have experts, where no rule says it
    router_bias: bool = False
    expert_bias: bool | None = None  # of the routed experts, where it is not as `mlp_bias`


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attention that does not see everything before it.

    Sliding: a token sees at most `tokens` positions, itself included. Chunked: it sees what lies
    before it in its own chunk of `tokens` positions (Llama 4).
    """

    tokens: Count
    chunked: bool = False
    layers: tuple[CountOrZero, ...] | None = None  # None: every layer


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is trained. Written by hand as a small TOML, or read from a Hugging Face config.

    >>> import astra
    >>> astra.find_model("llama-3-8b")
    Model(llama-3-8b: 32 layers, hidden 4096)
    """

    name: str
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    ffn: CountOrZero  # width of the dense MLP; 0 if no layer has one
    vocab: Count
    max_positions: Count | None = None
    tied_embeddings: bool = False
    activation: str = "silu"
    gated_mlp: bool = True
    norm: Literal["rmsnorm", "layernorm", "layernorm_no_bias", "layernorm_nonparametric"] = (
        "rmsnorm"
    )
    norms_per_layer: CountOrZero = 2
    final_norm: bool = True
    embedding_norm: bool = False
    qkv_bias: bool = False
    attn_out_bias: bool = False
    mlp_bias: bool = False
    lm_head_bias: bool = False
    capped_logits: bool = False  # squeezed through a tanh (Gemma 2)
    qk_norm: Literal["head", "full"] | None = None  # one for all heads, or as wide as all heads
    qk_norm_bias: bool = False
    attn_gate: Literal["element", "head"] | None = None  # a learned gate on what attention returns
    attn_sinks: bool = False
    fused_qkv: bool = False  # Hugging Face's layers make queries, keys and values in one product
    learned_positions: CountOrZero = 0  # rows of a learned position table
    positions: Literal["rope", "alibi", "none"] = "rope"  # told how, where no table is learned
    embedding_dim: Count | None = None  # where it is not `hidden` (OPT-350M)
    mla: Mla | None = None
    moe: Moe | None = None
    window: Window | None = None
    mtp_layers: CountOrZero = 0  # multi-token-prediction layers after the last
    rope_theta: float | None = None
    family: str | None = None
    hf_id: str | None = None
    parameters: Total | None = None  # as recorded by the source; checked against the shape
    active_parameters: Total | None = None
    advertised_parameters: Total | None = None
    advertised_active_parameters: Total | None = None
    assumed: tuple[str, ...] = ()  # what the source left open, in words
    source: Source = USER

    def __repr__(self) -> str:
        experts = f", {self.moe.experts} experts" if self.moe else ""
        return f"Model({self.name}: {self.layers} layers, hidden {self.hidden}{experts})"

    @property
    def biased_experts(self) -> bool:
        """Whether the routed experts add a bias after each product."""
        expert_bias = None if self.moe is None else self.moe.expert_bias
        return self.mlp_bias if expert_bias is None else expert_bias
