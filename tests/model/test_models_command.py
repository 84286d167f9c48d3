"""`astra models`, as a user types it."""

import json
from pathlib import Path

import pytest

from astra.cli.main import run
from astra.errors import InputError
from astra.model.zoo import zoo_names
from astra.report.models import positions, short


def test_the_list_shows_every_name_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(zoo_names())
    assert "\x1b" not in "".join(lines)
    assert not any(line.endswith(" ") for line in lines)


def test_the_list_as_json_has_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert [each["name"] for each in models] == list(zoo_names())
    assert {"parameters", "active_parameters", "layers", "hidden", "source"} <= set(models[0])


def test_a_filter_narrows_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "--filter", "gemma-3", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert [each["name"] for each in models] == [
        "gemma-3-1b",
        "gemma-3-4b",
        "gemma-3-12b",
        "gemma-3-27b",
    ]


def test_one_model_as_json_has_the_contract_s_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "deepseek-v3", "--json", "--seq-len", "8192"]) == 0
    model = json.loads(capsys.readouterr().out)
    assert model["name"] == "deepseek-v3"
    assert model["parameters"] == 671_026_419_200
    assert model["active_parameters"] == 37_552_297_472
    assert (model["layers"], model["hidden"]) == (61, 7168)
    assert model["source"]["certainty"] == "high"
    assert sum(model["parameters_by_part"].values()) == model["parameters"]
    assert [kind["layers"] for kind in model["layer_kinds"]] == [3, 58]
    flops = model["flops_per_token"]
    assert flops["seq_len"] == 8192
    assert flops["train"] == 3 * flops["forward"]


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt-oss-20b", "deepseek-v2-lite", "gpt2"])
def test_one_model_for_people_shows_counts_and_source(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["models", name]) == 0
    shown = capsys.readouterr().out
    assert name in shown.splitlines()[0]
    for words in ("parameters by part", "kinds of layers", "source: published"):
        assert words in shown


def test_a_file_of_one_s_own_shows_what_was_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "[odd].toml"
    path.write_text("layers = 2\nhidden = 64\nheads = 4\nffn = 128\nvocab = 100\nmtp_layers = 1\n")
    assert run(["models", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("[odd]")
    assert "assumed: kv_heads = 4: not given" in shown
    assert "1 further tokens" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-model"], "unknown model"),
        (["--filter", "zzzz"], "no known model has 'zzzz'"),
        (["llama-3-8b", "--filter", "x"], "--filter narrows the list"),
        (["llama-3-8b", "--seq-len", "0"], "--seq-len 0: a whole number"),
        (["llama-3-8b", "--seq-len", "many"], "--seq-len many"),
        (["llama-3-8b", "--seq-len", "9" * 400], "a whole number from 1"),
    ],
)
def test_bad_input_is_answered_with_a_reason(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(["models", *arguments])


def test_big_numbers_are_shown_short() -> None:
    assert [short(number) for number in (8_030_261_248, 13_015_864_320, 671_026_419_200)] == [
        "8.03B",
        "13.0B",
        "671B",
    ]
    assert [positions(number) for number in (131_072, 10_485_760, 2047, None)] == [
        "128k",
        "10M",
        "2047",
        "",
    ]
