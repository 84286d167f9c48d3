"""Megatron-LM's pipeline layout string: which layers every virtual stage holds."""

from itertools import groupby

from astra.strategy.plan import Plan


def layers_of_chunks(plan: Plan) -> tuple[int, ...]:
    """Layers of every chunk in the order of execution, virtual stage major. (vpp x pp entries)"""
    if plan.chunk_layers is not None:
        return plan.chunk_layers
    stages = [plan.chunks(stage) for stage in range(plan.pp)]
    return tuple(stage[chunk] for chunk in range(plan.vpp) for stage in stages)


def is_even_split(plan: Plan) -> bool:
    """Whether Megatron-LM's default split gives exactly these layers."""
    chunks = layers_of_chunks(plan)
    return len(set(chunks)) == 1 and sum(chunks) == plan.model.layers


def pipeline_layout_text(plan: Plan) -> str:
    """The value of `--pipeline-model-parallel-layout`.

    `E` embedding, `t` decoder layer, `m` multi-token-prediction layer, `L` loss, stages joined
    by `|`, repeats written `t*3` and `(t*3|)*6`.
    """
    texts = [_repeat("t", layers) for layers in layers_of_chunks(plan)]
    texts[0] = "E" + texts[0]
    texts[-1] += _repeat("m", plan.mtp_layers) + "L"
    runs = [(text, len(list(group))) for text, group in groupby(texts)]
    pieces: list[str] = []
    for i, (text, count) in enumerate(runs):
        last = i == len(runs) - 1
        if count > 2 and not last and text:
            pieces.append(f"({text}|)*{count}")
        else:
            pieces.append("|".join([text] * count) + ("" if last else "|"))
    return "".join(pieces)


def _repeat(letter: str, count: int) -> str:
    return letter * count if count < 3 else f"{letter}*{count}"
