"""The models that come with Astra, and how one is found."""

from pathlib import Path

import pytest
from tests.support.cases import each_case

from astra.errors import InputError
from astra.files import parse_toml
from astra.model.parameters import parameters
from astra.model.zoo import FOLDER, find_model, matching_names, zoo_model, zoo_names


def test_the_zoo_has_129_models() -> None:
    assert len(zoo_names()) == 129


@each_case("name", zoo_names())
def test_the_shape_gives_the_recorded_counts_to_the_last_digit(name: str) -> None:
    recorded = parse_toml((FOLDER / f"{name}.toml").read_text(), name)
    counted = parameters(zoo_model(name))
    assert counted.total == recorded["parameters"]
    assert counted.active == recorded["active_parameters"]


@each_case("name", zoo_names())
def test_every_model_is_named_as_its_file_and_says_where_it_is_from(name: str) -> None:
    model = zoo_model(name)
    assert model.name == name
    assert model.source.kind == "published"
    assert model.source.where
    assert model.source.certainty in ("high", "medium", "low")
    assert model.assumed == ()


def test_a_wrong_recorded_count_would_be_noticed(tmp_path: Path) -> None:
    text = (FOLDER / "llama-3-8b.toml").read_text()
    path = tmp_path / "llama.toml"
    path.write_text(text.replace("parameters = 8_030_261_248", "parameters = 8_030_261_249"))
    with pytest.raises(InputError, match=r"parameters = 8,030,261,249 disagrees .* 8,030,261,248"):
        find_model(str(path))


def test_counts_known_from_elsewhere() -> None:
    """From the papers and model cards, not from our files."""
    assert parameters(zoo_model("llama-3-8b")).total == 8_030_261_248
    assert parameters(zoo_model("gpt2")).total == 124_439_808
    assert parameters(zoo_model("mixtral-8x7b")).total == 46_702_792_704
    assert round(parameters(zoo_model("deepseek-v3")).active / 1e9) == 38  # 37B without embedding


@pytest.mark.parametrize(
    "text",
    [
        "llama-3-70b",
        "LLAMA-3-70B",
        "llama_3_70b",
        " llama 3 70b ",
        "meta-llama/Meta-Llama-3-70B",
        "Meta-llama/meta-llama-3-70b",
    ],
)
def test_names_are_forgiving(text: str) -> None:
    assert find_model(text).name == "llama-3-70b"


def test_an_unknown_name_is_answered_with_near_ones() -> None:
    with pytest.raises(InputError, match=r"unknown model 'lama-3-8b'. Did you mean .*llama-3-8b"):
        find_model("lama-3-8b")


def test_an_unknown_hugging_face_id_is_not_fetched() -> None:
    with pytest.raises(InputError, match="nothing is fetched"):
        find_model("nobody/no-such-model")


@each_case(
    "text, said",
    [
        ("", "no model given"),
        ("   ", "no model given"),
        ("\0", "neither a model's name nor a path"),
        ("a" * 5000, "neither a model's name nor a path"),
        ("no/such/file", "no such file"),
        ("./x.json", "no such file"),
        ("x.toml", "no such file"),
    ],
)
def test_nonsense_is_an_input_error(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        find_model(text)


def test_a_folder_stands_for_the_config_in_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, '
        '"num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 32}'
    )
    assert find_model(str(tmp_path)) == find_model(str(tmp_path / "config.json"))
    assert find_model(str(tmp_path)).name == "llama-2k"


def test_a_folder_without_a_config_and_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no config\.json"):
        find_model(str(tmp_path))
    other = tmp_path / "model.safetensors"
    other.write_bytes(b"\x00\xff")
    with pytest.raises(InputError, match=r"a model is a \.json"):
        find_model(str(other))


def test_one_model_is_found_without_reading_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    zoo_model.cache_clear()
    read: list[str] = []
    original = Path.read_text

    def noted(self: Path, *args: str, **kwargs: str) -> str:
        read.append(self.name)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", noted)
    find_model("llama-3-8b")
    assert read == ["llama-3-8b.toml"]


def test_a_filter_looks_at_names_families_and_ids() -> None:
    assert matching_names("") == zoo_names()
    assert "qwen3-8b" in matching_names("Qwen3")
    assert "moonlight-16b-a3b" in matching_names("deepseek_v3")
    assert matching_names("no such thing") == ()


def test_numbers_in_names_sort_as_numbers() -> None:
    names = zoo_names()
    assert names.index("llama-2-7b") < names.index("llama-2-13b") < names.index("llama-2-70b")


@pytest.mark.parametrize(
    ("name", "tokens", "windowed"),
    [
        ("gemma-2-9b", 4096, 21),
        ("gemma-3-1b", 512, 22),
        ("gemma-3-27b", 1024, 52),
        ("gpt-oss-20b", 128, 12),
        ("mistral-7b", 4096, 32),
        ("llama-4-scout-17b-16e", 8192, 36),
    ],
)
def test_windows_are_where_the_papers_put_them(name: str, tokens: int, windowed: int) -> None:
    model = zoo_model(name)
    assert model.window is not None
    assert model.window.tokens == tokens
    layers = range(model.layers) if model.window.layers is None else model.window.layers
    assert len(layers) == windowed
