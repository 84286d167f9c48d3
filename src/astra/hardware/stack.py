"""A stack: the software that runs a plan, as a few factors with their source."""

from functools import cache
from pathlib import Path

import msgspec

from astra.errors import InputError, did_you_mean
from astra.files import Source, convert, parse_toml

FOLDER = Path(__file__).parent.parent / "data" / "stacks"


class Stack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a framework adds to kernels measured alone."""

    name: str
    compute_factor: float = 1.0  # kernels in a step over kernels alone
    communication_factor: float = 1.0
    host_forward_s: float = 0.0  # CPU seconds of one layer; kernels wait if they are shorter
    host_backward_s: float = 0.0
    host_experts_s: float = 0.0  # more for routing and dispatch, in either pass; not with graphs
    step_s: float = 0.0  # once per step
    optimizer_factor: float = 1.0
    activation_factor: float = 1.0  # kept activations over those counted tensor by tensor
    logits_bytes: float = 6.0  # per logit at the loss: 2 for itself, 4 for its fp32 copy
    dropout: bool = False  # masks of hidden dropout are kept: one byte, twice a layer
    transformer_engine: bool = False  # layers are its: it has workspaces and attention of its own
    deterministic: bool = False  # only kernels that repeat their sums in one order
    gradient_bytes: float = 0.0  # of a parameter: gradients beside the ones that are reduced
    gradient_shard_bytes: float = 0.0  # of a parameter: the optimizer's own gradients, sharded
    bucket_bytes: float = 0.0  # flat buffers that a sharded optimizer's traffic goes through
    slack_fraction: float = 0.04  # reserved over allocated memory
    spread_fraction: float = 0.15  # 80 % of measured steps lie within this of the prediction
    moe_spread_fraction: float = 0.3  # the same for models with experts
    source: Source


def stack_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@cache
def find_stack(name: str) -> Stack:
    """A stack by its name."""
    if name not in stack_names():
        hint = did_you_mean(name, stack_names(), f"The stacks are {', '.join(stack_names())}.")
        raise InputError(f"unknown stack {name!r}. {hint}")
    where = f"stacks/{name}.toml"
    raw = parse_toml((FOLDER / f"{name}.toml").read_text(encoding="utf-8"), where)
    return convert({"name": name, **raw}, Stack, where)
