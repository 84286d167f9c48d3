"""Arguments are plain Python values, and are read as the command line reads its text."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.cases import each_case

import astra
from astra.api.inputs import batch_of, cluster_of, model_of

JOB: dict[str, Any] = {"gpus": {"h100": 8}, "global_batch": 32, "seq_len": 4096}
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 1000,
}


def same_answer(first: astra.Answer, second: astra.Answer) -> bool:
    return [plan.to_dict() for plan in first.plans] == [plan.to_dict() for plan in second.plans]


@pytest.mark.parametrize(
    "gpus",
    [
        {"h100": 64, "a100-80g": 32},
        {"h100": np.int64(64), "a100-80g": 32},
        ["h100:64", "a100-80g:32"],
        [("h100", 64), ("a100-80g", 32)],
    ],
)
def test_gpus_are_a_dict_a_list_or_text(gpus: Any) -> None:
    assert cluster_of(gpus, None) == cluster_of("h100:64,a100-80g:32", None)


def test_any_dimension_narrows_the_space_as_a_keyword_as_settings_do() -> None:
    asked = [
        astra.plan("llama-3-8b", tp=[2, 4], recompute="none", **JOB),
        astra.plan("llama-3-8b", settings={"tp": (2, 4), "recompute": "none"}, **JOB),
        astra.plan("llama-3-8b", settings=["tp=2,4", "recompute=none"], **JOB),
    ]
    assert {plan.plan.tp for plan in asked[0].plans} <= {2, 4}
    assert same_answer(asked[0], asked[1]) and same_answer(asked[0], asked[2])


def test_lengths_and_batches_may_be_text_and_mean_what_the_command_line_means() -> None:
    job = JOB | {"seq_len": "4k", "global_batch": "32"}
    assert same_answer(astra.plan("llama-3-8b", **job), astra.plan("llama-3-8b", **JOB))
    assert astra.predict("llama-3-8b", **job).plan.seq_len == 4096
    assert batch_of("4M-tokens", 8192)[0] == 512


@pytest.mark.slow
def test_rules_may_be_given_outright_and_are_remembered_by_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "my.rules"
    file.write_text("no-tensor-parallelism: $tp > 1\n")
    rules = {"no-tensor-parallelism": "$tp > 1"}
    outright = astra.plan("llama-3-8b", rules=rules, **JOB)
    assert same_answer(outright, astra.plan("llama-3-8b", rules=file, **JOB))
    assert same_answer(outright, astra.plan("llama-3-8b", rules=["$tp > 1"], **JOB))
    saved = outright.save(tmp_path / "answer.json")
    against = astra.explain(saved, against={"tp": 2}, quick=True).against
    assert against is not None and against.outcome == "rules"
    assert "no-tensor-parallelism" in against.rules


class Config:
    """As transformers has them."""

    def to_dict(self) -> dict[str, Any]:
        return CONFIG


def test_a_model_may_be_a_config_a_config_object_or_a_small_table() -> None:
    assert model_of(Config()) == model_of(CONFIG)
    nameless = {name: value for name, value in CONFIG.items() if name != "model_type"}
    table = {"layers": 4, "hidden": 512, "heads": 8, "ffn": 1024, "vocab": 1000}
    names = [model_of(each).name for each in (CONFIG, nameless, table)]
    assert names == ["llama-12m", "model-11m", "model-12m"]
    for other, shown in ((7, "7"), (Config, "<class .*Config'>")):
        with pytest.raises(astra.InputError, match=f"model = {shown}: a name, a file, a config"):
            astra.predict(other, **JOB)


def test_words_about_money_are_keywords_of_predict_too() -> None:
    said: dict[str, Any] = {"tokens": "1B", "price": {"h100": 2.0}}
    priced = astra.predict("llama-3-8b", **JOB, **said)
    assert priced.usd == astra.predict("llama-3-8b", **JOB, money=said).usd and priced.usd


@each_case(
    "said, words",
    [
        ({"tpp": 2}, "Did you mean tp"),
        ({"gpu": "h100:8"}, "Did you mean gpus"),
        ({"time_limt": 3}, "Did you mean time_limit"),
        ({"bugdet": 3}, "Did you mean budget"),
        ({"tp": 2, "settings": {"tp": 4}}, r"settings\['tp'\] is given twice"),
        ({"settings": {"tp": "many"}}, r"settings\['tp'\] = 'many': not a whole number"),
        ({"settings": 7}, "settings = 7: a dict"),
        ({"rules": ["$tpp > 2"]}, "rules"),
        ({"rules": 7}, "rules = 7: a file or a list of rules is needed"),
        ({"stack": 7}, "stack = 7: a name is needed"),
        ({"time_limit": "x"}, "time_limit = 'x': not a number"),
        ({"gpus": {"h100": 0}}, "gpus=, entry 1 'h100:0': no GPUs at all"),
        ({"gpus": [8]}, "gpus has 8: give a type and its count"),
        ({"tokens": "many", "objective": "money"}, "tokens = 'many': not a number"),
        ({"objective": "money"}, "Give tokens=, such as tokens='1T'"),
    ],
)
def test_errors_speak_of_the_functions_own_arguments(said: dict[str, Any], words: str) -> None:
    with pytest.raises(astra.InputError, match=words) as refused:
        astra.plan("llama-3-8b", **JOB | said)
    assert " --" not in str(refused.value)


def test_a_planner_answers_as_the_functions_do() -> None:
    planner = astra.Planner("llama-3-8b", gpus={"h100": 8}, seq_len=4096, price={"h100": 2.0})
    asked = planner.plan(global_batch=32, tp=2)
    assert same_answer(asked, astra.plan("llama-3-8b", tp=2, price={"h100": 2.0}, **JOB))
    assert planner.predict(global_batch=32, gpus={"h100": 4}).gpus == {"H100-80GB-SXM": 4}
    with pytest.raises(astra.InputError, match="Did you mean global_batch"):
        planner.predict(global_bach=32)
    with pytest.raises(astra.InputError, match="Did you mean gpus"):
        astra.Planner("llama-3-8b", gpu={"h100": 8})


def test_missing_and_unknown_arguments_are_named_with_what_is_meant() -> None:
    job: dict[str, Any] = {"gpus": {"h100": 8}, "global_batch": 32}
    ask: Any = astra.plan
    with pytest.raises(astra.InputError) as refused:
        ask("llama-3-8b", seqlen=8192, **job)
    assert str(refused.value) == (
        "there is no setting 'seqlen'. Did you mean seq_len? "
        "seq_len is missing: tokens of a sample, such as seq_len=4096."
    )
    with pytest.raises(astra.InputError, match=r"^seq_len is missing: tokens of a sample"):
        astra.Planner("llama-3-8b", **job).plan()
    with pytest.raises(astra.InputError, match=r"'lauch'. Did you mean launcher\? out is missing"):
        ask = astra.export
        ask("plan.json", "megatron", lauch="slurm")
    priced = astra.predict("llama-3-8b", **JOB)
    for result in (priced, astra.plan("llama-3-8b", tp=1, pp=1, **JOB)):
        ask = result.export
        with pytest.raises(astra.InputError, match=r"'lauch'. Did you mean launcher\?"):
            ask("megatron", "job", lauch="slurm")
    with pytest.raises(astra.InputError, match="too many positional arguments: give them by name"):
        ask = astra.predict
        ask("llama-3-8b", {"h100": 8}, global_batch=32)


def test_a_gpu_itself_may_be_given_with_its_count() -> None:
    h100, _ = astra.find_gpu("h100")
    own = msgspec.structs.replace(h100, name="own", memory_bytes=60e9, usable_bytes=59e9)
    for gpus in ([(h100, 16)], {h100: 16}):
        assert cluster_of(gpus, None)[0] == cluster_of("h100:16", None)[0]
    both: dict[str | astra.Gpu, int] = {own: 16, "a100-80g": 8}
    mixed, _ = cluster_of(both, None)
    assert mixed.pools[1].gpu == own and mixed.pools[1].count == 16
    money: dict[str, Any] = {"objective": "money", "tokens": "1B", "price": {"own": 2.0}}
    rented = astra.plan("llama-3-8b", tp=1, pp=1, **JOB | {"gpus": {own: 8}}, **money)
    assert rented.request.gpus == {"own": 8}
    twin = msgspec.structs.replace(own, memory_bytes=61e9)
    with pytest.raises(astra.InputError, match="two different GPUs are called own"):
        cluster_of([(own, 8), (twin, 8)], None)


@pytest.mark.parametrize("gpus", [{"name": "x", "memory_bytes": 1}, [({"memory_bytes": 1}, 8)]])
def test_a_dict_that_describes_a_gpu_is_told_what_is_accepted(gpus: Any) -> None:
    with pytest.raises(
        astra.InputError, match=r"describes a GPU: .*\{'my-gpu.toml': 64\}.*find_gpu"
    ):
        astra.plan("llama-3-8b", **JOB | {"gpus": gpus})


def test_one_number_is_asked_for_where_several_are_given() -> None:
    with pytest.raises(astra.InputError, match=r"tp = \[2, 4\]: one whole number .*`astra.plan`"):
        astra.predict("llama-3-8b", tp=[2, 4], **JOB)
    with pytest.raises(astra.InputError, match=r"global_batch = \[16, 256\]: one .*each in turn"):
        astra.predict("llama-3-8b", **JOB | {"global_batch": [16, 256]})
    with pytest.raises(astra.InputError, match=r"one batch is needed.*for batch in \(16, 256\)"):
        astra.plan("llama-3-8b", **JOB | {"global_batch": [16, 256]})
    with pytest.raises(astra.InputError, match=r"seq_len = '8kk': not a whole number of .* Try 8k"):
        astra.plan("llama-3-8b", **JOB | {"seq_len": "8kk"})


def test_formats_scaled_in_blocks_have_two_spellings() -> None:
    """mxfp8 is fp8 with that recipe, nvfp4 is fp4; GPUs without such units are named."""
    asked: dict[str, Any] = {"gpus": {"b200": 8}, "global_batch": 64, "seq_len": 4096, "tp": 1}
    for spelling, precision, recipe in (("mxfp8", "fp8", "mxfp8"), ("nvfp4", "fp4", None)):
        found = [
            astra.plan("llama-3-8b", **asked, precision=spelling).plans[0].plan,
            astra.plan("llama-3-8b", **asked, precision=precision).plans[0].plan,
            astra.predict("llama-3-8b", **asked, precision=spelling).plan,
        ]
        assert [(each.precision, each.fp8_recipe) for each in found] == [(precision, recipe)] * 3
    for gpus in ({"h100": 8}, {"h100": 8, "b200": 8}):
        with pytest.raises(astra.InputError, match="H100-80GB-SXM has no units for mxfp8"):
            astra.plan("llama-3-8b", **{**asked, "gpus": gpus}, precision="mxfp8")
    with pytest.raises(astra.InputError, match="the recipe mxfp8, not delayed"):
        astra.predict("llama-3-8b", **asked, precision="mxfp8", fp8_recipe="delayed")
