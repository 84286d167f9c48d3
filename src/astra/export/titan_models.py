"""Which of torchtitan's networks a model is, and the lines that build it."""

from functools import cache

import msgspec

from astra.files import USER
from astra.model.shape import Model
from astra.model.zoo import zoo_model
from astra.strategy.plan import Plan

# Names of our zoo: torchtitan's module and flavour, as of 0.3.0. Counted against its own networks.
FLAVOURS = {
    "llama-3-8b": ("llama3", "8B"),
    "llama-3-70b": ("llama3", "70B"),
    "llama-3.1-8b": ("llama3", "8B"),
    "llama-3.1-70b": ("llama3", "70B"),
    "llama-3.3-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    "llama-3.2-1b": ("llama3", "1B"),
    "llama-3.2-3b": ("llama3", "3B"),
    "qwen3-0.6b": ("qwen3", "0.6B"),
    "qwen3-1.7b": ("qwen3", "1.7B"),
    "qwen3-4b": ("qwen3", "4B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-14b": ("qwen3", "14B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
    "deepseek-v2-lite": ("deepseek_v3", "16B"),
    "deepseek-v2": ("deepseek_v3", "236B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
    "gpt-oss-20b": ("gpt_oss", "20b"),
    "gpt-oss-120b": ("gpt_oss", "120b"),
    "moonlight-16b-a3b": ("kimi_k2_7", "moonlight-16B-A3B"),
}
# The longest sequence that the networks of a module are built for.
MAX_POSITIONS = {
    "llama3": 131_072,
    "qwen3": 40_960,
    "deepseek_v3": 16_384,
    "gpt_oss": 131_072,
    "kimi_k2_7": 8_192,
}
# Our dispatchers and fp8 recipes in its words.
COMM_BACKENDS = {None: "", "alltoall": "standard", "deepep": "deepep", "hybridep": "hybridep"}
# Linear layers but for the head and the router, as in its own recipes; then the experts.
CONVERTERS = {
    "tensorwise": (
        ("Float8LinearConverter", 'filter_fqns=["lm_head", "router.gate"]'),
        ("Float8GroupedExpertsConverter", ""),
    ),
    "mxfp8": (
        ("MXFP8LinearConverter", 'fqns=["attention", "shared_experts", "feed_forward"]'),
        ("MXFP8GroupedExpertsConverter", "pad_multiple=128"),
    ),
}

REGISTERED = '''

def model_spec():
    """{name}, as torchtitan knows it."""
    from torchtitan.models.{module} import model_registry
{imports}
    return model_registry({arguments})
'''
LLAMA_LIKE = '''

def model_spec():
    """{name}: the layers of Llama 3 in its own sizes."""
    from torchtitan.models import llama3
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    from torchtitan.protocols.model_spec import ModelSpec
{imports}
    width, vocabulary = {hidden}, {vocab}
    start = llama3._EMBEDDING_SKIP_INIT if {tied} else llama3._EMBEDDING_INIT
    config = llama3.Llama3Model.Config(
        dim=width,
        vocab_size=vocabulary,
        enable_weight_tying={tied},
        tok_embeddings=Embedding.Config(
            num_embeddings=vocabulary, embedding_dim=width, param_init=start
        ),
        norm=RMSNorm.Config(normalized_shape=width, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(
            in_features=width,
            out_features=vocabulary,
            param_init=llama3._output_linear_init(width),
        ),
        layers=llama3._build_llama3_layers(
            n_layers={layers},
            dim=width,
            n_heads={heads},
            n_kv_heads={kv_heads},
            hidden_dim={ffn},
            rope=ComplexRoPE.Config(
                dim={head_dim}, max_seq_len={positions}, theta={theta}, scaling="none"
            ),
            attn_backend="flex",
        ),
    )
    for converter in [{converters}]:
        config = converter.build().convert(config)
    return ModelSpec(
        name="llama3",
        flavor="{flavour}",
        model=config,
        parallelize_fn=llama3.parallelize_llama,
        pipelining_fn=llama3.pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=llama3.Llama3StateDictAdapter,
    )
'''


@cache
def _shapes() -> dict[Model, tuple[str, str]]:
    return {_bare(zoo_model(name)): flavour for name, flavour in FLAVOURS.items()}


def _bare(model: Model) -> Model:
    """The shape alone: nothing of where it was read, or of what a cut does not touch."""
    return msgspec.structs.replace(
        model,
        name="",
        family=None,
        hf_id=None,
        parameters=None,
        active_parameters=None,
        advertised_parameters=None,
        advertised_active_parameters=None,
        assumed=(),
        source=USER,
        max_positions=None,
        rope_theta=None,
        mtp_layers=0,
    )


def model_of(model: Model) -> tuple[str, str] | None:
    """torchtitan's module and flavour, `llama3` and nothing for what is like Llama; else None."""
    known = _shapes().get(_bare(model))
    if known is not None:
        return known
    return ("llama3", "") if is_like_llama(model) else None


def is_like_llama(model: Model) -> bool:
    """Whether Llama 3's layers in other sizes are this model."""
    return (
        model.moe is None
        and model.mla is None
        and model.window is None
        and model.norm == "rmsnorm"
        and model.norms_per_layer == 2
        and model.gated_mlp
        and model.activation in ("silu", "swiglu")
        and not model.learned_positions
        and model.positions == "rope"
        and model.head_dim * model.heads == model.hidden
        and model.qk_norm is None
        and not any((model.qkv_bias, model.attn_out_bias, model.mlp_bias, model.lm_head_bias))
        and not any((model.embedding_norm, model.attn_sinks, model.attn_gate))
        and model.final_norm
        and model.embedding_dim is None
    )


def model_lines(plan: Plan) -> str:
    """The function `model_spec` of the module. The model is one of torchtitan's: `model_of`."""
    model = plan.model
    found = model_of(model)
    assert found is not None
    module, flavour = found
    converters, imports = "", ""
    if plan.precision == "fp8":
        kinds = CONVERTERS[plan.fp8_recipe or ""][: 2 if model.moe else 1]
        compiled = f"model_compile_enabled={plan.stack != 'torch-eager'}"
        converters = ", ".join(
            f"{name}.Config({', '.join(filter(None, (said, compiled)))})" for name, said in kinds
        )
        names = ", ".join(name for name, _ in kinds)
        imports = f"    from torchtitan.components.quantization import {names}\n"
    label = "".join(c for c in model.name if c.isalnum() or c in "-_. ")
    if flavour:
        words = [f'"{flavour}"']
        if model.moe is not None and (plan.ep > 1 or plan.dispatcher != "alltoall"):
            words.append(f'moe_comm_backend="{COMM_BACKENDS[plan.dispatcher]}"')
        if module == "gpt_oss" and plan.cp > 1:  # its default does not know context parallelism
            words.append('attn_backend="flex"')
        if converters:
            words.append(f"converters=[{converters}]")
        return REGISTERED.format(
            name=label, module=module, imports=imports, arguments=", ".join(words)
        )
    return LLAMA_LIKE.format(
        name=label,
        flavour=label,
        imports=imports,
        converters=converters,
        hidden=model.hidden,
        vocab=model.vocab,
        tied=model.tied_embeddings,
        layers=model.layers,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn=model.ffn,
        head_dim=model.head_dim,
        positions=max(plan.seq_len, model.max_positions or 0),
        theta=model.rope_theta or 10000.0,
    )
