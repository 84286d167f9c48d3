"""Layout strings that we read and refuse, against Megatron-LM's own reader and checks."""

import random

import pytest
from tests.support.frameworks import needs

needs("torch", "triton", "megatron.core", "megatron.training")

from tests.support.megatron_oracle import megatron  # noqa: E402

megatron()  # whose modules are imported there, with all that they warn of

from megatron.core.transformer.enums import LayerType  # noqa: E402
from megatron.core.transformer.pipeline_parallel_layer_layout import (  # noqa: E402
    PipelineParallelLayerLayout,
)

import astra  # noqa: E402
from astra.errors import InputError  # noqa: E402
from astra.export.pipeline_layout import layers_of_chunks, pipeline_layout_text  # noqa: E402
from astra.strategy.layer_splits import layer_cuts  # noqa: E402
from astra.strategy.pipeline_layout import parse_pipeline_layout  # noqa: E402

PARTS = ("t", "t*2", "t*0", "(t|)*2", "(t*2|)*3", "(|t)*2", "|", "|*2", "m", ",", "mm", "m|")
ODD = ("E", "L", "l", " ", "(", ")", "*2", "2", "((t|)*2)*2", "()*2", "(t)*2*2", "l*0", "M")


def by_megatron(text: str, pp: int) -> tuple[tuple[int, ...], int] | None:
    """Decoder layers of each stage and prediction layers, for a model that has as many."""
    try:
        stages = PipelineParallelLayerLayout.parse_str_to_list(text)
        flat = [layer for stage in stages for layer in stage]
        layers, predicting = (flat.count(kind) for kind in (LayerType.decoder, LayerType.mtp))
        layout = PipelineParallelLayerLayout(text, pp)
        layout.validate_layer_layout(num_layers=layers, mtp_num_layers=predicting)
    except (AssertionError, IndexError):  # an empty one
        return None
    return tuple(stage.count(LayerType.decoder) for stage in stages), predicting


def by_us(text: str, pp: int) -> tuple[tuple[int, ...], int] | None:
    try:
        return parse_pipeline_layout(text, pp, "layout")
    except InputError:
        return None


@pytest.mark.parametrize("odd", [0.0, 0.05, 0.3])
def test_layouts_are_read_and_refused_as_megatron_does(odd: float) -> None:
    dice, taken, refused = random.Random(7), 0, 0
    for _ in range(20_000):
        parts = dice.choices(PARTS[: dice.choice([8, 12])], k=dice.randint(0, 6))
        parts = [dice.choice(ODD) if dice.random() < odd else part for part in parts]
        text = f"E{''.join(parts)}{dice.choice(['', 'm', '|m|', 'mm'])}L"
        text = dice.choice(["", text[1:], text[:-1], text]) if dice.random() < odd else text
        pp = dice.randint(1, 4)
        expected = by_megatron(text, pp)
        assert by_us(text, pp) == expected, (text, pp)
        taken, refused = taken + (expected is not None), refused + (expected is None)
    assert taken > 2000 and refused > 2000


@pytest.mark.parametrize(
    ("model", "pp", "vpp"),
    [
        ("deepseek-v3", 8, 4),
        ("deepseek-v3", 16, 2),
        ("kimi-k2", 8, 4),
        ("llama-3.1-405b", 16, 8),
        ("llama-3-70b", 4, 7),
    ],
)
def test_megatron_takes_every_list_of_chunks_that_is_searched(
    model: str, pp: int, vpp: int
) -> None:
    """Where embedding and loss stand alone too: as many layers as the model has, stage by stage."""
    plan = astra.predict(
        model, gpus={"h100": 8 * pp}, global_batch=8 * pp, seq_len=4096, tp=8, pp=pp, vpp=vpp
    ).plan
    for cut in layer_cuts(plan):
        text = pipeline_layout_text(cut)
        layout = PipelineParallelLayerLayout(text, pp)
        layout.validate_layer_layout(num_layers=plan.model.layers, mtp_num_layers=plan.mtp_layers)
        assert by_megatron(text, pp) == (layers_of_chunks(cut), plan.mtp_layers)
        assert parse_pipeline_layout(text, pp, "layout")[0] == layers_of_chunks(cut)
