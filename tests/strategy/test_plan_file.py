"""Reading plans back: three kinds of file, and everything that can be wrong with one."""

import copy
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategy.mixed_plans import mixed_plan, small_model

from astra.errors import InputError
from astra.export.targets import plan_json
from astra.hardware.gpus_option import parse_gpus
from astra.strategy.complete import PlanSettings, complete
from astra.strategy.plan import Plan
from astra.strategy.plan_file import plan_from_json, read_plan, read_plans
from astra.strategy.rules.registry import broken_rules


def plain_plan() -> Plan:
    cluster, _ = parse_gpus("h100:16,a100-80g:16")
    settings = PlanSettings(global_batch=64, tp=4, layers_per_stage=(3, 3, 3, 3))
    return complete(settings, small_model(experts=8), cluster, "flagscale").plan


PLAN = plain_plan()
RAW: dict[str, Any] = msgspec.to_builtins(PLAN)


def written(folder: Path, text: str | bytes, name: str = "plan.json") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def changed(**fields: Any) -> dict[str, Any]:
    return copy.deepcopy(RAW) | fields


def with_segment(place: int = 1, **fields: Any) -> dict[str, Any]:
    raw = copy.deepcopy(RAW)
    raw["pipelines"][0]["segments"][place].update(fields)
    return raw


def without(*path: Any) -> dict[str, Any]:
    raw = copy.deepcopy(RAW)
    node = raw
    for step in path[:-1]:
        node = node[step]
    del node[path[-1]]
    return raw


# ------------------------------------------------------------------ the three kinds of file


def test_a_bare_plan_is_read(tmp_path: Path) -> None:
    assert read_plan(written(tmp_path, plan_json(PLAN))) == PLAN


def test_a_priced_plan_is_read(tmp_path: Path) -> None:
    priced = {"rank": 1, "summary": "tp 4 pp 4", "plan": RAW, "gpus": {}, "step_s": 7.81}
    assert read_plan(written(tmp_path, json.dumps(priced))) == PLAN


def test_a_search_result_is_read_by_rank(tmp_path: Path) -> None:
    plans = [mixed_plan(seed) for seed in range(3)]
    listed = [{"rank": i + 1, "plan": msgspec.to_builtins(p)} for i, p in enumerate(plans)]
    path = written(tmp_path, json.dumps({"request": {}, "search": {}, "plans": listed}))
    assert [read_plan(path, rank) for rank in (1, 2, 3)] == plans
    assert read_plans(path) == plans


def test_a_result_may_list_bare_plans(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps({"plans": [RAW, RAW]}))
    assert read_plans(path) == [PLAN, PLAN]


def test_a_search_that_found_nothing_holds_no_plan(tmp_path: Path) -> None:
    path = written(tmp_path, '{"plans": [], "nothing_fits": {}}')
    assert read_plans(path) == []
    with pytest.raises(InputError, match="no rank 1; the file holds 0 plans"):
        read_plan(path)


@pytest.mark.parametrize("rank", [0, 2, -1, 10**9])
def test_a_rank_that_is_not_there_is_an_error(tmp_path: Path, rank: int) -> None:
    with pytest.raises(InputError, match=f"no rank {rank}; the file holds 1 plan."):
        read_plan(written(tmp_path, plan_json(PLAN)), rank)


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_any_plan_that_is_written_is_read_back(seed: int) -> None:
    plan = mixed_plan(seed)
    assert plan_from_json(json.loads(plan_json(plan)), "plan") == plan


def test_the_largest_batch_of_the_command_line_can_be_written_and_read() -> None:
    cluster, _ = parse_gpus("h100:1")
    plan = complete(PlanSettings(global_batch=10**7), small_model(), cluster).plan
    assert plan_from_json(json.loads(plan_json(plan)), "plan") == plan


# ------------------------------------------------------------------ what is wrong, and where

