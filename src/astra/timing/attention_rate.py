"""Fused attention: a kernel time of four measured numbers per pass."""

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

HEAD_DIMS = (64.0, 128.0, 256.0)
BACKWARD_FLOPS = 2.5  # of the forward pass: five products instead of two, scores made again


class AttentionRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one pass of fused attention runs on one GPU, with a causal mask or without."""

    rates: tuple[float, float, float]  # of the peak, long sequences, at head_dim 64, 128, 256
    tail_tokens: float  # keys a block of queries works through in vain
    fill_rows: float  # rows of queries (batch x heads x tokens) that keep the GPU half busy
    ramp_s: float


def rate_at(rate: AttentionRate, head_dim: Floats) -> Floats:
    """Share of the peak for any head: straight between the measured ones in log space.

    A head narrower than 64 takes the time of 64; one wider than 256 runs at the rate of 256.
    """
    logs = np.interp(np.log(head_dim), np.log(HEAD_DIMS), np.log(rate.rates))
    return np.asarray(np.exp(logs) * np.minimum(head_dim / HEAD_DIMS[0], 1.0))


def attention_s(
    rate: AttentionRate,
    flops_per_s: float,
    flops: Floats,
    seq_q: Floats,
    seq_kv: Floats,
    heads: Floats,
    head_dim: Floats,
) -> Floats:
    """Time of one pass over `heads` heads (of all samples together). [s]

        T = F / (P e) (1 + a / s_kv) (1 + w / (H s_q)) + r

    With a causal mask the last block of queries has twice the average work, so a GPU filled just
    once (H s_q = w) runs at half speed; `a` is the waste along the diagonal. As F is H s_q s_kv,
    the time is a product of (s_kv + a) and (H s_q + w): it falls along none of them.
    """
    busy_s = flops / (flops_per_s * rate_at(rate, head_dim))
    waste = (1 + rate.tail_tokens / seq_kv) * (1 + rate.fill_rows / (heads * seq_q))
    return busy_s * waste + rate.ramp_s
