"""YAML of jobs: read as the frameworks read it, and refused with its place where it is none."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.imports.test_import import EXPERIMENT, TASK, flagscale_job
from tests.support.cases import each_case

from astra.api import import_job
from astra.errors import InputError
from astra.export.targets import TARGETS, export_files
from astra.export.yaml_text import yaml_text
from astra.hardware.gpus_option import parse_gpus
from astra.imports.yaml_file import MAX_BYTES, parse_yaml, settings_of
from astra.model.zoo import find_model
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.plan import Runtime


def settings(text: str) -> dict[str, str]:
    return settings_of(parse_yaml(text, "job.yaml"))


@each_case(
    "line, word",
    [
        ('name: "llama #3"', "llama #3"),
        ("name: llama#3  # the third", "llama#3"),
        ("name: 'it''s'", "it's"),
        ('"name": 4', "4"),
        ("'name' : 4", "4"),
        ("name:\n    4", "4"),
        ("name: [mlp, moe]", "[mlp,moe]"),
        ("name:\n  - mlp\n  - moe", "[mlp,moe]"),
        ("name:\n  - {path: a, weight: 1}\n  - path: b", "[{path:a,weight:1},{path:b}]"),
        ("name: >\n    a\n    b", "a b\n"),
        ("name: ${oc.env:SIZE}", "${oc.env:SIZE}"),
        ("base: &size 4\n  name: *size", "4"),
    ],
)
def test_values_are_what_yaml_says_they_are(line: str, word: str) -> None:
    assert settings(f"model:\n  {line}\n")["model.name"] == word


@each_case(
    "written, word",
    [
        ("1e-5", "1e-05"),
        ("1E5", "100000.0"),
        ("-6e-1", "-0.6"),
        ("1.5e3", "1500.0"),
        ("1e", "1e"),
        ("on", "true"),
        ("No", "false"),
        ('"no"', "no"),
        ("010", "8"),
        ("0x10", "16"),
        ("1_000", "1000"),
        ("2024-01-01", "2024-01-01"),
        ("none", "none"),
    ],
)
def test_words_are_numbers_and_flags_where_omegaconf_reads_such(written: str, word: str) -> None:
    """As OmegaConf 2.3 read them, one by one: YAML 1.1, but for exponents and dates."""
    assert settings(f"model:\n  name: {written}\n") == {"model.name": word}


def test_what_is_null_or_empty_says_nothing() -> None:
    assert settings("a: null\nb: ~\nc:\nd: {}\nmodel:\n  layers: 4\n") == {"model.layers": "4"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model:\n  layers: 4\n  layers: 5\n", "line 3, column 3: .*'layers' stands twice"),
        ("model: {layers: 4\n", "line 2, column 1: not valid YAML"),
        ("model:\n\tlayers: 4\n", "line 2, column 1: not valid YAML"),
        ("a: &a [*a]\n", "line 1, column 8: .*an alias stands in itself"),
        ("a: *b\n", "line 1, column 4: .*undefined alias"),
        ("a: !!python/object/apply:os.system ['true']\n", "line 1, column 4: .*tags are not read"),
        ("a: !!bool maybe\n", "tags are not read"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: .*another document"),
        ("? [a]\n: 1\n", "unhashable key"),
        ("a: \x00\n", "not valid YAML"),
        (f"a: {'9' * 5000}\n", "not valid YAML"),
        pytest.param("[" * 5000, "nested too deep", marks=pytest.mark.slow),
        ("", "holds no settings"),
        ("- a\n- b\n", "holds no settings"),
        ("just words\n", "holds no settings"),
        ("#" * (MAX_BYTES + 1), "more than 1 MiB"),
        pytest.param(
            "a: [" + "0," * 200_000 + "]", "more than 100,000 values", marks=pytest.mark.slow
        ),
    ],
)
def test_what_is_no_configuration_is_an_input_error(text: str, says: str) -> None:
    with pytest.raises(InputError, match=rf"job\.yaml: .*{says}"):
        settings(text)


@pytest.mark.parametrize("link", ["[{}]", "{{<<: [{}]}}"])
def test_aliases_that_multiply_are_an_input_error(link: str) -> None:
    """A billion values, or keys merged as often, out of a few hundred bytes."""
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, 10):
        held = link.format(",".join([f"*a{level - 1}"] * 10))
        lines.append(f"a{level}: &a{level} {held}")
    with pytest.raises(InputError, match="more than 100,000 values"):
        settings("\n".join(lines))


def test_merged_keys_give_way_to_own_ones() -> None:
    """However deep the table lies that is merged: none of its keys stands twice."""
    text = "a: {b: &b {x: 1, y: 2}, m: &m {<<: *b, x: 3}}\nc: {<<: *m, z: 4}\n"
    found = settings(text)
    assert (found["a.m.x"], found["c.x"], found["c.y"], found["c.z"]) == ("3", "3", "2", "4")


names = st.text("abcdefgh_", min_size=1, max_size=8).filter(lambda name: name not in ("e", "f"))


@given(st.dictionaries(names, st.integers(-(10**9), 10**9), min_size=1))
def test_numbers_that_yaml_writes_are_read_back(table: dict[str, int]) -> None:
    for style in (True, False):
        written = yaml.safe_dump({"model": table}, default_flow_style=style)
        assert settings(written) == {f"model.{key}": str(value) for key, value in table.items()}


@given(st.text(max_size=60))
def test_any_text_is_settings_or_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        settings(text)


def test_a_job_is_read_whatever_style_it_is_written_in(tmp_path: Path) -> None:
    """Blocks as people write them, and the same in quotes and braces."""
    plain = import_job(flagscale_job(tmp_path), gpus="h100")
    for braces in (True, False):
        job = [
            yaml.safe_dump(yaml.safe_load(text), default_flow_style=braces)
            for text in (EXPERIMENT, TASK)
        ]
        quoted = job[1].replace("num_layers:", '"num_layers":')
        assert import_job(flagscale_job(tmp_path, job[0], quoted), gpus="h100") == plain


def test_the_error_names_the_file_and_the_line(tmp_path: Path) -> None:
    twice = TASK.replace("  num_layers: 32\n", "  num_layers: 32\n  num_layers: 48\n")
    with pytest.raises(InputError, match=r"7b\.yaml: line 13, column 3: .*'num_layers' stands"):
        import_job(flagscale_job(tmp_path, task=twice), gpus="h100")


# ------------------------------------------------------------------ what exports write

words = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=12)
scalars = st.none() | st.booleans() | st.integers() | words
keys = st.from_regex(r"[a-z_]{3,9}", fullmatch=True).filter(lambda key: yaml.safe_load(key) == key)
trees = st.recursive(
    scalars | st.lists(scalars, max_size=3),
    lambda inner: st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(keys, trees, min_size=1))
def test_pyyaml_reads_back_what_exports_are_written_with(tree: dict[str, Any]) -> None:
    assert yaml.safe_load(yaml_text(tree)) == tree == parse_yaml(yaml_text(tree), "job.yaml")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("launcher", ["torchrun", "skypilot", "kubernetes"])
def test_pyyaml_reads_every_yaml_file_of_an_export(target: str, launcher: str) -> None:
    runtime: Runtime = TARGETS[target].takes[0]
    cluster, _ = parse_gpus("h100:16")
    plan_settings = PlanSettings(global_batch=64, sequence_parallel=False, overlap_tp=False)
    plan = complete(plan_settings, find_model("llama-3-8b"), cluster, runtime).plan
    if target == "flagscale" and launcher != "torchrun":
        return
    files = export_files(plan, target, launcher=launcher, learning_rate=1e-5)
    for name in (name for name in files if name.endswith((".yaml", ".yml"))):
        found = yaml.safe_load(files[name])
        assert isinstance(found, dict) and found
    if target == "flagscale":
        table = parse_yaml(files["train/plan.yaml"], "train/plan.yaml")
        assert 1e-5 in [value for section in table.values() for value in section.values()]
