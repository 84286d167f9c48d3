"""Software stacks, for people and for programs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from astra.hardware.stack import Stack

if TYPE_CHECKING:
    from rich.console import RenderableType

FIELD_MEANINGS = {
    "compute_factor": "kernel seconds in a step over those measured alone",
    "product_factor": "on top of it, of matrix products",
    "attention_factor": "of fused attention",
    "elementwise_factor": "of kernels bound by memory",
    "experts_factor": "of grouped products",
    "communication_factor": "traffic over collectives measured alone",
    "tensor_factor": "on top of it, of tensor parallelism",
    "context_factor": "of context parallelism",
    "dispatch_factor": "of tokens to their experts and back",
    "data_factor": "of gradients and parameters between copies",
    "pipeline_factor": "between stages",
    "host_factor": "of the CPU seconds below",
    "host_forward_s": "CPU seconds of a layer's forward pass",
    "host_backward_s": "CPU seconds of a layer's backward pass",
    "host_experts_s": "more of them for routing and dispatch",
    "host_expert_kernel_s": "and for each kernel of an expert of its own",
    "step_s": "seconds per step that nothing else accounts for",
    "owned_tensors": "tensors of a layer, if ranks own them whole and take turns to send them",
    "jitter_fraction": "of busy seconds, lost to the slowest rank per doubling of GPUs",
    "optimizer_factor": "optimizer seconds over memory traffic alone",
    "activation_factor": "kept activations over those counted",
    "layers": "how its layers are written",
    "logits_bytes": "bytes per logit at the loss",
    "routing_bytes": "bytes moved for an element of a routed token, beside the usual",
    "weight_gradient_bytes": "bytes moved for a parameter's gradient, beside the usual",
    "expert_gradient_bytes": "the same for a parameter of an expert",
    "routed_copies": "copies of routed tokens kept beside the usual",
    "query_copies": "copies of queries kept before they are turned",
    "gradient_bytes": "bytes a parameter of gradients beside those that are reduced",
    "gradient_shard_bytes": "bytes a parameter of the optimizer's own, sharded gradients",
    "bucket_bytes": "flat buffers of a sharded optimizer's traffic",
    "slack_fraction": "reserved over allocated memory, less one",
    "runs": "measured runs of this stack that it was fitted on",
    "spread_fraction": "80 % of measured steps of dense models lie within this",
    "moe_spread_fraction": "and of models with experts",
}


def stack_json(stack: Stack) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(stack)
    return document


def stacks_table(stacks: Sequence[Stack]) -> "RenderableType":
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("stack", "compute", "host ms a layer", "80 % within", "source"):
        right = name not in ("stack", "source")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for stack in stacks:
        host = f"{stack.host_forward_s * 1e3:.2f} + {stack.host_backward_s * 1e3:.2f}"
        table.add_row(
            stack.name,
            f"x {stack.compute_factor:.3f}",
            host,
            f"{stack.spread_fraction:.0%}",
            stack.source.kind,
        )
    return table


def stack_page(stack: Stack) -> "RenderableType":
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    table.add_row(stack.name, "", "")
    for name, meaning in FIELD_MEANINGS.items():
        value = getattr(stack, name)
        table.add_row(f"  {name}", value if isinstance(value, str) else f"{value:g}", meaning)
    table.add_row("  source", stack.source.kind, stack.source.where)
    if stack.settings:
        table.add_row("  multiplied on", "runs", "")
    for row in stack.settings:
        factors = ", ".join(f"{name} x {value:g}" for name, value in row.factors().items())
        table.add_row(f"  {row.description()}", f"{row.runs}", factors)
    return table
