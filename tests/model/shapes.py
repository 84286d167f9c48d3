"""Random, coherent models for the property tests."""

from typing import Any

from hypothesis import strategies as st

from astra.model.shape import Mla, Model, Moe, Window


@st.composite
def mixtures(draw: st.DrawFn, layers: int) -> Moe:
    experts = draw(st.integers(1, 12))
    shared = draw(st.integers(0, 2))
    width = draw(st.integers(1, 40))
    return Moe(
        experts=experts,
        top_k=draw(st.integers(1, experts)),
        moe_ffn=width,
        shared_experts=shared,
        shared_ffn=shared * width,
        shared_gate=draw(st.booleans()),
        first_dense_layers=draw(st.integers(0, layers)),
        moe_layer_step=draw(st.integers(1, 3)),
        router_bias=draw(st.booleans()),
        expert_bias=draw(st.sampled_from([None, True, False])),
    )


@st.composite
def windows(draw: st.DrawFn, layers: int) -> Window:
    rows = st.lists(st.integers(0, layers - 1), unique=True).map(tuple)
    return Window(
        tokens=draw(st.integers(1, 64)),
        chunked=draw(st.booleans()),
        layers=draw(st.one_of(st.none(), rows)),
    )


@st.composite
def latents(draw: st.DrawFn) -> Mla:
    size = st.integers(1, 16)
    return Mla(
        q_lora_rank=draw(st.one_of(st.none(), size)),
        kv_lora_rank=draw(size),
        qk_nope_head_dim=draw(size),
        qk_rope_head_dim=draw(size),
        v_head_dim=draw(size),
    )


@st.composite
def models(draw: st.DrawFn, /, **fixed: Any) -> Model:
    layers = draw(st.integers(1, 9))
    kv_heads = draw(st.integers(1, 4))
    flags = ("tied_embeddings", "gated_mlp", "final_norm", "embedding_norm", "qkv_bias")
    more = ("attn_out_bias", "mlp_bias", "lm_head_bias", "qk_norm_bias", "attn_sinks")
    fields: dict[str, Any] = {
        "name": "drawn",
        "layers": layers,
        "hidden": draw(st.integers(1, 48)),
        "heads": kv_heads * draw(st.integers(1, 4)),
        "kv_heads": kv_heads,
        "head_dim": draw(st.integers(1, 16)),
        "ffn": draw(st.integers(1, 64)),
        "vocab": draw(st.integers(1, 200)),
        "norm": draw(st.sampled_from(["rmsnorm", "layernorm", "layernorm_nonparametric"])),
        "norms_per_layer": draw(st.integers(1, 4)),
        "qk_norm": draw(st.sampled_from([None, "head", "full"])),
        "attn_gate": draw(st.sampled_from([None, "head", "element"])),
        "learned_positions": draw(st.integers(0, 20)),
        "mtp_layers": draw(st.integers(0, 2)),
        "moe": draw(st.one_of(st.none(), mixtures(layers))),
        "mla": draw(st.one_of(st.none(), latents())),
        "window": draw(st.one_of(st.none(), windows(layers))),
    }
    fields |= {flag: draw(st.booleans()) for flag in flags + more}
    return Model(**(fields | fixed))
