"""The enumerated space against plain loops: every plan once, and nothing else."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.strategy.mixed_plans import small_model
from tests.support.cases import each_case
from tests.support.tiers import slow_after

from astra.export.targets import export_files
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Cluster, Pool
from astra.hardware.topology import allowed_counts
from astra.model.flops import forward_flops
from astra.model.layer_kinds import has_experts
from astra.model.zoo import find_model
from astra.strategy.enumerate import ROWS_PER_TABLE, enumerate_layouts
from astra.strategy.plan import Plan, Runtime, check_structure
from astra.strategy.plan_file import plan_from_json
from astra.strategy.plans import COLUMNS, Plans, Task, code, concatenate, plan_at
from astra.strategy.rules.registry import check, rules_for
from astra.strategy.space import Space, Workload, parse_set
from astra.strategy.variants import enumerate_plans

Key = tuple[Any, ...]


def workload(
    layers: int = 4,
    experts: int = 0,
    gpus: int = 8,
    batch: int = 4,
    seq_len: int = 2048,
    runtime: Runtime = "megatron",
    gpu: str = "h100",
) -> Workload:
    cluster = Cluster(name="small", pools=(Pool(gpu=find_gpu(gpu)[0], count=gpus),))
    task = Task(model=small_model(layers, experts), cluster=cluster, runtime=runtime)
    return Workload(task, batch, seq_len)


@cache
def table_of(asked: Workload, *sets: str) -> Plans:
    found = list(enumerate_plans(Space(asked, parse_set(sets))))
    return concatenate(found)


def rows_as_bytes(table: Plans) -> list[bytes]:
    """Every column of a plan, in one piece; a chunking as its layers."""
    columns = [np.reshape(getattr(table, name), (-1, len(table))) for name in COLUMNS]
    chunks = [str(table.chunk_layers[row]) if row >= 0 else "" for row in table.chunking]
    skip = COLUMNS.index("chunking")
    parts = [column.T for place, column in enumerate(columns) if place != skip]
    return [
        b"|".join(part[row].tobytes() for part in parts) + chunks[row].encode()
        for row in range(len(table))
    ]


def keys_of(table: Plans, asked: Workload) -> Counter[Key]:
    return Counter(key_of(plan_at(table, row, asked.task)) for row in range(len(table)))


def key_of(plan: Plan) -> Key:
    """What distinguishes plans of the space, in a person's words."""
    pipeline = plan.pipelines[0]
    segment = pipeline.segments[0]
    return (
        segment.tp,
        plan.cp,
        plan.pp,
        plan.micro_batch,
        plan.dp,
        pipeline.layers,
        plan.vpp,
        plan.chunk_layers,
        segment.recompute,
        plan.ep,
        plan.etp,
        plan.sharding,
        plan.cp_comm_type,
        plan.overlap_ep,
        plan.offload_optimizer_fraction,
        plan.microbatch_group,
        plan.offload_layers,
    )


