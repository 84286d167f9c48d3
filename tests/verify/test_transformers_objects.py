"""A config object of transformers as a model: read as the config.json that it saves."""

import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.frameworks import needs

needs("torch", "transformers")

import torch  # noqa: E402
import transformers  # noqa: E402

import astra  # noqa: E402
from astra.api.inputs import model_of  # noqa: E402
from astra.model.shape import Model  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")

SMALL = {
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 2816,
    "vocab_size": 32_000,
}
EXPERTS = SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2}
JOB: dict[str, Any] = {"gpus": {"h100": 8}, "global_batch": 32, "seq_len": 2048}


def configs() -> dict[str, Any]:
    """A dense model, experts, two with the text decoder inside, and one with a torch dtype."""
    return {
        "llama": transformers.LlamaConfig(**SMALL),
        "llama in bf16": transformers.LlamaConfig(**SMALL, dtype=torch.bfloat16),
        "mixtral": transformers.MixtralConfig(**EXPERTS),
        "qwen2_5_vl_text": transformers.Qwen2_5_VLConfig(text_config=SMALL),
        "gemma3_text": transformers.Gemma3Config(text_config=SMALL | {"head_dim": 64}),
        "gpt2": transformers.GPT2Config(n_layer=4, n_positions=2048),
    }


def read(source: Any) -> Model | str:
    """The model without its file, or why it is refused."""
    try:
        model = model_of(source)
    except astra.InputError as refused:
        return str(refused)
    return replace(model, source=None, assumed=())


def test_every_config_object_reads_as_the_config_json_that_it_saves() -> None:
    transformers.logging.set_verbosity_error()
    counts: Counter[str] = Counter()
    for model_type, config_class in transformers.CONFIG_MAPPING.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                config = config_class()
            except Exception:  # some have no defaults
                counts["not built"] += 1
                continue
            saved = json.loads(config.to_json_string())
        ours = read(config)
        if isinstance(ours, Model):
            assert ours == read(saved), model_type
            counts["text inside" if "text_config" in saved else "read"] += 1
    assert counts["read"] >= 100 and counts["text inside"] >= 50, counts


def test_plans_of_an_object_are_those_of_its_file(tmp_path: Path) -> None:
    for name, config in configs().items():
        folder = tmp_path / name
        config.save_pretrained(folder)
        asked = astra.plan(config, tp=[1, 2], **JOB)
        of_file = astra.plan(folder, tp=[1, 2], **JOB)
        best = asked.plans[0].plan
        assert best.model.family == name.partition(" ")[0]
        assert [each.step_s for each in asked.plans] == [each.step_s for each in of_file.plans]
        priced = astra.predict(config, tp=2, **JOB)
        assert priced.step_s == astra.predict(folder, tp=2, **JOB).step_s, name
        assert astra.Planner(config, **JOB).predict(tp=2).step_s == priced.step_s, name
        saved = asked.save(tmp_path / f"{name}.json")
        assert astra.read_plan(saved) == best, name


def test_a_job_may_be_imported_with_the_object_as_its_model(tmp_path: Path) -> None:
    for name, config in configs().items():
        job = tmp_path / f"{name}.json"
        job.write_text('{"train_batch_size": 32, "zero_optimization": {"stage": 2}}')
        plan = astra.import_job(job, gpus=JOB["gpus"], model=config, seq_len=2048).plan
        assert plan.model == model_of(config) and plan.global_batch == 32, name


def test_an_object_remembers_the_name_it_was_loaded_by() -> None:
    config = transformers.LlamaConfig(**SMALL, name_or_path="meta-llama/Meta-Llama-3-8B")
    assert model_of(config).name == "Meta-Llama-3-8B"


def test_what_is_no_decoder_is_refused_in_the_words_of_an_input_error() -> None:
    with torch.device("meta"):
        network = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SMALL))
    for given, words in (
        (transformers.T5Config(), "model_type = 't5' cannot be planned"),
        (transformers.PretrainedConfig(), "num_hidden_layers .* is missing"),
        (transformers.LlamaConfig, "a config as a dict or an object"),
        (network, "a config as a dict or an object"),
    ):
        with pytest.raises(astra.InputError, match=words):
            astra.predict(given, **JOB)
