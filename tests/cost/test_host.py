"""What is offloaded fits into the RAM of the nodes that a file describes, in every search."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.search.test_one_type import steps_found
from tests.support.tiers import slow_after

import astra
from astra.api.answers import Answer
from astra.cli.main import run
from astra.cost.host import host_rule, is_ram_unknown
from astra.errors import InputError
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.hardware.cluster_file import read_cluster
from astra.hardware.stack import find_stack
from astra.model.zoo import find_model
from astra.money.catalogue import instances
from astra.search.one_type import search_best
from astra.search.query import query_of_space
from astra.strategy.plans import Task
from astra.strategy.space import Space, Workload, parse_set

GIB = 2**30


def pool_of(gpu: str, count: int, ram_gib: float | None) -> Pool:
    found, _ = find_gpu(gpu)
    ram = None if ram_gib is None else ram_gib * GIB
    return Pool(gpu=replace(found, node=replace(found.node, ram_bytes=ram)), count=count)


ALL_OR_NONE = ["offload_optimizer_fraction=0,1"]


def planned(model: str, seq_len: int = 2048, **more: Any) -> Answer:
    return astra.plan(model, global_batch=64, seq_len=seq_len, **more)


def cluster_of(*pools: Pool) -> Cluster:
    return Cluster(name="mine", pools=pools)


def space_of(cluster: Cluster, *settings: str) -> Space:
    task = Task(
        model=find_model("llama-2-13b"), cluster=cluster, runtime="megatron", stack="megatron"
    )
    return Space(Workload(task, 64, 4096), parse_set(settings))


@pytest.mark.parametrize("ram_gib", slow_after(1, [100, 125, 150, 200, 400]))
def test_a_search_under_a_ram_finds_what_a_rule_of_that_ram_leaves(ram_gib: float) -> None:
    stack, few = find_stack("megatron"), ("tp=1,2", "pp=1,2", "cp=1")
    known = space_of(cluster_of(pool_of("h100", 4, ram_gib)), *few)
    unknown = space_of(cluster_of(pool_of("h100", 4, None)), *few)
    rule = host_rule(0.9 * ram_gib * GIB, stack)
    by_ram = search_best(query_of_space(known, stack))
    by_rule = search_best(query_of_space(unknown, stack, user_rules=(rule,)))
    assert len(by_ram.plans()) == 10
    assert steps_found(by_ram) == pytest.approx(steps_found(by_rule))
    told = [[plan.summary() for plan in found.plans()] for found in (by_ram, by_rule)]
    assert told[0] == told[1]
    anything = search_best(query_of_space(unknown, stack))
    if ram_gib == 100:  # the figures differ, so that the test can fail
        assert not np.allclose(steps_found(anything), steps_found(by_ram))


@pytest.mark.slow
def test_no_plan_of_an_answer_offloads_more_than_nine_tenths_of_the_ram() -> None:
    free = planned("llama-2-13b", 4096, settings=ALL_OR_NONE, gpus="h100:4")
    most = max(plan.host_memory_bytes for plan in free.plans)
    assert most > 120 * GIB
    tight = planned(
        "llama-2-13b", 4096, settings=ALL_OR_NONE, cluster=cluster_of(pool_of("h100", 4, 100))
    )
    assert tight.plans and all(p.host_memory_bytes <= 90 * GIB for p in tight.plans)
    assert tight.plans[0].step_s >= free.plans[0].step_s


@pytest.mark.slow
def test_ram_that_is_not_known_is_noted_once_and_ram_that_is_known_never() -> None:
    free = planned("llama-2-13b", 4096, settings=ALL_OR_NONE, gpus="h100:4")
    notes = free.request.notes
    (said,) = [note for note in notes if "how much RAM" in note]
    some = [plan for plan in free.plans if plan.host_memory_bytes]
    assert f"plans {', '.join(str(plan.rank) for plan in some)} offload up to" in said
    assert all(any("RAM" in text for text in plan.warnings) for plan in some)
    large = planned(
        "llama-2-13b", 4096, settings=ALL_OR_NONE, cluster=cluster_of(pool_of("h100", 4, 2048))
    )
    assert [plan.summary for plan in large.plans] == [plan.summary for plan in free.plans]
    assert "RAM" not in str(large.request.notes)
    assert not any("RAM" in text for plan in large.plans for text in plan.warnings)


@pytest.mark.slow
def test_where_ram_alone_is_too_small_the_answer_says_so() -> None:
    cluster = cluster_of(pool_of("h100", 4, 100))
    found = planned("llama-30b", cluster=cluster)
    assert not found.plans and found.nothing_fits is not None
    why = found.nothing_fits
    assert why.binding.startswith("host memory: 273 GiB a node needed for offload, 90 GiB usable")
    assert why.closest is not None and why.closest.memory.fits and not why.closest.runs
    assert planned("llama-30b", cluster=cluster_of(pool_of("h100", 4, 500))).plans
    (count,) = [int(text.split()[0]) for text in why.tries if text.endswith("GPUs")]
    more = cluster_of(pool_of("h100", count, 100))
    assert planned("llama-30b", cluster=more).plans


def test_a_plan_that_is_given_says_whether_its_hosts_hold_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.toml"
    path.write_text('[[pools]]\ngpu = "h100"\ncount = 4\nram_bytes = "100 GiB"\n', encoding="utf-8")
    words = [
        "--tp",
        "4",
        "--offload-optimizer-fraction",
        "1",
        "--global-batch",
        "64",
        "--seq-len",
        "2048",
    ]
    run(["predict", "llama-30b", "--cluster", str(path), *words, "--tokens", "1B"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "but its offload DOES NOT FIT the RAM of its nodes" in shown
    assert "What a run would take and cost if the plan did fit: it DOES NOT FIT" in shown
    assert shown.count("364 GiB a node") == 2  # what it is, and one warning
    run(["predict", "llama-30b", "--gpus", "h100:4", *words])
    shown = " ".join(capsys.readouterr().out.split())
    assert "how much RAM a node of 8 H100-80GB-SXM has is not known: see that it is" in shown


@pytest.mark.slow
def test_why_not_offload_is_answered_with_the_ram() -> None:
    found = planned("llama-2-13b", 4096, cluster=cluster_of(pool_of("h100", 4, 100)))
    why = found.explain(against="offload_optimizer=1", quick=True).against
    assert why is not None and why.outcome == "memory"
    assert "host memory" in why.sentence and why.usable_bytes == 90 * GIB


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["flagscale", "any"])
def test_several_types_keep_to_the_smallest_ram(runtime: str) -> None:
    settings = ["offload_optimizer_fraction=0,1", "tp=4", "micro_batch=1", "cp=1"]

    def best(ram_gib: float | None) -> Answer:
        cluster = cluster_of(pool_of("a100-80g", 8, ram_gib), pool_of("h100", 4, 4096))
        return planned("llama-65b", cluster=cluster, settings=settings, runtime=runtime)

    free, tight = best(None), best(850)
    assert free.plans[0].host_memory_bytes > 0.9 * 850 * GIB
    assert tight.plans and all(p.host_memory_bytes <= 0.9 * 850 * GIB for p in tight.plans)


def test_a_file_names_the_ram_of_a_node_with_a_unit(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    pool = '[[pools]]\ngpu = "h100"\ncount = 8\n'
    path.write_text(f'{pool}ram_bytes = "2 TiB"\n', encoding="utf-8")
    cluster, _ = read_cluster(path)
    assert cluster.pools[0].gpu.node.ram_bytes == 2 * 1024 * GIB
    path.write_text(f"{pool}ram_gib = 2048\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"ram_gib: there is no such field.*ram_bytes"):
        read_cluster(path)
    path.write_text(f"{pool}ram_bytes = 2048\n", encoding="utf-8")
    with pytest.raises(InputError, match="not believable as an amount of memory"):
        read_cluster(path)


def test_what_the_smallest_node_for_rent_holds_is_not_warned_of() -> None:
    """Nodes that a file describes may be smaller still."""
    small = min(
        machine.ram_bytes
        for machine in instances().values()
        if (machine.gpu, machine.gpus) == ("H100-80GB-SXM", 8) and machine.ram_bytes
    )
    for need, wanted in ((0.89 * small, False), (0.91 * small, True)):
        assert is_ram_unknown(pool_of("h100", 8, None), need) is wanted
        assert is_ram_unknown(replace(pool_of("h100", 8, None), described=True), need)
        assert not is_ram_unknown(pool_of("h100", 8, 1), need)
    assert is_ram_unknown(pool_of("h800", 8, None), 1.0)  # nobody rents it out
    assert not is_ram_unknown(pool_of("h800", 8, None), 0.0)