WRONG: list[tuple[Any, str]] = [
    (with_segment(tp="8"), "pipelines[0].segments[1].tp = '8': expected `int`, got `str`"),
    (with_segment(tp=0), "pipelines[0].segments[1].tp = 0: expected `int` >= 1"),
    (with_segment(tp=-4), "pipelines[0].segments[1].tp = -4"),
    (with_segment(tp=2.5), "pipelines[0].segments[1].tp = 2.5"),
    (with_segment(tp=None), "pipelines[0].segments[1].tp = None"),
    (with_segment(tp=True), "pipelines[0].segments[1].tp = True"),
    (with_segment(tp=10**30), "pipelines[0].segments[1].tp = 1000000"),
    (with_segment(tp=[1]), "pipelines[0].segments[1].tp = [1]"),
    (with_segment(tpp=1), "pipelines[0].segments[1].tpp: there is no such field. Did you mean tp"),
    (with_segment(layers=[3, "x"]), "pipelines[0].segments[1].layers[1] = 'x'"),
    (with_segment(layers=[3]), "pipelines[0].segments[1].layers has 1 entries for 2 stages"),
    (with_segment(stages=3), "layers has 2 entries for 3 stages; give one per stage"),
    (with_segment(layers=[]), "layers has 0 entries for 2 stages"),
    (with_segment(layers=[-1, 7]), "pipelines[0].segments[1].layers[0] = -1"),
    (
        with_segment(gpu="B200"),
        "pipelines[0].segments[1].gpu = 'B200' is not in the plan's cluster",
    ),
    (with_segment(recompute="ful"), "pipelines[0].segments[1].recompute = 'ful': not a recompute"),
    (with_segment(recompute="selective:mpl"), "Did you mean mlp"),
    (without("pipelines", 0, "segments", 1, "tp"), "pipelines[0].segments[1].tp is missing"),
    (without("pipelines", 0, "replicas"), "pipelines[0].replicas is missing"),
    (without("model"), "model is missing"),
    (without("global_batch"), "global_batch is missing"),
    (without("model", "heads"), "model.heads is missing"),
    (without("cluster", "pools", 0, "gpu", "link"), "cluster.pools[0].gpu.link is missing"),
    (changed(pipelines=[]), "pipelines is empty"),
    (
        changed(pipelines=[{**RAW["pipelines"][0], "segments": []}]),
        "pipelines[0].segments is empty",
    ),
    (changed(pipelines=7), "pipelines = 7"),
    (changed(sharding="optimiser"), "sharding = 'optimiser'"),
    (changed(precision="fp64"), "precision = 'fp64'"),
    (changed(runtime="megatronn"), "runtime = 'megatronn'"),
    (changed(sequence_paralel=True), "Did you mean sequence_parallel"),
    (changed(moment_dtypes=["fp32"]), "moment_dtypes"),
    (changed(offload_activations=["core_atn"]), "offload_activations[0]"),
    (changed(offload_optimizer_fraction=1.5), "offload_optimizer_fraction = 1.5"),
    (changed(offload_optimizer_fraction=float("nan")), "offload_optimizer_fraction = nan"),
    (changed(capacity_factor=0), "capacity_factor = 0"),
    (changed(capacity_factor=float("inf")), "capacity_factor = inf"),
    (changed(global_batch=10**20), "global_batch"),
    (changed(chunk_layers=[1, 2]), "chunk_layers has 2 entries; pp 4 x vpp 1 needs 4"),
    (changed(chunk_layers=[3, 3, 3, 4]), "chunk_layers gives stage 3 4 layers, its segment says 3"),
    (
        changed(
            chunk_layers=[3, 3, 3, 3],
            pipelines=[*RAW["pipelines"], *with_segment(layers=[2, 4])["pipelines"]],
        ),
        "chunk_layers holds for all pipelines, and their layers differ",
    ),
    (changed(model={**RAW["model"], "kv_heads": 3}), "model: kv_heads = 3 does not divide heads"),
    (changed(model={**RAW["model"], "layers": 10**9}), "model: layers = 1000000000 is more than"),
    (changed(model={**RAW["model"], "rope_theta": float("inf")}), "model.rope_theta = inf"),
    (changed(model={**RAW["model"], "rope_theta": float("nan")}), "model.rope_theta = nan"),
    (changed(cluster={**RAW["cluster"], "pools": []}), "cluster: pools: no GPUs at all"),
    (changed(cluster={**RAW["cluster"], "pools": RAW["cluster"]["pools"][:1] * 2}), "there twice"),
    (changed(cluster=None), "cluster = None"),
    (changed(model="llama-3-8b"), "model = 'llama-3-8b'"),
]


@pytest.mark.parametrize(("raw", "said"), WRONG, ids=[said[:60] for _, said in WRONG])
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, raw: object, said: str) -> None:
    path = written(tmp_path, json.dumps(raw))
    with pytest.raises(InputError) as caught:
        read_plan(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and said in text
    assert len(text) < 700 and "\n" not in text


def test_the_place_of_a_plan_inside_a_result_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps({"plans": [{"plan": RAW}, {"plan": with_segment(tp=0)}]}))
    with pytest.raises(InputError, match=r"plans\[1\]\.plan: pipelines\[0\]\.segments\[1\]\.tp"):
        read_plan(path, 2)
    assert read_plan(path, 1) == PLAN


