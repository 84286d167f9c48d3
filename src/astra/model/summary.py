"""All that is known about one model, worked out once for whoever reports it."""

from dataclasses import dataclass

from astra.model.flops import ForwardFlops, LayerFlops, forward_flops, layer_forward_flops
from astra.model.layer_kinds import attention_name
from astra.model.parameters import Parameters, parameters
from astra.model.shape import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """A model with its counts."""

    model: Model
    attention: str  # mha | gqa | mqa | mla
    parameters: Parameters
    seq_len: int
    flops: ForwardFlops  # per token of a sequence of `seq_len`
    layer_flops: tuple[LayerFlops, ...]  # of one layer of each kind


def model_summary(model: Model, seq_len: int) -> ModelSummary:
    """Counts and FLOPs of a model at one sequence length."""
    counted = parameters(model)
    return ModelSummary(
        model=model,
        attention=attention_name(model),
        parameters=counted,
        seq_len=seq_len,
        flops=forward_flops(model, seq_len),
        layer_flops=tuple(
            layer_forward_flops(model, entry.kind, seq_len) for entry in counted.kinds
        ),
    )
