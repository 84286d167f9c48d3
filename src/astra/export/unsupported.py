"""What of a model Megatron-LM's options cannot say, so that nobody trains another one unawares."""

from collections.abc import Callable

from astra.export.megatron import position_kind
from astra.model.shape import Model
from astra.strategy.plan import Plan


def unsupported(plan: Plan, option: Callable[[str], str] = "--{}".format) -> list[str]:
    """What the command line cannot say about this model, in words.

    `option` spells an option as the reader will write it.
    """
    model = plan.model
    found = _approximated(model, option)
    if model.embedding_norm:
        found.append("the norm after the embedding")
    if model.lm_head_bias:
        found.append("the bias of the output layer")
    if model.capped_logits:
        found.append("the caps on attention scores and logits (a tanh)")
    if model.attn_gate is not None:
        found.append("the gate on what attention returns")
    if model.embedding_dim is not None and model.embedding_dim != model.hidden:
        found.append(f"an embedding of {model.embedding_dim}, projected to {model.hidden}")
    if model.moe is not None:
        found.append(
            "load balancing and router scaling are the recipe's: Megatron-LM's auxiliary loss is 0 "
            f"unless you set {option('moe-aux-loss-coeff')}"
        )
    if model.rope_theta is None and position_kind(model) == "rope":
        base = option("rotary-base")
        found.append(f"the rotary base is not known here: set {base}, or it is 10000")
    return found


def _approximated(model: Model, option: Callable[[str], str]) -> list[str]:
    """What is written as something near it."""
    found = []
    if model.gated_mlp and model.activation not in ("silu", "swiglu"):
        gated = option("swiglu")
        found.append(f"gated {model.activation} is written as {gated}: same shapes, same cost")
    if not model.gated_mlp and model.activation not in ("gelu", "gelu_tanh", "relu2"):
        found.append(f"activation {model.activation} is written as GELU: same shapes, same cost")
    if model.norms_per_layer != 2:
        found.append(f"{model.norms_per_layer} norms per layer; Megatron-LM's layer has 2")
    if model.norm in ("layernorm_no_bias", "layernorm_nonparametric"):
        found.append("norms without biases or weights are written as LayerNorm with both")
    if model.qk_norm == "full":
        found.append("norms over the queries and keys of all heads are written as one for each")
    if model.window is not None and model.window.chunked:
        found.append(
            f"attention in chunks of {model.window.tokens:,} positions is written as a sliding "
            "window as long"
        )
    if model.attn_out_bias != model.mlp_bias:
        found.append("biases on only some of the linear layers")
    if position_kind(model) == "alibi":
        kind = option("position-embedding-type")
        found.append(
            f"ALiBi, which Megatron-LM does not have, is written as no positions ({kind} none)"
        )
    return found
