"""What Hugging Face's layers keep in plain PyTorch, against what autograd's hooks listed."""

from typing import Any

import pytest

from astra.cost.price import price_plans
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.model.huggingface import model_from_config
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.plan import Plan

TINY: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 704,
    "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2,
    "tie_word_embeddings": False, "max_position_embeddings": 512,
}  # fmt: skip
NEOX: dict[str, Any] = {
    "model_type": "gpt_neox", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 704,
    "num_hidden_layers": 1, "num_attention_heads": 8, "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}  # fmt: skip
OPT: dict[str, Any] = {
    "model_type": "opt", "vocab_size": 512, "hidden_size": 256, "ffn_dim": 704,
    "num_hidden_layers": 1, "num_attention_heads": 8, "max_position_embeddings": 512,
    "word_embed_proj_dim": 256,
}  # fmt: skip


def plan(config: dict[str, Any], stack: str, layers: int, length: int = 128) -> Plan:
    model = model_from_config(config | {"num_hidden_layers": layers}, "test")
    gpu, _ = find_gpu("H200-SXM")
    wish = PlanSettings(
        global_batch=1, micro_batch=1, seq_len=length, recompute="none", sharding="none"
    )
    cluster = Cluster(name=gpu.name, pools=(Pool(gpu=gpu, count=1),))
    return complete(wish, model, cluster, "megatron", stack).plan


def layer_bytes(config: dict[str, Any], stack: str, length: int = 128) -> float:
    """Kept of one layer for each token."""
    plans = [plan(config, stack, layers, length) for layers in (1, 2)]
    one, two = (answer.memory.stages[0].activations_bytes for answer in price_plans(plans))
    return (two - one) / length


@pytest.mark.parametrize(
    ("config", "listed"),
    [
        (TINY, 11_176 - 2 * 64),  # without the tables of cosines and sines
        (TINY | {"model_type": "qwen3", "head_dim": 48}, 14_800 - 2 * 96),
        (NEOX, 8_008 - 2 * 16),
        (TINY | {"model_type": "starcoder2", "sliding_window": None}, 6_312 - 2 * 64),
        (OPT, 5_544),
    ],
    ids=["llama", "qwen3", "gpt_neox", "starcoder2", "opt"],
)
def test_eager_layers_keep_what_autograd_saved(config: dict[str, Any], listed: float) -> None:
    """Bytes a token of one layer, listed by saved-tensor hooks (transformers 5.22, CPU)."""
    assert layer_bytes(config, "torch-eager") == pytest.approx(listed, rel=0.01)


def test_a_window_saves_its_mask_and_repeats_keys_and_values() -> None:
    config = TINY | {"model_type": "mistral", "sliding_window": 256}
    for stack in ("torch-compile", "torch-eager"):
        more = layer_bytes(config, stack, 256) - layer_bytes(config, stack, 255)
        assert more == pytest.approx(2 * 256 + 2 * 2 * (8 - 2) * 32, rel=0.01)
