"""Tables of measured runs: an excerpt of published ones, and hostile files."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cases import each_case

from astra.errors import InputError
from astra.fit.csv_row import MAX_CELL_CHARACTERS
from astra.fit.header import ONE_TYPE, REQUIRED_COLUMNS
from astra.fit.runs import Run, parse_runs, read_files, read_runs
from astra.hardware.catalogue import find_gpu
from astra.hardware.cluster import Gpu
from astra.model.parameters import parameters
from astra.timing.collectives import all_reduce_s

DATA = Path(__file__).parent / "data"
RUNS = Path(__file__).parents[2] / "validation" / "runs"
HEADER = (*REQUIRED_COLUMNS, *ONE_TYPE)
GOOD = {
    "row_id": "mine-1",
    "model": "llama-3-8b",
    "num_layers": "32",
    "hidden_size": "4096",
    "seq_len": "8192",
    "global_batch": "64",
    "gpu_id": "H100-80GB-SXM",
    "num_gpus": "8",
    "measured_step_time_s": "4.2",
}


def table(*rows: dict[str, str]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, dict.fromkeys([*HEADER, *(k for row in rows for k in row)]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


@pytest.fixture(scope="module")
def excerpt() -> dict[str, Run]:
    return {run.row_id: run for run in read_runs(DATA / "runs.csv").runs}


def find(excerpt: dict[str, Run], family: str) -> Run:
    return next(run for run in excerpt.values() if run.family == family)


def test_the_excerpt_is_read_and_only_rows_without_figures_are_skipped() -> None:
    found = read_runs(DATA / "runs.csv")
    assert len(found.runs) >= 38
    assert {row.reason for row in found.skipped} == {
        "neither a step time nor a memory peak was measured"
    }


def test_every_plan_uses_the_gpus_and_samples_of_its_row(excerpt: dict[str, Run]) -> None:
    with (DATA / "runs.csv").open(newline="") as file:
        rows = {row["row_id"]: row for row in csv.DictReader(file)}
    for row_id, run in excerpt.items():
        row, plan = rows[row_id], run.plan
        assert sum(plan.gpus.values()) == int(row["num_gpus"])
        assert plan.global_batch == int(row["global_batch"])
        held = plan.pipelines[0]
        if row["micro_batch"]:
            assert held.replicas * held.micro_batches * plan.micro_batch == plan.global_batch
        assert sum(held.layers) == plan.model.layers == int(row["num_layers"])


def test_parameters_of_an_mpt_are_those_its_source_counted(excerpt: dict[str, Run]) -> None:
    assert parameters(find(excerpt, "llm-foundry").plan.model).total == 64_862_437_376


def test_a_layout_in_the_overlap_cell_cuts_the_chunks(excerpt: dict[str, Run]) -> None:
    run = next(r for r in excerpt.values() if r.plan.chunk_layers == (4,) * 15 + (1,))
    assert run.plan.mtp_layers == run.plan.model.mtp_layers == 1
    assert run.plan.schedule == "interleaved" and run.plan.vpp == 8


def test_what_the_zoo_lent_is_said(excerpt: dict[str, Run]) -> None:
    cut = next(r for r in excerpt.values() if r.model_name == "llama3-70b (12 layers)")
    assert cut.plan.model.layers == 12
    assert "model details as llama-3-70b" in cut.assumed
    assert "llama-3-70b cut to 12 layers" in cut.assumed
    latent = next(r for r in excerpt.values() if r.model_name == "deepseekv2 (4 layers)")
    assert latent.plan.model.mla is not None and latent.plan.model.mla.q_lora_rank == 1536


def test_failed_runs_are_labels_and_not_runs_that_fit(excerpt: dict[str, Run]) -> None:
    failed = [run for run in excerpt.values() if run.failed_for_memory]
    assert len(failed) == 2 and not any(run.ran for run in failed)
    assert all(run.measured_step_s is None for run in failed)


def test_runtimes_and_stacks_by_framework(excerpt: dict[str, Run]) -> None:
    found = {run.family: (run.plan.runtime, run.stack) for run in excerpt.values()}
    assert found["llm-foundry"] == ("fsdp", "llm-foundry")
    assert found["vtrain-multi"] == ("megatron", "megatron-deepspeed")
    assert found["mlperf"] == ("megatron", "mlperf")
    assert found["fms-fsdp"] == ("fsdp", "torch-fsdp")


def test_megatrons_own_tests_run_with_dropout_and_most_of_them_deterministically(
    excerpt: dict[str, Run],
) -> None:
    tests = {run.row_id[-5:]: run.stack for run in excerpt.values() if "-ci" in run.row_id}
    assert tests["02833"] == tests["02837"] == tests["03106"] == "megatron-deterministic"
    assert tests["03067"] == "megatron", "DeepSeek's recipe has no dropout"
    assert read_stack(notes="CI test; deterministic-mode=True") == "megatron-deterministic"
    assert read_stack(notes="CI test; attention-backend=flash") == "megatron-dropout"
    assert read_stack(notes="a run of ours") == "megatron"


def read_stack(**csv_row: str) -> str:
    row = GOOD | {"framework": "Megatron-LM", "source_date": "2026-08", "recompute": "none"}
    (run,) = parse_runs(table(row | csv_row), "mine.csv").runs
    return run.stack


def test_a_compiled_loss_is_read_since_2025() -> None:
    titan = {"framework": "torchtitan", "notes": "FSDP + torch.compile"}
    assert read_stack(**titan, source_date="2025-06") == "torchtitan"
    assert read_stack(**titan, source_date="2024-12") == "torch-fsdp"
    assert read_stack(framework="torchtitan", notes="plain", source_date="2025-06") == "torch-fsdp"


def test_distillation_is_skipped_with_the_reason() -> None:
    (skipped,) = parse_runs(table(GOOD | {"model": "gpt3_distill"}), "mine.csv").skipped
    assert "a teacher is held besides" in skipped.reason


def test_offload_of_unnamed_modules_is_read_as_attentions() -> None:
    row = GOOD | {"notes": "fine-grained-activation-offloading=True"}
    (run,) = parse_runs(table(row), "mine.csv").runs
    assert run.plan.offload_activations == ("core_attn",)
    assert any("offloaded modules not stated" in said for said in run.assumed)


def test_offloaded_layers_are_read() -> None:
    row = GOOD | {"overlap": "use_megatron_fsdp=True; cpu_offloading_num_layers=20"}
    (run,) = parse_runs(table(row), "mine.csv").runs
    assert run.plan.offload_layers == 20


def test_mixed_runs_keep_their_pipelines_and_links() -> None:
    found = read_runs(DATA / "mixed.csv")
    assert [row.row_id for row in found.skipped] == ["amp-het-10"]
    amp, sailor = found.runs[0], found.runs[2]
    assert amp.family == "amp-het" and amp.plan.pipelines[0].layers == (5, 7, 6, 6)
    pools = {pool.gpu.name: pool for pool in amp.plan.cluster.pools}
    assert {name: pool.count for name, pool in pools.items()} == {"T4": 4, "V100-16GB-SXM2": 12}
    assert pools["V100-16GB-SXM2"].gpu.node.nic_bytes_per_s == 10e9 / 8 / 4
    assert pools["V100-16GB-SXM2"].gpu.link.domain_gpus == 4
    assert sailor.plan.precision == "fp32" and sailor.memory_kind == "device"


def test_figures_of_pairs_tell_bridges_from_slow_hosts() -> None:
    """Two RTX 3090 move 50 GB/s and have a bridge, two Titan RTX 11 and have none; of eight, four
    pairs of RTX 3090 move 5.3 in all, less than rings through their host could.
    """
    runs = {run.row_id: run for run in read_runs(RUNS / "mixed.csv").runs}

    def gpus(row: str) -> dict[str, Gpu]:
        return {pool.gpu.name: pool.gpu for pool in runs[row].plan.cluster.pools}

    two, eight = gpus("sailor-het-00"), gpus("sailor-het-08")
    assert (two["RTX-3090"].link.domain_gpus, two["Titan-RTX"].link.domain_gpus) == (2, 1)
    assert (
        eight["Titan-RTX"].node.pcie_bytes_per_s == find_gpu("titan-rtx")[0].node.pcie_bytes_per_s
    )
    payload = 2**24
    slow_s = float(all_reduce_s(payload, 8, 2, eight["RTX-3090"], 8))
    assert 2 * 7 / 8 * payload / slow_s == pytest.approx(5.33e9 / 4, rel=0.03)
    t4 = gpus("amp-het-00")["T4"]
    assert t4.link.bytes_per_s == find_gpu("t4")[0].link.bytes_per_s, "eight lanes, not sixteen"
    assert {gpu.node.nics for gpu in (*two.values(), *eight.values(), t4)} == {1}


def test_a_short_table_of_ones_own_is_enough() -> None:
    found = parse_runs(table(GOOD), "mine.csv")
    assert not found.skipped and found.runs[0].family == "unnamed"
    assert found.runs[0].plan.dp == 8 and found.runs[0].plan.model.vocab == 128_256


@each_case(
    "changes, reason",
    [
        ({"gpu_id": "abacus"}, "unknown GPU"),
        ({"gpu_id": "/etc/passwd"}, "gpu_id is not known"),
        ({"num_gpus": ""}, "num_gpus is not known"),
        ({"num_gpus": "1e300"}, "num_gpus"),
        ({"num_gpus": "7", "tp": "2"}, "do not divide"),
        ({"pp": "64", "num_gpus": "64"}, "more stages"),
        ({"measured_step_time_s": "fast"}, "not a number"),
        ({"measured_step_time_s": "-1"}, "above zero"),
        ({"measured_step_time_s": "nan"}, "not a number"),
        ({"seq_len": "0"}, "seq_len"),
        ({"model": "x", "num_layers": ""}, "num_layers is not known"),
        ({"model": "x", "num_layers": "999999999"}, "layers"),
        ({"model": "x", "num_heads": "7"}, "head_dim"),
        ({"model": "x", "num_heads": "32", "num_kv_heads": "5"}, "kv_heads"),
        ({"recompute": "maybe"}, "recompute"),
        ({"zero_stage": "everything"}, "zero_stage"),
        ({"precision": "int2"}, "precision"),
        ({"flash_attention": "perhaps"}, "flash_attention"),
        ({"task": "LoRA"}, "adapters"),
        ({"num_experts": "8", "top_k": "9"}, "top_k"),
        ({"notes": "x" * (MAX_CELL_CHARACTERS + 1)}, "characters"),
        ({"overlap": "pp_layout=((((", "pp": "2"}, "layout"),
    ],
)
def test_a_bad_cell_skips_its_row_with_the_reason(changes: dict[str, str], reason: str) -> None:
    found = parse_runs(table(GOOD, GOOD | {"row_id": "bad"} | changes), "mine.csv")
    assert len(found.runs) == 1
    assert [row.row_id for row in found.skipped] == ["bad"]
    assert reason in found.skipped[0].reason


HOSTILE = ("", "0", "-1", "1", "3", "1e9", "999999", "true", "[", "{}", "zero3 shard=0", "é\n",
           "full:block:0", "pp_layout=Et*9999|L", "selective: x", "9" * 400, "nan")  # fmt: skip


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_cell_makes_the_reader_crash(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["runs.csv", "mixed.csv"]))
    rows = list(csv.DictReader(io.StringIO((DATA / name).read_text())))
    row = data.draw(st.sampled_from(rows))
    for column in data.draw(st.lists(st.sampled_from(sorted(row)), min_size=1, max_size=4)):
        row[column] = data.draw(st.sampled_from(HOSTILE))
    found = parse_runs(one_row(row), "mine.csv")
    assert len(found.runs) + len(found.skipped) == 1


def one_row(row: dict[str, str]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(row))
    writer.writeheader()
    writer.writerow(row)
    return out.getvalue()


@each_case(
    "pipelines",
    ["", "[]", "{}", "[1]", "nonsense", "[" * 5000, '[{"replicas": 1}]',
     '[{"replicas": 1, "micro_batches": 1, "segments": []}]',
     '[{"replicas": 1, "micro_batches": 1, "segments": [{"gpu": "../x.toml", "stages": 1,'
     ' "layers": [32], "tp": 1}]}]'],
)  # fmt: skip
def test_bad_pipelines_skip_their_row(pipelines: str) -> None:
    row = {name: value for name, value in GOOD.items() if name not in ONE_TYPE}
    found = parse_runs(table(row | {"pipelines": pipelines, "micro_batch": "1"}), "mine.csv")
    assert not found.runs and len(found.skipped) == 1


@each_case(
    "text, words",
    [
        ("", "empty"),
        ("\n\n", "empty"),
        (
            "a,b,c\n1,2,3\n",
            "columns model, num_layers, .*num_gpus are missing. The file has a, b, c",
        ),
        ("row_id\nx\n", "columns model, .*are missing"),
        (",".join(HEADER).replace("gpu_id", "gpu_idd") + "\n", "Did you mean gpu_idd"),
        (",".join((*HEADER, "model")) + "\n", "twice"),
        ("\0\1\2", "zero bytes"),
        (",".join(HEADER) + "\n" + "x" * 200_000 + "\n", "not CSV"),
    ],
)
def test_what_is_no_table_of_runs_is_an_error(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_runs(text, "mine.csv")


def test_ragged_rows_and_open_quotes_do_no_harm() -> None:
    header = ",".join(HEADER)
    found = parse_runs(f'{header}\nshort\n"open quote,1,2\n', "mine.csv")
    assert not found.runs and len(found.skipped) == 2
    assert not parse_runs(header + "\n", "mine.csv").runs


def test_binary_and_missing_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(bytes(range(128, 256)))
    with pytest.raises(InputError, match="UTF-8"):
        read_files([tmp_path / "x.csv"])
    with pytest.raises(InputError, match="no such file"):
        read_files([tmp_path / "y.csv"])


def test_nemo_interleaves_and_cuts_experts_where_its_rows_do_not_say() -> None:
    row = GOOD | {"framework": "nemo", "tp": "2", "pp": "4", "micro_batch": "1"}
    (run,) = parse_runs(table(row), "mine").runs
    assert run.plan.vpp == 8, "one layer a chunk"
    assert any("vpp not stated" in words for words in run.assumed)
    (run,) = parse_runs(table(row | {"vpp": "1"}), "mine").runs
    assert run.plan.vpp == 1
    (run,) = parse_runs(table(row | {"framework": "megatron-bridge"}), "mine").runs
    assert run.plan.vpp == 1
    sparse = row | {"model": "mixtral-8x7b", "num_experts": "8", "top_k": "2", "ep": "2"}
    (run,) = parse_runs(table(sparse | {"pp": "1"}), "mine").runs
    assert run.plan.etp == 2
    (run,) = parse_runs(table(sparse | {"pp": "1", "etp": "1"}), "mine").runs
    assert run.plan.etp == 1


def test_a_table_by_the_names_of_a_frameworks_log_is_read() -> None:
    """Columns as W&B exports them, kept apart by semicolons: the same run, and it is told."""
    names = {
        "row_id": "Name",
        "seq_len": "seq_length",
        "global_batch": "global_batch_size",
        "micro_batch": "micro-batch-size",
        "tp": "tensor_model_parallel_size",
        "num_gpus": "World Size",
        "measured_step_time_s": "iteration-time",
    }
    row = {names.get(name, name): value for name, value in GOOD.items()}
    lines = [";".join(map(str, row)), ";".join(map(str, row.values()))]
    found = parse_runs("\n".join(lines), "mine.csv")
    assert found.runs == parse_runs(table(GOOD), "mine.csv").runs
    assert "'iteration-time' is read as measured_step_time_s" in found.notes[0]


def test_a_column_of_ours_wins_over_one_of_another_name() -> None:
    found = parse_runs(table(GOOD | {"world_size": "999"}), "mine.csv")
    assert found.runs == parse_runs(table(GOOD), "mine.csv").runs
    assert found.notes == ("mine.csv: the column 'world_size' is not read.",)


def test_all_missing_columns_are_named_at_once_and_a_row_needs_no_name() -> None:
    kept = [name for name in HEADER if name not in ("model", "gpu_id")]
    with pytest.raises(InputError, match=r"columns model, gpu_id are missing\. The file has "):
        parse_runs(",".join(kept) + "\n", "m.csv")
    own = [name for name in GOOD if name != "row_id"]
    text = ",".join(own) + "\n" + ",".join(str(GOOD[name]) for name in own)
    assert [run.row_id for run in parse_runs(text, "m.csv").runs] == ["row 1"]
