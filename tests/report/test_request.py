"""JSON's `request` is the query: what is written of one is read back into the same."""

import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.cases import each_case

import astra
from astra.api.plans import query_of
from astra.errors import InputError
from astra.notes import NoteCode, has
from astra.report.request import read_request, request_of
from astra.search.query import Query
from astra.strategy.plan import Plan

PLAIN: dict[str, Any] = {
    "runtime": None,
    "stack": None,
    "precision": "bf16",
    "settings": (),
    "rules": None,
    "top": 10,
    "margin": 0.05,
    "risk": "normal",
    "max_gpus": None,
    "use_all": False,
    "objective": None,
    "min_tokens_per_s": 0.0,
    "fold": True,
    "exact": False,
    "pipeline_model": "simulated",
    "cluster": None,
    "more": {},
}
# Not in the request: how the question was read, and what is worked out of the rest.
NOT_KEPT = ("notes", "user_rules", "suggest", "faster_than_s")


def query(**said: Any) -> Query:
    return query_of("llama-3-8b", **{**PLAIN, "global_batch": 64, "seq_len": 4096, **said})


def plan_of(asked: Query) -> Plan:
    """Any plan of the question's model and machines: a result has them in full."""
    plan = astra.predict("llama-3-8b", gpus="h100:8", global_batch=64, seq_len=4096).plan
    return msgspec.structs.replace(plan, cluster=asked.cluster, mtp_layers=asked.mtp_layers)


def read_back(asked: Query) -> Query:
    written = msgspec.json.decode(msgspec.json.encode(request_of(asked)))
    return read_request(written, plan_of(asked), "result.json")


def assert_same(asked: Query, again: Query) -> None:
    for each in fields(Query):
        before, after = getattr(asked, each.name), getattr(again, each.name)
        if each.name == "cluster":
            assert (before.pools, before.max_gpus) == (after.pools, after.max_gpus)
        elif each.name == "money" and asked.money and asked.goals:  # a date, as hours
            assert msgspec.structs.replace(before, deadline=asked.goals.deadline_h) == after
        elif each.name not in NOT_KEPT:
            assert before == after, each.name


@each_case("seed", range(40))
def test_a_query_is_read_back_as_it_was_asked(seed: int) -> None:
    dice = random.Random(seed)
    said: dict[str, Any] = {
        "gpus": dice.choice(["h100:8", "h100:64,a100-80g:16", "l4:8"]),
        "global_batch": dice.choice([64, 96]),
        "seq_len": dice.choice([2048, 8192]),
        "runtime": dice.choice([None, "megatron", "fsdp", "any"]),
        "settings": dice.choice([(), ("tp=1,2",), ("mb=1", "recompute=none,full:block:4")]),
        "top": dice.choice([1, 10]),
        "margin": dice.choice([0.05, 0.2]),
        "max_gpus": dice.choice([None, 16]),
        "fold": dice.random() < 0.5,
        "exact": dice.random() < 0.5,
        "pipeline_model": dice.choice(["simulated", "paper"]),
    }
    objective = dice.choice(["time", "gpus", "money", "frontier"])
    if objective == "gpus":
        said["min_tokens_per_s"] = dice.choice([0.0, 1000.0])
    if objective in ("money", "frontier"):
        prices = {"price": "h100=2,a100-80g=1,l4=0.5"}
        goals: list[dict[str, Any]] = [
            {},
            {"budget": "10k"},
            {"deadline": "3d"},
            {"mixed": False, "mtbf": 5000},
        ]
        said["more"] = {"tokens": "1B", **dice.choice([prices, {}]), **dice.choice(goals)}
    asked = query(**said, objective=objective)
    assert_same(asked, read_back(asked))


def test_machines_that_a_file_describes_are_read_back_from_the_plans(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text('[[pools]]\ngpu = "h100"\ncount = 16\nnic_bytes_per_s = "10 Gbps"\n')
    asked = query(gpus=None, cluster=path, objective="money", more={"tokens": "1B"})
    (pool,) = read_back(asked).cluster.pools
    assert pool.gpu.node.nic_bytes_per_s == 10e9 / 8


def test_rules_are_read_again_and_missed_where_their_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "my.rules"
    path.write_text("$tp > 4\n")
    asked = query(gpus="h100:8", rules=path)
    assert [rule.name for rule in read_back(asked).user_rules] == [
        rule.name for rule in asked.user_rules
    ]
    path.unlink()
    again = read_back(asked)
    assert not again.user_rules and has(again.notes, NoteCode.RULES_GONE)


def test_a_request_of_another_shape_is_refused_with_its_place() -> None:
    asked = query(gpus="h100:8")
    written = msgspec.to_builtins(request_of(asked)) | {"memory_margin": "much"}
    with pytest.raises(InputError, match=r"result\.json: request"):
        read_request(written, plan_of(asked), "result.json")


def test_a_request_that_says_nothing_asks_for_the_plan_itself() -> None:
    asked = query(gpus="h100:8")
    again = read_request({"set": []}, plan_of(asked), "result.json")
    assert (again.cluster, again.global_batch, again.runtimes) == (
        asked.cluster,
        asked.global_batch,
        ("megatron",),
    )