# ------------------------------------------------------------------ the same in plain loops


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def compositions(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """All ways to give every stage at least one layer."""
    if stages == 1:
        yield (layers,)
        return
    for first in range(1, layers - stages + 2):
        for rest in compositions(layers - first, stages - 1):
            yield (first, *rest)


def is_tried(split: tuple[int, ...], layers: int) -> bool:
    """The splits of the documentation: even, uneven ends, the left-over in the middle."""
    stages = len(split)
    least, extra = divmod(layers, stages)
    before = (stages - extra) // 2
    if split == tuple(least + (before <= k < before + extra) for k in range(stages)):
        return True
    if stages == 1:
        return False
    middles = {-(-(layers + more) // stages) for more in (0, 1, 2)}
    inner = set(split[1:-1])
    return any(
        inner <= {middle} and 1 <= split[0] <= middle and 1 <= split[-1] <= middle
        for middle in middles
    )


def pipelines(asked: Workload, pp: int, virtual: bool) -> Iterator[tuple[Any, ...]]:
    """(layers of each stage, vpp, uneven chunks or None)."""
    layers = asked.task.model.layers
    if not virtual:  # DeepSpeed's own split: as even as can be, the longer stages first
        yield tuple(layers // pp + (stage < layers % pp) for stage in range(pp)), 1, None
        return
    for split in compositions(layers, pp):
        falling = list(split) == sorted(split, reverse=True) and split[0] - split[-1] <= 1
        if is_tried(split, layers) if virtual else falling:  # DeepSpeed has one split of its own
            most = max(split) if pp > 1 else 1
            for vpp in range(1, most + 1):
                if all(held % vpp == 0 for held in split):
                    yield split, vpp, None
    if pp == 1:
        return
    for vpp in range(2, layers + 3):
        size = -(-layers // (pp * vpp))
        if pp * vpp > layers + 2 or pp * (vpp - 1) * size >= layers:
            continue  # empty chunks between others, or as many layers in fewer chunks
        lists = set(chunk_lists(layers, pp, vpp, last_stage(layers, pp, head(asked))))
        lists |= {(*[size] * (pp * vpp - 1), last) for last in range(size + 1)}
        for chunks in lists:
            if sum(chunks) == layers and 0 not in chunks[1:-1] and len(set(chunks)) > 1:
                yield tuple(sum(chunks[stage::pp]) for stage in range(pp)), vpp, chunks


def head(asked: Workload) -> float:
    """Layers that do the work of the head by FLOPs; a quarter less beside experts."""
    flops, model = forward_flops(asked.task.model, asked.seq_len), asked.task.model
    layer = (flops.matmul_flops + flops.attention_flops) / model.layers
    return flops.head_flops / layer * (0.75 if model.moe else 1)


def last_stage(layers: int, pp: int, head: float) -> int:
    """The most layers of the last stage with which the busiest of all has least to do."""
    busiest = {
        last: max(math.ceil((layers - last) / (pp - 1)), last + head)
        for last in range(layers // pp + 1)
    }
    return max(last for last, work in busiest.items() if work == min(busiest.values()))


def chunk_lists(layers: int, pp: int, vpp: int, last: int) -> Iterator[tuple[int, ...]]:
    """Chunks in a row that grow by one at most; those of the last stage are as most others are,
    from the first one on, and what is missing is missing in the end.
    """
    others = (pp - 1) * vpp
    for small, larger in itertools.product(range(layers + 1), range(others)):
        if small * others + larger != layers - last:
            continue
        row = iter([small] * (others - larger) + [small + 1] * larger)
        size = max(small + (larger > others / 2), math.ceil(last / vpp))
        left, found = last, []
        for _ in range(vpp):
            found += [next(row) for _ in range(pp - 1)]
            found.append(min(size, left))
            left -= found[-1]
        yield tuple(found)


def group(runtime: Runtime, pp: int, vpp: int, count: int) -> int | None:
    """As few micro-batches of a chunk in turn as the runtime takes; one per stage if it takes none.

    Megatron-LM: no fewer than stages, and as many again or none in the last group. PyTorch: as
    many as there are in equal rounds, one round per whole number of stages' micro-batches.
    """
    if vpp == 1:
        return None
    if runtime == "fsdp":
        return count // max(count // pp, 1)
    for size in range(pp, count + 1):
        last = list(range(count))[::size][-1]  # where the last group begins
        if count - last >= pp:
            return size
    return pp


def recomputes(asked: Workload, chunk: int) -> Iterator[str]:
    yield "none"
    runtime = asked.task.runtime
    if runtime == "deepspeed":
        yield "full:uniform:1"
        return
    if runtime == "fsdp":
        yield from ("selective", "full:uniform:1")
        return
    modules = ["layernorm"]
    if any(not has_experts(asked.task.model, n) for n in range(asked.task.model.layers)):
        modules.append("mlp")
    if asked.task.model.moe:
        modules += ["moe", "moe_act"]
    for count in range(1, len(modules) + 1):
        for chosen in itertools.combinations(modules, count):
            if not {"moe", "moe_act"} <= set(chosen):
                yield f"selective:{'+'.join(chosen)}"
    yield from (f"full:uniform:{count}" for count in range(1, chunk + 1))
    yield from (f"full:block:{count}" for count in range(1, chunk))


def offloads(asked: Workload, pp: int, recompute: str) -> range:
    """Layers whose activations leave: NVIDIA's Grace hosts, one stage, nothing recomputed."""
    near = asked.task.cluster.pools[0].gpu.name.startswith("GB")
    some = near and asked.task.runtime == "megatron" and pp == 1 and recompute == "none"
    return range(asked.task.model.layers if some else 1)


def by_plain_loops(asked: Workload) -> Counter[Key]:
    """Every combination of the declared values, less those documented as no plan of their own."""
    task, batch = asked.task, asked.global_batch
    pool, moe, layers = task.cluster.pools[0], task.model.moe, task.model.layers
    shardings = {
        "fsdp": ("gradients", "parameters"),
        "deepspeed": ("optimizer", "gradients", "parameters"),
    }.get(task.runtime, ("optimizer", "parameters"))
    comms = {"deepspeed": ("a2a",), "fsdp": ("p2p", "allgather")}.get(
        task.runtime, ("p2p", "a2a", "allgather")
    )
    overlaps = (False, True) if moe and task.runtime not in ("fsdp", "deepspeed") else (False,)
    found: Counter[Key] = Counter()
    for tp, pp, dp, micro_batch in itertools.product(
        divisors(8), range(1, layers + 1), divisors(batch), divisors(batch)
    ):
        for cp in (2**n for n in range(6) if 2**n <= asked.seq_len // 1024):
            gpus = tp * pp * dp * cp
            if gpus not in allowed_counts(pool) or batch % (dp * micro_batch) or micro_batch > 16:
                continue
            for ep, etp, comm, hidden in itertools.product(
                divisors(moe.experts) if moe else [1],
                sorted({1, tp}) if moe else [1],
                comms if cp > 1 else comms[:1],
                overlaps,
            ):
                if tp * cp * dp % (ep * etp):
                    continue
                for stages, vpp, chunks in pipelines(asked, pp, task.runtime != "deepspeed"):
                    if hidden and not (ep > 1 and (pp == 1 or vpp > 1)):
                        continue
                    largest = max(chunks or [held // vpp for held in stages])
                    for recompute, sharding, fraction in itertools.product(
                        recomputes(asked, largest),
                        shardings if dp * cp > 1 else shardings[:1],
                        (0, 1) if task.runtime == "fsdp" else (n / 8 for n in range(9)),
                    ):
                        turn = group(task.runtime, pp, vpp, batch // (dp * micro_batch))
                        key = (tp, cp, pp, micro_batch, dp, stages, vpp, chunks, recompute)
                        rest = (ep, etp, sharding, comm, hidden, fraction, turn)
                        for offloaded in offloads(asked, pp, recompute):
                            found[(*key, *rest, offloaded)] += 1
    return found


QUESTIONS = [
    workload(layers=4, gpus=4, batch=4),
    workload(layers=5, gpus=8, batch=6),
    workload(layers=7, gpus=2, batch=2, seq_len=1024),
    workload(layers=4, gpus=16, batch=3),
    workload(layers=6, gpus=1, batch=8),
    workload(layers=6, gpus=3, batch=10, seq_len=1024, gpu="rtx-4090"),
    workload(layers=5, gpus=4, batch=2, gpu="gb200"),
    workload(layers=3, gpus=4, batch=2, gpu="gb300", runtime="flagscale"),
    workload(layers=4, gpus=8, batch=2, runtime="fsdp"),
    workload(layers=5, gpus=8, batch=4, runtime="deepspeed"),
    workload(layers=4, gpus=8, batch=2, runtime="flagscale"),
    workload(layers=2, experts=4, gpus=4, batch=2, seq_len=1024),
    workload(layers=3, experts=6, gpus=2, batch=2),
    workload(layers=2, experts=4, gpus=8, batch=2, runtime="fsdp"),
]


def name_of(asked: Workload) -> str:
    model, pool = asked.task.model, asked.task.cluster.pools[0]
    kind = f"moe{model.moe.experts}" if model.moe else "dense"
    return f"{asked.task.runtime}-{kind}-{model.layers}-layers-{pool.count}-gpus"


@pytest.mark.parametrize("asked", QUESTIONS, ids=name_of)
def test_the_space_is_what_plain_loops_find(asked: Workload) -> None:
    ours, loops = keys_of(table_of(asked), asked), by_plain_loops(asked)
    assert max(loops.values()) == 1, "the loops themselves name a plan twice"
    assert sorted(loops.keys() - ours.keys(), key=str)[:3] == []
    assert sorted(ours.keys() - loops.keys(), key=str)[:3] == []
    assert max(ours.values()) == 1


@pytest.mark.parametrize(
    "asked",
    [
        *QUESTIONS,
        workload(layers=12, gpus=16, batch=8, seq_len=1024),
        workload(layers=8, experts=8, gpus=8, batch=4, seq_len=1024),
    ],
    ids=name_of,
)
def test_no_plan_is_enumerated_twice(asked: Workload) -> None:
    rows = rows_as_bytes(table_of(asked))
    assert len(rows) > 50
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("gpu", ["h100", "rtx-4090", "gb200"])
@pytest.mark.parametrize("gpus", [1, 3, 6, 8, 16])
def test_every_row_can_be_rented_holds_the_model_and_adds_up(gpu: str, gpus: int) -> None:
    asked = workload(layers=9, gpus=gpus, batch=12, gpu=gpu)
    table = table_of(asked)
    pool = asked.task.cluster.pools[0]
    assert set(table.gpus.tolist()) <= set(allowed_counts(pool))
    assert int(table.gpus.max()) == max(allowed_counts(pool))
    assert (table.total_layers == 9).all()
    samples = table.replicas[0] * table.micro_batches[0] * table.micro_batch
    assert (samples == 12).all() and (table.micro_batches >= 1).all()
    assert ((table.layers >= 1) | ~table.used).all()
    assert (table.micro_batch <= 16).all()


def test_derived_settings_follow_from_the_others() -> None:
    table = table_of(workload(layers=6, gpus=16, batch=8))
    tp, copies = table.tp[0, 0], table.dp[0, 0] * table.cp
    assert (table.sequence_parallel == (tp > 1)).all()
    assert (table.overlap_tp == (tp > 1)).all()
    assert (table.overlap_grad_reduce == (copies > 1)).all()
    assert (table.overlap_param_gather == (copies > 1)).all()
    assert (table.overlap_p2p == (table.vpp > 1)).all()
    whole = table.sharding != code("sharding", "parameters")
    assert (table.shard_group == copies)[whole].all()
    plain = table.vpp == 1
    assert (table.microbatch_group == table.pp[0])[plain].all()
    assert ((table.schedule == 1) == (table.vpp > 1)).all()


@pytest.mark.parametrize("text", ["overlap_grad_reduce=false", "sequence_parallel=false"])
def test_what_needs_a_setting_that_was_switched_off_is_off_too(text: str) -> None:
    """Else the rules would leave plans that have neither: one replica, no tensor parallelism."""
    asked = workload()
    table = table_of(asked, text, "tp=2", "dp=2", "cp=1", "vpp=1")
    allowed = check(table, asked.task, rules_for("megatron")).allowed
    assert allowed.any() and not getattr(table, text.partition("=")[0]).any()
    whole = table_of(asked, "tp=2", "dp=2", "cp=1", "vpp=1")
    assert allowed.sum() == check(whole, asked.task, rules_for("megatron")).allowed.sum()


def test_sharded_parameters_are_shared_by_all_copies_or_by_those_in_a_node() -> None:
    table = table_of(workload(layers=6, gpus=16, batch=16))
    tp, copies = table.tp[0, 0], table.dp[0, 0] * table.cp
    rows = table.sharding == code("sharding", "parameters")
    inside = rows & (table.shard_group < copies)
    assert set(zip(tp[inside], copies[inside], table.shard_group[inside], strict=True)) == {
        (1, 16, 8),
        (2, 8, 4),
        (4, 4, 2),
    }
    asked = table_of(workload(layers=6, gpus=16, batch=16), "shard_group=4")
    assert set(asked.shard_group) == {4}


def test_the_same_question_gives_the_same_rows_in_the_same_order() -> None:
    asked = workload(layers=6, experts=4, gpus=8, batch=4, seq_len=1024)
    once, again = (list(enumerate_plans(Space(asked))) for _ in range(2))
    assert [len(table) for table in once] == [len(table) for table in again]
    for one, other in zip(once, again, strict=True):
        assert one.chunk_layers == other.chunk_layers
        for name in COLUMNS:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_tables_stay_small_enough_for_the_cache() -> None:
    tables = list(enumerate_plans(Space(workload(layers=12, experts=8, gpus=16, batch=8))))
    assert len(tables) > 3
    assert max(len(table) for table in tables) <= ROWS_PER_TABLE


NARROWED: list[tuple[str, Callable[[Plan], bool]]] = [
    ("tp=2", lambda p: p.pipelines[0].segments[0].tp == 2),
    ("tp=1,4", lambda p: p.pipelines[0].segments[0].tp in (1, 4)),
    ("pp=2,3", lambda p: p.pp in (2, 3)),
    ("dp=2", lambda p: p.dp == 2),
    ("cp=1", lambda p: p.cp == 1),
    ("vpp=2", lambda p: p.vpp == 2),
    ("vpp=1", lambda p: p.vpp == 1),
    ("micro_batch=1,4", lambda p: p.micro_batch in (1, 4)),
    ("ep=2", lambda p: p.ep == 2),
    ("ep=1,4", lambda p: p.ep in (1, 4)),
    ("etp=1", lambda p: p.etp == 1),
    ("overlap_ep=false", lambda p: not p.overlap_ep),
    ("overlap_ep=true", lambda p: p.overlap_ep),
    ("offload_optimizer_fraction=1", lambda p: p.offload_optimizer_fraction == 1),
    (
        "recompute=none,selective:moe",
        lambda p: p.pipelines[0].segments[0].recompute in ("none", "selective:moe"),
    ),
    ("recompute=full", lambda p: p.pipelines[0].segments[0].recompute == "full:uniform:1"),
]


@cache
def whole_space(asked: Workload) -> tuple[Plan, ...]:
    table = table_of(asked)
    return tuple(plan_at(table, row, asked.task) for row in range(len(table)))


@pytest.mark.parametrize("narrowed", slow_after(6, NARROWED), ids=lambda each: each[0])
def test_set_narrows_the_space_to_exactly_these_values(
    narrowed: tuple[str, Callable[[Plan], bool]],
) -> None:
    text, kept = narrowed
    asked = workload(layers=4, experts=4, gpus=4, batch=4)
    whole = whole_space(asked)
    expected = Counter(key_of(plan) for plan in whole if kept(plan))
    assert 0 < len(expected) < len(whole)
    assert keys_of(table_of(asked, text), asked) == expected


@pytest.mark.slow
def test_a_narrowed_sharding_is_kept_even_where_there_is_nothing_to_share() -> None:
    asked = workload(layers=4, experts=4, gpus=4, batch=4)
    narrowed = table_of(asked, "sharding=parameters")
    rows = [plan_at(narrowed, row, asked.task) for row in range(len(narrowed))]
    assert {plan.sharding for plan in rows} == {"parameters"}
    whole = whole_space(asked)
    several = Counter(key_of(p) for p in rows if p.dp * p.cp > 1)
    assert several == Counter(
        key_of(p) for p in whole if p.sharding == "parameters" and p.dp * p.cp > 1
    )
    alone = sum(p.dp * p.cp == 1 for p in rows)
    assert alone == sum(p.dp * p.cp == 1 for p in whole) > 0


@pytest.mark.slow
def test_two_sets_narrow_together() -> None:
    asked = workload(layers=3, experts=4, gpus=8, batch=4)
    both = keys_of(table_of(asked, "tp=2", "recompute=none"), asked)
    each = keys_of(table_of(asked, "tp=2"), asked) & keys_of(
        table_of(asked, "recompute=none"), asked
    )
    assert both == each and both


@pytest.mark.slow
def test_a_block_of_layers_is_tried_on_chunks_that_are_larger() -> None:
    """On smaller chunks the rules drop it; on equal ones it is the whole chunk by another name."""
    asked = workload(layers=6, gpus=8, batch=4)
    narrowed = table_of(asked, "recompute=full:block:2")
    allowed = check(narrowed, asked.task, rules_for("megatron")).allowed
    whole = table_of(asked)
    legal = whole.take(check(whole, asked.task, rules_for("megatron")).allowed)
    filtered = keys_of(legal, asked)
    filtered = Counter({key: n for key, n in filtered.items() if key[8] == "full:block:2"})
    kept = keys_of(narrowed.take(allowed), asked)
    assert filtered and filtered - kept == Counter()
    for stages, vpp in {(key[5], key[6]) for key in kept - filtered}:
        assert max(-(-held // vpp) for held in stages) == 2


@each_case(
    "text, name, values",
    [
        ("sequence_parallel=true,false", "sequence_parallel", {True, False}),
        ("overlap_tp=false", "overlap_tp", {False}),
        ("shard_group=1,2", "shard_group", {1, 2}),
        ("attention=unfused,flash", "attention", {0, 1}),
        ("cuda_graph=local", "cuda_graph", {1}),
        ("rank_order=tp-cp-ep-pp-dp", "rank_order", {1}),
        ("capacity_factor=1.25,2", "capacity_factor", {1.25, 2.0}),
        ("master_dtype=fp16", "master_dtype", {2}),
        ("offload_activations=none,core_attn+attn_proj", "offload_activations", {0, 3}),
        ("offload_layers=0,1", "offload_layers", {0, 1}),
    ],
)
def test_what_is_asked_for_is_tried_with_all_its_values(
    text: str, name: str, values: set[object]
) -> None:
    asked = workload(layers=2, experts=4, gpus=4, batch=4)
    table = table_of(asked, text, "recompute=none", "offload_optimizer_fraction=0")
    column = getattr(table, name)
    assert set(column.tolist()) == values
    plain = table_of(asked, "recompute=none", "offload_optimizer_fraction=0")
    assert len(table) == len(plain) * len(values)
    assert len(set(rows_as_bytes(table))) == len(table)


def test_a_microbatch_group_is_tried_where_something_is_interleaved() -> None:
    asked = workload(layers=4, gpus=2, batch=8)
    table = table_of(asked, "microbatch_group=2,4")
    plain = table.vpp == 1
    assert (table.microbatch_group[plain] == table.pp[0][plain]).all()
    assert set(table.microbatch_group[~plain].tolist()) == {2, 4}
    assert len(set(rows_as_bytes(table))) == len(table)


@each_case(
    "text",
    ["pp=5", "pp=99999999", "tp=99999999", "cp=4096", "dp=3", "micro_batch=99999999", "vpp=9"],
)
def test_a_value_that_no_plan_can_have_leaves_an_empty_space(text: str) -> None:
    asked = workload(layers=4, gpus=8, batch=4)
    assert list(enumerate_plans(Space(asked, parse_set([text])))) == []


def test_degrees_whose_product_overflows_are_no_plans() -> None:
    """2^22 x 2^22 x 2^20 is 0 in 64 bits; there are not that many GPUs."""
    huge = ["tp=4194304", "cp=4194304", "pp=1", "dp=1048576"]
    asked = workload(layers=4, gpus=16, batch=1048576)
    assert list(enumerate_plans(Space(asked, parse_set(huge)))) == []


def test_a_cap_on_all_gpus_caps_the_space() -> None:
    asked = workload(layers=4, gpus=16, batch=8)
    capped = Cluster(name="capped", pools=asked.task.cluster.pools, max_gpus=7)
    task = Task(model=asked.task.model, cluster=capped)
    table = concatenate(list(enumerate_plans(Space(Workload(task, 8, 2048)))))
    assert set(table.gpus.tolist()) == {1, 2, 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked", [workload(layers=6, gpus=16, batch=8), workload(4, experts=4, gpus=8)], ids=name_of
)
def test_every_plan_that_the_rules_allow_exports_and_reads_back(asked: Workload) -> None:
    table = table_of(asked)
    allowed = np.flatnonzero(check(table, asked.task, rules_for("megatron")).allowed)
    assert len(allowed) > 200
    for row in allowed[:: max(len(allowed) // 60, 1)].tolist():
        plan = check_structure(plan_at(table, row, asked.task))
        files = export_files(plan, "megatron")
        assert plan_from_json(json.loads(files["plan.json"]), "plan") == plan


def chunk_lists_of(model: str, pp: int, vpp: int) -> set[tuple[int, ...]]:
    """The uneven lists of chunks that a search tries for a model of the zoo."""
    cluster = Cluster(name="large", pools=(Pool(gpu=find_gpu("h100")[0], count=8 * pp),))
    asked = Workload(Task(model=find_model(model), cluster=cluster), 8 * pp, 4096)
    table = next(enumerate_layouts(Space(asked, parse_set([f"pp={pp}", f"vpp={vpp}", "tp=8"]))))
    return {table.chunk_layers[at] for at in set(table.chunking.tolist()) if at >= 0}


@each_case(
    "model, pp, vpp, chunks",
    [
        ("deepseek-v3", 8, 4, (1, *[2] * 30, 0)),  # the loss stands alone
        ("kimi-k2", 8, 4, (1, *[2] * 30, 0)),
        ("deepseek-v3", 16, 2, (1, *[2] * 30, 0)),
        ("deepseek-v3", 4, 4, (*[4] * 15, 1)),
        ("llama-3.1-405b", 16, 8, (0, *[1] * 126, 0)),  # the embedding does too
        ("llama-3.1-405b", 16, 4, (1, *[2] * 62, 1)),
        ("llama-3-70b", 4, 10, (*[2] * 38, 3, 1)),  # even, but for the head's share
    ],
)
def test_chunks_are_cut_as_recipes_cut_them(
    model: str, pp: int, vpp: int, chunks: tuple[int, ...]
) -> None:
    found = chunk_lists_of(model, pp, vpp)
    assert chunks in found
    assert len(found) <= 2 and all(sum(split) == sum(chunks) for split in found)