FILES: list[tuple[str | bytes, str]] = [
    ("", "the file is empty"),
    (" \n\t", "the file is empty"),
    ("{", "was it cut off?"),
    (plan_json(PLAN)[:-20], "was it cut off?"),
    (plan_json(PLAN)[: len(plan_json(PLAN)) // 2], "not valid JSON"),
    ("{'plan': 1}", "line 1, column 2: not valid JSON"),
    ("plan: 1", "line 1, column 1: not valid JSON"),
    ("[]", "holds no plan: [] has no field plans, plan or pipelines"),
    ("{}", "holds no plan: there is no field plans, plan or pipelines"),
    ("null", "holds no plan"),
    ('"pipelines"', "holds no plan"),
    ("17", "holds no plan"),
    ('{"plan": 3}', "plan: expected `object`, got `int`"),
    ('{"plan": null}', "plan: expected `object`, got `null`"),
    ('{"plans": [1]}', "plans[0].plan: expected `object`, got `int`"),
    ('{"plans": {}}', "holds no plan"),
    ("[" * 100_000, "nested too deep"),
    ('{"plan":' * 50_000, "nested too deep"),
    ('{"pipelines": ' + "9" * 100_000 + "}", "not valid JSON"),
    (b"\xff\xfe\x00\x01", "not UTF-8 text"),
    (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "not UTF-8 text"),
    (b"\x00" * 1000, "not valid JSON"),
    ("\ufeff{}", "not valid JSON"),
    (json.dumps(changed(stack="\ud800")), "not Unicode"),
    (json.dumps(changed(**{"\ud800": 1})), "not Unicode"),
]


@pytest.mark.parametrize(("text", "said"), FILES, ids=range(len(FILES)))
def test_a_file_that_is_no_plan_is_an_input_error(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    path = written(tmp_path, text)
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        read_plan(path)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 700
    assert time.monotonic() - start < 2


def test_what_is_not_a_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_plan(tmp_path / "missing.json")
    with pytest.raises(InputError, match="is a folder"):
        read_plan(tmp_path)
    with pytest.raises(InputError, match="is a device"):
        read_plan(Path("/dev/zero"))
    with pytest.raises(InputError, match="cannot be read"):
        read_plan(tmp_path / ("x" * 5000))
    with pytest.raises(InputError, match="not the name of a file"):
        read_plan(Path("a\0b"))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match="cannot be read"):
        read_plan(tmp_path / "loop")


@pytest.mark.slow
def test_a_file_of_very_many_stages_is_refused_in_time(tmp_path: Path) -> None:
    raw = changed(pipelines=[{**RAW["pipelines"][0]}])
    raw["pipelines"][0]["segments"] = [
        {**RAW["pipelines"][0]["segments"][0], "stages": 300_000, "layers": [0] * 300_000}
    ]
    start = time.monotonic()
    plan = read_plan(written(tmp_path, json.dumps(raw)))
    assert broken_rules(plan)
    assert time.monotonic() - start < 5


def test_products_that_overflow_are_refused(tmp_path: Path) -> None:
    """Degrees of 2^22 each make 2^66 GPUs, which is 4 in 64 bits."""
    raw = with_segment(0, tp=2**22, dp=2**22)
    raw["cp"] = 2**22
    with pytest.raises(InputError, match="more than any cluster"):
        read_plan(written(tmp_path, json.dumps(raw)))
    raw = changed(micro_batch=10**7)
    raw["pipelines"][0].update(replicas=10**3, micro_batches=10**7)
    with pytest.raises(InputError, match="more samples than the global batch"):
        read_plan(written(tmp_path, json.dumps(raw)))


# ------------------------------------------------------------------ mutations


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON document."""
    found = [path] if path else []
    items = enumerate(node) if isinstance(node, list) else []
    for key, value in node.items() if isinstance(node, dict) else items:
        found += places(value, (*path, key))
    return found


PLACES = places(RAW)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from([0, 1, -1, 10**7, 10**18, 1e308, "none", "H100-80GB-SXM", "\ud800", "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


def mutate(raw: Any, path: tuple[Any, ...], how: str, value: Any) -> None:
    for step in path[:-1]:
        raw = raw[step]
    if how == "delete":
        del raw[path[-1]]
    elif how == "double" and isinstance(raw, list):
        raw.append(copy.deepcopy(raw[path[-1]]))
    elif how == "rename" and isinstance(raw, dict):
        raw[f"{path[-1]}x"] = raw.pop(path[-1])
    else:
        raw[path[-1]] = value


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PLACES),
            st.sampled_from(["delete", "replace", "replace", "double", "rename"]),
            anything,
        ),
        min_size=1,
        max_size=3,
    )
)
@settings(max_examples=150, deadline=None)
def test_a_mutated_plan_is_a_plan_or_an_input_error(
    changes: list[tuple[tuple[Any, ...], str, Any]],
) -> None:
    raw = copy.deepcopy(RAW)
    for path, how, value in changes:
        try:
            mutate(raw, path, how, value)
        except (KeyError, IndexError, TypeError):  # an earlier change took the place away
            continue
    try:
        plan = plan_from_json(raw, "plan")
    except InputError as error:
        assert "\n" not in str(error) or len(str(error)) < 2000
        return
    broken_rules(plan)  # what is a plan can be judged, explained and written
    assert plan_from_json(json.loads(plan_json(plan)), "plan") == plan


@given(at=st.integers(0, 10**6), patch=st.binary(max_size=4))
@settings(max_examples=150, deadline=None)
def test_a_file_with_a_few_wrong_bytes_is_a_plan_or_an_input_error(
    at: int, patch: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = bytearray(plan_json(PLAN).encode())
    at %= len(text)
    text[at : at + len(patch)] = patch
    path = written(tmp_path_factory.mktemp("plan"), bytes(text))
    try:
        broken_rules(read_plan(path))
    except InputError as error:
        assert str(error).startswith(str(path))
