"""FLOPs of the network: two per parameter and token in a matrix product, plus attention.

Model FLOPs, as MFU counts them (PaLM, arXiv 2204.02311, appendix B): what the mathematics
needs, no recomputation, no padding, causal attention at half of the square. Norms, activations
and softmax are left out, as everywhere in the literature.
"""

from dataclasses import dataclass

from astra.model.layer_kinds import LayerKind, layer_kinds
from astra.model.parameters import Weight, layer_weights, mtp_weights
from astra.model.shape import Model

FORWARD_AND_BACKWARD = 3  # the backward pass multiplies twice: for the input and for the weight


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFlops:
    """Forward FLOPs of one layer, per token."""

    matmul_flops: float
    attention_flops: float

    @property
    def total_flops(self) -> float:
        return self.matmul_flops + self.attention_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFlops:
    """Forward FLOPs of the whole model, per token, by cause."""

    matmul_flops: float  # of all layers
    attention_flops: float  # of all layers
    head_flops: float
    mtp_flops: float  # multi-token prediction: its layers, and the head once more for each

    @property
    def total_flops(self) -> float:
        return self.matmul_flops + self.attention_flops + self.head_flops + self.mtp_flops


def mean_reach(kind: LayerKind, seq_len: int) -> float:
    """How many positions a token attends to, on average over a sequence of s tokens.

        causal          s / 2
        window w < s    w - w^2 / (2 s)
        chunks c < s    (q c^2 + r^2) / (2 s),   s = q c + r

    The first is the convention of MFU (half of the square); the others are the same area cut
    smaller, so that a window or chunk as long as the sequence gives the causal value.
    """
    reach = kind.window
    if reach is None or reach >= seq_len:
        return seq_len / 2
    if kind.chunked:
        chunks, rest = divmod(seq_len, reach)
        return (chunks * reach**2 + rest**2) / (2 * seq_len)
    return reach - reach**2 / (2 * seq_len)


def attention_flops(model: Model, kind: LayerKind, seq_len: int) -> float:
    """Scores and weighted values of one layer, forward, per token. [FLOPs]

        F = 2 H (d_qk + d_v) r      with r the mean reach

    Multi-head: d_qk = d_v = head_dim, so 4 H d r; with r = s this is the 4 s h of Narayanan et
    al. (arXiv 2104.04473), appendix, before causality halves it. Latent attention in training:
    d_qk = nope + rope, d_v apart (DeepSeek-V2, arXiv 2405.04434).
    """
    mla = model.mla
    widths = (
        2 * model.head_dim
        if mla is None
        else mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim
    )
    return 2 * model.heads * widths * mean_reach(kind, seq_len)


def matmul_flops(model: Model, weights: tuple[Weight, ...]) -> float:
    """Matrix products with these weights, forward, per token: two FLOPs a parameter. [FLOPs]

    Of the routed experts a token meets `top_k`; router and shared experts always count.
    """
    moe = model.moe
    seen = moe.top_k / moe.experts if moe else 1.0
    return sum(
        2.0 * weight.count * (seen if weight.sharded_by == "ep_etp" else 1.0)
        for weight in weights
        if weight.matrix
    )


def layer_forward_flops(model: Model, kind: LayerKind, seq_len: int) -> LayerFlops:
    """One layer of this kind, forward, per token."""
    return LayerFlops(
        matmul_flops=matmul_flops(model, layer_weights(model, kind)),
        attention_flops=attention_flops(model, kind, seq_len),
    )


def head_flops(model: Model) -> float:
    """Logits of one token: 2 h V, and the projections where the embedding is narrower. [FLOPs]"""
    width = model.embedding_dim or model.hidden
    projections = 2 * model.hidden * width if width != model.hidden else 0
    return 2.0 * (width * model.vocab + projections)


def mtp_flops(model: Model, seq_len: int) -> float:
    """The multi-token-prediction layers and the head behind each, forward, per token. [FLOPs]"""
    if not model.mtp_layers:
        return 0.0
    layer = matmul_flops(model, mtp_weights(model)) + attention_flops(
        model, layer_kinds(model).mtp_kind, seq_len
    )
    return model.mtp_layers * (layer + head_flops(model))


def forward_flops(model: Model, seq_len: int) -> ForwardFlops:
    """The whole model, forward, per token of a sequence of `seq_len`."""
    found = layer_kinds(model)
    layers = [
        (number, layer_forward_flops(model, kind, seq_len))
        for kind, number in zip(found.kinds, found.counts, strict=True)
    ]
    return ForwardFlops(
        matmul_flops=sum(number * layer.matmul_flops for number, layer in layers),
        attention_flops=sum(number * layer.attention_flops for number, layer in layers),
        head_flops=head_flops(model),
        mtp_flops=mtp_flops(model, seq_len),
    )


def train_flops_per_token(model: Model, seq_len: int) -> float:
    """Forward and backward, per token: three times the forward pass. [FLOPs]

    For a GPT with f = 4h this is 72 l h^2 (1 + s / (12 h) + V / (12 l h)): Narayanan et al.
    (arXiv 2104.04473), section 5.1, without recomputation (72 instead of 96) and with causal
    attention at half. Without attention it is the well-known 6 N.
    """
    return FORWARD_AND_BACKWARD * forward_flops(model, seq_len).total_flops


def step_flops(model: Model, seq_len: int, global_batch: int) -> float:
    """Model FLOPs of one training step over `global_batch` sequences. [FLOPs]"""
    return train_flops_per_token(model, seq_len) * seq_len * global_batch
